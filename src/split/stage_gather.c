/* stage_gather.c: at the end the first site gets the parameters of all stages.
 *
 * They go backwards through the line: a stage sends its own, and passes on those of the stages behind it. The first site
 * needs 4 bytes of host memory for a value of the whole model then, where training takes 16.
 *
 *     values    u32 parameter, u32 0, u64 first value · values (f32)
 *     end       nothing */
#include "base/bytes.h"
#include "run/stream.h"
#include "split/stage_site.h"

#include <string.h>

enum { HEAD = 16, CHUNK = 1 << 20, HEADS = 256 };
static const uint64_t least = (uint64_t)4 << 30; /* that a journal may hold in any case */

bool neb__stage_site_has_model(const struct neb_stage_site *s)
{
    return s->stage == 0;
}

static neb_status send_values(struct neb_stage_site *s, int number, const float *values, int64_t n)
{
    const struct neb_stage_head head = {.kind = NEB_STAGE_ITEM_VALUES};
    for (int64_t at = 0; at < n; at += CHUNK) {
        uint8_t h[HEAD] = {0};
        int64_t part = n - at < CHUNK ? n - at : CHUNK;
        neb__put32(h, (uint32_t)number);
        neb__put64(h + 8, (uint64_t)at);
        neb__buf_clear(&s->message);
        NEB_TRY(neb__buf_append(&s->message, h, HEAD));
        NEB_TRY(neb__buf_append(&s->message, values + at, (size_t)part * sizeof *values));
        NEB_TRY(neb__stage_put(s, NEB_BACK_OUT, &head, s->message.data, s->message.len));
    }
    return NEB_OK;
}

static neb_status send_own(struct neb_stage_site *s, struct neb_work *w)
{
    neb_params *ps = neb__work_params(w);
    struct neb_buf values;
    neb_status status = NEB_OK;
    neb__buf_init(&values, (size_t)1 << 40);
    for (int i = 0; status == NEB_OK && i < neb_params_count(ps); i++) {
        const neb_param *p = neb_params_at(ps, i);
        if (!neb__work_param_here(p)) continue;
        neb__buf_clear(&values);
        status = neb__buf_reserve(&values, (size_t)neb_param_values(p) * sizeof(float));
        if (status == NEB_OK) status = neb_param_read(p, (float *)(void *)values.data);
        if (status == NEB_OK)
            status = send_values(s, i, (const float *)(const void *)values.data, neb_param_values(p));
    }
    neb__buf_free(&values);
    return status;
}

static neb_status place(const struct neb_stage_site *s, neb_params *ps, const uint8_t *bytes, size_t n,
                        float *whole)
{
    const char *other = s->end[NEB_BACK_IN].other;
    if (n < HEAD || (n - HEAD) % sizeof *whole)
        return neb__fail(NEB_ERR_CORRUPT, "malformed parameters from site '%s'", other);
    uint32_t number = neb__get32(bytes);
    uint64_t at = neb__get64(bytes + 8), count = (n - HEAD) / sizeof *whole;
    const neb_param *p = number < (uint32_t)neb_params_count(ps) ? neb_params_at(ps, (int)number) : NULL;
    if (!p || neb__work_param_here(p) || count > (uint64_t)neb_param_values(p) ||
        at > (uint64_t)neb_param_values(p) - count)
        return neb__fail(NEB_ERR_CORRUPT, "site '%s' sent values of a parameter that is not its own", other);
    memcpy(whole + neb_param_offset(p) + at, bytes + HEAD, count * sizeof *whole);
    return NEB_OK;
}

/* whole NULL: what comes is passed on. */
static neb_status from_behind(struct neb_stage_site *s, neb_params *ps, float *whole)
{
    for (;;) {
        struct neb_stage_head head;
        const uint8_t *bytes;
        size_t n;
        NEB_TRY(neb__stage_get(s, NEB_BACK_IN, &head, &bytes, &n));
        if (head.kind == NEB_STAGE_ITEM_END) return NEB_OK;
        if (head.kind != NEB_STAGE_ITEM_VALUES)
            return neb__fail(NEB_ERR_CORRUPT, "site '%s' sent something else than its parameters",
                             s->end[NEB_BACK_IN].other);
        NEB_TRY(whole ? place(s, ps, bytes, n, whole) : neb__stage_put(s, NEB_BACK_OUT, &head, bytes, n));
    }
}

static neb_status receive_all(struct neb_stage_site *s, struct neb_work *w)
{
    int64_t n;
    float *whole = neb__work_whole(w, &n);
    if (!whole)
        return neb__fail(NEB_ERR_NOMEM,
                         "out of memory for the %" PRId64
                         " values of the whole model, which the first site writes; the stages' checkpoints "
                         "are on disk, and the same command goes on from there",
                         n);
    NEB_TRY(from_behind(s, neb__work_params(w), whole));
    neb__work_have_whole(w);
    return NEB_OK;
}

/* Nobody writes a checkpoint meanwhile, so the journal holds all values until the first site has them. */
static neb_status make_room(struct neb_stage_site *s, struct neb_work *w)
{
    struct neb_stage_end *e = &s->end[NEB_BACK_OUT];
    uint64_t before = e->allowed > least ? e->allowed : least, bytes = 0;
    neb_params *ps = neb__work_params(w);
    for (int i = 0; i < neb_params_count(ps); i++)
        bytes += HEADS + sizeof(float) * (uint64_t)neb_param_values(neb_params_at(ps, i));
    e->allowed = before + bytes + bytes / 64;
    return neb__stream_allow(e->stream, e->allowed);
}

neb_status neb__stage_site_gather(struct neb_stage_site *s, struct neb_work *w)
{
    const struct neb_stage_head end = {.kind = NEB_STAGE_ITEM_END};
    if (neb__stage_site_has_model(s)) return receive_all(s, w);
    NEB_TRY(make_room(s, w));
    NEB_TRY(send_own(s, w));
    if (neb__stage_in_line(s, NEB_BACK_IN)) NEB_TRY(from_behind(s, neb__work_params(w), NULL));
    return neb__stage_put(s, NEB_BACK_OUT, &end, NULL, 0);
}
