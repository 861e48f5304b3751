/* test_quotas.c: a member with a valid key makes the others hold as much as it can: cells that it asks for, updates that
 * it signs, another model at a restart. Each kind has a quota: the others go on, hold no more than it says, and name
 * the member once. */
#include "check.h"
#include "sites.h"
#include "base/mem.h"
#include "run/peer_cells.h"
#include "run/site_status.h"

#include <nebula/log.h>
#include <nebula/nebula.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { CELLS = 4, VALUES = CELLS << 18, SITES = 3, LIAR = 2 };

struct member {
    neb_session *s;
    float *x;
};

static atomic_int named; /* log lines that name the liar */

static void on_log(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level;
    named += strstr(line, "site 's2'") != NULL;
}

static void begin(struct member *m, const char *folder, float outer_lr)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 5;
    c.fragments = 2;
    c.round_ms = 500;
    c.rung = "sparse2.k256";
    c.outer_lr = outer_lr;
    assert_ok(neb_session_open(folder, &c, &m->s));
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    assert_ok(neb_session_register(m->s, &p));
    assert_ok(neb_session_start(m->s, 0));
}

static void begin_all(struct sites *sites, struct member m[SITES])
{
    sites_make(sites, SITES, NULL);
    named = 0;
    neb_log_set_sink(on_log, NULL);
    for (int i = 0; i < SITES; i++) {
        m[i].x = neb__calloc(VALUES, sizeof(float));
        begin(&m[i], sites->path[i], 0.7f);
    }
}

static struct neb_session_status status(const struct member *m)
{
    struct neb_session_status st;
    neb_session_get_status(m->s, &st);
    return st;
}

/* Steps of the first n until the first of them has applied so many records. */
static void walk(struct member *m, int n, int64_t records)
{
    for (int i = 0; i < 6000 && status(&m[0]).applied < records; i++) {
        for (int k = 0; k < n; k++) {
            bool changed;
            for (int v = i % 97; v < VALUES; v += 97) m[k].x[v] += 0.01f * ((float)k - m[k].x[v]);
            neb_status st = neb_step_within(m[k].s, 64, 0.01, &changed);
            if (st != NEB_OK && st != NEB_ERR_AGAIN) fail_msg("a site stopped: %s", status(&m[k]).note);
        }
        sleep_ms(2);
    }
    assert_true(status(&m[0]).applied >= records);
}

static void end_all(struct sites *sites, struct member *m)
{
    for (int i = 0; i < SITES; i++) {
        neb_session_close(m[i].s);
        neb__free(m[i].x);
    }
    neb_log_set_sink(NULL, NULL);
    sites_free(sites);
}

/* The site has refused something to the liar, says so in its status, and has said so once in its log. */
static void assert_named(const struct member *m, const char *what)
{
    struct neb_site_status st;
    for (int i = 0; i < 3000; i++) {
        neb__session_own_status(m->s, &st);
        if (st.refused) break;
        sleep_ms(10);
    }
    assert_true(st.refused > 0);
    if (!strstr(st.refused_of, "s2: ") || !strstr(st.refused_of, what)) fail_msg("'%s'", st.refused_of);
}

/* Questions of four bytes, whose answers are of megabytes. */
static void cells_that_are_asked_for(void **state)
{
    (void)state;
    enum { QUESTIONS = 2100 };
    struct sites sites;
    struct member m[SITES];
    begin_all(&sites, m);
    walk(m, SITES, 4);
    neb_session *victim = m[0].s, *liar = m[LIAR].s;
    int64_t held = neb__mem_held(), most = 0;
    pthread_mutex_lock(&victim->busy); /* they wait together for the driver */
    for (uint32_t i = 0; i < QUESTIONS; i++) {
        uint8_t cell[4];
        neb__put32(cell, i % CELLS);
        neb__session_send(liar, victim->self, NEB_CONTROL, NEB_MSG_GET_CELL, cell, sizeof cell);
    }
    for (int i = 0; i < 3000; i++) {
        pthread_mutex_lock(&victim->driver.queue.lock);
        bool here = victim->driver.queue.items >= QUESTIONS;
        pthread_mutex_unlock(&victim->driver.queue.lock);
        if (here) break;
        sleep_ms(10);
    }
    pthread_mutex_unlock(&victim->busy);
    for (int i = 0; i < 400; i++) {
        int64_t now = neb__mem_held() - held;
        if (now > most) most = now;
        sleep_ms(2);
    }
    assert_named(&m[0], "cells");
    /* eight cells of 2 MiB at the victim, and as many at the liar; and what rounds hold for a moment */
    if (most > (int64_t)96 << 20) fail_msg("%lld MiB were held", (long long)(most >> 20));
    assert_int_equal(named, 1);
    walk(m, SITES, status(&m[0]).applied + 2);
    end_all(&sites, m);
}

/* Signed by the liar, whole and correct. */
static size_t make_update(neb_session *s, struct neb_update_header h, uint8_t *out, size_t room)
{
    struct neb_buf b;
    const struct neb_rung *rung = neb__rung_by_name("sparse2.k256");
    size_t first, n = neb__mirror_range(&s->mirror, h.c0, h.c1, &first);
    float *z = neb__calloc(n, sizeof *z);
    neb__buf_init(&b, 1 << 24);
    assert_ok(neb__codec_encode(rung, &(struct neb_codec_input){.z = z, .n = n}, NULL, NULL, &b));
    assert_true(NEB_UPDATE_HEADER_SIZE + b.len <= room);
    h.site = s->self;
    h.tau = h.weight = 1;
    h.tokens = 1;
    h.cls = NEB_SPARSE;
    h.rung = rung->id;
    h.length = (uint32_t)b.len;
    const struct neb_seal seal = neb__session_seal(s);
    assert_ok(neb__update_header_sign(&h, b.data, &s->genesis, &seal));
    neb__update_header_put(&h, out);
    memcpy(out + NEB_UPDATE_HEADER_SIZE, b.data, b.len);
    size_t size = NEB_UPDATE_HEADER_SIZE + b.len;
    neb__buf_free(&b);
    neb__free(z);
    return size;
}

/* Whether the victim stores this update of the liar; `busy` of the victim is held. */
static bool is_stored(neb_session *victim, neb_session *liar, struct neb_update_header h)
{
    static uint8_t bytes[1 << 20];
    struct neb_hash hash;
    size_t n = make_update(liar, h, bytes, sizeof bytes);
    neb__session_update(victim, liar->self, bytes, n);
    assert_ok(neb__hash(bytes, n, &hash));
    return neb__update_exists(&victim->updates.files, &hash);
}

/* A whole, well-formed cell, as a giver sends it: of the newest version, with a proof for some root. */
static uint8_t *make_cell(neb_session *s, uint32_t cell, size_t *size)
{
    struct neb_hash path[NEB_PROOF_MAX];
    int steps = 0;
    size_t first, n = neb__outer_cell(s->mirror.outer, cell, &first);
    size_t more = s->influence.on ? sizeof(struct neb_norms) : 0;
    assert_ok(neb__outer_prove(s->mirror.outer, cell, path, &steps));
    *size = 28 + 8 * n + more + (size_t)steps * NEB_HASH_SIZE;
    uint8_t *b = neb__calloc(1, *size);
    neb__put32(b, cell);
    neb__put64(b + 4, s->mirror.outer->version[cell] + 1);
    neb__put64(b + 12, 1);
    neb__put32(b + 20, (uint32_t)n);
    neb__put32(b + 24, (uint32_t)steps);
    memcpy(b + 28 + 8 * n + more, path, (size_t)steps * NEB_HASH_SIZE);
    return b;
}

/* Cells that nobody asked for: they would fill the memory, and put off those that a site waits for. */
static void cells_that_nobody_asked_for(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[SITES];
    begin_all(&sites, m);
    walk(m, SITES, 2);
    neb_session *s = m[0].s;
    pthread_mutex_lock(&s->busy);
    for (uint32_t c = 0; c < CELLS; c++) {
        size_t size;
        uint8_t *b = make_cell(s, c, &size);
        neb__session_cell(s, m[LIAR].s->self, b, size);
        assert_null(s->fetched[c].theta);
        neb__session_ask_cell(s, m[LIAR].s->self, c);
        neb__session_cell(s, m[LIAR].s->self, b, size); /* the same one is an answer now … */
        assert_non_null(s->fetched[c].theta);
        neb__free(s->fetched[c].theta);
        s->fetched[c].theta = NULL;
        neb__session_cell(s, m[LIAR].s->self, b, size); /* … once */
        assert_null(s->fetched[c].theta);
        neb__free(b);
    }
    pthread_mutex_unlock(&s->busy);
    walk(m, SITES, 4);
    end_all(&sites, m);
}

/* Updates of the liar, far ahead of the log, of no fragment, and more than a record can name. */
static void updates_that_nobody_needs(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[SITES];
    begin_all(&sites, m);
    walk(m, SITES, 4);
    neb_session *victim = m[0].s, *liar = m[LIAR].s;
    pthread_mutex_lock(&victim->busy);
    uint64_t v = neb__round_version(victim->core, 0), k = (uint64_t)1 << 40;
    uint32_t c1 = CELLS / 2;
    assert_false(is_stored(victim, liar, (struct neb_update_header){.c1 = c1, .k = k++, .b = 1 << 30}));
    assert_false(is_stored(victim, liar, (struct neb_update_header){.c1 = c1, .k = k++, .b = v + 3}));
    assert_int_equal(named, 0); /* the log here could be behind */
    victim->updates.ahead[liar->self].since -= (int64_t)20 * 1000000000;
    assert_false(is_stored(victim, liar, (struct neb_update_header){.c1 = c1, .k = k++, .b = v + 3}));
    assert_int_equal(named, 1);
    assert_false(is_stored(victim, liar, (struct neb_update_header){.c1 = 1, .k = k++, .b = v}));
    assert_int_equal(named, 2);
    int stored = 0;
    for (int i = 0; i < 50; i++)
        stored += is_stored(victim, liar, (struct neb_update_header){.c1 = c1, .k = k++, .b = v});
    assert_true(stored >= 1 && stored <= NEB_UPDATES_UNNAMED);
    assert_int_equal(named, 3);
    pthread_mutex_unlock(&victim->busy);
    assert_named(&m[0], "updates");
    assert_named(&m[0], "fragments");
    uint64_t bytes = victim->updates.files.bytes;
    walk(m, 2,
         status(&m[0]).applied + 8); /* the cells are some versions on: these go, and there is room again */
    pthread_mutex_lock(&victim->busy);
    v = neb__round_version(victim->core, 0);
    assert_true(is_stored(victim, liar, (struct neb_update_header){.c1 = c1, .k = k++, .b = v}));
    assert_true(victim->updates.unnamed.n < 20);
    (void)bytes;
    pthread_mutex_unlock(&victim->busy);
    end_all(&sites, m);
}

/* All sites start again, one with an edited job. The others go on without it, and it stops. */
static void another_model_at_a_restart(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[SITES];
    begin_all(&sites, m);
    walk(m, SITES, 4);
    int64_t before = status(&m[0]).applied;
    for (int i = 0; i < SITES; i++) neb_session_close(m[i].s);
    for (int i = SITES - 1; i >= 0; i--) begin(&m[i], sites.path[i], i == LIAR ? 0.5f : 0.7f);
    for (int i = 0; i < 12000 && !status(&m[LIAR]).halted; i++) sleep_ms(10);
    assert_true(status(&m[LIAR]).halted);
    assert_non_null(strstr(status(&m[LIAR]).note, "the settings of the run"));
    walk(m, 2, before + 4);
    assert_named(&m[0], "models");
    end_all(&sites, m);
}

/* Two sites start again, one with an edited job: the other has kept what they agreed on, and waits for it. */
static void of_two_sites_the_edited_one_stops(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2];
    sites_make(&sites, 2, NULL);
    check_log_quiet();
    for (int i = 0; i < 2; i++) {
        m[i].x = neb__calloc(VALUES, sizeof(float));
        begin(&m[i], sites.path[i], 0.7f);
    }
    walk(m, 2, 4);
    int64_t before = status(&m[0]).applied;
    for (int i = 0; i < 2; i++) neb_session_close(m[i].s);
    begin(&m[0], sites.path[0], 0.7f);
    begin(&m[1], sites.path[1], 0.5f);
    for (int i = 0; i < 12000 && !status(&m[1]).halted; i++) sleep_ms(10);
    assert_true(status(&m[1]).halted && !status(&m[0]).halted);
    neb_session_close(m[1].s);
    begin(&m[1], sites.path[1], 0.7f); /* mended */
    walk(m, 2, before + 4);
    for (int i = 0; i < 2; i++) {
        neb_session_close(m[i].s);
        neb__free(m[i].x);
    }
    check_log_restore();
    sites_free(&sites);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cells_that_are_asked_for),          cmocka_unit_test(cells_that_nobody_asked_for),
        cmocka_unit_test(updates_that_nobody_needs),         cmocka_unit_test(another_model_at_a_restart),
        cmocka_unit_test(of_two_sites_the_edited_one_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
