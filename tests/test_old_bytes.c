/* test_old_bytes.c: the ledger's bytes are those of version 0.1, and the round protocol's those of its version 4,
 * which version 5 has, too.
 *
 * Structs with another number in every field are encoded: the bytes must be the recorded ones
 * (tests/data/version-0.1/round.txt), so no field has moved. Decoded and encoded again they must be the same. Numbers that
 * travel or lie on disk without an encoder of their own (kinds of messages, ids of rungs) stand there as well.
 * `test_old_bytes --write` prints the file. */
#include "check.h"
#include "recorded.h"

#include "base/buf.h"
#include "base/mem.h"
#include "codec/codec.h"
#include "round/frame.h"
#include "round/record.h"
#include "round/round.h"
#include "run/session.h"

#include <stdio.h>
#include <string.h>

static void fill(void *p, size_t n, uint8_t first)
{
    for (size_t i = 0; i < n; i++) ((uint8_t *)p)[i] = (uint8_t)(first + 3 * i);
}

static struct neb_hash hash(uint8_t first)
{
    struct neb_hash h;
    fill(h.b, sizeof h.b, first);
    return h;
}

static const struct neb_members roster = {
    .epoch = 0x11121314, .members = 0xf1, .voters = 0x71, .trains = 0x31, .heavy = 4};

static struct neb_order order(uint8_t op)
{
    struct neb_order o = {.op = op,
                          .signer = NEB_BY_OPERATOR,
                          .site = 5,
                          .flags = 0x21222324,
                          .value = 0x3132333435363738,
                          .epoch = 0x41424344,
                          .index = 0x5152535455565758,
                          .head = hash(0x60),
                          .roster = roster};
    fill(o.signature, sizeof o.signature, 0x70);
    return o;
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
static struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];

static struct neb_round_frame frame(uint8_t type)
{
    static const uint8_t blob[] = {3, 0, 0, 0, 'a', 'b', 'c', 1, 0, 0, 0, 'd'};
    struct neb_round_frame f = {.type = type,
                                .from = 6,
                                .epoch = 0x01020304,
                                .lapse = 0x05060708,
                                .roster_id = 0x1112131415161718,
                                .view = 0x2122232425262728,
                                .commit = 0x3132333435363738,
                                .nonce = 0x4142434445464748,
                                .number = 0x5152535455565758,
                                .normal = 0x6162636465666768,
                                .head = 0x7172737475767778,
                                .start = 0x8182838485868788,
                                .applied = 0x9192939495969798,
                                .hash = hash(1),
                                .root = hash(2),
                                .phase = 2,
                                .flags = 5,
                                .order = order(NEB_OP_FORCE),
                                .lapses = {[0] = 7, [3] = 0xa1a2a3a4, [63] = 9},
                                .items = 2,
                                .roots = 2,
                                .records = 2,
                                .item = items,
                                .trusted = {{0xb1b2b3b4b5b6b7b8, hash(3), 0xc1}, {0xd1, hash(4), 0xe1}},
                                .cert = certs,
                                .certs = 2,
                                .blob = blob,
                                .blob_length = sizeof blob};
    fill(f.signature, sizeof f.signature, 0x80);
    f.words = 1;
    f.word[0] = (struct neb_round_frame_word){.site = 3, .lapse = 0x0102};
    fill(f.word[0].signature, NEB_SEAL_SIZE, 0xa0);
    f.saids = 2;
    for (uint8_t i = 0; i < 2; i++) {
        f.said[i] = (struct neb_said){.kind = i ? NEB_SAID_VOTES : NEB_SAID_HOLDS,
                                      .site = (uint8_t)(2 + i),
                                      .epoch = 0x11121314,
                                      .life = 0x21222324,
                                      .view = 0x3132333435363738,
                                      .normal = 0x3132333435363738,
                                      .index = 0x5152535455565758,
                                      .hash = hash(7),
                                      .lapses = {2, {{1, 0x0102}, {2, 0x0304}}}};
        if (i) f.said[i].more = hash(8);
        fill(f.said[i].signature, NEB_SEAL_SIZE, (uint8_t)(0xb0 + i));
    }
    f.said[1].kind = NEB_SAID_HOLDS; /* of one place, for the certificates */
    assert_true(neb__certificate_add(&f.proof, &f.said[0]) && neb__certificate_add(&f.proof, &f.said[1]));
    assert_true(neb__certificate_add(&f.prepared, &f.said[1]));
    f.said[1].kind = NEB_SAID_VOTES;
    for (uint8_t i = 0; i < 2; i++) {
        items[i] = (struct neb_round_frame_item){hash((uint8_t)(5 + i)), 0xf1f2f3f4f5f6f7f8 + i};
        certs[i] = (struct neb_round_frame_cert){.root = i, .site = (uint16_t)(8 + i)};
        fill(certs[i].signature, sizeof certs[i].signature, (uint8_t)(0x90 + i));
    }
    return f;
}

static void check_frames(void)
{
    for (uint8_t type = NEB_ROUND_FRAME_HELLO; type <= NEB_ROUND_FRAME_GUILT; type++) {
        char name[40];
        struct neb_round_frame f = frame(type), g;
        struct neb_buf b, again;
        neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
        neb__buf_init(&again, NEB_ROUND_FRAME_MAX);
        snprintf(name, sizeof name, "frame-%u", type);
        assert_ok(neb__round_frame_encode(&f, &b));
        recorded_is(name, b.data, b.len);
        assert_ok(neb__round_frame_decode(b.data, b.len, items, certs, &g));
        assert_ok(neb__round_frame_encode(&g, &again));
        recorded_is(name, again.data, again.len);
        neb__buf_free(&again);
        neb__buf_free(&b);
    }
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static void check_record(const char *name, const struct neb_record *r)
{
    struct neb_record *s;
    struct neb_buf b, again;
    neb__buf_init(&b, NEB_RECORD_MAX);
    neb__buf_init(&again, NEB_RECORD_MAX);
    assert_ok(neb__record_encode(r, &b));
    recorded_is(name, b.data, b.len);
    assert_ok(neb__record_decode(b.data, b.len, &s));
    assert_ok(neb__record_encode(s, &again));
    recorded_is(name, again.data, again.len);
    neb__free(s);
    neb__buf_free(&again);
    neb__buf_free(&b);
}

static struct neb_record *record(uint8_t type, uint32_t named)
{
    struct neb_record *r = neb__record_new(named);
    assert_non_null(r);
    r->type = type;
    r->epoch = 0x01020304;
    r->view = 0x1112131415161718;
    r->index = 0x2122232425262728;
    r->prev = hash(0x20);
    r->c0 = 0x31323334;
    r->c1 = 0x41424344;
    r->v = 0x5152535455565758;
    r->mode = NEB_MODE_AVERAGE;
    r->eta = 0x61626364;
    r->mu = 0x71727374;
    r->owner = 7;
    r->result_length = 0x81828384;
    r->result = hash(0x30);
    r->cls = NEB_SPARSE;
    r->roster = roster;
    r->tokens = type == NEB_RECORD_CLASS ? NEB_SPARSE : 0x9192939495969798;
    for (uint8_t i = 0; i < named; i++)
        r->update[i] = (struct neb_named){.site = (uint16_t)(3 + 2 * i),
                                          .reject = NEB_REJECT_NORM,
                                          .k = 0xa1a2a3a4a5a6a7a8 + i,
                                          .b = 0xb1b2b3b4b5b6b7b8,
                                          .weight = 0xc1c2c3c4,
                                          .tau = 0xd1d2d3d4,
                                          .length = 0xe1e2e3e4,
                                          .tokens = 0xf1f2f3f4f5f6f7f8,
                                          .hash = hash((uint8_t)(0x40 + i))};
    return r;
}

static void check_records(void)
{
    for (uint8_t type = NEB_RECORD_ROUND; type <= NEB_RECORD_CLASS; type++)
        for (int ordered = 0; ordered < 2; ordered++) {
            bool must = type == NEB_RECORD_FORCED || type == NEB_RECORD_ORDER;
            bool may = must || type == NEB_RECORD_ROSTER || type == NEB_RECORD_END;
            char name[40];
            if (ordered ? !may : must) continue;
            struct neb_record *r = record(type, type == NEB_RECORD_ROUND ? 2 : 0);
            r->ordered = ordered;
            if (r->order) *r->order = order(NEB_OP_END);
            snprintf(name, sizeof name, "record-%u%s", type, ordered ? "-ordered" : "");
            check_record(name, r);
            neb__free(r);
        }
}

/* ---- updates, orders, the mark ----------------------------------------------------------------------------------- */

static neb_status sum_as_signature(void *arg, const char *purpose, const void *p, size_t n,
                                   uint8_t out[NEB_SEAL_SIZE])
{
    struct neb_hash h;
    struct neb_buf b;
    (void)arg;
    neb__buf_init(&b, 4096);
    assert_ok(neb__buf_append(&b, purpose, strlen(purpose)));
    assert_ok(neb__buf_append(&b, p, n));
    assert_ok(neb__hash(b.data, b.len, &h));
    neb__buf_free(&b);
    memcpy(out, h.b, NEB_HASH_SIZE);
    memcpy(out + NEB_HASH_SIZE, h.b, NEB_HASH_SIZE);
    return NEB_OK;
}

/* The signature is a hash of what is to be signed: that stays the same, too. */
static const struct neb_seal seal = {.sign = sum_as_signature};

static void check_updates(void)
{
    static const uint8_t code[] = {'c', 'o', 'd', 'e'};
    const struct neb_hash genesis = hash(0x50);
    for (uint8_t kind = NEB_UPDATE_DELTA; kind <= NEB_UPDATE_RESULT; kind++) {
        char name[40];
        uint8_t bytes[NEB_UPDATE_HEADER_SIZE + sizeof code];
        struct neb_update_header p = {.site = 0x0d,
                                      .kind = kind,
                                      .rung = 0x0e,
                                      .c0 = 0x11121314,
                                      .c1 = 0x21222324,
                                      .k = 0x3132333435363738,
                                      .b = 0x4142434445464748,
                                      .tau = 0x51525354,
                                      .weight = 0x61626364,
                                      .tokens = 0x7172737475767778,
                                      .epoch = 0x81828384,
                                      .length = sizeof code,
                                      .cls = NEB_SPARSE},
                                 q;
        assert_ok(neb__update_header_sign(&p, code, &genesis, &seal));
        memcpy(bytes + NEB_UPDATE_HEADER_SIZE, code, sizeof code);
        snprintf(name, sizeof name, "update-%u", kind);
        neb__update_header_put(&p, bytes);
        recorded_is(name, bytes, sizeof bytes);
        assert_ok(neb__update_header_get(bytes, sizeof bytes, &q));
        memset(bytes, 0, NEB_UPDATE_HEADER_SIZE);
        neb__update_header_put(&q, bytes);
        recorded_is(name, bytes, sizeof bytes);
    }
}

static void check_orders(void)
{
    const struct neb_hash genesis = hash(0x50);
    for (uint8_t op = NEB_OP_ADMIT; op <= NEB_OP_BOUND; op++) {
        char name[40];
        uint8_t bytes[NEB_ORDER_MAX];
        struct neb_order o = order(op), p;
        struct neb_reader in = {bytes, NEB_ORDER_SIZE, false};
        assert_ok(neb__order_sign(&o, &genesis, &seal));
        snprintf(name, sizeof name, "order-%u", op);
        assert_int_equal(neb__order_put(&o, bytes), NEB_ORDER_SIZE);
        recorded_is(name, bytes, NEB_ORDER_SIZE);
        assert_true(neb__order_get(&in, &p));
        assert_int_equal(neb__order_put(&p, bytes), NEB_ORDER_SIZE);
        recorded_is(name, bytes, NEB_ORDER_SIZE);
    }
}

static void check_mark(void)
{
    struct neb_buf b;
    struct neb_hash cell;
    neb__buf_init(&b, NEB_MARK_MAX);
    assert_ok(neb__round_first_mark(&b));
    recorded_is("first-mark", b.data, b.len);
    neb__buf_free(&b);
    neb__round_cell_name(0x01020304, &cell);
    recorded_is("cell-name", cell.b, sizeof cell.b);
}

/* ---- numbers without an encoder ---------------------------------------------------------------------------------- */

static void check_numbers(void)
{
    const uint8_t messages[] = {NEB_MSG_FRAME, NEB_MSG_UPDATE,   NEB_MSG_GET,
                                NEB_MSG_NONE,  NEB_MSG_GET_CELL, NEB_MSG_CELL,
                                NEB_MSG_MODEL, NEB_MSG_STATUS,   NEB_MSG_COMING};
    const uint8_t records[] = {NEB_RECORD_ROUND,  NEB_RECORD_ROSTER, NEB_RECORD_END,  NEB_RECORD_FINAL,
                               NEB_RECORD_FORCED, NEB_RECORD_ORDER,  NEB_RECORD_CLASS};
    const uint8_t frames[] = {NEB_ROUND_FRAME_HELLO,  NEB_ROUND_FRAME_HELLO_OK, NEB_ROUND_FRAME_ASK,
                              NEB_ROUND_FRAME_ASK_OK, NEB_ROUND_FRAME_ELECT,    NEB_ROUND_FRAME_VOTE,
                              NEB_ROUND_FRAME_PING,   NEB_ROUND_FRAME_REPORT,   NEB_ROUND_FRAME_GETLOG,
                              NEB_ROUND_FRAME_LOG,    NEB_ROUND_FRAME_REQUEST,  NEB_ROUND_FRAME_GOODBYE,
                              NEB_ROUND_FRAME_FORCE};
    const uint8_t orders[] = {NEB_OP_ADMIT,    NEB_OP_EVICT, NEB_OP_LEAVE,  NEB_OP_FORCE, NEB_OP_ADOPT,
                              NEB_OP_SURVIVOR, NEB_OP_END,   NEB_OP_BUDGET, NEB_OP_BOUND};
    const uint8_t flags[] = {NEB_FLAG_INTACT,  NEB_FLAG_FORGOT, NEB_FLAG_CONTRIBUTES, NEB_FLAG_CLEAN,
                             NEB_FLAG_WHOLE,   NEB_FLAG_NORMAL, NEB_FLAG_PROOF,       NEB_FLAG_DENSE,
                             NEB_FLAG_HAS_ALL, NEB_FLAG_ROOTS};
    const uint8_t rejects[] = {NEB_REJECT_NONE, NEB_REJECT_NONFINITE, NEB_REJECT_NORM, NEB_REJECT_SIZE};
    recorded_is("message-kinds", messages, sizeof messages);
    recorded_is("record-types", records, sizeof records);
    recorded_is("frame-types", frames, sizeof frames);
    recorded_is("order-ops", orders, sizeof orders);
    recorded_is("frame-flags", flags, sizeof flags);
    recorded_is("rejects", rejects, sizeof rejects);
    for (int i = 0; i < neb__rung_count; i++) {
        char name[40];
        snprintf(name, sizeof name, "rung-%s", neb__rung_table[i].name);
        recorded_is(name, &neb__rung_table[i].id, 1);
    }
}

static void all(void)
{
    check_frames();
    check_records();
    check_updates();
    check_orders();
    check_mark();
    check_numbers();
}

static void bytes_are_the_recorded_ones(void **state)
{
    (void)state;
    recorded_open(NEB_TEST_DATA "/version-0.1/round.txt");
    all();
    recorded_close();
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_the_recorded_ones)};
    if (argc == 2 && !strcmp(argv[1], "--write")) {
        recorded_write();
        all();
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
