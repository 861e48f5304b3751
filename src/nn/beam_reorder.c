/* beam_reorder.c: sequences that continue from one another, as the beams of a search do.
 *
 * If the device's attention reads listed rows, a sequence takes over its parent's list, and no key or value
 * moves. A sequence writes each row it computes into its own part of the cache, at the row's place in the
 * sequence. No place is written twice as long as sequences continue from others of the same length, which
 * beams do. Before a place would be written twice, or before a run with several tokens per sequence, the rows
 * are put in order first.
 *
 * On other devices rows move. But beams mostly share their past, and a row that both share need not move.
 * Every row put into the cache gets a number; reordering compares numbers and moves only the rows that
 * differ. A move subtracts the old content from itself, which gives exactly zero, and adds the new content.
 * If most rows differ, all rows are gathered anew. */
#include "nn/decode_internal.h"
#include "base/rng.h"

#include <string.h>

static void reorder_fn(neb_tape *t, void *arg)
{
    struct neb_decoding *d = arg;
    const struct neb_arch *a = &d->model->arch;
    int64_t shape[2] = {(int64_t)d->seqs * d->max, a->kv_heads * a->head_dim};
    neb_tensor *index = neb__decoding_ints(d, t, REORDER, shape[0]);
    for (int64_t i = 0; i < d->model->decoder.count; i++) {
        neb_buffer *both[] = {d->caches[i].key, d->caches[i].value};
        for (int j = 0; j < 2; j++) {
            neb_tensor *old = neb_input(t, both[j], neb_compute_type(t), 2, shape);
            neb_output(t, neb_op_gather(t, old, index), both[j], neb_compute_type(t));
        }
    }
}

/* Row MOVE_TO[i] becomes what row REORDER[i] was. */
static void move_fn(neb_tape *t, void *arg)
{
    struct neb_decoding *d = arg;
    const struct neb_arch *a = &d->model->arch;
    int64_t shape[2] = {(int64_t)d->seqs * d->max, a->kv_heads * a->head_dim};
    neb_tensor *from = neb__decoding_ints(d, t, REORDER, d->moves),
               *to = neb__decoding_ints(d, t, MOVE_TO, d->moves);
    for (int64_t i = 0; i < d->model->decoder.count; i++) {
        neb_buffer *both[] = {d->caches[i].key, d->caches[i].value};
        for (int j = 0; j < 2; j++) {
            neb_tensor *old = neb_input(t, both[j], neb_compute_type(t), 2, shape);
            neb_tensor *new = neb_op_gather(t, old, from);
            neb_tensor *gone = neb_op_scale(t, neb_op_gather(t, old, to), -1);
            neb_op_add_rows(t, gone, to, both[j], shape[0]);
            neb_op_add_rows(t, new, to, both[j], shape[0]);
        }
    }
}

static uint64_t shape_key(const struct neb_decoding *d)
{
    return neb__mix64((uint64_t)d->seqs << 32 | (uint64_t)d->max);
}

/* The rows that must move, as pairs; returns how many. */
static int32_t find_moves(struct neb_decoding *d, const int32_t *from)
{
    int32_t *source = d->host + d->at[REORDER], *to = d->host + d->at[MOVE_TO], max = d->max, n = 0;
    memcpy(d->old_born, d->born, (size_t)d->seqs * (size_t)max * sizeof *d->born);
    for (int32_t s = 0; s < d->seqs; s++) {
        const uint32_t *parent = d->old_born + (size_t)from[s] * (size_t)max;
        uint32_t *own = d->born + (size_t)s * (size_t)max;
        for (int32_t i = d->prefix; from[s] != s && i < max; i++) {
            if (own[i] == parent[i]) continue;
            own[i] = parent[i];
            source[n] = parent[i] ? from[s] * max + i : -1;
            to[n++] = s * max + i;
        }
    }
    return n;
}

static neb_status move_rows(struct neb_decoding *d, int32_t n)
{
    int32_t *source = d->host + d->at[REORDER], *to = d->host + d->at[MOVE_TO];
    for (d->moves = 64; d->moves < n;) d->moves *= 2; /* few sizes mean few memory plans */
    for (int32_t i = n; i < d->moves; i++) source[i] = to[i] = -1;
    NEB_TRY(neb_buffer_upload(d->ints, d->host, d->int_bytes));
    return neb__decoding_run(d, move_fn, neb__mix64(shape_key(d) ^ (uint64_t)d->moves));
}

static neb_status gather_all(struct neb_decoding *d, const int32_t *from)
{
    int32_t *index = d->host + d->at[REORDER], max = d->max;
    for (int32_t s = 0; s < d->seqs; s++)
        for (int32_t i = 0; i < max; i++)
            index[s * max + i] = i < d->prefix + d->len[s] ? from[s] * max + i : -1;
    NEB_TRY(neb_buffer_upload(d->ints, d->host, d->int_bytes));
    return neb__decoding_run(d, reorder_fn, shape_key(d));
}

neb_status neb__decoding_settle(struct neb_decoding *d)
{
    int32_t *index = d->host + d->at[REORDER];
    for (int32_t s = 0; s < d->seqs; s++) {
        const int64_t first = (int64_t)s * d->max;
        for (int32_t i = 0; i < d->max; i++) {
            bool there = i < d->prefix + d->len[s];
            index[first + i] = there ? (int32_t)d->born[first + i] - 1 : -1;
            d->born[first + i] = there ? (uint32_t)(first + i) + 1 : 0;
        }
        d->top[s] = d->len[s];
    }
    d->scattered = false;
    NEB_TRY(neb_buffer_upload(d->ints, d->host, d->int_bytes));
    return neb__decoding_run(d, reorder_fn, shape_key(d));
}

static void take_lists(struct neb_decoding *d, const int32_t *from)
{
    const size_t row = (size_t)d->max * sizeof *d->born;
    memcpy(d->old_born, d->born, (size_t)d->seqs * row);
    for (int32_t s = 0; s < d->seqs; s++) {
        if (from[s] == s) continue;
        memcpy(d->born + (size_t)s * (size_t)d->max, d->old_born + (size_t)from[s] * (size_t)d->max, row);
        d->scattered = true;
    }
}

neb_status neb__decoding_reorder(struct neb_decoding *d, const int32_t *from)
{
    int32_t *len = d->host + d->at[LAST]; /* free between runs */
    for (int32_t s = 0; s < d->seqs; s++) {
        if (from[s] < 0 || from[s] >= d->seqs)
            return neb__fail(NEB_ERR_RANGE,
                             "sequence %d cannot continue from sequence %d: there are %d sequences", s,
                             from[s], d->seqs);
        len[s] = d->len[from[s]];
    }
    memcpy(d->len, len, (size_t)d->seqs * sizeof *len);
    if (d->listed) {
        take_lists(d, from);
        return NEB_OK;
    }
    int32_t n = find_moves(d, from);
    if (!n) return NEB_OK;
    return n <= d->seqs * d->max / 4 ? move_rows(d, n) : gather_all(d, from);
}
