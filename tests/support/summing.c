/* summing.c: see summing.h. */
#include "summing.h"
#include "check.h"
#include "run/secure.h"
#include "sites.h"
#include "stepping.h"

static void *train(void *arg)
{
    struct summing *m = arg;
    while (!atomic_load(&m->stop) && m->status == NEB_OK) {
        for (int i = 0; i < SUMMING_VALUES; i++)
            m->x[i] += 0.02f * (m->target * (float)(1 + i % 7) - m->x[i]);
        m->status = step_until(m->session, 64, &m->stop);
        sleep_ms(2);
    }
    return NULL;
}

void summing_begin(struct summing *m, const char *dir, float target)
{
    struct neb_session_config c = neb_session_defaults();
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {SUMMING_VALUES}, .values = m->x};
    for (int i = 0; i < SUMMING_VALUES; i++) m->x[i] = 0.25f * (float)(i % 5);
    c.interval = 5;
    c.round_ms = 700;
    c.outer_lr = 1;
    c.outer_momentum = 0.3f;
    c.archive = true;
    m->dir = dir;
    m->target = target;
    m->status = NEB_OK;
    atomic_store(&m->stop, false);
    assert_ok(neb_session_open(dir, &c, &m->session));
    assert_ok(neb__session_set_secure(m->session));
    assert_ok(neb_session_register(m->session, &p));
    if (m->checkpoint.len) assert_ok(neb_session_load(m->session, m->checkpoint.data, m->checkpoint.len));
    assert_ok(neb_session_start(m->session, 0));
    pthread_create(&m->thread, NULL, train, m);
}

void summing_halt(struct summing *m)
{
    atomic_store(&m->stop, true);
    pthread_join(m->thread, NULL);
    assert_ok(m->status);
}

void summing_end(struct summing *m)
{
    if (!m->session) return;
    summing_halt(m);
    neb_session_close(m->session);
    m->session = NULL;
}

/* Sums that this site has applied: `with`, whose updates. */
int summing_sums(struct summing *m, unsigned with, int *voids)
{
    int n = 0;
    *voids = 0;
    pthread_mutex_lock(&m->session->busy);
    struct neb_round_status st;
    neb__round_status(m->session->core, &st);
    for (uint64_t i = 1; i <= st.applied; i++) {
        const struct neb_record *rec = neb__round_record(m->session->core, i);
        assert_true(rec->type != NEB_RECORD_ROUND || rec->attempt);
        *voids += neb__record_is_void(rec);
        n += rec->type == NEB_RECORD_ROUND && rec->seeds && (!with || neb__record_of(rec, with));
    }
    pthread_mutex_unlock(&m->session->busy);
    return n;
}

void summing_wait(struct summing *m, unsigned with, int more)
{
    int voids, until = summing_sums(m, with, &voids) + more;
    for (int i = 0; i < 20000 && summing_sums(m, with, &voids) < until; i++) sleep_ms(50);
    int n = summing_sums(m, with, &voids);
    if (n < until) fail_msg("%d of %d sums, %d void", n, until, voids);
}

void summing_save(struct summing *m)
{
    size_t n = 0;
    assert_ok(neb_session_save(m->session, NULL, &n));
    neb__buf_init(&m->checkpoint, n);
    assert_ok(neb__buf_reserve(&m->checkpoint, n));
    assert_ok(neb_session_save(m->session, m->checkpoint.data, &n));
    m->checkpoint.len = n;
}
