/* stage_site.c: one site's stage of a model: its streams, checkpoints and the end.
 *
 * Recovery needs no common rollback. Between two steps a stage is a function of its checkpoint and of the items that it
 * took since. So a stage that was killed loads its checkpoint, takes the items behind it from the neighbours' journals
 * once more, and makes the same steps: the items that it gives meanwhile are in its own journal already, which ignores
 * them. Its neighbours wait and lose nothing but the time. A journal keeps an item until two checkpoints of its receiver
 * cover it, so that a damaged one does no harm; when much has been received since the last checkpoint, the next one comes
 * early (wan.journal).
 *
 * A run has a tag, drawn by the first site when its folder OUT is new. It is in OUT/stream.run of every site and in every
 * item. A site without that file begins anew, and so do its journals; items of another run are refused. Behind the tag stand
 *
 *     version   of the items: 3, or 1 where a run has neither outlines nor a list of wanted parameters (2: outlines, of an older release)
 *     layers    that are here: "layers 1 to 2", "layers 1 to 1 and 4 to 4"
 *
 * A run that was begun with other items or other layers cannot go on: the numbers of its items differ, or what they mean.
 * OUT/pipeline.done says that this site has got and given everything: started again, it only waits for its neighbours. */
#include "split/stage_site.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/journal.h"
#include "run/session.h"
#include "run/stream.h"
#include "task/site_cut.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { FINISH_SECONDS = 10, LONELY_SECONDS = 60, ITEMS = 1024, BYTES = 128 << 20, MESSAGE_MAX = 1 << 30 };
static const double slice = 0.2;

/* ---- the tag of the run ----------------------------------------------------------------------------------- */

enum { RUN_TEXT = 128 };

/* "layers 1 to 2", or "layers 1 to 1 and 4 to 4". */
static void describe_layers(const struct neb_stage_place *at, char *out, size_t size)
{
    if (at->hole.end > at->hole.first)
        snprintf(out, size, "layers %" PRId64 " to %" PRId64 " and %" PRId64 " to %" PRId64,
                 at->range.first + 1, at->hole.first, at->hole.end + 1, at->range.end);
    else
        snprintf(out, size, "layers %" PRId64 " to %" PRId64, at->range.first + 1, at->range.end);
}

neb_status neb__stage_write_run(const struct neb_stage_site *s)
{
    char text[RUN_TEXT], layers[96];
    describe_layers(&s->place, layers, sizeof layers);
    int n = snprintf(text, sizeof text, "%08x %d %s\n", s->run, s->third ? 3 : 1, layers);
    return neb__file_replace(s->run_path, text, (size_t)n, 0600);
}

/* version: what stands behind the tag. */
static neb_status check_begun(const struct neb_stage_site *s, int version, const char *layers)
{
    char here[96];
    const char *lacks = NULL;
    if (s->outlined != (version == 2 || version == 3) && !(version == 3 && s->asks))
        lacks = "do not say what their batches look like, or with another number of sites";
    else if (s->third != (version == 3))
        lacks = "have other messages, or with another peft.method";
    if (lacks)
        return neb__fail(
            NEB_ERR_VERSION,
            "the run in %s was begun by a nebula-i whose stages %s: finish it with that program and job, or "
            "remove the folders `out` of all sites to start from nothing",
            s->job->out, lacks);
    describe_layers(&s->place, here, sizeof here);
    if (!*layers || !strcmp(layers, here)) return NEB_OK;
    return neb__fail(
        NEB_ERR_CONFIG,
        "the run in %s was begun with %s here, and the job gives %s now: say sites[].layers (and "
        "sites[0].last_layers) as the run was begun, or remove the folders `out` of all sites to start from "
        "nothing",
        s->job->out, layers, here);
}

/* *begun false: this site has not begun a run in this folder. */
static neb_status read_run(struct neb_stage_site *s, bool *begun)
{
    char text[RUN_TEXT] = "", layers[96] = "";
    int version = 1;
    *begun = false;
    FILE *f = fopen(s->run_path, "r");
    if (!f) return NEB_OK;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    if (n < 8 || strspn(text, "0123456789abcdef") != 8) return NEB_OK;
    (void)sscanf(text + 8, "%3d %95[^\n]", &version, layers);
    NEB_TRY(check_begun(s, version, layers));
    s->run = (uint32_t)strtoul(text, NULL, 16);
    s->run_known = *begun = true;
    return NEB_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

neb_status neb__stage_waits(struct neb_stage_site *s)
{
    if (*s->stop) return neb__quiet(NEB_ERR_AGAIN, "asked to stop");
    return s->idle ? s->idle(s->idle_arg) : NEB_OK;
}

static neb_status ready(void *site, bool back, double wait_s)
{
    struct neb_stage_site *s = site;
    neb_status status = neb__stream_ready(s->end[back ? NEB_BACK_IN : NEB_AHEAD_IN].stream, 1, wait_s);
    if (status == NEB_ERR_TIMEOUT && wait_s > 0) NEB_TRY(neb__stage_waits(s));
    return status;
}

/* A copy of the stage with both ends of the model would need the second visit of every micro-batch of a round at once, which its
 * neighbours may not have room for. */
static neb_status check_ranks(const struct neb_stage_site *s)
{
    const struct neb_job_parallel *p = &s->job->parallel;
    if (!s->place.ring || s->stage || p->data == 1) return NEB_OK;
    return neb__doc_fail(&s->job->doc, "parallel.data",
                         "parallel.data is %" PRId64
                         " at site '%s', which has both ends of the model (the output is tied to the token "
                         "table): use parallel.tensor there, or set model.tied: no",
                         p->data, s->job->site[0].name);
}

/* A stage with neither end of the model. It hears what the batches look like, also if it has the text: so the messages are the
 * same whether it has. */
static bool is_between(const struct neb_stage_site *s, int stage)
{
    return stage > 0 && stage < s->stages && (s->place.ring || stage < s->stages - 1);
}

static neb_status open_all(struct neb_stage_site *s)
{
    const struct neb_job *j = s->job;
    const struct neb_stage_place *at = &s->place;
    const bool ring = at->ring;
    neb__stage_control_begin(s);
    s->ways = (struct neb_stage_ways){.arg = s,
                                      .before = ring || s->stage > 0,
                                      .behind = ring || s->stage < s->stages - 1,
                                      .ready = ready,
                                      .take = neb__stage_take,
                                      .give = neb__stage_give,
                                      .add_up = neb__stage_add_up,
                                      .spread = neb__stage_spread,
                                      .outlines_in = is_between(s, s->stage),
                                      .outlines_out = is_between(s, s->stage + 1),
                                      .take_outline = neb__stage_take_outline,
                                      .give_outline = neb__stage_give_outline};
    s->outlined = s->stages > 2 || ring;
    s->asks = strcmp(j->peft.method, "full") != 0;
    s->third = s->outlined || s->asks;
    s->carrier = (struct neb_stage_carrier){s, neb__stage_carry_values, neb__stage_fetch_values,
                                            neb__stage_tell_wanted};
    s->links.stage = (struct neb_stage_links){
        .ways = &s->ways, .range = at->range, .hole = at->hole, .depth = s->rate.depth};
    if (snprintf(s->run_path, sizeof s->run_path, "%s/stream.run", j->out) >= (int)sizeof s->run_path ||
        snprintf(s->done_path, sizeof s->done_path, "%s/pipeline.done", j->out) >= (int)sizeof s->done_path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", j->out);
    bool begun;
    NEB_TRY(read_run(s, &begun)); /* what cannot go on says so before it waits for the other sites */
    return check_ranks(s);
}

static void say_place(const struct neb_stage_site *s)
{
    char layers[96];
    describe_layers(&s->place, layers, sizeof layers);
    neb__info("stage %d of %d: %s%s", s->stage + 1, s->stages, layers,
              s->place.ring && !s->stage ? ", since the output is tied to the token table" : "");
}

static void describe_cut(const struct neb_stage_range *range, int n, const struct neb_stage_range *hole,
                         char *out, size_t size)
{
    size_t at = 0;
    for (int i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRId64 "-%" PRId64, i ? ";" : "",
                               range[i].first + 1, range[i].end);
    if (hole->end && at < size)
        snprintf(out + at, size - at, ";hole %" PRId64 "-%" PRId64, hole->first + 1, hole->end);
}

neb_status neb__stage_site_open(const struct neb_job *job, const struct neb_data *data,
                                const volatile sig_atomic_t *stop, struct neb_stage_site **out)
{
    struct neb_stage_range range[NEB_JOB_SITES], hole;
    NEB_TRY(neb__site_cut(job, &data->models.model, range, &hole));
    struct neb_stage_place place = {.ring = hole.end > 0, .range = range[job->at]};
    if (!job->at) place.hole = hole;
    describe_cut(range, job->n_sites, &hole, place.cut, sizeof place.cut);
    NEB_TRY(neb__stage_site_open_at(job, &place, stop, out));
    say_place(*out);
    return NEB_OK;
}

neb_status neb__stage_site_open_at(const struct neb_job *job, const struct neb_stage_place *place,
                                   const volatile sig_atomic_t *stop, struct neb_stage_site **out)
{
    struct neb_stage_site *s = NEB_NEW(struct neb_stage_site);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a stage");
    s->job = job;
    s->stage = job->at;
    s->stages = job->n_sites;
    s->stop = stop;
    s->place = *place;
    neb__buf_init(&s->item, NEB_STREAM_ITEM_MAX);
    neb__buf_init(&s->message, MESSAGE_MAX);
    neb__buf_init(&s->inbox.bytes, MESSAGE_MAX);
    neb_status status = open_all(s);
    if (status != NEB_OK) {
        neb__stage_site_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

void neb__stage_site_close(struct neb_stage_site *s)
{
    if (!s) return;
    for (int i = 0; i < NEB_STAGE_WAYS; i++) neb_stream_close(s->end[i].stream);
    neb__buf_free(&s->item);
    neb__buf_free(&s->message);
    neb__buf_free(&s->inbox.bytes);
    neb__free(s);
}

/* ---- streams ---------------------------------------------------------------------------------------------- */

static bool produces(enum neb_stage_way way)
{
    return way == NEB_AHEAD_OUT || way == NEB_BACK_OUT;
}

/* The stage on the other end; -1 or `stages`: nobody. */
static int neighbour(const struct neb_stage_site *s, enum neb_stage_way way)
{
    int other = way == NEB_AHEAD_IN || way == NEB_BACK_OUT ? s->stage - 1 : s->stage + 1;
    return s->place.ring ? (other + s->stages) % s->stages : other;
}

bool neb__stage_in_line(const struct neb_stage_site *s, enum neb_stage_way way)
{
    bool before = way == NEB_AHEAD_IN || way == NEB_BACK_OUT;
    if (!s->end[way].stream) return false;
    return before ? s->stage > 0 : s->stage < s->stages - 1;
}

/* Another job of the same sites has other numbers, and so journals of its own. */
static uint32_t number_of(const struct neb_stage_site *s, enum neb_stage_way way)
{
    uint32_t crc = neb__crc32c(0, s->job->name, strlen(s->job->name));
    int before =
        way == NEB_AHEAD_OUT || way == NEB_BACK_IN ? s->stage : neighbour(s, way); /* who sends ahead */
    bool back = way == NEB_BACK_IN || way == NEB_BACK_OUT;
    return 1 + crc % 65000 + 2 * (uint32_t)before + back;
}

static neb_status forget_journal(const struct neb_stage_site *s, enum neb_stage_way way)
{
    char dir[PATH_MAX], name[64];
    const struct neb_job *j = s->job;
    if (snprintf(dir, sizeof dir, "%s/streams", neb__session_folder(j, j->at)) >= (int)sizeof dir)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    snprintf(name, sizeof name, "%.40s-%u", j->site[neighbour(s, way)].name, number_of(s, way));
    NEB_TRY(neb__file_make_dir(dir, 0700));
    return neb__journal_remove(dir, name);
}

static neb_status begin_run(struct neb_stage_site *s)
{
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++)
        if (produces(w) && neighbour(s, w) >= 0 && neighbour(s, w) < s->stages) NEB_TRY(forget_journal(s, w));
    (void)unlink(s->done_path);
    if (s->stage) return NEB_OK; /* the first item says which run it is */
    if (getrandom(&s->run, sizeof s->run, 0) != sizeof s->run)
        return neb__fail(NEB_ERR_IO, "the system gives no random numbers");
    s->run_known = true;
    return neb__stage_write_run(s);
}

static neb_status open_way(struct neb_stage_site *s, neb_session *session, enum neb_stage_way way,
                           const struct neb_stage_marks *marks)
{
    struct neb_stage_end *e = &s->end[way];
    int other = neighbour(s, way);
    e->at = marks ? marks->at[way] : 0; /* the next checkpoint of a site that has finished has it, too */
    if (other < 0 || other >= s->stages || (s->done && !s->tells && !produces(way))) return NEB_OK;
    e->other = s->job->site[other].name;
    struct neb_stream_config c = {.site = e->other,
                                  .number = number_of(s, way),
                                  .produce = produces(way),
                                  .mark = e->at,
                                  .items = ITEMS,
                                  .bytes = BYTES};
    /* what one checkpoint alone covers stays in the journal */
    return neb__stream_open_keeping(session, &c, s->done ? e->at : s->saved[0].marks.at[way], &e->stream);
}

static neb_status check_more(const struct neb_stage_site *s, int64_t step)
{
    if (!s->done || step >= s->job->train.steps) return NEB_OK;
    return neb__doc_fail(&s->job->doc, "train.steps",
                         "train.steps is %" PRId64 ", but the run in %s has ended after %" PRId64
                         ": begin another one with its model (init.from), in another folder `out`",
                         s->job->train.steps, s->job->out, step);
}

/* Everything that this site has got and given, which is more than its last checkpoint knows. */
static neb_status write_done(const struct neb_stage_site *s)
{
    char text[80];
    int n = snprintf(text, sizeof text, "done");
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %" PRIu64, s->end[w].at);
    text[n++] = '\n';
    return neb__file_replace(s->done_path, text, (size_t)n, 0600);
}

static bool read_done(struct neb_stage_site *s, struct neb_stage_marks *out)
{
    FILE *f = fopen(s->done_path, "r");
    if (!f) return false;
    int n = fscanf(f, "done %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &out->at[0], &out->at[1],
                   &out->at[2], &out->at[3]);
    fclose(f);
    s->tells = n == NEB_STAGE_WAYS;
    return s->tells;
}

neb_status neb__stage_site_start(struct neb_stage_site *s, neb_session *session,
                                 const struct neb_stage_marks *marks, const struct neb_stage_marks *older,
                                 int64_t step, const char *out)
{
    const bool begun = s->run_known;
    if (marks && !begun)
        return neb__fail(
            NEB_ERR_CONFIG,
            "%s has a checkpoint, but no %s: remove the folders `out` of all sites to start from "
            "nothing",
            out, s->run_path);
    if (!begun) NEB_TRY(begin_run(s));
    struct neb_stage_marks last;
    s->done = marks && !access(s->done_path, F_OK);
    NEB_TRY(check_more(s, step));
    if (marks) s->saved[1].marks = *marks, s->saved[1].step = step;
    if (older) s->saved[0].marks = *older;
    if (s->done && read_done(s, &last)) marks = &last;
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++) NEB_TRY(open_way(s, session, w, marks));
    return NEB_OK;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------ */

neb_status neb__stage_site_saving(struct neb_stage_site *s, struct neb_stage_marks *out)
{
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++) {
        struct neb_stage_end *e = &s->end[w];
        out->at[w] = e->at;
        if (!e->stream || !produces(w)) continue;
        neb_status status;
        while ((status = neb_stream_sync(e->stream, slice)) == NEB_ERR_TIMEOUT) NEB_TRY(neb__stage_waits(s));
        NEB_TRY(status);
    }
    return NEB_OK;
}

void neb__stage_site_saved(struct neb_stage_site *s, int64_t durable, int64_t step,
                           const struct neb_stage_marks *marks)
{
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++) {
        struct neb_stage_end *e = &s->end[w];
        if (!e->stream || produces(w)) continue;
        /* the writer has waited for the checkpoint before this one: what saved[0] covers is covered twice */
        if (durable >= s->saved[1].step) (void)neb_stream_retain(e->stream, s->saved[0].marks.at[w]);
        e->bytes = e->seen = 0;
    }
    s->saved[0] = s->saved[1];
    s->saved[1].step = step;
    s->saved[1].marks = *marks;
}

/* The journal holds what came since the last checkpoint but one. Between steps, once behind each: after the next one it may be too
 * late. */
bool neb__stage_site_wants_save(struct neb_stage_site *s)
{
    bool wants = false;
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++) {
        struct neb_stage_end *e = &s->end[w];
        if (produces(w)) continue;
        if (e->bytes - e->seen > e->most) e->most = e->bytes - e->seen;
        e->seen = e->bytes;
        wants |= e->bytes + e->most > (uint64_t)s->job->wan.journal / 4;
    }
    return wants;
}

/* ---- the end ---------------------------------------------------------------------------------------------- */

/* Nothing more is taken: the other site may forget everything. A site that was killed over this tells it once more, since the
 * other one may have waited for it; or it may be gone. */
static neb_status end_in(struct neb_stage_site *s, struct neb_stage_end *e)
{
    (void)neb_stream_retain(e->stream, e->at);
    neb_status end = neb_stream_finish(e->stream, FINISH_SECONDS);
    if (end == NEB_ERR_TIMEOUT && !s->done)
        neb__warn(
            "site '%s' could not be told that this site has finished; stop it there by hand if it goes on",
            e->other);
    return end == NEB_ERR_TIMEOUT ? NEB_OK : end;
}

/* Stays until the other site has everything. A site that had finished before does not wait for ever for one that is
 * not there any more. */
static neb_status end_out(struct neb_stage_site *s, struct neb_stage_end *e)
{
    double alone = 0;
    for (;;) {
        struct neb_stream_status st;
        neb_status end = neb_stream_drain(e->stream, slice);
        if (end != NEB_ERR_TIMEOUT) return end;
        if (*s->stop)
            return neb__quiet(NEB_ERR_CANCELLED, "stopped before site '%s' had every item", e->other);
        neb_stream_get_status(e->stream, &st);
        alone = st.linked || !s->done ? 0 : alone + slice;
        if (alone > LONELY_SECONDS) return NEB_OK;
        if (s->idle) NEB_TRY(s->idle(s->idle_arg));
    }
}

/* Whoever has finished gives nothing again: so what it gave is on its disk first. */
neb_status neb__stage_site_finish(struct neb_stage_site *s)
{
    struct neb_stage_marks marks;
    if (!s->done) {
        NEB_TRY(neb__stage_site_saving(s, &marks));
        NEB_TRY(write_done(s));
    }
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++)
        if (s->end[w].stream && !produces(w)) NEB_TRY(end_in(s, &s->end[w]));
    for (enum neb_stage_way w = 0; w < NEB_STAGE_WAYS; w++)
        if (s->end[w].stream && produces(w)) NEB_TRY(end_out(s, &s->end[w]));
    return NEB_OK;
}

/* The ranks of a site do not take the messages, and so do not know the run from them. */
neb_status neb__stage_site_part(struct neb_stage_site *s, int64_t step, struct neb_folder_part *out)
{
    bool begun;
    if (!s->run_known) NEB_TRY(read_run(s, &begun));
    if (!s->run_known)
        return neb__fail(NEB_ERR_STATE, "the run in %s has not begun: there is no part of a model to write",
                         s->job->out);
    *out = (struct neb_folder_part){.number = s->stage + 1, .parts = s->stages, .step = step};
    snprintf(out->run, sizeof out->run, "%08x", s->run);
    return NEB_OK;
}

void neb__stage_site_count(struct neb_stage_site *s)
{
    s->readings.out = s->end[NEB_AHEAD_OUT].all_bytes + s->end[NEB_BACK_OUT].all_bytes;
    s->readings.in = s->end[NEB_AHEAD_IN].all_bytes + s->end[NEB_BACK_IN].all_bytes;
}

void neb__stage_site_describe(const struct neb_stage_site *s, const struct neb_site_stage_times *t, char *out,
                              size_t size)
{
    const struct neb_stage_end *e = s->end;
    const struct neb_stage_range *r = &s->links.stage.range;
    snprintf(out, size,
             "stage %d of %d (layers %" PRId64 " to %" PRId64
             "), %.2f MB ahead and %.2f MB back sent, %.2f MB and %.2f MB received (parameters at the end: "
             "%.2f MB of "
             "those sent, %.2f MB of those received); %.1f s waiting for neighbours, %.1f s coding",
             s->stage + 1, s->stages, r->first + 1, r->end, e[NEB_AHEAD_OUT].all_bytes / 1e6,
             e[NEB_BACK_OUT].all_bytes / 1e6, e[NEB_AHEAD_IN].all_bytes / 1e6, e[NEB_BACK_IN].all_bytes / 1e6,
             s->gathered[0] / 1e6, s->gathered[1] / 1e6, t->idle, s->code_s);
}
