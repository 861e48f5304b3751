/* test_base.c: buffers, bytes, options, files, hashes, Philox, the failing allocator. */
#include "check.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/printable.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void buffer_never_exceeds_its_maximum(void **state)
{
    (void)state;
    struct neb_buf b;
    neb__buf_init(&b, 1000);
    uint8_t bytes[400] = {7};
    assert_ok(neb__buf_append(&b, bytes, 400));
    assert_ok(neb__buf_append(&b, bytes, 400));
    assert_status(neb__buf_append(&b, bytes, 201), NEB_ERR_NOSPACE);
    assert_int_equal(b.len, 800);
    assert_ok(neb__buf_append(&b, bytes, 200));
    assert_int_equal(b.len, 1000);
    assert_true(b.cap <= 1000);
    assert_status(neb__buf_reserve(&b, SIZE_MAX), NEB_ERR_NOSPACE);
    neb__buf_free(&b);
}

static void reader_stops_at_the_end(void **state)
{
    (void)state;
    uint8_t raw[7] = {1, 2, 3, 4, 5, 6, 7};
    struct neb_reader r = {raw, sizeof raw, false};
    assert_int_equal(neb__read32(&r), 0x04030201);
    assert_false(r.bad);
    assert_int_equal(neb__read32(&r), 0);
    assert_true(r.bad);
    assert_int_equal(neb__read8(&r), 0);
    uint8_t out[8];
    neb__put64(out, 0x1122334455667788u);
    assert_true(neb__get64(out) == 0x1122334455667788u && out[0] == 0x88);
}

struct cfg {
    int64_t steps, cache;
    double lr, wait, rate, loss;
    bool quick;
    char *out;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct cfg, steps, NEB_OPT_INT, "100", "steps", "how long"),
    NEB_OPT(struct cfg, cache, NEB_OPT_BYTES, "64KiB", NULL, "cache"),
    NEB_OPT(struct cfg, lr, NEB_OPT_REAL, "1e-3", NULL, "learning rate"),
    NEB_OPT(struct cfg, wait, NEB_OPT_TIME, "250ms", NULL, "patience"),
    NEB_OPT(struct cfg, rate, NEB_OPT_RATE, "10mbit", NULL, "line"),
    NEB_OPT(struct cfg, loss, NEB_OPT_SHARE, "0.5%", NULL, "packets lost"),
    NEB_OPT(struct cfg, quick, NEB_OPT_BOOL, "no", NULL, "less"),
    NEB_OPT(struct cfg, out, NEB_OPT_TEXT, "", NULL, "where to"),
    NEB_OPT_END,
};

static void options_from_defaults_and_arguments(void **state)
{
    (void)state;
    struct cfg c;
    assert_ok(neb__opts_init(table, &c));
    assert_int_equal(c.cache, 65536);
    assert_true(c.wait == 0.25 && c.rate == 1e7 && c.loss == 0.005 && !c.out);
    char *argv[] = {(char *)"a",      (char *)"--steps=7", (char *)"--out", (char *)"x",  (char *)"--quick",
                    (char *)"--wait", (char *)"2m",        (char *)"--",    (char *)"--b"};
    int n;
    assert_ok(neb__opts_args(table, &c, 9, argv, &n));
    assert_int_equal(n, 2);
    assert_string_equal(argv[1], "--b");
    assert_true(c.steps == 7 && c.quick && c.wait == 120);
    assert_string_equal(c.out, "x");
    assert_ok(neb__opts_set(table, &c, "lr", "0.5"));

    check_log_quiet();
    assert_status(neb__opts_set(table, &c, "stpes", "1"), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "did you mean 'steps'"));
    assert_status(neb__opts_set(table, &c, "steps", "1x"), NEB_ERR_CONFIG);
    assert_status(neb__opts_set(table, &c, "lr", "nan"), NEB_ERR_CONFIG);
    assert_status(neb__opts_set(table, &c, "cache", "-1"), NEB_ERR_CONFIG);
    assert_status(neb__opts_set(table, &c, "cache", "1e30"), NEB_ERR_CONFIG);
    assert_status(neb__opts_set(table, &c, "loss", "101%"), NEB_ERR_CONFIG);
    assert_status(neb__opts_set(table, &c, "loss", "-0.1"), NEB_ERR_CONFIG);
    check_log_restore();
    assert_true(c.steps == 7 && c.lr == 0.5 && c.cache == 65536);
    neb__opts_free(table, &c);
}

struct limited {
    int64_t count, bits, room;
    double share, heat, open, rate, wait;
    char *kind, *role;
};

static const struct neb_opt limits[] = {
    NEB_OPT(struct limited, count, NEB_OPT_INT, "1", NULL, "how many", NEB_OPT_RANGE(1, 1e12)),
    NEB_OPT(struct limited, bits, NEB_OPT_INT, "8", NULL, "a value's", NEB_OPT_CHOICE("2", "4", "8")),
    NEB_OPT(struct limited, room, NEB_OPT_BYTES, "0", NULL, "to wait in", NEB_OPT_ZERO_OR(1536, HUGE_VAL)),
    NEB_OPT(struct limited, share, NEB_OPT_SHARE, "15%", NULL, "masked", NEB_OPT_RANGE(0.01, 0.9)),
    NEB_OPT(struct limited, heat, NEB_OPT_REAL, "1", NULL, "", NEB_OPT_ABOVE(0, 100)),
    NEB_OPT(struct limited, open, NEB_OPT_REAL, "1", NULL, "", NEB_OPT_ABOVE(0, HUGE_VAL)),
    NEB_OPT(struct limited, rate, NEB_OPT_RATE, "0", NULL, "", NEB_OPT_ZERO_OR(1e3, 1e12)),
    NEB_OPT(struct limited, wait, NEB_OPT_TIME, "0", NULL, "", NEB_OPT_BELOW(0, 60)),
    NEB_OPT(struct limited, kind, NEB_OPT_TEXT, "tea", NULL, "of drink",
            NEB_OPT_CHOICE("tea", "coffee", "milk")),
    NEB_OPT_AS(struct limited, role, "part", NEB_OPT_TEXT, "", NULL, "", NEB_OPT_CHOICE("guest", "host")),
    NEB_OPT_END,
};

/* A wrong value is answered with what is allowed, the bounds themselves included or not, and changes nothing. */
static void choices_and_ranges_are_checked_where_a_value_is_set(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"count", "0", "option 'count': '0' is not a whole number from 1 to 1e12"},
        {"count", "1000000000001", "from 1 to 1e12"},
        {"bits", "3", "option 'bits': '3' is not 2, 4 or 8"},
        {"room", "1535", "is not a size at least 1536 bytes, or 0"},
        {"share", "0.91", "is not a share from 0.01 to 0.9"},
        {"share", "nan", "is not a share from 0.01 to 0.9"},
        {"heat", "0", "is not a number above 0 and at most 100"},
        {"heat", "100.5", "above 0 and at most 100"},
        {"open", "0", "is not a number above 0"},
        {"open", "inf", "is not a number above 0"},
        {"open", "nan", "is not a number above 0"},
        {"rate", "1bit", "is not a rate from 1kbit to 1000gbit, or 0"},
        {"wait", "1m", "is not a time at least 0 s and below 60 s"},
        {"kind", "Tea", "'Tea' is not tea, coffee or milk"},
        {"part", "boss", "option 'part': 'boss' is not guest or host"},
    };
    static const char *const right[][2] = {{"count", "1000000000000"}, {"bits", "4"},    {"room", "2k"},
                                           {"share", "90%"},           {"heat", "100"},  {"open", "1e300"},
                                           {"rate", "1gbit"},          {"kind", "milk"}, {"part", ""}};
    struct limited c, was;
    assert_ok(neb__opts_init(limits, &c));
    assert_ok(neb__opts_check(limits, &c));
    was = c;
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_status(neb__opts_set(limits, &c, wrong[i][0], wrong[i][1]), NEB_ERR_CONFIG);
        if (!strstr(neb_last_error(), wrong[i][2]))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i][2]);
        assert_memory_equal(&c, &was, sizeof c);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        assert_ok(neb__opts_set(limits, &c, right[i][0], right[i][1]));
    assert_int_equal(neb__opts_choice(limits, &c, "kind"), 2);
    assert_int_equal(neb__opts_choice(limits, &c, "bits"), 1);
    assert_int_equal(neb__opts_choice(limits, &c, "part"), -1);
    assert_ok(neb__opts_check(limits, &c));
    c.heat = NAN; /* as code may set it */
    assert_status(neb__opts_check(limits, &c), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "option 'heat': 'nan' is not a number above 0"));
    check_log_restore();
    neb__opts_free(limits, &c);
}

static void help_shows_choices_and_ranges(void **state)
{
    (void)state;
    char text[2000] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    neb__opts_help(limits, f);
    fclose(f);
    assert_non_null(strstr(text, "how many (default 1; from 1 to 1e12)\n"));
    assert_non_null(strstr(text, "tea, coffee or milk: of drink (default tea)\n"));
    assert_non_null(strstr(text, "to wait in (default 0; at least 1536 bytes, or 0)\n"));
    assert_non_null(strstr(text, "--part                 guest or host\n"));
}

static void files_are_replaced_whole(void **state)
{
    (void)state;
    char dir[256], path[300];
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/a/b", dir);
    assert_ok(neb__file_make_dir(path, 0755));
    snprintf(path, sizeof path, "%s/a/b/key", dir);
    assert_ok(neb__file_replace(path, "one", 3, 0600));
    assert_ok(neb__file_replace(path, "three", 5, 0600));
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    struct neb_buf b;
    neb__buf_init(&b, 5);
    assert_ok(neb__file_read(path, &b));
    assert_memory_equal(b.data, "three", 5);
    neb__buf_free(&b);

    check_log_quiet();
    neb__buf_init(&b, 4);
    assert_status(neb__file_read(path, &b), NEB_ERR_NOSPACE);
    neb__buf_free(&b);
    assert_status(neb__file_replace("/nonexistent/x", "a", 1, 0600), NEB_ERR_NOTFOUND);
    assert_status(neb__file_read("/nonexistent/x", &b), NEB_ERR_NOTFOUND);
    check_log_restore();
    check_remove_dir(dir);
}

static void sha256_and_philox_known_answers(void **state)
{
    (void)state;
    struct neb_hash h;
    char hex[65];
    assert_ok(neb__hash("abc", 3, &h));
    neb__hash_hex(&h, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    struct neb_hasher s;
    struct neb_hash g;
    assert_ok(neb__hasher_init(&s));
    assert_ok(neb__hasher_update(&s, "a", 1));
    assert_ok(neb__hasher_update(&s, "bc", 2));
    assert_ok(neb__hasher_final(&s, &g));
    assert_true(neb__hash_equal(&h, &g));

    /* from Random123's known-answer file */
    uint32_t out[4], zero[4] = {0}, zk[2] = {0};
    neb__philox(zero, zk, out);
    assert_true(out[0] == 0x6627e8d5 && out[1] == 0xe169c58d && out[2] == 0xbc57ac4c && out[3] == 0x9b00dbd8);
    uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, pk[2] = {0xa4093822, 0x299f31d0};
    neb__philox(pi, pk, out);
    assert_true(out[0] == 0xd16cfe09 && out[1] == 0x94fdcceb && out[2] == 0x5001e420 && out[3] == 0x24126ea1);
}

static void normal_deviates_look_normal(void **state)
{
    (void)state;
    struct neb_rng r = {42};
    double sum = 0, square = 0;
    int n = 100000;
    for (int i = 0; i < n; i++) {
        double x = neb__rng_normal(&r);
        sum += x;
        square += x * x;
    }
    assert_true(fabs(sum / n) < 0.02 && fabs(square / n - 1) < 0.02);
    for (int i = 0; i < 1000; i++) assert_true(neb__rng_below(&r, 7) < 7);
}

static void chosen_allocation_fails_once(void **state)
{
    (void)state;
    int64_t held = neb__mem_held();
    neb__mem_fail_at(2);
    void *a = neb__malloc(8), *b = neb__malloc(8), *c = neb__malloc(8);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(neb__mem_held(), held + 2);
    neb__mem_fail_at(0);
    neb__free(a);
    neb__free(c);
    assert_int_equal(neb__mem_held(), held);
    assert_null(neb__calloc(SIZE_MAX / 2, 3));
}

static char logged[256];

static void sink(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
}

static void a_peer_cannot_forge_log_lines(void **state)
{
    (void)state;
    neb_log_set_sink(sink, NULL);
    neb_status status = neb__fail(NEB_ERR_PROTOCOL, "peer says '%s'", "x\n12:00 all is well\033[2J");
    assert_int_equal(status, NEB_ERR_PROTOCOL);
    assert_null(strpbrk(logged, "\n\033"));
    assert_null(strstr(logged, "NEB_ERR_PROTOCOL"));
    neb_log_set_level(NEB_LOG_DEBUG); /* with all details */
    (void)neb__fail(NEB_ERR_PROTOCOL, "peer says '%s'", "x");
    neb_log_set_level(NEB_LOG_INFO);
    neb_log_set_sink(NULL, NULL);
    assert_string_equal(logged, "peer says 'x' (NEB_ERR_PROTOCOL)");
    neb__error_prefix("layer %d", 3);
    assert_non_null(strstr(neb_last_error(), "layer 3: peer says"));
    assert_string_equal(neb_status_name((neb_status)-999), "NEB_ERR_?");
}

/* Control characters in any form, text that runs backwards and bytes that are not UTF-8 do not reach a terminal;
 * letters of any language do. */
static void text_from_outside_is_made_printable(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {{"a\033[2Jb\r\177", "a?[2Jb??"},
                 {"\xc2\x9b"
                  "31m",
                  "??31m"},
                 {"\x9b"
                  "31m",
                  "?31m"},
                 {"x\xe2\x80\xae"
                  "y",
                  "x???y"},
                 {"\xe2\x80", "??"},
                 {"\xc0\x9b\xed\xa0\x80\xf5", "??????"},
                 {"Zürich … 東京 🙂", "Zürich … 東京 🙂"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", cases[i].in);
        neb__text_clean(text);
        assert_string_equal(text, cases[i].out);
    }
    neb_log_set_sink(sink, NULL);
    neb__warn("refuses: %s", "\xc2\x9b"
                             "2J\033c");
    neb_log_set_sink(NULL, NULL);
    assert_string_equal(logged, "refuses: ??2J?c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_never_exceeds_its_maximum),
        cmocka_unit_test(reader_stops_at_the_end),
        cmocka_unit_test(options_from_defaults_and_arguments),
        cmocka_unit_test(choices_and_ranges_are_checked_where_a_value_is_set),
        cmocka_unit_test(help_shows_choices_and_ranges),
        cmocka_unit_test(files_are_replaced_whole),
        cmocka_unit_test(sha256_and_philox_known_answers),
        cmocka_unit_test(normal_deviates_look_normal),
        cmocka_unit_test(chosen_allocation_fails_once),
        cmocka_unit_test(a_peer_cannot_forge_log_lines),
        cmocka_unit_test(text_from_outside_is_made_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
