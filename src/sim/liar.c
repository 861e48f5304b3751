/* liar.c: sites of the simulated world that lie.
 *
 * A liar runs the production core, so that it stays in the run, and changes what leaves it: any field of any frame, another one
 * for each receiver, signed again with its own key where the statement is its own. It also sends at any time: frames that it
 * has sent before, changed once more, forged ends of the run, votes below what it has acknowledged, pings of a leader that
 * nobody elected. It cannot sign for others. At the end of the faults the
 * liars are switched off, or stay and give nobody any record, or sign their statements wrongly, or end every secure
 * sum that they lead in VOID, so that the honest sites can show that they go on. */
#include "sim/world.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "round/frame.h"

#include <string.h>

static _Thread_local struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
static _Thread_local struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];

bool neb__sim_lies(const struct neb_sim_world *w, int site)
{
    return w->liars & neb__bit((unsigned)site);
}

static uint64_t near(struct neb_sim_world *w, uint64_t x)
{
    static const uint64_t step[] = {1, 2, 64, 65, 1000, 0xffff};
    uint64_t by = step[draw(w, 6)];
    return draw(w, 2) && x >= by ? x - by : x + by;
}

/* Signs a statement again as the liar's own. */
static void sign(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_said *s)
{
    const struct neb_seal seal = neb__sim_seal(n);
    if (s->site == n->id && neb__said_sign(s, &w->cfg.genesis, &seal) != NEB_OK) w->failed = NEB_ERR_NOMEM;
}

static void change_said(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_said *s)
{
    switch (draw(w, 8)) {
    case 0: s->index = near(w, s->index); break;
    case 1: s->hash.b[draw(w, NEB_HASH_SIZE)] ^= 1; break;
    case 2: s->view = near(w, s->view); break;
    case 3: s->normal = near(w, s->normal); break;
    case 4: s->epoch = (uint32_t)near(w, s->epoch); break;
    case 5: s->kind = (uint8_t)(NEB_SAID_HOLDS + draw(w, NEB_SAID_KINDS - NEB_SAID_HOLDS)); break;
    case 6: s->site = (uint8_t)draw(w, (uint64_t)w->sites); break;
    default:
        if (s->lapses.n) s->lapses.of[draw(w, s->lapses.n)].lapse = (uint16_t)(1 + draw(w, 0xffff));
        break;
    }
    if (draw(w, 4)) sign(w, n, s);
}

static void change_certificate(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_certificate *c)
{
    struct neb_said s;
    if (!c->n) return;
    switch (draw(w, 6)) {
    case 0: c->index = near(w, c->index); break;
    case 1: c->hash.b[draw(w, NEB_HASH_SIZE)] ^= 1; break;
    case 2: c->view = near(w, c->view); break;
    case 3: c->n--; break;
    case 4: c->by[draw(w, c->n)].signature[0] ^= 1; break;
    default: /* its own signature under other words */
        for (int i = 0; i < c->n; i++)
            if (c->by[i].site == n->id) {
                c->hash.b[0] ^= 1;
                neb__certificate_said(c, i, &s);
                sign(w, n, &s);
                memcpy(c->by[i].signature, s.signature, NEB_SEAL_SIZE);
            }
    }
}

static void change(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_round_frame *f)
{
    switch (draw(w, 18)) {
    case 0: f->epoch = (uint32_t)near(w, f->epoch); break;
    case 1: f->roster_id ^= 1; break;
    case 2: f->view = near(w, f->view); break;
    case 3: f->commit = near(w, f->commit); break;
    case 4: f->lapse = (uint32_t)near(w, f->lapse); break;
    case 5: f->number = near(w, f->number); break;
    case 6: f->normal = near(w, f->normal); break;
    case 7: f->head = near(w, f->head); break;
    case 8: f->start = near(w, f->start); break;
    case 9: f->applied = near(w, f->applied); break;
    case 10: f->hash.b[draw(w, NEB_HASH_SIZE)] ^= 1; break;
    case 11: f->flags ^= (uint8_t)(1 << draw(w, 5)); break;
    case 12: f->lapses[draw(w, (uint64_t)w->sites)] = 0xffff; break;
    case 13: f->phase ^= 3; break;
    case 14: change_certificate(w, n, &f->proof); break;
    case 15: change_certificate(w, n, &f->prepared); break;
    case 16:
        f->words = 1;
        f->word[0] =
            (struct neb_round_frame_word){.site = (uint8_t)draw(w, (uint64_t)w->sites), .lapse = 0xffff};
        break;
    default:
        if (f->saids) change_said(w, n, &f->said[draw(w, f->saids)]);
        break;
    }
}

/* Votes with less than it has: the log as far as it is committed, as if it were of an older view. */
static void vote_low(struct neb_sim_world *w, struct neb_sim_node *n, struct neb_round_frame *f)
{
    struct neb_round_status st;
    neb__round_status(n->core, &st);
    if (draw(w, 2))
        f->normal = f->said[0].normal = draw(w, f->said[0].normal + 1); /* or only fewer records */
    f->head = f->said[0].index = st.commit;
    f->hash = f->said[0].hash = st.commit_hash;
    f->proof.n = f->prepared.n = 0;
    if (!draw(w, 4))
        neb__vote_set_forced(
            &f->said[0],
            1 + (uint32_t)draw(w, w->roster.epoch + 2)); /* and as if a roster were forced in it */
    sign(w, n, &f->said[0]);
}

/* Changes a frame in place of another; false: it is not sent at all. */
static bool tamper(struct neb_sim_world *w, struct neb_sim_node *n, const uint8_t *bytes, size_t length,
                   struct neb_buf *out)
{
    struct neb_round_frame f;
    if (!draw(w, 8)) return false;
    if (neb__round_frame_decode(bytes, length, items, certs, &f) != NEB_OK) return false;
    bool low = f.type == NEB_ROUND_FRAME_VOTE && f.saids == 1 && draw(w, 2);
    if (low) {
        vote_low(w, n, &f);
        return neb__round_frame_encode(&f, out) == NEB_OK;
    }
    for (uint64_t i = 1 + draw(w, 3); i; i--) change(w, n, &f);
    if (!draw(w, 30)) f.type = (uint8_t)(1 + draw(w, NEB_ROUND_FRAME_GUILT));
    f.blob_length = f.type == NEB_ROUND_FRAME_LOG ? f.blob_length : 0;
    return neb__round_frame_encode(&f, out) == NEB_OK;
}

/* After the faults: it signs what it says wrongly. False: the frame leaves as it is. */
bool neb__liar_botches(struct neb_sim_world *w, struct neb_sim_node *n, int to, const uint8_t *bytes,
                       size_t length)
{
    struct neb_round_frame f;
    struct neb_buf b;
    if (bytes[0] != NEB_ROUND_FRAME_REPORT && bytes[0] != NEB_ROUND_FRAME_VOTE) return false;
    if (neb__round_frame_decode(bytes, length, items, certs, &f) != NEB_OK || !f.saids) return false;
    for (int i = 0; i < f.saids; i++) f.said[i].signature[0] ^= 1;
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    if (neb__round_frame_encode(&f, &b) == NEB_OK)
        neb__sim_send(w, n->id, to, EV_FRAME, &(struct neb_sim_event){.from = 0}, b.data, b.len);
    neb__buf_free(&b);
    return true;
}

void neb__liar_sends(struct neb_sim_world *w, struct neb_sim_node *n, int to, const uint8_t *bytes,
                     size_t length)
{
    struct neb_sim_event what = {.from = 0};
    struct neb_buf b;
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    w->roster_id = neb__get64(bytes + 8);
    bool lies = !draw(w, 4), sends = !lies || tamper(w, n, bytes, length, &b);
    if (sends) neb__sim_send(w, n->id, to, EV_FRAME, &what, lies ? b.data : bytes, lies ? b.len : length);
    neb__buf_free(&b);
    if (length > sizeof n->lie || draw(w, 6)) return;
    memcpy(n->lie, bytes, length); /* to be sent again, some day */
    n->lie_length = length;
}

/* The liar's present lapse, as its own table would have it. */
static void forge_table(const struct neb_sim_node *n, const struct neb_round_status *st, struct neb_said *s)
{
    if (!st->lapse || st->view % 3 == 0) return; /* or another one */
    s->lapses.n = 1;
    s->lapses.of[0].site = (uint8_t)n->id;
    s->lapses.of[0].lapse = (uint16_t)st->lapse;
}

/* Ends the run, as far as the liar is concerned: a record that follows from the log, with its own signature for a quorum's. */
static void forge_end(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_round_status st;
    struct neb_buf b, frame;
    struct neb_hash hash;
    uint8_t blob[256];
    neb__round_status(n->core, &st);
    struct neb_record rec = {.type = draw(w, 2) ? NEB_RECORD_END : NEB_RECORD_FINAL,
                             .epoch = st.roster.epoch,
                             .view = st.view,
                             .index = st.commit + 1,
                             .prev = st.commit_hash,
                             .owner = NEB_NO_SITE};
    if (!draw(w, 3)) rec.prev.b[0] ^= 1;
    neb__buf_init(&b, sizeof blob - 4);
    neb__buf_init(&frame, NEB_ROUND_FRAME_MAX);
    if (neb__record_encode(&rec, &b) != NEB_OK || neb__hash(b.data, b.len, &hash) != NEB_OK) {
        neb__buf_free(&b);
        neb__buf_free(&frame);
        return;
    }
    neb__put32(blob, (uint32_t)b.len);
    memcpy(blob + 4, b.data, b.len);
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_LOG,
                                .from = (uint16_t)n->id,
                                .epoch = st.roster.epoch,
                                .roster_id = w->roster_id,
                                .view = st.view,
                                .commit = rec.index,
                                .number = rec.index,
                                .records = 1,
                                .blob = blob,
                                .blob_length = 4 + b.len};
    for (int i = 0; i < w->sites && i < 3; i++) { /* with the names of others, too */
        struct neb_said s = {.kind = NEB_SAID_HOLDS,
                             .site = (uint8_t)i,
                             .epoch = st.roster.epoch,
                             .view = st.view,
                             .normal = st.view,
                             .index = rec.index,
                             .hash = hash};
        sign(w, n, &s);
        (void)neb__certificate_add(&f.proof, &s);
    }
    f.said[f.saids++] = (struct neb_said){.kind = NEB_SAID_HOLDS,
                                          .site = (uint8_t)n->id,
                                          .epoch = st.roster.epoch,
                                          .view = st.view,
                                          .normal = st.view,
                                          .index = rec.index,
                                          .hash = hash};
    forge_table(n, &st, &f.said[0]);
    sign(w, n, &f.said[0]);
    if (neb__round_frame_encode(&f, &frame) == NEB_OK)
        for (int i = 0; i < w->sites; i++)
            if (i != n->id)
                neb__sim_send(w, n->id, i, EV_FRAME, &(struct neb_sim_event){.from = 0}, frame.data,
                              frame.len);
    neb__buf_free(&b);
    neb__buf_free(&frame);
}

/* Leads a view that nobody voted for: votes in the names of others, for the log as far as the liar has it committed, and its own
 * signature of all that. */
static void forge_leader(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_round_status st;
    struct neb_buf b;
    neb__round_status(n->core, &st);
    uint64_t view = (st.view / NEB_SITES_MAX + 1 + draw(w, 3)) * NEB_SITES_MAX + (uint64_t)n->id;
    struct neb_said place = {
        .epoch = st.roster.epoch, .view = view, .index = st.commit, .hash = st.commit_hash};
    struct neb_round_frame f = {.type = NEB_ROUND_FRAME_PING,
                                .from = (uint16_t)n->id,
                                .epoch = st.roster.epoch,
                                .roster_id = w->roster_id,
                                .view = view,
                                .normal = view,
                                .commit = st.commit,
                                .head = st.commit,
                                .start = st.commit,
                                .hash = st.commit_hash,
                                .number = 1000,
                                .flags = NEB_FLAG_PROOF,
                                .saids = 1};
    for (int i = 0; i < w->sites && i < NEB_ROUND_VOTERS_MAX; i++) {
        struct neb_said *v = &f.said[f.saids++];
        *v = place;
        v->kind = NEB_SAID_VOTES;
        v->site = (uint8_t)i;
        sign(w, n, v);
    }
    f.said[0] = place;
    f.said[0].kind = NEB_SAID_STARTS;
    f.said[0].site = (uint8_t)n->id;
    f.said[0].normal = view;
    if (!neb__votes_hash(&f.said[1], f.saids - 1, &f.said[0].more)) return;
    sign(w, n, &f.said[0]);
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    if (neb__round_frame_encode(&f, &b) == NEB_OK)
        for (int i = 0; i < w->sites; i++)
            if (i != n->id && draw(w, 3))
                neb__sim_send(w, n->id, i, EV_FRAME, &(struct neb_sim_event){.from = 0}, b.data, b.len);
    neb__buf_free(&b);
}

void neb__liar_strikes(struct neb_sim_world *w)
{
    for (int i = 0; i < w->sites; i++) {
        struct neb_sim_node *n = &w->node[i];
        struct neb_buf b;
        if (!neb__sim_lies(w, i) || !n->alive) continue;
        if (!draw(w, 3)) forge_end(w, n);
        if (!draw(w, 4)) forge_leader(w, n);
        neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
        if (n->lie_length && tamper(w, n, n->lie, n->lie_length, &b))
            for (int k = 0; k < w->sites; k++)
                if (k != i && draw(w, 3))
                    neb__sim_send(w, i, k, EV_FRAME, &(struct neb_sim_event){.from = 0}, b.data, b.len);
        neb__buf_free(&b);
    }
}
