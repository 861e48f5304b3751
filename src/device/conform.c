/* conform.c: the frame of the conformance suite: memory, comparison, random shapes, the loop over all cases.
 *
 * Device memory is one arena that is filled with 0xff (NaN in every type) before a case; tensors are cut from
 * it with GUARD bytes between, which must still be 0xff afterwards. The arena's size is fixed: cases are
 * small. */
#include "device/conform.h"
#include "base/mem.h"

#include <nebula/engine.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { ARENA = 24 << 20, TINY_ARENA = 2 << 20, HOST = 4 << 20 /* doubles */, GUARD = 256 };
enum { TINY_DIM = 20, TINY_LENGTH = 12, TINY_REPEAT = 2 };

/* The error that rounding, a different order of summation and the fast versions of exp and erf may cause,
 * relative to the largest magnitude of a tensor. bf16 has 8 bits. */
static double allowed(neb_dtype type)
{
    return type == NEB_F32 ? 1e-5 : 1.5e-2;
}

static void fail(struct neb_cf *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct neb_cf *c, const char *fmt, ...)
{
    c->result->failures++;
    c->case_failed = true;
    if (!c->report) return;
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(c->report, "  %s [%s]: %s\n", c->group, c->shape, text);
}

double *neb__cf_doubles(struct neb_cf *c, int64_t n)
{
    if (c->host_used + (size_t)n > HOST) {
        fail(c, "the suite's host memory is too small for this case");
        c->host_used = 0;
    }
    double *p = c->host + c->host_used;
    c->host_used += (size_t)n;
    memset(p, 0, (size_t)n * sizeof *p);
    return p;
}

static void *reserve(struct neb_cf *c, size_t bytes)
{
    if (c->used + bytes + 2 * GUARD > c->room || c->n_blocks == NEB_CF_BLOCKS) {
        fail(c, "the suite's device memory is too small for this case");
        c->used = 0;
        c->n_blocks = 0;
    }
    c->blocks[c->n_blocks++] = (struct neb_cf_block){c->used, bytes};
    void *p = c->arena + c->used;
    c->used += (bytes + GUARD - 1) / GUARD * GUARD + GUARD;
    return p;
}

void *neb__cf_raw(struct neb_cf *c, const void *host, size_t bytes)
{
    void *p = reserve(c, bytes);
    if (bytes) neb__cf_ok(c, c->ops->upload(c->dev, p, host, bytes));
    return p;
}

static double from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t to_bf16(double v)
{
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

struct neb_cf_t neb__cf_values(struct neb_cf *c, int64_t n, neb_dtype type, const double *v)
{
    struct neb_cf_t t = {NULL, neb__cf_doubles(c, n), n, type};
    uint8_t *tmp = (uint8_t *)neb__cf_doubles(c, (n + 1) / 2);
    for (int64_t i = 0; i < n; i++) {
        if (type == NEB_F32) {
            float f = (float)v[i];
            memcpy(tmp + 4 * i, &f, 4);
            t.v[i] = f;
        } else {
            uint16_t h = to_bf16(v[i]);
            memcpy(tmp + 2 * i, &h, 2);
            t.v[i] = from_bf16(h);
        }
    }
    t.p = neb__cf_raw(c, tmp, (size_t)n * neb_dtype_size(type));
    return t;
}

struct neb_cf_t neb__cf_random(struct neb_cf *c, int64_t n, neb_dtype type, double scale)
{
    double *v = neb__cf_doubles(c, n);
    for (int64_t i = 0; i < n; i++) v[i] = scale * neb__rng_normal(&c->rng);
    return neb__cf_values(c, n, type, v);
}

struct neb_cf_t neb__cf_poison(struct neb_cf *c, int64_t n, neb_dtype type)
{
    return (struct neb_cf_t){reserve(c, (size_t)n * neb_dtype_size(type)), neb__cf_doubles(c, n), n, type};
}

struct neb_cf_t neb__cf_target(struct neb_cf *c, int64_t n, neb_dtype type, int acc)
{
    return acc ? neb__cf_random(c, n, type, 1) : neb__cf_poison(c, n, type);
}

int32_t *neb__cf_ints(struct neb_cf *c, const int32_t *v, int64_t n)
{
    return neb__cf_raw(c, v, (size_t)n * sizeof *v);
}

struct neb_ctl *neb__cf_ctl(struct neb_cf *c, const struct neb_ctl *host)
{
    return neb__cf_raw(c, host, sizeof *host);
}

struct neb_ctl neb__cf_read_ctl(struct neb_cf *c, const struct neb_ctl *dev)
{
    struct neb_ctl out = {0};
    neb__cf_ok(c, c->ops->download(c->dev, &out, dev, sizeof out));
    return out;
}

void *neb__cf_scratch(struct neb_cf *c, enum neb_slot slot, const void *args)
{
    int64_t n = c->ops->scratch_bytes ? c->ops->scratch_bytes(c->dev, slot, args) : 0;
    neb__cf_true(c, "scratch_bytes() is not negative", n >= 0);
    return n > 0 ? reserve(c, (size_t)n) : NULL;
}

void neb__cf_shape(struct neb_cf *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->shape, sizeof c->shape, fmt, ap);
    va_end(ap);
}

bool neb__cf_ok(struct neb_cf *c, neb_status status)
{
    if (status == NEB_OK) return true;
    fail(c, "%s: %s", neb_status_name(status), neb_last_error());
    return false;
}

void neb__cf_true(struct neb_cf *c, const char *what, bool ok)
{
    c->result->checks++;
    if (!ok) fail(c, "expected, but not true: %s", what);
}

void neb__cf_near1(struct neb_cf *c, const char *what, double got, double want, double floor)
{
    double tolerance = allowed(c->type) * fmax(fabs(want), floor);
    c->result->checks++;
    if (!(fabs(got - want) <= tolerance))
        fail(c, "%s: %.9g instead of %.9g (±%.2g)", what, got, want, tolerance);
}

void neb__cf_near_each(struct neb_cf *c, const char *what, const struct neb_cf_t *t, const double *want,
                       const double *size)
{
    const size_t width = neb_dtype_size(t->type), bytes = (size_t)t->n * width;
    uint8_t *got = c->mirror;
    if (bytes && !neb__cf_ok(c, c->ops->download(c->dev, got, t->p, bytes))) return;
    double worst = 0, bad_got = 0;
    int64_t at = -1;
    /* A result in F32 can come from BF16 values, so the suite's type decides. */
    const double fraction = allowed(c->type);
    for (int64_t i = 0; i < t->n; i++) {
        float f;
        uint16_t h;
        if (width == 4)
            memcpy(&f, got + 4 * i, 4);
        else
            memcpy(&h, got + 2 * i, 2);
        double v = width == 4 ? (double)f : from_bf16(h), error = fabs(v - want[i]) / size[i];
        if (!(fabs(v - want[i]) <= fraction * size[i]) && (at < 0 || !(error <= worst)))
            at = i, worst = error, bad_got = v;
    }
    c->result->checks++;
    if (at >= 0)
        fail(c, "%s[%lld of %lld]: %.9g instead of %.9g (±%.2g)", what, (long long)at, (long long)t->n,
             bad_got, want[at], fraction * size[at]);
}

void neb__cf_near(struct neb_cf *c, const char *what, const struct neb_cf_t *t, const double *want,
                  double floor)
{
    const size_t used = c->host_used;
    double *size = neb__cf_doubles(c, t->n), largest = floor;
    for (int64_t i = 0; i < t->n; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < t->n; i++) size[i] = largest;
    neb__cf_near_each(c, what, t, want, size);
    c->host_used = used;
}

int neb__cf_below(struct neb_cf *c, int n)
{
    return (int)neb__rng_below(&c->rng, (uint64_t)n);
}

int64_t neb__cf_dim(struct neb_cf *c, int64_t max)
{
    static const int64_t liked[] = {1,  2,  3,  7,  8,  15,  16,  17,  31,  32, 33,
                                    48, 63, 64, 65, 96, 127, 128, 130, 200, 257};
    if (c->tiny && max > TINY_DIM) max = TINY_DIM;
    int64_t n = neb__cf_below(c, 3) ? liked[neb__cf_below(c, sizeof liked / sizeof *liked)]
                                    : 1 + neb__cf_below(c, 300);
    return n > max ? 1 + neb__cf_below(c, (int)max) : n;
}

double neb__cf_mask(const struct neb_ctl *ctl, uint32_t threshold, uint32_t op, uint32_t c0, int lane,
                    uint32_t position, uint32_t sample)
{
    if (!threshold) return 1;
    uint32_t word[4];
    neb__philox((uint32_t[4]){c0, position, sample, ctl->step}, (uint32_t[2]){ctl->seed, op}, word);
    uint32_t bits = word[lane / 2] >> 16 * (lane % 2) & 0xffff;
    return bits >= threshold ? 65536.0 / (65536.0 - threshold) : 0;
}

double neb__cf_act(double x, neb_act act)
{
    const double k = sqrt(2 / M_PI);
    switch (act) {
    case NEB_ACT_GELU: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case NEB_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(k * (x + 0.044715 * x * x * x)));
    case NEB_ACT_SILU: return x / (1 + exp(-x));
    case NEB_ACT_RELU: return x > 0 ? x : 0;
    case NEB_ACT_TANH: return tanh(x);
    case NEB_ACT_NONE: break;
    }
    return x;
}

/* Computed by differences in double: accurate to 1e-9, and without a formula that could be wrong in both
 * places. */
double neb__cf_slope(double x, neb_act act)
{
    const double h = 1e-5;
    if (act == NEB_ACT_RELU) return x > 0 ? 1 : 0;
    return (neb__cf_act(x + h, act) - neb__cf_act(x - h, act)) / (2 * h);
}

struct neb_cf_seqs neb__cf_seqs(struct neb_cf *c, int64_t sequences, int64_t longest, int64_t padding)
{
    struct neb_cf_seqs s = {.sequences = sequences};
    if (c->tiny && longest > TINY_LENGTH) longest = TINY_LENGTH;
    bool full = longest % 64 == 0; /* some devices treat sequences of whole tiles as a case of their own */
    s.starts = (int32_t *)neb__cf_doubles(c, sequences + 1);
    for (int64_t i = 0; i < sequences; i++) {
        int64_t n = neb__cf_below(c, 8) ? 1 + neb__cf_below(c, (int)longest) : 0;
        if (full) n = longest;
        if (n > s.longest) s.longest = n;
        s.starts[i + 1] = s.starts[i] + (int32_t)n;
    }
    s.rows = s.starts[sequences] + padding;
    if (s.rows == 0) s.rows = 1;
    s.sample = (uint32_t *)neb__cf_doubles(c, s.rows);
    s.position = (int32_t *)neb__cf_doubles(c, s.rows);
    uint32_t *seq_sample = (uint32_t *)neb__cf_doubles(c, sequences);
    for (int64_t i = 0; i < sequences; i++) {
        seq_sample[i] = (uint32_t)neb__rng_next(&c->rng);
        for (int32_t r = s.starts[i]; r < s.starts[i + 1]; r++)
            s.sample[r] = seq_sample[i], s.position[r] = r - s.starts[i];
    }
    s.d_starts = neb__cf_ints(c, s.starts, sequences + 1);
    s.d_sample = neb__cf_raw(c, s.sample, (size_t)s.rows * 4);
    s.d_seq_sample = neb__cf_raw(c, seq_sample, (size_t)sequences * 4);
    s.d_position = neb__cf_ints(c, s.position, s.rows);
    return s;
}

/* Checks that nothing outside the tensors was written. */
static void check_guards(struct neb_cf *c)
{
    if (!neb__cf_ok(c, c->ops->download(c->dev, c->mirror, c->arena, c->used))) return;
    size_t at = 0;
    for (int b = 0; b <= c->n_blocks; b++) {
        size_t end = b < c->n_blocks ? c->blocks[b].offset : c->used;
        for (; at < end; at++)
            if (c->mirror[at] != 0xff) {
                fail(c, "byte %zu after the end of tensor %d of the case was overwritten",
                     at - c->blocks[b - 1].offset, b - 1);
                return;
            }
        if (b < c->n_blocks) at = c->blocks[b].offset + c->blocks[b].bytes;
    }
}

static void run_case(struct neb_cf *c, const struct neb_cf_case *test, int index, uint64_t seed)
{
    uint64_t key = seed + (uint64_t)index * 7919;
    for (const char *p = test->name; *p; p++) key = neb__mix64(key ^ (uint64_t)(unsigned char)*p);
    c->rng.state = key;
    c->group = test->name;
    c->shape[0] = '\0';
    c->used = c->host_used = 0;
    c->n_blocks = 0;
    c->case_failed = false;
    c->result->cases++;
    if (!neb__cf_ok(c, c->ops->fill(c->dev, c->arena, 0xff, c->room))) return;
    test->fn(c);
    if (!c->case_failed && c->n_blocks) check_guards(c);
}

static neb_status run(struct neb_device *d, const char *only, uint64_t seed, bool tiny, FILE *report,
                      struct neb_conform_result *out)
{
    static const struct neb_cf_case *const groups[] = {neb__cf_basic,  neb__cf_rows, neb__cf_loss,
                                                       neb__cf_fused,  neb__cf_pick, neb__cf_attn,
                                                       neb__cf_narrow, neb__cf_muon};
    struct neb_cf *c = NEB_NEW(struct neb_cf);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for the conformance suite");
    *out = (struct neb_conform_result){0};
    c->ops = d->ops, c->dev = d->ctx, c->type = d->config.compute, c->report = report, c->result = out;
    c->tiny = tiny, c->room = tiny ? TINY_ARENA : ARENA;
    c->mirror = neb__malloc(c->room);
    c->host = NEB_NEW_ARRAY(double, HOST);
    neb_status status = NEB_OK;
    void *arena = NULL;
    if (!c->mirror || !c->host)
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for the conformance suite");
    else
        status = d->ops->alloc(d->ctx, c->room, &arena);
    c->arena = arena;
    bool any = false;
    for (size_t g = 0; status == NEB_OK && g < sizeof groups / sizeof *groups; g++)
        for (const struct neb_cf_case *t = groups[g]; t->name; t++) {
            if (only && strcmp(only, t->name)) continue;
            any = true;
            for (int i = 0; i < t->repeat && !(tiny && i == TINY_REPEAT); i++) run_case(c, t, i, seed);
        }
    if (status == NEB_OK && !any)
        status = neb__fail(NEB_ERR_NOTFOUND, "the suite has no case named '%s'", only);
    if (arena) d->ops->free(d->ctx, arena);
    neb__free(c->mirror);
    neb__free(c->host);
    neb__free(c);
    return status;
}

neb_status neb__conform_run(struct neb_device *d, const char *only, uint64_t seed, FILE *report,
                            struct neb_conform_result *out)
{
    return run(d, only, seed, false, report, out);
}

neb_status neb__conform_run_tiny(struct neb_device *d, const char *only, uint64_t seed, FILE *report,
                                 struct neb_conform_result *out)
{
    return run(d, only, seed, true, report, out);
}
