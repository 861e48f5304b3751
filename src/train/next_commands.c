/* next_commands.c: the last lines of a training: where the model is, and the commands that use it.
 *
 * Each command stands alone in its line and can be copied as it is: words are quoted for a shell, the explanation is a
 * shell's comment, and the words that were given behind the job file are repeated where the command needs them. */
#define _GNU_SOURCE /* program_invocation_name */
#include "train/train_internal.h"
#include "base/buf.h"
#include "base/console.h"
#include "task/folder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { COMMAND = 8192, EXPLAINED_AT = 46 };

/* ---- words of a shell -------------------------------------------------------------------------------------------- */

static neb_status quoted(struct neb_buf *b, const char *word)
{
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
    if (*word && word[strspn(word, safe)] == 0) return neb__buf_printf(b, "%s", word);
    NEB_TRY(neb__buf_printf(b, "'"));
    for (; *word; word++) NEB_TRY(*word == '\'' ? neb__buf_printf(b, "'\\''") : neb__buf_append(b, word, 1));
    return neb__buf_printf(b, "'");
}

static neb_status add(struct neb_buf *b, const char *word)
{
    NEB_TRY(neb__buf_printf(b, " "));
    return quoted(b, word);
}

/* The name under which this program was called, so that a copied command finds it. */
static neb_status program(struct neb_buf *b)
{
    const char *name = program_invocation_name, *slash = strrchr(name, '/');
    bool own = !strcmp(slash ? slash + 1 : name, "nebula-i");
    return quoted(b, own ? name : "nebula-i");
}

static neb_status begin(struct neb_buf *b, const char *verb)
{
    neb__buf_clear(b);
    NEB_TRY(program(b));
    return neb__buf_printf(b, " %s", verb);
}

static void print(struct neb_buf *b, const char *what)
{
    int at = neb__console_columns((const char *)b->data), gap = at < EXPLAINED_AT ? EXPLAINED_AT - at : 2;
    if (neb__buf_printf(b, "%*s# %s", gap, "", what) != NEB_OK) return;
    char line[COMMAND + 64];
    snprintf(line, sizeof line, "  %s", (const char *)b->data);
    neb__console_line(line);
}

/* ---- the commands ------------------------------------------------------------------------------------------------ */

static void say_report(const struct neb_job *j, struct neb_buf *b)
{
    char page[NEB_MODEL_PATH];
    snprintf(page, sizeof page, "%s/report.html", j->out);
    if (begin(b, "report") == NEB_OK && add(b, j->out) == NEB_OK && add(b, "--to") == NEB_OK &&
        add(b, page) == NEB_OK)
        print(b, "the run as a page of plots");
}

/* The folder and the address of a site mean nothing to a command that reaches no other site; a proxy's may hold a
 * password. */
static bool is_address(const char *path)
{
    const char *rest = strchr(path, ']');
    return !strncmp(path, "sites[", 6) && rest &&
           (!strcmp(rest, "].folder") || !strcmp(rest, "].listen") || !strcmp(rest, "].proxy") ||
            !strcmp(rest, "].dial"));
}

static neb_status add_overrides(const struct neb_job *j, struct neb_buf *b)
{
    for (int i = 0; i < j->doc.n; i++) {
        const struct neb_doc_entry *e = &j->doc.list[i];
        char word[1024];
        if (e->line || is_address(e->path)) continue;
        if (snprintf(word, sizeof word, "%s=%s", e->path, e->value) >= (int)sizeof word)
            return NEB_ERR_NOSPACE;
        NEB_TRY(add(b, word));
    }
    return NEB_OK;
}

static bool has_held_out(const struct neb_job *j)
{
    for (int i = 0; i < j->n_data; i++)
        if (!strcmp(j->data[i].use, "valid") && neb__job_has(j, &j->data[i])) return true;
    return false;
}

static void say_eval(const struct neb_job *j, struct neb_buf *b)
{
    if (!has_held_out(j) || begin(b, "eval loss") != NEB_OK || add(b, j->doc.file) != NEB_OK) return;
    if (j->at >= 0 && (add(b, "--site") != NEB_OK || add(b, j->site[j->at].name) != NEB_OK)) return;
    if (add_overrides(j, b) == NEB_OK) print(b, "loss on all of the held-out text");
}

static void say_translate(const struct neb_trainer *t, struct neb_buf *b)
{
    const struct neb_job *j = t->job;
    char lang[NEB_LANG_SIZE] = "";
    neb__buf_clear(b);
    if (neb__buf_printf(b, "echo 'A sentence.' | ") != NEB_OK || program(b) != NEB_OK ||
        neb__buf_printf(b, " translate") != NEB_OK || add(b, j->out) != NEB_OK)
        return;
    if (t->facts.from) {
        neb__data_source_lang(&j->data[0], lang);
        if (add(b, "--from") != NEB_OK || add(b, lang) != NEB_OK) return;
    }
    if (t->facts.to) {
        neb__data_target_lang(&j->data[0], lang);
        if (add(b, "--to") != NEB_OK || add(b, lang) != NEB_OK) return;
    }
    print(b, "or name a file behind it");
}

static void say_generate(const struct neb_job *j, struct neb_buf *b)
{
    if (begin(b, "generate") == NEB_OK && add(b, j->out) == NEB_OK && add(b, "The") == NEB_OK)
        print(b, "goes on from these words");
}

static void say_export(const struct neb_job *j, struct neb_buf *b)
{
    char to[NEB_MODEL_PATH];
    snprintf(to, sizeof to, "%s/huggingface", j->out);
    if (begin(b, "export") == NEB_OK && add(b, j->out) == NEB_OK && add(b, to) == NEB_OK)
        print(b, "for from_pretrained()");
}

/* ---- where the model is ------------------------------------------------------------------------------------------ */

static void say_where(const struct neb_trainer *t)
{
    char line[2 * NEB_MODEL_PATH + 80];
    bool model = t->facts.model, generator = t->facts.generator;
    const char *out = t->job->out;
    if (model && generator)
        snprintf(line, sizeof line, "The model is in %s, its generator in %s/generator. Next:", out, out);
    else if (model)
        snprintf(line, sizeof line, "The model is in %s. Next:", out);
    else if (t->stage && !t->job->wan.gather)
        snprintf(line, sizeof line,
                 "This site's part of the model is in %s: nebula-i export --join makes one model of the "
                 "folders of all "
                 "sites. Next:",
                 out);
    else if (t->stage)
        snprintf(line, sizeof line, "This site has trained its layers: site '%.100s' has the model. Next:",
                 t->job->site[0].name);
    else
        snprintf(line, sizeof line,
                 "The generator is in %s/generator; the other site has the model. Next:", out);
    neb__console_line(line);
}

void neb__trainer_say_next(const struct neb_trainer *t)
{
    struct neb_buf b;
    neb__buf_init(&b, COMMAND);
    say_where(t);
    say_report(t->job, &b);
    if (!t->split && !t->stage) say_eval(t->job, &b);
    if (t->facts.model && t->job->objective->sides == 2) say_translate(t, &b);
    if (t->facts.model && !strcmp(t->job->objective->name, "causal")) say_generate(t->job, &b);
    if (t->facts.exports) say_export(t->job, &b);
    neb__buf_free(&b);
}

void neb__trainer_say_taught(const struct neb_job *job)
{
    struct neb_buf b;
    char line[200];
    const char *student = "the student";
    for (int i = 0; i < job->n_sites; i++)
        if (job->site[i].does == NEB_ROLE_STUDENT) student = job->site[i].name;
    neb__buf_init(&b, COMMAND);
    snprintf(line, sizeof line, "This site has taught: site '%.100s' has the model. Next:", student);
    neb__console_line(line);
    say_report(job, &b);
    neb__buf_free(&b);
}
