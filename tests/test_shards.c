/* test_shards.c: where text and tokens lie: lines from files of every compression, shards of tokens. */
#include "check.h"
#include "words.h"
#include "base/file.h"
#include "base/map_guard.h"
#include "base/mem.h"
#include "text/line_reader.h"
#include "text/shard.h"

#include <lzma.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static char dir[256];

static const char *in(const char *name)
{
    static char path[8][400];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */

static void write_file(const char *path, const void *p, size_t n)
{
    assert_ok(neb__file_replace(path, p, n, 0644));
}

static void assert_lines(const char *path, const char *plain, size_t n)
{
    struct neb_line_reader *l;
    const char *text;
    size_t len, at = 0;
    neb_status status;
    assert_ok(neb__line_reader_open(path, &l));
    while ((status = neb__line_reader_next(l, &text, &len)) == NEB_OK) {
        const char *end = memchr(plain + at, '\n', n - at);
        size_t want = end ? (size_t)(end - plain) - at : n - at;
        assert_int_equal(len, want);
        assert_memory_equal(text, plain + at, want);
        at += want + 1;
    }
    assert_status(status, NEB_ERR_AGAIN);
    assert_true(at == n || at == n + 1);
    neb__line_reader_close(l);
}

static void assert_damaged(const char *path)
{
    struct neb_line_reader *l;
    const char *text;
    size_t len;
    neb_status status;
    check_log_quiet();
    assert_ok(neb__line_reader_open(path, &l));
    while ((status = neb__line_reader_next(l, &text, &len)) == NEB_OK) continue;
    assert_status(status, NEB_ERR_CORRUPT);
    neb__line_reader_close(l);
    check_log_restore();
}

static void lines_from_every_compression(void **state)
{
    (void)state;
    size_t n = 3 << 20, cap = n + (n >> 4) + 4096;
    char *plain = malloc(n);
    uint8_t *packed = malloc(cap);
    for (size_t at = 0, i = 0; at < n; i++) {
        char text[1024];
        size_t k = words_sentence((int)(i % 3), i, 0, text, sizeof text - 1);
        text[k++] = '\n';
        if (k > n - at) k = n - at;
        memcpy(plain + at, text, k);
        at += k;
    }
    write_file(in("a.txt"), plain, n);
    assert_lines(in("a.txt"), plain, n);

    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (uint8_t *)plain, z.avail_in = (uInt)n, z.next_out = packed, z.avail_out = (uInt)cap;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t m = cap - z.avail_out;
    deflateEnd(&z);
    write_file(in("a.gz"), packed, m);
    assert_lines(in("a.gz"), plain, n);
    write_file(in("cut.gz"), packed, m / 2);
    assert_damaged(in("cut.gz"));
    packed[m / 2] ^= 0x55;
    write_file(in("bad.gz"), packed, m);
    assert_damaged(in("bad.gz"));

    m = 0;
    assert_int_equal(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC32, NULL, (uint8_t *)plain, n, packed, &m, cap),
                     LZMA_OK);
    write_file(in("a.xz"), packed, m);
    assert_lines(in("a.xz"), plain, n);
    write_file(in("cut.xz"), packed, m - 40);
    assert_damaged(in("cut.xz"));

    m = ZSTD_compress(packed, cap, plain, n, 1);
    assert_false(ZSTD_isError(m));
    write_file(in("a.zst"), packed, m);
    assert_lines(in("a.zst"), plain, n);
    write_file(in("cut.zst"), packed, m - 1);
    assert_damaged(in("cut.zst"));
    free(plain);
    free(packed);
}

static void odd_lines(void **state)
{
    (void)state;
    struct neb_line_reader *l;
    const char *text;
    size_t n;
    write_file(in("odd"), "\xEF\xBB\xBFone\r\n\nlast", 13);
    assert_ok(neb__line_reader_open(in("odd"), &l));
    assert_ok(neb__line_reader_next(l, &text, &n));
    assert_true(n == 3 && !memcmp(text, "one", 3));
    assert_ok(neb__line_reader_next(l, &text, &n));
    assert_int_equal(n, 0);
    assert_ok(neb__line_reader_next(l, &text, &n));
    assert_true(n == 4 && !memcmp(text, "last", 4));
    assert_int_equal(neb__line_reader_number(l), 3);
    assert_status(neb__line_reader_next(l, &text, &n), NEB_ERR_AGAIN);
    neb__line_reader_close(l);

    size_t big = 3 << 20;
    char *long_line = malloc(big);
    memset(long_line, 'x', big);
    memcpy(long_line + big - 5, "\nend\n", 5);
    write_file(in("long"), long_line, big);
    free(long_line);
    assert_ok(neb__line_reader_open(in("long"), &l));
    assert_ok(neb__line_reader_next(l, &text, &n));
    assert_int_equal(n, NEB_MAX_LINE);
    assert_ok(neb__line_reader_next(l, &text, &n));
    assert_true(n == 3 && !memcmp(text, "end", 3));
    assert_int_equal(neb__line_reader_cut(l), 1);
    neb__line_reader_close(l);
}

/* ---- shards --------------------------------------------------------------------------------------------------- */

static struct neb_set_info info_of(int sides, int32_t vocab)
{
    struct neb_set_info i = {.sides = sides, .vocab = vocab, .lang = {"aa", "bb"}};
    memset(i.tokenizer.b, 7, sizeof i.tokenizer.b);
    return i;
}

/* Sample i has 1 + i % 17 tokens (side 0) and 1 + i % 5 (side 1), all of them i % vocab. */
static void write_set(const char *path, int sides, int32_t vocab, int samples, int64_t shard_bytes)
{
    struct neb_set_info info = info_of(sides, vocab);
    struct neb_set_writer *w;
    int32_t ids[32];
    assert_ok(neb__set_create(path, &info, shard_bytes, &w));
    for (int i = 0; i < samples; i++) {
        for (int k = 0; k < 32; k++) ids[k] = i % vocab;
        const int32_t *const list[2] = {ids, ids};
        const int32_t n[2] = {1 + i % 17, 1 + i % 5};
        assert_ok(neb__set_add(w, list, n));
    }
    assert_ok(neb__set_finish(w));
}

static void check_set(const char *path, int sides, int32_t vocab, int samples)
{
    struct neb_set *set;
    int32_t ids[32];
    assert_ok(neb__set_open(path, &set));
    assert_ok(neb__set_verify(set));
    assert_int_equal(neb__set_count(set), samples);
    assert_string_equal(neb__set_info(set)->lang[0], "aa");
    int64_t total[2] = {0, 0};
    for (int i = 0; i < samples; i++)
        for (int s = 0; s < sides; s++) {
            int32_t n = neb__set_length(set, i, s);
            assert_int_equal(n, 1 + i % (s ? 5 : 17));
            assert_ok(neb__set_copy(set, i, s, 0, n, ids));
            for (int32_t k = 0; k < n; k++) assert_int_equal(ids[k], i % vocab);
            total[s] += n;
        }
    for (int s = 0; s < sides; s++) assert_true(neb__set_tokens(set, s) == total[s]);
    assert_int_equal(neb__set_length(set, samples, 0), 0);
    assert_int_equal(neb__set_length(set, 0, sides), 0);
    check_log_quiet();
    assert_status(neb__set_copy(set, 0, 0, 0, 2, ids), NEB_ERR_INVALID);
    assert_status(neb__set_copy(set, -1, 0, 0, 1, ids), NEB_ERR_INVALID);
    check_log_restore();
    neb__set_close(set);
}

static void shards_give_back_what_was_added(void **state)
{
    (void)state;
    write_set(in("s1"), 1, 300, 1000, 0);
    check_set(in("s1"), 1, 300, 1000);
    write_set(in("s2"), 2, 70000, 1000, 999); /* four bytes a token, many shards */
    check_set(in("s2"), 2, 70000, 1000);
    write_set(in("s2"), 1, 65536, 777, 4000); /* replaced */
    check_set(in("s2"), 1, 65536, 777);
    write_set(in("s3"), 1, 10, 0, 0);
    check_set(in("s3"), 1, 10, 0);
}

static void a_writer_that_fails_leaves_the_old_set(void **state)
{
    (void)state;
    struct neb_set_info info = info_of(1, 300);
    struct neb_set_writer *w, *other;
    int32_t ids[4] = {1, 2, 3, 300};
    const int32_t *const list[2] = {ids, NULL};
    const int32_t good[2] = {3, 0}, bad[2] = {4, 0}, none[2] = {0, 0};
    write_set(in("keep"), 1, 300, 50, 100);
    check_log_quiet();
    assert_ok(neb__set_create(in("keep"), &info, 10, &w));
    assert_status(neb__set_create(in("keep"), &info, 0, &other), NEB_ERR_BUSY);
    for (int i = 0; i < 20; i++) assert_ok(neb__set_add(w, list, good));
    assert_status(neb__set_add(w, list, bad), NEB_ERR_RANGE);
    assert_status(neb__set_add(w, list, none), NEB_ERR_INVALID);
    neb__set_abandon(w);
    check_log_restore();
    check_set(in("keep"), 1, 300, 50);
}

/* Every byte of a small set flipped, every truncation: an error or the right content, never a crash. */
static void damaged_shards_are_noticed(void **state)
{
    (void)state;
    write_set(in("bad"), 1, 300, 20, 0);
    const char *files[2] = {"bad/set.neb", "bad/0000000000000001-00000.tok"};
    check_log_quiet();
    for (int f = 0; f < 2; f++) {
        struct neb_buf b;
        neb__buf_init(&b, 1 << 20);
        assert_ok(neb__file_read(in(files[f]), &b));
        for (size_t i = 0; i < b.len; i++) {
            for (int cut = 0; cut < 2; cut++) {
                struct neb_set *set;
                b.data[i] ^= cut ? 0 : 0x41;
                FILE *file = fopen(in(files[f]), "w");
                fwrite(b.data, 1, cut ? i : b.len, file);
                fclose(file);
                neb_status status = neb__set_open(in("bad"), &set);
                if (status == NEB_OK) {
                    assert_status(neb__set_verify(set), NEB_ERR_CORRUPT);
                    neb__set_close(set);
                }
                b.data[i] ^= cut ? 0 : 0x41;
            }
        }
        write_file(in(files[f]), b.data, b.len);
        neb__buf_free(&b);
    }
    check_log_restore();
    check_set(in("bad"), 1, 300, 20);
}

/* A file is shortened while its set is open: whoever reads what is gone gets an error that names the file, on every thread. */
static void *read_all(void *arg)
{
    const struct neb_set *set = arg;
    int32_t ids[32];
    uintptr_t bad = 0;
    for (int64_t i = 0; i < neb__set_count(set); i++) {
        int32_t n = neb__set_length(set, i, 0);
        bad += neb__set_copy(set, i, 0, 0, n, ids) == NEB_ERR_CORRUPT && strstr(neb_last_error(), "/cut/");
    }
    return (void *)bad; /* NOLINT(performance-no-int-to-ptr) */
}

static void a_file_shortened_in_use_is_an_error(void **state)
{
    (void)state;
    enum { SAMPLES = 20000, THREADS = 4 };
    struct neb_set *set;
    pthread_t thread[THREADS];
    int32_t ids[32];
    char path[500];
    write_set(in("cut"), 1, 300, SAMPLES, 0);
    assert_ok(neb__set_open(in("cut"), &set));
    assert_ok(neb__set_check(set));
    snprintf(path, sizeof path, "%s/0000000000000001-00000.tok", in("cut"));
    assert_int_equal(truncate(path, 200), 0);
    check_log_quiet();
    for (int t = 0; t < THREADS; t++) assert_int_equal(pthread_create(&thread[t], NULL, read_all, set), 0);
    for (int t = 0; t < THREADS; t++) {
        void *bad;
        pthread_join(thread[t], &bad);
        assert_in_range((uintptr_t)bad, 1, SAMPLES);
    }
    assert_status(neb__set_check(set), NEB_ERR_CORRUPT);
    if (!strstr(neb_last_error(), "to 200 bytes of")) fail_msg("%s", neb_last_error());
    assert_int_equal(neb__set_length(set, SAMPLES - 1, 0),
                     0); /* its page is zeros now: not taken for a text */
    assert_status(neb__set_copy(set, 5, 0, 0, 0, ids), NEB_ERR_CORRUPT);
    assert_status(neb__set_verify(set), NEB_ERR_CORRUPT);
    neb__set_close(set);
    assert_status(neb__set_open(in("cut"), &set), NEB_ERR_CORRUPT);
    check_log_restore();
}

static volatile sig_atomic_t bus_signals;

static void count_bus(int number)
{
    bus_signals += number == SIGBUS;
}

/* In a process of its own. 0: the signal went to whoever handled it before, `times` times. */
static int send_bus(void (*handler)(int), int times)
{
    const struct sigaction old = {.sa_handler = handler};
    const struct rlimit no_core = {0, 0};
    struct neb_map_guard g;
    const pid_t child = fork();
    int status = 0;
    if (!child) {
        setrlimit(RLIMIT_CORE, &no_core);
        sigaction(SIGBUS, &old, NULL);
        neb__map_guard_prepare();
        neb__map_guard_begin(&g, NULL, SIZE_MAX); /* around every address */
        raise(SIGBUS);
        kill(getpid(), SIGBUS);
        _exit(!neb__map_guard_end(&g) || bus_signals != times);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* The guards of mapped files take only the kernel's own. */
static void a_signal_that_is_sent_is_passed_on(void **state)
{
    (void)state;
    assert_int_equal(send_bus(count_bus, 2), 0);
    assert_int_equal(send_bus(SIG_IGN, 0), 0);
    const int status = send_bus(SIG_DFL, 0);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

static void every_failing_allocation_is_answered(void **state)
{
    (void)state;
    struct neb_set_info info = info_of(1, 300);
    int32_t ids[2] = {1, 2};
    const int32_t *const list[2] = {ids, NULL};
    const int32_t n[2] = {2, 0};
    check_log_quiet();
    int64_t held = neb__mem_held();
    for (int64_t k = 1;; k++) {
        struct neb_set_writer *w;
        struct neb_set *set;
        neb__mem_fail_at(k);
        neb_status status = neb__set_create(in("alloc"), &info, 0, &w);
        if (status == NEB_OK) {
            status = neb__set_add(w, list, n);
            if (status == NEB_OK)
                status = neb__set_finish(w);
            else
                neb__set_abandon(w);
        }
        if (status == NEB_OK && (status = neb__set_open(in("alloc"), &set)) == NEB_OK) neb__set_close(set);
        int64_t made = neb__mem_count();
        neb__mem_fail_at(0);
        assert_int_equal(neb__mem_held(), held);
        if (status == NEB_OK && made < k) break;
        assert_status(status, NEB_ERR_NOMEM);
    }
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_from_every_compression),
        cmocka_unit_test(odd_lines),
        cmocka_unit_test(shards_give_back_what_was_added),
        cmocka_unit_test(a_writer_that_fails_leaves_the_old_set),
        cmocka_unit_test(damaged_shards_are_noticed),
        cmocka_unit_test(a_file_shortened_in_use_is_an_error),
        cmocka_unit_test(a_signal_that_is_sent_is_passed_on),
        cmocka_unit_test(every_failing_allocation_is_answered),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
