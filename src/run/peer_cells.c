/* peer_cells.c: cells of the outer state that go to a site that lacks them, and come to this one. */
#include "run/peer_cells.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

enum { CELL_HEAD = 28 };

neb_status neb__fetched_open(neb_session *s, size_t cells)
{
    s->fetched = NEB_NEW_ARRAY(struct neb_fetched_cell, cells);
    return s->fetched ? NEB_OK : NEB_ERR_NOMEM;
}

void neb__fetched_close(neb_session *s, size_t cells)
{
    for (size_t c = 0; s->fetched && c < cells; c++) neb__free(s->fetched[c].theta);
    neb__free(s->fetched);
}

static size_t cell_at(const neb_session *s, uint32_t cell, size_t *first)
{
    return neb__outer_cell(s->mirror.outer, cell, first);
}

/* In a run with a rule of influence the lengths of updates stand between momentum and proof. */
static size_t more_size(const neb_session *s)
{
    return s->influence.on ? sizeof(struct neb_norms) : 0;
}

static void say_no(neb_session *s, uint16_t peer, uint32_t cell)
{
    struct neb_hash name;
    neb__round_cell_name(cell, &name);
    neb__session_send(s, peer, NEB_CONTROL, NEB_MSG_NONE, name.b, NEB_HASH_SIZE);
}

static void send_cell(neb_session *s, uint16_t peer, uint32_t cell, uint64_t applied)
{
    struct neb_hash path[NEB_PROOF_MAX];
    int steps = 0;
    bool proved = neb__outer_prove(s->mirror.outer, cell, path, &steps) == NEB_OK;
    size_t first, n = cell_at(s, cell, &first), more = more_size(s);
    size_t size = CELL_HEAD + 8 * n + more + (size_t)steps * NEB_HASH_SIZE;
    uint8_t *b = proved ? neb__malloc(size) : NULL;
    if (!b) {
        neb__lines_cell_end(&s->lines, peer, cell);
        say_no(s, peer, cell);
        return;
    }
    neb__put32(b, cell);
    neb__put64(b + 4, s->mirror.outer->version[cell]);
    neb__put64(b + 12, applied);
    neb__put32(b + 20, (uint32_t)n);
    neb__put32(b + 24, (uint32_t)steps);
    memcpy(b + CELL_HEAD, s->mirror.outer->theta + first, 4 * n);
    memcpy(b + CELL_HEAD + 4 * n, s->mirror.outer->m + first, 4 * n);
    if (more) memcpy(b + CELL_HEAD + 8 * n, &s->mirror.outer->norms[cell], more);
    memcpy(b + CELL_HEAD + 8 * n + more, path, (size_t)steps * NEB_HASH_SIZE);
    neb__session_send_cell(s, peer, cell, b, size);
    neb__free(b);
}

/* A question of four bytes has an answer of megabytes, so few answers to one site are under way at a time. */
void neb__session_serve_cell(neb_session *s, uint16_t peer, uint32_t cell)
{
    struct neb_round_status st;
    neb__round_status(s->core, &st);
    neb_status status = NEB_ERR_NOTFOUND;
    if (cell < s->mirror.outer->cells && st.whole) status = neb__lines_cell_begin(&s->lines, peer, cell);
    if (status == NEB_OK)
        send_cell(s, peer, cell, st.applied);
    else if (status != NEB_ERR_EXISTS)
        say_no(s, peer, cell);
    if (status == NEB_ERR_LIMIT) neb__session_refused(s, peer, NEB_QUOTA_CELLS, 1);
}

void neb__session_ask_cell(neb_session *s, uint16_t peer, uint32_t cell)
{
    uint8_t b[4];
    s->fetched[cell].asked |= neb__bit(peer);
    neb__put32(b, cell);
    neb__session_send(s, peer, NEB_CONTROL, NEB_MSG_GET_CELL, b, sizeof b);
}

/* A cell that nobody asked for would take memory, and the place of one whose root becomes trusted in a moment. */
static bool was_asked(neb_session *s, uint16_t peer, uint32_t cell)
{
    struct neb_fetched_cell *f = &s->fetched[cell];
    bool asked = peer < NEB_SITES_MAX && (f->asked & neb__bit(peer));
    if (asked) f->asked &= ~neb__bit(peer);
    return asked;
}

void neb__session_cell(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t size)
{
    struct neb_reader r = {bytes, size, false};
    uint32_t cell = neb__read32(&r);
    uint64_t version = neb__read64(&r), index = neb__read64(&r);
    uint32_t values = neb__read32(&r), steps = neb__read32(&r);
    size_t first;
    if (r.bad || cell >= s->mirror.outer->cells || values != cell_at(s, cell, &first) ||
        steps > NEB_PROOF_MAX || r.left != 8 * (size_t)values + more_size(s) + steps * NEB_HASH_SIZE) {
        neb__warn("ignoring a malformed cell from site %u", peer);
        return;
    }
    if (!was_asked(s, peer, cell)) {
        neb__debug("ignoring a cell that site %u was not asked for", peer);
        return;
    }
    /* A cell without a proof must not take the place of one that has it: the core hears of the kept cell. */
    float *theta = neb__malloc(8 * (size_t)values);
    if (!theta) return;
    memcpy(theta, r.p, 8 * (size_t)values);
    struct neb_hash path[NEB_PROOF_MAX], root;
    struct neb_norms norms = {0};
    memcpy(&norms, r.p + 8 * (size_t)values, more_size(s));
    memcpy(path, r.p + 8 * (size_t)values + more_size(s), steps * NEB_HASH_SIZE);
    if (neb__outer_proved(s->mirror.outer->cells, cell, version, theta, theta + values, values,
                          s->influence.on ? &norms : NULL, path, (int)steps, &root) != NEB_OK) {
        neb__free(theta);
        return;
    }
    struct neb_fetched_cell *f = &s->fetched[cell];
    neb__free(f->theta);
    *f = (struct neb_fetched_cell){.asked = f->asked,
                                   .version = version,
                                   .index = index,
                                   .theta = theta,
                                   .m = theta + values,
                                   .norms = norms};
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_CELL,
                                             .site = peer,
                                             .cell = cell,
                                             .version = version,
                                             .index = index,
                                             .root = root});
}

void neb__session_install(neb_session *s, const struct neb_action *a)
{
    struct neb_fetched_cell *f = &s->fetched[a->cell];
    size_t first, n = cell_at(s, a->cell, &first);
    if (f->theta && f->version == a->version && f->index == a->index) {
        for (size_t i = 0; i < n; i++) s->mirror.work[1][i] = f->theta[i] - s->mirror.outer->theta[first + i];
        /* On disk first: the updates it replaces may never come to this site. */
        struct neb_snapshot snap = {
            .cell = a->cell, .version = a->version, .values = n, .theta = f->theta, .m = f->m};
        if (s->influence.on) snap.more = &f->norms, snap.more_size = sizeof f->norms;
        if (neb__session_snapshot(s, &snap) != NEB_OK)
            neb__warn("cell %u was fetched but not kept: %s; it will be fetched again", a->cell,
                      neb_last_error());
        else if (neb__outer_install(s->mirror.outer, a->cell, a->version, f->theta, f->m, &f->norms) ==
                     NEB_OK &&
                 neb__edit_add(&s->mirror, a->cell, NEB_EDIT_ADD, 0, s->mirror.work[1]) != NEB_OK)
            neb__session_halt(s, "out of memory for catching up");
        neb__free(f->theta);
        f->theta = NULL;
    }
    neb__session_feed(s, &(struct neb_event){.type = NEB_EV_INSTALLED,
                                             .cell = a->cell,
                                             .version = s->mirror.outer->version[a->cell]});
}
