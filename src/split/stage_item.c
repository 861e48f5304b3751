/* stage_item.c: messages between stages over the streams: see stage_message.h for their bytes.
 *
 * An item that a stage gives once more after a crash is in its journal already. A message that a peer sends is compared with what is
 * due item by item, before anything of it is kept. */
#include "split/stage_site.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "codec/stream.h"
#include "run/stream.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double slice = 0.2; /* seconds between two looks at the stop flag */

/* ---- items ------------------------------------------------------------------------------------------------ */

static neb_status send(struct neb_stage_site *s, struct neb_stage_end *e)
{
    for (;;) {
        neb_status status = neb_stream_put(e->stream, e->at + 1, s->item.data, s->item.len, slice);
        if (status != NEB_ERR_TIMEOUT) {
            if (status == NEB_OK) e->at++, e->all_bytes += (double)s->item.len;
            return status;
        }
        NEB_TRY(neb__stage_waits(s));
    }
}

static neb_status put_pieces(struct neb_stage_site *s, struct neb_stage_end *e,
                             const struct neb_stage_head *head, const uint8_t *bytes, size_t n, size_t pieces)
{
    const size_t each = (n + pieces - 1) / pieces;
    if (pieces > NEB_STAGE_PIECES)
        return neb__fail(NEB_ERR_LIMIT, "a message of %zu bytes between stages", n);
    for (size_t i = 0; i < pieces; i++) {
        uint8_t h[NEB_STAGE_HEAD];
        const struct neb_stage_item_head item = {*head, s->run, s->outlined, s->third,
                                                 (uint16_t)(pieces - 1 - i)};
        size_t part = n < each ? n : each;
        neb__stage_head_write(&item, h);
        neb__buf_clear(&s->item);
        NEB_TRY(neb__buf_append(&s->item, h, NEB_STAGE_HEAD));
        if (part) NEB_TRY(neb__buf_append(&s->item, bytes, part));
        NEB_TRY(send(s, e));
        if (head->kind == NEB_STAGE_ITEM_VALUES) s->gathered[0] += (double)s->item.len;
        if (part) bytes += part;
        n -= part;
    }
    return NEB_OK;
}

neb_status neb__stage_put(struct neb_stage_site *s, enum neb_stage_way way, const struct neb_stage_head *head,
                          const void *bytes, size_t n)
{
    return put_pieces(s, &s->end[way], head, bytes, n, neb__stage_pieces(n));
}

/* True: the journal has the whole message already, since before a crash. It need not be made again. *begun: it has the first
 * items of it. */
static bool skip(struct neb_stage_end *e, size_t pieces, bool *begun)
{
    struct neb_stream_status st;
    neb_stream_get_status(e->stream, &st);
    *begun = e->at < st.last;
    if (e->at + pieces > st.last) return false;
    e->at += pieces;
    return true;
}

static neb_status receive(struct neb_stage_site *s, struct neb_stage_end *e, const uint8_t **bytes, size_t *n)
{
    const void *data;
    uint64_t item;
    for (;;) {
        neb_status status = neb_stream_get(e->stream, slice, &data, n, &item);
        if (status != NEB_ERR_TIMEOUT) {
            NEB_TRY(status);
            break;
        }
        NEB_TRY(neb__stage_waits(s));
    }
    if (item != ++e->at || *n < NEB_STAGE_HEAD)
        return neb__fail(NEB_ERR_CORRUPT, "item %" PRIu64 " from site '%s' is cut off, or another was due",
                         item, e->other);
    e->bytes += *n;
    e->all_bytes += (double)*n;
    *bytes = data;
    return NEB_OK;
}

/* The first item that a new site takes names its run. */
static neb_status check_run(struct neb_stage_site *s, const struct neb_stage_end *e, uint32_t tag)
{
    if (!s->run_known) {
        s->run = tag;
        s->run_known = true;
        return neb__stage_write_run(s);
    }
    if (tag == s->run) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "item %" PRIu64
                     " from site '%s' and the checkpoint in %s belong to different runs: remove the folders "
                     "`out` of all sites to start from nothing",
                     e->at, e->other, s->job->out);
}

/* The numbers of the items, and what is in them, depend on it. */
static neb_status check_version(const struct neb_stage_site *s, const struct neb_stage_end *e,
                                const struct neb_stage_item_head *h)
{
    if (s->outlined == h->outlined && s->third == h->third) return NEB_OK;
    if (s->outlined == h->outlined)
        return neb__fail(
            NEB_ERR_VERSION,
            "site '%s' runs a nebula-i whose stages have other messages: use the same release at all sites",
            e->other);
    return neb__fail(
        NEB_ERR_VERSION,
        "site '%s' runs a nebula-i whose stages do not say what their batches look like, or knows another "
        "number of sites: use the same release and job at all sites",
        e->other);
}

neb_status neb__stage_get(struct neb_stage_site *s, enum neb_stage_way way, const struct neb_stage_due *due,
                          struct neb_stage_head *head, const uint8_t **bytes, size_t *n)
{
    struct neb_stage_end *e = &s->end[way];
    s->inbox.begun = false; /* an error, or a request to stop, may have left a part of another one */
    do {
        struct neb_stage_item_head h;
        const uint8_t *p = NULL;
        size_t size = 0;
        NEB_TRY(receive(s, e, &p, &size));
        (void)neb__stage_head_read(p, size, &h); /* receive() has seen that it is there */
        NEB_TRY(check_version(s, e, &h));
        NEB_TRY(check_run(s, e, h.run));
        NEB_TRY(neb__stage_inbox_add(&s->inbox, due, e->other, p, size, bytes, n));
        if (h.message.kind == NEB_STAGE_ITEM_VALUES) s->gathered[1] += (double)size;
    } while (!*bytes);
    *head = s->inbox.head;
    return NEB_OK;
}

/* ---- runs ------------------------------------------------------------------------------------------------- */

/* The items of a message that a crash has cut off have one number of bits, also where the bits have followed the line to another one
 * since. */
static neb_status bits_of_begun(struct neb_stage_end *e, int *bits, bool *bad)
{
    const uint8_t *p;
    size_t n;
    struct neb_stage_item_head h;
    struct neb_stream_info info;
    neb_status status = neb__stream_recall(e->stream, e->at + 1, &p, &n);
    if (status == NEB_ERR_NOTFOUND) return NEB_OK; /* the other site has it */
    NEB_TRY(status);
    *bad = neb__stage_head_read(p, n, &h) && h.message.bad;
    if (*bad || n < NEB_STAGE_HEAD + NEB_STREAM_HEADER) return NEB_OK;
    p += NEB_STAGE_HEAD;
    if (neb__stream_peek(p, NEB_STREAM_HEADER + (size_t)neb__get32(p + 16), &info) != NEB_OK)
        return neb__fail(NEB_ERR_CORRUPT, "the journal for site '%s' holds no hidden states", e->other);
    *bits = info.bits;
    return NEB_OK;
}

/* Two checkpoints of the receiver cover an item before the journal drops it, and one may come after every step at the soonest:
 * so three steps, and a part of the next one, must have room. */
static neb_status make_room(const struct neb_stage_site *s, struct neb_stage_end *e, double bytes)
{
    const uint64_t steps = (uint64_t)(4 * (bytes * (double)s->job->train.micro + (double)e->outline));
    if (steps <= e->allowed) return NEB_OK;
    e->allowed = steps;
    return neb__stream_allow(e->stream, steps);
}

/* A message has as many items as it would need with 32 bits. So the number of an item follows from the job alone, also
 * where the bits follow the line. */
neb_status neb__stage_give(void *site, const struct neb_stage_message *m, const float *values)
{
    struct neb_stage_site *s = site;
    struct neb_stage_end *e = &s->end[m->back ? NEB_BACK_OUT : NEB_AHEAD_OUT];
    struct neb_stage_head head = {.kind = neb__stage_kind_of(m), .number = m->number, .check = m->check};
    const size_t pieces = neb__stage_pieces((size_t)neb__stage_run_size(m, 32));
    int64_t since = neb__now_ns();
    int bits = s->bits;
    bool begun;
    if (m->run == NEB_STAGE_TRAINS) s->item_bytes = neb__stage_run_size(m, 8);
    NEB_TRY(make_room(s, e, neb__stage_run_size(m, bits)));
    if (skip(e, pieces, &begun)) return NEB_OK;
    neb__buf_clear(&s->message);
    if (begun) NEB_TRY(bits_of_begun(e, &bits, &head.bad));
    neb_status status = head.bad ? NEB_ERR_RANGE : neb__stage_run_encode(m, values, bits, &s->message);
    if (status == NEB_ERR_RANGE) { /* the receiver fills in what makes all stages skip the step */
        head.bad = true;
        neb__buf_clear(&s->message);
        status = NEB_OK;
    }
    s->code_s += neb__seconds_since(since);
    NEB_TRY(status);
    return put_pieces(s, e, &head, s->message.data, s->message.len, pieces);
}

neb_status neb__stage_take(void *site, const struct neb_stage_message *m, float *values)
{
    struct neb_stage_site *s = site;
    const enum neb_stage_way way = m->back ? NEB_BACK_IN : NEB_AHEAD_IN;
    const struct neb_stage_due due = neb__stage_due_run(m);
    struct neb_stage_head head;
    const uint8_t *bytes;
    size_t n, all = 0;
    NEB_TRY(neb__stage_get(s, way, &due, &head, &bytes, &n));
    int64_t since = neb__now_ns();
    for (int i = 0; i < m->parts; i++) all += (size_t)(m->part[i].rows * m->width);
    for (size_t i = 0; head.bad && i < all; i++) values[i] = NAN;
    if (head.bad) return NEB_OK;
    neb_status status = neb__stage_run_decode(m, s->end[way].other, bytes, n, values);
    s->code_s += neb__seconds_since(since);
    return status;
}

/* ---- outlines --------------------------------------------------------------------------------------------- */

neb_status neb__stage_take_outline(void *site, struct neb_buf *out)
{
    struct neb_stage_site *s = site;
    struct neb_stage_head head;
    const uint8_t *bytes;
    size_t n;
    const struct neb_stage_due due = {.kind = NEB_STAGE_ITEM_OUTLINE, .most = NEB_STAGE_OUTLINE_MAX};
    NEB_TRY(neb__stage_get(s, NEB_AHEAD_IN, &due, &head, &bytes, &n));
    neb__buf_clear(out);
    return neb__buf_append(out, bytes, n);
}

neb_status neb__stage_give_outline(void *site, const void *bytes, size_t n)
{
    struct neb_stage_site *s = site;
    struct neb_stage_end *e = &s->end[NEB_AHEAD_OUT];
    const struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_OUTLINE};
    if (n > e->outline) e->outline = n;
    return neb__stage_put(s, NEB_AHEAD_OUT, &head, bytes, n);
}

/* ---- sums ------------------------------------------------------------------------------------------------- */

/* Takes a table of all stages' numbers and keeps the rows of the stages [from, to). */
static neb_status take_rows(struct neb_stage_site *s, enum neb_stage_way way, int from, int to,
                            struct neb_stage_row *table)
{
    const struct neb_stage_due due = {.kind = NEB_STAGE_ITEM_SUMS,
                                      .most = neb__stage_rows_size(s->stages, s->outlined)};
    struct neb_stage_head head;
    const uint8_t *bytes;
    size_t size;
    if (!neb__stage_in_line(s, way)) return NEB_OK;
    NEB_TRY(neb__stage_get(s, way, &due, &head, &bytes, &size));
    return neb__stage_rows_decode(s->end[way].other, bytes, size, s->stages, s->outlined, from, to, table);
}

static neb_status give_rows(struct neb_stage_site *s, enum neb_stage_way way,
                            const struct neb_stage_row *table)
{
    struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_SUMS};
    uint8_t bytes[NEB_JOB_SITES * sizeof *table];
    if (!neb__stage_in_line(s, way)) return NEB_OK;
    neb__stage_rows_encode(table, s->stages, s->outlined, bytes);
    return neb__stage_put(s, way, &head, bytes, neb__stage_rows_size(s->stages, s->outlined));
}

/* The last stage ends its backwards first and says its part at once, so it has come to the first one before that ends
 * its own: the first stage goes on without waiting. What the first one says comes before its next hidden states. */
neb_status neb__stage_add_up(void *site, struct neb_stage_sums *own)
{
    struct neb_stage_site *s = site;
    struct neb_stage_row table[NEB_JOB_SITES] = {0};
    table[s->stage] = (struct neb_stage_row){*own, s->rate.line_s};
    NEB_TRY(take_rows(s, NEB_BACK_IN, s->stage + 1, s->stages, table));
    NEB_TRY(give_rows(s, NEB_BACK_OUT, table));
    NEB_TRY(take_rows(s, NEB_AHEAD_IN, 0, s->stage, table));
    NEB_TRY(give_rows(s, NEB_AHEAD_OUT, table));
    neb__stage_sums_total(table, s->stages, own);
    for (int k = s->stage + 1; k < s->stages; k++) s->line_s[k] = table[k].line_s;
    return NEB_OK;
}

neb_status neb__stage_spread(void *site, void *bytes, size_t n)
{
    struct neb_stage_site *s = site;
    const struct neb_stage_due due = {.kind = NEB_STAGE_ITEM_SPREAD, .most = n};
    struct neb_stage_head head;
    const enum neb_stage_way in = s->place.ring ? NEB_AHEAD_IN : NEB_BACK_IN,
                             out = s->place.ring ? NEB_AHEAD_OUT : NEB_BACK_OUT;
    const uint8_t *from;
    size_t size;
    if (neb__stage_in_line(s, in)) {
        NEB_TRY(neb__stage_get(s, in, &due, &head, &from, &size));
        if (size != n)
            return neb__fail(NEB_ERR_CORRUPT, "site '%s' sent %zu bytes of an evaluation's %zu",
                             s->end[in].other, size, n);
        memcpy(bytes, from, n);
    }
    head = (struct neb_stage_head){.kind = NEB_STAGE_ITEM_SPREAD};
    return neb__stage_in_line(s, out) ? neb__stage_put(s, out, &head, bytes, n) : NEB_OK;
}
