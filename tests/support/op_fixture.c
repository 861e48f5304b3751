/* op_fixture.c: a case with its inputs, parameters and tape on the CPU device; inputs include repeated and missing ids, an empty
 * sequence, targets and weights that do not count. */
#include "op_cases.h"
#include "check.h"
#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

void op_model(neb_tape *t, void *arg)
{
    struct fixture *f = arg;
    neb_push(t, "%s", f->kase->name);
    f->kase->model(t, f);
    neb_pop(t);
}

static neb_buffer *upload(struct fixture *f, const void *data, size_t bytes)
{
    neb_buffer *b;
    assert_ok(neb_buffer_create(f->dev, bytes, &b));
    assert_ok(neb_buffer_upload(b, data, bytes));
    return b;
}

static void fill_buffers(struct fixture *f, struct neb_rng *r)
{
    int64_t n = f->s.rows;
    int32_t ids[MAX_ROWS * 4], ids2[MAX_ROWS * 4], position[MAX_ROWS], sample[MAX_ROWS], target[MAX_ROWS];
    int32_t starts[5], starts_k[5], seq_sample[4] = {91, 7, 12, 3};
    float weight[MAX_ROWS];
    static float fixed[MAX_ROWS * 128], logits[MAX_ROWS * 128];
    f->seqs = n >= 3 ? 4 : 1;
    for (int i = 0; i <= f->seqs; i++) starts[i] = (int32_t)(n * i / f->seqs), starts_k[i] = starts[i] * 2;
    if (f->seqs > 1) starts[2] = starts[1], starts_k[f->seqs] = starts_k[f->seqs - 1] + 1; /* an empty one */
    starts[f->seqs] = (int32_t)n;
    f->k_rows = starts_k[f->seqs] ? starts_k[f->seqs] : 1;
    for (int i = 0; i < f->seqs; i++)
        for (int32_t j = starts[i]; j < starts[i + 1]; j++)
            position[j] = j - starts[i], sample[j] = seq_sample[i];
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)neb__rng_below(r, 5) - 1; /* repeats, and one that is not in the table */
        ids2[i] = (int32_t)(i == n / 2 && n > 1 ? -1 : n - 1 - i);
        target[i] = i % 5 == 4 ? -1 : (int32_t)neb__rng_below(r, (uint64_t)(f->s.out > 2 ? f->s.out : 1));
        weight[i] = i % 7 == 3 ? 0 : 0.5f + (float)neb__rng_uniform(r);
    }
    if (!strcmp(f->kase->name, "bce"))
        for (int64_t i = 0; i < n; i++) target[i] = (int32_t)(i % 3) - 1;
    if (strstr(f->kase->name, "distillation")) /* distinct classes in every row */
        for (int64_t i = 0; i < 4 * n; i++) ids2[i] = (int32_t)((i % 4 + i / 4) % f->s.out);
    for (int i = 0; i < MAX_ROWS * 128; i++) fixed[i] = (float)neb__rng_normal(r), logits[i] = 2 * fixed[i];
    f->ids = upload(f, ids, sizeof ids), f->ids2 = upload(f, ids2, sizeof ids2);
    f->position = upload(f, position, sizeof position), f->sample = upload(f, sample, sizeof sample);
    f->starts = upload(f, starts, sizeof starts), f->starts_k = upload(f, starts_k, sizeof starts_k);
    f->seq_sample = upload(f, seq_sample, sizeof seq_sample), f->target = upload(f, target, sizeof target);
    f->weight = upload(f, weight, sizeof weight), f->fixed = upload(f, fixed, sizeof fixed);
    f->logits = upload(f, logits, sizeof logits);
}

void op_open(struct fixture *f, const struct kase *k, struct shape s)
{
    *f = (struct fixture){.kase = k, .s = s};
    struct neb_device_config c = {.threads = 2};
    struct neb_rng r = {77};
    assert_ok(neb_device_open("cpu", &c, &f->dev));
    assert_ok(neb_params_create(&f->ps));
    fill_buffers(f, &r);
    k->params(f);
    assert_ok(neb_params_ready(f->ps, f->dev, 5));
    assert_ok(neb_tape_create(f->dev, f->ps, &f->tape));
}

void op_close(struct fixture *f)
{
    neb_buffer *all[] = {f->ids,        f->ids2,   f->position, f->sample, f->starts, f->starts_k,
                         f->seq_sample, f->target, f->weight,   f->fixed,  f->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) neb_buffer_destroy(all[i]);
    neb_tape_destroy(f->tape);
    neb_params_destroy(f->ps);
    neb_device_close(f->dev);
}

double op_loss(struct fixture *f, bool grad)
{
    struct neb_ctl c = {.step = 4, .seed = 9, .loss_scale = 0.37f};
    struct neb_run run = {.fn = op_model, .arg = f, .key = 1, .grad = grad, .train = true};
    assert_ok(neb_tape_begin_step(f->tape, &c));
    assert_ok(neb_tape_run(f->tape, &run));
    assert_ok(neb_tape_end_step(f->tape, true, &c));
    double sum = 0;
    for (int i = 0; i < 8; i++) sum += (double)c.loss[i];
    return sum;
}

float *op_read(struct fixture *f, bool grads, int64_t *n)
{
    int64_t total = neb_params_values(f->ps, false), at = 0;
    float *out = neb__calloc((size_t)total, sizeof *out);
    for (int i = 0; i < f->n_params; i++) {
        assert_ok(grads ? neb_param_read_grad(f->p[i], out + at) : neb_param_read(f->p[i], out + at));
        at += neb_param_values(f->p[i]);
    }
    *n = total;
    return out;
}

void op_write(struct fixture *f, const float *values)
{
    for (int i = 0; i < f->n_params; i++) {
        assert_ok(neb_param_write(f->p[i], values));
        values += neb_param_values(f->p[i]);
    }
}
