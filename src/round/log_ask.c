/* log_ask.c: records that sites ask each other for.
 *
 * An answer is up to a chunk of records, and may take seconds over a thin line. Questions come from many places: a ping that
 * names a longer log, a greeting, an election. So a site is not asked again for what it may still be sending. The time that
 * answers take is measured, and the wait doubles while none comes. Committed records are the same everywhere: for those one
 * site is asked at a time, unless the log of a certain site is wanted.
 *
 * A question of some bytes has a large answer. So each member is given a limited number of bytes, whatever it asks. */
#include "round/core.h"

enum {
    CHUNK_RECORDS = 128,
    CHUNK_BYTES = 128 * 1024,
    ANSWER_PINGS = 64,        /* times ping_ms: no answer counts as one that took longer */
    GIVEN_RATE = 1024 * 1024, /* bytes a second, for one member */
    GIVEN_BURST = 4 * 1024 * 1024
};

/* ---- asking -------------------------------------------------------------------------------------------- */

void neb__log_ask(struct neb_round *r, unsigned to, uint64_t first, bool must)
{
    if (to >= NEB_SITES_MAX || to == r->self || !r->peer[to].up) return;
    struct neb_core_peer *p = &r->peer[to];
    const int64_t least = r->cfg.ping_ms / 2;
    const int64_t usual = 2 * p->log_ms > least ? 2 * p->log_ms : least;
    const int64_t most = usual > 8 * r->cfg.ping_ms ? usual : 8 * r->cfg.ping_ms;
    bool again = p->log_first == first;
    if (again && r->now < p->log_asked + p->log_wait) return;
    if (!must && r->log_first == first && r->now < r->log_until) return;
    p->log_wait = again ? 2 * p->log_wait : usual;
    if (p->log_wait > most) p->log_wait = most;
    p->log_first = first;
    p->log_asked = r->now;
    if (!must) r->log_first = first, r->log_until = r->now + p->log_wait;
    neb__core_send(r, to, &(struct neb_round_frame){.type = NEB_ROUND_FRAME_GETLOG, .number = first});
}

void neb__log_answered(struct neb_round *r, unsigned from, uint64_t first)
{
    struct neb_core_peer *p = &r->peer[from];
    if (!first || p->log_first != first) return;
    int64_t took = r->now - p->log_asked, most = ANSWER_PINGS * r->cfg.ping_ms;
    if (took > most) took = most; /* or a member that answers after hours keeps others from being asked */
    p->log_ms = took > p->log_ms * 7 / 8 ? took : p->log_ms * 7 / 8;
    p->log_first = 0;
}

/* This process slept, or its clock jumped: how long the answers take that it waits for will not be known. Taken for the line's, that
 * time would be the wait for the next answer that is lost. */
void neb__log_slept(struct neb_round *r)
{
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) r->peer[i].log_first = 0;
    r->log_first = 0;
}

/* ---- giving -------------------------------------------------------------------------------------------- */

/* The last of the records from `first` on that go into one frame: as many as fit, up to the next change of the roster, which
 * the receiver must see certified before it takes anything behind it. */
static uint64_t chunk_end(const struct neb_round *r, uint64_t first, uint64_t last)
{
    size_t bytes = 0;
    uint64_t i = first;
    for (; i <= last && i <= r->head; i++) {
        const struct neb_record *rec = r->log[i - 1].record;
        bool change = rec->type == NEB_RECORD_ROSTER || rec->type == NEB_RECORD_FORCED;
        bytes += r->log[i - 1].length + 4;
        if (i <= r->commit && change && neb__cert_at(r, i)) return i;
        if (i - first + 1 == CHUNK_RECORDS || bytes >= CHUNK_BYTES) return i;
    }
    return i - 1;
}

/* A leader gives what it has on disk, with its signature of the last record. The log with which its view began has one already. */
static uint64_t signed_end(struct neb_round *r, uint64_t end, struct neb_round_frame *f)
{
    uint64_t reach = neb__acks_reach(r), low = r->commit > r->start_index ? r->commit : r->start_index;
    if (end > reach) end = reach > low ? reach : (end < low ? end : low);
    if (end && end > r->start_index && neb__acks_own(r, end, &f->said[0])) f->saids = 1;
    return end;
}

static size_t send_chunk(struct neb_round *r, unsigned to, uint64_t first, uint64_t last)
{
    struct neb_round_frame f = {
        .type = NEB_ROUND_FRAME_LOG, .number = first, .normal = r->normal, .head = r->head};
    struct neb_buf b;
    neb__buf_init(&b, CHUNK_BYTES + NEB_RECORD_MAX + 4);
    uint64_t end = first ? chunk_end(r, first, last) : 0;
    const struct neb_certificate *c = neb__cert_for(r, first, end > r->commit ? r->commit : end);
    if (c) f.proof = *c;
    if (c && c->index >= first && end < r->commit)
        end = c->index; /* the rest comes with its own certificate */
    if (neb__core_leads(r)) end = signed_end(r, end, &f);
    if (r->peer[to].greets) neb__autograph_log(r, &f);
    for (uint64_t i = first; i && i <= end; i++) {
        const struct neb_core_entry *e = &r->log[i - 1];
        uint8_t n[4];
        neb__put32(n, (uint32_t)e->length);
        if (neb__buf_append(&b, n, 4) != NEB_OK || neb__buf_append(&b, e->bytes, e->length) != NEB_OK) {
            r->failed = NEB_ERR_NOMEM;
            break;
        }
        f.records++;
    }
    f.start = r->start_index;
    f.hash = r->start_hash;
    f.blob = b.data;
    f.blob_length = b.len;
    neb__core_send(r, to, &f);
    size_t sent = b.len;
    neb__buf_free(&b);
    return sent;
}

void neb__log_send(struct neb_round *r, unsigned to, uint64_t first, uint64_t last)
{
    (void)send_chunk(r, to, first, last);
}

void neb__log_give(struct neb_round *r, unsigned to, uint64_t first, uint64_t last)
{
    struct neb_core_peer *p = &r->peer[to];
    double more = r->now > p->log_room_at ? (double)(r->now - p->log_room_at) * 1e-3 * GIVEN_RATE : 0;
    if (!p->log_room_at) more = GIVEN_BURST;
    p->log_room_at = r->now > p->log_room_at ? r->now : p->log_room_at;
    p->log_room = p->log_room + more < GIVEN_BURST ? p->log_room + more : GIVEN_BURST;
    if (p->log_room <= 0) {
        neb__core_note(r, "a member asks for more records than one is given in a second; it has to wait");
        return;
    }
    p->log_room -= (double)send_chunk(r, to, first, last) + 256;
}
