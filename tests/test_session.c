/* test_session.c: whole sessions over real links and real disks in one process: sites that pull a toy model towards their
 * own targets agree on the outer state to the bit, survive a restart, and refuse another model. */
#include "check.h"
#include "late_copies.h"
#include "sites.h"
#include "stepping.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/device.h"
#include "run/session.h"

#include <math.h>
#include <nebula/nebula.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 300000, PARAMS = 2 };

struct member {
    neb_session *session;
    const char *dir;
    float *x, target;
    int steps, made;
    atomic_bool stop;
    bool ended;
    bool saves; /* a checkpoint every 50 steps */
    bool still; /* makes steps that change next to nothing */
    neb_device *device;
    neb_status status;
    pthread_t thread;
    const char *rung;
    uint64_t token_target;
    double clip, noise;
    bool other_outer; /* the job, as it is by now, means another outer step than the run began with */
    void *state;
    size_t state_size;
};

static neb_status prepare_member(struct member *m)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 10;
    c.fragments = 2;
    c.round_ms = 1500;
    c.outer_lr = m->other_outer ? 0.7f : 1;
    c.outer_momentum = 0;
    c.rung = m->rung ? m->rung : "int8";
    c.token_target = m->token_target;
    c.clip = m->clip;
    c.noise = m->noise;
    NEB_TRY(neb_session_open(m->dir, &c, &m->session));
    if (m->other_outer) neb__session_keep_outer(m->session);
    int64_t half = VALUES / PARAMS;
    for (int i = 0; i < PARAMS; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        struct neb_session_param p = {
            .name = name, .ndim = 1, .shape = {half}, .values = m->x + i * half, .device = m->device};
        NEB_TRY(neb_session_register(m->session, &p));
    }
    return m->state ? neb_session_load(m->session, m->state, m->state_size) : NEB_OK;
}

static neb_status open_member(struct member *m)
{
    NEB_TRY(prepare_member(m));
    return neb_session_start(m->session, 0);
}

static void save(struct member *m)
{
    neb__free(m->state);
    assert_ok(neb_session_save(m->session, NULL, &m->state_size));
    m->state = neb__malloc(m->state_size);
    assert_ok(neb_session_save(m->session, m->state, &m->state_size));
}

/* One inner step: a little of the way to the site's own target. */
static void *train(void *arg)
{
    struct member *m = arg;
    for (m->made = 0; m->made < m->steps && !atomic_load(&m->stop); m->made++) {
        float pull = m->still ? 1e-6f : 0.004f;
        for (int i = 0; i < VALUES; i++) m->x[i] += pull * (m->target + 0.01f * (float)(i % 7) - m->x[i]);
        m->status = step_until(m->session, 64, &m->stop);
        if (m->status == NEB_ERR_CANCELLED) m->ended = true;
        if (m->status != NEB_OK) break;
        if (m->saves && m->made % 50 == 0) save(m);
        sleep_ms(4);
    }
    return NULL;
}

static void start(struct member *m, const char *dir, float target, int steps)
{
    *m = (struct member){.dir = dir,
                         .target = target,
                         .steps = steps,
                         .x = neb__calloc(VALUES, sizeof(float)),
                         .rung = m->rung,
                         .token_target = m->token_target,
                         .clip = m->clip,
                         .noise = m->noise,
                         .still = m->still,
                         .device = m->device};
    assert_ok(open_member(m));
}

/* Until the sites have a leader: the first election takes seconds. */
static void have_leader(struct member *m, int n)
{
    for (int i = 0; i < 2400; i++) {
        for (int k = 0; k < n; k++) {
            struct neb_session_status s;
            neb_session_get_status(m[k].session, &s);
            if (s.leader) return;
        }
        sleep_ms(50);
    }
    fail_msg("no leader after two minutes");
}

static void finish(struct member *m)
{
    pthread_join(m->thread, NULL);
}

static void drop(struct member *m)
{
    neb_session_close(m->session);
    neb__free(m->x);
    neb__free(m->state);
}

/* Whether two sessions stand at the same record; then their states are equal, and the roots they made by themselves. Both
 * drivers are held meanwhile: records may still come in. */
static bool at_one_record(struct member *a, struct member *b)
{
    struct neb_round_status s, t;
    struct neb_hash one, two;
    pthread_mutex_lock(&a->session->busy);
    pthread_mutex_lock(&b->session->busy);
    neb__round_status(a->session->core, &s);
    neb__round_status(b->session->core, &t);
    bool same = s.applied && s.applied == t.applied && s.whole && t.whole;
    if (same) {
        assert_ok(neb__outer_root(a->session->mirror.outer, &one));
        assert_ok(neb__outer_root(b->session->mirror.outer, &two));
    }
    pthread_mutex_unlock(&b->session->busy);
    pthread_mutex_unlock(&a->session->busy);
    if (!same) return false;
    assert_memory_equal(one.b, two.b, sizeof one.b);
    if (s.root_at == t.root_at) assert_memory_equal(s.root.b, t.root.b, sizeof s.root.b);
    if (s.root_at == s.applied) assert_memory_equal(s.root.b, one.b, sizeof one.b);
    if (a->ended) assert_true(s.root_at == s.applied);
    return true;
}

static void same_root(struct member *a, struct member *b)
{
    for (int i = 0; i < 2400; i++) {
        if (at_one_record(a, b)) return;
        sleep_ms(50);
    }
    fail_msg("the sites did not come to the same record");
}

static double mean(const float *x)
{
    double sum = 0;
    for (int i = 0; i < VALUES; i++) sum += (double)x[i];
    return sum / VALUES;
}

static void two_sites_agree_and_meet_between_their_targets(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2] = {0};
    sites_make(&sites, 2, NULL);
    for (int i = 0; i < 2; i++) start(&m[i], sites.path[i], i ? 1 : -0.5f, 700);
    have_leader(m, 2);
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 2; i++) finish(&m[i]);
    same_root(&m[0], &m[1]);
    struct neb_session_status s;
    neb_session_get_status(m[0].session, &s);
    printf("%d steps, %d commits, %d merges, %d updates, %d bytes out, encode %.3f s, apply %.3f s, wait "
           "%.3f s\n",
           (int)s.steps, (int)s.commits, (int)s.merges, (int)s.updates, (int)s.bytes_out, s.encode_s,
           s.apply_s, s.wait_s);
    if (s.commits < 10 || s.merges < 10)
        fail_msg("only %d commits, %d merges", (int)s.commits, (int)s.merges);
    for (int i = 0; i < 2; i++) {
        double x = mean(m[i].x);
        if (!(x > -0.1 && x < 0.75))
            fail_msg("site %d stands at %g, its own target is %g", i, x, (double)m[i].target);
    }
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

/* A site's own work, x - theta, and its open updates. Theta itself may stand a record lower after a restart: whether the
 * last one is committed only the others can tell. */
struct stand {
    float *u, *d;
    uint64_t open[8];
};

static struct stand look(struct member *m)
{
    struct stand k = {.u = neb__malloc(VALUES * sizeof(float)), .d = neb__malloc(VALUES * sizeof(float))};
    bool changed;
    assert_ok(neb_step_within(m->session, NEB_NO_STEP, 0, &changed)); /* what has come in is in x */
    pthread_mutex_lock(&m->session->busy);
    for (uint32_t c = 0; c < m->session->mirror.outer->cells; c++)
        k.open[c] = m->session->mirror.own[c].open.k;
    for (int i = 0; i < VALUES; i++) k.u[i] = m->x[i] - m->session->mirror.outer->theta[i];
    memcpy(k.d, m->session->mirror.d, VALUES * sizeof(float));
    pthread_mutex_unlock(&m->session->busy);
    return k;
}

static void same_stand(struct stand *a, struct stand *b)
{
    for (int i = 0; i < VALUES; i++)
        if (fabsf(a->u[i] - b->u[i]) > 1e-5f)
            fail_msg("value %d stood %g from theta before the restart, %g after it", i, (double)a->u[i],
                     (double)b->u[i]);
    assert_memory_equal(a->open, b->open, sizeof a->open);
    assert_memory_equal(a->d, b->d, VALUES * sizeof(float));
}

/* Without a checkpoint a site comes back with what its updates said and, coarsely, with what they left out. */
static void near_stand(struct stand *a, struct stand *b)
{
    double captured = 0, lost = 0;
    for (size_t i = 0; i < VALUES; i++) {
        if (!a->open[i / NEB_CELL]) continue;
        captured += pow((double)a->d[i], 2);
        lost += pow((double)a->d[i] - (double)b->d[i], 2);
        if (fabsf(b->u[i] - b->d[i]) > 1e-5f)
            fail_msg("value %d stands %g from theta, not %g", (int)i, (double)b->u[i], (double)b->d[i]);
    }
    if (lost > 0.04 * captured) fail_msg("%g of a delta of norm %g is lost", sqrt(lost), sqrt(captured));
}

static void stand_free(struct stand *k)
{
    neb__free(k->u);
    neb__free(k->d);
}

static void one_restart(struct member m[2], bool with_state)
{
    /* The peer goes first: from then on nothing can commit, and the updates of the last steps stay under way. */
    neb_session_close(m[0].session);
    m[1].steps = 40;
    train(&m[1]);
    struct stand before = look(&m[1]), after;
    bool any = false, more = true;
    for (int i = 0; i < 600 && (more || !any);
         i++) { /* until the updates are made, and no other one follows */
        struct stand last = before;
        sleep_ms(200);
        before = look(&m[1]);
        more = memcmp(before.open, last.open, sizeof last.open) != 0;
        for (int c = 0; c < 8; c++) any |= before.open[c] != 0;
        stand_free(&last);
    }
    if (!any) fail_msg("no update was under way");
    if (with_state) save(&m[1]);
    neb_session_close(m[1].session);
    /* x stays as it is: a trainer that comes back has put its checkpoint there, not the initial values */
    m[1].other_outer = true;
    assert_ok(open_member(&m[1]));
    assert_float_equal(m[1].session->config.outer_lr, 1, 0); /* that of its log */
    after = look(&m[1]);
    /* the snapshots are older: the replay moves x with theta */
    (with_state ? same_stand : near_stand)(&before, &after);
    stand_free(&before);
    stand_free(&after);
    assert_ok(open_member(&m[0]));
}

/* Both sites stop, one of them with updates under way, with or without a checkpoint; back again, both go on together. */
static void a_site_that_restarts_catches_up(void **state)
{
    (void)state;
    for (int with_state = 0; with_state < 2; with_state++) {
        struct sites sites;
        struct member m[2] = {0};
        sites_make(&sites, 2, NULL);
        if (!with_state) m[0].rung = m[1].rung = "sparse2";
        for (int i = 0; i < 2; i++)
            start(&m[i], sites.path[i], i ? 1 : -0.5f, 120); /* too few rounds for a snapshot */
        have_leader(m, 2);
        for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
        for (int i = 0; i < 2; i++) finish(&m[i]);
        struct neb_session_status before, after;
        neb_session_get_status(m[1].session, &before);
        one_restart(m, with_state);
        have_leader(m, 2);
        for (int i = 0; i < 2; i++) m[i].steps = 300, pthread_create(&m[i].thread, NULL, train, &m[i]);
        for (int i = 0; i < 2; i++) finish(&m[i]);
        same_root(&m[0], &m[1]);
        neb_session_get_status(m[1].session, &after);
        if (after.commits <= before.commits) fail_msg("no commit after the restart (%d)", (int)after.commits);
        for (int i = 0; i < 2; i++) drop(&m[i]);
        sites_free(&sites);
    }
}

/* Mean of what the live model has beyond theta. */
static double left_in(const struct member *m)
{
    double left = 0;
    pthread_mutex_lock(&m->session->busy);
    for (int i = 0; i < VALUES; i++) left += (double)(m->x[i] - m->session->mirror.outer->theta[i]) / VALUES;
    pthread_mutex_unlock(&m->session->busy);
    return left;
}

/* A site that cuts its updates to a small norm moves theta by no more than that, one that blurs them leaves its mark in every
 * value; neither keeps anything back. */
static void privacy_drops_what_it_does_not_tell(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2] = {{.rung = "int8", .clip = 0.5}, {.rung = "int8", .clip = 0.5, .noise = 0.02}};
    sites_make(&sites, 2, NULL);
    for (int i = 0; i < 2; i++) start(&m[i], sites.path[i], 1, 200);
    have_leader(m, 2);
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 2; i++) finish(&m[i]);
    /* What the open intervals did is captured while next to nothing is added; a slow machine needs more steps for it. */
    for (int turn = 0; turn < 12 && (!turn || left_in(&m[0]) > 0.2); turn++) {
        for (int i = 0; i < 2; i++) {
            m[i].still = true, m[i].steps = 50;
            pthread_create(&m[i].thread, NULL, train, &m[i]);
        }
        for (int i = 0; i < 2; i++) finish(&m[i]);
    }
    same_root(&m[0], &m[1]);
    struct neb_session_status s;
    neb_session_get_status(m[0].session, &s);
    pthread_mutex_lock(&m[0].session->busy);
    const float *theta = m[0].session->mirror.outer->theta;
    double moved = 0, spread = 0;
    for (int i = 0; i < VALUES; i++) moved += (double)theta[i] / VALUES;
    for (int i = 0; i < VALUES; i++) spread += pow((double)theta[i] - moved, 2) / VALUES;
    pthread_mutex_unlock(&m[0].session->busy);
    /* Uncut, theta would be near 0.5 by now; a cut update moves a value by at most 0.5 / sqrt(values of its cells). */
    double most = (double)s.commits * 0.5 / sqrt(VALUES / 2.0);
    if (!(moved > 0 && moved < most)) fail_msg("theta moved by %g, at most %g was told", moved, most);
    if (!(sqrt(spread) > 0.01)) fail_msg("a deviation of %g: where is the noise?", sqrt(spread));
    /* Kept back, what was not told would be near 0.5 for good. */
    if (left_in(&m[0]) > 0.2) fail_msg("%g of the work stays in the live model", left_in(&m[0]));
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

/* At the token target everything is flushed, and every site holds the same model: theta. */
static void the_run_ends_with_one_model(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2] = {{.token_target = 2 * 64 * 150}, {.token_target = 2 * 64 * 150}};
    sites_make(&sites, 2, NULL);
    for (int i = 0; i < 2; i++) start(&m[i], sites.path[i], i ? 1 : -0.5f, 100000);
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 2; i++) finish(&m[i]);
    for (int i = 0; i < 2; i++)
        if (!m[i].ended) fail_msg("site %d did not end: %s", i, neb_status_name(m[i].status));
    same_root(&m[0], &m[1]);
    struct neb_session_status s, t;
    neb_session_get_status(m[0].session, &s);
    neb_session_get_status(m[1].session, &t);
    assert_true(s.tokens >= 2 * 64 * 150); /* each token counts once, although both fragments learn of it */
    if (s.tokens > s.own_tokens + t.own_tokens)
        fail_msg("%d tokens of %d", (int)s.tokens, (int)(s.own_tokens + t.own_tokens));
    for (int i = 0; i < VALUES; i++) assert_true(fabsf(m[0].x[i] - m[1].x[i]) < 1e-5f);
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

static void another_model_is_refused(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2] = {0};
    sites_make(&sites, 2, NULL);
    check_log_quiet();
    for (int i = 0; i < 2; i++) {
        m[i] = (struct member){.dir = sites.path[i], .steps = 2000, .x = neb__calloc(VALUES, sizeof(float))};
        m[i].x[5] = (float)i; /* another initial value */
        assert_ok(open_member(&m[i]));
    }
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 2; i++) finish(&m[i]);
    check_log_restore();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(m[i].status, NEB_ERR_CONFIG);
        struct neb_session_status s;
        neb_session_get_status(m[i].session, &s);
        assert_non_null(strstr(s.note, "initial values"));
        assert_int_equal(s.commits, 0);
        drop(&m[i]);
    }
    sites_free(&sites);
}

static void *start_and_leave(void *arg)
{
    struct member *m = arg;
    m->status = neb_session_start(m->session, 5);
    neb_session_close(m->session);
    return NULL;
}

static bool model_waits(neb_session *s)
{
    bool found = false;
    pthread_mutex_lock(&s->driver.queue.lock);
    for (int k = 0; k < NEB_LANES; k++)
        for (const struct neb_item *i = s->driver.queue.lane[k].head; i; i = i->next)
            found |= i->type == NEB_ITEM_MESSAGE && i->kind == NEB_MSG_MODEL;
    pthread_mutex_unlock(&s->driver.queue.lock);
    return found;
}

static void doze(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
    sleep_ms(300);
}

/* The second site finds the difference and leaves while its links' thread is late: its own message is still to be sent. */
static void a_site_that_leaves_tells_the_other_why(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2] = {0};
    atomic_bool dozes = false;
    sites_make(&sites, 2, NULL);
    check_log_quiet();
    for (int i = 0; i < 2; i++) {
        m[i] = (struct member){.dir = sites.path[i], .x = neb__calloc(VALUES, sizeof(float))};
        m[i].x[5] = (float)i; /* another initial value */
        assert_ok(prepare_member(&m[i]));
    }
    neb_session *late = m[1].session;
    pthread_mutex_lock(&late->busy); /* its driver waits */
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, start_and_leave, &m[i]);
    for (int i = 0; i < 6000 && !model_waits(late); i++) sleep_ms(10);
    assert_ok(neb__net_post(late->net, doze, &dozes));
    while (!atomic_load(&dozes)) sleep_ms(1);
    pthread_mutex_unlock(&late->busy);
    for (int i = 0; i < 2; i++) pthread_join(m[i].thread, NULL);
    check_log_restore();
    for (int i = 0; i < 2; i++) {
        if (m[i].status != NEB_ERR_CONFIG) fail_msg("site %d was not told that the models differ", i);
        neb__free(m[i].x);
    }
    sites_free(&sites);
}

static void three_sites_go_on_when_one_is_gone(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[3] = {0};
    sites_make(&sites, 3, NULL);
    for (int i = 0; i < 3; i++) start(&m[i], sites.path[i], (float)i - 1, 150);
    have_leader(m, 3);
    for (int i = 0; i < 3; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 3; i++) finish(&m[i]);
    struct neb_session_status before, after;
    neb_session_close(m[0].session);
    neb_session_get_status(m[1].session, &before);
    for (int turn = 0; turn < 12; turn++) { /* a slow machine needs more steps until the absence is settled */
        for (int i = 1; i < 3; i++) m[i].steps = 400, pthread_create(&m[i].thread, NULL, train, &m[i]);
        for (int i = 1; i < 3; i++) finish(&m[i]);
        neb_session_get_status(m[1].session, &after);
        if (after.commits > before.commits + 2) break;
    }
    same_root(&m[1], &m[2]);
    if (after.commits <= before.commits + 2)
        fail_msg("%d commits with three, %d with two", (int)before.commits, (int)after.commits);
    m[0].session = NULL;
    for (int i = 0; i < 3; i++) drop(&m[i]);
    sites_free(&sites);
}

/* A disk on which nothing can be written: the real one, but for its writes. */
static const struct neb_disk_ops *real_ops;
static struct neb_disk_ops full_ops;

static neb_status no_room(void *ctx, const char *name, uint64_t at, const void *from, size_t n)
{
    (void)ctx, (void)name, (void)at, (void)from, (void)n;
    return neb__quiet(NEB_ERR_NOSPACE, "no space left on device");
}

static void fill_disk(struct member *m, bool full)
{
    pthread_mutex_lock(&m->session->busy); /* between two events of the session's own thread */
    if (full) {
        real_ops = m->session->disk.ops;
        full_ops = *real_ops;
        full_ops.write = no_room;
    }
    m->session->disk.ops = full ? &full_ops : real_ops;
    pthread_mutex_unlock(&m->session->busy);
}

static struct neb_session_status status_of(struct member *m)
{
    struct neb_session_status s;
    neb_session_get_status(m->session, &s);
    return s;
}

/* Nothing commits on the word of a site that cannot store it; training goes on, and so do rounds when there is room. */
static void a_full_disk_stops_commits_until_there_is_room(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2] = {0};
    sites_make(&sites, 2, NULL);
    check_log_quiet();
    for (int i = 0; i < 2; i++) start(&m[i], sites.path[i], i ? 1 : -0.5f, 1000000);
    have_leader(m, 2);
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 2400 && status_of(&m[1]).applied < 3; i++) sleep_ms(50);
    fill_disk(&m[1], true);
    for (int i = 0; i < 2400 && !status_of(&m[1]).disk_full; i++) sleep_ms(50);
    struct neb_session_status full = status_of(&m[1]);
    assert_true(full.disk_full);
    sleep_ms(2500);
    struct neb_session_status later = status_of(&m[1]);
    assert_true(later.applied <= full.applied + 2); /* at most what was under way */
    assert_true(later.steps > full.steps);
    assert_false(later.halted);
    fill_disk(&m[1], false);
    for (int i = 0; i < 2400 && status_of(&m[1]).applied < later.applied + 3; i++) sleep_ms(50);
    assert_true(status_of(&m[1]).applied >= later.applied + 3);
    assert_false(status_of(&m[1]).disk_full);
    for (int i = 0; i < 2; i++) atomic_store(&m[i].stop, true), finish(&m[i]);
    check_log_restore();
    same_root(&m[0], &m[1]);
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

static int update_files(const char *site)
{
    char command[400], line[32] = "";
    snprintf(command, sizeof command, "ls %s/run | grep -c '^p-'", site);
    FILE *f = popen(command, "r");
    if (f && !fgets(line, sizeof line, f)) line[0] = 0;
    if (f) pclose(f);
    return atoi(line);
}

/* Updates that everybody has applied and two snapshots cover go; what remains does not grow with the run. */
static void old_updates_are_removed(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2] = {0};
    sites_make(&sites, 2, NULL);
    for (int i = 0; i < 2; i++) start(&m[i], sites.path[i], i ? 1 : -0.5f, 1000000), m[i].saves = true;
    have_leader(m, 2);
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 4000 && status_of(&m[0]).applied < 100; i++) sleep_ms(50);
    struct neb_session_status s = status_of(&m[0]);
    int files = update_files(sites.path[0]);
    printf("%d records, %d updates on disk\n", (int)s.applied, files);
    assert_true(s.applied >= 100);
    assert_true(files > 0 && files < 2 * 100 - 40);
    assert_true(s.stored > 0);
    for (int i = 0; i < 2; i++) atomic_store(&m[i].stop, true), finish(&m[i]);
    same_root(&m[0], &m[1]);
    for (int i = 0; i < 2; i++) drop(&m[i]);
    sites_free(&sites);
}

/* ---- parameters on a device whose side copies take their time -------------------------------------------------- */

/* Steps until nothing is left to merge, and compares x with theta before another round can come in. */
static double beside_theta(struct member *m)
{
    double worst = -1;
    for (int i = 0; worst < 0 && i < 400; i++) {
        bool changed;
        assert_ok(neb_step(m->session, 64, &changed));
        pthread_mutex_lock(&m->session->busy);
        pthread_mutex_lock(&m->session->lock);
        bool merged = !m->session->mirror.edits;
        pthread_mutex_unlock(&m->session->lock);
        for (int k = 0; merged && k < VALUES; k++)
            worst = fmax(worst, fabs((double)(m->x[k] - m->session->mirror.outer->theta[k])));
        pthread_mutex_unlock(&m->session->busy);
        sleep_ms(5);
    }
    return worst;
}

/* A site that adds next to nothing of its own stands at theta when all is merged: nothing lost on the way, nothing twice. */
static void a_device_that_copies_beside_the_training(void **state)
{
    (void)state;
    struct late late;
    struct neb_session_status s;
    struct member m[2] = {{.rung = "fp32", .still = true}, {.rung = "fp32"}};
    struct sites sites;
    sites_make(&sites, 2, NULL);
    late_open(&late);
    for (int i = 0; i < 2; i++) m[i].device = &late.device[i];
    for (int i = 0; i < 2; i++) start(&m[i], sites.path[i], 1, 600);
    have_leader(m, 2);
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 2; i++) finish(&m[i]);
    double off = beside_theta(&m[0]);
    neb_session_get_status(m[0].session, &s);
    printf("%d records, %d merges, %d side copies; at %g, %g from theta\n", (int)s.applied, (int)s.merges,
           late_copies(), mean(m[0].x), off);
    assert_true(late_copies() > 10 && mean(m[0].x) > 0.1);
    assert_true(off >= 0 && off < 1e-3);
    for (int i = 0; i < 2; i++) drop(&m[i]);
    late_close(&late);
    sites_free(&sites);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_sites_agree_and_meet_between_their_targets),
        cmocka_unit_test(a_site_that_restarts_catches_up),
        cmocka_unit_test(privacy_drops_what_it_does_not_tell),
        cmocka_unit_test(the_run_ends_with_one_model),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(a_site_that_leaves_tells_the_other_why),
        cmocka_unit_test(three_sites_go_on_when_one_is_gone),
        cmocka_unit_test(a_full_disk_stops_commits_until_there_is_room),
        cmocka_unit_test(old_updates_are_removed),
        cmocka_unit_test(a_device_that_copies_beside_the_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
