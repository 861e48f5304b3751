/* split_site.h: one site's part of a job whose parts live on two sites, joined to the other part by a stream.
 *
 *     relay   generator → discriminator: the tokens drawn at the masked rows of every batch
 *     tutor   teacher → student: the teacher's answers about every batch
 *
 * Both sites draw the same batches in the same order. So item n of the stream is about batch n and needs no
 * text. The number of batches that a checkpoint covers is its mark in the stream. The site that sends the
 * items (generator, teacher) `produces`; the other one receives them. A student with several teacher sites has such an end for
 * each; the functions below see to all of them. A successful open owes a close. */
#ifndef NEB_SPLIT_SPLIT_SITE_H
#define NEB_SPLIT_SPLIT_SITE_H

#include "store/checkpoint.h"
#include "task/data.h"
#include "task/on_policy.h"
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
    const char *other;           /* the other site's name */
    struct neb_split_site *next; /* a student's end of the next teacher's stream; NULL: no further one */
    struct neb_split_site
        *samples;   /* distill.on_policy: the end of the stream of samples, student to teacher; NULL: none */
    bool sampling;  /* this is such an end */
    char label[80]; /* ".NAME" of the teacher in names of files, where there are several; else "" */
    char record[PATH_MAX];  /* in place of the other site; "": none */
    struct neb_teacher mix; /* of the first end, where there are several: their answers as one */
    bool produces;
    neb_stream *stream;          /* NULL until start */
    struct neb_step_links links; /* for neb__work_open() */
    struct neb_tutor_shape shape;
    struct neb_student *student; /* NULL: this site is not a student */
    neb_param *table;            /* relay: the generator's token embeddings or their copy; NULL: not shared */
    float *values;               /* (table) */
    struct neb_buf item;
    uint32_t run; /* tag of the run, see split_identity.c */
    bool run_known;
    char run_path[PATH_MAX];
    struct {
        int64_t step;
        uint64_t mark;
    } saved[2];              /* checkpoints handed to the writer, newest last */
    uint64_t table_bytes;    /* of embeddings, sent or received */
    int64_t rows;            /* masked tokens, or rows with an answer, sent or received */
    void (*idle)(void *arg); /* called now and then while this site waits; NULL: nobody wants to know */
    void *idle_arg;
    struct neb_stream_rate rate;
    struct neb_split_code code[NEB_STREAM_RATE_RUNGS]; /* of each rung of rate */
    struct neb_meter_split readings;
    struct neb_stream_status seen; /* at the last look */
    bool begun;                    /* an item was sent or received */
    double item_bytes;
    int64_t looked_ns;
};

/* Finds the other site, and the shape of the answers. After it `links` is ready. NEB_ERR_CONFIG */
neb_status neb__split_open(const struct neb_job *job, const struct neb_data *data,
                           struct neb_split_site **out);
int neb__split_teachers(const struct neb_job *job); /* sites that teach */
void neb__split_close(struct neb_split_site *s);    /* NULL is fine */

/* Shares a table of embeddings (neb__work_table(); NULL: nothing), after neb__work_open() and before start.
 *   NEB_ERR_NOMEM; NEB_ERR_CONFIG: the table is too large for an item */
neb_status neb__split_share(struct neb_split_site *s, neb_param *table);

/* Opens the stream. The session has started.
 * mark: batches that the checkpoint covers; out: folder for the cache. */
neb_status neb__split_start(struct neb_split_site *s, neb_session *session, uint64_t mark, const char *out);

uint32_t neb__split_number(const struct neb_split_site *s); /* of its stream between the two sites */

/* split_identity.c: the tag of the run.
 *
 * A sending site computes its tag. */
neb_status neb__split_identify(struct neb_split_site *s, const struct neb_data *data);
/* Before the stream is opened. NEB_ERR_CONFIG: journal and checkpoint belong to different runs */
neb_status neb__split_run_begin(struct neb_split_site *s, uint32_t number, uint64_t mark);
/* Begins s->item with the tag; checks the tag of a received item and takes it off.
 * NEB_ERR_CONFIG: an item of another run */
neb_status neb__split_item_begin(struct neb_split_site *s);
neb_status neb__split_item_open(struct neb_split_site *s, uint64_t item, const void **bytes, size_t *n);

/* The items up to this one need not wait for the other site: the journal of this one has them since before it was killed. So a
 * generator makes the steps that its checkpoint lacks, also where the other site has ended the stream meanwhile. */
bool neb__split_repeats(struct neb_split_site *s, uint64_t next);
/* Before a step of n batches: waits for credit (a sending site) or for the items (a receiving one).
 *   NEB_ERR_AGAIN (quiet): *stop was set; NEB_ERR_CANCELLED (quiet): the other site has ended the stream */
neb_status neb__split_wait(struct neb_split_site *s, int64_t n, const volatile sig_atomic_t *stop);

/* split_rate.c: returns the first window; regulate then adapts window and code once a second. */
int64_t neb__split_rate_begin(struct neb_split_site *s);
void neb__split_regulate(struct neb_split_site *s);
const struct neb_split_code *neb__split_code(const struct neb_split_site *s);

/* Called before and after a checkpoint is handed to the writer. */
neb_status neb__split_saving(struct neb_split_site *s);
void neb__split_saved(struct neb_split_site *s, struct neb_ckpt_writer *writer, int64_t step, uint64_t mark);

/* Called when the last checkpoint is on disk. The receiving site ends the stream. The sending site stays until
 * the stream has ended or the other site's checkpoint covers every item. */
neb_status neb__split_finish(struct neb_split_site *s, const volatile sig_atomic_t *stop);

/* One line: items, bytes for each row, seconds waited. */
void neb__split_describe(struct neb_split_site *s, char *out, size_t size);

/* tutor_samples.c: the stream of a student's own samples (distill.on_policy), one item for each judged batch.
 *
 * Makes the end of this site: s->samples. The student's gives, the teacher's takes. */
neb_status neb__split_open_samples(struct neb_split_site *s, const struct neb_data *data);
/* batches: that the student's checkpoint covers, or the teacher's journal. */
neb_status neb__split_start_samples(struct neb_split_site *s, neb_session *session, uint64_t batches);
/* The teacher's: the samples of b. They are the student's own words, so every number is checked.
 *   NEB_ERR_CONFIG: of another batch or run; NEB_ERR_CORRUPT */
neb_status neb__samples_take(struct neb_split_site *s, const struct neb_batch *b, struct neb_samples *out);
/* Answers up to this batch are on the other site: their samples need not be kept any more. */
void neb__samples_done(struct neb_split_site *s, uint64_t batches);
/* Samples as a part of an item. Decode takes them off the reader. NEB_ERR_CORRUPT */
neb_status neb__samples_encode(const struct neb_samples *s, const struct neb_split_site *at,
                               struct neb_buf *out);
neb_status neb__samples_decode(struct neb_samples *s, const struct neb_split_site *at, struct neb_reader *r);

/* student.c: the answers that a student learns from, out of the stream or the cache.
 * A successful open owes a close. */
neb_status neb__student_open(struct neb_split_site *s, const struct neb_data *data, int32_t seqs,
                             int32_t targets, int32_t rows, struct neb_student **out);
neb_status neb__student_start(struct neb_student *p, uint64_t mark, const char *out);
neb_status neb__student_ask(void *split_site, const struct neb_batch *b, struct neb_teacher_answer *out);
/* Gives a batch the targets that the teacher's texts say (tutor_texts.h); before the batch is asked about. */
neb_status neb__student_retarget(void *split_site, struct neb_batch *b);
int32_t neb__student_targets(const struct neb_student *p); /* rows of the largest batch */
neb_status neb__student_sync(struct neb_student *p);
void neb__student_describe(const struct neb_student *p, char *out, size_t size);
void neb__student_close(struct neb_student *p); /* NULL is fine */

/* Hash of what answers and texts depend on beside the sequence: teachers and coding. */
neb_status neb__student_identity(const struct neb_split_site *s, struct neb_hash *out);

/* True: a student whose cache has `bytes` keeps one answer more. Both sites decide by it. */
bool neb__student_keeps(const struct neb_job *job, uint64_t bytes, size_t answer);
enum { NEB_STUDENT_FILE = 40, NEB_STUDENT_ENTRY = 32 }; /* bytes of the cache file beside the answers */

/* teacher.c: answers batches until the student has finished.
 * *met_links: it got as far as opening its session. */
neb_status neb__teacher_site(const struct neb_job *job, const volatile sig_atomic_t *stop, bool *met_links);

#endif
