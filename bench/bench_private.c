/* bench_private.c: what secure sums cost beside the plain int8 rung, at 25 million parameters.
 *
 *     bytes.N   bytes that a site sends to one peer in a round of N sites: masked codes and all messages about them, over the bytes of
 *               plain int8 updates
 *     cpu.3     processor seconds of the session's own thread a round (coding, storing, checking, applying), three sites over the
 *               loopback, over the same with int8. Arms take turns; each figure is the median of them
 *     seconds.secure, seconds.int8   these processor seconds themselves */
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

enum { SITES = 3, PARTS = 64, TURNS_MAX = 9 };

struct options {
    double params;
    int64_t rounds, turns, port;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, params, NEB_OPT_REAL, "25e6", NULL, "trainable parameters",
            NEB_OPT_RANGE(1e4, 1e9)),
    NEB_OPT(struct options, rounds, NEB_OPT_INT, "3", NULL, "rounds over all fragments that an arm measures",
            NEB_OPT_RANGE(1, 1000)),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "3", NULL, "arms of each kind, in turn",
            NEB_OPT_RANGE(1, TURNS_MAX)),
    NEB_OPT(struct options, port, NEB_OPT_INT, "17610", NULL, "the first of three ports of this machine",
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
    pthread_t thread;
};

static neb_status make_sites(const char *dir, int64_t port)
{
    struct neb_member members[SITES];
    struct neb_chain *chain = NULL;
    char path[300], identity[NEB_IDENTITY_SIZE], name[8];
    memset(members, 0, sizeof members);
    for (int i = 0; i < SITES; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        snprintf(name, sizeof name, "%c", 'a' + i);
        NEB_TRY(neb__site_init(path, name, identity));
        NEB_TRY(neb__site_identity(path, members[i].name, &members[i].key));
        members[i].votes = members[i].addresses = 1;
        snprintf(members[i].address[0], NEB_ADDRESS_SIZE, "127.0.0.1:%d", (int)port + i);
    }
    NEB_TRY(neb__chain_create(&members[0].key, NULL, 0, &(struct neb_roster){members, SITES}, &chain));
    neb_status status = NEB_OK;
    for (int i = 0; i < SITES && status == NEB_OK; i++) {
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
        if (neb_step(m->session, 1, &changed) != NEB_OK) {
            atomic_store(&m->failed, true);
            break;
        }
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

/* Rounds merged, and the processor seconds of the session's thread. */
static int64_t progress(struct member *m, double *cpu)
{
    struct neb_session_status st;
    neb_session_get_status(m->session, &st);
    pthread_mutex_lock(&m->session->lock);
    int64_t rounds = m->session->mirror.rounds;
    pthread_mutex_unlock(&m->session->lock);
    *cpu = st.driver_cpu_s;
    return rounds;
}

static bool any_failed(struct member *m)
{
    for (int i = 0; i < SITES; i++)
        if (atomic_load(&m[i].failed)) return true;
    return false;
}

/* Processor seconds a sweep over all fragments, mean of the sites. Negative: it did not come about. */
static double measure(struct member *m, int64_t sweeps)
{
    const int64_t fragments = m[0].session->fragments, limit = neb__now_ns();
    double cpu, sum = 0, from[SITES];
    int64_t first[SITES], done = 0;
    bool began = false;
    while (!any_failed(m) && neb__seconds_since(limit) < 60 + 60 * (double)sweeps) {
        usleep(20000);
        done = INT64_MAX;
        for (int i = 0; i < SITES; i++) {
            int64_t rounds = progress(&m[i], &cpu) - (began ? first[i] : fragments);
            if (rounds < done) done = rounds;
        }
        if (!began && done >= 0) { /* the first sweep warms up */
            began = true;
            for (int i = 0; i < SITES; i++) first[i] = progress(&m[i], &from[i]);
        } else if (began && done >= sweeps * fragments)
            break;
    }
    if (!began || done < sweeps * fragments) return -1;
    for (int i = 0; i < SITES; i++) {
        int64_t rounds = progress(&m[i], &cpu) - first[i];
        sum += (cpu - from[i]) * (double)fragments / (double)rounds / SITES;
    }
    return sum;
}

static double arm(const struct options *o, bool secure)
{
    char dir[] = "/tmp/nebula-private-XXXXXX", command[300];
    struct member *m = NEB_NEW_ARRAY(struct member, SITES);
    double seconds = -1;
    int began = 0;
    if (!m || !mkdtemp(dir)) return -1;
    neb_status status = make_sites(dir, o->port);
    for (int i = 0; status == NEB_OK && i < SITES; i++) {
        m[i].n = (size_t)o->params;
        m[i].index = i;
        status = begin(&m[i], dir, secure);
    }
    for (int i = 0; status == NEB_OK && i < SITES; i++)
        began += !pthread_create(&m[i].thread, NULL, train, &m[i]);
    if (began == SITES) seconds = measure(m, o->rounds);
    for (int i = 0; i < SITES; i++) atomic_store(&m[i].stop, true);
    for (int i = 0; i < began; i++) pthread_join(m[i].thread, NULL);
    for (int i = 0; i < SITES; i++) {
        if (m[i].session) neb_session_close(m[i].session);
        neb__free(m[i].x);
    }
    neb__free(m);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) ? -1 : seconds;
}

/* ---- bytes --------------------------------------------------------------------------------------------- */

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

static int all_figures(const struct options *o, struct neb_figures *f)
{
    static const struct {
        int sites;
        double most;
    } cases[] = {{3, 1.35}, {5, 1.5}, {10, 1.65}};
    double ratio[TURNS_MAX], seconds[2][TURNS_MAX];
    const size_t n = (size_t)o->params / 8; /* eight fragments */
    double plain = plain_bytes(n);
    if (!(plain > 0)) return 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "bytes.%d", cases[i].sites);
        neb__figures_add(f, name, masked_bytes(n, cases[i].sites) / plain, "x", NEB_AT_MOST, cases[i].most);
    }
    for (int64_t t = 0; t < o->turns; t++) {
        seconds[0][t] = arm(o, false);
        seconds[1][t] = arm(o, true);
        if (seconds[0][t] <= 0 || seconds[1][t] <= 0) return 1;
        ratio[t] = seconds[1][t] / seconds[0][t];
    }
    neb__figures_add(f, "cpu.3", neb__figures_median(ratio, (int)o->turns), "x", NEB_AT_MOST, 1.5);
    neb__figures_add(f, "seconds.int8", neb__figures_median(seconds[0], (int)o->turns), "s", NEB_REPORT, 0);
    neb__figures_add(f, "seconds.secure", neb__figures_median(seconds[1], (int)o->turns), "s", NEB_REPORT, 0);
    return 0;
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
