/* gate_serve.c: the first rank's end of the gateway: it does what the gateway orders, together with the other ranks.
 *
 * Between two orders it shows the other ranks that it lives. When the channel ends, the gateway is gone, and all
 * ranks end. */
#include "train/gate.h"
#include "base/log.h"
#include "base/mem.h"
#include "task/hf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct part { /* a trainable parameter: in the window, and in the slab of the whole model */
    struct neb_gate_param p;
    int64_t offset;
};

struct neb_gate_end {
    struct neb_trainer *t;
    struct neb_gate_channel channel;
    struct part *part; /* (parts) in the run's order */
    uint32_t parts;
    uint64_t values;
    float *window;
};

/* ---- how the ranks begin ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct part *p = a, *q = b;
    return strcmp(p->p.name, q->p.name);
}

static neb_status list_params(struct neb_gate_end *e)
{
    neb_params *ps = neb__work_params(e->t->work);
    int n = neb_params_count(ps);
    e->part = NEB_NEW_ARRAY(struct part, (size_t)n);
    if (!e->part) return neb__fail(NEB_ERR_NOMEM, "out of memory for the names of the parameters");
    for (int i = 0; i < n; i++) {
        const neb_param *p = neb_params_at(ps, i);
        struct part *q = &e->part[e->parts];
        if (!neb_param_trainable(p)) continue;
        if (snprintf(q->p.name, sizeof q->p.name, "%s", neb_param_name(p)) >= (int)sizeof q->p.name)
            return neb__fail(NEB_ERR_UNSUPPORTED, "a parameter's name is too long: %.60s…",
                             neb_param_name(p));
        q->p.ndim = neb_param_shape(p, q->p.shape);
        q->p.count = 1;
        for (int d = 0; d < q->p.ndim; d++) q->p.count *= (uint64_t)q->p.shape[d];
        q->offset = neb_param_offset(p);
        e->parts++;
    }
    qsort(e->part, e->parts, sizeof *e->part, by_name);
    for (uint32_t i = 0; i < e->parts; i++) {
        e->part[i].p.first = e->values;
        e->values += e->part[i].p.count;
    }
    return NEB_OK;
}

void neb__trainer_find_facts(struct neb_trainer *t)
{
    const bool model = neb__work_model(t->work) && (!t->stage || neb__stage_site_has_model(t->stage));
    bool from, to;
    neb__data_wants(&t->data, &from, &to);
    t->facts =
        (struct neb_trainer_facts){.model = model,
                                   .generator = neb__work_generator(t->work),
                                   .from = from,
                                   .to = to,
                                   .exports = model && neb__hf_exports(&t->data.models.model, &t->job->peft),
                                   .trainable = neb__work_slab_values(t->work)};
}

static neb_status take_window(struct neb_gate_end *e)
{
    char w;
    int fd;
    NEB_TRY(neb__gate_channel_receive(&e->channel, &w, 1, &fd, NULL, NULL));
    if (fd < 0) return neb__fail(NEB_ERR_INTERNAL, "the gateway gave no window");
    void *p = mmap(NULL, e->values * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) return neb__fail(NEB_ERR_NOMEM, "the window cannot be mapped: %s", strerror(errno));
    e->window = p;
    return NEB_OK;
}

/* Says how this rank begins, or why it does not. */
static neb_status say_ready(struct neb_gate_end *e, neb_status status)
{
    struct neb_trainer *t = e->t;
    struct neb_gate_ready r = {.status = status, .lost = neb__group_broken(t->ranks), .loaded = t->loaded};
    if (t->stage) r.stage = t->stage->place;
    if (status == NEB_OK && !t->stage) status = r.status = list_params(e);
    if (status == NEB_OK) status = r.status = neb__work_frozen_hash(t->work, &r.has_frozen, &r.frozen);
    if (status == NEB_OK) {
        neb__trainer_find_facts(t);
        r.progress = t->progress;
        r.textless = t->data.textless;
        r.has_tokenizer = t->data.tok != NULL;
        if (r.has_tokenizer) r.tokenizer = *neb__tok_hash(t->data.tok);
        r.facts = t->facts;
        r.samples = neb__work_private_samples(t->work);
        r.values = e->values;
        r.params = e->parts;
    } else {
        snprintf(r.why, sizeof r.why, "%s", neb_last_error());
    }
    struct neb_ranks_sums sums = neb__ranks_sums(t->job);
    NEB_TRY(neb__gate_channel_send(&e->channel, &sums, sizeof sums, -1));
    NEB_TRY(neb__gate_channel_send(&e->channel, &r, sizeof r, -1));
    for (uint32_t i = 0; status == NEB_OK && i < e->parts; i++)
        NEB_TRY(neb__gate_channel_send(&e->channel, &e->part[i].p, sizeof e->part[i].p, -1));
    return status == NEB_OK && !t->stage ? take_window(e) : status;
}

/* ---- orders ------------------------------------------------------------------------------------------------ */

/* Values of the model's slab, from `at` on, into the window or out of it. The slab of a device is reached by copies. */
static neb_status move(struct neb_gate_end *e, float *slab, int64_t at, float *window, uint64_t n, bool out)
{
    struct neb_work *w = e->t->work;
    if (!neb__work_slab_on_host(w) && !neb__work_is_split(w))
        return out ? neb__work_values(w, at, window, (int64_t)n)
                   : neb__work_put_values(w, at, window, (int64_t)n);
    memcpy(out ? window : slab + at, out ? slab + at : window, n * sizeof *window);
    return NEB_OK;
}

/* Values [first, first + n) of the window, out of the model or into it. */
static neb_status exchange(struct neb_gate_end *e, uint64_t first, uint64_t n, bool out)
{
    int64_t all;
    float *slab = neb__work_slab(e->t->work, &all);
    NEB_TRY(neb__work_settle(e->t->work));
    if (first > e->values || n > e->values - first)
        return neb__fail(NEB_ERR_INTERNAL, "the gateway asks for values that are not there");
    for (uint32_t i = 0; i < e->parts; i++) {
        const struct part *p = &e->part[i];
        uint64_t from = first > p->p.first ? first : p->p.first;
        uint64_t to = first + n < p->p.first + p->p.count ? first + n : p->p.first + p->p.count;
        if (from >= to) continue;
        NEB_TRY(move(e, slab, p->offset + (int64_t)(from - p->p.first), e->window + from, to - from, out));
    }
    return NEB_OK;
}

static neb_status fetch(struct neb_gate_end *e)
{
    NEB_TRY(neb__ranks_fetch(e->t));
    return exchange(e, 0, e->values, true);
}

static neb_status share(struct neb_gate_end *e, const struct neb_gate_order *o)
{
    NEB_TRY(neb__ranks_fetch(e->t)); /* values outside the range stay as they are */
    NEB_TRY(exchange(e, o->first, o->n, false));
    NEB_TRY(neb__trainer_refresh(e->t, true));
    return neb__ranks_share(e->t);
}

static neb_status save(struct neb_gate_end *e, const struct neb_gate_order *o, int fd)
{
    struct neb_trainer *t = e->t;
    struct neb_resume_member member = {.bytes = NULL, .n = o->bytes};
    if (o->bytes) {
        void *p = fd < 0 ? MAP_FAILED : mmap(NULL, o->bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) return neb__fail(NEB_ERR_NOMEM, "the session's state cannot be mapped");
        member.bytes = p;
    }
    t->progress = o->progress;
    neb__ranks_busy(t, true);
    neb_status status =
        neb__resume_save(t->work, o->bytes ? &member : NULL, t->writer, &t->progress, neb__ranks_save, t);
    neb__ranks_busy(t, false);
    if (o->bytes) munmap((void *)(uintptr_t)member.bytes, o->bytes);
    return status;
}

static neb_status in_its_time(struct neb_trainer *t,
                              neb_status (*what)(struct neb_trainer *, struct neb_conclusion *),
                              struct neb_conclusion *out)
{
    neb__ranks_busy(t, true);
    neb_status status = what(t, out);
    neb__ranks_busy(t, false);
    return status;
}

static neb_status evaluate(struct neb_trainer *t, struct neb_conclusion *out)
{
    return neb__trainer_held_out(t, out);
}

static neb_status obey(struct neb_gate_end *e, const struct neb_gate_order *o, int fd,
                       struct neb_gate_answer *a)
{
    struct neb_trainer *t = e->t;
    switch (o->op) {
    case NEB_GATE_STEP:
        t->depth = o->depth;
        t->keyed = o->keyed;
        t->key = o->key;
        return neb__ranks_step(t, o->lr, &a->step);
    case NEB_GATE_FETCH: return fetch(e);
    case NEB_GATE_SHARE: return share(e, o);
    case NEB_GATE_EVAL: return in_its_time(t, evaluate, &a->conclusion);
    case NEB_GATE_SAVE: return save(e, o, fd);
    case NEB_GATE_SAVED: return neb__ckpt_writer_wait(t->writer);
    case NEB_GATE_CONCLUDE:
        t->progress = o->progress;
        return in_its_time(t, neb__trainer_conclude, &a->conclusion);
    default: return neb__fail(NEB_ERR_INTERNAL, "the gateway gave the unknown order %u", o->op);
    }
}

static neb_status answer(struct neb_gate_end *e, const struct neb_gate_order *o, int fd)
{
    const struct neb_gate_ask nothing = {.kind = NEB_GATE_ANSWERS};
    struct neb_gate_answer a;
    struct neb_ckpt_report r;
    memset(&a, 0, sizeof a);
    neb_status status = obey(e, o, fd, &a);
    if (fd >= 0) close(fd);
    a.status = status;
    a.lost = neb__group_broken(e->t->ranks);
    a.stop = *e->t->stop != 0;
    if (status != NEB_OK) snprintf(a.why, sizeof a.why, "%s", neb_last_error());
    neb__ckpt_writer_report(e->t->writer, &r);
    a.saved = r.last_step;
    a.waited = neb__work_waited(e->t->work);
    if (e->t->stage) neb__stage_facts_of(e->t->work, &a.stage);
    NEB_TRY(neb__gate_channel_send(&e->channel, &nothing, sizeof nothing, -1));
    NEB_TRY(neb__gate_channel_send(&e->channel, &a, sizeof a, -1));
    return a.lost ? status : NEB_OK;
}

static neb_status turn(void *end)
{
    struct neb_gate_end *e = end;
    return neb__ranks_idle(e->t);
}

static neb_status serve(struct neb_gate_end *e)
{
    for (;;) {
        struct neb_gate_order o;
        int fd;
        neb_status status = neb__gate_channel_receive(&e->channel, &o, sizeof o, &fd, turn, e);
        if (status == NEB_ERR_PEER) {
            neb__group_break(e->t->ranks); /* ends all ranks */
            return neb__fail(status, "the gateway is gone");
        }
        NEB_TRY(status);
        if (o.op == NEB_GATE_END) return NEB_OK;
        status = answer(e, &o, fd);
        neb__step_key_wipe(&o.key);
        NEB_TRY(status);
    }
}

/* ---- from the beginning to the end ------------------------------------------------------------------------- */

neb_status neb__gate_connect(struct neb_trainer *t)
{
    struct neb_gate_end *e = NEB_NEW(struct neb_gate_end);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for the gateway's channel");
    *e = (struct neb_gate_end){.t = t, .channel = {.fd = -1, .listener = -1}};
    t->gate_end = e;
    return neb__gate_channel_connect(&e->channel);
}

neb_status neb__gate_serve(struct neb_trainer *t, neb_status opened)
{
    struct neb_gate_end *e = t->gate_end;
    if (!e || e->channel.fd < 0) return opened;
    NEB_TRY(say_ready(e, opened));
    return serve(e);
}

void neb__gate_lend_stage(struct neb_trainer *t)
{
    if (t->stage && t->gate_end) neb__gate_stage_use(t->stage, &t->gate_end->channel);
}

void neb__gate_leave(struct neb_trainer *t)
{
    struct neb_gate_end *e = t->gate_end;
    if (!e) return;
    if (e->window) munmap(e->window, e->values * sizeof(float));
    neb__gate_channel_close(&e->channel);
    neb__free(e->part);
    neb__free(e);
    t->gate_end = NULL;
}
