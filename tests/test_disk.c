/* test_disk.c: the log and its files on a disk that fails: a failed read, a full disk, a start that is broken
 * off, and a reader beside the writer. */
#include "check.h"
#include "base/file.h"
#include "base/rng.h"
#include "sim/simdisk.h"
#include "store/ledger.h"
#include "store/update_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char dir[256];

/* A disk on which reading one file fails. */
static struct neb_disk_ops failing;
static const struct neb_disk_ops *real;
static const char *unreadable;

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    unreadable = NULL;
    check_log_quiet();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_log_restore();
    check_remove_dir(dir);
    return 0;
}

static neb_status append(struct neb_ledger *l, uint64_t first, const char *text, const char *mark)
{
    const uint8_t *rec[8];
    size_t len[8];
    uint64_t n = strlen(text);
    for (uint64_t i = 0; i < n; i++) rec[i] = (const uint8_t *)text + i, len[i] = 1;
    return neb__ledger_append(l, &(struct neb_ledger_batch){.first = first,
                                                            .count = n,
                                                            .record = rec,
                                                            .length = len,
                                                            .head = first + n - 1,
                                                            .mark = (const uint8_t *)mark,
                                                            .mark_length = strlen(mark)});
}

static neb_status create(const struct neb_disk *d)
{
    return neb__ledger_create(d, (const uint8_t *)"first", 5);
}

static void open_ledger(const struct neb_disk *d, struct neb_ledger *l, uint64_t records, bool damaged)
{
    struct neb_ledger_found f;
    assert_ok(neb__ledger_open(d, l, &f));
    assert_int_equal(f.records, records);
    assert_int_equal(f.damaged, damaged);
    neb__ledger_found_free(&f);
}

static uint64_t size_of(const struct neb_disk *d, const char *name)
{
    uint64_t size = 0;
    return d->ops->size(d->ctx, name, &size) == NEB_OK ? size : UINT64_MAX;
}

static neb_status read_or_fail(void *ctx, const char *name, uint64_t at, void *to, size_t n)
{
    if (unreadable && !strcmp(name, unreadable)) return neb__quiet(NEB_ERR_IO, "Input/output error");
    return real->read(ctx, name, at, to, n);
}

/* Three records in two batches. */
static void make_ledger(struct neb_disk *d)
{
    struct neb_ledger l;
    assert_ok(neb__disk_open(dir, d));
    assert_ok(create(d));
    open_ledger(d, &l, 0, false);
    assert_ok(append(&l, 1, "ab", "m1"));
    assert_ok(append(&l, 3, "c", "m2"));
    real = d->ops;
    failing = *real;
    failing.read = read_or_fail;
    d->ops = &failing;
}

static void a_read_that_fails_costs_nothing(void **state)
{
    (void)state;
    struct neb_disk d;
    struct neb_ledger l;
    struct neb_ledger_found f;
    make_ledger(&d);
    uint64_t size = size_of(&d, "ledger");
    static const char *const files[] = {"ledger", "mark"};
    for (int i = 0; i < 2; i++) {
        unreadable = files[i];
        assert_status(neb__ledger_open(&d, &l, &f), NEB_ERR_IO);
        unreadable = NULL;
        assert_int_equal(size_of(&d, "ledger"), size);
        open_ledger(&d, &l, 3, false);
    }
    neb__disk_close(&d);
}

/* Records behind a rotten byte stay until something is appended; then they are gone for good. */
static void damage_is_not_made_worse_by_looking(void **state)
{
    (void)state;
    struct neb_disk d;
    struct neb_ledger l;
    char byte;
    make_ledger(&d);
    uint64_t size = size_of(&d, "ledger");
    assert_ok(d.ops->read(d.ctx, "ledger", 20, &byte, 1));
    byte ^= 1;
    assert_ok(d.ops->write(d.ctx, "ledger", 20, &byte, 1));
    for (int i = 0; i < 2; i++) open_ledger(&d, &l, 0, true);
    assert_int_equal(size_of(&d, "ledger"), size);
    byte ^= 1; /* the cable was at fault, not the disk */
    assert_ok(d.ops->write(d.ctx, "ledger", 20, &byte, 1));
    open_ledger(&d, &l, 3, false);
    assert_ok(d.ops->write(d.ctx, "ledger", l.length - 1, "?", 1));
    open_ledger(&d, &l, 2, true);
    assert_ok(append(&l, 3, "", "m3"));
    assert_true(size_of(&d, "ledger") < size);
    open_ledger(&d, &l, 2, false);
    neb__disk_close(&d);
}

/* The newest slot rots, and the power goes while the next batch is written over the note: what was promised is still there. If both
 * slots are whole, a batch without its note was never promised. */
static void a_promise_outlives_its_slot(void **state)
{
    (void)state;
    for (int rot = 0; rot < 2; rot++) {
        struct neb_disk d;
        struct neb_ledger l;
        uint8_t slot[32];
        make_ledger(&d);
        open_ledger(&d, &l, 3, false);
        assert_ok(d.ops->read(d.ctx, "mark", (l.sequence + 1) % 2 * 4096, slot, sizeof slot));
        assert_ok(append(&l, 4, "d", "m3"));
        if (rot) slot[0] ^= 1;
        assert_ok(d.ops->write(d.ctx, "mark", l.sequence % 2 * 4096, slot, sizeof slot));
        open_ledger(&d, &l, 4, false);
        assert_ok(d.ops->write(d.ctx, "ledger", l.length + 4, "?", 1));
        open_ledger(&d, &l, rot ? 4 : 3, false);
        neb__disk_close(&d);
        check_remove_dir(dir);
        check_make_dir(dir, sizeof dir);
    }
}

static neb_status no_room_for_marks(void *ctx, const char *name, uint64_t at, const void *from, size_t n)
{
    if (!strcmp(name, "mark")) return neb__quiet(NEB_ERR_NOSPACE, "no space left on device");
    return real->write(ctx, name, at, from, n);
}

/* A batch is written, but there is no room for its mark. A shorter batch takes its place and ends where an
 * entry of the first began. Nothing of the first may count. */
static void a_refused_batch_leaves_nothing(void **state)
{
    (void)state;
    struct neb_disk d;
    struct neb_ledger l;
    make_ledger(&d);
    open_ledger(&d, &l, 3, false);
    failing.write = no_room_for_marks;
    assert_status(append(&l, 4, "de", "x"), NEB_ERR_NOSPACE); /* entries: d, e, mark; all of one size */
    failing.write = real->write;
    assert_ok(append(&l, 4, "f", "y")); /* entries: f, mark */
    struct neb_ledger_found found;
    assert_ok(neb__ledger_open(&d, &l, &found));
    assert_int_equal(found.records, 4);
    assert_memory_equal(found.bytes.data + found.mark_at, "y", found.mark_length);
    neb__ledger_found_free(&found);
    neb__disk_close(&d);
}

/* The disk is full at the very first start, at any of the writes; then there is room again. */
static neb_status (*real_write)(void *ctx, const char *name, uint64_t at, const void *from, size_t n);
static int writes_left;

static neb_status some_writes(void *ctx, const char *name, uint64_t at, const void *from, size_t n)
{
    if (writes_left-- > 0) return real_write(ctx, name, at, from, n);
    (void)real_write(ctx, name, at, from, n / 2);
    return neb__quiet(NEB_ERR_NOSPACE, "no space left on device");
}

static void a_start_without_room_is_no_start(void **state)
{
    (void)state;
    struct neb_disk d;
    struct neb_ledger l;
    assert_ok(neb__disk_open(dir, &d));
    struct neb_disk_ops ops = *d.ops;
    real_write = ops.write;
    ops.write = some_writes;
    d.ops = &ops;
    for (int n = 0; n < 3; n++) {
        writes_left = n;
        assert_status(create(&d), NEB_ERR_NOSPACE);
        assert_true(size_of(&d, "ledger") == UINT64_MAX && size_of(&d, "mark") == UINT64_MAX);
    }
    writes_left = 100;
    assert_ok(create(&d));
    assert_status(create(&d), NEB_ERR_EXISTS);
    open_ledger(&d, &l, 0, false);
    assert_ok(d.ops->remove(d.ctx, "ledger")); /* this is a loss: something may have been promised */
    assert_status(create(&d), NEB_ERR_EXISTS);
    open_ledger(&d, &l, 0, true);
    neb__disk_close(&d);
}

/* The power goes at any operation of the first start. The next start makes the files, or finds them whole. */
static void a_start_broken_off_is_begun_again(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct neb_rng rng = {seed};
        struct neb_simdisk d;
        struct neb_ledger l;
        neb__simdisk_init(&d, &rng);
        d.ops_left = 1 + (int64_t)seed % 16;
        (void)create(&d.disk);
        neb__simdisk_crash(&d, true);
        neb_status status = create(&d.disk);
        if (status != NEB_ERR_EXISTS) assert_ok(status);
        open_ledger(&d.disk, &l, 0, false);
        neb__simdisk_free(&d);
    }
}

static void count_names(void *arg, const char *name)
{
    (void)name;
    ++*(int *)arg;
}

static int unfinished(const struct neb_disk *d)
{
    int n = 0;
    assert_ok(d->ops->list(d->ctx, "tmp-", count_names, &n));
    return n;
}

/* A file that does not fit gives back the room it had taken, because the log needs it. */
static void what_does_not_fit_takes_no_room(void **state)
{
    (void)state;
    struct neb_disk d;
    struct neb_update_files p;
    struct neb_hash h;
    static uint8_t bytes[5000];
    assert_ok(neb__disk_open(dir, &d));
    assert_ok(neb__update_files_open(&d, 0, &p));
    assert_ok(neb__hash(bytes, sizeof bytes, &h));
    struct neb_disk_ops ops = *d.ops;
    real_write = ops.write;
    ops.write = some_writes;
    d.ops = &ops;
    writes_left = 0;
    assert_status(neb__update_save(&p, &h, bytes, sizeof bytes), NEB_ERR_NOSPACE);
    assert_int_equal(unfinished(&d), 0);
    for (int n = 0; n < 2; n++) {
        writes_left = n;
        assert_status(neb__blob_save(&d, "cell-0-0", bytes, sizeof bytes, true), NEB_ERR_NOSPACE);
        assert_int_equal(unfinished(&d), 0);
    }
    assert_int_equal(p.bytes, 0);
    ops.write = real_write;
    assert_ok(neb__update_save(&p, &h, bytes, sizeof bytes));
    neb__disk_close(&d);
}

static void what_a_killed_process_left_is_removed(void **state)
{
    (void)state;
    struct neb_disk d;
    struct neb_update_files p;
    assert_ok(neb__disk_open(dir, &d));
    static const char *const left[] = {"tmp-p-1", "tmp-cell-0-1", "tmp-genesis", "tmp-mark"};
    for (int i = 0; i < 4; i++) assert_ok(d.ops->write(d.ctx, left[i], 0, "half", 4));
    assert_ok(d.ops->write(d.ctx, "temperature", 0, "mine", 4));
    assert_ok(neb__update_files_open(&d, 0, &p));
    assert_int_equal(unfinished(&d), 0);
    assert_int_equal(size_of(&d, "temperature"), 4);
    neb__disk_close(&d);
}

static void whoever_looks_changes_nothing(void **state)
{
    (void)state;
    struct neb_disk d, one, two;
    struct neb_ledger l;
    char lock[300];
    struct stat st;
    make_ledger(&d);
    assert_ok(d.ops->write(d.ctx, "tmp-x", 0, "rest", 4));
    assert_status(neb__disk_open_to_read(dir, &one), NEB_ERR_BUSY);
    neb__disk_close(&d);
    assert_ok(neb__disk_open_to_read(dir, &one));
    assert_ok(neb__disk_open_to_read(dir, &two));
    assert_status(neb__disk_open(dir, &d), NEB_ERR_BUSY);
    open_ledger(&two, &l, 3, false);
    assert_int_equal(append(&l, 4, "d", "m3"), NEB_ERR_IO);
    assert_status(one.ops->remove(one.ctx, "ledger"), NEB_ERR_STATE);
    assert_status(one.ops->cut(one.ctx, "ledger", 0), NEB_ERR_STATE);
    assert_status(one.ops->rename(one.ctx, "ledger", "x"), NEB_ERR_STATE);
    struct neb_update_files p;
    assert_ok(neb__update_files_open(&one, 0, &p));
    assert_int_equal(size_of(&one, "tmp-x"), 4);
    neb__disk_close(&one);
    neb__disk_close(&two);
    snprintf(lock, sizeof lock, "%s/lock", dir);
    assert_int_equal(remove(lock), 0); /* a copy of a folder has no lock file, and none is made */
    assert_ok(neb__disk_open_to_read(dir, &one));
    open_ledger(&one, &l, 3, false);
    neb__disk_close(&one);
    assert_int_equal(stat(lock, &st), -1);
}

/* Replaces the system's flock: a file system that locks nothing. */
static bool no_locks;

int flock(int fd, int how)
{
    if (no_locks) return errno = ENOLCK, -1;
    return (int)syscall(SYS_flock, fd, how);
}

static void a_lock_that_fails_is_no_other_process(void **state)
{
    (void)state;
    struct neb_disk d;
    char path[300];
    int one, two;
    snprintf(path, sizeof path, "%s/lock", dir);
    no_locks = true;
    neb_status disk = neb__disk_open(dir, &d), file = neb__file_lock(path, NEB_LOCK_FILE, &one);
    no_locks = false;
    assert_int_equal(disk, NEB_ERR_IO);
    assert_int_equal(file, NEB_ERR_IO);
    assert_ok(neb__file_lock(path, NEB_LOCK_FILE, &one));
    assert_status(neb__file_lock(path, NEB_LOCK_FILE, &two), NEB_ERR_BUSY);
    assert_status(neb__disk_open(dir, &d), NEB_ERR_BUSY);
    close(one);
    assert_ok(neb__disk_open(dir, &d));
    neb__disk_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_read_that_fails_costs_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(damage_is_not_made_worse_by_looking, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_promise_outlives_its_slot, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_refused_batch_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_start_without_room_is_no_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_start_broken_off_is_begun_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_takes_no_room, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_a_killed_process_left_is_removed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(whoever_looks_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_lock_that_fails_is_no_other_process, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
