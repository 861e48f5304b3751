/* solo.c: driving cores of the round protocol by hand: every write succeeds at once, time is the test's. */
#include "solo.h"
#include "check.h"
#include "base/bytes.h"
#include "base/rng.h"

#include <string.h>

neb_status test_sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    struct neb_buf b;
    struct neb_hash h;
    neb__buf_init(&b, 1 << 20);
    assert_ok(neb__buf_printf(&b, "%s %u ", purpose, *(unsigned *)arg));
    assert_ok(neb__buf_append(&b, p, n));
    assert_ok(neb__hash(b.data, b.len, &h));
    neb__buf_free(&b);
    memset(out, 0, NEB_SEAL_SIZE);
    memcpy(out, h.b, sizeof h.b);
    return NEB_OK;
}

bool test_verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                 const uint8_t signature[NEB_SEAL_SIZE])
{
    uint8_t want[NEB_SEAL_SIZE];
    (void)arg;
    return test_sign(&signer, purpose, p, n, want) == NEB_OK && !memcmp(want, signature, sizeof want);
}

void solo_event(struct solo *s, struct neb_event ev)
{
    struct neb_action a;
    ev.now = s->now;
    assert_ok(neb__round_event(s->r, &ev));
    while (neb__round_next(s->r, &a)) {
        s->notes += a.type == NEB_ACT_NOTE;
        s->halts += a.type == NEB_ACT_HALT;
        if (a.type == NEB_ACT_REFUSED) s->refused += a.count, s->refused_site = a.site;
        s->cells_asked += a.type == NEB_ACT_FETCH_CELL;
        s->looked += a.type == NEB_ACT_FETCH && a.site == NEB_NO_SITE;
        s->captures += a.type == NEB_ACT_CAPTURE;
        s->discards += a.type == NEB_ACT_DISCARD;
        s->ends += a.type == NEB_ACT_ENDED;
        s->sent += a.type == NEB_ACT_SEND ? a.length : 0;
        if (a.type == NEB_ACT_WRITE && !s->full) {
            neb__buf_clear(&s->mark);
            assert_ok(neb__buf_append(&s->mark, a.bytes, a.length));
        }
        if (a.type == NEB_ACT_WRITE)
            assert_ok(
                neb__round_event(s->r, &(struct neb_event){.type = NEB_EV_WRITTEN,
                                                           .now = s->now,
                                                           .id = a.id,
                                                           .status = s->full ? NEB_ERR_NOSPACE : NEB_OK}));
        if (s->other && a.type == NEB_ACT_ROOT)
            assert_ok(neb__round_event(
                s->r, &(struct neb_event){.type = NEB_EV_ROOT, .now = s->now, .index = a.index}));
        if (s->applies && a.type == NEB_ACT_APPLY)
            assert_ok(neb__round_event(
                s->r, &(struct neb_event){.type = NEB_EV_APPLIED, .now = s->now, .index = a.index}));
        if (s->other && a.type == NEB_ACT_SEND) {
            uint8_t head[8];
            neb__put32(head, (uint32_t)a.length);
            neb__put32(head + 4, a.site);
            assert_ok(neb__buf_append(&s->letters, head, sizeof head));
            assert_ok(neb__buf_append(&s->letters, a.bytes, a.length));
        }
    }
}

void solo_run(struct solo *s, int64_t ms)
{
    for (int64_t end = s->now + ms; s->now < end; s->now += 100)
        solo_event(s, (struct neb_event){.type = NEB_EV_TICK});
}

static void create(struct solo *s, unsigned self, struct neb_members roster, enum neb_quorum_rule rule,
                   bool secure)
{
    static const uint64_t zero;
    static const struct neb_boot_update none;
    *s = (struct solo){.self = self};
    neb__buf_init(&s->mark, NEB_MARK_MAX);
    neb__buf_init(&s->letters, 1 << 20);
    assert_ok(neb__round_first_mark(&s->mark));
    struct neb_round_config c = {.self = (uint16_t)self, .roster = roster, .cells = 1, .fragments = 1};
    c.quorum = rule;
    c.secure = c.end_drop = secure;
    c.seal = (struct neb_seal){.arg = &s->self, .sign = test_sign, .verify = test_verify};
    struct neb_round_boot boot = {.mark = s->mark.data,
                                  .mark_length = s->mark.len,
                                  .applied = &zero,
                                  .merged = &zero,
                                  .open = &none,
                                  .work = &zero};
    assert_ok(neb__round_create(&c, &boot, &s->r));
}

void solo_create(struct solo *s, unsigned self, struct neb_members roster)
{
    create(s, self, roster, NEB_QUORUM_MAJORITY, false);
}

void solo_create_by(struct solo *s, unsigned self, struct neb_members roster, enum neb_quorum_rule rule)
{
    create(s, self, roster, rule, false);
}

void solo_create_secure(struct solo *s, unsigned self, struct neb_members roster)
{
    create(s, self, roster, NEB_QUORUM_MAJORITY, true);
}

void solo_start(struct solo *s)
{
    solo_create(s, 0, (struct neb_members){1, 3, 3, 3, 0});
    solo_run(s, 10000);
}

void solo_stop(struct solo *s)
{
    neb__round_destroy(s->r);
    neb__buf_free(&s->mark);
    neb__buf_free(&s->letters);
}

void solo_restart(struct solo *s, uint64_t version, struct neb_boot_update open)
{
    enum { RECORDS = 8 };
    static const uint64_t zero;
    struct neb_round *old = s->r;
    const uint8_t *record[RECORDS];
    size_t length[RECORDS];
    const uint64_t records = old->durable.head;
    assert_true(records <= RECORDS && records <= old->disk_head);
    for (uint64_t i = 0; i < records; i++) record[i] = old->log[i].bytes, length[i] = old->log[i].length;
    struct neb_round_boot boot = {.mark = s->mark.data,
                                  .mark_length = s->mark.len,
                                  .record = record,
                                  .record_length = length,
                                  .records = records,
                                  .applied = &version,
                                  .merged = &version,
                                  .open = &open,
                                  .work = &zero};
    assert_ok(neb__round_create(&old->cfg, &boot, &s->r));
    neb__round_destroy(old);
    neb__buf_clear(&s->letters);
}

struct neb_round_status solo_status(const struct solo *s)
{
    struct neb_round_status st;
    neb__round_status(s->r, &st);
    return st;
}

struct neb_order solo_order(const struct solo *s, struct neb_order o, unsigned signer)
{
    struct neb_round_status st = solo_status(s);
    struct neb_seal seal = {.arg = &signer, .sign = test_sign, .verify = test_verify};
    struct neb_hash genesis = {{0}};
    o.signer = (uint16_t)signer;
    if (!o.epoch) o.epoch = st.roster.epoch;
    o.index = st.commit;
    o.head = st.commit_hash;
    assert_ok(neb__order_sign(&o, &genesis, &seal));
    return o;
}

void solo_give(struct solo *s, const struct neb_order *o)
{
    solo_event(s, (struct neb_event){.type = NEB_EV_OPERATOR, .order = o});
    solo_run(s, 2000);
}

void deliver_to(struct solo *from, struct solo *const to[NEB_SITES_MAX])
{
    struct neb_buf b = from->letters;
    neb__buf_init(&from->letters, 1 << 20);
    for (size_t at = 0; at < b.len; at += 8 + neb__get32(b.data + at)) {
        struct solo *s = to[neb__get32(b.data + at + 4) % NEB_SITES_MAX];
        if (s)
            solo_event(s, (struct neb_event){.type = NEB_EV_FRAME,
                                             .site = (uint16_t)from->self,
                                             .bytes = b.data + at + 8,
                                             .length = neb__get32(b.data + at)});
    }
    neb__buf_free(&b);
}

void deliver(struct solo *from)
{
    struct solo *to[NEB_SITES_MAX] = {NULL};
    to[from->other->self] = from->other;
    deliver_to(from, to);
}

void pair_run(struct solo s[2], int64_t ms)
{
    for (int64_t end = s[0].now + ms; s[0].now < end;)
        for (int i = 0; i < 2; i++) {
            solo_run(&s[i], 100);
            deliver(&s[i]);
        }
}

void pair_start(struct solo s[2], struct neb_members roster)
{
    for (unsigned i = 0; i < 2; i++) solo_create(&s[i], i, roster);
    s[0].other = &s[1], s[1].other = &s[0], s[0].applies = s[1].applies = true;
    for (int i = 0; i < 2; i++)
        solo_event(&s[i], (struct neb_event){.type = NEB_EV_PEER_UP, .site = (uint16_t)!i});
    pair_run(s, 10000);
    assert_int_equal(solo_status(&s[0]).state, NEB_ROUND_LEAD);
}

void solo_frame(struct solo *s, struct neb_round_frame f)
{
    const struct neb_members *m = &s->r->roster;
    struct neb_buf b;
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    if (!f.epoch) f.epoch = m->epoch;
    if (!f.roster_id) f.roster_id = neb__core_roster_id(m);
    if (!f.view) f.view = s->r->view;
    assert_ok(neb__round_frame_encode(&f, &b));
    solo_event(s, (struct neb_event){.type = NEB_EV_FRAME, .site = f.from, .bytes = b.data, .length = b.len});
    neb__buf_free(&b);
}
