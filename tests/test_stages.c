/* test_stages.c: a model that is cut into stages computes what the whole model computes, bit for bit: the loss, the
 * gradient of every parameter, with dropout, with recomputed layers, with micro-batches in flight. */
#include "check.h"
#include "rig.h"
#include "base/mem.h"
#include "optim/pipeline.h"
#include "tensor/slot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZES                                                                                     \
    "vocab=53 hidden=32 layers=4 heads=4 ffn=64 max_positions=16 init_deviation=0.1 dropout=0.2 " \
    "attention_dropout=0.1 "

enum { STAGES = 3, MICROS = 5, MESSAGE = 2 * 64 * 32 * sizeof(float) };

static const int lengths[MICROS][4] = {{9, 4, 0}, {12, 1, 3, 0}, {5, 0}, {7, 7, 0}, {2, 3, 11, 0}};
static const int targets[MICROS][4] = {{3, 8, 0}, {5, 2, 4, 0}, {9, 0}, {1, 6, 0}, {8, 2, 3, 0}};

/* One stage, with an input for each slot; between it and the next one a message for each micro-batch. */
struct part {
    struct rig rig;
    struct neb_model_input *feed[STAGES];
    struct neb_model_input *now;
    neb_buffer *out[MICROS], *grad[MICROS];
    int turn, in_flight, most;
};

struct line {
    struct part part[STAGES];
    struct rig_batch batch[MICROS];
    int stages;
    double weight;
};

static void loss_fn(neb_tape *t, void *arg)
{
    struct part *p = arg;
    const struct neb_input *in = neb__model_input_tensors(p->now, t);
    neb__model_loss(p->rig.model, t, neb__model_run(p->rig.model, t, in), in, NULL);
}

static void open_line(struct line *l, int stages, const char *family, const char *options, const char *peft)
{
    char all[400];
    snprintf(all, sizeof all, SIZES "%s", options);
    *l = (struct line){.stages = stages};
    for (int s = 0; s < stages; s++) {
        struct part *p = &l->part[s];
        assert_ok(rig_open_stage(&p->rig, family, all, peft, s, stages));
        assert_ok(neb__tape_set_slots(p->rig.tape, stages - s));
        assert_ok(neb__model_set_slots(p->rig.model, stages - s));
        neb_tape_poison(p->rig.tape, true);
        struct neb_model_input_limits limits = {
            .rows = {64, 64}, .seqs = 8, .targets = 64, .prefix = (int32_t)p->rig.model->peft.prefix_length};
        for (int i = 0; i < stages - s; i++)
            assert_ok(neb__model_input_create(p->rig.device, &limits, &p->feed[i]));
        for (int i = 0; i < MICROS; i++) {
            assert_ok(neb_buffer_create(p->rig.device, MESSAGE, &p->out[i]));
            assert_ok(neb_buffer_create(p->rig.device, MESSAGE, &p->grad[i]));
        }
    }
    const struct neb_model *m = l->part[0].rig.model;
    for (int i = 0; i < MICROS; i++) {
        rig_batch_make(&l->batch[i], m, lengths[i], m->arch.kind == NEB_ENCODER_DECODER ? targets[i] : NULL,
                       1 + 10 * (uint32_t)i);
        l->weight += l->batch[i].data.targets;
    }
}

static void close_line(struct line *l)
{
    for (int s = 0; s < l->stages; s++) {
        struct part *p = &l->part[s];
        for (int i = 0; i < STAGES; i++) neb__model_input_destroy(p->feed[i]);
        for (int i = 0; i < MICROS; i++) {
            neb_buffer_destroy(p->out[i]);
            neb_buffer_destroy(p->grad[i]);
        }
        rig_close(&p->rig);
    }
    for (int i = 0; i < MICROS; i++) rig_batch_free(&l->batch[i]);
}

/* The messages cross from memory of one device to that of another; on the CPU that is the same memory. */
static void forward(struct line *l, int s, int micro, bool grad)
{
    struct part *p = &l->part[s];
    struct neb_stage *g = &p->rig.model->stage;
    int slot = micro % (l->stages - s);
    p->now = p->feed[slot];
    assert_ok(neb__model_input_load(p->now, &l->batch[micro].data));
    neb_buffer in = {0}, in_grad = {0};
    if (s) {
        in = *l->part[s - 1].out[micro], in_grad = *l->part[s - 1].grad[micro];
        in.dev = in_grad.dev = p->rig.device;
        g->in = &in, g->in_grad = &in_grad;
    }
    if (s < l->stages - 1) g->out = p->out[micro], g->out_grad = p->grad[micro];
    struct neb_run run = {.fn = loss_fn,
                          .arg = p,
                          .key = neb__model_input_key(p->now),
                          .grad = grad,
                          .train = grad,
                          .accumulate = micro > 0,
                          .last = micro == MICROS - 1};
    assert_ok(neb__tape_forward(p->rig.tape, slot, &run));
    p->in_flight += grad;
    if (p->in_flight > p->most) p->most = p->in_flight;
}

static void backward(struct line *l, int s, int micro)
{
    assert_ok(neb__tape_backward_slot(l->part[s].rig.tape, micro % (l->stages - s)));
    l->part[s].in_flight--;
}

/* Whether the neighbour has done what this turn needs. */
static bool ready(const struct line *l, int s, struct neb_stage_turn turn)
{
    int from = turn.backward ? s + 1 : s - 1;
    if (from < 0 || from == l->stages) return true;
    for (int i = 0; i < l->part[from].turn; i++) {
        struct neb_stage_turn done = neb__pipeline_turn(from, l->stages, MICROS, i);
        if (done.backward == turn.backward && done.micro == turn.micro) return true;
    }
    return false;
}

/* One step, each stage as far as its neighbours let it. Returns the loss. */
static float step(struct line *l)
{
    for (int s = 0; s < l->stages; s++) {
        struct neb_ctl c = {.step = 1, .seed = 9, .loss_scale = (float)(1 / l->weight)};
        assert_ok(neb_tape_begin_step(l->part[s].rig.tape, &c));
        l->part[s].turn = l->part[s].in_flight = l->part[s].most = 0;
    }
    for (int left = 2 * MICROS * l->stages, idle = 0; left; idle++) {
        assert_true(idle < 100); /* the order must not wait in a circle */
        for (int s = 0; s < l->stages; s++) {
            struct part *p = &l->part[s];
            if (p->turn == 2 * MICROS) continue;
            struct neb_stage_turn turn = neb__pipeline_turn(s, l->stages, MICROS, p->turn);
            if (!ready(l, s, turn)) continue;
            if (turn.backward)
                backward(l, s, turn.micro);
            else
                forward(l, s, turn.micro, true);
            p->turn++;
            left--;
            idle = 0;
        }
    }
    struct neb_ctl c;
    for (int s = 0; s < l->stages; s++) {
        assert_int_equal(l->part[s].most, l->stages - s < MICROS ? l->stages - s : MICROS);
        assert_ok(neb_tape_end_step(l->part[s].rig.tape, true, &c));
        assert_false(c.nonfinite);
    }
    return c.loss[0];
}

static float whole(const char *family, const char *options, const char *peft, struct line *l)
{
    open_line(l, 1, family, options, peft);
    return step(l);
}

/* The gradient of a parameter, added up over the stages that have it. */
static void gradient(const struct line *l, const char *name, float *sum, int64_t n, float *part, int *holders)
{
    memset(sum, 0, (size_t)n * sizeof *sum);
    *holders = 0;
    for (int s = 0; s < l->stages; s++) {
        neb_param *p = neb_params_find(l->part[s].rig.params, name);
        assert_non_null(p);
        assert_int_equal(neb_param_values(p), n);
        if (p->elsewhere) continue;
        assert_true(p->counted == !*holders); /* one stage counts it */
        assert_ok(neb_param_read_grad(p, part));
        for (int64_t i = 0; i < n; i++) sum[i] = *holders ? sum[i] + part[i] : part[i];
        ++*holders;
    }
}

static void same_gradients(const struct line *a, const struct line *b, const char *what)
{
    neb_params *ps = a->part[0].rig.params;
    static float x[8192], y[8192], part[8192];

    assert_int_equal(neb_params_count(ps), neb_params_count(b->part[1].rig.params));
    for (int i = 0; i < neb_params_count(ps); i++) {
        neb_param *p = neb_params_at(ps, i);
        int64_t n = neb_param_values(p);
        int one, holders;
        if (!neb_param_trainable(p)) continue;
        assert_true(n <= 8192);
        gradient(a, neb_param_name(p), x, n, part, &one);
        gradient(b, neb_param_name(p), y, n, part, &holders);

        if (holders > 1 && strcmp(neb_param_name(p), "embed.token.weight"))
            fail_msg("%s: %d stages have %s", what, holders, neb_param_name(p));
        for (int64_t k = 0; k < n; k++) {
            bool same = holders > 1 ? fabsf(x[k] - y[k]) <= 1e-5f * (fabsf(x[k]) + 1e-3f)
                                    : !memcmp(&x[k], &y[k], sizeof *x);
            if (!same)
                fail_msg("%s: %s[%d] is %.9g in stages, %.9g in one", what, neb_param_name(p), (int)k,
                         (double)y[k], (double)x[k]);
        }
    }
}

static void check(const char *family, const char *options, const char *peft)
{
    struct line one, cut;
    char what[500];
    float loss = whole(family, options, peft, &one);
    for (int stages = 2; stages <= STAGES; stages++) {
        snprintf(what, sizeof what, "%s %s, %d stages", family, options, stages);
        open_line(&cut, stages, family, options, peft);
        for (int twice = 0; twice < 2;
             twice++) { /* plans are made in the first step and used in the second */
            float other = step(&cut);
            if (memcmp(&other, &loss, sizeof loss))
                fail_msg("%s: loss %.9g, %.9g in one", what, (double)other, (double)loss);
            same_gradients(&one, &cut, what);
        }
        close_line(&cut);
    }
    close_line(&one);
}

static void decoders(void **state)
{
    (void)state;
    check("gpt2", "tied=no", NULL);
    check("gpt2", "tied=no recompute=yes", NULL);
    check("gpt2", "", NULL);
    check("llama", "kv_heads=2 tied=no", NULL);
}

static void encoders(void **state)
{
    (void)state;
    check("bert", "tied=no", NULL);
    check("electra", "embedding=16", NULL);
    check("bert", "head=class classes=4 recompute=yes", NULL);
}

static void encoders_with_decoders(void **state)
{
    (void)state;
    check("transformer", "tied=no", NULL);
    check("transformer", "norm_place=pre recompute=yes layers=2 decoder_layers=5", NULL);
    check("bart", "layers=6 decoder_layers=1 tied=no", NULL);
}

static void parts_that_are_trained(void **state)
{
    (void)state;
    check("gpt2", "", "method=lora lora_dropout=0.2");
    check("gpt2", "", "method=prefix");
    check("bert", "", "method=adapter,bias");
}

/* Forward alone, as for held-out text: slots stay free. */
static void a_forward_alone(void **state)
{
    (void)state;
    struct line one, cut;
    double loss[2];
    open_line(&one, 1, "gpt2", "", NULL);
    open_line(&cut, 2, "gpt2", "", NULL);
    for (int i = 0; i < 2; i++) {
        struct line *l = i ? &cut : &one;
        struct neb_ctl c = {.step = 1, .seed = 1, .loss_scale = 1};
        for (int s = 0; s < l->stages; s++) {
            assert_ok(neb_tape_begin_step(l->part[s].rig.tape, &c));
            forward(l, s, 0, false);
            assert_int_equal(neb__tape_in_flight(l->part[s].rig.tape), 0);
        }
        assert_ok(neb_tape_end_step(l->part[l->stages - 1].rig.tape, true, &c));
        loss[i] = (double)c.loss[0];
    }
    assert_true(loss[0] > 0 && loss[0] == loss[1]);
    close_line(&one);
    close_line(&cut);
}

static void wrong_uses(void **state)
{
    (void)state;
    struct line l;
    struct rig r;
    check_log_quiet();
    assert_status(rig_open_stage(&r, "gpt2", SIZES, NULL, 0, 5), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "4 layers cannot be cut into 5 stages"));
    open_line(&l, 2, "gpt2", "", NULL);
    neb_tape *t = l.part[0].rig.tape;
    assert_status(neb__tape_backward_slot(t, 0), NEB_ERR_STATE);
    forward(&l, 0, 0, true);
    struct neb_run run = {.fn = loss_fn, .arg = &l.part[0], .grad = true};
    assert_status(neb__tape_forward(t, 0, &run), NEB_ERR_STATE); /* its backward is to come */
    assert_status(neb__tape_forward(t, 2, &run), NEB_ERR_STATE);
    assert_status(neb__tape_set_slots(t, 3), NEB_ERR_STATE);
    neb__tape_abandon(t);
    forward(&l, 0, 0, true);
    backward(&l, 0, 0);
    check_log_restore();
    close_line(&l);
}

/* The head of GPT-2 124M is worth five and a half of its layers. */
static void stages_have_equal_work(void **state)
{
    (void)state;
    struct neb_stage_range r[6];
    struct neb_arch a = {.kind = NEB_DECODER, .head = NEB_HEAD_TOKENS, .layers = 12, .hidden = 768};
    a.heads = a.kv_heads = 12, a.head_dim = 64, a.ffn = 3072, a.embedding = 768, a.vocab = 50257;
    assert_ok(neb__stage_cut(&a, 2, r));
    assert_int_equal(r[0].first, 0);
    assert_int_equal(r[0].end, 9);
    assert_int_equal(r[1].end, 12);
    a.vocab = 100;
    assert_ok(neb__stage_cut(&a, 6, r));
    for (int s = 0; s < 6; s++) assert_int_equal(r[s].end - r[s].first, 2);
    assert_ok(neb__stage_cut(&a, 5, r));
    assert_int_equal(r[4].end, 12);
    a = (struct neb_arch){.kind = NEB_ENCODER_DECODER, .layers = 6, .decoder_layers = 6, .hidden = 64};
    a.heads = a.kv_heads = 4, a.head_dim = 16, a.ffn = 256, a.embedding = 64;
    assert_ok(neb__stage_cut(&a, 2, r)); /* decoder layers have one attention more */
    assert_true(r[0].end > 6 && r[0].end < 9);
    bool sides[2];
    neb__stage_crossing(&a, r[0].end, sides);
    assert_true(sides[0] && sides[1]);
    assert_int_equal(neb__stage_message(&a, r[0].end, (int64_t[]){10, 20}, NEB_F32), 30 * 64 * 4);
    assert_int_equal(neb__stage_message(&a, 6, (int64_t[]){10, 20}, NEB_BF16), 10 * 64 * 2);
}

/* Every turn once, in an order in which no micro-batch goes backwards before it went forwards. */
static void turns(void **state)
{
    (void)state;
    for (int stages = 1; stages <= 5; stages++)
        for (int micros = 1; micros <= 9; micros++)
            for (int s = 0; s < stages; s++) {
                int forwards = 0, backwards = 0;
                for (int i = 0; i < 2 * micros; i++) {
                    struct neb_stage_turn t = neb__pipeline_turn(s, stages, micros, i);
                    assert_int_equal(t.micro, t.backward ? backwards++ : forwards++);
                    assert_true(backwards <= forwards && forwards - backwards <= stages - s);
                }
                assert_int_equal(forwards, micros);
                assert_int_equal(backwards, micros);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoders),
        cmocka_unit_test(encoders),
        cmocka_unit_test(encoders_with_decoders),
        cmocka_unit_test(parts_that_are_trained),
        cmocka_unit_test(a_forward_alone),
        cmocka_unit_test(wrong_uses),
        cmocka_unit_test(stages_have_equal_work),
        cmocka_unit_test(turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
