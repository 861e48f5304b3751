/* wan.c: see wan.h. */
#include "plan/wan.h"
#include "base/mem.h"
#include "base/opts.h"
#include "codec/codec.h"
#include "round/rate.h"
#include "round/round.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The share of a line that is left for updates and activations. */
static const double goodput = 0.92;
enum { DECISIONS_MOST = 200000 };

static const struct neb_opt table[] = {
    NEB_OPT(struct neb_wan_line, rate, NEB_OPT_RATE, "100mbit", NULL, "of the line", NEB_OPT_ABOVE(0, 1e15)),
    NEB_OPT(struct neb_wan_line, rtt, NEB_OPT_TIME, "0", NULL, "round trip", NEB_OPT_RANGE(0, 60)),
    NEB_OPT_END};

neb_status neb__wan_line_read(const char *text, struct neb_wan_line *out)
{
    char rate[64], rtt[64] = "0";
    if (sscanf(text, "%63[^,],%63s", rate, rtt) < 1)
        return neb__fail(NEB_ERR_CONFIG, "--wan %s: name rate and round trip, such as 100mbit,50ms", text);
    struct neb_wan_line line;
    NEB_TRY(neb__opts_init(table, &line));
    NEB_TRY(neb__opts_set(table, &line, "rate", rate));
    NEB_TRY(neb__opts_set(table, &line, "rtt", rtt));
    *out = line;
    return NEB_OK;
}

int neb__wan_sites(const struct neb_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_sites; i++) n += job->site[i].does != NEB_ROLE_WITNESS;
    return n;
}

/* ---- replica -------------------------------------------------------------------------------------------------- */

static int make_ladder(struct neb_rate_rung *ladder)
{
    int n = 0;
    for (int i = 0; i < neb__rung_count; i++) {
        const struct neb_rung *r = &neb__rung_table[i];
        if (r->outside_scales) continue;
        ladder[n++] = (struct neb_rate_rung){.id = r->id,
                                             .name = r->name,
                                             .cls = r->cls,
                                             .bytes = (double)r->bytes,
                                             .error = (double)r->error};
    }
    return n;
}

struct replica {
    const struct neb_job *job;
    struct neb_rate_input in;
    struct neb_rate *rate;
    double line, steps; /* bytes a second, 0: not stated; steps of the run */
    double mean;        /* values of a fragment; the controller reckons with the largest */
    int fragments, used[256];
    double sent, intervals, held;
    struct neb_rate_decision last;
    int rung; /* of the last update */
};

static void see(struct replica *r)
{
    if (r->line <= 0) return;
    neb__rate_sample(r->rate, -1, r->line);
    for (int p = 0; p < r->in.members - 1 && p < NEB_RATE_PEERS; p++) neb__rate_sample(r->rate, p, r->line);
}

/* One slot: an update of a fragment. Losses are taken as harmless. */
static double decide(struct replica *r)
{
    struct neb_rate_decision *d = &r->last;
    neb__rate_decide(r->rate, &r->in, d);
    if (d->kind == NEB_RATE_CLASS) {
        neb__rate_class_changed(r->rate, d->cls);
        neb__rate_decide(r->rate, &r->in, d);
    }
    r->intervals++;
    if (d->kind != NEB_RATE_SEND) {
        r->held++;
    } else {
        r->sent += d->rung->bytes * r->mean * (r->in.members - 1);
        r->used[r->rung = d->rung->id & 0xff]++;
        if (r->line > 0) neb__rate_sent(r->rate, d->bytes, d->bytes * (r->in.members - 1) / r->line);
    }
    see(r);
    return (double)(strcmp(r->job->wan.rung, "auto") ? r->job->wan.interval : d->h) / r->fragments;
}

static void whole_run(struct replica *r)
{
    const double every = (double)r->job->train.eval_every;
    double at = 0, evaluated = 0, loss = 10;
    int64_t n = 0;
    see(r);
    while (at < r->steps && n++ < DECISIONS_MOST) {
        at += fmax(decide(r), 1e-9);
        if (every > 0 && at - evaluated >= every) {
            neb__rate_loss(r->rate, loss *= 0.999);
            evaluated = at;
        }
    }
    if (at > 0 && at < r->steps) r->sent *= r->steps / at; /* a very long run goes on as it went so far */
}

/* Bytes to one peer when the run ends (run/end.c): a last update of everything, in the best rung that takes at most four times the
 * bytes of those before it, which are some hundredths above their nominal size. */
static double end_of_run(const struct neb_job *job, const struct neb_rung *used, double values)
{
    static const double few = 4, real = 1.03, good_error = 0.01;
    const int peers = neb__wan_sites(job) - 1;
    const struct neb_rung *best = NULL;
    double allowed = few * real * (double)(used ? used->bytes : 0.25f);
    if (!strcmp(job->wan.end, "keep")) return (double)neb__rung_exact()->bytes * values;
    if (job->wan.end_bytes > 0) allowed = (double)job->wan.end_bytes / peers / values;
    for (int i = 0; i < neb__rung_count; i++) {
        const struct neb_rung *r = &neb__rung_table[i];
        if (r->outside_scales || (double)r->bytes > allowed) continue;
        const bool good = (double)r->error <= good_error,
                   was_good = best && (double)best->error <= good_error;
        if (!best || (good && was_good ? r->bytes < best->bytes : r->error < best->error)) best = r;
    }
    return best ? (double)best->bytes * values : 0;
}

neb_status neb__wan_replica(const struct neb_job *job, const struct neb_wan_line *line, double values,
                            double step_s, double steps, struct neb_wan_forecast *out)
{
    struct neb_rate_rung ladder[64];
    const struct neb_rung *fixed = strcmp(job->wan.rung, "auto") ? neb__rung_by_name(job->wan.rung) : NULL;
    const double cells = ceil(values / (double)NEB_CELL);
    const int fragments = (int)fmin((double)job->wan.fragments, fmax(1, cells));
    *out = (struct neb_wan_forecast){.sites = neb__wan_sites(job)};
    if (out->sites < 2 || neb__rung_count > 64) return NEB_OK;
    struct neb_rate_config c = {.rungs = ladder,
                                .rung_count = make_ladder(ladder),
                                .cls = fixed ? fixed->cls : NEB_DENSE,
                                .keep_class = fixed != NULL || !strncmp(job->wan.influence, "median", 6),
                                .prefer =
                                    strcmp(job->wan.prefer, "quality") ? NEB_PREFER_COST : NEB_PREFER_QUALITY,
                                .max_bytes_per_hour = (double)job->wan.max_bytes_per_hour,
                                .h = (int)job->wan.interval,
                                .fragments = fragments,
                                .pipeline = NEB_ROUND_PIPELINE,
                                .values = fmin(values, ceil(cells / fragments) * (double)NEB_CELL),
                                .force = fixed ? fixed->id : 0};
    struct replica r = {.job = job,
                        .in = {.step = step_s, .rtt = line->rtt, .members = out->sites},
                        .line = goodput * line->rate / 8,
                        .steps = steps,
                        .mean = values / fragments,
                        .fragments = fragments};
    if (job->wan.max_rate > 0)
        r.line = r.line > 0 ? fmin(r.line, job->wan.max_rate / 8) : job->wan.max_rate / 8;
    NEB_TRY(neb__rate_create(&c, &r.rate));
    whole_run(&r);
    int most = 0;
    for (int i = 0; i < 256; i++)
        if (r.used[i] > r.used[most]) most = i;
    const struct neb_rung *rung = neb__rung_by_id((uint8_t)most);
    snprintf(out->rung, sizeof out->rung, "%s", r.used[most] && rung ? rung->name : "none");
    snprintf(out->reason, sizeof out->reason, "%s", r.last.reason);
    out->bytes = r.sent + end_of_run(job, r.used[most] && rung ? rung : NULL, values) * (out->sites - 1);
    out->step_bytes = steps > 0 ? out->bytes / steps : 0;
    out->interval = fixed ? (double)job->wan.interval : r.last.h;
    out->held = r.intervals > 0 ? r.held / r.intervals : 0;
    neb__rate_destroy(r.rate);
    return NEB_OK;
}

/* ---- pipeline ------------------------------------------------------------------------------------------------- */

/* Tiles of 128 values share a scale of 16 bits. */
static double with_scales(int bits)
{
    return bits < 16 ? bits + 16.0 / 128 : bits;
}

void neb__wan_pipeline(const struct neb_job *job, const struct neb_wan_line *line, int sites, double tokens_s,
                       int bits, struct neb_wan_pipeline *out)
{
    const double width = (double)job->model.hidden, wide = with_scales(bits);
    struct neb_wan_pipeline p = {.bits = wide};
    p.line_tokens_s = line->rate > 0 ? goodput * line->rate / (width * wide) : HUGE_VAL;
    p.replica_tokens_s = sites * tokens_s;
    p.tokens_s = fmin(p.line_tokens_s, p.replica_tokens_s);
    *out = p;
}
