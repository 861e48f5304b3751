/* split_identity.c: the run that the items of a stream belong to.
 *
 * The sending site's journal lies in its site folder and outlives OUT. It may therefore hold items of an
 * earlier run (another teacher, another generator), which must not be taken for this run's. So a run has a
 * tag, the beginning of a hash of everything that its items follow from. The tag stands
 *
 *     beside the journal   NAME.run, eight hexadecimal digits, written before the first item
 *     in OUT/stream.run    the run that this site's checkpoints belong to
 *     in every item        u32, before all else
 *
 * A sending site without a checkpoint begins a new journal unless the one it finds has its tag. With a
 * checkpoint of another run than the journal's it refuses. The receiving site takes the tag of its first
 * item, and refuses items of another run than its checkpoint's. Some settings may change in the middle of a
 * run and leave the tag as it is: train.steps of a generator that has a checkpoint, and everything that only
 * the student reads. */
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/journal.h"
#include "split/split_site.h"
#include "run/session.h"
#include "task/folder.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG = 4, DIGITS = 8, BLOCK = 1 << 20, TEXT_MAX = 1 << 20 };

/* ---- what the items follow from ------------------------------------------------------------------------ */

static neb_status add_file(struct neb_hasher *h, const char *folder, const char *name)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return NEB_OK;
    FILE *f = fopen(path, "rb");
    if (!f) return NEB_OK; /* the error comes when the model is opened */
    uint8_t *block = neb__malloc(BLOCK);
    neb_status status = block ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory to read %s", path);
    for (size_t n; status == NEB_OK && (n = fread(block, 1, BLOCK, f)) > 0;)
        status = neb__hasher_update(h, block, n);
    if (status == NEB_OK && ferror(f)) status = neb__fail(NEB_ERR_IO, "cannot read %s", path);
    neb__free(block);
    fclose(f);
    return status;
}

/* A teacher's tokenizer counts where it is not the student's. */
static neb_status add_tokenizer(struct neb_hasher *h, const char *folder, const struct neb_hash *own)
{
    struct neb_model_yaml f;
    struct neb_tok *tok = NULL;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/model.yaml", folder);
    if (access(path, F_OK)) return NEB_OK; /* the error comes when the model is opened */
    NEB_TRY(neb__model_yaml_read(folder, &f));
    neb_status status = f.tokenizer ? neb__folder_tokenizer(&f, &tok) : NEB_OK;
    if (tok && !neb__hash_equal(neb__tok_hash(tok), own))
        status = neb__hasher_update(h, neb__tok_hash(tok)->b, NEB_HASH_SIZE);
    neb__tok_close(tok);
    neb__model_yaml_free(&f);
    return status;
}

/* own: hash of the student's tokenizer; NULL: not of teachers. */
static neb_status add_folders(struct neb_hasher *h, const char *list, const struct neb_hash *own)
{
    char folder[PATH_MAX];
    for (int i = 0; neb__list_part(list, i, folder, sizeof folder); i++) {
        NEB_TRY(neb__hasher_update(h, "folder", 6));
        NEB_TRY(add_file(h, folder, "model.yaml"));
        NEB_TRY(add_file(h, folder, "model.safetensors"));
        if (own) NEB_TRY(add_tokenizer(h, folder, own));
    }
    return NEB_OK;
}

static bool listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (!strcmp(*names, name)) return true;
    return false;
}

/* Adds the fields of `obj` that `names` lists, or, without `only`, all others. */
static neb_status add_options(struct neb_buf *text, const struct neb_opt *table, const void *obj, bool only,
                              const char *const *names)
{
    for (; table->name; table++) {
        const struct neb_opt one[2] = {*table, NEB_OPT_END};
        if (listed(names, table->name) == only) NEB_TRY(neb__opts_write(one, obj, "", text));
    }
    return neb__buf_printf(text, "-\n");
}

/* Options that change nothing in this model are left out, so that a run of a version without them goes on. */
static neb_status add_model(struct neb_buf *text, const struct neb_model_config *m)
{
    static const char *const relative[] = {"relative_buckets", "relative_distance", "attention_scale",
                                           "head_scale", NULL},
                             *const none[] = {NULL};
    const bool unused = strcmp(m->positions, "relative") && m->attention_scale && !m->head_scale;
    return add_options(text, neb__model_options, m, false, unused ? relative : none);
}

/* What a student's samples follow from, beside the text and its first parameters. */
static neb_status add_student(struct neb_buf *text, const struct neb_split_site *s)
{
    static const char *const local[] = {"log_every", "save_every", "keep",     "eval_every",    "threads",
                                        "device",    "dtype",      "fallback", "deterministic", "average",
                                        "speed",     "steps",      "minutes",  "notice",        NULL};
    static const char *const none[] = {NULL};
    const struct neb_job_distill *d = &s->job->distill;
    NEB_TRY(add_options(text, neb__job_train_options, &s->job->train, false, local));
    NEB_TRY(add_model(text, &s->job->model));
    NEB_TRY(add_options(text, neb__peft_options, &s->job->peft, false, none));
    return neb__buf_printf(text, "%g %" PRId64 " %g %g %g\n", d->on_policy, d->lag, d->beta, d->weight,
                           d->temperature);
}

static neb_status add_teacher(struct neb_buf *text, const struct neb_split_site *s)
{
    static const char *const batches[] = {"tokens", "max_len", "mask", "temperature", NULL};
    const struct neb_job_distill *d = &s->job->distill;
    NEB_TRY(add_options(text, neb__job_train_options, &s->job->train, true, batches));
    if (d->prompt || d->langs)
        NEB_TRY(neb__buf_printf(text, "%s|%s\n", d->prompt ? d->prompt : "", d->langs ? d->langs : ""));
    if (d->sequence) NEB_TRY(neb__buf_printf(text, "%s %" PRId64 " %g\n", d->sequence, d->n, d->gold));
    if (d->on_policy > 0) NEB_TRY(add_student(text, s));
    return neb__buf_printf(text, "%d %d %" PRId64 " %" PRId64 "\n", s->shape.k, s->shape.width,
                           s->job->wan.bits, s->job->wan.cache);
}

static neb_status add_generator(struct neb_buf *text, const struct neb_split_site *s)
{
    static const char *const local[] = {"log_every", "save_every", "keep",     "eval_every",    "threads",
                                        "device",    "dtype",      "fallback", "deterministic", "average",
                                        "speed",     "notice",     NULL};
    static const char *const none[] = {NULL};
    NEB_TRY(add_options(text, neb__job_train_options, &s->job->train, false, local));
    NEB_TRY(add_model(text, &s->job->generator));
    NEB_TRY(add_options(text, neb__peft_options, &s->job->peft, false, none));
    return neb__buf_printf(text, "%" PRId64 " %s\n", s->job->wan.snapshot,
                           s->job->init.match ? s->job->init.match : "");
}

/* The first batch stands for the text. */
static neb_status first_batch(const struct neb_data *data, uint32_t *check)
{
    struct neb_batches *stream;
    struct neb_batch *b = NULL;
    *check = 0;
    neb_status status = neb__data_stream(data, "train", 0, 1, &stream);
    if (status == NEB_ERR_NOTFOUND) return NEB_OK; /* the error comes when batches are drawn */
    NEB_TRY(status);
    status = neb__batches_batch(stream, &b);
    if (status == NEB_OK) status = neb__batches_next(stream, b);
    if (status == NEB_OK) *check = neb__batch_check_value(b);
    if (b) neb__batch_free(b);
    neb__batches_free(stream);
    return status;
}

static neb_status add_text(struct neb_buf *text, const struct neb_split_site *s, const struct neb_data *data)
{
    static const char *const corpus[] = {"lang", "weight", "use", "flip", "copies", NULL};
    const struct neb_job *j = s->job;
    char hex[2 * NEB_HASH_SIZE + 1];
    uint32_t check;
    neb__hash_hex(neb__tok_hash(data->tok), hex);
    NEB_TRY(first_batch(data, &check));
    NEB_TRY(neb__buf_printf(text, "%s %" PRId64 " %s %08x\n", j->task, j->seed, hex, check));
    for (int i = 0; i < j->n_data; i++)
        NEB_TRY(add_options(text, neb__job_data_options, &j->data[i], true, corpus));
    if (s->role == NEB_ROLE_TEACHER) return add_teacher(text, s);
    return s->sampling ? add_student(text, s) : add_generator(text, s);
}

neb_status neb__split_identify(struct neb_split_site *s, const struct neb_data *data)
{
    const struct neb_job *j = s->job;
    bool teaches = s->role == NEB_ROLE_TEACHER;
    struct neb_hasher h;
    struct neb_hash hash;
    struct neb_buf text;
    if (!s->produces) return NEB_OK;
    NEB_TRY(neb__hasher_init(&h));
    neb__buf_init(&text, TEXT_MAX);
    neb_status status = add_text(&text, s, data);
    if (status == NEB_OK) status = neb__hasher_update(&h, text.data, text.len);
    const struct neb_hash *own = teaches ? neb__tok_hash(data->tok) : NULL;
    if (status == NEB_OK) status = add_folders(&h, teaches ? j->distill.teacher : j->init.from, own);
    if (status == NEB_OK && teaches) status = add_folders(&h, j->distill.encoder, own);
    neb__buf_free(&text);
    neb_status end = neb__hasher_final(&h, status == NEB_OK ? &hash : NULL);
    if (status == NEB_OK) status = end;
    if (status == NEB_OK) s->run = neb__get32(hash.b);
    return status;
}

/* ---- where the tag is written -------------------------------------------------------------------------- */

static neb_status write_tag(const char *path, uint32_t tag)
{
    char text[DIGITS + 2];
    snprintf(text, sizeof text, "%08x\n", tag);
    return neb__file_replace(path, text, DIGITS + 1, 0600);
}

/* False: there is no tag. */
static bool read_tag(const char *path, uint32_t *tag)
{
    char text[DIGITS + 1] = "";
    FILE *f = fopen(path, "r");
    if (!f) return false;
    size_t n = fread(text, 1, DIGITS, f);
    fclose(f);
    if (n != DIGITS || strspn(text, "0123456789abcdef") != DIGITS) return false;
    *tag = (uint32_t)strtoul(text, NULL, 16);
    return true;
}

struct place {
    char dir[PATH_MAX], name[64]; /* of the journal */
    char run[PATH_MAX + 80];      /* path of its tag */
};

static neb_status find_journal(const struct neb_split_site *s, uint32_t number, struct place *p)
{
    const struct neb_job *j = s->job;
    const char *recorded = *s->record ? s->record : NULL;
    int n;
    if (recorded)
        n = snprintf(p->dir, sizeof p->dir, "%s", recorded);
    else
        n = snprintf(p->dir, sizeof p->dir, "%s/streams", neb__session_folder(j, j->at));
    if (n >= (int)sizeof p->dir) return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", p->dir);
    snprintf(p->name, sizeof p->name, "%.40s-%u", recorded ? "stream" : s->other, number);
    snprintf(p->run, sizeof p->run, "%s/%s.run", p->dir, p->name);
    return neb__file_make_dir(p->dir, 0700);
}

/* Without a checkpoint: a journal of this run goes on; one of another run is replaced by a new one. */
static neb_status begin(struct neb_split_site *s, const struct place *p)
{
    uint32_t there = 0, segments;
    bool tagged = read_tag(p->run, &there);
    if (tagged && there == s->run) return NEB_OK;
    NEB_TRY(neb__journal_segments(p->dir, p->name, &segments));
    if (segments && s->job->wan.recorded)
        return neb__doc_fail(&s->job->doc, "wan.recorded",
                             "wan.recorded: %s holds the items of another run (another %s, or other settings "
                             "or text); remove it or name another folder",
                             p->dir, neb__role_name(s->role));
    if (segments)
        neb__info("beginning a new journal: the items in %s/%s.* belong to another run", p->dir, p->name);
    /* removed before the tag is written: a tag must never stand beside items of another run */
    NEB_TRY(neb__journal_remove(p->dir, p->name));
    return write_tag(p->run, s->run);
}

static neb_status go_on(struct neb_split_site *s, const struct place *p, uint64_t mark)
{
    uint32_t own = 0, there = 0;
    if (!read_tag(s->run_path, &own) || !read_tag(p->run, &there) || own != there)
        return neb__fail(NEB_ERR_CONFIG,
                         "the checkpoint in %s (batch %" PRIu64
                         ") and the items for the other site in %s/%s.* belong to different runs: "
                         "remove the folders `out` of both sites to start from nothing",
                         s->job->out, mark, p->dir, p->name);
    s->run = own;
    return NEB_OK;
}

neb_status neb__split_run_begin(struct neb_split_site *s, uint32_t number, uint64_t mark)
{
    struct place p;
    if (snprintf(s->run_path, sizeof s->run_path, "%s/stream%s.run", s->job->out,
                 s->produces && !s->sampling ? "" : s->label) >= (int)sizeof s->run_path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", s->job->out);
    s->run_known = s->produces || (mark && read_tag(s->run_path, &s->run));
    if (!s->produces) return NEB_OK;
    NEB_TRY(find_journal(s, number, &p));
    if (mark) return go_on(s, &p, mark);
    NEB_TRY(begin(s, &p));
    return s->role == NEB_ROLE_TEACHER ? NEB_OK : write_tag(s->run_path, s->run);
}

/* ---- in every item ------------------------------------------------------------------------------------- */

neb_status neb__split_item_begin(struct neb_split_site *s)
{
    uint8_t tag[TAG];
    neb__put32(tag, s->run);
    neb__buf_clear(&s->item);
    return neb__buf_append(&s->item, tag, TAG);
}

neb_status neb__split_item_open(struct neb_split_site *s, uint64_t item, const void **bytes, size_t *n)
{
    if (*n < TAG)
        return neb__fail(NEB_ERR_CORRUPT, "item %" PRIu64 " from site '%s' is cut off", item, s->other);
    uint32_t tag = neb__get32(*bytes);
    if (!s->run_known) {
        NEB_TRY(write_tag(s->run_path, tag));
        s->run = tag;
        s->run_known = true;
    }
    if (tag != s->run)
        return neb__fail(NEB_ERR_CONFIG,
                         "item %" PRIu64
                         " from site '%s' and the checkpoint in %s belong to different runs (another "
                         "teacher or generator, or other settings there): remove that folder at both sites "
                         "to start from nothing",
                         item, s->other, s->job->out);
    *bytes = (const uint8_t *)*bytes + TAG;
    *n -= TAG;
    return NEB_OK;
}
