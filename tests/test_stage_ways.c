/* test_stage_ways.c: the stages of a pipeline at several ranks: messages from device to device, sent at once or as late as they may be,
 * leave the bits of messages by the host. A stage that fails or hangs is noticed by the others, which do not wait for its messages. */
#include "check.h"
#include "fake_gpu.h"
#include "forked.h"
#include "optim/optimizer.h"
#include "optim/pipeline.h"
#include "tensor/slot.h"

#include <nebula/log.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    STAGES = 3,
    MICROS = 5,
    ROWS = 6,
    WIDE = 32,
    WORDS = 40,
    STEPS = 4,
    VALUES = WORDS * WIDE + 2 * WIDE * WIDE
};

enum way { BY_HOST, AT_ONCE, LATE };

struct trial {
    enum way way;
    int hurt;   /* the stage that is, or -1 */
    bool hangs; /* … or fails */
    _Atomic int over;
    char why[STAGES][200];
    float result[STAGES][VALUES];
};

struct net {
    neb_device *dev;
    struct neb_layout layout;
    neb_params *ps;
    neb_tape *tape;
    neb_optimizer *opt;
    struct neb_pipeline *pipeline;
    neb_param *table, *w, *b;
    neb_buffer *ids[STAGES], *target[STAGES]; /* of each slot */
    struct neb_stage_ports ports;
    int slot, stage;
    struct trial *trial;
};

struct micro {
    struct net *net;
    int sample;
    bool fails;
};

static void enter(void *arg, int slot, const struct neb_stage_ports *ports)
{
    struct net *n = arg;
    n->slot = slot;
    n->ports = *ports;
}

static void model(neb_tape *t, void *arg)
{
    const struct net *n = ((const struct micro *)arg)->net;
    const struct neb_stage_ports *at = &n->ports;
    neb_param *table = n->table;
    neb_tensor *x, *ids = neb_input(t, n->ids[n->slot], NEB_I32, 1, (int64_t[]){ROWS});
    if (!n->stage)
        x = neb_op_embed(t, 1, &table, &ids, 1);
    else
        x = neb__op_stage_in(t, at->in, at->in_grad, 0, ROWS, WIDE);
    x = neb_op_add(t, x, neb_op_linear(t, x, n->w, n->b, NEB_ACT_GELU));
    if (n->stage < STAGES - 1) {
        neb__op_stage_out(t, x, at->out, at->out_grad, 0);
        return;
    }
    neb_tensor *target = neb_input(t, n->target[n->slot], NEB_I32, 1, (int64_t[]){ROWS});
    struct neb_target_spec goal = {.target = target};
    struct neb_loss_spec loss = {0};
    neb_loss_linear_xent(t, x, n->table, NULL, &goal, &loss);
}

static neb_status load(void *arg)
{
    const struct micro *m = arg;
    const struct net *n = m->net;
    int32_t id[ROWS], target[ROWS];
    if (m->fails && n->trial->hangs) {
        while (n->trial->over < STAGES - 1) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        _exit(0);
    }
    if (m->fails) return neb__fail(NEB_ERR_IO, "this micro-batch cannot be read");
    for (int i = 0; i < ROWS; i++) {
        id[i] = (m->sample * 37 + i * 11) % WORDS;
        target[i] = (id[i] * 7 + 3) % WORDS;
    }
    NEB_TRY(neb_buffer_upload(n->ids[n->slot], id, sizeof id));
    return neb_buffer_upload(n->target[n->slot], target, sizeof target);
}

static neb_param *add(neb_params *ps, const char *name, int ndim, int64_t rows, int64_t cols)
{
    return neb_params_add(
        ps, &(struct neb_param_spec){
                .name = name, .ndim = ndim, .shape = {rows, cols}, .init = NEB_INIT_NORMAL, .scale = 0.05f});
}

static neb_status open_device(struct net *n, struct neb_group *g)
{
    static struct neb_device_ops ops;
    NEB_TRY(neb_device_open("cpu", &(struct neb_device_config){.threads = 1}, &n->dev));
    fake_library.missing = n->trial->way == BY_HOST;
    fake_library.late = n->trial->way == LATE;
    fake_library.records = true;
    fake_library.device = neb__group_rank(g);
    fake_gpu_wrap(n->dev, &ops);
    NEB_TRY(neb__layout_open(g, 1, STAGES, 1, &n->layout));
    return neb__layout_attach(&n->layout, n->dev->ops, n->dev->ctx);
}

static neb_status open_net(struct net *n, struct neb_group *g, struct trial *x)
{
    const size_t bytes = ROWS * WIDE * sizeof(float), all[STAGES] = {bytes, bytes, 0};
    struct neb_optimizer_config c = neb_optimizer_defaults();
    *n = (struct net){.stage = neb__group_rank(g), .trial = x};
    NEB_TRY(open_device(n, g));
    NEB_TRY(neb_params_create(&n->ps));
    if (!n->stage || n->stage == STAGES - 1) n->table = add(n->ps, "table", 2, WORDS, WIDE);
    n->w = add(n->ps, "w", 2, WIDE, WIDE);
    n->b = add(n->ps, "b", 1, WIDE, 1);
    NEB_TRY(neb_params_ready(n->ps, n->dev, 1 + (uint64_t)n->stage));
    NEB_TRY(neb_tape_create(n->dev, n->ps, &n->tape));
    struct neb_state_place place = {.layout = &n->layout};
    NEB_TRY(neb__optimizer_create(n->dev, n->ps, &c, &place, &n->opt));
    for (int i = 0; i < STAGES - n->stage; i++) {
        NEB_TRY(neb_buffer_create(n->dev, ROWS * sizeof(int32_t), &n->ids[i]));
        NEB_TRY(neb_buffer_create(n->dev, ROWS * sizeof(int32_t), &n->target[i]));
    }
    NEB_TRY(neb__pipeline_open(n->layout.pipeline, n->dev, n->tape, all, enter, n, &n->pipeline));
    n->opt->pipeline = n->pipeline;
    return NEB_OK;
}

static void close_net(struct net *n)
{
    for (int i = 0; i < STAGES; i++) {
        neb_buffer_destroy(n->ids[i]);
        neb_buffer_destroy(n->target[i]);
    }
    neb__pipeline_close(n->pipeline);
    neb_optimizer_destroy(n->opt);
    neb_tape_destroy(n->tape);
    neb_params_destroy(n->ps);
    neb__layout_detach(&n->layout);
    neb__layout_close(&n->layout);
    neb_device_close(n->dev);
}

static neb_status one_step(struct net *n, int step)
{
    struct micro all[MICROS];
    struct neb_micro m[MICROS];
    struct neb_step_info info;
    for (int i = 0; i < MICROS; i++) {
        all[i] = (struct micro){n, step * MICROS + i, n->trial->hurt == n->stage && step == 1 && i == 2};
        m[i] = (struct neb_micro){load, model, &all[i], 1, ROWS};
    }
    NEB_TRY(neb_train_step(n->opt, n->tape, m, MICROS, 1e-2f, 1, NULL, &info));
    if (step % 2) return NEB_OK;
    struct micro held_out = {n, 999, false}; /* an odd number of messages between two steps */
    n->slot = 0;
    NEB_TRY(load(&held_out));
    return neb__pipeline_forward(n->pipeline, &(struct neb_run){.fn = model, .arg = &held_out, .key = 9});
}

static int train(struct neb_group *g, void *arg)
{
    struct net n;
    struct trial *x = arg;
    if (open_net(&n, g, x) != NEB_OK) return 1;
    for (int i = 0; i < STEPS; i++)
        if (one_step(&n, i) != NEB_OK) return 2;
    memcpy(x->result[n.stage], n.ps->value, (size_t)n.ps->all_values * sizeof(float));
    const bool sent = fake_gpu_beside() > 0;
    close_net(&n);
    return sent != (x->way != BY_HOST);
}

static struct trial *new_trial(enum way way, int hurt)
{
    struct trial *x = forked_memory(sizeof *x);
    x->way = way;
    x->hurt = hurt;
    return x;
}

static void messages_between_devices_leave_the_same_bits(void **state)
{
    (void)state;
    fake_gpu_prepare(STAGES, 1 << 16);
    struct trial *host = new_trial(BY_HOST, -1);
    assert_int_equal(forked_ranks(STAGES, 60, train, host), 0);
    assert_true(host->result[1][0] != 0);
    for (enum way way = AT_ONCE; way <= LATE; way++) {
        struct trial *x = new_trial(way, -1);
        assert_int_equal(forked_ranks(STAGES, 60, train, x), 0);
        assert_memory_equal(x->result, host->result, sizeof x->result);
        forked_free(x, sizeof *x);
    }
    forked_free(host, sizeof *host);
    fake_gpu_end();
}

/* All ranks end with an error. */
static int loses_one(struct neb_group *g, void *arg)
{
    struct net n;
    struct trial *x = arg;
    neb_status status = NEB_OK;
    if (open_net(&n, g, x) != NEB_OK) return 1;
    neb_log_set_level(NEB_LOG_NONE);
    for (int i = 0; status == NEB_OK && i < STEPS; i++) status = one_step(&n, i);
    snprintf(x->why[n.stage], sizeof x->why[0], "%s", neb__group_why(g));
    x->over++;
    close_net(&n);
    return status == NEB_OK;
}

static void neighbours_name(const struct trial *x, int hurt)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d of %d", hurt, STAGES);
    for (int r = 0; r < STAGES; r++)
        if ((r == hurt - 1 || r == hurt + 1) && !strstr(x->why[r], name))
            fail_msg("stage %d says '%s' and does not name rank %d", r, x->why[r], hurt);
}

static void a_stage_that_is_lost_ends_the_others(void **state)
{
    (void)state;
    fake_gpu_prepare(STAGES, 1 << 16);
    for (int hurt = 0; hurt < STAGES; hurt++)
        for (int hangs = 0; hangs < 2; hangs++) {
            struct trial *x = new_trial(hangs ? AT_ONCE : LATE, hurt);
            x->hangs = hangs;
            /* only a stage that hangs is noticed by the time; a slow machine's others must not seem to hang */
            assert_int_equal(forked_ranks(STAGES, hangs ? 3 : 60, loses_one, x), 0);
            neighbours_name(x, hurt);
            forked_free(x, sizeof *x);
        }
    fake_gpu_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_between_devices_leave_the_same_bits),
        cmocka_unit_test(a_stage_that_is_lost_ends_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
