/* test_tape.c: the tape's promises beyond single ops: dropout masks depend on neither packing nor threads,
 * equal seeds give equal bits, ops that a device lacks are refused or composed, a tape goes on after it was
 * out of memory, and the plan keeps its bound. */
#include "check.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tensor/sampling.h"
#include "tensor/tape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { D = 48, HEADS = 3, VOCAB = 50, SEQS = 5 };
static const int lengths[SEQS] = {7, 1, 19, 12, 4};

struct lm {
    neb_device *dev;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
    neb_param *table, *qkv, *qkv_b, *proj, *proj_b, *up, *up_b, *down, *down_b, *g1, *b1, *g2, *b2;
    neb_buffer *ids, *position, *sample, *starts, *seq_sample, *target, *hidden;
    int64_t rows, seqs;
    float drop;
};

static neb_param *param(struct lm *m, const char *name, int64_t rows, int64_t cols, neb_init init)
{
    struct neb_param_spec s = {.name = name,
                               .ndim = cols ? 2 : 1,
                               .shape = {rows, cols},
                               .init = init,
                               .scale = 0.08f,
                               .no_decay = !cols};
    return neb_params_add(m->ps, &s);
}

static neb_buffer *buffer(struct lm *m, size_t bytes)
{
    neb_buffer *b = NULL;
    assert_ok(neb_buffer_create(m->dev, bytes, &b));
    return b;
}

static void open_on(struct lm *m, neb_device *dev)
{
    *m = (struct lm){.dev = dev, .drop = 0.2f};
    assert_ok(neb_params_create(&m->ps));
    m->table = param(m, "table", VOCAB, D, NEB_INIT_NORMAL);
    m->qkv = param(m, "qkv", 3 * D, D, NEB_INIT_NORMAL),
    m->qkv_b = param(m, "qkv.b", 3 * D, 0, NEB_INIT_ZERO);
    m->proj = param(m, "proj", D, D, NEB_INIT_NORMAL), m->proj_b = param(m, "proj.b", D, 0, NEB_INIT_ZERO);
    m->up = param(m, "up", 4 * D, D, NEB_INIT_NORMAL), m->up_b = param(m, "up.b", 4 * D, 0, NEB_INIT_ZERO);
    m->down = param(m, "down", D, 4 * D, NEB_INIT_NORMAL),
    m->down_b = param(m, "down.b", D, 0, NEB_INIT_ZERO);
    m->g1 = param(m, "g1", D, 0, NEB_INIT_ONE), m->b1 = param(m, "b1", D, 0, NEB_INIT_ZERO);
    m->g2 = param(m, "g2", D, 0, NEB_INIT_ONE), m->b2 = param(m, "b2", D, 0, NEB_INIT_ZERO);
    assert_ok(neb_params_ready(m->ps, dev, 42));
    assert_ok(neb_tape_create(dev, m->ps, &m->tape));
    struct neb_optimizer_config c = neb_optimizer_defaults();
    assert_ok(neb_optimizer_create(dev, m->ps, &c, &m->opt));
    m->ids = buffer(m, 4096), m->position = buffer(m, 4096), m->sample = buffer(m, 4096);
    m->starts = buffer(m, 256), m->seq_sample = buffer(m, 256), m->target = buffer(m, 4096);
    m->hidden = buffer(m, 64 * D * sizeof(float));
}

static void open_lm(struct lm *m, int threads)
{
    neb_device *dev;
    struct neb_device_config c = {.threads = threads};
    assert_ok(neb_device_open("cpu", &c, &dev));
    open_on(m, dev);
}

static void close_lm(struct lm *m)
{
    neb_buffer *all[] = {m->ids, m->position, m->sample, m->starts, m->seq_sample, m->target, m->hidden};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) neb_buffer_destroy(all[i]);
    neb_optimizer_destroy(m->opt);
    neb_tape_destroy(m->tape);
    neb_params_destroy(m->ps);
    neb_device_close(m->dev);
}

/* Packs the sequences named in `which` one after the other.
 * The tokens of a sequence depend on its number alone. */
static void pack(struct lm *m, const int *which, int n)
{
    int32_t ids[64], position[64], sample[64], target[64], starts[SEQS + 1] = {0}, seq_sample[SEQS];
    int rows = 0;
    for (int i = 0; i < n; i++) {
        seq_sample[i] = 1000 + which[i];
        for (int j = 0; j < lengths[which[i]]; j++, rows++) {
            uint64_t r = neb__mix64((uint64_t)which[i] * 100 + (uint64_t)j);
            ids[rows] = (int32_t)(r % VOCAB), target[rows] = (int32_t)(r / VOCAB % VOCAB);
            position[rows] = j, sample[rows] = seq_sample[i];
        }
        starts[i + 1] = rows;
    }
    m->rows = rows;
    m->seqs = n;
    assert_ok(neb_buffer_upload(m->ids, ids, sizeof ids));
    assert_ok(neb_buffer_upload(m->position, position, sizeof position));
    assert_ok(neb_buffer_upload(m->sample, sample, sizeof sample));
    assert_ok(neb_buffer_upload(m->target, target, sizeof target));
    assert_ok(neb_buffer_upload(m->starts, starts, sizeof starts));
    assert_ok(neb_buffer_upload(m->seq_sample, seq_sample, sizeof seq_sample));
}

static void model(neb_tape *t, void *arg)
{
    struct lm *m = arg;
    int64_t n = m->rows, s1 = m->seqs + 1;
    neb_tensor *ids = neb_input(t, m->ids, NEB_I32, 1, &n);
    neb_set_rows(t, neb_input(t, m->sample, NEB_I32, 1, &n), neb_input(t, m->position, NEB_I32, 1, &n));
    struct neb_seqs seqs = {neb_input(t, m->starts, NEB_I32, 1, &s1),
                            neb_input(t, m->seq_sample, NEB_I32, 1, &m->seqs), m->seqs, 32};
    neb_tensor *x = neb_op_dropout(t, neb_op_embed(t, 1, &m->table, &ids, 1), m->drop);
    neb_tensor *h = neb_op_norm(t, x, m->g1, m->b1, NEB_NORM_LAYER, 1e-5f);
    neb_tensor *qkv = neb_op_linear(t, h, m->qkv, m->qkv_b, NEB_ACT_NONE);
    struct neb_attention a = {.q = neb_op_columns(t, qkv, 0, D),
                              .k = neb_op_columns(t, qkv, D, D),
                              .v = neb_op_columns(t, qkv, 2 * D, D),
                              .q_seqs = seqs,
                              .k_seqs = seqs,
                              .heads = HEADS,
                              .causal = true,
                              .dropout = m->drop};
    neb_tensor *o = neb_op_linear(t, neb_op_attention(t, &a), m->proj, m->proj_b, NEB_ACT_NONE);
    neb_push(t, "ffn");
    h = neb_op_norm_residual(t, o, x, m->g2, m->b2, NEB_NORM_LAYER, 1e-5f, m->drop, &x);
    o = neb_op_linear(t, neb_op_linear(t, h, m->up, m->up_b, NEB_ACT_GELU), m->down, m->down_b, NEB_ACT_NONE);
    x = neb_op_residual(t, o, x, m->drop);
    neb_pop(t);
    neb_output(t, x, m->hidden, NEB_F32);
    struct neb_target_spec c = {.target = neb_input(t, m->target, NEB_I32, 1, &n)};
    struct neb_loss_spec l = {0};
    neb_loss_linear_xent(t, x, m->table, NULL, &c, &l);
}

static neb_status forward(struct lm *m, float *hidden)
{
    struct neb_ctl c = {.step = 3, .seed = 17, .loss_scale = 1};
    struct neb_run run = {.fn = model, .arg = m, .key = (uint64_t)m->rows, .train = true};
    NEB_TRY(neb_tape_begin_step(m->tape, &c));
    NEB_TRY(neb_tape_run(m->tape, &run));
    return neb_buffer_download(m->hidden, hidden, (size_t)m->rows * D * sizeof *hidden);
}

/* With dropout everywhere, a sequence comes out the same alone, packed with others in any order,
 * on 1 to 4 threads. */
static void masks_depend_on_neither_packing_nor_threads(void **state)
{
    (void)state;
    static float packed[64 * D], other[64 * D];
    struct lm m;
    open_lm(&m, 1);
    pack(&m, (int[]){0, 1, 2, 3, 4}, SEQS);
    assert_ok(forward(&m, packed));
    int at = 0;
    for (int i = 0; i < SEQS; i++) {
        pack(&m, &i, 1);
        assert_ok(forward(&m, other));
        for (int k = 0; k < lengths[i] * D; k++)
            assert_true(fabsf(other[k] - packed[at * D + k]) <= 2e-5f * (1 + fabsf(other[k])));
        at += lengths[i];
    }
    m.drop = 0;
    pack(&m, (int[]){0, 1, 2, 3, 4}, SEQS);
    neb__tape_force_reference(m.tape, false); /* forget the plans: the model changed */
    assert_ok(forward(&m, other));
    assert_true(fabsf(other[5] - packed[5]) > 1e-4f); /* dropout did something */
    close_lm(&m);
    for (int threads = 2; threads <= 4; threads++) {
        open_lm(&m, threads);
        pack(&m, (int[]){0, 1, 2, 3, 4}, SEQS);
        assert_ok(forward(&m, other));
        for (int k = 0; k < m.rows * D; k++)
            assert_true(fabsf(other[k] - packed[k]) <= 2e-5f * (1 + fabsf(packed[k])));
        close_lm(&m);
    }
}

static void mask_hash(int threads, const int *order, struct neb_hash *out)
{
    struct lm m;
    open_lm(&m, threads);
    pack(&m, order, SEQS);
    uint8_t kept[SEQS][32 * D] = {{0}};
    static float ones[64 * D], y[64 * D];
    for (int i = 0; i < 64 * D; i++) ones[i] = 1;
    neb_buffer *x = buffer(&m, sizeof ones);
    assert_ok(neb_buffer_upload(x, ones, sizeof ones));
    struct neb_dropout_args a = {
        .x = x->data, .y = m.hidden->data, .rows = m.rows, .cols = D, .type = NEB_F32};
    a.drop = (struct neb_dropout){.threshold = 20000,
                                  .op = 77,
                                  .sample = m.sample->data,
                                  .position = m.position->data,
                                  .ctl = m.tape->ctl};
    struct neb_ctl c = {.step = 3, .seed = 17};
    assert_ok(neb_tape_begin_step(m.tape, &c));
    assert_ok(m.dev->ops->dropout(m.dev->ctx, &a));
    assert_ok(neb_buffer_download(m.hidden, y, (size_t)m.rows * D * sizeof *y));
    for (int i = 0, at = 0; i < SEQS; at += lengths[order[i]], i++)
        for (int k = 0; k < lengths[order[i]] * D; k++) kept[order[i]][k] = y[at * D + k] != 0;
    assert_ok(neb__hash(kept, sizeof kept, out));
    neb_buffer_destroy(x);
    close_lm(&m);
}

static void mask_hashes_are_equal(void **state)
{
    (void)state;
    struct neb_hash first, h;
    mask_hash(1, (int[]){0, 1, 2, 3, 4}, &first);
    for (int threads = 1; threads <= 4; threads++) {
        mask_hash(threads, (int[]){4, 2, 0, 1, 3}, &h);
        assert_true(neb__hash_equal(&first, &h));
    }
}

static void train(struct lm *m, int steps)
{
    for (int s = 0; s < steps; s++) {
        struct neb_micro micro = {NULL, model, m, (uint64_t)m->rows, (double)m->rows};
        struct neb_step_info info;
        assert_ok(neb_train_step(m->opt, m->tape, &micro, 1, 3e-3f, 5, NULL, &info));
    }
}

static void params_hash(struct lm *m, struct neb_hash *out)
{
    int64_t n;
    float *slab = neb_params_slab(m->ps, &n), *host = neb__malloc((size_t)n * sizeof *host);
    assert_ok(m->dev->ops->download(m->dev->ctx, host, slab, (size_t)n * sizeof *host));
    assert_ok(neb__hash(host, (size_t)n * sizeof *host, out));
    neb__free(host);
}

static void fifty_steps_repeat_bit_for_bit(void **state)
{
    (void)state;
    struct neb_hash h[2];
    for (int i = 0; i < 2; i++) {
        struct lm m;
        open_lm(&m, 2);
        pack(&m, (int[]){3, 2, 0, 1, 4}, SEQS);
        train(&m, 50);
        params_hash(&m, &h[i]);
        close_lm(&m);
    }
    assert_true(neb__hash_equal(&h[0], &h[1]));
}

/* A device without fused attention is refused, or attention is composed from primitives with a warning and
 * gives the same numbers. */
static void a_missing_op_is_refused_or_composed(void **state)
{
    (void)state;
    static float full[64 * D], composed[64 * D];
    struct lm m;
    open_lm(&m, 2);
    pack(&m, (int[]){0, 2}, 2);
    assert_ok(forward(&m, full));
    struct neb_device_ops lame = *m.dev->ops;
    lame.attn = NULL;
    lame.linear = NULL;
    m.dev->ops = &lame;
    neb__tape_force_reference(m.tape, false); /* forget the plans */
    check_log_quiet();
    assert_status(forward(&m, composed), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(neb_last_error(), "lacks this op"));
    neb_tape_allow_fallback(m.tape, true);
    assert_ok(forward(&m, composed));
    check_log_restore();
    for (int k = 0; k < m.rows * D; k++)
        assert_true(fabsf(full[k] - composed[k]) <= 2e-5f * (1 + fabsf(full[k])));
    close_lm(&m);
}

static neb_status (*real_alloc)(void *, size_t, void **);
static size_t alloc_limit;

static neb_status small_alloc(void *dev, size_t bytes, void **out)
{
    if (bytes > alloc_limit)
        return neb__fail(NEB_ERR_NOMEM, "asked for %zu bytes, %zu are left", bytes, alloc_limit);
    return real_alloc(dev, bytes, out);
}

static void out_of_memory_leaves_a_usable_tape(void **state)
{
    (void)state;
    static float hidden[64 * D];
    struct lm m;
    open_lm(&m, 2);
    struct neb_device_ops tight = *m.dev->ops;
    real_alloc = tight.alloc;
    tight.alloc = small_alloc;
    m.dev->ops = &tight;
    alloc_limit = 20 * 1024;
    pack(&m, (int[]){0, 1, 2, 3, 4}, SEQS);
    check_log_quiet();
    assert_status(forward(&m, hidden), NEB_ERR_NOMEM);
    check_log_restore();
    pack(&m, (int[]){4}, 1);
    assert_ok(forward(&m, hidden));
    close_lm(&m);
}

static void the_plan_is_near_its_lower_bound(void **state)
{
    (void)state;
    struct lm m;
    open_lm(&m, 2);
    pack(&m, (int[]){0, 1, 2, 3, 4}, SEQS);
    train(&m, 1);
    struct neb_memory memory;
    neb_tape_memory(m.tape, &memory);
    assert_true(memory.lower_bound <= memory.planned && memory.planned <= memory.lower_bound * 11 / 10);
    assert_true(memory.planned < memory.unplanned * 3 / 4);
    close_lm(&m);
}

/* If a device cannot draw, the host draws by the same rule. The columns are the same unless two scores are
 * equal to the last bits, which hardly happens. */
static void the_host_draws_as_the_device_does(void **state)
{
    enum { ROWS = 200, COLS = 501 };
    static float x[ROWS * COLS];
    uint32_t who[2 * ROWS];
    int32_t got[ROWS], other = 0;
    neb_device *dev;
    neb_buffer *logits, *people, *id;
    struct neb_rng rng = {4};
    const struct neb_sampling how = {.seed = 3, .op = 9, .step = 2, .temperature = 0.7f};
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)(2 * neb__rng_normal(&rng));
    for (uint32_t i = 0; i < ROWS; i++) who[i] = i / 7, who[ROWS + i] = i % 7;
    assert_ok(neb_device_open("cpu", NULL, &dev));
    assert_true(neb__device_has_sample(dev));
    assert_ok(neb_buffer_create(dev, sizeof x, &logits));
    assert_ok(neb_buffer_create(dev, sizeof who, &people));
    assert_ok(neb_buffer_create(dev, sizeof got, &id));
    assert_ok(neb_buffer_upload(logits, x, sizeof x));
    assert_ok(neb_buffer_upload(people, who, sizeof who));
    assert_ok(neb__sample_rows(&how, logits, ROWS, COLS, people, id));
    assert_ok(neb_buffer_download(id, got, sizeof got));
    for (int i = 0; i < ROWS; i++)
        other += got[i] != neb__sample_on_host(&how, x + i * COLS, COLS, who[i], (int32_t)who[ROWS + i]);
    assert_true(other <= 1);
    assert_int_equal(neb__sample_rows(&how, logits, ROWS + 1, COLS, people, id), NEB_ERR_RANGE);
    neb_buffer_destroy(logits);
    neb_buffer_destroy(people);
    neb_buffer_destroy(id);
    neb_device_close(dev);
}

/* A device whose results come by the side, as a GPU's do. */
static neb_status download_aside(void *dev, void *host, const void *from, size_t bytes, uint64_t *fence)
{
    (void)dev;
    memcpy(host, from, bytes);
    *fence = 1;
    return NEB_OK;
}

static neb_status fence_passed(void *dev, uint64_t fence)
{
    (void)dev;
    return fence == 1 ? NEB_OK : NEB_ERR_INVALID;
}

/* An evaluation between two steps gets its own results, and the next step those of the step before it. */
static void an_evaluation_leaves_the_results_of_a_step(void **state)
{
    (void)state;
    struct lm m;
    open_lm(&m, 1);
    struct neb_device_ops aside = *m.dev->ops;
    aside.side_download = download_aside, aside.fence_wait = fence_passed;
    m.dev->ops = &aside;
    struct neb_ctl out;
    const struct {
        uint32_t step, told; /* told: the step whose results are to come */
        bool wait;
    } turns[] = {{7, 0, false}, {8, 7, false}, {1, 1, true}, {1, 1, true}, {9, 8, false}, {10, 9, false}};
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        assert_ok(neb_tape_begin_step(m.tape, &(struct neb_ctl){.step = turns[i].step}));
        assert_ok(neb_tape_end_step(m.tape, turns[i].wait, &out));
        assert_int_equal(out.step, turns[i].told);
    }
    close_lm(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_depend_on_neither_packing_nor_threads),
        cmocka_unit_test(mask_hashes_are_equal),
        cmocka_unit_test(fifty_steps_repeat_bit_for_bit),
        cmocka_unit_test(a_missing_op_is_refused_or_composed),
        cmocka_unit_test(out_of_memory_leaves_a_usable_tape),
        cmocka_unit_test(the_plan_is_near_its_lower_bound),
        cmocka_unit_test(the_host_draws_as_the_device_does),
        cmocka_unit_test(an_evaluation_leaves_the_results_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
