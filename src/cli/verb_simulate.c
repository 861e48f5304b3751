/* verb_simulate.c: `nebula-i simulate`: many histories of the round protocol, each from its seed. */
#include "cli/verb.h"
#include "base/clock.h"
#include "base/log.h"
#include "sim/sim.h"

#include <stdio.h>
#include <string.h>

struct cfg {
    int64_t seeds, first_seed, sites, liars;
    char *quorum;
    bool observer, trace, happy, lasting_cuts, secure, keep_going, what_if, owners;
    int64_t rounds, steps;
    double params, bits, up, down, rtt, step, work, slow, slow_share, deadline;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct cfg, seeds, NEB_OPT_INT, "1000", NULL, "histories to run"),
    NEB_OPT(struct cfg, first_seed, NEB_OPT_INT, "1", NULL, "seed of the first one"),
    NEB_OPT(struct cfg, sites, NEB_OPT_INT, "0", NULL, "sites at the start; 0: drawn from the seed",
            NEB_OPT_RANGE(0, 10000)),
    NEB_OPT(struct cfg, observer, NEB_OPT_BOOL, "no", NULL,
            "one more site follows as an observer; with --liars it is the one that lies"),
    NEB_OPT(struct cfg, liars, NEB_OPT_INT, "0", NULL, "so many of them lie", NEB_OPT_RANGE(0, 2)),
    NEB_OPT(struct cfg, quorum, NEB_OPT_TEXT, "majority", NULL, "majority or byzantine"),
    NEB_OPT(struct cfg, trace, NEB_OPT_BOOL, "no", NULL, "show what happens"),
    NEB_OPT(struct cfg, happy, NEB_OPT_BOOL, "no", NULL, "no faults"),
    NEB_OPT(struct cfg, lasting_cuts, NEB_OPT_BOOL, "no", NULL,
            "some lines are cut for good; members pass on what others say"),
    NEB_OPT(struct cfg, secure, NEB_OPT_BOOL, "no", NULL, "updates are masked: privacy.aggregate: secure"),
    NEB_OPT(struct cfg, keep_going, NEB_OPT_BOOL, "no", NULL, "do not stop at the first violation"),
    NEB_OPT(struct cfg, what_if, NEB_OPT_BOOL, "no", NULL,
            "no faults and no bytes: how long do rounds take?"),
    NEB_OPT(struct cfg, rounds, NEB_OPT_INT, "20", NULL, "what-if: rounds to look at"),
    NEB_OPT(struct cfg, steps, NEB_OPT_INT, "100", NULL, "what-if: inner steps between two captures"),
    NEB_OPT(struct cfg, params, NEB_OPT_REAL, "124e6", NULL, "what-if: trainable parameters"),
    NEB_OPT(struct cfg, bits, NEB_OPT_REAL, "4", NULL, "what-if: bits sent for each of them"),
    NEB_OPT(struct cfg, up, NEB_OPT_RATE, "100mbit", NULL, "what-if: a site's line, outwards"),
    NEB_OPT(struct cfg, down, NEB_OPT_RATE, "100mbit", NULL, "what-if: inwards"),
    NEB_OPT(struct cfg, rtt, NEB_OPT_TIME, "50ms", NULL, "what-if: round trip"),
    NEB_OPT(struct cfg, step, NEB_OPT_TIME, "500ms", NULL, "what-if: one inner step"),
    NEB_OPT(struct cfg, work, NEB_OPT_TIME, "0", NULL,
            "what-if: a round's work on a site's own thread (status: beside.busy)"),
    NEB_OPT(struct cfg, slow, NEB_OPT_REAL, "1", NULL, "what-if: slow sites are this much slower"),
    NEB_OPT(struct cfg, slow_share, NEB_OPT_REAL, "0", NULL, "what-if: share of slow sites"),
    NEB_OPT(struct cfg, deadline, NEB_OPT_TIME, "0", NULL,
            "what-if: of a round; 0: 1.5 times the nominal one"),
    NEB_OPT(struct cfg, owners, NEB_OPT_BOOL, "no", NULL, "what-if: exchange through owners"),
    NEB_OPT_END,
};

static neb_status what_if(const struct cfg *c, int *code)
{
    struct neb_sim_whatif o = {.sites = c->sites ? c->sites : 2,
                               .rounds = c->rounds,
                               .steps = c->steps,
                               .params = c->params,
                               .bits = c->bits,
                               .up = c->up,
                               .down = c->down,
                               .rtt = c->rtt,
                               .step = c->step,
                               .work = c->work,
                               .slow = c->slow,
                               .slow_share = c->slow_share,
                               .deadline = c->deadline,
                               .owners = c->owners,
                               .seed = (uint64_t)c->first_seed};
    struct neb_sim_forecast f;
    if (neb__sim_whatif(&o, &f) != NEB_OK) {
        fprintf(stderr, "nebula-i simulate: %s\n", neb_last_error());
        *code = 2;
        return NEB_OK;
    }
    printf("a round takes     %10.1f s   (compute %.1f s, the line's limit for its bytes %.1f s)\n",
           f.round_s, (double)o.steps * o.step, f.limit_s);
    printf("line in use       %9.0f %% out, %.0f %% in\n", 100 * f.up_use, 100 * f.down_use);
    printf("bytes per round   %10.1f MB out, %.1f MB in\n", f.bytes_out / 1e6, f.bytes_in / 1e6);
    printf("updates per round %10.1f     (%.0f %% one version late, %.0f %% given up)\n", f.updates,
           100 * f.late, 100 * f.discarded);
    printf("bytes complete    %10.1f s   after the commit\n", f.lag);
    return NEB_OK;
}

static neb_status simulate(const struct cfg *c, int *code)
{
    struct neb_sim_result sum = {0};
    int64_t start = neb__now_ns(), bad = 0, done = 0;
    for (int64_t i = 0; i < c->seeds && (!bad || c->keep_going); i++) {
        struct neb_sim_fault o = {.seed = (uint64_t)(c->first_seed + i),
                                  .sites = (int)c->sites,
                                  .trace = c->trace,
                                  .happy = c->happy,
                                  .lasting_cuts = c->lasting_cuts,
                                  .liars = (int)c->liars,
                                  .observer = c->observer,
                                  .secure = c->secure,
                                  .byzantine = !strcmp(c->quorum, "byzantine")};
        struct neb_sim_result r;
        if (neb__sim_fault(&o, &r) != NEB_OK) {
            printf("seed %lld: %s\n  replay: nebula-i simulate --seeds 1 --first-seed %lld --sites %lld "
                   "--liars %lld --quorum %s%s%s%s%s --trace\n",
                   (long long)o.seed, r.violation[0] ? r.violation : neb_last_error(), (long long)o.seed,
                   (long long)c->sites, (long long)c->liars, c->quorum, c->happy ? " --happy" : "",
                   c->lasting_cuts ? " --lasting-cuts" : "", c->observer ? " --observer" : "",
                   c->secure ? " --secure" : "");
            fflush(stdout);
            bad++;
            *code = 1;
        }
        done++;
        sum.events += r.events, sum.records += r.records, sum.crashes += r.crashes, sum.views += r.views;
        sum.cells_fetched += r.cells_fetched, sum.settled += r.settled, sum.epochs += r.epochs;
        sum.damaged += r.damaged, sum.virtual_ms += r.virtual_ms, sum.relayed += r.relayed;
        sum.convicted += r.convicted, sum.sums += r.sums, sum.voids += r.voids, sum.unbegun += r.unbegun;
    }
    double s = neb__seconds_since(start);
    printf("%llu events, %llu records, %llu crashes, %llu damaged disks, %llu view changes, %llu epochs, "
           "%llu cells fetched, %llu settled, %llu messages relayed, %.1f virtual hours\n",
           (unsigned long long)sum.events, (unsigned long long)sum.records, (unsigned long long)sum.crashes,
           (unsigned long long)sum.damaged, (unsigned long long)sum.views, (unsigned long long)sum.epochs,
           (unsigned long long)sum.cells_fetched, (unsigned long long)sum.settled,
           (unsigned long long)sum.relayed, (double)sum.virtual_ms / 3.6e6);
    if (c->secure)
        printf("%llu secure sums, %llu attempts void\n", (unsigned long long)sum.sums,
               (unsigned long long)sum.voids);
    if (c->liars) printf("%llu statements convicted a liar\n", (unsigned long long)sum.convicted);
    if (sum.unbegun)
        printf("%llu histories not judged by I10: the honest sites that had begun were no quorum\n",
               (unsigned long long)sum.unbegun);
    printf("%lld histories, %lld violations; %.1f s (%.2f ms each)\n", (long long)done, (long long)bad, s,
           1e3 * s / (double)(done ? done : 1));
    return NEB_OK;
}

static neb_status run(struct neb_call *call)
{
    const struct cfg *c = call->options;
    if (c->sites > 12 && !c->what_if)
        return neb__fail(NEB_ERR_CONFIG, "--sites %" PRId64 ": at most 12 with faults; --what-if takes more",
                         c->sites);
    bool byzantine = !strcmp(c->quorum, "byzantine");
    if (!byzantine && strcmp(c->quorum, "majority"))
        return neb__fail(NEB_ERR_CONFIG, "--quorum %s: majority or byzantine", c->quorum);
    if (c->sites && c->liars && c->sites < (byzantine ? 3 * c->liars + 1 : 2 * c->liars + 1))
        return neb__fail(NEB_ERR_CONFIG, "--liars %" PRId64 ": too many for %" PRId64 " sites", c->liars,
                         c->sites);
    if (c->secure && (c->lasting_cuts || (c->sites && c->sites < 3)))
        return neb__fail(NEB_ERR_CONFIG, "--secure needs three sites, and lines that do not stay cut");
    if (byzantine && c->sites && c->sites < 4)
        return neb__fail(NEB_ERR_CONFIG, "--quorum byzantine needs four sites");
    neb_log_set_level(NEB_LOG_NONE);
    return c->what_if ? what_if(c, &call->code) : simulate(c, &call->code);
}

const struct neb_verb neb__verb_simulate = {
    .name = "simulate",
    .args = "[options]",
    .help = "run the round protocol on simulated sites, with faults",
    .options = {{table, 0}},
    .size = sizeof(struct cfg),
    .run = run,
};
