/* test_narrow.c: frozen weights in 16, 8 and 4 bits: what a code keeps, that coding twice changes nothing, that every way
 * to multiply gives the same, and what it saves. */
#include "check.h"
#include "rig.h"
#include "base/rng.h"
#include "tensor/narrow.h"
#include "tensor/packed.h"
#include "tensor/tape.h"

#include <nebula/log.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define SIZES "vocab=53 hidden=80 layers=2 heads=4 ffn=136 max_positions=16 init_deviation=0.1 "

static const int lengths[] = {9, 4, 12, 1, 0};
static const neb_narrow_kind kinds[] = {NEB_NARROW_BF16, NEB_NARROW_INT8, NEB_NARROW_NF4};

enum { ROWS = 5, MOST = 200 };

struct coded {
    float x[ROWS * MOST], y[ROWS * MOST];
    uint8_t code[ROWS * MOST * 2], scale[ROWS * 64];
};

static void make(struct coded *c, neb_narrow_kind kind, int64_t cols, uint64_t seed)
{
    struct neb_rng r = {seed};
    for (int64_t i = 0; i < ROWS * cols; i++)
        c->x[i] = (float)(neb__rng_normal(&r) * exp(neb__rng_normal(&r)));
    memset(c->x + cols, 0, (size_t)cols * sizeof(float)); /* a row of zeros */
    assert_ok(neb__narrow_encode(kind, ROWS, cols, c->x, c->code, c->scale));
    neb__narrow_decode(kind, ROWS, cols, c->code, c->scale, c->y);
}

/* INT8: half a step of the row's scale. NF4: half of the widest gap between levels. */
static void errors_are_bounded(void **state)
{
    (void)state;
    static const double share[] = {1.0 / 256, 0.5 / 127 + 1e-5, 0.153}, of[] = {1, 0, 0};
    struct coded *c = calloc(1, sizeof *c);
    for (int k = 0; k < 3; k++)
        for (int64_t cols = 1; cols <= MOST; cols += 33) {
            make(c, kinds[k], cols, (uint64_t)cols);
            for (int64_t i = 0; i < ROWS * cols; i++) {
                const int64_t row = i / cols, first = kinds[k] == NEB_NARROW_NF4 ? i % cols / 64 * 64 : 0;
                const int64_t end = kinds[k] == NEB_NARROW_NF4 && first + 64 < cols ? first + 64 : cols;
                double most = of[k] * fabs((double)c->x[i]);
                for (int64_t j = first; of[k] == 0 && j < end; j++)
                    most = fmax(most, fabs((double)c->x[row * cols + j]));
                if (fabs((double)c->x[i] - (double)c->y[i]) > share[k] * most)
                    fail_msg("kind %d: %g became %g", (int)kinds[k], (double)c->x[i], (double)c->y[i]);
            }
        }
    free(c);
}

static void coding_twice_changes_nothing(void **state)
{
    (void)state;
    struct coded *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    for (int k = 0; k < 3; k++)
        for (uint64_t seed = 1; seed < 60; seed++) {
            const int64_t cols = 1 + (int64_t)(seed * 37 % MOST);
            memset(a, 0, sizeof *a);
            memset(b, 0, sizeof *b);
            make(a, kinds[k], cols, seed);
            assert_ok(neb__narrow_encode(kinds[k], ROWS, cols, a->y, b->code, b->scale));
            assert_memory_equal(a->code, b->code, sizeof a->code);
            assert_memory_equal(a->scale, b->scale, sizeof a->scale);
        }
    free(a);
    free(b);
}

/* No device rounds a code times its scale. */
static void int8_products_are_exact(void **state)
{
    (void)state;
    struct coded *c = calloc(1, sizeof *c);
    for (uint64_t seed = 1; seed < 20; seed++) {
        make(c, NEB_NARROW_INT8, MOST, seed);
        for (int64_t i = 0; i < ROWS * MOST; i++) {
            float scale;
            memcpy(&scale, c->scale + i / MOST * 4, sizeof scale);
            assert_true((double)(int8_t)c->code[i] * (double)scale == (double)c->y[i]);
        }
    }
    free(c);
}

static void values_that_cannot_be_coded(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct coded *c = calloc(1, sizeof *c);
    check_log_quiet();
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 3; i++) {
            c->x[70] = bad[i];
            assert_status(neb__narrow_encode(kinds[k], 1, 90, c->x, c->code, c->scale), NEB_ERR_RANGE);
        }
    c->x[70] = 1e-42f; /* too small for a scale */
    for (int k = 1; k < 3; k++) {
        assert_ok(neb__narrow_encode(kinds[k], 1, 90, c->x, c->code, c->scale));
        neb__narrow_decode(kinds[k], 1, 90, c->code, c->scale, c->y);
        for (int i = 0; i < 90; i++) assert_true(c->y[i] == 0);
    }
    check_log_restore();
    free(c);
}

static void count_line(void *lines, neb_log_level level, const char *line)
{
    (void)level, (void)line;
    atomic_fetch_add((atomic_int *)lines, 1);
}

/* Large weights are coded by several threads. */
static void threads_code_the_same(void **state)
{
    (void)state;
    enum { LONG = 70001, WIDE = 80 };
    static float x[LONG * WIDE];
    struct neb_rng r = {3};
    uint8_t *code = calloc(LONG, 64), *scale = calloc(LONG, 4), own[64], one[4];
    for (int64_t i = 0; i < (int64_t)LONG * WIDE; i++) x[i] = (float)neb__rng_uniform(&r) - 0.5f;
    assert_ok(neb__narrow_encode(NEB_NARROW_NF4, LONG, WIDE, x, code, scale));
    for (int64_t row = 0; row < LONG; row += 997) {
        assert_ok(neb__narrow_encode(NEB_NARROW_NF4, 1, WIDE, x + row * WIDE, own, one));
        assert_memory_equal(own, code + row * 64, sizeof own);
        assert_memory_equal(one, scale + row * 4, sizeof one);
    }
    for (int64_t row = 64; row < LONG; row += 64)
        x[row * WIDE] = NAN; /* each task meets one: it is told once */
    atomic_int lines = 0;
    neb_log_set_sink(count_line, &lines);
    assert_status(neb__narrow_encode(NEB_NARROW_NF4, LONG, WIDE, x, code, scale), NEB_ERR_RANGE);
    neb_log_set_sink(NULL, NULL);
    assert_int_equal(lines, 1);
    free(code);
    free(scale);
}

/* ---- in a model ------------------------------------------------------------------------------------------------- */

struct outcome {
    double loss;
    float *gradients; /* of all trained parameters */
    int64_t n;
};

static struct outcome run_once(struct rig *r)
{
    struct rig_batch b;
    struct outcome o = {.n = neb_params_values(r->params, true)};
    o.gradients = calloc((size_t)o.n, sizeof *o.gradients);
    rig_batch_make(&b, r->model, lengths, NULL, 1);
    assert_ok(neb__model_input_load(r->feed, &b.data));
    assert_ok(rig_run(r, true, true, 1, &o.loss));
    float *at = o.gradients;
    for (int i = 0; i < neb_params_count(r->params); i++) {
        neb_param *p = neb_params_at(r->params, i);
        if (!neb_param_trainable(p)) continue;
        assert_ok(neb_param_read_grad(p, at));
        at += neb_param_values(p);
    }
    rig_batch_free(&b);
    return o;
}

/* LoRA's second matrices are not zero, so that all of its products count. */
static void copy_values(struct rig *from, struct rig *to)
{
    for (int i = 0; i < neb_params_count(from->params); i++) {
        neb_param *p = neb_params_at(from->params, i), *q = neb_params_find(to->params, neb_param_name(p));
        float *x = malloc((size_t)neb_param_values(p) * sizeof *x);
        assert_ok(neb_param_read(p, x));
        for (int64_t j = 0; strstr(neb_param_name(p), ".lora.b") && j < neb_param_values(p); j++)
            x[j] = 0.01f * (float)(j % 7 - 3);
        assert_ok(neb_param_write(p, x));
        assert_ok(neb_param_write(q, x));
        free(x);
    }
}

static void compare(const struct outcome *a, const struct outcome *b, const char *what)
{
    double top = 0, bottom = 0;
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++) {
        top += pow((double)a->gradients[i] - (double)b->gradients[i], 2);
        bottom += pow((double)b->gradients[i], 2);
    }
    if (fabs(a->loss - b->loss) > 1e-5 * fabs(b->loss) || !(bottom > 0) || top > 1e-9 * bottom)
        fail_msg("%s: loss %.9g instead of %.9g, gradients %g apart", what, a->loss, b->loss,
                 sqrt(top / bottom));
}

/* A model with coded weights computes what one with the same values in fp32 does: in one slot, and widened first. */
static void every_way_computes_the_same(void **state)
{
    (void)state;
    static const char *const words[] = {"bf16", "int8", "nf4"}, *const families[] = {"llama", "bert", "gpt2"};
    for (int k = 0; k < 3; k++) {
        struct rig narrow, wide;
        char peft[80], options[200];
        snprintf(options, sizeof options, SIZES "%s", k ? "dropout=0" : "");
        snprintf(peft, sizeof peft, "method=lora lora_on=*.attention.* frozen=%s", words[k]);
        assert_ok(rig_open(&narrow, families[k], options, peft, 2));
        assert_ok(rig_open(&wide, families[k], options, "method=lora lora_on=*.attention.*", 2));
        copy_values(&narrow, &wide);
        struct outcome want = run_once(&wide), slot = run_once(&narrow);
        neb__tape_force_reference(narrow.tape, true);
        struct outcome widened = run_once(&narrow);
        compare(&slot, &want, words[k]);
        compare(&widened, &want, "widened first");
        free(want.gradients);
        free(slot.gradients);
        free(widened.gradients);
        rig_close(&narrow);
        rig_close(&wide);
    }
}

/* A device that computes in BF16 reads such weights as they are, and the frozen embeddings and output layer lie there in
 * BF16 alone. Not a bit changes. */
static void bf16_is_read_as_it_is(void **state)
{
    (void)state;
    struct rig half, wide;
    struct neb_device_info info[2];
    rig_compute = NEB_BF16;
    assert_ok(rig_open(&half, "llama", SIZES, "method=lora lora_on=*.attention.* frozen=bf16", 2));
    assert_ok(rig_open(&wide, "llama", SIZES, "method=lora lora_on=*.attention.*", 2));
    rig_compute = NEB_F32;
    neb_device_get_info(half.device, &info[0]);
    neb_device_get_info(wide.device, &info[1]);
    copy_values(&half, &wide);
    struct outcome a = run_once(&half), b = run_once(&wide);
    assert_true(a.loss == b.loss);
    assert_memory_equal(a.gradients, b.gradients, (size_t)b.n * sizeof *b.gradients);
    int64_t frozen = 0;
    for (int i = 0; i < neb_params_count(half.params); i++) {
        const neb_param *p = neb_params_at(half.params, i);
        if (neb_param_trainable(p) || p->ndim != 2) continue;
        assert_int_equal(p->narrow, NEB_NARROW_BF16);
        assert_int_equal(neb__param_left_out(p), p->hidden); /* a checkpoint has the others */
        frozen += p->values;
    }
    assert_true(info[1].memory_used - info[0].memory_used >
                4 * frozen - 65536); /* their masters are not there */
    free(a.gradients);
    free(b.gradients);
    rig_close(&half);
    rig_close(&wide);
}

static neb_param *add_matrix(neb_params *ps, const char *name)
{
    neb_param *p = neb_params_add(
        ps, &(struct neb_param_spec){
                .name = name, .ndim = 2, .shape = {70, 90}, .init = NEB_INIT_NORMAL, .scale = 1});
    neb_params_trainable(ps, name, false);
    assert_ok(neb__param_make_narrow(p, NEB_NARROW_INT8));
    return p;
}

/* Weights that a folder does not have get the values that they would have had without it. */
static void what_is_not_written_is_drawn(void **state)
{
    (void)state;
    enum { N = 70 * 90 };
    static float want[N], here[N], own[N];
    struct neb_device_config config = {.threads = 2};
    neb_device *d;
    assert_ok(neb_device_open("cpu", &config, &d));
    for (int waits = 1; waits >= 0; waits--) { /* the first memory has nothing of the other */
        neb_params *ps;
        assert_ok(neb_params_create(&ps));
        neb_param *a = add_matrix(ps, "a"), *b = add_matrix(ps, "b");
        neb_params_add(ps,
                       &(struct neb_param_spec){.name = "c", .ndim = 1, .shape = {4}, .init = NEB_INIT_ONE});
        if (waits) neb__params_await(ps);
        assert_ok(neb_params_ready(ps, d, 5));
        for (int i = 0; i < N; i++) own[i] = (float)(i % 128);
        if (waits) assert_ok(neb_param_write(a, own));
        if (waits) assert_ok(neb__params_fill_rest(ps));
        assert_ok(neb_param_read(b, waits ? here : want));
        assert_ok(neb_param_read(a, own));
        if (waits) assert_true(own[127] == 127);
        neb_params_destroy(ps);
    }
    assert_memory_equal(here, want, sizeof want);
    neb_device_close(d);
}

/* A file's values go to the device as they are, from any address. Without coding. */
static void a_file_is_put_as_it_is(void **state)
{
    (void)state;
    enum { N = 70 * 90 };
    static float here[N];
    static uint8_t file[2 * N + 1];
    struct neb_device_config config = {.threads = 2, .compute = NEB_BF16};
    neb_device *d;
    neb_params *ps;
    assert_ok(neb_device_open("cpu", &config, &d));
    assert_ok(neb_params_create(&ps));
    neb_param *a = neb_params_add(ps, &(struct neb_param_spec){.name = "a", .ndim = 2, .shape = {70, 90}});
    neb_params_add(ps, &(struct neb_param_spec){.name = "c", .ndim = 1, .shape = {4}});
    neb__params_only_use(ps);
    assert_ok(neb_params_ready(ps, d, 5));
    assert_true(neb__narrow_takes(a));
    for (int i = 0; i < N; i++) {
        const uint16_t h = (uint16_t)(0x3f00 + i % 256);
        memcpy(file + 1 + 2 * i, &h, sizeof h);
    }
    assert_ok(neb__narrow_put(a, file + 1));
    assert_ok(neb_param_read(a, here));
    for (int i = 0; i < N; i++) {
        const uint32_t want = (uint32_t)(0x3f00 + i % 256) << 16;
        assert_memory_equal(&here[i], &want, sizeof want);
    }
    file[2 * N] = 0xff, file[2 * N - 1] = 0x80; /* the last one is an infinity */
    check_log_quiet();
    assert_status(neb__narrow_put(a, file + 1), NEB_ERR_RANGE);
    check_log_restore();
    neb_params_destroy(ps);
    neb_device_close(d);
}

static const struct neb_device_ops *cpu_ops;
static int packs;

static neb_status count_packs(void *dev, const struct neb_pack_linear *a)
{
    packs++;
    return cpu_ops->pack_linear(dev, a);
}

struct product {
    neb_param *w;
    neb_buffer *x;
};

static void multiply(neb_tape *t, void *arg)
{
    const struct product *p = arg;
    neb_op_linear(t, neb_input(t, p->x, NEB_BF16, 2, (int64_t[]){1, 90}), p->w, NULL, NEB_ACT_NONE);
}

/* Text is generated with packed weights on a device that computes in BF16, too, but those that are coded to save memory stay so. */
static void weights_in_bf16_are_packed(void **state)
{
    (void)state;
    for (int coded = 0; coded < 2; coded++) {
        neb_device *d;
        neb_params *ps;
        neb_tape *t;
        struct product p;
        assert_ok(neb_device_open("cpu", &(struct neb_device_config){.compute = NEB_BF16}, &d));
        struct neb_device_ops ops = *d->ops;
        cpu_ops = d->ops, ops.pack_linear = count_packs, d->ops = &ops;
        assert_ok(neb_params_create(&ps));
        p.w = neb_params_add(ps, &(struct neb_param_spec){.name = "a", .ndim = 2, .shape = {70, 90}});
        neb_params_add(ps, &(struct neb_param_spec){.name = "c", .ndim = 1, .shape = {4}});
        neb__params_only_use(ps);
        if (coded) assert_ok(neb__param_make_narrow(p.w, NEB_NARROW_BF16));
        assert_ok(neb_params_ready(ps, d, 5));
        assert_ok(neb_param_write(p.w, (float[70 * 90]){1}));
        assert_ok(neb_buffer_create(d, 180, &p.x));
        assert_ok(neb_tape_create(d, ps, &t));
        packs = 0;
        neb__tape_keep_packed(t, true);
        assert_ok(neb_tape_run(t, &(struct neb_run){.fn = multiply, .arg = &p, .key = 1}));
        assert_int_equal(packs, !coded);
        neb_tape_destroy(t);
        neb_buffer_destroy(p.x);
        neb_params_destroy(ps);
        d->ops = cpu_ops;
        neb_device_close(d);
    }
}

static int64_t held(const char *frozen)
{
    struct rig r;
    struct neb_device_info info;
    char peft[80];
    snprintf(peft, sizeof peft, "method=lora lora_rank=2 frozen=%s", frozen);
    assert_ok(
        rig_open(&r, "llama", "vocab=16 hidden=256 layers=4 heads=4 ffn=512 max_positions=16", peft, 2));
    neb_device_get_info(r.device, &info);
    rig_close(&r);
    return info.memory_used;
}

static void memory_is_saved(void **state)
{
    (void)state;
    const double all = (double)held("f32"), half = (double)held("bf16"), eighth = (double)held("int8"),
                 fourth = (double)held("nf4");
    print_message("memory by the allocator: bf16 %.3f, int8 %.3f, nf4 %.3f of fp32\n", half / all,
                  eighth / all, fourth / all);
    if (half > 0.55 * all || eighth > 0.3 * all || fourth > 0.18 * all)
        fail_msg("bf16 %.3f, int8 %.3f, nf4 %.3f of fp32", half / all, eighth / all, fourth / all);
}

static void what_is_refused(void **state)
{
    (void)state;
    struct rig r;
    check_log_quiet();
    assert_status(rig_open(&r, "llama", SIZES, "method=full frozen=int8", 2), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "frozen"));
    assert_status(rig_open_stage(&r, "llama", SIZES, "method=lora frozen=nf4", 0, 2), NEB_ERR_UNSUPPORTED);
    assert_non_null(strstr(neb_last_error(), "parallel.pipeline"));
    check_log_restore();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_bounded),
        cmocka_unit_test(coding_twice_changes_nothing),
        cmocka_unit_test(int8_products_are_exact),
        cmocka_unit_test(values_that_cannot_be_coded),
        cmocka_unit_test(every_way_computes_the_same),
        cmocka_unit_test(bf16_is_read_as_it_is),
        cmocka_unit_test(what_is_not_written_is_drawn),
        cmocka_unit_test(a_file_is_put_as_it_is),
        cmocka_unit_test(weights_in_bf16_are_packed),
        cmocka_unit_test(threads_code_the_same),
        cmocka_unit_test(memory_is_saved),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
