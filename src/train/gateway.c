/* gateway.c: the gateway's end of a site's ranks: orders, and the return of ranks that were lost.
 *
 * An order either gets an answer, or the ranks are lost: the channel ends, the launcher ends, a step takes far
 * longer than any before, or the first rank does nothing at all any more. Then all ranks are started again. They begin at the newest checkpoint on disk and
 * repeat the journal from its mark on, so that they stand where they stood; then the order is given again. Several
 * losses without a new checkpoint in between are no accident, and end the training. */
#define _GNU_SOURCE /* memfd_create */
#include "train/gate.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "train/gate_life.h"
#include "train/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TRIES = 3, LOOK_MS = 50, END_SECONDS = 20, STOP_SECONDS = 3 };
static const size_t journal_at_least = (size_t)256 << 20;

struct neb_gate {
    struct neb_trainer *t;
    struct neb_launch *launch;
    struct neb_gate_channel channel;
    struct neb_gate_journal journal;
    struct neb_gate_ready ready;
    struct neb_gate_param *params; /* (ready.params) */
    float *window;                 /* (ready.values) */
    size_t window_bytes;
    int window_fd;
    int64_t saved;             /* the newest checkpoint on disk that is known of; -1: none */
    double waited;             /* for data */
    double recovered;          /* seconds without ranks, in all */
    double longest;            /* seconds of a step */
    int64_t asked;             /* when the order was given that is limited in time; 0: it is not */
    struct neb_gate_life life; /* of the first rank */
    int64_t stop_ns;           /* when a rank said that it was asked for the end; 0: none */
    bool lost;                 /* the ranks are not there any more */
    char why[NEB_GATE_TEXT];
    int losses;                   /* since a checkpoint was written */
    int64_t losses_at;            /* which one */
    bool begun, recovering;       /* begun: the meter runs */
    struct neb_stage_facts stage; /* of the last step */
    int depth;                    /* of the next one; 0: as it is */
    struct neb_buf values;        /* of a stage's message */
    neb_status pending;           /* what went wrong with one that needs no reply */
    struct neb_step_key secret;   /* with the journal's salts it gives the keys of private steps */
};

/* ---- waiting for an answer --------------------------------------------------------------------------------- */

static neb_status lose(struct neb_gate *g, const char *why)
{
    if (!g->lost) snprintf(g->why, sizeof g->why, "%s", why);
    g->lost = true;
    return neb__quiet(NEB_ERR_PEER, "%s", g->why);
}

/* A rank that hangs is found by the others. This is for all of them at once. */
static bool takes_too_long(const struct neb_gate *g)
{
    if (!g->asked || g->longest <= 0) return false;
    return neb__seconds_since(g->asked) > 2 * g->t->job->parallel.timeout + 10 * g->longest;
}

/* While the first rank evaluates or writes, the others wait for it without a limit. */
static bool first_is_still(struct neb_gate *g)
{
    return g->begun && neb__gate_life_still(&g->life) > 2 * g->t->job->parallel.timeout;
}

static neb_status turn(void *gate)
{
    struct neb_gate *g = gate;
    char why[80];
    int code;
    if (neb__launch_ended(g->launch, &code)) {
        snprintf(why, sizeof why, "exit status %d", code);
        if (neb__launch_lost(code) || g->begun) return lose(g, why);
        return neb__quiet(NEB_ERR_CONFIG, "the ranks ended before they had begun (exit status %d)", code);
    }
    if (takes_too_long(g)) {
        neb__warn("the ranks have made no step for %.0f s", neb__seconds_since(g->asked));
        return lose(g, "no rank makes progress");
    }
    if (first_is_still(g)) {
        neb__warn("the first rank has done nothing for %.0f s: it is stopped or hangs",
                  2 * g->t->job->parallel.timeout);
        return lose(g, "the first rank does nothing");
    }
    if (g->begun) neb__trainer_sample(g->t, g->recovering ? "recovering" : "training", false);
    if (*g->t->stop && (!g->begun || g->recovering))
        return neb__quiet(NEB_ERR_CANCELLED, "stopped while the ranks were starting");
    return NEB_OK;
}

static neb_status receive(struct neb_gate *g, void *bytes, size_t n)
{
    neb_status status = neb__gate_channel_receive(&g->channel, bytes, n, NULL, turn, g);
    return status == NEB_ERR_PEER ? lose(g, "the first rank is gone") : status;
}

static void heed(struct neb_gate *g, const struct neb_gate_answer *a)
{
    g->waited = a->waited;
    if (a->saved > g->saved) {
        g->saved = a->saved;
        neb__gate_journal_durable(&g->journal, a->saved);
    }
    /* A launcher that ends its ranks also asks them. Then they are gone soon, and it was not the user. */
    if (!a->stop || a->lost) return;
    if (!g->stop_ns)
        g->stop_ns = neb__now_ns();
    else if (neb__seconds_since(g->stop_ns) > STOP_SECONDS)
        neb__train_ask();
}

/* While the gateway does what a rank has asked for, that rank waits; then the time of its order begins anew. */
static neb_status serve(struct neb_gate *g, const struct neb_gate_ask *q)
{
    if (!g->t->stage)
        return neb__fail(NEB_ERR_INTERNAL, "the ranks ask for another stage, and there is none");
    const bool timed = g->asked != 0;
    g->asked = 0;
    neb_status status = neb__gate_stage_serve(g->t->stage, &g->channel, q, &g->values, &g->pending, turn, g);
    g->asked = timed ? neb__now_ns() : 0;
    neb__gate_life_reset(&g->life);
    return status == NEB_ERR_PEER ? lose(g, "the first rank is gone") : status;
}

neb_status neb__gate_alive(struct neb_gate *g)
{
    neb__gate_life_reset(&g->life);
    return turn(g);
}

static neb_status receive_answer(struct neb_gate *g, struct neb_gate_answer *a)
{
    g->pending = NEB_OK;
    for (;;) {
        struct neb_gate_ask q;
        NEB_TRY(receive(g, &q, sizeof q));
        if (q.kind == NEB_GATE_ANSWERS) break;
        NEB_TRY(serve(g, &q));
    }
    NEB_TRY(receive(g, a, sizeof *a));
    return g->pending;
}

/* Gives one order. g->lost: the ranks were lost over it. */
static neb_status call(struct neb_gate *g, const struct neb_gate_order *o, int pass,
                       struct neb_gate_answer *a)
{
    memset(a, 0, sizeof *a);
    if (neb__gate_channel_send(&g->channel, o, sizeof *o, pass) != NEB_OK)
        return lose(g, "the first rank is gone");
    g->asked = o->op == NEB_GATE_STEP ? neb__now_ns() : 0;
    neb__gate_life_reset(&g->life);
    NEB_TRY(receive_answer(g, a));
    if (o->op == NEB_GATE_STEP && !g->t->stage && neb__seconds_since(g->asked) > g->longest)
        g->longest = neb__seconds_since(g->asked);
    a->why[sizeof a->why - 1] = '\0';
    heed(g, a);
    if (a->lost) return lose(g, a->why);
    return a->status == NEB_OK ? NEB_OK : neb__quiet(a->status, "%s", a->why);
}

/* ---- the ranks come ---------------------------------------------------------------------------------------- */

static neb_status await_connection(struct neb_gate *g)
{
    bool there = false;
    while (!there) {
        struct pollfd p = {.fd = g->channel.listener, .events = POLLIN};
        if (poll(&p, 1, LOOK_MS) > 0) NEB_TRY(neb__gate_channel_accept(&g->channel, &there));
        if (!there) NEB_TRY(turn(g));
    }
    return NEB_OK;
}

static neb_status malformed(void)
{
    return neb__fail(NEB_ERR_INTERNAL, "the first rank describes a model that cannot be");
}

static neb_status check_param(const struct neb_gate_param *p, uint64_t at)
{
    uint64_t n = 1;
    if (p->name[NEB_GATE_NAME - 1] || p->ndim < 1 || p->ndim > 4 || p->first != at) return malformed();
    for (int i = 0; i < p->ndim; i++) {
        if (p->shape[i] < 1 || n > ((uint64_t)1 << 40) / (uint64_t)p->shape[i]) return malformed();
        n *= (uint64_t)p->shape[i];
    }
    return n == p->count ? NEB_OK : malformed();
}

static neb_status read_params(struct neb_gate *g)
{
    uint64_t at = 0;
    if (!g->ready.params || g->ready.params > NEB_GATE_PARAMS) return malformed();
    if (!g->params) g->params = NEB_NEW_ARRAY(struct neb_gate_param, g->ready.params);
    if (!g->params) return neb__fail(NEB_ERR_NOMEM, "out of memory for the names of the parameters");
    for (uint32_t i = 0; i < g->ready.params; i++) {
        NEB_TRY(receive(g, &g->params[i], sizeof g->params[i]));
        NEB_TRY(check_param(&g->params[i], at));
        at += g->params[i].count;
    }
    return at == g->ready.values ? NEB_OK : malformed();
}

static neb_status make_window(struct neb_gate *g)
{
    g->window_bytes = g->ready.values * sizeof *g->window;
    g->window_fd = memfd_create("nebula-i window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    /* a rank that made it smaller would end this process */
    if (g->window_fd < 0 || ftruncate(g->window_fd, (off_t)g->window_bytes) ||
        fcntl(g->window_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        return neb__fail(NEB_ERR_NOMEM, "no memory for a window of %zu bytes: %s", g->window_bytes,
                         strerror(errno));
    void *p = mmap(NULL, g->window_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, g->window_fd, 0);
    if (p == MAP_FAILED) return neb__fail(NEB_ERR_NOMEM, "the window cannot be mapped: %s", strerror(errno));
    g->window = p;
    return NEB_OK;
}

/* The user may have changed the job or installed another program since this process began. */
static neb_status check_same(struct neb_gate *g)
{
    const struct neb_job *job = g->t->job;
    struct neb_ranks_sums ranks, own = neb__ranks_sums(job);
    NEB_TRY(receive(g, &ranks, sizeof ranks));
    if (ranks.program == own.program && ranks.job == own.job) return NEB_OK;
    return neb__fail(
        NEB_ERR_STATE,
        "the ranks were started with another %s than this process: %s was changed meanwhile; start "
        "the site again, it goes on from its newest checkpoint",
        ranks.program != own.program ? "program" : "job",
        ranks.program != own.program ? "nebula-i" : job->doc.file);
}

static neb_status read_ready(struct neb_gate *g)
{
    struct neb_gate_ready r;
    NEB_TRY(check_same(g));
    NEB_TRY(receive(g, &r, sizeof r));
    r.why[sizeof r.why - 1] = '\0';
    if (r.lost) return lose(g, r.why);
    if (r.status != NEB_OK) return neb__quiet(r.status, "%s", r.why);
    if (g->params && (r.values != g->ready.values || r.params != g->ready.params)) return malformed();
    if (r.samples < 0 || (!strcmp(g->t->job->privacy.unit, "sample") && !r.samples)) return malformed();
    if (g->params && r.samples != g->ready.samples)
        return neb__fail(NEB_ERR_STATE,
                         "the site had %" PRId64 " private samples and has %" PRId64
                         " now: its text was changed. Start the site again",
                         g->ready.samples, r.samples);
    g->ready = r;
    if (g->t->job->plan == NEB_STRATEGY_PIPELINE && g->t->job->at >= 0) return NEB_OK; /* no window */
    NEB_TRY(read_params(g));
    if (!g->window) NEB_TRY(make_window(g));
    return neb__gate_channel_send(&g->channel, "w", 1, g->window_fd);
}

static neb_status start(struct neb_gate *g)
{
    g->lost = false;
    g->asked = g->stop_ns = 0;
    NEB_TRY(neb__gate_channel_offer(&g->channel));
    NEB_TRY(neb__launch_start(g->launch));
    NEB_TRY(await_connection(g));
    neb__gate_life_begin(&g->life, g->channel.fd);
    return read_ready(g);
}

static void stop(struct neb_gate *g)
{
    neb__gate_channel_close(&g->channel);
    neb__launch_stop(g->launch);
}

/* ---- the ranks come back ----------------------------------------------------------------------------------- */

static neb_status repeat(struct neb_gate *g, const struct neb_gate_entry *e)
{
    struct neb_gate_order o = {.op = NEB_GATE_SHARE, .first = e->first, .n = e->n};
    struct neb_gate_answer a;
    if (e->type != NEB_GATE_JOURNAL_VALUES) NEB_TRY(neb__gate_step_order(&g->secret, e, 0, &o));
    neb_status status = call(g, &o, -1, &a);
    neb__step_key_wipe(&o.key);
    if (status != NEB_OK && status != NEB_ERR_NONFINITE) return status;
    return neb__gate_check_repeated(e, &a);
}

static neb_status replay(struct neb_gate *g)
{
    struct neb_gate_entry e;
    bool more;
    if (!g->begun) return NEB_OK;
    NEB_TRY(neb__gate_journal_seek(&g->journal, g->ready.loaded));
    for (;;) {
        NEB_TRY(neb__gate_journal_next(&g->journal, g->window, g->ready.values, &e, &more));
        if (!more) return NEB_OK;
        NEB_TRY(repeat(g, &e));
    }
}

static neb_status count_loss(struct neb_gate *g)
{
    const struct neb_job *job = g->t->job;
    if (g->saved > g->losses_at) g->losses = 0;
    g->losses_at = g->saved;
    char from[80] = "from the beginning";
    if (g->saved >= 0) snprintf(from, sizeof from, "from the checkpoint of step %" PRId64, g->saved);
    neb__warn("a rank was lost (%s): starting all %d again %s", g->why, neb__job_ranks(job), from);
    if (g->begun)
        neb__meter_event(&g->t->meter, g->t->progress.step, "rank lost", "%s; the ranks start again %s",
                         g->why, from);
    if (++g->losses < TRIES) return NEB_OK;
    return neb__fail(
        NEB_ERR_PEER,
        "ranks were lost %d times without a new checkpoint in between; see %s/ranks/*.log and the "
        "lines above",
        TRIES, job->out);
}

/* The ranks of a stage need the messages of their neighbours once more: the site starts again as a whole (train.c). */
static neb_status recover(struct neb_gate *g)
{
    int64_t since = neb__now_ns();
    if (g->t->stage) return neb__quiet(NEB_ERR_PEER, "a rank was lost (%s)", g->why);
    neb_status status;
    g->recovering = g->begun;
    do {
        stop(g);
        status = count_loss(g);
        if (status != NEB_OK) break;
        status = start(g);
        if (status == NEB_OK) status = replay(g);
    } while (g->lost);
    g->recovering = false;
    if (status != NEB_OK || !g->begun) return status;
    double took = neb__seconds_since(since);
    g->recovered += took;
    neb__meter_add(&g->t->meter, NEB_TIME_RECOVER, took);
    neb__meter_event(&g->t->meter, g->t->progress.step, "ranks back", "after %.1f s", took);
    neb__info("the ranks are back at step %" PRId64 " after %.1f s", g->t->progress.step, took);
    return NEB_OK;
}

/* Gives an order until it is answered. */
static neb_status carry_out(struct neb_gate *g, const struct neb_gate_order *o, struct neb_gate_answer *a)
{
    for (;;) {
        neb_status status = call(g, o, -1, a);
        if (!g->lost) return status;
        NEB_TRY(recover(g));
    }
}

/* ---- opening and closing ----------------------------------------------------------------------------------- */

neb_status neb__gate_open(struct neb_trainer *t)
{
    struct neb_gate *g = NEB_NEW(struct neb_gate);
    if (!g) return neb__fail(NEB_ERR_NOMEM, "out of memory for the gateway");
    *g = (struct neb_gate){.t = t,
                           .channel = {.fd = -1, .listener = -1},
                           .journal = {.fd = -1},
                           .window_fd = -1,
                           .saved = -1,
                           .losses_at = -1};
    neb__buf_init(&g->values, (size_t)1 << 30);
    t->gate = g;
    NEB_TRY(neb__step_key_new(&g->secret));
    NEB_TRY(neb__gate_journal_open(&g->journal, t->job->out));
    NEB_TRY(neb__launch_open(t->job, &g->launch));
    neb_status status = start(g);
    if (g->lost) status = recover(g);
    NEB_TRY(status);
    t->place = g->ready.stage;
    g->saved = t->loaded = g->ready.loaded;
    t->progress = g->ready.progress;
    t->facts = g->ready.facts;
    neb__gate_journal_mark(&g->journal, t->loaded);
    return NEB_OK;
}

void neb__gate_begin(struct neb_gate *g)
{
    g->begun = true;
}

void neb__gate_close(struct neb_gate *g)
{
    if (!g) return;
    struct neb_gate_order o = {.op = NEB_GATE_END};
    int code;
    int64_t since = neb__now_ns();
    if (g->channel.fd >= 0 && !g->lost && neb__gate_channel_send(&g->channel, &o, sizeof o, -1) == NEB_OK)
        while (!neb__launch_ended(g->launch, &code) && neb__seconds_since(since) < END_SECONDS)
            poll(NULL, 0, LOOK_MS);
    if (g->launch) stop(g);
    neb__launch_close(g->launch);
    neb__gate_channel_close(&g->channel);
    neb__gate_journal_close(&g->journal);
    if (g->window) munmap(g->window, g->window_bytes);
    if (g->window_fd >= 0) close(g->window_fd);
    neb__buf_free(&g->values);
    neb__step_key_wipe(&g->secret);
    neb__free(g->params);
    neb__free(g);
}

bool neb__gate_lost(const struct neb_gate *g)
{
    return g && g->lost;
}

const char *neb__gate_why(const struct neb_gate *g)
{
    return g->why;
}

void neb__gate_facts(const struct neb_gate *g, struct neb_stage_facts *out)
{
    *out = g->stage;
}

void neb__gate_set_depth(struct neb_gate *g, int depth)
{
    g->depth = depth;
}

neb_status neb__gate_register(struct neb_gate *g, neb_session *s)
{
    for (uint32_t i = 0; i < g->ready.params; i++) {
        const struct neb_gate_param *p = &g->params[i];
        struct neb_session_param q = {.name = p->name, .values = g->window + p->first, .ndim = p->ndim};
        memcpy(q.shape, p->shape, sizeof q.shape);
        NEB_TRY(neb_session_register(s, &q));
    }
    return NEB_OK;
}

const struct neb_hash *neb__gate_tokenizer(const struct neb_gate *g)
{
    return g->ready.has_tokenizer ? &g->ready.tokenizer : NULL;
}

bool neb__gate_textless(const struct neb_gate *g)
{
    return g->ready.textless;
}

const struct neb_hash *neb__gate_frozen(const struct neb_gate *g)
{
    return g->ready.has_frozen ? &g->ready.frozen : NULL;
}

int64_t neb__gate_samples(const struct neb_gate *g)
{
    return g->ready.samples;
}

double neb__gate_waited(const struct neb_gate *g)
{
    return g->waited;
}

double neb__gate_recovered(const struct neb_gate *g)
{
    return g ? g->recovered : 0;
}

/* ---- orders ------------------------------------------------------------------------------------------------ */

neb_status neb__gate_step(struct neb_gate *g, float lr, struct neb_work_step *out)
{
    struct neb_gate_answer a = {0};
    struct neb_gate_entry e = {.lr = lr, .keyed = g->t->account != NULL};
    struct neb_gate_order o;
    if (e.keyed) NEB_TRY(neb__step_key_new(&e.salt));
    NEB_TRY(neb__gate_step_order(&g->secret, &e, g->depth, &o));
    neb_status status = carry_out(g, &o, &a);
    neb__step_key_wipe(&o.key);
    g->stage = a.stage;
    if (status != NEB_OK && status != NEB_ERR_NONFINITE) return status;
    e.mark = a.step.mark;
    if (!g->t->stage) neb__gate_journal_step(&g->journal, &e);
    *out = a.step;
    return status;
}

neb_status neb__gate_fetch(struct neb_gate *g)
{
    struct neb_gate_answer a;
    return carry_out(g, &(struct neb_gate_order){.op = NEB_GATE_FETCH}, &a);
}

/* The journal has the values before the ranks do. */
neb_status neb__gate_share(struct neb_gate *g, size_t first, size_t n)
{
    struct neb_gate_answer a;
    neb__gate_journal_values(&g->journal, g->window, first, n);
    neb_status status =
        call(g, &(struct neb_gate_order){.op = NEB_GATE_SHARE, .first = first, .n = n}, -1, &a);
    return g->lost ? recover(g) : status;
}

neb_status neb__gate_share_all(struct neb_gate *g)
{
    return neb__gate_share(g, 0, g->ready.values);
}

/* The outer state is shown for the evaluation only, so the journal has nothing of it. Ranks that are lost come back with the
 * live values. */
static neb_status eval_outer(struct neb_gate *g, struct neb_gate_answer *a)
{
    const struct neb_gate_order fetch = {.op = NEB_GATE_FETCH}, eval = {.op = NEB_GATE_EVAL},
                                share = {.op = NEB_GATE_SHARE, .n = g->ready.values};
    struct neb_gate_answer shared;
    NEB_TRY(call(g, &fetch, -1, a));
    NEB_TRY(neb_session_show_outer(g->t->session, true));
    neb_status status = call(g, &share, -1, &shared);
    if (status == NEB_OK) status = call(g, &eval, -1, a);
    neb_status back = neb_session_show_outer(g->t->session, false);
    if (back == NEB_OK && !g->lost) back = call(g, &share, -1, &shared);
    return back != NEB_OK ? back : status;
}

neb_status neb__gate_eval(struct neb_gate *g, bool outer, struct neb_conclusion *out)
{
    struct neb_gate_answer a = {0};
    neb_status status;
    if (!outer) {
        status = carry_out(g, &(struct neb_gate_order){.op = NEB_GATE_EVAL}, &a);
    } else {
        while (status = eval_outer(g, &a), g->lost) NEB_TRY(recover(g));
    }
    *out = a.conclusion;
    return status;
}

neb_status neb__gate_conclude(struct neb_gate *g, struct neb_conclusion *out)
{
    struct neb_gate_answer a;
    NEB_TRY(carry_out(g, &(struct neb_gate_order){.op = NEB_GATE_CONCLUDE, .progress = g->t->progress}, &a));
    *out = a.conclusion;
    return NEB_OK;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------- */

/* A site's part of a checkpoint, into a descriptor: the session's state, as it fits the parameters of the ranks, or the marks of a
 * stage. */
static neb_status member_state(struct neb_gate *g, const struct neb_resume_member *member, int *fd,
                               uint64_t *bytes)
{
    neb_session *s = member->session;
    size_t n = member->n;
    struct neb_gate_answer a;
    if (s) NEB_TRY(call(g, &(struct neb_gate_order){.op = NEB_GATE_FETCH}, -1, &a));
    if (s) NEB_TRY(neb_session_save(s, NULL, &n));
    *fd = memfd_create("nebula-i session", MFD_CLOEXEC);
    void *p = MAP_FAILED;
    if (*fd >= 0 && !ftruncate(*fd, (off_t)n)) p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (p == MAP_FAILED)
        return neb__fail(NEB_ERR_NOMEM, "no memory for the session's part of a checkpoint, %zu bytes", n);
    size_t used = n;
    neb_status status = s ? neb_session_save(s, p, &used) : NEB_OK;
    if (!s) memcpy(p, member->bytes, n);
    munmap(p, n);
    *bytes = used;
    return status;
}

static neb_status save(struct neb_gate *g, const struct neb_resume_member *member,
                       const struct neb_progress *progress)
{
    struct neb_gate_order o = {.op = NEB_GATE_SAVE, .progress = *progress};
    struct neb_gate_answer a;
    int fd = -1;
    neb_status status = member ? member_state(g, member, &fd, &o.bytes) : NEB_OK;
    if (status == NEB_OK) {
        /* Ranks that are lost over the order may have written the checkpoint, and then begin at it. An older one of the same
         * step keeps its mark until then. */
        if (!neb__gate_journal_marked(&g->journal, progress->step))
            neb__gate_journal_mark(&g->journal, progress->step);
        status = call(g, &o, fd, &a);
    }
    if (fd >= 0) close(fd);
    if (status == NEB_OK) neb__gate_journal_mark(&g->journal, progress->step);
    return status;
}

neb_status neb__gate_save(struct neb_gate *g, const struct neb_resume_member *member,
                          const struct neb_progress *progress)
{
    for (;;) {
        neb_status status = save(g, member, progress);
        if (!g->lost) return status;
        NEB_TRY(recover(g));
    }
}

neb_status neb__gate_saved(struct neb_gate *g, const struct neb_resume_member *member,
                           const struct neb_progress *progress)
{
    for (;;) {
        struct neb_gate_answer a;
        neb_status status = call(g, &(struct neb_gate_order){.op = NEB_GATE_SAVED}, -1, &a);
        if (!g->lost) return status;
        NEB_TRY(recover(g));
        if (g->ready.loaded == progress->step) return NEB_OK; /* the ranks came back from it */
        NEB_TRY(neb__gate_save(g, member, progress));
    }
}

int64_t neb__gate_saved_step(const struct neb_gate *g)
{
    return g->saved;
}

bool neb__gate_wants_save(const struct neb_gate *g)
{
    if (!g) return false;
    size_t limit = 16 * g->window_bytes > journal_at_least ? 16 * g->window_bytes : journal_at_least;
    return g->journal.broken != NEB_OK || (size_t)g->journal.end > limit;
}
