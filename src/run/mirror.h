/* mirror.h (internal): the live parameters x and the cells of the outer state beside them.
 *
 * x belongs to the caller's thread. So the driver never touches it: the change that a round makes to a cell
 * is left as an edit (add a vector, shrink towards theta, set), and neb_step() carries the edits out in
 * order. A capture is a copy of x that neb_step() makes; while the driver has not turned it into an update,
 * edits of those cells wait.
 *
 * A cell's part of d has four uses in turn, so that a round needs no other memory of that size: the copy of
 * x, the delta of the open update, the edit that its record leaves, nothing. Edits of cells without an open
 * update have memory of their own.
 *
 * Edits and captures cross between the two threads under the session's lock: the caller waits for them and
 * for the run's standing with one condition. The other fields belong to one thread each. */
#ifndef NEB_RUN_MIRROR_H
#define NEB_RUN_MIRROR_H

#include "codec/codec.h"
#include "outer/outer.h"
#include "round/round.h"

#include <nebula/nebula.h>
#include <pthread.h>

enum { NEB_CAPTURES = 256 };

enum neb_edit_type { NEB_EDIT_ADD, NEB_EDIT_SHRINK, NEB_EDIT_SET };

struct neb_edit {
    struct neb_edit *next;
    enum neb_edit_type type;
    float gamma;        /* SHRINK: x <- v + gamma * (x - v) */
    const float *value; /* (values of the cell); in d, or behind this struct */
    size_t done;        /* so many of the cell's values have it: a later parameter refused to be written */
};

/* One cell at this site, besides theta. */
struct neb_own_cell {
    uint64_t version;               /* merged up to here */
    struct neb_boot_update open;    /* k 0: none */
    uint64_t work;                  /* when the site began: inner steps in x - theta */
    uint64_t work_open;             /* inner steps in the open update */
    struct neb_edit *edits, **last; /* under the lock */
};

struct neb_session_slice {
    struct neb_session_param param; /* its name is owned */
    size_t first, count;            /* in the flat vector of all parameters */
};

struct neb_device_copies;
struct neb_captures;

struct neb_mirror {
    pthread_mutex_t *lock; /* the session's */

    /* settled before the driver runs */
    struct neb_session_slice *slices;
    int n_slices;
    size_t values;
    struct neb_device_copies
        *side; /* device_copies.c; NULL: the parameters are not on a device with a side stream */

    /* the driver's */
    struct neb_outer *outer; /* theta and momentum */
    struct neb_own_cell *own;
    struct neb_captures *captures; /* capture.c */
    float *work[3];                /* (NEB_CELL) each; the last one is the training loop's */

    float *d;     /* (values) see above */
    float *shown; /* the caller's: live values while the parameters show the outer state */

    /* under the lock */
    bool on_request,
        asked; /* copies and edits wait until the caller has asked for them (neb__session_asks) */
    size_t touched_first, touched_end; /* values that edits have changed since neb__session_touched() */
    uint32_t edits;                    /* that wait for neb_step() */
    bool capture_wanted, capture_taken, capture_told; /* told: the copy is there, and the driver knows */
    uint32_t snap_c0, snap_c1;
    int64_t tokens_now, steps_now; /* since the last copy */
    int64_t tokens_taken,
        steps_taken; /* before the copy that was taken last: they give the update its weight */
    int64_t rounds;  /* records that named updates and have left their edits */
};

/* ---- mirror.c ------------------------------------------------------------------------------------------ */

/* Memory beside the registered parameters; outer comes later. */
neb_status neb__mirror_open(struct neb_mirror *m);
void neb__mirror_close(struct neb_mirror *m); /* outer, too, and the parameters */

/* First value of cell c0, and how many there are up to c1. */
size_t neb__mirror_range(const struct neb_mirror *m, uint32_t c0, uint32_t c1, size_t *first);

struct neb_exchange {
    uint32_t merges; /* cells whose edits were carried out */
    bool copy_taken; /* the driver is to be told that the copy is there */
};

/* On the caller's thread, the lock held. `wait`: do not come back before all of it is done. */
bool neb__mirror_held(const struct neb_mirror *m); /* what waits must wait until the caller has asked */
bool neb__mirror_idle(const struct neb_mirror *m); /* there is nothing to exchange */
/* Carries edits out; leaves those of cells whose copy the driver still needs. */
neb_status neb__mirror_merge(struct neb_mirror *m, bool wait, struct neb_exchange *out);
/* Merges, and takes the copy that a capture waits for. */
neb_status neb__mirror_exchange(struct neb_mirror *m, bool wait, struct neb_exchange *out);

/* ---- parameters.c -------------------------------------------------------------------------------------- */

neb_status neb__mirror_register(struct neb_mirror *m, const struct neb_session_param *p);
/* Puts the parameters into the run's order and hashes their names and shapes. */
neb_status neb__mirror_arrange(struct neb_mirror *m, struct neb_hash *layout);
/* x of a flat range to and from the parameters, wherever they are. */
neb_status neb__mirror_read(const struct neb_mirror *m, size_t first, size_t n, float *out);
neb_status neb__mirror_write(const struct neb_mirror *m, size_t first, size_t n, const float *in);
/* The same within one parameter, `at` counted from its first value. */
neb_status neb__param_read(const struct neb_session_param *p, size_t at, size_t n, float *out);
neb_status neb__param_write(const struct neb_session_param *p, size_t at, size_t n, const float *in);

/* ---- edits.c ------------------------------------------------------------------------------------------- */

neb_status neb__edit_add(struct neb_mirror *m, uint32_t cell, enum neb_edit_type type, float gamma,
                         const float *value);
/* Adds what the cell's part of d holds; d is busy until then. */
neb_status neb__edit_d(struct neb_mirror *m, uint32_t cell);
/* Carries out the edits that wait for a cell, frees them, counts them in *n. `scratch` holds NEB_CELL
 * values. */
neb_status neb__edits_apply(struct neb_mirror *m, uint32_t cell, float *scratch, uint32_t *n);
void neb__edits_on_copy(const struct neb_own_cell *own, float *x, size_t n);
void neb__edits_free(struct neb_own_cell *own);

/* ---- device_copies.c: the same beside the training, where the parameters lie on a device that can ------ */

neb_status neb__device_copies_open(struct neb_mirror *m); /* makes d, and m->side if it can */
void neb__device_copies_close(struct neb_mirror *m);
/* On the caller's thread, the lock held. */
neb_status neb__device_copies_capture(struct neb_mirror *m, size_t first, size_t n); /* begins */
neb_status neb__device_copies_captured(struct neb_mirror *m, bool wait, bool *done);
neb_status neb__device_copies_merge(struct neb_mirror *m, uint32_t cell, bool wait, uint32_t *n);

/* ---- capture.c: own updates; on the driver's thread ---------------------------------------------------- */

neb_status neb__captures_open(struct neb_mirror *m);
void neb__captures_close(struct neb_mirror *m);
void neb__session_want_capture(neb_session *s, const struct neb_action *a);
void neb__session_snapshot_taken(neb_session *s);

#endif
