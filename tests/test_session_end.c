/* test_session_end.c: the end of a run: each site's last work goes in with the weight of its steps, whenever it is captured,
 * and all of its tokens are counted. */
#include "check.h"
#include "sites.h"
#include "base/mem.h"
#include "base/rng.h"
#include "run/end.h"

#include <nebula/nebula.h>
#include <pthread.h>
#include <string.h>

/* Two cells, each a fragment: both are captured without a step between. */
enum { VALUES = 300000, TOKENS = 64 };

struct member {
    neb_session *session;
    const char *dir;
    float *x, target;
    uint64_t token_target;
    const char *end; /* as in the session's settings */
    double end_bytes;
    int steps; /* to make; then it waits for the end, or comes back */
    bool to_end;
    neb_status status;
    pthread_t thread;
    void *state;
    size_t state_size;
};

static void prepare(struct member *m)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 10;
    c.fragments = 2;
    c.round_ms = 1500;
    c.rung = "int8";
    c.token_target = m->token_target;
    if (m->end) c.end = m->end;
    c.end_bytes = m->end_bytes;
    assert_ok(neb_session_open(m->dir, &c, &m->session));
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    assert_ok(neb_session_register(m->session, &p));
    if (m->state) assert_ok(neb_session_load(m->session, m->state, m->state_size));
}

static void open_member(struct member *m)
{
    prepare(m);
    assert_ok(neb_session_start(m->session, 10));
}

static void *train(void *arg)
{
    struct member *m = arg;
    bool changed;
    m->status = NEB_OK;
    for (int i = 0; i < m->steps && m->status == NEB_OK; i++) {
        for (int k = 0; k < VALUES; k++)
            m->x[k] += 0.004f * (m->target + 0.3f * (float)(neb__mix64((uint64_t)k) % 1000) / 1000 - m->x[k]);
        m->status = neb_step(m->session, TOKENS, &changed);
        sleep_ms(4);
    }
    while (m->to_end && (m->status == NEB_OK || m->status == NEB_ERR_AGAIN)) {
        m->status = neb_step_within(m->session, NEB_NO_STEP, 0.2, &changed);
        sleep_ms(20);
    }
    return NULL;
}

static void train_both(struct member m[2])
{
    for (int i = 0; i < 2; i++) pthread_create(&m[i].thread, NULL, train, &m[i]);
    for (int i = 0; i < 2; i++) pthread_join(m[i].thread, NULL);
}

/* Both sides' start waits for a quorum: each needs the other. */
static void *open_beside(void *arg)
{
    open_member(arg);
    return NULL;
}

static void open_both(struct member m[2])
{
    pthread_create(&m[0].thread, NULL, open_beside, &m[0]);
    open_member(&m[1]);
    pthread_join(m[0].thread, NULL);
}

static void make_both(struct sites *sites, struct member m[2], uint64_t token_target)
{
    sites_make(sites, 2, NULL);
    for (int i = 0; i < 2; i++)
        m[i] = (struct member){.dir = sites->path[i],
                               .x = neb__calloc(VALUES, sizeof(float)),
                               .target = i ? 1 : -0.5f,
                               .token_target = token_target};
    open_both(m);
}

static void drop_both(struct sites *sites, struct member m[2])
{
    for (int i = 0; i < 2; i++) {
        neb_session_close(m[i].session);
        neb__free(m[i].x);
        neb__free(m[i].state);
    }
    sites_free(sites);
}

static int64_t own_tokens(const struct member *m)
{
    struct neb_session_status s;
    neb_session_get_status(m->session, &s);
    return s.own_tokens;
}

/* The run has ended with one model, every update says the tokens of a step, and together they say all tokens; a step or two
 * may be made while the last capture is under way. */
static void ended_with_all(struct member m[2], int64_t tokens)
{
    for (int i = 0; i < 2; i++) assert_int_equal(m[i].status, NEB_ERR_CANCELLED);
    assert_memory_equal(m[0].x, m[1].x, VALUES * sizeof(float));
    const struct neb_record *rec, *last = NULL;
    pthread_mutex_lock(&m[0].session->busy);
    for (uint64_t i = 1; (rec = neb__round_record(m[0].session->core, i)); i++) {
        last = rec;
        for (uint32_t k = 0; k < rec->updates; k++)
            if (rec->update[k].weight != TOKENS)
                fail_msg("record %d: a step of site %d weighs %d tokens", (int)i, rec->update[k].site,
                         (int)rec->update[k].weight);
    }
    pthread_mutex_unlock(&m[0].session->busy);
    assert_int_equal(last->type, NEB_RECORD_FINAL);
    if ((int64_t)last->tokens > tokens || (int64_t)last->tokens < tokens - 2 * 3 * TOKENS)
        fail_msg("%d tokens of %d are in the model", (int)last->tokens, (int)tokens);
}

/* A finished run that is started again makes no more of the model, whatever checkpoint a site comes with. */
static void ends_again(struct member m[2])
{
    float *result = neb__malloc(VALUES * sizeof *result);
    memcpy(result, m[0].x, VALUES * sizeof *result);
    for (int i = 0; i < 2; i++) neb_session_close(m[i].session);
    open_both(m);
    for (int i = 0; i < 2; i++) m[i].steps = 1;
    train_both(m);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(m[i].status, NEB_ERR_CANCELLED);
        assert_memory_equal(m[i].x, result, VALUES * sizeof *result);
    }
    neb__free(result);
}

/* One site alone, started again with any values in its parameters: the end is on its disk, and so is the result. */
static void ends_again_alone(struct member m[2])
{
    struct neb_session_status st;
    bool changed;
    float *result = neb__malloc(VALUES * sizeof *result);
    memcpy(result, m[0].x, VALUES * sizeof *result);
    for (int i = 0; i < 2; i++) neb_session_close(m[i].session), m[i].session = NULL;
    for (int i = 0; i < 2; i++) {
        memset(m[i].x, 0, VALUES * sizeof *m[i].x);
        prepare(&m[i]);
        assert_ok(neb_session_start(m[i].session, 60));
        neb_session_get_status(m[i].session, &st);
        assert_true(st.ended && !strcmp(st.state, "ended"));
        assert_int_equal(neb_step_within(m[i].session, NEB_NO_STEP, 1, &changed), NEB_ERR_CANCELLED);
        assert_memory_equal(m[i].x, result, VALUES * sizeof *result);
        neb_session_close(m[i].session);
        m[i].session = NULL;
    }
    neb__free(result);
}

static void at_the_token_target_all_fragments_weigh_the_same(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2];
    make_both(&sites, m, 2 * TOKENS * 105);
    for (int i = 0; i < 2; i++) m[i].steps = 100000, m[i].to_end = true;
    train_both(m);
    ended_with_all(m, own_tokens(&m[0]) + own_tokens(&m[1]));
    ends_again_alone(m);
    drop_both(&sites, m);
}

static void come_back(struct member *m)
{
    neb__free(m->state);
    assert_ok(neb_session_save(m->session, NULL, &m->state_size));
    m->state = neb__malloc(m->state_size);
    assert_ok(neb_session_save(m->session, m->state, &m->state_size));
    neb_session_close(m->session);
}

/* Sites that come back when all steps are made bring their last work in without another step. */
static void right_after_a_restart_too(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2];
    make_both(&sites, m, 0);
    for (int i = 0; i < 2; i++) m[i].steps = 108;
    train_both(m);
    int64_t tokens = own_tokens(&m[0]) + own_tokens(&m[1]);
    for (int i = 0; i < 2; i++) come_back(&m[i]);
    open_both(m);
    for (int i = 0; i < 2; i++) {
        m[i].steps = 0, m[i].to_end = true;
        assert_ok(neb__session_done(m[i].session));
    }
    train_both(m);
    ended_with_all(m, tokens);
    ends_again(m);
    drop_both(&sites, m);
}

/* The third site was away when the run ended. It learns of the end, and gets the result, from one that is started again:
 * that one is done at once, but stays for it. */
static void a_site_that_was_away_learns_of_the_end(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[3];
    bool changed;
    sites_make(&sites, 3, NULL);
    for (int i = 0; i < 3; i++)
        m[i] = (struct member){.dir = sites.path[i],
                               .x = neb__calloc(VALUES, sizeof(float)),
                               .target = (float)i,
                               .token_target = TOKENS * 90};
    for (int i = 0; i < 3; i++) pthread_create(&m[i].thread, NULL, open_beside, &m[i]);
    for (int i = 0; i < 3; i++) pthread_join(m[i].thread, NULL);
    m[2].steps = 5;
    pthread_create(&m[2].thread, NULL, train, &m[2]);
    pthread_join(m[2].thread, NULL);
    neb_session_close(m[2].session);
    for (int i = 0; i < 2; i++) m[i].steps = 100000;
    train_both(m);
    for (int i = 0; i < 2; i++) assert_int_equal(m[i].status, NEB_ERR_CANCELLED);
    for (int i = 0; i < 2; i++) neb_session_close(m[i].session);
    memset(m[2].x, 0, VALUES * sizeof(float)); /* it has no checkpoint and begins as at first */
    prepare(&m[2]);
    assert_ok(neb_session_start(m[2].session, 0));
    prepare(&m[0]);
    assert_ok(neb_session_start(m[0].session, 60));
    struct neb_session_status st;
    do {
        sleep_ms(20);
        neb_session_get_status(m[0].session, &st);
    } while (st.ended && !st.peers_up);
    assert_true(st.ended);
    assert_int_equal(neb_step_within(m[0].session, NEB_NO_STEP, 1, &changed), NEB_ERR_CANCELLED);
    neb_session_close(m[0].session); /* stays until the other has the end */
    do m[2].status = neb_step_within(m[2].session, NEB_NO_STEP, 60, &changed);
    while (m[2].status == NEB_OK);
    assert_int_equal(m[2].status, NEB_ERR_CANCELLED);
    assert_memory_equal(m[0].x, m[2].x, VALUES * sizeof(float));
    neb_session_close(m[2].session);
    for (int i = 0; i < 3; i++) neb__free(m[i].x);
    sites_free(&sites);
}

/* Bytes of the updates of a site that records behind END name. */
static double bytes_of_the_end(struct member *m, uint16_t site)
{
    const struct neb_record *rec;
    double bytes = 0;
    bool end = false;
    pthread_mutex_lock(&m->session->busy);
    for (uint64_t i = 1; (rec = neb__round_record(m->session->core, i)); i++) {
        const struct neb_named *own = end ? neb__record_of(rec, site) : NULL;
        if (own) bytes += own->length;
        end |= rec->type == NEB_RECORD_END;
    }
    pthread_mutex_unlock(&m->session->busy);
    return bytes;
}

static double dropped(struct member *m)
{
    struct neb_session_status s;
    neb_session_get_status(m->session, &s);
    return s.dropped;
}

static double sent_at_the_end(struct member *m)
{
    struct neb_end_state e;
    pthread_mutex_lock(&m->session->busy);
    neb__end_get(m->session, &e);
    pthread_mutex_unlock(&m->session->busy);
    return e.sent;
}

/* The end costs no more than the job allows. The rest is dropped, and every site says how much. With `keep` everything
 * goes in. All sites have one model either way. */
static void the_end_has_a_price(void **state)
{
    (void)state;
    const double allowed = 100e3, exact = 4.0 * VALUES,
                 usual = 1.01 * VALUES; /* an update of each fragment */
    for (int keep = 0; keep < 2; keep++) {
        struct sites sites;
        struct member m[2];
        sites_make(&sites, 2, NULL);
        for (int i = 0; i < 2; i++)
            m[i] = (struct member){.dir = sites.path[i],
                                   .x = neb__calloc(VALUES, sizeof(float)),
                                   .target = i ? 1 : -0.5f,
                                   .token_target = 2 * TOKENS * 53,
                                   .end = keep ? "keep" : "drop",
                                   .end_bytes = allowed,
                                   .steps = 100000};
        open_both(m);
        train_both(m);
        for (int i = 0; i < 2; i++) assert_int_equal(m[i].status, NEB_ERR_CANCELLED);
        assert_memory_equal(m[0].x, m[1].x, VALUES * sizeof(float));
        for (uint16_t i = 0; i < 2; i++) {
            double bytes = bytes_of_the_end(&m[0], (uint16_t)(i + 1)), left = dropped(&m[i]),
                   sent = sent_at_the_end(&m[i]);
            bool much = sent > 1.1 * allowed || bytes > 1.1 * allowed + usual, all = bytes > 0.7 * exact;
            if (keep ? !all || left > 0 : much || !(left > 0))
                fail_msg("%s: site %d: %.0f bytes, %.0f of them last ones, %.3f dropped", m[i].end, i, bytes,
                         sent, left);
        }
        drop_both(&sites, m);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_the_token_target_all_fragments_weigh_the_same),
        cmocka_unit_test(right_after_a_restart_too),
        cmocka_unit_test(the_end_has_a_price),
        cmocka_unit_test(a_site_that_was_away_learns_of_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
