/* test_session_parts.c: parts of a session without links: residuals on disk, updates in memory. */
#include "check.h"
#include "sites.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "run/session.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { VALUES = 300000 };

static void parts_open(neb_session *s, const char *folder)
{
    float *zero = neb__calloc(VALUES, sizeof *zero);
    assert_ok(neb__disk_open(folder, &s->disk));
    assert_ok(neb__update_files_open(&s->disk, 0, &s->updates.files));
    assert_ok(neb__outer_create(NEB_CELL, zero, VALUES, &s->mirror.outer));
    neb__free(zero);
    s->mirror.values = VALUES;
    s->exact = neb__rung_exact();
    assert_ok(neb__updates_open(&s->updates, s->mirror.outer->cells, neb__session_update_max(s)));
    for (int i = 0; i < 2; i++) s->mirror.work[i] = neb__aligned(NEB_CELL * sizeof(float));
}

static void parts_close(neb_session *s)
{
    for (int i = 0; i < 2; i++) neb__free(s->mirror.work[i]);
    neb__updates_close(&s->updates);
    neb__outer_destroy(s->mirror.outer);
    neb__disk_close(&s->disk);
}

static int not_zero(const float *r)
{
    int n = 0;
    for (int i = 0; i < VALUES; i++) n += r[i] != 0;
    return n;
}

static void write_residual(neb_session *s, uint64_t k)
{
    neb__left_out_begin(&s->updates.left_out, k);
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++) {
        size_t first, n = neb__outer_cell(s->mirror.outer, c, &first);
        for (size_t i = 0; i < n; i++) s->mirror.work[0][i] = sinf((float)(first + i));
        neb__left_out_add(&s->updates.left_out, s->mirror.work[0], n);
    }
    neb__left_out_end(&s->updates.left_out, &s->disk, 0);
}

/* A residual comes back under the number of its update, and not at all under another one, or if a bit or the end is missing. */
static void residuals_come_back_whole_or_not(void **state)
{
    (void)state;
    struct sites sites;
    neb_session *s = NEB_NEW(neb_session);
    uint64_t size;
    uint8_t byte;
    static float r[VALUES];
    sites_make(&sites, 1, NULL);
    parts_open(s, sites.path[0]);
    uint32_t cells = s->mirror.outer->cells;
    assert_true(cells > 1);
    for (uint64_t k = 7; k < 9; k++) { /* the second over the first */
        write_residual(s, k);
        neb__left_out_restore(s, 0, cells, k, r);
        for (int i = 0; i < VALUES; i++) assert_true(fabsf(r[i] - sinf((float)i)) < 0.1f);
    }
    neb__left_out_restore(s, 0, cells, 7, r);
    assert_int_equal(not_zero(r), 0);
    assert_ok(s->disk.ops->size(s->disk.ctx, "residual-0", &size));
    for (uint64_t at = 9; at < size; at += size / 5) {
        assert_ok(s->disk.ops->read(s->disk.ctx, "residual-0", at, &byte, 1));
        byte ^= 16;
        assert_ok(s->disk.ops->write(s->disk.ctx, "residual-0", at, &byte, 1));
        neb__left_out_restore(s, 0, cells, 8, r);
        assert_int_equal(not_zero(r), 0);
        write_residual(s, 8);
    }
    assert_ok(s->disk.ops->cut(s->disk.ctx, "residual-0", size - 1));
    neb__left_out_restore(s, 0, cells, 8, r);
    assert_int_equal(not_zero(r), 0);
    parts_close(s);
    neb__free(s);
    sites_free(&sites);
}

/* What was kept is in memory until it is forgotten, within a limit; the oldest goes first, and the disk has all of it. */
static void updates_stay_in_memory_for_their_record(void **state)
{
    (void)state;
    struct sites sites;
    neb_session *s = NEB_NEW(neb_session);
    enum { SIZE = 5 << 20, MANY = 48 };
    struct neb_hash hash[MANY];
    uint8_t *bytes = neb__calloc(1, SIZE);
    sites_make(&sites, 1, NULL);
    parts_open(s, sites.path[0]);
    for (int i = 0; i < MANY; i++) {
        size_t n = i < 14 ? SIZE : 1000, held = 0;
        bytes[0] = (uint8_t)i;
        assert_ok(neb__hash(bytes, n, &hash[i]));
        assert_ok(neb__session_keep(s, &hash[i], bytes, n));
        const struct neb_buf *b = neb__updates_recent(&s->updates, &hash[i]);
        assert_true(b && b->len == n && b->data[0] == i);
        for (int k = 0; k < NEB_RECENT; k++) held += s->updates.recent[k].bytes.cap;
        assert_true(held <= (size_t)NEB_RECENT_BYTES + SIZE); /* buffers grow by more than asked */
        assert_true(neb__update_exists(&s->updates.files, &hash[i]));
    }
    assert_null(neb__updates_recent(&s->updates, &hash[0]));
    neb__updates_forget(&s->updates, &hash[MANY - 1]);
    assert_null(neb__updates_recent(&s->updates, &hash[MANY - 1]));
    assert_non_null(neb__updates_recent(&s->updates, &hash[MANY - 2]));
    neb__free(bytes);
    parts_close(s);
    neb__free(s);
    sites_free(&sites);
}

/* An update that waited for a line that was down does not make it look slow. */
static void an_outage_is_not_a_slow_line(void **state)
{
    (void)state;
    struct neb_lines *l = NEB_NEW(struct neb_lines);
    neb__lines_init(l);
    int64_t now = neb__now_ns(), second = 1000000000;
    l->up_since[1] = now - second;
    l->push[0] = (struct neb_update_push){.id = 1, .since = now - 36 * second, .bytes = 1e6, .left = 1};
    neb__lines_acked(l, &(struct neb_sending){.push = 1, .since = now - 36 * second, .bytes = 1e6}, 1, true);
    assert_true(l->sum_s[1] == 0 && l->late_s == 0 && !l->push[0].id);
    l->busy_until[1] = l->all_until = 0;
    l->push[1] = (struct neb_update_push){.id = 2, .since = now - second / 2, .bytes = 1e6, .left = 1};
    neb__lines_acked(l, &(struct neb_sending){.push = 2, .since = now - second / 2, .bytes = 1e6}, 1, true);
    assert_true(l->sum_s[1] >= 0.5 && l->goodput[1] > 1e6 && l->late_s > 0.4);
    neb__lines_free(l);
    neb__free(l);
}

/* Messages that are turned away are asked for again, also those for which there was no memory; and what waits is counted with what
 * it takes. */
static neb_status offer_of(neb_session *s, uint16_t peer, size_t size)
{
    struct neb_message m = {
        .peer = peer, .kind = NEB_MSG_STATUS, .data = neb__malloc(size + 1), .size = size};
    neb__mem_fail_at(size == 13);
    neb_status status = neb__session_events.message(s, &m);
    neb__mem_fail_at(0);
    neb__free(m.data);
    return status;
}

static neb_status offer(neb_session *s, size_t size)
{
    return offer_of(s, 2, size);
}

static void messages_wait_their_turn(void **state)
{
    (void)state;
    enum { EMPTY = 100 };
    int64_t held = neb__mem_held();
    neb_session *s = NEB_NEW(neb_session);
    struct neb_queue *q = &s->driver.queue;
    pthread_mutex_init(&s->lock, NULL);
    neb__queue_init(q);
    for (int i = 0; i < EMPTY; i++) assert_ok(offer(s, 0));
    assert_int_equal(q->bytes, EMPTY * sizeof(struct neb_item));
    assert_false(q->stalled);
    assert_int_equal(offer(s, 13), NEB_ERR_AGAIN); /* out of memory */
    assert_true(q->stalled);
    q->stalled = false;
    assert_ok(offer(s, 14));
    assert_int_equal(q->bytes, (EMPTY + 1) * sizeof(struct neb_item) + 14);
    q->bytes = (size_t)1 << 40;
    assert_int_equal(offer(s, 15), NEB_ERR_AGAIN);
    assert_true(q->stalled);
    neb__queue_free(q);
    pthread_mutex_destroy(&s->lock);
    neb__free(s);
    assert_int_equal(neb__mem_held(), held);
}

/* ---- run folders ----------------------------------------------------------------------------------------------- */

static void a_runs_name_stays_inside_the_folder(void **state)
{
    (void)state;
    static const struct {
        const char *name, *path;
    } cases[] = {{"", "a/run"},
                 {"first", "a/run/first"},
                 {"v1.2_b-c", "a/run/v1.2_b-c"},
                 {"../../etc", "a/run/%2E.%2F..%2Fetc"},
                 {"orders", "a/run/%6Frders"},
                 {"status.json", "a/run/%73tatus.json"},
                 {"two words%", "a/run/two%20words%25"}};
    char path[256], tight[8];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(neb__run_folder("a", cases[i].name, path, sizeof path));
        assert_string_equal(path, cases[i].path);
    }
    check_log_quiet();
    assert_status(neb__run_folder("a", "first", tight, sizeof tight), NEB_ERR_INVALID);
    check_log_restore();
}

static void put_ledger(const char *folder, long when)
{
    char path[600];
    assert_ok(neb__file_make_dir(folder, 0700));
    snprintf(path, sizeof path, "%s/ledger", folder);
    assert_ok(neb__file_replace(path, "x", 1, 0600));
    const struct timespec at[2] = {{.tv_sec = when}, {.tv_sec = when}};
    assert_int_equal(utimensat(AT_FDCWD, path, at, 0), 0);
}

static void note_name(void *arg, const char *folder, const char *name)
{
    (void)folder;
    snprintf((char *)arg + strlen(arg), 200, "[%s]", name);
}

static void the_last_run_is_found_and_the_old_place_wins(void **state)
{
    (void)state;
    char site[200], path[512], want[512];
    check_make_dir(site, sizeof site);
    check_log_quiet();
    assert_status(neb__run_folder_find(site, NULL, path, sizeof path), NEB_ERR_NOTFOUND);
    snprintf(want, sizeof want, "%s/run", site);
    assert_ok(neb__file_make_dir(want, 0700));
    for (int i = 0; i < 3; i++) {
        snprintf(want, sizeof want, "%s/run/%c", site, "bca"[i]);
        put_ledger(want, 1000 + i % 2);
    }
    assert_ok(neb__run_folder_find(site, NULL, path, sizeof path));
    snprintf(want, sizeof want, "%s/run/c", site);
    assert_string_equal(path, want);
    assert_ok(neb__run_folder_find(site, "a", path, sizeof path));
    assert_status(neb__run_folder_find(site, "d", path, sizeof path), NEB_ERR_NOTFOUND);
    assert_true(neb__run_folder_has_other(site, "a") && neb__run_folder_has_other(site, "d"));
    char names[400] = "";
    assert_ok(neb__run_folder(site, "two words", path, sizeof path));
    put_ledger(path, 900);
    neb__run_folder_each(site, note_name, names);
    assert_string_equal(names, "[a][b][c][two words]");
    snprintf(want, sizeof want, "%s/run", site);
    put_ledger(want, 500);
    assert_ok(neb__run_folder_find(site, NULL, path, sizeof path));
    assert_string_equal(path, want);
    check_log_restore();
    check_remove_dir(site);
}

/* A peer that takes nothing in has a limited number of updates, bytes and cells on their way. One of any size may go. */
static void what_is_on_its_way_is_limited(void **state)
{
    (void)state;
    struct neb_lines *l = NEB_NEW(struct neb_lines);
    int flight[NEB_UPDATES_SENT];
    neb__lines_init(l);
    for (int i = 0; i < NEB_UPDATES_SENT; i++) {
        assert_true(neb__lines_has_room(l, 3, true));
        flight[i] = neb__lines_take_off(l, &(struct neb_flight){.peer = 3, .size = 1, .asked_for = true});
    }
    assert_false(neb__lines_has_room(l, 3, true));
    assert_true(neb__lines_has_room(l, 3, false) && neb__lines_has_room(l, 4, true));
    neb__lines_land(l, flight[0]);
    assert_true(neb__lines_has_room(l, 3, true));
    (void)neb__lines_take_off(l, &(struct neb_flight){.peer = 4, .size = (size_t)1 << 40});
    assert_false(neb__lines_has_room(l, 4, false));
    for (uint32_t c = 0; c < NEB_CELLS_ASKED; c++) assert_ok(neb__lines_cell_begin(l, 5, c));
    assert_int_equal(neb__lines_cell_begin(l, 5, NEB_CELLS_ASKED), NEB_ERR_LIMIT);
    for (int i = 0; i < NEB_CELL_AGAIN; i++) assert_int_equal(neb__lines_cell_begin(l, 5, 2), NEB_ERR_EXISTS);
    assert_int_equal(neb__lines_cell_begin(l, 5, 2), NEB_ERR_LIMIT);
    assert_ok(neb__lines_cell_begin(l, 6, 2));
    neb__lines_cell_end(l, 5, 2);
    assert_ok(neb__lines_cell_begin(l, 5, NEB_CELLS_ASKED));
    neb__lines_free(l);
    neb__free(l);
}

/* One site sends without pause. Its lane is limited, and another site's message is the next but one. */
static void a_site_that_floods_delays_nobody(void **state)
{
    (void)state;
    enum { LARGE = 1 << 20 };
    neb_session *s = NEB_NEW(neb_session);
    struct neb_queue *q = &s->driver.queue;
    pthread_mutex_init(&s->lock, NULL);
    neb__queue_init(q);
    int n = 0;
    while (offer_of(s, 5, LARGE) == NEB_OK && n < 1000) n++;
    assert_true(n >= NEB_QUEUE_SITE / LARGE - 1 && n <= NEB_QUEUE_SITE / LARGE + 1);
    assert_ok(offer_of(s, 6, LARGE));
    assert_int_equal(offer_of(s, 5, 1), NEB_ERR_AGAIN);
    bool met = false, resumed = false;
    for (int i = 0; i < 2; i++) {
        struct neb_turn turn = neb__queue_take(q, 1);
        met |= turn.item->peer == 6;
        assert_false(turn.resume); /* the lane of the site that was turned away is still full */
        neb__item_free(turn.item);
    }
    assert_true(met);
    for (int i = 0; i < n - 1; i++) {
        struct neb_turn turn = neb__queue_take(q, 1);
        resumed |= turn.resume;
        neb__item_free(turn.item);
    }
    assert_true(resumed);
    neb__queue_free(q);
    pthread_mutex_destroy(&s->lock);
    neb__free(s);
}

struct told {
    int n, named;
    char last[NEB_NEWS_TEXT];
};

static void hear(void *arg, const char *kind, const char *text)
{
    struct told *t = arg;
    t->n++;
    t->named += !strcmp(kind, "named");
    snprintf(t->last, sizeof t->last, "%s", text);
}

/* A site that is convicted is named, once. News come in their order, each once; a reader that sleeps loses the oldest. */
static void news_name_the_guilty(void **state)
{
    (void)state;
    struct sites sites;
    struct told t = {0};
    uint64_t after = 0;
    neb_session *s = NEB_NEW(neb_session);
    uint8_t proof[] = {1, 2, 3};
    sites_make(&sites, 1, NULL);
    parts_open(s, sites.path[0]);
    pthread_mutex_init(&s->lock, NULL);
    neb__quotas_init(&s->quotas);
    neb__news_init(&s->news);
    neb__members_init(&s->members);
    check_log_quiet();
    for (int i = 0; i < 3; i++)
        neb__session_do(s, &(struct neb_action){
                               .type = NEB_ACT_GUILTY, .site = 2, .bytes = proof, .length = sizeof proof});
    check_log_restore();
    neb__news_read(s, &after, hear, &t);
    assert_int_equal(t.named, 1);
    assert_non_null(strstr(t.last, "is proven to lie"));
    for (int i = 0; i < NEB_NEWS + 10; i++) neb__news_add(s, "order", "number %d", i);
    t = (struct told){0};
    neb__news_read(s, &after, hear, &t);
    assert_int_equal(t.n, NEB_NEWS);
    assert_string_equal(t.last, "number 137");
    neb__news_read(s, &after, hear, &t);
    assert_int_equal(t.n, NEB_NEWS);
    neb__members_free(&s->members);
    neb__news_free(&s->news);
    neb__quotas_free(&s->quotas);
    pthread_mutex_destroy(&s->lock);
    parts_close(s);
    neb__free(s);
    sites_free(&sites);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(residuals_come_back_whole_or_not),
        cmocka_unit_test(an_outage_is_not_a_slow_line),
        cmocka_unit_test(updates_stay_in_memory_for_their_record),
        cmocka_unit_test(messages_wait_their_turn),
        cmocka_unit_test(a_runs_name_stays_inside_the_folder),
        cmocka_unit_test(the_last_run_is_found_and_the_old_place_wins),
        cmocka_unit_test(what_is_on_its_way_is_limited),
        cmocka_unit_test(a_site_that_floods_delays_nobody),
        cmocka_unit_test(news_name_the_guilty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
