/* manual.c: man pages from the tables that the program itself runs on: the verbs, their options, the keys of a job file and
 * reference.h. So a page cannot say something that the program does not do. */
#include "cli/manual.h"
#include "cli/reference.h"
#include "cli/roff.h"
#include "job/job.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ----------------------------------------------------------------------------------------------------- */

static const char *value_of(const struct neb_opt *o)
{
    switch (o->type) {
    case NEB_OPT_INT:
    case NEB_OPT_REAL: return "N";
    case NEB_OPT_BYTES: return "SIZE";
    case NEB_OPT_TIME: return "TIME";
    case NEB_OPT_RATE: return "RATE";
    case NEB_OPT_SHARE: return "SHARE";
    case NEB_OPT_TEXT: return o->choices ? "WORD" : "TEXT";
    case NEB_OPT_BOOL:
    case NEB_OPT_NONE: break;
    }
    return "";
}

/* What --help says behind the option's name. */
static void put_meaning(const struct neb_opt *o, FILE *to)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory) {
        neb__opts_help_of(o, memory);
        if (!fclose(memory)) neb__roff_text(to, text);
    }
    free(text);
}

static void put_option(const struct neb_opt *o, FILE *to)
{
    char name[64];
    snprintf(name, sizeof name, "--%s", o->name);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
    neb__roff_item(to, name, value_of(o));
    put_meaning(o, to);
}

static void put_options(const struct neb_verb *v, FILE *to)
{
    for (int i = 0; i < NEB_VERB_TABLES && v->options[i].table; i++)
        for (const struct neb_opt *o = v->options[i].table; o->name; o++) put_option(o, to);
}

/* ---- one verb ---------------------------------------------------------------------------------------------------- */

static void put_synopsis(const struct neb_verb *v, const struct neb_verb *parts, FILE *to)
{
    char lead[128], words[512];
    neb__roff_section(to, "SYNOPSIS");
    snprintf(lead, sizeof lead, "nebula-i %s", v->name);
    if (!parts) neb__roff_usage(to, lead, v->args);
    for (const struct neb_verb *p = parts; p && p->name; p++) {
        if (p != parts) neb__roff_break(to);
        if (v->parts && *v->args) { /* the part's name stands behind the verb's own words */
            snprintf(words, sizeof words, "%s %s %s", v->args, p->name, p->args);
            neb__roff_usage(to, lead, words);
        } else {
            snprintf(lead, sizeof lead, "nebula-i %s %s", v->name, p->name);
            neb__roff_usage(to, lead, p->args);
        }
    }
}

static bool has_options(const struct neb_verb *v)
{
    return v->options[0].table && v->options[0].table->name;
}

/* Parts with options of their own have a subsection each; others are a list. */
static void put_parts(const struct neb_verb *parts, FILE *to)
{
    bool own = false;
    for (const struct neb_verb *p = parts; p->name; p++) own |= has_options(p);
    neb__roff_section(to, own ? "PARTS" : "WORDS");
    for (const struct neb_verb *p = parts; p->name; p++) {
        if (own)
            neb__roff_subsection(to, p->name);
        else
            neb__roff_item(to, p->name, p->args);
        neb__roff_text(to, p->help);
        if (own && p->about) {
            fputs(".PP\n", to);
            neb__roff_text(to, p->about);
        }
        put_options(p, to);
    }
}

static void put_description(const struct neb_verb *v, FILE *to)
{
    char text[256];
    neb__roff_section(to, "DESCRIPTION");
    snprintf(text, sizeof text, "%s.", v->help);
    *text = (char)toupper((unsigned char)*text);
    neb__roff_text(to, text);
    if (v->about) {
        fputs(".PP\n", to);
        neb__roff_text(to, v->about);
    }
    bool keys = neb__verb_takes_keys(v);
    for (const struct neb_verb *p = neb__verb_parts(v); p && p->name; p++) keys |= neb__verb_takes_keys(p);
    if (keys) {
        fputs(".PP\n", to);
        neb__roff_text(to, "The keys of a job file are in `nebula-i-job`(5).");
    }
}

static void put_rows(const struct neb_reference_row *rows, FILE *to)
{
    for (; rows->name; rows++) {
        neb__roff_item(to, rows->name, "");
        neb__roff_text(to, rows->text);
    }
}

void neb__manual_verb(const struct neb_verb *v, FILE *to)
{
    char page[64], words[256];
    const struct neb_verb *parts = neb__verb_parts(v);
    snprintf(page, sizeof page, "nebula-i-%s", v->name);
    neb__roff_title(to, page, 1);
    neb__roff_section(to, "NAME");
    snprintf(words, sizeof words, "%s - %s", page, v->help);
    neb__roff_text(to, words);
    put_synopsis(v, parts, to);
    put_description(v, to);
    if (parts) put_parts(parts, to);
    neb__roff_section(to, "OPTIONS");
    put_options(v, to);
    neb__roff_item(to, "-h, --help", "");
    neb__roff_text(to, "explain the verb");
    neb__roff_section(to, "EXIT STATUS");
    neb__roff_text(
        to, "0: all is done; 1: it failed; 2: a wrong word, option or value. `nebula-i`(1) has all of them.");
    neb__roff_section(to, "SEE ALSO");
    neb__roff_text(to, "`nebula-i`(1), `nebula-i-job`(5)");
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

static void put_verbs(FILE *to)
{
    char page[64];
    neb__roff_section(to, "VERBS");
    for (int i = 0; neb__verbs[i]; i++) {
        snprintf(page, sizeof page, "nebula-i-%s", neb__verbs[i]->name);
        neb__roff_item(to, page, "(1)");
        neb__roff_text(to, neb__verbs[i]->help);
    }
}

void neb__manual_program(FILE *to)
{
    neb__roff_title(to, "nebula-i", 1);
    neb__roff_section(to, "NAME");
    neb__roff_text(to, "nebula-i - train one model on several clusters that a slow network joins");
    neb__roff_section(to, "SYNOPSIS");
    neb__roff_usage(to, "nebula-i", "VERB [arguments]");
    neb__roff_break(to);
    neb__roff_usage(to, "nebula-i help", "[VERB [PART]]");
    neb__roff_break(to);
    neb__roff_usage(to, "nebula-i help job", "");
    neb__roff_section(to, "DESCRIPTION");
    neb__roff_text(
        to, "Every cluster, a site, trains at full local speed on its own data and sends small compressed "
            "updates now and then. At the end all sites hold the same model, bit for bit. A job file, "
            "`nebula-i-job`(5), says what is trained, on what data, and by which sites.");
    put_verbs(to);
    neb__roff_section(to, "OPTIONS");
    put_rows(neb__reference_options, to);
    neb__roff_section(to, "EXIT STATUS");
    put_rows(neb__reference_exits, to);
    neb__roff_section(to, "ENVIRONMENT");
    put_rows(neb__reference_environment, to);
    neb__roff_section(to, "FILES");
    neb__roff_text(to, "OUT is the `out` of a job, SITE a folder that `nebula-i site init` has made.");
    put_rows(neb__reference_files, to);
    neb__roff_section(to, "EXAMPLES");
    neb__roff_text(to, "All sites of a job on this machine, a wide-area network between them:");
    fputs(".PP\n.in +4n\n", to);
    neb__roff_usage(to, "nebula-i lab", "job.yaml --wan 100mbit,50ms");
    fputs(".in\n.PP\n", to);
    neb__roff_text(to, "One of two distant sites:");
    fputs(".PP\n.in +4n\n", to);
    neb__roff_usage(to, "nebula-i train", "job.yaml --site a");
    fputs(".in\n", to);
    neb__roff_section(to, "SEE ALSO");
    neb__roff_text(to, "`nebula-i-train`(1), `nebula-i-lab`(1), `nebula-i-job`(5)");
}

/* ---- the job file ------------------------------------------------------------------------------------------------ */

static void put_tasks(FILE *to)
{
    neb__roff_subsection(to, "Tasks");
    for (int i = 0; neb__objectives[i]; i++) {
        if (!neb__objectives[i]->steps) continue;
        neb__roff_item(to, neb__objectives[i]->name, "");
        neb__roff_text(to, neb__objectives[i]->about);
    }
}

void neb__manual_job(FILE *to)
{
    neb__roff_title(to, "nebula-i-job", 5);
    neb__roff_section(to, "NAME");
    neb__roff_text(to, "nebula-i-job - the file that says what is trained, on what data, and by which sites");
    neb__roff_section(to, "DESCRIPTION");
    neb__roff_text(
        to, "A job file is YAML. Behind its name on a command line, any key can be given as "
            "`section.key=value`; that wins over the file. The keys of `data[]` and `sites[]` belong to one "
            "element of a list, which has a number there: `sites[0].listen=HOST:PORT`.");
    neb__roff_section(to, "KEYS");
    for (const struct neb_job_section *s = neb__job_sections; s->name; s++) {
        neb__roff_subsection(to, *s->name ? s->title : "Top level");
        for (int i = 0; i < NEB_JOB_TABLES && s->table[i]; i++)
            for (const struct neb_opt *o = s->table[i]; o->name; o++) {
                neb__roff_item(to, o->name, value_of(o));
                put_meaning(o, to);
            }
        if (!*s->name) put_tasks(to);
    }
    neb__roff_section(to, "SEE ALSO");
    neb__roff_text(to, "`nebula-i`(1), `nebula-i-train`(1), `nebula-i-lab`(1)");
}

/* ---- Markdown ---------------------------------------------------------------------------------------------------- */

static void put_table(const char *name, const char *meaning, const struct neb_reference_row *rows, FILE *to)
{
    fprintf(to, "| %s | %s |\n|---|---|\n", name, meaning);
    for (; rows->name; rows++) {
        char copy[256], *rest = copy, *part;
        const char *comma = "";
        snprintf(copy, sizeof copy, "%s", rows->name);
        fputs("| ", to);
        while ((part = strsep(&rest, ","))) {
            part += *part == ' ';
            fprintf(to, "%s`%s`", comma, part);
            comma = ", ";
        }
        fprintf(to, " | %s |\n", rows->text);
    }
}

void neb__manual_tables(FILE *to)
{
    put_table("option", "what it does", neb__reference_options, to);
    fputc('\n', to);
    put_table("exit status", "meaning", neb__reference_exits, to);
    fputc('\n', to);
    put_table("variable", "meaning", neb__reference_environment, to);
    fputc('\n', to);
    put_table("file", "what it holds", neb__reference_files, to);
}
