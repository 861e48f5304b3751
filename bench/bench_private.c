/* bench_private.c: what secure sums cost beside the plain int8 rung, at 25 million parameters.
 *
 *     bytes.N   bytes that a site of N sends to one peer for a sweep over all fragments (updates, records and every other message), over the
 *               same with int8, as the sessions count them
 *     cpu.3     processor seconds of the session's own thread a sweep (coding, storing, checking, applying), three sites over the
 *               loopback, over the same with int8. Arms take turns; each figure is the median of them
 *     seconds.secure, seconds.int8   these processor seconds themselves
 *     step.secure, step.int8         milliseconds that the training waits in the session's call of a step, the mean of the same arms
 *     unmask.all, unmask.dropout     milliseconds from SURVIVORS to RESULT at the first of four sites, over the loopback, the median of
 *                                    sums: with the updates of all, and with one that does not come. A drop-out must not cost another turn
 *     size.N    the same as bytes.N by the sizes of the messages alone: one update, keys, offer and shares, with all parameters */
#include "bench.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "privacy/offer.h"
#include "run/session.h"
#include "seal/site.h"

#include <nebula/log.h>
#include <nebula/nebula.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SITES_MAX = 10, PARTS = 64, TURNS_MAX = 9 };

struct options {
    double params;
    int64_t rounds, turns, port, sites;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, params, NEB_OPT_REAL, "25e6", NULL, "trainable parameters",
            NEB_OPT_RANGE(1e4, 1e9)),
    NEB_OPT(struct options, rounds, NEB_OPT_INT, "3", NULL, "rounds over all fragments that an arm measures",
            NEB_OPT_RANGE(1, 1000)),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "3", NULL, "arms of each kind, in turn",
            NEB_OPT_RANGE(1, TURNS_MAX)),
    NEB_OPT(struct options, sites, NEB_OPT_INT, "0", NULL,
            "only the figures of so many sites (3, 5, 10); 0: all", NEB_OPT_RANGE(0, SITES_MAX)),
    NEB_OPT(struct options, port, NEB_OPT_INT, "17610", NULL, "the first of ten ports of this machine",
            NEB_OPT_RANGE(1024, 65000)),
    NEB_OPT_END,
};

/* ---- sites --------------------------------------------------------------------------------------------- */

struct member {
    neb_session *session;
    float *x;
    size_t n;
    int index;
    atomic_bool stop, failed;
    _Atomic int64_t steps, step_ns; /* made, and how long the session had them */
    pthread_t thread;
};

static neb_status make_sites(const char *dir, int64_t port, int sites)
{
    struct neb_member members[SITES_MAX];
    struct neb_chain *chain = NULL;
    char path[300], identity[NEB_IDENTITY_SIZE], name[8];
    memset(members, 0, sizeof members);
    for (int i = 0; i < sites; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        snprintf(name, sizeof name, "%c", 'a' + i);
        NEB_TRY(neb__site_init(path, name, identity));
        NEB_TRY(neb__site_identity(path, members[i].name, &members[i].key));
        members[i].votes = i < NEB_ROUND_VOTERS_MAX;
        members[i].addresses = 1;
        snprintf(members[i].address[0], NEB_ADDRESS_SIZE, "127.0.0.1:%d", (int)port + i);
    }
    NEB_TRY(
        neb__chain_create(&members[0].key, NULL, 0, &(struct neb_roster){members, (uint32_t)sites}, &chain));
    neb_status status = NEB_OK;
    for (int i = 0; i < sites && status == NEB_OK; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        status = neb__site_roster_save(path, chain);
    }
    neb__chain_free(chain);
    return status;
}

/* Each step changes the next part of the parameters, by noise that no lossless stage can pack. */
static void *train(void *arg)
{
    struct member *m = arg;
    struct neb_rng rng = {(uint64_t)m->index + 1};
    size_t part = m->n / PARTS + 1;
    bool changed;
    for (uint64_t step = 0; !atomic_load(&m->stop); step++) {
        size_t first = step % PARTS * part;
        for (size_t i = first; i < first + part && i < m->n; i++)
            m->x[i] += 0x1p-41f * (float)(int32_t)(uint32_t)neb__rng_next(&rng);
        const int64_t since = neb__now_ns();
        if (neb_step(m->session, 1, &changed) != NEB_OK) {
            atomic_store(&m->failed, true);
            break;
        }
        atomic_fetch_add(&m->step_ns, neb__now_ns() - since);
        atomic_fetch_add(&m->steps, 1);
        usleep(2000);
    }
    return NULL;
}

static neb_status begin(struct member *m, const char *dir, bool secure)
{
    struct neb_session_config c = neb_session_defaults();
    struct neb_session_param p = {.name = "x", .ndim = 1, .shape = {(int64_t)m->n}};
    char path[300];
    snprintf(path, sizeof path, "%s/%c", dir, 'a' + m->index);
    m->x = neb__malloc(m->n * sizeof *m->x);
    if (!m->x) return neb__fail(NEB_ERR_NOMEM, "out of memory for the parameters");
    for (size_t i = 0; i < m->n; i++) m->x[i] = (float)(i % 251) * 1e-3f;
    p.values = m->x;
    c.interval = 1;
    c.drift_steps = 1 << 30;
    if (!secure) c.rung = "int8";
    NEB_TRY(neb_session_open(path, &c, &m->session));
    if (secure) NEB_TRY(neb__session_set_secure(m->session));
    NEB_TRY(neb_session_register(m->session, &p));
    return neb_session_start(m->session, 0);
}

/* What a sweep over all fragments costs a site. cpu: seconds of the session's thread; bytes: to one peer. 0: it did not come about. */
struct cost {
    double cpu, bytes;
    double step_ms; /* of a step, in the session's call */
    int64_t
        own; /* until now: rounds that hold an update of this site. On a busy machine some go without it, and cost it no bytes */
};

static int64_t own_rounds(neb_session *s)
{
    struct neb_round_status st;
    int64_t n = 0;
    pthread_mutex_lock(&s->busy);
    neb__round_status(s->core, &st);
    for (uint64_t i = 1; i <= st.commit; i++) {
        const struct neb_record *rec = neb__round_record(s->core, i);
        n +=
            rec && rec->type == NEB_RECORD_ROUND && neb__record_of(rec, s->self) && !neb__record_is_void(rec);
    }
    pthread_mutex_unlock(&s->busy);
    return n;
}

/* Rounds merged, and the processor seconds and bytes until now. */
static int64_t progress(struct member *m, int sites, struct cost *now)
{
    struct neb_session_status st;
    neb_session_get_status(m->session, &st);
    pthread_mutex_lock(&m->session->lock);
    int64_t rounds = m->session->mirror.rounds;
    pthread_mutex_unlock(&m->session->lock);
    *now = (struct cost){
        .cpu = st.driver_cpu_s, .bytes = (double)st.bytes_out / (sites - 1), .own = own_rounds(m->session)};
    return rounds;
}

static bool any_failed(struct member *m, int sites)
{
    for (int i = 0; i < sites; i++)
        if (atomic_load(&m[i].failed)) return true;
    return false;
}

/* Mean of the sites, a sweep. */
static struct cost measure(struct member *m, int sites, int64_t sweeps)
{
    const int64_t fragments = m[0].session->fragments, limit = neb__now_ns();
    struct cost now, from[SITES_MAX], mean = {0};
    int64_t first[SITES_MAX], done = 0;
    bool began = false;
    while (!any_failed(m, sites) && neb__seconds_since(limit) < 60 + 60 * (double)sweeps) {
        usleep(20000);
        done = INT64_MAX;
        for (int i = 0; i < sites; i++) {
            int64_t rounds = progress(&m[i], sites, &now) - (began ? first[i] : fragments);
            if (rounds < done) done = rounds;
        }
        if (!began && done >= 0) { /* the first sweep warms up */
            began = true;
            for (int i = 0; i < sites; i++) first[i] = progress(&m[i], sites, &from[i]);
        } else if (began && done >= sweeps * fragments)
            break;
    }
    if (!began || done < sweeps * fragments) {
        (void)neb__fail(NEB_ERR_TIMEOUT, "%d sites made %" PRId64 " rounds in %.0f seconds", sites, done,
                        neb__seconds_since(limit));
        return mean;
    }
    for (int i = 0; i < sites; i++) {
        double rounds = (double)(progress(&m[i], sites, &now) - first[i]) / (double)fragments;
        mean.cpu += (now.cpu - from[i].cpu) / rounds / sites;
        double own = (double)(now.own - from[i].own) / (double)fragments;
        if (own > 0) mean.bytes += (now.bytes - from[i].bytes) / own / sites;
        double steps = (double)atomic_load(&m[i].steps);
        if (steps > 0) mean.step_ms += (double)atomic_load(&m[i].step_ns) / steps / 1e6 / sites;
    }
    return mean;
}

typedef struct cost measure_fn(struct member *m, int sites, int64_t sweeps);

static struct cost arm_by(const struct options *o, int sites, double params, bool secure,
                          measure_fn *measured)
{
    char dir[] = "/tmp/nebula-private-XXXXXX", command[300];
    struct member *m = NEB_NEW_ARRAY(struct member, (size_t)sites);
    struct cost cost = {0};
    int began = 0;
    if (!m || !mkdtemp(dir)) {
        neb__free(m);
        return cost;
    }
    neb_status status = make_sites(dir, o->port, sites);
    for (int i = 0; status == NEB_OK && i < sites; i++) {
        m[i].n = (size_t)params;
        m[i].index = i;
        status = begin(&m[i], dir, secure);
    }
    for (int i = 0; status == NEB_OK && i < sites; i++)
        began += !pthread_create(&m[i].thread, NULL, train, &m[i]);
    if (began == sites) cost = measured(m, sites, o->rounds);
    for (int i = 0; i < sites; i++) atomic_store(&m[i].stop, true);
    for (int i = 0; i < began; i++) pthread_join(m[i].thread, NULL);
    for (int i = 0; i < sites; i++) {
        if (m[i].session) neb_session_close(m[i].session);
        neb__free(m[i].x);
    }
    neb__free(m);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command)) cost.cpu = 0;
    return cost;
}

static struct cost arm(const struct options *o, int sites, double params, bool secure)
{
    return arm_by(o, sites, params, secure, measure);
}

/* ---- unmasking ----------------------------------------------------------------------------------------- */

enum { UNMASKED = 9 }; /* sums of which the median is taken */

/* The sums of the first fragment as they go by: milliseconds between SURVIVORS and RESULT, of those with so many updates. */
static bool time_sums(struct member *m, uint32_t updates, double ms[UNMASKED])
{
    neb_session *s = m->session;
    int64_t since = 0, limit = neb__now_ns();
    uint64_t index = 0;
    int n = 0;
    while (n < UNMASKED && neb__seconds_since(limit) < 300) {
        struct neb_round_attempt now = {0};
        usleep(200);
        pthread_mutex_lock(&s->busy);
        const struct neb_record *who = neb__round_attempt(s->core, 0, &now) && now.survivors
                                           ? neb__round_record(s->core, now.survivors)
                                           : NULL;
        const bool counts = who && who->updates == updates;
        pthread_mutex_unlock(&s->busy);
        if (since && now.survivors != index) ms[n++] = (double)(neb__now_ns() - since) / 1e6, since = 0;
        if (counts && now.survivors != index) since = neb__now_ns(), index = now.survivors;
    }
    return n == UNMASKED;
}

static double unmask_ms[2]; /* all, dropout */

/* The last site goes on offering keys and makes no step: a drop-out in every sum. */
static struct cost measure_unmasking(struct member *m, int sites, int64_t sweeps)
{
    double all[UNMASKED], without[UNMASKED];
    (void)sweeps;
    if (!time_sums(&m[0], (uint32_t)sites, all)) return (struct cost){0};
    atomic_store(&m[sites - 1].stop, true);
    if (!time_sums(&m[0], (uint32_t)sites - 1, without)) return (struct cost){0};
    unmask_ms[0] = neb__figures_median(all, UNMASKED);
    unmask_ms[1] = neb__figures_median(without, UNMASKED);
    return (struct cost){.cpu = 1};
}

static int unmasking(const struct options *o, struct neb_figures *f)
{
    if (arm_by(o, 4, o->params / 25, true, measure_unmasking).cpu <= 0) return 1;
    neb__figures_add(f, "unmask.all", unmask_ms[0], "ms", NEB_REPORT, 0);
    neb__figures_add(f, "unmask.dropout", unmask_ms[1], "ms", NEB_REPORT, 0);
    return 0;
}

/* ---- sizes --------------------------------------------------------------------------------------------- */

/* A plain int8 update of so many values of noise. */
static double plain_bytes(size_t n)
{
    struct neb_buf b;
    struct neb_rng rng = {7};
    float *z = neb__malloc(n * sizeof *z);
    neb__buf_init(&b, 8 * n + 4096);
    for (size_t i = 0; z && i < n; i++) z[i] = 0x1p-41f * (float)(int32_t)(uint32_t)neb__rng_next(&rng);
    struct neb_codec_input in = {.z = z, .n = n};
    bool ok = z && neb__codec_encode(neb__rung_by_name("int8"), &in, NULL, NULL, &b) == NEB_OK;
    double bytes = ok ? NEB_UPDATE_HEADER_SIZE + (double)b.len : 0;
    neb__buf_free(&b);
    neb__free(z);
    return bytes;
}

static double masked_bytes(size_t n, int sites)
{
    double offer = NEB_OFFER_MAX - (double)(NEB_SHARES_MAX - sites) * NEB_OFFER_ENTRY;
    double reveal = 10 + sites * (2 + (double)NEB_SHARE_SIZE);
    return NEB_UPDATE_HEADER_SIZE + 4 + (double)neb__packed_size(n, neb__mask_bits(sites)) + NEB_KEYS_SIZE +
           offer + reveal;
}

static int many_sites(const struct options *o, int sites, double most, struct neb_figures *f)
{
    char name[32];
    struct cost plain = arm(o, sites, o->params, false), secure = arm(o, sites, o->params, true);
    if (plain.bytes <= 0 || secure.bytes <= 0) return 1;
    snprintf(name, sizeof name, "bytes.%d", sites);
    neb__figures_add(f, name, secure.bytes / plain.bytes, "x", NEB_AT_MOST, most);
    return 0;
}

static int three_sites(const struct options *o, struct neb_figures *f)
{
    double cpu[TURNS_MAX], bytes[TURNS_MAX], seconds[2][TURNS_MAX], step[2][TURNS_MAX];
    const int turns = (int)o->turns;
    for (int t = 0; t < turns; t++) {
        struct cost plain = arm(o, 3, o->params, false), secure = arm(o, 3, o->params, true);
        if (plain.cpu <= 0 || secure.cpu <= 0) return 1;
        cpu[t] = secure.cpu / plain.cpu;
        bytes[t] = secure.bytes / plain.bytes;
        seconds[0][t] = plain.cpu, seconds[1][t] = secure.cpu;
        step[0][t] = plain.step_ms, step[1][t] = secure.step_ms;
    }
    neb__figures_add(f, "bytes.3", neb__figures_median(bytes, turns), "x", NEB_AT_MOST, 1.35);
    neb__figures_add(f, "cpu.3", neb__figures_median(cpu, turns), "x", NEB_AT_MOST, 1.5);
    neb__figures_add(f, "seconds.int8", neb__figures_median(seconds[0], turns), "s", NEB_REPORT, 0);
    neb__figures_add(f, "seconds.secure", neb__figures_median(seconds[1], turns), "s", NEB_REPORT, 0);
    neb__figures_add(f, "step.int8", neb__figures_median(step[0], turns), "ms", NEB_REPORT, 0);
    neb__figures_add(f, "step.secure", neb__figures_median(step[1], turns), "ms", NEB_REPORT, 0);
    return 0;
}

static int all_figures(const struct options *o, struct neb_figures *f)
{
    static const struct {
        int sites;
        double most;
    } cases[] = {{3, 1.35}, {5, 1.5}, {10, 1.65}};
    const size_t n = (size_t)o->params / 8; /* eight fragments */
    double plain = plain_bytes(n);
    int rc = plain > 0 ? 0 : 1;
    if (!rc && (!o->sites || o->sites == 3)) rc = three_sites(o, f);
    if (!rc && !o->sites) rc = unmasking(o, f);
    for (size_t i = 0; !rc && i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        if (o->sites && o->sites != cases[i].sites) continue;
        if (cases[i].sites > 3) rc = many_sites(o, cases[i].sites, cases[i].most, f);
        snprintf(name, sizeof name, "size.%d", cases[i].sites);
        neb__figures_add(f, name, masked_bytes(n, cases[i].sites) / plain, "x", NEB_AT_MOST, cases[i].most);
    }
    return rc;
}

static int run(int argc, char **argv)
{
    struct options o;
    int positional = 0;
    bool json = neb__bench_json(&argc, argv);
    neb_log_set_level(getenv("NEBULA_LOG") ? NEB_LOG_INFO : NEB_LOG_ERROR);
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &positional) != NEB_OK || positional) {
        neb__opts_help(table, stderr);
        neb__opts_free(table, &o);
        return 2;
    }
    struct neb_figures *f = neb__figures_begin("private", json);
    int rc = f ? all_figures(&o, f) : 1;
    if (rc) fprintf(stderr, "bench private: %s\n", neb_last_error());
    if (f) neb__figures_end(f);
    neb__opts_free(table, &o);
    return rc;
}

const struct neb_bench neb__bench_private = {"private", "what secure sums cost beside plain updates", run,
                                             table};
