/* plan.h: the layouts that a site could have, what each needs and how fast it would be, best first.
 *
 * Memory comes from rehearsals (rehearsal.h) and is that of the training itself. Time is put together from costs (costs.h):
 * layers and ends of a stage, its exchanges as the rehearsal counted them, the turns of a pipeline one by one, the update. What
 * crosses the WAN comes from the rate controller itself (wan.h). */
#ifndef NEB_PLAN_PLAN_H
#define NEB_PLAN_PLAN_H

#include "plan/costs.h"
#include "plan/rehearsal.h"
#include "plan/wan.h"

/* What there is. */
struct neb_planner_place {
    int slots;      /* the most ranks; */
    bool exactly;   /* … and not fewer: Slurm's tasks */
    int near;       /* ranks that share the memory of a machine, at most */
    bool host;      /* they compute in that memory */
    int devices;    /* of a machine, which its ranks share; 0: not known, or host */
    double machine; /* bytes of a machine that are free; infinite: not known */
    double device;  /* bytes of a device; infinite: not known */
    double cap;     /* train.memory; 0: none */
};

/* What this machine, its Slurm allocation or parallel.hosts have for the job. slots: at most so many ranks; 0: all there are. */
neb_status neb__planner_find_place(const struct neb_job *job, int slots, struct neb_planner_place *out);

struct neb_planner_line; /* line.h */

struct neb_planner_row {
    struct neb_planner_layout layout;
    struct neb_planner_line *
        line; /* a pipeline between the sites: the layout is that of this site's stage; NULL: the whole model is here */
    bool uncut; /* such a pipeline, whose cut is refused */
    bool fits, timed;
    int64_t state, runs; /* bytes of the device of the rank that needs most */
    double memory;       /* both; and … */
    double first;        /* … of the first rank; and … */
    double host;         /* … what comes on top in the host's memory at the first rank of a machine */
    double step_s, compute_s, exchange_s, update_s, idle; /* idle: share of the runs in which stages wait */
    double tokens_s;
    struct neb_wan_forecast wan;
    double total_s, cost; /* to the job's end; what leaves this site, and … */
    double cost_all;      /* … what leaves any of them */
    char why[240];        /* it fell out */
};

struct neb_planned {
    struct neb_planner_row *row; /* those that fit, fastest first; then the others */
    int rows, fit;
    double tokens;  /* of a step of the site */
    int64_t values; /* trained parameters */
};

struct neb_planner_order {
    const struct neb_data *data;
    const struct neb_planner_costs *costs;
    struct neb_planner_place place;
    struct neb_wan_line line;
    double price;                          /* of a byte that leaves the site */
    const struct neb_planner_layout *only; /* this layout alone; NULL: all */
    bool lines;                            /* also pipelines between sites, of a job that is none */
};

/* NEB_ERR_NOMEM. A layout that cannot be is a row with the reason. Owes a free. */
neb_status neb__planner_make(const struct neb_planner_order *o, struct neb_planned *out);
void neb__planner_free(struct neb_planned *p);
/* An empty row; it is good until the next one. */
neb_status neb__planner_add(struct neb_planned *p, const struct neb_planner_layout *l,
                            struct neb_planner_row **out);

/* The numbers of ranks that are looked at: 1, powers of two, all slots. Returns how many, at most `most`. */
int neb__planner_rank_counts(const struct neb_planner_place *place, int *out, int most);

/* Seconds of the runs of a step: 1F1B of m micro-batches over stages that take forward[s] and backward[s] seconds each, with
 * `message` seconds between neighbours. *idle: the mean share in which a stage waits. */
neb_status neb__planner_turns(const double *forward, const double *backward, int stages, int m,
                              double message, double *seconds, double *idle);
/* The same for stages that share one device: forward[s] and backward[s] are with all of them at work, and one that works alone
 * takes `alone` of that, at most 1. */
neb_status neb__planner_turns_sharing(const double *forward, const double *backward, int stages, int m,
                                      double message, double alone, double *seconds, double *idle);

#endif
