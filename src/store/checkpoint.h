/* checkpoint.h: a checkpoint is one file of named byte sections, each with its checksum.
 *
 * The caller decides what the sections mean (parameters, optimizer, schedule, data position, random state).
 * Files appear whole or not at all. The last N are kept, and the newest undamaged one is used. Successful
 * opens and creates owe their close. */
#ifndef NEB_STORE_CHECKPOINT_H
#define NEB_STORE_CHECKPOINT_H

#include "base/hash.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NEB_CKPT_NAME = 64, NEB_CKPT_SECTIONS = 65536 };

struct neb_ckpt_section {
    const char *name; /* shorter than NEB_CKPT_NAME, unique in a checkpoint */
    const void *data;
    size_t size;
};

/* A checkpoint's step, and a hash of its model's names and shapes. Another model's checkpoint is refused. */
struct neb_ckpt_id {
    int64_t step;
    struct neb_hash model;
};

/* ---- writing now --- */

/* Writes DIR/checkpoint-STEP.neb, then removes all but the newest `keep` (0: keeps all).
 *   NEB_ERR_INVALID: a name twice or too long; NEB_ERR_NOSPACE: nothing changed; NEB_ERR_IO; NEB_ERR_NOMEM */
neb_status neb__ckpt_write(const char *dir, const struct neb_ckpt_id *id, const struct neb_ckpt_section *list,
                           int n, int keep);

/* ---- writing in the background --- */

struct neb_ckpt_writer;

/* Makes the folder, and removes the remains of an interrupted writer. NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__ckpt_writer_create(const char *dir, int keep, struct neb_ckpt_writer **out);

/* Copies the sections and returns; a thread writes them. Waits first for a write that is still going on. A
 * failed write does not show here (training goes on, the last good file stays) but in the report.
 *   NEB_ERR_INVALID, NEB_ERR_NOMEM: nothing was handed over */
neb_status neb__ckpt_writer_put(struct neb_ckpt_writer *w, const struct neb_ckpt_id *id,
                                const struct neb_ckpt_section *list, int n);

struct neb_ckpt_report {
    int64_t last_step; /* the newest step on disk; -1: none yet */
    int64_t written, failed;
    neb_status status; /* of the latest write */
    char why[256];     /* when it failed */
    double seconds;    /* duration of the latest write */
    uint64_t bytes;    /* of the latest file */
    double waited;     /* seconds that put() has waited, in all */
};
void neb__ckpt_writer_report(struct neb_ckpt_writer *w, struct neb_ckpt_report *out);

/* Waits until nothing is being written; answers the status of the latest write. */
neb_status neb__ckpt_writer_wait(struct neb_ckpt_writer *w);
neb_status neb__ckpt_writer_close(struct neb_ckpt_writer *w); /* waits too; NULL is fine */

/* ---- reading --- */

struct neb_ckpt;

/* Checks every byte of the file. NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_CORRUPT,
 * NEB_ERR_VERSION, NEB_ERR_NOMEM */
neb_status neb__ckpt_open(const char *path, struct neb_ckpt **out);

/* The newest good one in `dir`; each damaged one is named in a warning. model NULL: of any model.
 *   NEB_ERR_NOTFOUND: there is none (quiet); NEB_ERR_CORRUPT: all are damaged;
 *   NEB_ERR_CONFIG: the newest good one is of another model */
neb_status neb__ckpt_open_latest(const char *dir, const struct neb_hash *model, struct neb_ckpt **out);
void neb__ckpt_close(struct neb_ckpt *c); /* NULL is fine */

const struct neb_ckpt_id *neb__ckpt_id(const struct neb_ckpt *c);

/* The section's bytes, valid until close, at a multiple of 64 bytes. NEB_ERR_NOTFOUND */
neb_status neb__ckpt_get(const struct neb_ckpt *c, const char *name, const void **data, size_t *size);
bool neb__ckpt_has(const struct neb_ckpt *c, const char *name);

/* Steps of the checkpoints in `dir`, ascending, damaged ones included; `cap` at
 * most. Returns how many there are. */
int neb__ckpt_list(const char *dir, int64_t *steps, int cap);
neb_status neb__ckpt_path(const char *dir, int64_t step, char *out, size_t size);

#endif
