/* stage_gather.c: at the end the first site gets the parameters of all stages.
 *
 * They go backwards through the line: a stage sends its own, and passes on those of the stages behind it. The first site
 * needs 4 bytes of host memory for a value of the whole model then, where training takes 16. It takes each value once, and is
 * content when it has all of them: a member that leaves values out, or sends some twice, is named.
 *
 *     wanted    a bit for each parameter, ahead: which of them the first site has not got
 *     values    u32 parameter, u32 0, u64 first value · values (f32)
 *     end       nothing
 *
 * With peft.method other than full the first site says what it wants, for it finds the frozen parameters of the other stages in its own
 * init.from. Else all values are wanted, and nothing is said.
 *
 * The side that has the model (a process, or the first rank of a site) cuts and places the values. The side that has the streams
 * (the same process, or the gateway) carries them (struct neb_stage_carrier). */
#include "base/bytes.h"
#include "base/mem.h"
#include "run/stream.h"
#include "split/stage_site.h"

#include <string.h>

enum { HEAD = NEB_STAGE_VALUES_HEAD, CHUNK = NEB_STAGE_CHUNK, HEADS = 256 };
static const uint64_t least = (uint64_t)4 << 30; /* that a journal may hold in any case */

bool neb__stage_site_has_model(const struct neb_stage_site *s)
{
    return s->stage == 0 && s->job->wan.gather;
}

/* ---- where the streams are -------------------------------------------------------------------------------- */

/* Nobody writes a checkpoint meanwhile, so the journal holds all values until the first site has them. */
static neb_status make_room(struct neb_stage_site *s, uint64_t bytes)
{
    struct neb_stage_end *e = &s->end[NEB_BACK_OUT];
    if (s->gathers) return NEB_OK;
    s->gathers = true;
    e->allowed = (e->allowed > least ? e->allowed : least) + bytes + bytes / 64;
    return neb__stream_allow(e->stream, e->allowed);
}

static neb_status next_from_behind(struct neb_stage_site *s, const uint8_t **bytes, size_t *n, bool *end)
{
    static const struct neb_stage_due due = {
        .kind = NEB_STAGE_ITEM_VALUES, .or_kind = NEB_STAGE_ITEM_END, .most = HEAD + CHUNK * sizeof(float)};
    struct neb_stage_head head;
    NEB_TRY(neb__stage_get(s, NEB_BACK_IN, &due, &head, bytes, n));
    *end = head.kind == NEB_STAGE_ITEM_END;
    return neb__stage_check_values(s->end[NEB_BACK_IN].other, *end, *n);
}

/* What comes from the stages behind this one goes on to the one before it. No more bytes than a model has, so that a member
 * cannot fill this site's disk. */
static neb_status pass_on(struct neb_stage_site *s, uint64_t most)
{
    const struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_VALUES};
    uint64_t passed = 0;
    for (bool end = !neb__stage_in_line(s, NEB_BACK_IN); !end;) {
        const uint8_t *bytes;
        size_t n;
        NEB_TRY(next_from_behind(s, &bytes, &n, &end));
        if (end) break;
        passed += n;
        if (passed > most)
            return neb__fail(NEB_ERR_CORRUPT, "site '%s' sent more values than the model has",
                             s->end[NEB_BACK_IN].other);
        NEB_TRY(neb__stage_put(s, NEB_BACK_OUT, &head, bytes, n));
    }
    return NEB_OK;
}

neb_status neb__stage_tell_wanted(void *site, uint8_t *bits, size_t n)
{
    struct neb_stage_site *s = site;
    const struct neb_stage_due due = {.kind = NEB_STAGE_ITEM_WANTED, .most = n};
    struct neb_stage_head head;
    const uint8_t *bytes;
    size_t size;
    if (neb__stage_in_line(s, NEB_AHEAD_IN)) {
        NEB_TRY(neb__stage_get(s, NEB_AHEAD_IN, &due, &head, &bytes, &size));
        if (size != n)
            return neb__fail(NEB_ERR_CORRUPT, "site '%s' asks for %zu parameters in bits, there are %zu",
                             s->end[NEB_AHEAD_IN].other, 8 * size, 8 * n);
        memcpy(bits, bytes, n);
    }
    head = (struct neb_stage_head){.kind = NEB_STAGE_ITEM_WANTED};
    return neb__stage_in_line(s, NEB_AHEAD_OUT) ? neb__stage_put(s, NEB_AHEAD_OUT, &head, bits, n) : NEB_OK;
}

neb_status neb__stage_carry_values(void *site, const struct neb_stage_chunk *c, const float *values)
{
    struct neb_stage_site *s = site;
    const struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_VALUES}, end = {.kind = NEB_STAGE_ITEM_END};
    uint8_t h[HEAD] = {0};
    NEB_TRY(make_room(s, c->model_bytes));
    if (!c->n) {
        NEB_TRY(pass_on(s, c->model_bytes));
        return neb__stage_put(s, NEB_BACK_OUT, &end, NULL, 0);
    }
    neb__put32(h, c->param);
    neb__put64(h + 8, c->at);
    neb__buf_clear(&s->message);
    NEB_TRY(neb__buf_append(&s->message, h, HEAD));
    NEB_TRY(neb__buf_append(&s->message, values, (size_t)c->n * sizeof *values));
    return neb__stage_put(s, NEB_BACK_OUT, &head, s->message.data, s->message.len);
}

neb_status neb__stage_fetch_values(void *site, struct neb_stage_chunk *c, const void **values)
{
    struct neb_stage_site *s = site;
    const uint8_t *bytes;
    size_t n;
    bool end;
    *c = (struct neb_stage_chunk){0};
    NEB_TRY(next_from_behind(s, &bytes, &n, &end));
    if (end) return NEB_OK;
    c->param = neb__get32(bytes);
    c->at = neb__get64(bytes + 8);
    c->n = (n - HEAD) / sizeof(float);
    *values = bytes + HEAD;
    return NEB_OK;
}

/* ---- where the model is ----------------------------------------------------------------------------------- */

/* As many as cross, with what stands before them. */
static uint64_t model_bytes(neb_params *ps)
{
    uint64_t bytes = 0;
    for (int i = 0; i < neb_params_count(ps); i++) {
        uint64_t values = (uint64_t)neb_param_values(neb_params_at(ps, i));
        bytes += (uint64_t)HEADS * (1 + values / CHUNK) + sizeof(float) * values;
    }
    return bytes;
}

static neb_status send_values(const struct neb_stage_carrier *c, int number, const float *values, uint64_t n,
                              uint64_t all)
{
    struct neb_stage_chunk k = {.param = (uint32_t)number, .model_bytes = all};
    for (; k.at < n; k.at += CHUNK) {
        k.n = n - k.at < CHUNK ? n - k.at : CHUNK;
        NEB_TRY(c->out(c->arg, &k, values + k.at));
    }
    return NEB_OK;
}

struct wanted {
    uint8_t *bit; /* of each parameter */
    size_t bytes;
};

/* A successful call owes a free of `bit`. */
static neb_status open_wanted(const neb_params *ps, struct wanted *out)
{
    out->bytes = ((size_t)neb_params_count(ps) + 7) / 8;
    out->bit = NEB_NEW_ARRAY(uint8_t, out->bytes);
    if (!out->bit) return neb__fail(NEB_ERR_NOMEM, "out of memory for a list of parameters");
    memset(out->bit, 0xFF, out->bytes);
    return NEB_OK;
}

static bool is_wanted(const struct wanted *x, int i)
{
    return x->bit[i / 8] >> i % 8 & 1;
}

static neb_status send_own(const struct neb_stage_carrier *c, struct neb_work *w, const struct wanted *wanted)
{
    neb_params *ps = neb__work_params(w);
    const struct neb_stage_chunk end = {.model_bytes = model_bytes(ps)};
    struct neb_buf values;
    neb_status status = NEB_OK;
    neb__buf_init(&values, (size_t)1 << 40);
    for (int i = 0; status == NEB_OK && i < neb_params_count(ps); i++) {
        const neb_param *p = neb_params_at(ps, i);
        if (!neb__work_param_here(p) || !is_wanted(wanted, i)) continue;
        neb__buf_clear(&values);
        status = neb__buf_reserve(&values, (size_t)neb_param_values(p) * sizeof(float));
        if (status == NEB_OK) status = neb_param_read(p, (float *)(void *)values.data);
        if (status == NEB_OK)
            status = send_values(c, i, (const float *)(const void *)values.data,
                                 (uint64_t)neb_param_values(p), end.model_bytes);
    }
    neb__buf_free(&values);
    return status == NEB_OK ? c->out(c->arg, &end, NULL) : status;
}

neb_status neb__stage_whole_put(struct neb_stage_whole *w, const struct neb_stage_chunk *c,
                                const void *values)
{
    const neb_param *p =
        c->param < (uint32_t)neb_params_count(w->params) ? neb_params_at(w->params, (int)c->param) : NULL;
    if (!p || neb__work_param_here(p))
        return neb__fail(NEB_ERR_CORRUPT, "a site sent values of a parameter that is not its own (number %u)",
                         c->param);
    uint64_t *got = &w->got[c->param];
    if (c->at != *got || c->n > (uint64_t)neb_param_values(p) - c->at)
        return neb__fail(NEB_ERR_CORRUPT,
                         "a site sent %" PRIu64 " values of %s from %" PRIu64 " on, but %" PRIu64
                         " of %" PRId64 " are here: they come once, in their order",
                         c->n, neb_param_name(p), c->at, *got, neb_param_values(p));
    memcpy(w->values + neb_param_offset(p) + c->at, values, (size_t)c->n * sizeof *w->values);
    *got += c->n;
    return NEB_OK;
}

neb_status neb__stage_whole_check(const struct neb_stage_whole *w)
{
    for (int i = 0; i < neb_params_count(w->params); i++) {
        const neb_param *p = neb_params_at(w->params, i);
        if (!neb__work_param_here(p) && w->got[i] != (uint64_t)neb_param_values(p))
            return neb__fail(NEB_ERR_CORRUPT,
                             "the sites behind this one sent %" PRIu64 " of the %" PRId64
                             " values of %s: the model is not written; their checkpoints are as they were",
                             w->got[i], neb_param_values(p), neb_param_name(p));
    }
    return NEB_OK;
}

/* What the first site can find by itself counts as got. */
static neb_status find_frozen(struct neb_stage_whole *all, struct neb_work *w, const struct wanted *wanted)
{
    const int n = neb_params_count(all->params);
    bool *have = NEB_NEW_ARRAY(bool, (size_t)n);
    neb_status status = have ? neb__work_frozen_elsewhere(w, all->values, have)
                             : neb__fail(NEB_ERR_NOMEM, "out of memory for a list of parameters");
    for (int i = 0; status == NEB_OK && i < n; i++) {
        if (!have[i]) continue;
        wanted->bit[i / 8] &= (uint8_t) ~(1 << i % 8);
        all->got[i] = (uint64_t)neb_param_values(neb_params_at(all->params, i));
    }
    neb__free(have);
    return status;
}

static neb_status receive_all(const struct neb_stage_carrier *c, struct neb_work *w, bool asks,
                              const struct wanted *wanted)
{
    int64_t n;
    struct neb_stage_whole all = {.params = neb__work_params(w)};
    all.values = neb__work_whole(w, &n);
    all.got = NEB_NEW_ARRAY(uint64_t, (size_t)neb_params_count(all.params));
    neb_status status = NEB_OK;
    if (!all.values || !all.got)
        status = neb__fail(
            NEB_ERR_NOMEM,
            "out of memory for the %" PRId64
            " values of the whole model, which the first site writes; the sites' parts of it are on "
            "disk: join them with nebula-i export --join, or say wan.gather: no",
            n);
    if (status == NEB_OK && asks) status = find_frozen(&all, w, wanted);
    if (status == NEB_OK && asks) status = c->ask(c->arg, wanted->bit, wanted->bytes);
    while (status == NEB_OK) {
        struct neb_stage_chunk k;
        const void *values;
        status = c->in(c->arg, &k, &values);
        if (status == NEB_OK && !k.n) break;
        if (status == NEB_OK) status = neb__stage_whole_put(&all, &k, values);
    }
    if (status == NEB_OK) status = neb__stage_whole_check(&all);
    neb__free(all.got);
    if (status == NEB_OK) neb__work_have_whole(w);
    return status;
}

neb_status neb__stage_site_gather(struct neb_stage_site *s, struct neb_work *w)
{
    const struct neb_stage_carrier *c = &s->carrier;
    struct wanted wanted;
    NEB_TRY(open_wanted(neb__work_params(w), &wanted));
    neb_status status = NEB_OK;
    if (neb__stage_site_has_model(s)) {
        status = receive_all(c, w, s->asks, &wanted);
    } else {
        if (s->asks) status = c->ask(c->arg, wanted.bit, wanted.bytes);
        if (status == NEB_OK) status = send_own(c, w, &wanted);
    }
    neb__free(wanted.bit);
    return status;
}
