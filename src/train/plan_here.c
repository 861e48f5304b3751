/* plan_here.c: see plan_here.h. */
#include "train/plan_here.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "plan/line.h"
#include "plan/measure.h"
#include "plan/record.h"
#include "plan/strategy.h"
#include "task/memory_check.h"
#include "train/launch.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNTS = 4, TEXT = 64 << 10, LOOK_MS = 20 };
static const double probe_s = 180, wait_s = 60;

/* ---- one of several processes that measure -------------------------------------------------------------------- */

bool neb__planner_is_probe(void)
{
    return getenv(NEB_PROBE_VARIABLE) != NULL && neb__group_started();
}

static neb_status write_costs(const char *path, const struct neb_planner_costs *costs)
{
    struct neb_buf text;
    neb__buf_init(&text, TEXT);
    neb_status status = neb__costs_write(costs, &text);
    if (status == NEB_OK) status = neb__file_replace(path, text.data, text.len, 0600);
    neb__buf_free(&text);
    return status;
}

neb_status neb__planner_probe(const struct neb_job *job)
{
    struct neb_group *ranks;
    struct neb_data data;
    struct neb_planner_costs costs = {0};
    const char *path = getenv(NEB_PROBE_VARIABLE);
    NEB_TRY(neb__group_join(wait_s, &ranks));
    neb__log_hush(true);
    neb_status prepared = neb__data_prepare_plan(job, &data), status = neb__group_agree(ranks, prepared);
    if (status == NEB_OK) status = neb__planner_measure(&data, ranks, &costs);
    if (prepared == NEB_OK) neb__data_free(&data);
    neb__log_hush(false);
    if (status != NEB_OK) neb__warn("a process that measures cannot go on: %s", neb_last_error());
    if (status == NEB_OK && !neb__group_rank(ranks)) status = write_costs(path, &costs);
    neb__group_close(ranks);
    return status;
}

/* ---- costs ---------------------------------------------------------------------------------------------------- */

/* All that the time of a layer depends on. */
/* All that its layers are trained with: what is measured differs with the methods, their sizes and their places. */
static neb_status hash_peft(const struct neb_job *j, char out[2 * NEB_HASH_SIZE + 1])
{
    struct neb_buf text;
    neb__buf_init(&text, TEXT);
    neb_status status = neb__opts_write(neb__peft_options, &j->peft, "", &text);
    if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
    struct neb_hash h;
    if (status == NEB_OK) status = neb__hash(text.data, text.len, &h);
    if (status == NEB_OK) neb__hash_hex(&h, out);
    neb__buf_free(&text);
    return status;
}

static neb_status costs_path(const struct neb_data *data, char *out, size_t size)
{
    const struct neb_job *j = data->job;
    const struct neb_job_train *t = &j->train;
    const struct neb_model_config *m = &data->models.model;
    char text[1024], host[128] = "", hex[2 * NEB_HASH_SIZE + 1], peft[2 * NEB_HASH_SIZE + 1];
    struct neb_hash h;
    (void)gethostname(host, sizeof host - 1);
    NEB_TRY(hash_peft(j, peft));
    int n = snprintf(text, sizeof text,
                     "%s|%s|%d|%s|%s|%s|%s|%" PRId64 "|%" PRId64 "|%" PRId64 "|%s|%s|%d|%" PRId64 "|%" PRId64
                     "|%" PRId64 "|%" PRId64 "|%" PRId64 "|%" PRId64 "|%" PRId64 "|%" PRId64 "|%" PRId64
                     "|%g|%g|%s|%d",
                     NEB_VERSION, host, neb__cores(), t->device, t->dtype, t->optimizer, j->task, t->tokens,
                     t->max_len, t->threads, m->kind, m->positions, m->recompute, m->vocab, m->hidden,
                     m->heads, m->kv_heads, m->head_dim, m->ffn, m->embedding, m->layers < 4 ? m->layers : 4,
                     m->decoder_layers, m->dropout, m->attention_dropout, peft, t->deterministic);
    NEB_TRY(neb__hash(text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, &h));
    neb__hash_hex(&h, hex);
    snprintf(out, size, "%s/plan.%.16s", data->dir, hex);
    return NEB_OK;
}

static bool read_costs(const char *path, struct neb_planner_costs *out)
{
    struct neb_buf text;
    neb__buf_init(&text, TEXT);
    neb_status status = access(path, R_OK) ? NEB_ERR_NOTFOUND : neb__file_read(path, &text);
    if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
    if (status == NEB_OK) status = neb__costs_read((const char *)text.data, out);
    neb__buf_free(&text);
    return status == NEB_OK;
}

static void merge(struct neb_planner_costs *to, const struct neb_planner_costs *from)
{
    for (int i = 0; i < from->layers; i++) neb__costs_add_layer(to, &from->layer[i]);
    for (int i = 0; i < from->groups; i++) neb__costs_add_group(to, &from->group[i]);
    if (!*to->device) memcpy(to->device, from->device, sizeof to->device);
    to->bus = from->bus;
}

static neb_status run_probe(struct neb_launch *l)
{
    const int64_t since = neb__now_ns();
    int code = 0;
    NEB_TRY(neb__launch_start(l));
    while (!neb__launch_ended(l, &code)) {
        if (neb__seconds_since(since) > probe_s) {
            neb__launch_stop(l);
            return neb__fail(NEB_ERR_TIMEOUT, "measuring has taken more than %.0f s", probe_s);
        }
        poll(NULL, 0, LOOK_MS);
    }
    return code ? neb__fail(NEB_ERR_PEER, "the processes that measure ended with exit status %d", code)
                : NEB_OK;
}

static neb_status measure_ranks(const struct neb_data *data, int ranks, struct neb_planner_costs *costs)
{
    char path[640];
    struct neb_planner_costs seen;
    struct neb_launch *l;
    snprintf(path, sizeof path, "%s/plan.probe.%d", data->dir, (int)getpid());
    if (setenv(NEB_PROBE_VARIABLE, path, 1)) return neb__fail(NEB_ERR_NOMEM, "out of memory for a variable");
    neb_status status = neb__launch_open_ranks(data->job, ranks, &l);
    if (status == NEB_OK) {
        status = run_probe(l);
        neb__launch_close(l);
    }
    unsetenv(NEB_PROBE_VARIABLE);
    if (status == NEB_OK && !read_costs(path, &seen))
        status = neb__fail(NEB_ERR_IO, "the processes that measure left nothing in %s", path);
    if (status == NEB_OK) merge(costs, &seen);
    (void)unlink(path);
    return status;
}

static bool known(const struct neb_planner_costs *c, const struct neb_job *job, int ranks, int near)
{
    return neb__costs_layer(c, 1, neb__planner_threads(job, near), ranks) &&
           (ranks == 1 || neb__costs_group(c, ranks, 1));
}

neb_status neb__planner_find_costs(const struct neb_data *data, const struct neb_planner_place *place,
                                   bool again, struct neb_planner_costs *out)
{
    char path[600];
    int counts[COUNTS];
    const int n = neb__planner_rank_counts(place, counts, COUNTS);
    bool news = false;
    *out = (struct neb_planner_costs){0};
    NEB_TRY(costs_path(data, path, sizeof path));
    if (!again && !read_costs(path, out)) *out = (struct neb_planner_costs){0};
    for (int i = 0; i < n; i++) {
        const int near = place->near < counts[i] ? place->near : counts[i];
        if (known(out, data->job, counts[i], near)) continue;
        neb__info("measuring a layer and the exchanges of %d process%s; the result is kept in %s", counts[i],
                  counts[i] == 1 ? "" : "es", data->dir);
        neb_status status =
            counts[i] == 1 ? neb__planner_measure(data, NULL, out) : measure_ranks(data, counts[i], out);
        if (status != NEB_OK)
            neb__warn("layouts of %d process%s were not measured: %s", counts[i], counts[i] == 1 ? "" : "es",
                      neb_last_error());
        news |= status == NEB_OK;
    }
    if (news && write_costs(path, out) != NEB_OK) neb__warn("the costs cannot be kept: %s", neb_last_error());
    return NEB_OK;
}

/* ---- auto ----------------------------------------------------------------------------------------------------- */

static neb_status nothing_fits(const struct neb_job *job, const struct neb_planned *p)
{
    const struct neb_planner_row *least = p->row;
    char name[96];
    for (int i = 1; i < p->rows; i++)
        if (p->row[i].memory > 0 && (!(least->memory > 0) || p->row[i].memory < least->memory))
            least = &p->row[i];
    if (!p->rows) return neb__doc_fail(&job->doc, "parallel.auto", "parallel: auto found no layout");
    neb__planner_row_text(least, name, sizeof name);
    return neb__doc_fail(
        &job->doc, "parallel.auto",
        "parallel: auto found no layout that fits; the one that needs least is %s: %s. Make train.tokens "
        "smaller and train.micro larger, set model.recompute: yes, or train a part of the model (peft); "
        "nebula-i plan shows all",
        name, least->why);
}

static void say_choice(const struct neb_planned *p)
{
    char name[96], next[96];
    const struct neb_planner_row *best = p->row;
    neb__planner_row_text(best, name, sizeof name);
    if (p->fit > 1) {
        neb__planner_row_text(&p->row[1], next, sizeof next);
        neb__info("parallel: auto takes %s: %.4f s a step, %.0f MiB a process; next would be %s with %.4f s "
                  "and %.0f MiB",
                  name, best->step_s, best->memory / 0x1p20, next, p->row[1].step_s,
                  p->row[1].memory / 0x1p20);
    } else {
        neb__info("parallel: auto takes %s: %.4f s a step, %.0f MiB a process; nothing else fits", name,
                  best->step_s, best->memory / 0x1p20);
    }
}

static neb_status choose(struct neb_job *job, const struct neb_data *data)
{
    struct neb_planner_costs costs;
    struct neb_planned plan;
    struct neb_planner_order o = {.data = data, .costs = &costs};
    NEB_TRY(neb__planner_find_place(job, 0, &o.place));
    NEB_TRY(neb__planner_find_costs(data, &o.place, false, &costs));
    NEB_TRY(neb__planner_make(&o, &plan));
    neb_status status = plan.fit ? NEB_OK : nothing_fits(job, &plan);
    if (status == NEB_OK) {
        struct neb_job chosen = *job;
        say_choice(&plan);
        neb__planner_set_layout(&chosen, &plan.row[0].layout);
        status = neb__job_take_layout(job, &chosen.parallel);
        if (neb__planner_record(job->out, &plan) != NEB_OK)
            neb__warn("the plan cannot be kept: %s", neb_last_error());
    }
    neb__planner_free(&plan);
    return status;
}

neb_status neb__planner_choose(struct neb_job *job)
{
    struct neb_data data;
    struct neb_job as_read = *job; /* the data's job must not change while it plans */
    NEB_TRY(neb__job_check_parallel(job));
    NEB_TRY(neb__data_prepare_plan(&as_read, &data));
    neb_status status =
        neb__data_wanted(&data, "parallel: auto", "say data, tensor and zero in its sites[].parallel");
    if (status == NEB_OK) status = choose(job, &data);
    neb__data_free(&data);
    return status;
}

/* ---- replica or pipeline -------------------------------------------------------------------------------------- */

static neb_status judge_strategy(const struct neb_job *job, bool machine, struct neb_planner_strategy *out)
{
    struct neb_data data;
    struct neb_planner_place place;
    NEB_TRY(neb__data_prepare_plan(job, &data));
    neb_status status = neb__data_wanted(&data, "a plan", "the sites that have it compare the strategies");
    if (status == NEB_OK && machine) status = neb__planner_find_place(job, 0, &place);
    if (status == NEB_OK)
        status = machine ? neb__planner_strategy_here(&data, &place, NULL, out)
                         : neb__planner_strategy(&data, out);
    neb__data_free(&data);
    return status;
}

static neb_status by_limits(const struct neb_job *job, bool *wants)
{
    struct neb_planner_strategy s;
    neb_status status = judge_strategy(job, false, &s);
    if (status == NEB_ERR_NOTFOUND)
        return neb__fail(
            status,
            "%s; strategy: auto reads the text at every site to decide: where a site is to do without, say "
            "strategy: pipeline",
            neb_last_error());
    NEB_TRY(status);
    *wants = !s.fits;
    neb__info(
        "strategy: auto takes %s: a process with the whole model needs %.0f MiB, and site %s allows %.0f MiB",
        s.fits ? "replica" : "pipeline", s.needs / 0x1p20, job->site[s.site < 0 ? 0 : s.site].name,
        s.room / 0x1p20);
    return NEB_OK;
}

/* No site says how much memory it has: the limit is what this machine has. */
static neb_status by_machine(const struct neb_job *job, bool *wants)
{
    bool fits = true;
    if (!neb__planner_can_be_cut(job)) return NEB_OK;
    const bool before = neb__log_hush(true);
    neb_status status = neb__memory_foresee_here(job, &fits);
    neb__log_hush(before);
    if (status != NEB_OK) return neb__fail(status, "%s", neb_last_error());
    *wants = !fits;
    if (*wants)
        neb__info("strategy: auto takes pipeline: %s. The other sites decide by their own memory: say "
                  "sites[].train.memory, and all of them come to the same",
                  neb_last_error());
    return NEB_OK;
}

static neb_status is_there(const struct neb_job *job, const char *name, bool *there)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/%s", job->out, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return neb__fail(NEB_ERR_CONFIG, "out: the path of the folder is too long: '%.60s…'", job->out);
    *there = !access(path, F_OK);
    return NEB_OK;
}

/* A run that has begun in this folder goes on as it is, whatever is free now and whatever the limits are. */
static neb_status has_begun(const struct neb_job *job, bool *begun, bool *as_pipeline)
{
    bool as_replica;
    NEB_TRY(is_there(job, "stream.run", as_pipeline));
    NEB_TRY(is_there(job, "checkpoints", &as_replica));
    *begun = *as_pipeline || as_replica;
    return NEB_OK;
}

neb_status neb__planner_wants_pipeline(const struct neb_job *job, bool *wants)
{
    bool begun;
    *wants = false;
    if (!neb__planner_strategy_open(job) || neb__group_started()) return NEB_OK;
    NEB_TRY(has_begun(job, &begun, wants));
    if (begun) return NEB_OK;
    return neb__planner_strategy_limited(job) ? by_limits(job, wants) : by_machine(job, wants);
}

void neb__planner_question_pipeline(const struct neb_job *job)
{
    struct neb_planner_strategy s;
    if (job->plan != NEB_STRATEGY_PIPELINE || job->at < 0 || strcmp(job->strategy, "pipeline") ||
        job->parallel.automatic || neb__group_started())
        return;
    const bool before = neb__log_hush(true);
    neb_status status = judge_strategy(job, true, &s);
    neb__log_hush(before);
    if (status == NEB_OK && s.known && s.fits)
        neb__warn("strategy pipeline: a site can hold the whole model (%.0f MiB a process), and strategy "
                  "replica would then be "
                  "faster; nebula-i plan compares them",
                  s.needs / 0x1p20);
}
