/* fuzz_talk.c: a talk with a running core of the round protocol. The first byte says which site it is (a leader or a
 * follower), then, again and again:
 *
 *     u8 op & 1: time passes; else u8 site, u16 length, a frame (its sender and roster are made to fit if op & 2)
 *
 * Signatures hold when their first byte is even: a core must stay sound in its memory whatever members sign. */
#include "base/bytes.h"
#include "base/mem.h"
#include "round/frame.h"
#include "round/round.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CELLS = 4, ROSTER_AT = 8, HEAD = 36, TALK_MAX = 400, ACTS_MAX = 20000 };

static neb_status sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    (void)arg, (void)purpose, (void)p, (void)n;
    memset(out, 2, NEB_SEAL_SIZE);
    return NEB_OK;
}

static bool verify(void *arg, unsigned signer, const char *purpose, const void *p, size_t n,
                   const uint8_t signature[NEB_SEAL_SIZE])
{
    (void)arg, (void)signer, (void)purpose, (void)p, (void)n;
    return !(signature[0] & 1);
}

struct talk {
    struct neb_round *core;
    uint16_t self;
    int64_t now;
    uint8_t roster[8]; /* as the core's own frames name it */
    struct neb_action asked[64];
    int asked_n, acts;
};

static void feed(struct talk *t, struct neb_event ev)
{
    struct neb_action a;
    ev.now = t->now;
    if (neb__round_event(t->core, &ev) != NEB_OK) abort();
    while (neb__round_next(t->core, &a)) {
        if (++t->acts > ACTS_MAX) abort(); /* a core that never comes to rest */
        if (a.type == NEB_ACT_SEND && a.length >= HEAD) memcpy(t->roster, a.bytes + ROSTER_AT, 8);
        bool asks = a.type == NEB_ACT_WRITE || a.type == NEB_ACT_CAPTURE || a.type == NEB_ACT_FETCH ||
                    a.type == NEB_ACT_APPLY || a.type == NEB_ACT_ROOT;
        if (asks && t->asked_n < (int)(sizeof t->asked / sizeof *t->asked)) t->asked[t->asked_n++] = a;
    }
}

/* An update that its name tells all about: site, number, first cell, version. */
static struct neb_update_header update_of(const struct neb_hash *h)
{
    uint32_t c0 = h->b[3] % CELLS / 2 * 2;
    return (struct neb_update_header){.site = h->b[0] % 4,
                                      .c0 = c0,
                                      .c1 = c0 + 2,
                                      .k = (uint64_t)h->b[1] + 256 * h->b[2],
                                      .b = h->b[4],
                                      .tau = 1,
                                      .weight = 10,
                                      .tokens = 1000,
                                      .epoch = 1,
                                      .length = 4};
}

static void captured(struct talk *t, const struct neb_action *a)
{
    struct neb_hash h = {
        {(uint8_t)t->self, (uint8_t)a->k, (uint8_t)(a->k >> 8), (uint8_t)a->c0, (uint8_t)a->version}};
    struct neb_update_header p = update_of(&h);
    p.cls = a->cls;
    feed(t, (struct neb_event){.type = NEB_EV_CAPTURED, .update = &p, .hash = h, .norm = 1});
}

/* What a member signed may be anything; a name that the driver could not make an update of is one nobody has. */
static void fetched(struct talk *t, const struct neb_action *a)
{
    struct neb_update_header p = update_of(&a->hash);
    struct neb_event ev = {.type = NEB_EV_NO_UPDATE, .site = a->site, .hash = a->hash};
    if (p.k) ev.type = NEB_EV_UPDATE, ev.update = &p, ev.norm = 1;
    feed(t, ev);
}

static void answer(struct talk *t)
{
    for (int i = 0; i < t->asked_n; i++) {
        const struct neb_action a = t->asked[i];
        switch (a.type) {
        case NEB_ACT_WRITE: feed(t, (struct neb_event){.type = NEB_EV_WRITTEN, .id = a.id}); break;
        case NEB_ACT_CAPTURE: captured(t, &a); break;
        case NEB_ACT_FETCH: fetched(t, &a); break;
        case NEB_ACT_APPLY: feed(t, (struct neb_event){.type = NEB_EV_APPLIED, .index = a.index}); break;
        default: feed(t, (struct neb_event){.type = NEB_EV_ROOT, .index = a.index, .root = {{7}}}); break;
        }
    }
    t->asked_n = 0;
}

static void hear(struct talk *t, uint8_t op, struct neb_reader *r)
{
    static uint8_t bytes[NEB_ROUND_FRAME_MAX];
    uint16_t site = (uint16_t)((t->self + 1 + neb__read8(r) % 3) % 4), n = neb__read16(r);
    if (n > r->left) n = (uint16_t)r->left;
    const uint8_t *p = neb__read(r, n);
    if (!p) return;
    memcpy(bytes, p, n);
    if ((op & 2) && n >= HEAD) {
        neb__put16(bytes + 2, site);
        memcpy(bytes + ROSTER_AT, t->roster, 8);
    }
    feed(t, (struct neb_event){.type = NEB_EV_FRAME, .site = site, .bytes = bytes, .length = n});
}

static void talk(uint16_t self, const uint8_t *data, size_t size)
{
    static const uint64_t none[CELLS];
    static const struct neb_boot_update open[CELLS];
    const struct neb_round_config cfg = {
        .self = self,
        .genesis = {{1}},
        .roster = {.epoch = 1, .members = 15, .voters = 7, .trains = 3, .heavy = NEB_NO_SITE},
        .cells = CELLS,
        .fragments = 2,
        .token_target = 1 << 20,
        .promote = true,
        .seal = {.sign = sign, .verify = verify}};
    struct neb_buf mark;
    neb__buf_init(&mark, NEB_MARK_MAX);
    if (neb__round_first_mark(&mark) != NEB_OK) abort();
    const struct neb_round_boot boot = {.mark = mark.data,
                                        .mark_length = mark.len,
                                        .applied = none,
                                        .merged = none,
                                        .open = open,
                                        .work = none};
    struct talk t = {.self = self, .now = 1000};
    struct neb_reader r = {data, size, false};
    if (neb__round_create(&cfg, &boot, &t.core) != NEB_OK) abort();
    for (uint16_t i = 0; i < 4; i++) feed(&t, (struct neb_event){.type = NEB_EV_PEER_UP, .site = i});
    for (int i = 0; i < TALK_MAX && r.left; i++) {
        uint8_t op = neb__read8(&r);
        t.acts = 0;
        if (op & 1) {
            t.now += 8 * (int64_t)op;
            feed(&t, (struct neb_event){.type = NEB_EV_STEP, .count = op});
            feed(&t, (struct neb_event){.type = NEB_EV_TICK});
        } else {
            hear(&t, op, &r);
        }
        answer(&t);
    }
    neb__round_destroy(t.core);
    neb__buf_free(&mark);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    if (!size || size > 1 << 16) return 0;
    talk(data[0] & 1 ? 2 : 0, data + 1, size - 1);
    if (neb__mem_held() != held) abort();
    return 0;
}
