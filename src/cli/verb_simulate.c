/* verb_simulate.c: `nebula-i simulate`: many histories of the round protocol, each from its seed. */
#include "cli/verb.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/opts.h"
#include "sim/sim.h"

#include <stdio.h>
#include <string.h>

struct cfg {
    int64_t seeds, first_seed, sites;
    bool trace, happy, keep_going;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct cfg, seeds, NEB_OPT_INT, "1000", NULL, "histories to run"),
    NEB_OPT(struct cfg, first_seed, NEB_OPT_INT, "1", NULL, "seed of the first one"),
    NEB_OPT(struct cfg, sites, NEB_OPT_INT, "0", NULL, "sites at the start; 0: drawn from the seed"),
    NEB_OPT(struct cfg, trace, NEB_OPT_BOOL, "no", NULL, "show what happens"),
    NEB_OPT(struct cfg, happy, NEB_OPT_BOOL, "no", NULL, "no faults"),
    NEB_OPT(struct cfg, keep_going, NEB_OPT_BOOL, "no", NULL, "do not stop at the first violation"),
    NEB_OPT_END,
};

static int simulate(const struct cfg *c)
{
    struct neb_sim_result sum = {0};
    int64_t start = neb__now_ns(), bad = 0;
    for (int64_t i = 0; i < c->seeds; i++) {
        struct neb_sim_fault o = {(uint64_t)(c->first_seed + i), (int)c->sites, c->trace, c->happy};
        struct neb_sim_result r;
        if (neb__sim_fault(&o, &r) != NEB_OK) {
            printf("seed %lld: %s\n  replay: nebula-i simulate --seeds 1 --first-seed %lld --sites %lld%s "
                   "--trace\n",
                   (long long)o.seed, r.violation[0] ? r.violation : neb_last_error(), (long long)o.seed,
                   (long long)c->sites, c->happy ? " --happy" : "");
            fflush(stdout);
            bad++;
            if (!c->keep_going) return 1;
        }
        sum.events += r.events, sum.records += r.records, sum.crashes += r.crashes, sum.views += r.views;
        sum.cells_fetched += r.cells_fetched, sum.settled += r.settled, sum.epochs += r.epochs;
        sum.damaged += r.damaged, sum.virtual_ms += r.virtual_ms;
    }
    double s = neb__seconds_since(start);
    printf("%lld histories, %lld violations; %.1f s (%.2f ms each)\n", (long long)c->seeds, (long long)bad, s,
           1e3 * s / (double)(c->seeds ? c->seeds : 1));
    printf("%llu events, %llu records, %llu crashes, %llu damaged disks, %llu view changes, %llu epochs, "
           "%llu cells fetched, %llu settled, %.1f virtual hours\n",
           (unsigned long long)sum.events, (unsigned long long)sum.records, (unsigned long long)sum.crashes,
           (unsigned long long)sum.damaged, (unsigned long long)sum.views, (unsigned long long)sum.epochs,
           (unsigned long long)sum.cells_fetched, (unsigned long long)sum.settled,
           (double)sum.virtual_ms / 3.6e6);
    return bad ? 1 : 0;
}

static int run(int argc, char **argv)
{
    struct cfg c;
    int n;
    if (argc > 0 && !strcmp(argv[0], "--help")) {
        printf("usage: nebula-i simulate [options]\n\n");
        neb__opts_help(table, stdout);
        return 0;
    }
    if (neb__opts_init(table, &c) != NEB_OK) return 1;
    bool ok = neb__opts_args(table, &c, argc, argv, &n) == NEB_OK && n == 0 && c.sites >= 0 && c.sites <= 12;
    if (!ok) fprintf(stderr, "nebula-i simulate: %s\n", n ? "no arguments but options" : neb_last_error());
    neb_log_set_level(NEB_LOG_NONE);
    int rc = ok ? simulate(&c) : 2;
    neb__opts_free(table, &c);
    return rc;
}

const struct neb_verb neb__verb_simulate = {"simulate", "[--seeds N] [--first-seed S] [--sites K]",
                                            "run the round protocol on simulated sites, with faults", run};
