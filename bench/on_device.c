/* on_device.c: training steps on an asynchronous device.
 *
 * Warm-up chooses algorithms and records the step. Then steps are enqueued without a wait between them, and
 * one wait ends a round. With `capture`, rounds of plain steps alternate with rounds that do what the WAN
 * layer does: a snapshot of all parameters goes to the host over the side stream and comes back to be merged.
 * The difference, once a minute, is its share of the training stream's time. */
#include "on_device.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tensor/device.h"

#include <math.h>
#include <stdio.h>

enum { WARM = 6, ROUNDS = 5 };

/* Pinned host memory and a snapshot on the device, each as large as the trainable slab. */
struct capture {
    neb_device *d;
    float *slab, *snapshot;
    void *host;
    int64_t n;
};

static neb_status capture_init(struct neb_shape_run *r, struct capture *c)
{
    neb_device *d = neb__shape_device(r);
    *c = (struct capture){.d = d};
    c->slab = neb_params_slab(neb__shape_params(r), &c->n);
    if (!d->ops->side_download || !d->ops->host_alloc)
        return neb__fail(NEB_ERR_UNSUPPORTED, "this device has no side stream");
    NEB_TRY(d->ops->alloc(d->ctx, (size_t)c->n * sizeof(float), (void **)&c->snapshot));
    return d->ops->host_alloc(d->ctx, (size_t)c->n * sizeof(float), &c->host);
}

static void capture_free(struct capture *c)
{
    if (!c->d) return;
    if (c->snapshot) c->d->ops->free(c->d->ctx, c->snapshot);
    if (c->host) c->d->ops->host_free(c->d->ctx, c->host);
}

static neb_status capture_start(struct capture *c, uint64_t *fence)
{
    const struct neb_device_ops *ops = c->d->ops;
    NEB_TRY(ops->copy(c->d->ctx, c->snapshot, c->slab, (size_t)c->n * sizeof(float)));
    NEB_TRY(ops->side_download(c->d->ctx, c->host, c->snapshot, (size_t)c->n * sizeof(float), fence));
    return ops->side_upload(c->d->ctx, c->snapshot, c->host, (size_t)c->n * sizeof(float), fence);
}

/* slab = 0.5 * snapshot + 0.5 * slab, and the bf16 shadow again: a merge with a peer that has our parameters
 * of before. */
static neb_status capture_merge(struct neb_shape_run *r, struct capture *c, uint64_t fence)
{
    struct neb_axpby merge = {
        .x = c->snapshot, .y = c->slab, .n = c->n, .a = 0.5f, .b = 0.5f, .type = NEB_F32};
    NEB_TRY(c->d->ops->fence_join(c->d->ctx, fence));
    NEB_TRY(c->d->ops->axpby(c->d->ctx, &merge));
    return neb_params_refresh(neb__shape_params(r), 0, c->n);
}

/* Seconds for `steps` steps. c not NULL: with a capture after the first and its merge before the last. */
static neb_status round_of(struct neb_shape_run *r, int64_t steps, struct capture *c, double *seconds)
{
    float loss;
    uint64_t fence = 0;
    NEB_TRY(neb_device_sync(neb__shape_device(r)));
    int64_t start = neb__now_ns();
    for (int64_t i = 0; i < steps; i++) {
        if (c && i == steps - 1) NEB_TRY(capture_merge(r, c, fence));
        NEB_TRY(neb__shape_step(r, &loss));
        if (c && i == 0) NEB_TRY(capture_start(c, &fence));
    }
    NEB_TRY(neb_device_sync(neb__shape_device(r)));
    *seconds = neb__seconds_since(start);
    return NEB_OK;
}

static neb_status measure(struct neb_shape_run *r, int64_t steps, struct capture *c, double *plain,
                          double *with)
{
    double a[ROUNDS], b[ROUNDS];
    float loss;
    for (int i = 0; i < WARM; i++) NEB_TRY(neb__shape_step(r, &loss));
    for (int i = 0; i < ROUNDS; i++) {
        NEB_TRY(round_of(r, steps, NULL, &a[i]));
        if (c) NEB_TRY(round_of(r, steps, c, &b[i]));
    }
    *plain = neb__figures_median(a, ROUNDS);
    if (c) *with = neb__figures_median(b, ROUNDS);
    return NEB_OK;
}

static void report(struct neb_figures *f, const struct neb_shape *s, const char *what, double value,
                   const char *unit)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", what, s->name);
    neb__figures_add(f, name, value, unit, NEB_REPORT, 0);
}

neb_status neb__bench_on_device(const struct neb_shape *s, const struct neb_shape_options *o, int64_t steps,
                                bool capture, struct neb_figures *f)
{
    struct neb_shape_run *r = NULL;
    struct neb_device_info info;
    struct capture c = {0};
    double plain = 0, with = 0;
    NEB_TRY(neb__shape_create(s, o, &r));
    neb_status status = capture ? capture_init(r, &c) : NEB_OK;
    if (status == NEB_OK) status = measure(r, steps, capture ? &c : NULL, &plain, &with);
    if (status == NEB_OK) {
        const double step = plain / (double)steps;
        neb_device_get_info(neb__shape_device(r), &info);
        report(f, s, "tokens_per_second", (double)neb__shape_tokens(s) / step, "1/s");
        report(f, s, "step", step * 1e3, "ms");
        report(f, s, "rate", neb__shape_flops(s) / step * 1e-12, "TFLOP/s");
        report(f, s, "memory", (double)info.memory_peak / (1 << 30), "GiB");
    }
    if (status == NEB_OK && capture) {
        report(f, s, "capture_and_merge", (with - plain) * 1e3, "ms");
        neb__figures_add(f, "capture_share", (with - plain) / 60, "at 1/min", NEB_AT_MOST, 0.01);
    }
    capture_free(&c);
    neb__shape_destroy(r);
    return status;
}

/* FNV-1a over the trainable parameters' bytes. */
static neb_status hash_parameters(struct neb_shape_run *r, uint64_t *out)
{
    uint64_t h = 1469598103934665603u;
    neb_params *ps = neb__shape_params(r);
    for (int i = 0; i < neb_params_count(ps); i++) {
        neb_param *p = neb_params_at(ps, i);
        const int64_t n = neb_param_values(p);
        float *host = neb__malloc((size_t)n * sizeof *host);
        if (!host) return neb__fail(NEB_ERR_NOMEM, "out of memory for %s", neb_param_name(p));
        neb_status status = neb_param_read(p, host);
        for (int64_t j = 0; status == NEB_OK && j < n * 4; j++)
            h = (h ^ ((const unsigned char *)host)[j]) * 1099511628211u;
        neb__free(host);
        NEB_TRY(status);
    }
    *out = h;
    return NEB_OK;
}

/* Prints gradients that are not finite, or large: those of the step after the skipped one, with the same
 * parameters. */
static void blame(struct neb_shape_run *r)
{
    neb_params *ps = neb__shape_params(r);
    for (int i = 0; i < neb_params_count(ps); i++) {
        neb_param *p = neb_params_at(ps, i);
        const int64_t n = neb_param_values(p);
        float *g = neb__malloc((size_t)n * sizeof *g);
        int64_t bad = 0, first = -1;
        double sum = 0;
        bool read = g && neb_param_read_grad(p, g) == NEB_OK;
        for (int64_t j = 0; read && j < n; j++) {
            if (!isfinite(g[j])) {
                bad++;
                if (first < 0) first = j;
            } else
                sum += (double)g[j] * (double)g[j];
        }
        if (bad || sum > 100)
            fprintf(stderr, "%s: %lld of %lld values not finite, the first at %lld; norm of the others %g\n",
                    neb_param_name(p), (long long)bad, (long long)n, (long long)first, sqrt(sum));
        neb__free(g);
    }
}

int neb__bench_losses(const struct neb_shape *s, const struct neb_shape_options *o, int64_t steps)
{
    struct neb_shape_run *r = NULL;
    uint64_t hash = 0;
    float loss = 0;
    if (neb__shape_create(s, o, &r) != NEB_OK) return 1;
    neb_status status = NEB_OK;
    for (int64_t i = 0; status == NEB_OK && i < steps; i++) {
        status = neb__shape_step(r, &loss);
        if (status == NEB_OK && neb__shape_loss_step(r) > 0)
            printf("%lld %.9g %.4g\n", (long long)neb__shape_loss_step(r), (double)loss,
                   neb__shape_grad_norm(r));
        fflush(stdout);
    }
    if (status == NEB_ERR_NONFINITE) blame(r);
    if (status == NEB_OK) status = hash_parameters(r, &hash);
    if (status == NEB_OK) printf("parameters %016llx\n", (unsigned long long)hash);
    neb__shape_destroy(r);
    return status == NEB_OK ? 0 : 1;
}
