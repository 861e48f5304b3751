/* test_stage_message.c: what a stage takes from its neighbours at other sites. A message that is due is put together from its items;
 * one that is not due, or one byte too long, is refused with its first item too many, before it is stored. Sums that cannot be are
 * refused, and so are parameters that come twice, not at all, or from a site that does not have them. */
#include "check.h"
#include "split/stage_site.h"
#include "tensor/params.h"

#include <math.h>
#include <nebula/engine.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 40, ROWS = 6, USED = 5, STAGES = 3 };

static struct neb_stage_message a_run(void)
{
    return (struct neb_stage_message){.run = NEB_STAGE_TRAINS,
                                      .number = 3,
                                      .check = 77,
                                      .parts = 1,
                                      .part = {{ROWS, USED}},
                                      .width = WIDTH};
}

static struct neb_stage_inbox inbox(void)
{
    struct neb_stage_inbox in = {0};
    neb__buf_init(&in.bytes, (size_t)1 << 30);
    return in;
}

/* An item of a message in `of` items, of which `left` follow. */
static size_t an_item(uint8_t *out, const struct neb_stage_head *m, uint16_t left, const void *bytes,
                      size_t n)
{
    const struct neb_stage_item_head h = {*m, 5, false, false, left};
    neb__stage_head_write(&h, out);
    if (n) memcpy(out + NEB_STAGE_HEAD, bytes, n);
    return NEB_STAGE_HEAD + n;
}

static neb_status add(struct neb_stage_inbox *in, const struct neb_stage_due *due,
                      const struct neb_stage_head *m, uint16_t left, const void *bytes, size_t n, bool *whole)
{
    static uint8_t item[1 << 20];
    const uint8_t *found;
    size_t length = an_item(item, m, left, bytes, n), size;
    neb_status status = neb__stage_inbox_add(in, due, "b", item, length, &found, &size);
    if (whole) *whole = status == NEB_OK && found;
    return status;
}

static void a_run_crosses(void **state)
{
    (void)state;
    static const int bits[] = {32, 16, 8, 4};
    const struct neb_stage_message m = a_run();
    const struct neb_stage_due due = neb__stage_due_run(&m);
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = sinf((float)i);
    for (int k = 0; k < 4; k++) {
        struct neb_buf b;
        uint8_t item[8192];
        const uint8_t *found;
        size_t size;
        struct neb_stage_inbox in = inbox();
        neb__buf_init(&b, 4096);
        assert_ok(neb__stage_run_encode(&m, x, bits[k], &b));
        assert_true(b.len <= due.most);
        size_t n =
            an_item(item, &(struct neb_stage_head){NEB_STAGE_ITEM_RUN, false, 3, 77}, 0, b.data, b.len);
        assert_ok(neb__stage_inbox_add(&in, &due, "b", item, n, &found, &size));
        assert_ok(neb__stage_run_decode(&m, "b", found, size, y));
        for (int i = 0; i < USED * WIDTH; i++) assert_true(fabsf(x[i] - y[i]) < 0.3f);
        for (int i = USED * WIDTH; i < ROWS * WIDTH; i++) assert_true(y[i] == 0);
        check_log_quiet();
        assert_status(neb__stage_run_decode(&m, "b", found, size - 1, y), NEB_ERR_CORRUPT);
        check_log_restore();
        neb__buf_free(&b);
        neb__buf_free(&in.bytes);
    }
}

/* Where a peer would have a gigabyte collected, a stage stops at what is due. */
static void no_more_than_is_due(void **state)
{
    (void)state;
    static const uint8_t bytes[1 << 16];
    const struct neb_stage_head m = {.kind = NEB_STAGE_ITEM_OUTLINE};
    const struct neb_stage_due due = {.kind = NEB_STAGE_ITEM_OUTLINE, .most = 3 * NEB_STAGE_PIECE};
    struct neb_stage_inbox in = inbox();
    bool whole;
    check_log_quiet();
    assert_status(add(&in, &due, &m, 3, bytes, 100, NULL), NEB_ERR_CORRUPT); /* four items need more bytes */
    assert_int_equal(in.bytes.cap, 0);
    check_log_restore();

    const struct neb_stage_due small = {.kind = NEB_STAGE_ITEM_OUTLINE, .most = 1000, .pieces = 3};
    assert_ok(add(&in, &small, &m, 2, bytes, 600, &whole));
    assert_false(whole);
    check_log_quiet();
    assert_status(add(&in, &small, &m, 1, bytes, 401, &whole), NEB_ERR_CORRUPT);
    assert_int_equal(in.bytes.len, 600);
    check_log_restore();
    assert_ok(add(&in, &small, &m, 1, bytes, 400, &whole));
    assert_ok(add(&in, &small, &m, 0, bytes, 0, &whole));
    assert_true(whole);
    assert_ok(add(&in, &small, &m, 2, bytes, 1, &whole)); /* the next one */
    assert_false(whole);
    check_log_quiet();
    assert_status(add(&in, &small, &m, 2, bytes, 1, &whole), NEB_ERR_CORRUPT); /* one item twice */
    struct neb_stage_head other = m;
    other.number = 1;
    assert_status(add(&in, &small, &other, 1, bytes, 1, &whole), NEB_ERR_CORRUPT); /* items of two messages */
    check_log_restore();
    neb__buf_free(&in.bytes);
}

static void only_what_is_due(void **state)
{
    (void)state;
    const struct neb_stage_message m = a_run();
    const struct neb_stage_due due = neb__stage_due_run(&m);
    const struct neb_stage_head good = {NEB_STAGE_ITEM_RUN, false, 3, 77};
    const uint8_t byte = 1;
    struct neb_stage_inbox in = inbox();
    bool whole;
    check_log_quiet();
    for (int kind = 0; kind < 256; kind++) {
        struct neb_stage_head h = good;
        h.kind = (enum neb_stage_kind)kind;
        if (kind != NEB_STAGE_ITEM_RUN) assert_status(add(&in, &due, &h, 0, &byte, 1, NULL), NEB_ERR_CONFIG);
    }
    struct neb_stage_head number = good, check = good, bad = good;
    number.number = 4;
    check.check = 78;
    bad.bad = true;
    assert_status(add(&in, &due, &number, 0, &byte, 1, NULL), NEB_ERR_CONFIG);
    assert_status(add(&in, &due, &check, 0, &byte, 1, NULL), NEB_ERR_CONFIG);
    assert_status(add(&in, &due, &good, 1, &byte, 1, NULL), NEB_ERR_CORRUPT);
    assert_status(add(&in, &due, &bad, 0, &byte, 1, NULL), NEB_ERR_CORRUPT); /* nothing follows */
    check_log_restore();
    assert_ok(add(&in, &due, &bad, 0, NULL, 0, &whole));
    assert_true(whole && in.head.bad);
    const struct neb_stage_due end = {
        .kind = NEB_STAGE_ITEM_VALUES, .or_kind = NEB_STAGE_ITEM_END, .most = 8};
    assert_ok(add(&in, &end, &(struct neb_stage_head){.kind = NEB_STAGE_ITEM_END}, 0, NULL, 0, &whole));
    assert_ok(add(&in, &end, &(struct neb_stage_head){.kind = NEB_STAGE_ITEM_VALUES}, 0, &byte, 1, &whole));
    const uint8_t *found;
    size_t n;
    check_log_quiet();
    assert_status(neb__stage_inbox_add(&in, &end, "b", &byte, 1, &found, &n), NEB_ERR_CORRUPT);
    check_log_restore();
    neb__buf_free(&in.bytes);
}

static neb_status sums(const struct neb_stage_sums *of_last, double line, struct neb_stage_row *table,
                       struct neb_stage_sums *total)
{
    struct neb_stage_row sent[STAGES] = {{.sums = {.norm2 = -7}}, {.line_s = 0.25}};
    uint8_t bytes[sizeof sent];
    const size_t n = neb__stage_rows_size(STAGES, line != 0);
    memset(table, 0, STAGES * sizeof *table);
    table[0].sums = (struct neb_stage_sums){.norm2 = 1, .counts = {2}};
    sent[1].sums = (struct neb_stage_sums){.norm2 = 2, .loss = {1, -3}, .counts = {4}};
    sent[2] = (struct neb_stage_row){*of_last, line};
    neb__stage_rows_encode(sent, STAGES, line != 0, bytes);
    NEB_TRY(neb__stage_rows_decode("b", bytes, n, STAGES, line != 0, 1, STAGES, table));
    neb__stage_sums_total(table, STAGES, total);
    return NEB_OK;
}

static void sums_that_cannot_be(void **state)
{
    (void)state;
    struct neb_stage_row table[STAGES];
    struct neb_stage_sums v, good = {.norm2 = 4, .loss = {0.5}, .nonfinite = 1};
    assert_ok(sums(&good, 0, table, &v)); /* the row of a stage that is not due is not looked at */
    assert_true(v.norm2 == 7 && v.loss[0] == 1.5 && v.loss[1] == -3 && v.counts[0] == 6 && v.nonfinite == 1);
    assert_true(table[1].line_s == 0);
    assert_ok(sums(&good, 0.5, table, &v));
    assert_true(v.norm2 == 7 && table[1].line_s == 0.25 && table[2].line_s == 0.5);
    assert_ok(sums(&good, NAN, table, &v)); /* a time that is none is not known */
    assert_true(table[1].line_s == 0.25 && table[2].line_s == 0);
    assert_ok(sums(&good, -3, table, &v));
    assert_true(table[2].line_s == 0);
    v = (struct neb_stage_sums){.norm2 = INFINITY}; /* a step that is not finite: all skip it */
    assert_ok(sums(&v, 0, table, &v));
    assert_false(isfinite(v.norm2));
    const struct neb_stage_sums bad[] = {{.norm2 = -1e-9},    {.nonfinite = -1},
                                         {.nonfinite = NAN},  {.nonfinite = INFINITY},
                                         {.counts = {0, -1}}, {.counts = {0, 0, 0, NAN}}};
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_status(sums(&bad[i], 0, table, &v), NEB_ERR_CORRUPT);
    assert_status(
        neb__stage_rows_decode("b", (const uint8_t *)&good, sizeof good, STAGES, false, 1, STAGES, table),
        NEB_ERR_CORRUPT);
    check_log_restore();
}

/* ---- parameters on their way to the first site ------------------------------------------------------------- */

struct gather {
    neb_device *dev;
    neb_params *params;
    uint64_t got[3];
    float values[1024];
    struct neb_stage_whole whole;
};

static void open_gather(struct gather *g)
{
    static const char *const names[] = {"own", "second", "third"};
    memset(g, 0, sizeof *g);
    assert_ok(neb_device_open("cpu", &(struct neb_device_config){.threads = 1}, &g->dev));
    assert_ok(neb_params_create(&g->params));
    for (int i = 0; i < 3; i++) {
        neb_param *p = neb_params_add(
            g->params,
            &(struct neb_param_spec){.name = names[i], .ndim = 1, .shape = {100 + i}, .init = NEB_INIT_ZERO});
        p->elsewhere = i > 0;
    }
    assert_ok(neb_params_ready(g->params, g->dev, 1));
    g->whole = (struct neb_stage_whole){g->params, g->got, g->values};
}

static neb_status put(struct gather *g, uint32_t param, uint64_t at, uint64_t n)
{
    float values[200];
    for (uint64_t i = 0; i < 200; i++) values[i] = (float)(1000 * param + at + i);
    const struct neb_stage_chunk c = {.param = param, .at = at, .n = n};
    return neb__stage_whole_put(&g->whole, &c, values);
}

static void values_come_once(void **state)
{
    (void)state;
    struct gather g;
    open_gather(&g);
    assert_ok(put(&g, 1, 0, 60));
    assert_ok(put(&g, 2, 0, 102)); /* parameters may come in any order */
    check_log_quiet();
    assert_status(neb__stage_whole_check(&g.whole), NEB_ERR_CORRUPT); /* some are missing */
    assert_status(put(&g, 0, 0, 1), NEB_ERR_CORRUPT);                 /* the first site's own */
    assert_status(put(&g, 3, 0, 1), NEB_ERR_CORRUPT);                 /* of nobody */
    assert_status(put(&g, UINT32_MAX, 0, 1), NEB_ERR_CORRUPT);
    assert_status(put(&g, 1, 0, 60), NEB_ERR_CORRUPT); /* twice */
    assert_status(put(&g, 1, 61, 1), NEB_ERR_CORRUPT); /* one is left out */
    assert_status(put(&g, 1, 60, 42), NEB_ERR_CORRUPT);
    assert_status(put(&g, 1, 60, UINT64_MAX), NEB_ERR_CORRUPT);
    assert_status(put(&g, 2, 102, 1), NEB_ERR_CORRUPT);
    check_log_restore();
    assert_ok(put(&g, 1, 60, 41));
    assert_ok(neb__stage_whole_check(&g.whole));
    for (int p = 1; p < 3; p++)
        for (int i = 0; i < 100 + p; i++)
            assert_true(g.values[neb_param_offset(neb_params_at(g.params, p)) + i] == (float)(1000 * p + i));
    neb_params_destroy(g.params);
    neb_device_close(g.dev);
}

/* A message without a value would cost nothing of what a member may send. */
static void values_that_cannot_be(void **state)
{
    (void)state;
    const size_t head = NEB_STAGE_VALUES_HEAD, most = head + 4 * (size_t)NEB_STAGE_CHUNK;
    assert_ok(neb__stage_check_values("b", true, 0));
    assert_ok(neb__stage_check_values("b", false, head + 4));
    assert_ok(neb__stage_check_values("b", false, most));
    const size_t bad[] = {0, 1, head - 1, head, head + 1, head + 5, most + 4};
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_status(neb__stage_check_values("b", false, bad[i]), NEB_ERR_CORRUPT);
    assert_status(neb__stage_check_values("b", true, 1), NEB_ERR_CORRUPT);
    check_log_restore();
}

/* ---- what a folder says of its run ------------------------------------------------------------------------- */

static neb_status open_begun(const struct neb_job *job, struct neb_stage_place place, const char *text,
                             bool *third)
{
    static const volatile sig_atomic_t go_on = 0;
    struct neb_stage_site *s;
    char path[300];
    snprintf(path, sizeof path, "%s/stream.run", job->out);
    if (text) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        assert_int_equal(fclose(f), 0);
    }
    NEB_TRY(neb__stage_site_open_at(job, &place, &go_on, &s));
    *third = s->third;
    neb_status status = s->run_known ? neb__stage_write_run(s) : NEB_OK;
    neb__stage_site_close(s);
    return status;
}

static void a_run_goes_on_as_it_was_begun(void **state)
{
    (void)state;
    char dir[200];
    static char name[] = "a", full[] = "full", lora[] = "lora";
    struct neb_job job = {.n_sites = 2, .site = {{.name = name}, {.name = name}}};
    const struct neb_stage_place line = {.range = {0, 3}}, other = {.range = {0, 2}},
                                 ring = {.ring = true, .range = {0, 6}, .hole = {2, 4}},
                                 moved = {.ring = true, .range = {0, 6}, .hole = {1, 4}};
    bool third;
    check_make_dir(dir, sizeof dir);
    job.out = dir;
    job.peft.method = full;
    job.parallel.data = 1;
    assert_ok(open_begun(&job, line, "0123abcd\n", &third)); /* of a release that did not say the layers */
    assert_false(third);
    assert_ok(open_begun(&job, line, NULL, &third)); /* it says them now */
    check_log_quiet();
    assert_status(open_begun(&job, other, NULL, &third), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "was begun with layers 1 to 3 here"));
    assert_non_null(strstr(neb_last_error(), "say sites[].layers"));
    assert_status(open_begun(&job, ring, NULL, &third), NEB_ERR_VERSION);
    assert_status(open_begun(&job, ring, "0123abcd 2\n", &third), NEB_ERR_VERSION);
    assert_non_null(strstr(neb_last_error(), "finish it with that program"));
    check_log_restore();
    assert_ok(open_begun(&job, ring, "0123abcd 3\n", &third));
    assert_true(third);
    assert_ok(open_begun(&job, ring, NULL, &third));
    check_log_quiet();
    assert_status(open_begun(&job, moved, NULL, &third), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "layers 1 to 2 and 5 to 6 here"));
    job.peft.method = lora; /* the first site says what it wants */
    assert_status(open_begun(&job, line, "0123abcd\n", &third), NEB_ERR_VERSION);
    check_log_restore();
    assert_ok(open_begun(&job, line, "0123abcd 3 layers 1 to 3\n", &third));
    assert_true(third);
    check_remove_dir(dir);
}

/* An older release neither sets the third flag nor looks at it. */
static void the_head_says_the_version(void **state)
{
    (void)state;
    uint8_t item[NEB_STAGE_HEAD];
    struct neb_stage_item_head h = {.run = 5, .outlined = true, .third = true}, back;
    neb__stage_head_write(&h, item);
    assert_int_equal(item[5], 6);
    assert_true(neb__stage_head_read(item, sizeof item, &back));
    assert_true(back.outlined && back.third && !back.message.bad);
    item[5] = 2;
    assert_true(neb__stage_head_read(item, sizeof item, &back));
    assert_true(back.outlined && !back.third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_crosses),
        cmocka_unit_test(no_more_than_is_due),
        cmocka_unit_test(only_what_is_due),
        cmocka_unit_test(sums_that_cannot_be),
        cmocka_unit_test(values_come_once),
        cmocka_unit_test(values_that_cannot_be),
        cmocka_unit_test(a_run_goes_on_as_it_was_begun),
        cmocka_unit_test(the_head_says_the_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
