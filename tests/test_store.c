/* test_store.c: safetensors, checkpoints that survive torn files and full disks, metrics and event files. */
#include "check.h"
#include "base/clock.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "store/checkpoint.h"
#include "store/tensorboard.h"
#include "store/metrics.h"
#include "store/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <nebula/log.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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

static void crc32c_known_answers(void **state)
{
    (void)state;
    uint8_t b[1000] = {0};
    assert_true(neb__crc32c(0, "123456789", 9) == 0xE3069283);
    assert_true(neb__crc32c(0, b, 32) == 0x8A9136AA); /* RFC 3720, B.4 */
    for (int i = 0; i < 1000; i++) b[i] = (uint8_t)(i * 7);
    for (size_t n = 0; n < 1000; n += 13) {
        uint32_t c = neb__crc32c(0, b, n);
        assert_true(c == neb__crc32c_portable(0, b, n));
        assert_true(c == neb__crc32c(neb__crc32c(0, b, n / 3), b + n / 3, n - n / 3));
    }
}

/* ---- safetensors --------------------------------------------------------------------------------------- */

static void tensors_come_back(void **state)
{
    (void)state;
    float w[6] = {1, -2, 3.5f, 0, 1e-30f, 7};
    uint16_t half[4] = {0x3C00, 0xC000, 0x0001, 0x7C00}, bf[2] = {0x3F80, 0xBF80};
    uint8_t flag[3] = {1, 0, 1};
    double d[1] = {0.1};
    struct neb_st_tensor list[] = {
        {"flags", NEB_ST_BOOL, 1, {3}, flag, 3},         {"layer.0/ü", NEB_ST_F32, 2, {2, 3}, w, sizeof w},
        {"h", NEB_ST_F16, 2, {2, 2}, half, sizeof half}, {"bf", NEB_ST_BF16, 1, {2}, bf, sizeof bf},
        {"d", NEB_ST_F64, 0, {0}, d, sizeof d},          {"empty", NEB_ST_F32, 2, {0, 5}, w, 0},
    };
    const char *meta[] = {"made_by", "a test", NULL};
    assert_ok(neb__st_write(in("a.safetensors"), list, 6, meta, 0600));
    struct neb_st *st;
    float out[6];
    assert_ok(neb__st_open(in("a.safetensors"), &st));
    assert_int_equal(neb__st_count(st), 6);
    assert_string_equal(neb__st_meta(st, "made_by"), "a test");
    assert_string_equal(neb__st_meta(st, "format"), "pt");
    assert_null(neb__st_meta(st, "x"));
    const struct neb_st_tensor *t = neb__st_find(st, "layer.0/ü");
    assert_true(t && t->type == NEB_ST_F32 && t->rank == 2 && t->shape[1] == 3);
    assert_int_equal((uintptr_t)t->data % 4, 0);
    assert_ok(neb__st_to_f32(t, out));
    assert_memory_equal(out, w, sizeof w);
    assert_ok(neb__st_to_f32(neb__st_find(st, "h"), out));
    assert_true(out[0] == 1 && out[1] == -2 && out[2] == ldexpf(1, -24) && isinf(out[3]));
    assert_ok(neb__st_to_f32(neb__st_find(st, "bf"), out));
    assert_true(out[0] == 1 && out[1] == -1);
    assert_ok(neb__st_to_f32(neb__st_find(st, "d"), out));
    assert_true(out[0] == 0.1f);
    check_log_quiet();
    assert_status(neb__st_to_f32(neb__st_find(st, "flags"), out), NEB_ERR_DTYPE);
    list[0].name = "h";
    assert_status(neb__st_write(in("b"), list, 6, NULL, 0600), NEB_ERR_INVALID);
    list[0].name = "flags";
    list[0].size = 4;
    assert_status(neb__st_write(in("b"), list, 6, NULL, 0600), NEB_ERR_INVALID);
    check_log_restore();
    neb__st_close(st);
}

static neb_status open_header(const char *json, size_t data)
{
    static uint8_t file[4096];
    size_t n = strlen(json);
    memset(file, 0, sizeof file);
    neb__put64(file, n);
    memcpy(file + 8, json, n);
    struct neb_st *st;
    uint8_t *copy = malloc(8 + n + data); /* exactly as long: the sanitizer sees a read behind it */
    memcpy(copy, file, 8 + n + data);
    neb_status status = neb__st_open_bytes(copy, 8 + n + data, &st);
    if (status == NEB_OK) {
        float out[512];
        for (int i = 0; i < neb__st_count(st); i++) neb__st_to_f32(neb__st_at(st, i), out);
        neb__st_close(st);
    }
    free(copy);
    return status;
}

static void hostile_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        size_t data;
    } bad[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8}, /* shape against offsets */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7}, /* behind the end */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9}, /* bytes left over */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8}, /* a gap */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":["
         "4],"
         "\"data_offsets\":[2,6]}}",
         6}, /* an overlap */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
         0}, /* overflow */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,0]}}", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\",\"shape\":["
         "1],"
         "\"data_offsets\":[0,1]}}",
         1}, /* twice */
        {"{\"__metadata__\":{\"a\":1}}", 0},
        {"{\"a\":7}", 0},
        {"[1]", 0},
        {"{", 0},
        {"", 0},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (open_header(bad[i].json, bad[i].data) != NEB_ERR_CORRUPT) fail_msg("accepted: %s", bad[i].json);
    assert_ok(open_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8));
    assert_ok(open_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}  ", 0));
    uint8_t huge[16] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F};
    struct neb_st *st;
    for (size_t n = 0; n <= 16; n++) assert_status(neb__st_open_bytes(huge, n, &st), NEB_ERR_CORRUPT);
    assert_status(neb__st_open(in("absent"), &st), NEB_ERR_NOTFOUND);
    check_log_restore();
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

static struct neb_hash model_a, model_b = {{1}};

static void write_step(const char *where, int64_t step, int keep)
{
    char big[5000];
    memset(big, (int)step, sizeof big);
    struct neb_ckpt_section list[] = {
        {"params", big, sizeof big}, {"step", &step, sizeof step}, {"none", NULL, 0}};
    struct neb_ckpt_id id = {step, model_a};
    assert_ok(neb__ckpt_write(where, &id, list, 3, keep));
}

static int64_t latest(const char *where)
{
    struct neb_ckpt *c;
    const void *p;
    size_t n;
    neb_status status = neb__ckpt_open_latest(where, &model_a, &c);
    if (status != NEB_OK) return status;
    int64_t step = neb__ckpt_id(c)->step;
    assert_ok(neb__ckpt_get(c, "step", &p, &n));
    assert_true(n == 8 && !memcmp(p, &step, 8) && (uintptr_t)p % 64 == 0);
    assert_ok(neb__ckpt_get(c, "params", &p, &n));
    for (size_t i = 0; i < n; i++) assert_int_equal(((const uint8_t *)p)[i], (uint8_t)step);
    assert_ok(neb__ckpt_get(c, "none", &p, &n));
    assert_int_equal(n, 0);
    neb__ckpt_close(c);
    return step;
}

static void the_last_ones_are_kept(void **state)
{
    (void)state;
    const char *where = in("keep");
    int64_t steps[10];
    assert_ok(neb__file_make_dir(where, 0755));
    assert_int_equal(latest(where), NEB_ERR_NOTFOUND);
    for (int64_t s = 0; s <= 50; s += 10) {
        write_step(where, s, 3);
        assert_int_equal(latest(where), s);
    }
    assert_int_equal(neb__ckpt_list(where, steps, 10), 3);
    assert_true(steps[0] == 30 && steps[1] == 40 && steps[2] == 50);
    struct neb_ckpt *c;
    check_log_quiet();
    assert_status(neb__ckpt_open_latest(where, &model_b, &c), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "another model"));
    assert_ok(neb__ckpt_open_latest(where, NULL, &c));
    const void *p;
    size_t n;
    assert_status(neb__ckpt_get(c, "absent", &p, &n), NEB_ERR_NOTFOUND);
    neb__ckpt_close(c);
    struct neb_ckpt_section twice[] = {{"a", "x", 1}, {"a", "y", 1}};
    struct neb_ckpt_id id = {60, model_a};
    assert_status(neb__ckpt_write(where, &id, twice, 2, 3), NEB_ERR_INVALID);
    check_log_restore();
}

static void overwrite(const char *path, const uint8_t *p, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* The file is truncated in steps; every byte of header and table, and some bytes of the sections, are
 * damaged: the older checkpoint is used. */
static void a_damaged_checkpoint_gives_way_to_the_last_good_one(void **state)
{
    (void)state;
    const char *where = in("torn");
    char path[400];
    struct neb_buf b;
    assert_ok(neb__file_make_dir(where, 0755));
    write_step(where, 1, 0);
    write_step(where, 2, 0);
    assert_ok(neb__ckpt_path(where, 2, path, sizeof path));
    neb__buf_init(&b, 1 << 20);
    assert_ok(neb__file_read(path, &b));
    check_log_quiet();
    for (size_t n = 0; n < b.len; n += n < 500 ? 1 : 97) {
        overwrite(path, b.data, n);
        assert_int_equal(latest(where), 1);
    }
    for (size_t i = 0; i < b.len; i += i < 600 ? 1 : 53) {
        size_t table_end = 128 + 3 * 96;
        bool filler = (i >= 72 && i < 128) || (i >= table_end && i < (table_end + 63) / 64 * 64);
        struct neb_reader r = {b.data + 128, 3 * 96, false};
        for (int k = 0; k < 2; k++) { /* filler between sections has no checksum and is not read */
            neb__read(&r, 64);
            uint64_t at = neb__read64(&r), size = neb__read64(&r);
            neb__read(&r, 16);
            filler |= i >= at + size && i < (at + size + 63) / 64 * 64;
        }
        b.data[i] ^= 0x10;
        overwrite(path, b.data, b.len);
        assert_int_equal(latest(where), filler ? 2 : 1);
        b.data[i] ^= 0x10;
    }
    neb__ckpt_path(where, 1, path, sizeof path);
    overwrite(path, b.data, 10);
    neb__ckpt_path(where, 2, path, sizeof path);
    overwrite(path, b.data, 100);
    assert_int_equal(latest(where), NEB_ERR_CORRUPT);
    check_log_restore();
    neb__buf_free(&b);
}

/* Replaces the system's pread: a disk that cannot give one page of one file. */
static ino_t unreadable;

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    struct stat st;
    if (unreadable && !fstat(fd, &st) && st.st_ino == unreadable && at + (off_t)n > 4096) {
        if (at >= 4096) return errno = EIO, -1;
        n = (size_t)(4096 - at);
    }
    return syscall(SYS_pread64, fd, to, n, at);
}

static void an_unreadable_page_gives_way_to_the_last_good_one(void **state)
{
    (void)state;
    const char *where = in("unreadable");
    char path[400];
    struct stat st;
    assert_ok(neb__file_make_dir(where, 0755));
    write_step(where, 1, 0);
    write_step(where, 2, 0);
    assert_ok(neb__ckpt_path(where, 2, path, sizeof path));
    assert_int_equal(stat(path, &st), 0);
    unreadable = st.st_ino;
    check_log_quiet();
    int64_t step = latest(where);
    unreadable = 0;
    check_log_restore();
    assert_int_equal(step, 1);
    assert_int_equal(latest(where), 2);
}

static void a_full_disk_leaves_the_last_good_one(void **state)
{
    (void)state;
    const char *where = in("full");
    assert_ok(neb__file_make_dir(where, 0755));
    write_step(where, 1, 2);
    check_log_quiet();
    pid_t child = fork(); /* the limit would hold for every later test */
    if (!child) {
        struct rlimit limit = {3000, 3000};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        char big[5000] = {0};
        struct neb_ckpt_section list[] = {{"params", big, sizeof big}};
        struct neb_ckpt_id id = {2, model_a};
        struct neb_ckpt_writer *w;
        struct neb_ckpt_report r;
        int bad = neb__ckpt_write(where, &id, list, 1, 2) != NEB_ERR_NOSPACE;
        bad |= neb__ckpt_writer_create(where, 2, &w) != NEB_OK;
        bad |= neb__ckpt_writer_put(w, &id, list, 1) != NEB_OK;
        bad |= neb__ckpt_writer_wait(w) != NEB_ERR_NOSPACE;
        neb__ckpt_writer_report(w, &r);
        bad |= r.failed != 1 || r.written != 0 || r.last_step != -1 || !strstr(r.why, "untouched");
        list[0].size = 100; /* room was made */
        bad |= neb__ckpt_writer_put(w, &id, list, 1) != NEB_OK;
        bad |= neb__ckpt_writer_close(w) != NEB_OK;
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    int64_t steps[4];
    assert_int_equal(neb__ckpt_list(where, steps, 4), 2);
    DIR *d = opendir(where);
    int files = 0;
    for (struct dirent *e; (e = readdir(d));) files += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(files, 2); /* no temporary file is left */
    check_log_restore();
}

/* A writer is killed at random moments, again and again. There is always one complete file, and it is
 * newer than the last one or equal. */
static void kill_at_any_moment(void **state)
{
    (void)state;
    const char *where = in("kill");
    struct neb_rng rng = {3};
    int64_t last = 0;
    assert_ok(neb__file_make_dir(where, 0755));
    write_step(where, 0, 2);
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        if (!child) {
            for (int64_t s = last + 1;; s++) write_step(where, s, 2);
        }
        usleep((useconds_t)(1000 + neb__rng_below(&rng, 15000)));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        int64_t now = latest(where);
        assert_true(now >= last);
        last = now;
    }
    struct neb_ckpt_writer *w; /* clears the remains of the killed writers */
    assert_ok(neb__ckpt_writer_create(where, 2, &w));
    assert_ok(neb__ckpt_writer_close(w));
    DIR *d = opendir(where);
    for (struct dirent *e; (e = readdir(d));) assert_null(strstr(e->d_name, ".tmp"));
    closedir(d);
}

static void background_writer_keeps_up(void **state)
{
    (void)state;
    const char *where = in("background");
    struct neb_ckpt_writer *w;
    struct neb_ckpt_report r;
    assert_ok(neb__ckpt_writer_create(where, 2, &w));
    static uint8_t big[300000];
    for (int64_t s = 1; s <= 20; s++) {
        memset(big, (int)s, sizeof big);
        struct neb_ckpt_section list[] = {
            {"params", big, (size_t)(5000 + s * 1000)}, {"step", &s, sizeof s}, {"none", NULL, 0}};
        struct neb_ckpt_id id = {s, model_a};
        assert_ok(neb__ckpt_writer_put(w, &id, list, 3));
        memset(big, 0xEE, sizeof big); /* training goes on with its memory */
    }
    assert_ok(neb__ckpt_writer_wait(w));
    neb__ckpt_writer_report(w, &r);
    assert_true(r.last_step == 20 && r.written == 20 && r.failed == 0);
    assert_ok(neb__ckpt_writer_close(w));
    assert_int_equal(latest(where), 20);
}

/* ---- metrics ------------------------------------------------------------------------------------------- */

static int collect(void *arg, int64_t step, double time, double value)
{
    double *sum = arg;
    (void)time;
    sum[0] += 1;
    sum[1] += value * (double)step;
    return 1;
}

/* Reads an event file back, record by record. The checksums must match. */
static int count_records(const char *where)
{
    DIR *d = opendir(where);
    int records = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, "tfevents")) continue;
        char path[700];
        struct neb_buf b;
        snprintf(path, sizeof path, "%s/%s", where, e->d_name);
        neb__buf_init(&b, 1 << 20);
        assert_ok(neb__file_read(path, &b));
        struct neb_reader r = {b.data, b.len, false};
        while (r.left) {
            const uint8_t *head = r.p;
            uint64_t n = neb__read64(&r);
            uint32_t crc = neb__read32(&r);
            const uint8_t *body = neb__read(&r, n);
            uint32_t crc2 = neb__read32(&r);
            assert_false(r.bad);
            assert_true(crc == neb__crc32c_masked(head, 8) && crc2 == neb__crc32c_masked(body, n));
            records++;
        }
        neb__buf_free(&b);
    }
    closedir(d);
    return records;
}

static void metrics_are_stored_and_read(void **state)
{
    (void)state;
    struct neb_metrics *m;
    const char *where = in("metrics");
    assert_ok(neb__metrics_open(where, -1, &m));
    assert_ok(neb__metrics_note(m, "job", "name: 'it''s quoted'"));
    for (int64_t s = 1; s <= 1000; s++) {
        assert_ok(neb__metrics_put(m, s, "loss", 2));
        assert_ok(neb__metrics_put(m, s, "lr", s == 7 ? NAN : 0.5));
    }
    assert_ok(neb__metrics_close(m));
    assert_ok(neb__metrics_open(where, 990, &m)); /* goes on from a checkpoint: steps 991… come again */
    for (int64_t s = 991; s <= 1010; s++) assert_ok(neb__metrics_put(m, s, "loss", 2));
    assert_ok(neb__metrics_flush(m));
    double sum[2] = {0, 0};
    assert_ok(neb__metrics_each(m, "loss", collect, sum));
    assert_true(sum[0] == 1010 && sum[1] == 1010.0 * 1011);
    assert_status(neb__metrics_each(m, "absent", collect, sum), NEB_ERR_NOTFOUND);
    assert_ok(neb__metrics_close(m));
    assert_int_equal(count_records(where), 1 + 2000 + 2 + 20);

    check_log_quiet();
    overwrite(in("metrics/metrics.sqlite"),
              (const uint8_t *)"this is no database, whatever its name says ...", 47);
    remove(in("metrics/metrics.sqlite-wal"));
    assert_status(neb__metrics_open(where, -1, &m), NEB_ERR_CORRUPT);
    check_log_restore();
}

static void count_warnings(void *arg, neb_log_level level, const char *line)
{
    (void)line;
    *(int *)arg += level >= NEB_LOG_WARN;
}

/* Files may grow to `most` bytes only, as on a full disk. */
static void set_limit(rlim_t most)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* There is one warning for each of the two files, however long the disk is full. With room
 * again both go on, and can be read. */
static void a_full_disk_costs_metrics_and_one_warning(void **state)
{
    (void)state;
    const char *where = in("narrow");
    pid_t child = fork();
    if (!child) {
        struct neb_metrics *m;
        int warnings = 0;
        signal(SIGXFSZ, SIG_IGN);
        neb_log_set_sink(count_warnings, &warnings);
        int bad = neb__metrics_open(where, -1, &m) != NEB_OK;
        set_limit(50000);
        for (int64_t i = 0; !bad && i < 30000; i++) neb__metrics_put(m, i, "loss", 1);
        if (!bad) neb__metrics_flush(m);
        bad |= warnings < 1 || warnings > 2;
        set_limit(RLIM_INFINITY);
        for (int64_t i = 0; !bad && i < 1000; i++) neb__metrics_put(m, 50000 + i, "late", 1);
        bad |= neb__metrics_flush(m) != NEB_OK || neb__metrics_close(m) != NEB_OK;
        bad |= warnings > 2;
        if (bad) printf("%d warnings\n", warnings);
        fflush(stdout);
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    int records = count_records(where);
    assert_true(records > 1000 && records < 30000);
}

static int sum_steps(void *arg, int64_t step, double time, double value)
{
    (void)time, (void)value;
    *(int64_t *)arg += step;
    return 1;
}

/* A run was killed at step 9 and went on from step 5. It measured at other steps than before. */
static void values_of_lost_work_are_left_out(void **state)
{
    (void)state;
    struct neb_metrics *m;
    int64_t sum = 0;
    assert_ok(neb__metrics_open(in("lost"), -1, &m));
    for (int64_t i = 1; i <= 9; i += 2) assert_ok(neb__metrics_put(m, i, "rate", 1));
    assert_ok(neb__metrics_close(m));
    assert_ok(neb__metrics_open(in("lost"), 5, &m));
    assert_ok(neb__metrics_put(m, 6, "rate", 1));
    assert_ok(neb__metrics_flush(m));
    assert_ok(neb__metrics_range(m, "rate", -1, INT64_MAX, INT64_MAX, sum_steps, &sum));
    assert_int_equal(sum, 1 + 3 + 5 + 6);
    assert_ok(neb__metrics_close(m));
}

/* Somebody has the database open for writing. The training waits once, not at every value. */
static void a_locked_database_does_not_hold_training_up(void **state)
{
    (void)state;
    struct neb_metrics *m, *editor;
    assert_ok(neb__metrics_open(in("locked"), -1, &m));
    assert_ok(neb__metrics_open(in("locked"), -1, &editor));
    assert_ok(neb__metrics_put(editor, 1, "loss", 1)); /* in a transaction that stays open */
    int64_t since = neb__now_ns();
    for (int64_t i = 2; i < 12; i++) assert_int_not_equal(neb__metrics_put(m, i, "loss", 2), NEB_OK);
    assert_int_not_equal(neb__metrics_event(m, 1, "start", "x"), NEB_OK);
    assert_true(neb__seconds_since(since) < 8); /* ten times the patience would be 20 */
    assert_ok(neb__metrics_close(editor));
    assert_ok(neb__metrics_put(m, 20, "loss", 2));
    assert_ok(neb__metrics_flush(m));
    assert_ok(neb__metrics_close(m));
}

static void a_run_without_metrics(void **state)
{
    (void)state;
    int warnings = 0;
    double sum[2];
    assert_ok(neb__file_make_dir(in("spoiled"), 0755));
    overwrite(in("spoiled/metrics.sqlite"), (const uint8_t *)"not a database, whatever its name says", 38);
    neb_log_set_sink(count_warnings, &warnings);
    struct neb_metrics *m = neb__metrics_begin(in("spoiled"), 7);
    neb_log_set_sink(NULL, NULL);
    assert_null(m);
    assert_int_equal(warnings, 1);
    assert_ok(neb__metrics_put(m, 1, "loss", 2));
    assert_ok(neb__metrics_note(m, "job", "x"));
    assert_ok(neb__metrics_event(m, 1, "start", "x"));
    assert_ok(neb__metrics_flush(m));
    assert_status(neb__metrics_each(m, "loss", collect, sum), NEB_ERR_NOTFOUND);
    assert_ok(neb__metrics_close(m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_known_answers),
        cmocka_unit_test(tensors_come_back),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(the_last_ones_are_kept),
        cmocka_unit_test(a_damaged_checkpoint_gives_way_to_the_last_good_one),
        cmocka_unit_test(an_unreadable_page_gives_way_to_the_last_good_one),
        cmocka_unit_test(a_full_disk_leaves_the_last_good_one),
        cmocka_unit_test(kill_at_any_moment),
        cmocka_unit_test(background_writer_keeps_up),
        cmocka_unit_test(metrics_are_stored_and_read),
        cmocka_unit_test(a_full_disk_costs_metrics_and_one_warning),
        cmocka_unit_test(values_of_lost_work_are_left_out),
        cmocka_unit_test(a_locked_database_does_not_hold_training_up),
        cmocka_unit_test(a_run_without_metrics),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
