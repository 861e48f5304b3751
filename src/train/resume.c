/* resume.c: a training's state to and from the sections of a checkpoint:
 *
 *     progress   step, tokens, seconds (three little-endian 64-bit words, the last a double's bits)
 *     params     fp32, all parameters in the order they were added, without frozen ones in few bits: these are made from
 *                the job's start again, and their code is part of the model's identity
 *     m, v       the optimizer's moments, in the layout of the trainable slab of a process that holds the whole model; v without
 *                the matrices that Muon steps. Older checkpoints have zeros there
 *     data       the position of the stream
 *     optimizer  its name, if it is not AdamW: moments of one mean nothing to another
 *     matrices   the names of those that Muon steps, if it does; in older checkpoints their moments tell
 *     session    this site's part of a run on several sites, if it takes part in one
 *
 * All of it is the same under every layout of ranks. Dropout and masks are functions of (seed, step, sample), so no random state needs to be kept. */
#include "train/resume.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

enum { PROGRESS = 24 };
static const char usual[] = "adamw";

int64_t neb__resume_values(struct neb_work *w)
{
    return neb__work_kept_values(w);
}

static neb_status collect(struct neb_work *w, float *params, float *m, float *v, struct neb_buf *data,
                          struct neb_buf *matrices)
{
    NEB_TRY(neb__work_collect(w));
    neb_status read =
        neb__work_read_params(w, params); /* whatever comes of it, the other ranks lend their moments */
    NEB_TRY(neb__work_save_moments(w, m, v));
    NEB_TRY(read);
    NEB_TRY(neb__work_list_matrices(w, matrices));
    return neb__work_save_position(w, data);
}

/* Appends the session's state to `out`. */
static neb_status collect_session(const struct neb_resume_member *member, struct neb_buf *out)
{
    size_t n;
    if (!member || !member->session) return NEB_OK;
    NEB_TRY(neb_session_save(member->session, NULL, &n));
    NEB_TRY(neb__buf_reserve(out, n));
    NEB_TRY(neb_session_save(member->session, out->data, &n));
    out->len = n;
    return NEB_OK;
}

neb_status neb__resume_save(struct neb_work *w, const struct neb_resume_member *member,
                            struct neb_ckpt_writer *writer, const struct neb_progress *p,
                            neb_status (*before)(void *), void *arg)
{
    int64_t slab = neb__work_slab_values(w);
    size_t all = (size_t)neb__resume_values(w) * sizeof(float), part = (size_t)slab * sizeof(float);
    float *params = neb__malloc(all), *m = neb__malloc(part), *v = neb__malloc(part);
    struct neb_buf data, own, matrices;
    neb__buf_init(&data, 64u << 20);
    neb__buf_init(&matrices, 64u << 20);
    neb__buf_init(&own, (size_t)1 << 40);
    struct neb_ckpt_id id = {.step = p->step};
    neb_status status =
        params && m && v
            ? neb__work_identity(w, &id.model)
            : neb__fail(NEB_ERR_NOMEM, "out of memory for a checkpoint of %zu bytes", all + 2 * part);
    if (status == NEB_OK && before) status = before(arg);
    if (status == NEB_OK) status = collect(w, params, m, v, &data, &matrices);
    if (status == NEB_OK) status = collect_session(member, &own);
    const size_t second = status == NEB_OK ? (size_t)neb__work_pack_second(w, v) * sizeof(float) : 0;
    uint8_t progress[PROGRESS];
    uint64_t bits;
    memcpy(&bits, &p->seconds, sizeof bits);
    neb__put64(progress, (uint64_t)p->step);
    neb__put64(progress + 8, (uint64_t)p->tokens);
    neb__put64(progress + 16, bits);
    const char *optimizer = neb__work_optimizer_name(w);
    struct neb_ckpt_section list[8] = {{"progress", progress, sizeof progress},
                                       {"params", params, all},
                                       {"m", m, part},
                                       {"v", v, second},
                                       {"data", data.data, data.len}};
    int n = 5;
    if (strcmp(optimizer, usual))
        list[n++] = (struct neb_ckpt_section){"optimizer", optimizer, strlen(optimizer)};
    if (matrices.len) list[n++] = (struct neb_ckpt_section){"matrices", matrices.data, matrices.len};
    if (member && member->session) list[n++] = (struct neb_ckpt_section){"session", own.data, own.len};
    if (member && !member->session)
        list[n++] = (struct neb_ckpt_section){"session", member->bytes, member->n};
    if (status == NEB_OK) status = neb__ckpt_writer_put(writer, &id, list, n);
    neb__buf_free(&data);
    neb__buf_free(&own);
    neb__buf_free(&matrices);
    neb__free(params);
    neb__free(m);
    neb__free(v);
    return status;
}

static neb_status section(const struct neb_ckpt *c, const char *name, size_t size, const void **data)
{
    size_t n;
    NEB_TRY(neb__ckpt_get(c, name, data, &n));
    if (n != size)
        return neb__fail(NEB_ERR_CORRUPT, "checkpoint section '%s' has %zu bytes instead of %zu", name, n,
                         size);
    return NEB_OK;
}

static neb_status same_optimizer(const struct neb_work *w, const struct neb_ckpt *c)
{
    const char *now = neb__work_optimizer_name(w);
    const void *name = usual;
    size_t n = strlen(usual);
    if (neb__ckpt_has(c, "optimizer")) NEB_TRY(neb__ckpt_get(c, "optimizer", &name, &n));
    if (n == strlen(now) && !memcmp(name, now, n)) return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG,
                     "the checkpoint was written with train.optimizer: %.*s, and the job says %s; go on with "
                     "the first, or "
                     "begin anew in another folder (out), from the trained model if you like (init.from)",
                     n < 32 ? (int)n : 32, (const char *)name, now);
}

static neb_status same_matrices(const struct neb_work *w, const struct neb_ckpt *c, const float *m,
                                const float *v)
{
    const void *list;
    size_t n;
    if (!neb__ckpt_has(c, "optimizer")) return NEB_OK;
    if (!neb__ckpt_has(c, "matrices")) return neb__work_same_moments(w, m, v);
    NEB_TRY(neb__ckpt_get(c, "matrices", &list, &n));
    return neb__work_same_matrices(w, list, n);
}

/* Moments, second ones as the slab has them; *own: memory to be freed, or NULL. */
static neb_status moments(struct neb_work *w, const struct neb_ckpt *c, const void **m, const void **v,
                          float **own)
{
    const size_t all = (size_t)neb__work_slab_values(w) * sizeof(float);
    size_t n;
    NEB_TRY(section(c, "m", all, m));
    NEB_TRY(neb__ckpt_get(c, "v", v, &n));
    if (n == all) return same_matrices(w, c, *m, *v);
    if (neb__ckpt_has(c, "matrices")) NEB_TRY(same_matrices(w, c, *m, NULL));
    NEB_TRY(section(c, "v", (size_t)neb__work_pack_second(w, NULL) * sizeof(float), v));
    *own = neb__malloc(all);
    if (!*own) return neb__fail(NEB_ERR_NOMEM, "out of memory for %zu bytes of an optimizer's state", all);
    neb__work_unpack_second(w, *v, *own);
    *v = *own;
    return NEB_OK;
}

static neb_status restore_from(struct neb_work *w, const struct neb_ckpt *c, struct neb_progress *p,
                               float **own)
{
    const void *progress, *params, *m, *v, *data;
    size_t n;
    NEB_TRY(same_optimizer(w, c));
    NEB_TRY(section(c, "progress", PROGRESS, &progress));
    NEB_TRY(section(c, "params", (size_t)neb__resume_values(w) * sizeof(float), &params));
    NEB_TRY(moments(w, c, &m, &v, own));
    NEB_TRY(neb__ckpt_get(c, "data", &data, &n));
    NEB_TRY(neb__work_load_position(w, data, n));
    NEB_TRY(neb__work_write_params(w, params));
    const uint8_t *b = progress;
    uint64_t bits = neb__get64(b + 16);
    p->step = (int64_t)neb__get64(b);
    p->tokens = (int64_t)neb__get64(b + 8);
    memcpy(&p->seconds, &bits, sizeof bits);
    return neb__work_load_moments(w, p->step, m, v);
}

static neb_status restore(struct neb_work *w, const struct neb_ckpt *c, struct neb_progress *p)
{
    float *own = NULL;
    neb_status status = restore_from(w, c, p, &own);
    neb__free(own);
    return status;
}

static neb_status restore_session(neb_session *session, const struct neb_ckpt *c)
{
    const void *bytes;
    size_t n;
    if (!session) return NEB_OK;
    NEB_TRY(neb__ckpt_get(c, "session", &bytes, &n));
    return neb_session_load(session, bytes, n);
}

neb_status neb__resume_lend(struct neb_work *w)
{
    NEB_TRY(neb__work_collect(w));
    return neb__work_save_moments(w, NULL, NULL);
}

neb_status neb__resume_load(struct neb_work *w, neb_session *session, const char *dir, struct neb_progress *p)
{
    struct neb_hash model;
    struct neb_ckpt *c;
    NEB_TRY(neb__work_identity(w, &model));
    NEB_TRY(neb__ckpt_open_latest(dir, &model, &c));
    neb_status status = restore(w, c, p);
    if (status == NEB_OK) status = restore_session(session, c);
    neb__ckpt_close(c);
    return status;
}

neb_status neb__resume_session(neb_session *session, const char *dir, int64_t step)
{
    char path[512];
    struct neb_ckpt *c;
    NEB_TRY(neb__ckpt_path(dir, step, path, sizeof path));
    NEB_TRY(neb__ckpt_open(path, &c));
    neb_status status = restore_session(session, c);
    neb__ckpt_close(c);
    return status;
}

neb_status neb__resume_bytes(const char *dir, int64_t step, void *out, size_t n)
{
    char path[512];
    struct neb_ckpt *c;
    const void *bytes;
    NEB_TRY(neb__ckpt_path(dir, step, path, sizeof path));
    NEB_TRY(neb__ckpt_open(path, &c));
    neb_status status = section(c, "session", n, &bytes);
    if (status == NEB_OK) memcpy(out, bytes, n);
    neb__ckpt_close(c);
    return status;
}

/* An error leaves sum untouched. */
static neb_status add_params(const char *dir, int64_t step, double *sum, int64_t n)
{
    char path[512];
    struct neb_ckpt *c;
    NEB_TRY(neb__ckpt_path(dir, step, path, sizeof path));
    NEB_TRY(neb__ckpt_open(path, &c));
    const void *params;
    neb_status status = section(c, "params", (size_t)n * sizeof(float), &params);
    for (int64_t i = 0; status == NEB_OK && i < n; i++) sum[i] += (double)((const float *)params)[i];
    neb__ckpt_close(c);
    return status;
}

static neb_status add_up(const char *dir, const int64_t *steps, int n, double *sum, int64_t values, int *used)
{
    *used = 0;
    for (int i = 0; i < n; i++) {
        neb_status status = add_params(dir, steps[i], sum, values);
        if (status == NEB_ERR_NOMEM) return status;
        if (status == NEB_OK)
            ++*used;
        else
            neb__warn("the checkpoint of step %" PRId64 " is left out of the average", steps[i]);
    }
    return NEB_OK;
}

neb_status neb__resume_average(struct neb_work *w, const char *dir, int most, int *used)
{
    int64_t steps[1024], n = neb__resume_values(w);
    int have = neb__ckpt_list(dir, steps, 1024), use = have < most ? have : most;
    *used = 0;
    if (use < 2) return NEB_OK;
    double *sum = NEB_NEW_ARRAY(double, (size_t)n);
    float *mean = neb__malloc((size_t)n * sizeof *mean);
    neb_status status = sum && mean ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for averaging");
    if (status == NEB_OK) status = add_up(dir, steps + have - use, use, sum, n, used);
    if (status != NEB_OK || *used < 2) *used = 0; /* the model stays as the last step left it */
    for (int64_t i = 0; *used && i < n; i++) mean[i] = (float)(sum[i] / *used);
    if (*used) status = neb__work_write_params(w, mean);
    neb__free(sum);
    neb__free(mean);
    return status;
}
