/* split_site.h: a job whose parts live on two sites: this site's part of it, joined to the other by a stream.
 *
 *     relay   generator → discriminator: the tokens drawn at the masked rows of every batch
 *     tutor   teacher → student: what the teacher says about every batch
 *
 * Both sites draw the same batches in the same order, so item n of the stream is about batch n and carries none of its
 * text, and the number of batches that a checkpoint covers is its mark in the stream. A successful open owes a close. */
#ifndef NEB_SPLIT_SPLIT_SITE_H
#define NEB_SPLIT_SPLIT_SITE_H

#include "store/checkpoint.h"
#include "task/data.h"
#include "task/step_links.h"
#include "split/stream_rate.h"
#include "split/tutor_item.h"
#include "watch/meter.h"

#include <limits.h>
#include <nebula/nebula.h>
#include <signal.h>

struct neb_student;

/* How the next item is coded. */
struct neb_split_code {
    struct neb_tutor_code tutor;
    int64_t snapshot; /* relay: batches from one table of embeddings to the next */
};

struct neb_split_site {
    const struct neb_job *job;
    enum neb_site_role role;
    const char *other; /* the other site's name */
    bool produces;
    neb_stream *stream;          /* NULL: before start */
    struct neb_step_links links; /* for neb__work_open() */
    struct neb_tutor_shape shape;
    struct neb_student *student; /* NULL: this site is another */
    neb_param *table;            /* relay: of tokens, the generator's or its copy; NULL: not shared */
    float *values;               /* (table) */
    struct neb_buf item;
    uint32_t run; /* that the items are of: see split_identity.c */
    bool run_known;
    char run_path[PATH_MAX];
    struct {
        int64_t step;
        uint64_t mark;
    } saved[2];           /* checkpoints handed to the writer, newest last */
    uint64_t table_bytes; /* of embeddings that went through */
    int64_t rows;         /* masked tokens, or rows with an answer, that went through */
    bool waiting_said;
    struct neb_stream_rate rate;
    struct neb_split_code code[NEB_STREAM_RATE_RUNGS]; /* of its rungs */
    struct neb_meter_split feed;
    struct neb_stream_status seen; /* at the last look */
    bool begun;                    /* an item went through */
    double item_bytes;
    int64_t looked_ns;
};

/* The other site of this site's strategy; what the answers are. links is ready after it. NEB_ERR_CONFIG */
neb_status neb__split_open(const struct neb_job *job, const struct neb_data *data,
                           struct neb_split_site **out);
void neb__split_close(struct neb_split_site *s); /* NULL is fine */

/* Between work and start: see neb__work_table(). NEB_ERR_NOMEM; NEB_ERR_CONFIG: too large for an item */
neb_status neb__split_share(struct neb_split_site *s, neb_param *table);

/* The session has started; `mark`: batches that the checkpoint covers. out: folder for the cache. */
neb_status neb__split_start(struct neb_split_site *s, neb_session *session, uint64_t mark, const char *out);

/* split_identity.c: which run items are of. A feeding site's tag; then, before the stream is opened, whether journal and checkpoint
 * are of it (NEB_ERR_CONFIG); then each item begins with it, and begin and open put it there and take it off. */
neb_status neb__split_identify(struct neb_split_site *s, const struct neb_data *data);
neb_status neb__split_run_begin(struct neb_split_site *s, uint32_t number, uint64_t mark);
neb_status neb__split_item_begin(struct neb_split_site *s);
neb_status neb__split_item_open(struct neb_split_site *s, uint64_t item, const void **bytes, size_t *n);

/* Before a step of n batches: until there is credit, or the items are here.
 *   NEB_ERR_AGAIN (quiet): *stop was set; NEB_ERR_CANCELLED (quiet): the other site has ended the stream */
neb_status neb__split_wait(struct neb_split_site *s, int64_t n, const volatile sig_atomic_t *stop);

/* split_rate.c: the first window; then, once a second, what becomes of window and code. */
int64_t neb__split_rate_begin(struct neb_split_site *s);
void neb__split_regulate(struct neb_split_site *s);
const struct neb_split_code *neb__split_code(const struct neb_split_site *s);

/* Around a checkpoint: before it is handed to the writer, and after. */
neb_status neb__split_saving(struct neb_split_site *s);
void neb__split_saved(struct neb_split_site *s, struct neb_ckpt_writer *writer, int64_t step, uint64_t mark);

/* The last checkpoint is on disk: the consumer lets the producer go; the producer stays until it may. */
neb_status neb__split_finish(struct neb_split_site *s, const volatile sig_atomic_t *stop);

/* One line: items, bytes for each row, seconds waited. */
void neb__split_describe(struct neb_split_site *s, char *out, size_t size);

/* student.c: the answers that a student learns from: from the stream, or from the cache. Owes a close. */
neb_status neb__student_open(struct neb_split_site *s, int32_t seqs, int32_t targets, int32_t rows,
                             struct neb_student **out);
neb_status neb__student_start(struct neb_student *p, uint64_t mark, const char *out);
neb_status neb__student_ask(void *half, const struct neb_batch *b, struct neb_teacher_answer *out);
neb_status neb__student_sync(struct neb_student *p);
void neb__student_describe(const struct neb_student *p, char *out, size_t size);
void neb__student_close(struct neb_student *p); /* NULL is fine */

/* Whether a student whose cache has `bytes` keeps one answer more; both sites go by it. */
bool neb__student_keeps(const struct neb_job *job, uint64_t bytes, size_t answer);
enum { NEB_STUDENT_FILE = 40, NEB_STUDENT_ENTRY = 32 }; /* bytes of the cache file beside the answers */

/* teacher.c: a teacher's site: answers batches until the student has finished. *met_links: it got as far as connecting. */
neb_status neb__teacher_site(const struct neb_job *job, const volatile sig_atomic_t *stop, bool *met_links);

#endif
