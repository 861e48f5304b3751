/* test_stream.c: streams of a session as a training loop sees them: order, credit, and the end from either
 * side. Nothing is lost or repeated when either process is killed at any moment.
 *
 * The kill test runs both ends as processes. Each "trains" by folding items into a running hash and keeps a
 * checkpoint (mark and hash) in a file, less often than items move, so every kill throws work away. At the
 * end the consumer's hash must be that of all items, once each, in order. */
#include "check.h"
#include "sites.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "run/stream.h"

#include <nebula/nebula.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ITEMS = 3000, EVERY = 37, KILLS = 8 };

static neb_session *open_session(const char *dir)
{
    neb_session *s;
    assert_ok(neb_session_open(dir, NULL, &s));
    assert_ok(neb_session_start(s, 0));
    return s;
}

/* Makes item n of every producer. Its size and bytes follow from n. */
static size_t make_item(uint64_t n, uint8_t *out)
{
    struct neb_rng r = {n};
    size_t size = 0;
    if (n % 50) size = (size_t)neb__rng_below(&r, n % 40 == 0 ? 200000 : 900);
    for (size_t i = 0; i < size; i++) out[i] = (uint8_t)(n * 31 + i * 7);
    return size;
}

static void check_item(uint64_t n, const uint8_t *bytes, size_t size)
{
    static uint8_t want[200000];
    assert_int_equal(make_item(n, want), size);
    assert_memory_equal(want, bytes, size);
}

/* ---- in one process ------------------------------------------------------------------------------------ */

static void crosses_in_order(void **state)
{
    (void)state;
    struct sites sites;
    static uint8_t item[200000];
    sites_make(&sites, 2, NULL);
    neb_session *a = open_session(sites.path[0]), *b = open_session(sites.path[1]);
    neb_stream *out, *in;
    assert_ok(neb_stream_open(
        a, &(struct neb_stream_config){.site = "s1", .number = 1, .produce = true, .items = 8}, &out));
    assert_ok(neb_stream_open(b, &(struct neb_stream_config){.site = "s0", .number = 1, .items = 4}, &in));
    bool changed;
    check_log_quiet();
    assert_ok(neb_step(a, 1, &changed));
    assert_false(changed);
    assert_status(neb_stream_get(out, 0, NULL, NULL, NULL), NEB_ERR_STATE);
    assert_status(neb_stream_put(in, 1, item, 1, 0), NEB_ERR_STATE);
    assert_status(neb_stream_put(out, 2, item, 1, 0), NEB_ERR_INVALID);
    neb_stream *twice;
    assert_status(neb_stream_open(b, &(struct neb_stream_config){.site = "s0", .number = 1}, &twice),
                  NEB_ERR_EXISTS);
    assert_status(neb_stream_open(b, &(struct neb_stream_config){.site = "s9", .number = 2}, &twice),
                  NEB_ERR_NOTFOUND);
    assert_status(neb_stream_open(b, &(struct neb_stream_config){.site = "s0", .number = 0}, &twice),
                  NEB_ERR_INVALID);
    check_log_restore();

    /* nobody gets items: the producer stops when its credit is used up */
    uint64_t n = 0;
    neb_status status;
    while ((status = neb_stream_put(out, n + 1, item, make_item(n + 1, item), 0.7)) == NEB_OK) n++;
    assert_int_equal(status, NEB_ERR_TIMEOUT);
    assert_int_equal(n, 8 + 4);
    struct neb_stream_status st;
    neb_stream_get_status(out, &st);
    assert_int_equal(st.last, n);
    assert_int_equal(st.received, 4);
    assert_true(st.wait_s > 0.6);
    assert_true(st.linked);

    const uint8_t *kept;
    size_t length;
    assert_ok(neb_stream_sync(out, 20));
    assert_ok(neb__stream_recall(out, 3, &kept, &length)); /* the journal has what was put */
    check_item(3, kept, length);
    assert_status(neb__stream_recall(out, n + 1, &kept, &length), NEB_ERR_NOTFOUND);
    assert_ok(neb__stream_allow(out, (uint64_t)5 << 30));

    const void *bytes;
    size_t size;
    uint64_t number;
    for (uint64_t i = 1; i <= 200; i++) {
        assert_ok(neb_stream_get(in, 20, &bytes, &size, &number));
        assert_int_equal(number, i);
        if (n < 200) {
            assert_ok(neb_stream_put(out, n + 1, item, make_item(n + 1, item), 20));
            n++;
        }
        check_item(i, bytes, size);
        if (i % 50 == 0) assert_ok(neb_stream_retain(in, i));
    }
    assert_status(neb_stream_get(in, 0.05, &bytes, &size, &number), NEB_ERR_TIMEOUT);
    assert_ok(neb_stream_sync(out, 20));
    assert_ok(neb_stream_drain(out, 20)); /* the consumer's checkpoint covers everything: the stream ends */
    assert_status(neb_stream_get(in, 20, &bytes, &size, &number), NEB_ERR_CANCELLED);
    neb_stream_close(out);
    neb_stream_close(in);

    /* the consumer goes on from 200 in a new stream, and has enough */
    assert_ok(neb_stream_open(
        a, &(struct neb_stream_config){.site = "s1", .number = 1, .produce = true, .mark = 150}, &out));
    assert_ok(neb_stream_open(b, &(struct neb_stream_config){.site = "s0", .number = 1, .mark = 200}, &in));
    for (n = 150; n < 210; n++) assert_ok(neb_stream_put(out, n + 1, item, make_item(n + 1, item), 20));
    assert_ok(neb_stream_get(in, 20, &bytes, &size, &number));
    assert_int_equal(number, 201);
    check_item(201, bytes, size);
    assert_ok(neb_stream_finish(in, 20));
    assert_status(neb_stream_get(in, 20, &bytes, &size, &number), NEB_ERR_CANCELLED);
    while ((status = neb_stream_put(out, n + 1, item, make_item(n + 1, item), 20)) == NEB_OK) n++;
    assert_int_equal(status, NEB_ERR_CANCELLED);
    assert_ok(neb_stream_drain(out, 20));
    neb_session_close(a); /* closes its stream, too */
    neb_session_close(b);
    sites_free(&sites);
}

/* The consumer's checkpoint is gone, and the producer has forgotten the items that it would need. Both are
 * told. */
static void forgotten(void **state)
{
    (void)state;
    struct sites sites;
    static uint8_t item[1 << 20];
    sites_make(&sites, 2, NULL);
    neb_session *a = open_session(sites.path[0]), *b = open_session(sites.path[1]);
    neb_stream *out, *in;
    const void *bytes;
    size_t size;
    uint64_t number;
    assert_ok(
        neb_stream_open(a, &(struct neb_stream_config){.site = "s1", .number = 7, .produce = true}, &out));
    assert_ok(neb_stream_open(b, &(struct neb_stream_config){.site = "s0", .number = 7}, &in));
    for (uint64_t i = 1; i <= 40; i++) { /* more than two segments of the journal */
        assert_ok(neb_stream_put(out, i, item, sizeof item, 20));
        assert_ok(neb_stream_get(in, 20, &bytes, &size, &number));
        assert_ok(neb_stream_retain(in, i));
    }
    assert_ok(neb_stream_drain(out, 20));
    neb_stream_close(in);
    neb_stream_close(out);
    check_log_quiet();
    assert_ok(neb_stream_open(b, &(struct neb_stream_config){.site = "s0", .number = 7}, &in));
    assert_ok(neb_stream_open(
        a, &(struct neb_stream_config){.site = "s1", .number = 7, .produce = true, .mark = 40}, &out));
    assert_status(neb_stream_get(in, 20, &bytes, &size, &number), NEB_ERR_CORRUPT);
    assert_non_null(strstr(neb_last_error(), "do not fit together"));
    check_log_restore();
    neb_session_close(b);
    neb_session_close(a);
    sites_free(&sites);
}

/* A consumer that goes on from item 40, while an older checkpoint of it covers two items: should the newer one be damaged, the
 * producer still has the third. */
static void kept_for_an_older_checkpoint(void **state)
{
    (void)state;
    struct sites sites;
    static uint8_t item[1 << 20];
    sites_make(&sites, 2, NULL);
    neb_session *a = open_session(sites.path[0]), *b = open_session(sites.path[1]);
    neb_stream *out, *in;
    const void *bytes;
    size_t size;
    uint64_t number;
    const struct neb_stream_config at_40 = {.site = "s0", .number = 8, .mark = 40},
                                   at_2 = {.site = "s0", .number = 8, .mark = 2};
    assert_ok(
        neb_stream_open(a, &(struct neb_stream_config){.site = "s1", .number = 8, .produce = true}, &out));
    assert_ok(neb_stream_open(b, &(struct neb_stream_config){.site = "s0", .number = 8}, &in));
    for (uint64_t i = 1; i <= 40; i++) { /* more than two segments of the journal */
        assert_ok(neb_stream_put(out, i, item, sizeof item, 20));
        assert_ok(neb_stream_get(in, 20, &bytes, &size, &number));
    }
    neb_stream_close(in);
    assert_ok(neb__stream_open_keeping(b, &at_40, 2, &in));
    assert_ok(neb_stream_put(out, 41, item, sizeof item, 20));
    assert_ok(neb_stream_get(in, 20, &bytes, &size, &number));
    assert_int_equal(number, 41);
    neb_stream_close(in);
    assert_ok(neb_stream_open(b, &at_2, &in));
    assert_ok(neb_stream_get(in, 20, &bytes, &size, &number));
    assert_int_equal(number, 3);
    neb_session_close(b);
    neb_session_close(a);
    sites_free(&sites);
}

static void in_a_folder(void **state)
{
    (void)state;
    char dir[200];
    static uint8_t item[200000];
    neb_stream *out, *in;
    const void *bytes;
    size_t size;
    uint64_t number;
    check_make_dir(dir, sizeof dir);
    for (uint64_t mark = 0; mark < 100;
         mark +=
         40) { /* the second and third time it goes on from the mark, or finds the items in the journal */
        assert_ok(neb_stream_open(
            NULL, &(struct neb_stream_config){.folder = dir, .number = 3, .produce = true, .mark = mark / 2},
            &out));
        for (uint64_t i = mark / 2 + 1; i <= mark + 40; i++)
            assert_ok(neb_stream_put(out, i, item, make_item(i, item), 0));
        assert_ok(neb_stream_sync(out, 0));
        neb_stream_close(out);
    }
    assert_ok(
        neb_stream_open(NULL, &(struct neb_stream_config){.folder = dir, .number = 3, .mark = 30}, &in));
    for (uint64_t i = 31; i <= 120; i++) {
        assert_ok(neb_stream_get(in, 0, &bytes, &size, &number));
        assert_int_equal(number, i);
        check_item(i, bytes, size);
    }
    assert_status(neb_stream_get(in, 0, &bytes, &size, &number), NEB_ERR_CANCELLED);
    neb_stream_close(in);
    check_log_quiet();
    assert_status(
        neb_stream_open(NULL, &(struct neb_stream_config){.folder = dir, .number = 3, .mark = 121}, &in),
        NEB_ERR_CORRUPT);
    check_log_restore();
    check_remove_dir(dir);
}

/* ---- killed -------------------------------------------------------------------------------------------- */

struct state {
    uint64_t mark;
    struct neb_hash sum; /* of all items up to the mark */
};

static void fold(struct state *s, const void *bytes, size_t n)
{
    struct neb_hasher h;
    assert_ok(neb__hasher_init(&h));
    assert_ok(neb__hasher_update(&h, s->sum.b, sizeof s->sum.b));
    if (n) assert_ok(neb__hasher_update(&h, bytes, n));
    assert_ok(neb__hasher_final(&h, &s->sum));
    s->mark++;
}

static void load(const char *path, struct state *s)
{
    struct neb_buf b;
    neb__buf_init(&b, sizeof *s);
    if (!access(path, R_OK) && neb__file_read(path, &b) == NEB_OK) memcpy(s, b.data, sizeof *s);
    neb__buf_free(&b);
}

static void save(const char *path, const struct state *s)
{
    assert_ok(neb__file_replace(path, s, sizeof *s, 0600));
}

/* Child processes: they end with _exit(0), or are killed. */
static void produce(const char *dir, const char *path)
{
    static uint8_t item[200000];
    struct state s = {0};
    neb_stream *out;
    load(path, &s);
    neb_session *session = open_session(dir);
    assert_ok(neb_stream_open(
        session,
        &(struct neb_stream_config){.site = "s1", .number = 1, .produce = true, .mark = s.mark, .items = 100},
        &out));
    while (s.mark < ITEMS) {
        size_t n = make_item(s.mark + 1, item);
        assert_ok(neb_stream_put(out, s.mark + 1, item, n, 60));
        fold(&s, item, n);
        if (s.mark % (2 * EVERY) == 0) {
            assert_ok(neb_stream_sync(out, 60));
            save(path, &s);
        }
    }
    assert_ok(neb_stream_drain(out, 60));
    neb_session_close(session);
    _exit(0);
}

static void consume(const char *dir, const char *path)
{
    struct state s = {0};
    neb_stream *in;
    load(path, &s);
    neb_session *session = open_session(dir);
    assert_ok(neb_stream_open(
        session, &(struct neb_stream_config){.site = "s0", .number = 1, .mark = s.mark, .items = 20}, &in));
    while (s.mark < ITEMS) {
        const void *bytes;
        size_t n;
        uint64_t item;
        assert_ok(neb_stream_get(in, 60, &bytes, &n, &item));
        assert_int_equal(item, s.mark + 1);
        check_item(item, bytes, n);
        fold(&s, bytes, n);
        if (s.mark % EVERY == 0 || s.mark == ITEMS) {
            save(path, &s);
            assert_ok(neb_stream_retain(in, s.mark));
        }
        if (s.mark % 2 == 0) sleep_ms(2); /* so that the kills meet a stream under way */
    }
    assert_ok(neb_stream_finish(in, 20));
    neb_session_close(session);
    _exit(0);
}

static void survives_kills(void **state)
{
    (void)state;
    struct sites sites;
    char path[2][300];
    static uint8_t item[200000];
    pid_t pid[2];
    struct neb_rng rng = {(uint64_t)getpid()};
    sites_make(&sites, 2, NULL);
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/checkpoint-%d", sites.dir, i);
        pid[i] = 0;
    }
    for (int k = 0; k <= KILLS; k++) {
        for (int i = 0; i < 2; i++)
            if (!pid[i] && !(pid[i] = fork()))
                i ? consume(sites.path[1], path[1]) : produce(sites.path[0], path[0]);
        if (k == KILLS) break;
        sleep_ms(100 + (int)neb__rng_below(&rng, 400));
        int who = (int)neb__rng_below(&rng, 2), status;
        if (waitpid(pid[1], &status, WNOHANG))
            fail_msg("the consumer ended before all kills: status %x", status);
        kill(pid[who], SIGKILL);
        assert_int_equal(waitpid(pid[who], &status, 0), pid[who]);
        assert_true(WIFSIGNALED(status));
        pid[who] = 0;
    }
    for (int i = 1; i >= 0; i--) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("end %d ended with status %x", i, status);
    }
    struct state want = {0}, got = {0};
    for (uint64_t n = 1; n <= ITEMS; n++) fold(&want, item, make_item(n, item));
    load(path[1], &got);
    assert_int_equal(got.mark, ITEMS);
    assert_memory_equal(got.sum.b, want.sum.b, sizeof want.sum.b);
    sites_free(&sites);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_kills), /* first: it forks */
        cmocka_unit_test(crosses_in_order),
        cmocka_unit_test(forgotten),
        cmocka_unit_test(kept_for_an_older_checkpoint),
        cmocka_unit_test(in_a_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
