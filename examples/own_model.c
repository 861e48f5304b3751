/* own_model.c: a model of your own, from the first parameter to the trained result, on <nebula/engine.h>
 * alone.
 *
 * The model is a one-layer transformer that learns x[n] = (x[n-1] + x[n-2]) mod 11 from sequences: it must
 * look two tokens back and add. A model is a C function that runs every step. It says what is computed, and
 * the tape remembers how to go back. It needs no error checks: after the first mistake every further op
 * returns NULL, and the run reports the mistake. */
#include <nebula/engine.h>
#include <stdio.h>

enum { VOCAB = 11, D = 48, HEADS = 4, LENGTH = 12, SEQS = 40, ROWS = SEQS * LENGTH, STEPS = 150 };

struct own_model {
    neb_param *token, *position, *qkv, *out, *in, *back, *norm1, *norm2, *norm3;
    neb_buffer *ids, *positions, *starts, *targets;
};

/* ---- the model ----------------------------------------------------------------------------------------- */

static neb_param *matrix(neb_params *ps, const char *name, int64_t rows, int64_t cols)
{
    return neb_params_add(
        ps, &(struct neb_param_spec){
                .name = name, .ndim = 2, .shape = {rows, cols}, .init = NEB_INIT_NORMAL, .scale = 0.1f});
}

static neb_param *gain(neb_params *ps, const char *name)
{
    return neb_params_add(ps,
                          &(struct neb_param_spec){
                              .name = name, .ndim = 1, .shape = {D}, .init = NEB_INIT_ONE, .no_decay = true});
}

static void add_parameters(struct own_model *m, neb_params *ps)
{
    m->token = matrix(ps, "token", VOCAB, D);
    m->position = matrix(ps, "position", LENGTH, D);
    m->qkv = matrix(ps, "qkv", 3 * D, D);
    m->out = matrix(ps, "out", D, D);
    m->in = matrix(ps, "in", 4 * D, D);
    m->back = matrix(ps, "back", D, 4 * D);
    m->norm1 = gain(ps, "norm1");
    m->norm2 = gain(ps, "norm2");
    m->norm3 = gain(ps, "norm3");
}

static void own_model(neb_tape *t, void *arg)
{
    struct own_model *m = arg;
    int64_t rows = ROWS, starts = SEQS + 1;
    neb_tensor *ids = neb_input(t, m->ids, NEB_I32, 1, &rows),
               *pos = neb_input(t, m->positions, NEB_I32, 1, &rows);
    struct neb_seqs seqs = {neb_input(t, m->starts, NEB_I32, 1, &starts), NULL, SEQS, LENGTH};

    neb_tensor *x = neb_op_embed(t, 2, (neb_param *[]){m->token, m->position}, (neb_tensor *[]){ids, pos}, 1);
    neb_tensor *qkv =
        neb_op_linear(t, neb_op_norm(t, x, m->norm1, NULL, NEB_NORM_RMS, 1e-5f), m->qkv, NULL, NEB_ACT_NONE);
    neb_tensor *mixed = neb_op_attention(t, &(struct neb_attention){.q = neb_op_columns(t, qkv, 0, D),
                                                                    .k = neb_op_columns(t, qkv, D, D),
                                                                    .v = neb_op_columns(t, qkv, 2 * D, D),
                                                                    .q_seqs = seqs,
                                                                    .k_seqs = seqs,
                                                                    .heads = HEADS,
                                                                    .causal = true});
    x = neb_op_add(t, neb_op_linear(t, mixed, m->out, NULL, NEB_ACT_NONE), x);
    neb_tensor *wide =
        neb_op_linear(t, neb_op_norm(t, x, m->norm2, NULL, NEB_NORM_RMS, 1e-5f), m->in, NULL, NEB_ACT_GELU);
    x = neb_op_add(t, neb_op_linear(t, wide, m->back, NULL, NEB_ACT_NONE), x);
    x = neb_op_norm(t, x, m->norm3, NULL, NEB_NORM_RMS, 1e-5f);

    struct neb_target_spec target = {.target = neb_input(t, m->targets, NEB_I32, 1, &rows)};
    neb_loss_linear_xent(t, x, m->token, NULL, &target, &(struct neb_loss_spec){0});
}

/* ---- the data ------------------------------------------------------------------------------------------ */

static neb_status load(void *arg)
{
    static int32_t ids[ROWS], positions[ROWS], starts[SEQS + 1], targets[ROWS];
    static uint32_t random = 1;
    struct own_model *m = arg;
    for (int r = 0; r < ROWS; r++) {
        int n = positions[r] = r % LENGTH;
        random = random * 1664525u + 1013904223u;
        ids[r] = n < 2 ? (int32_t)((random >> 16) % VOCAB) : (ids[r - 1] + ids[r - 2]) % VOCAB;
        starts[r / LENGTH + 1] = r + 1;
    }
    for (int r = 0; r < ROWS; r++) /* the second token is random and the last has no next one: not counted */
        targets[r] = positions[r] == 0 || positions[r] == LENGTH - 1 ? -1 : ids[r + 1];
    neb_status s = neb_buffer_upload(m->ids, ids, sizeof ids);
    if (s == NEB_OK) s = neb_buffer_upload(m->positions, positions, sizeof positions);
    if (s == NEB_OK) s = neb_buffer_upload(m->starts, starts, sizeof starts);
    if (s == NEB_OK) s = neb_buffer_upload(m->targets, targets, sizeof targets);
    return s;
}

/* ---- training ------------------------------------------------------------------------------------------ */

static neb_status train(neb_optimizer *optimizer, neb_tape *tape, struct own_model *m,
                        struct neb_step_info *info)
{
    struct neb_schedule schedule = {NEB_COSINE, 5e-3f, 1e-4f, 20, STEPS, 0};
    struct neb_micro micro = {load, own_model, m, 1, SEQS * (LENGTH - 2)};
    neb_status s = NEB_OK;
    for (int step = 1; step <= STEPS && s == NEB_OK; step++) {
        s = neb_train_step(optimizer, tape, &micro, 1, neb_schedule_lr(&schedule, step), 1, NULL, info);
        if (s == NEB_OK && step % 50 == 0)
            printf("step %3d  loss %.4f  right %.1f %%\n", step, info->loss[0],
                   100 * info->counts[0] / info->counts[1]);
    }
    return s;
}

#define TRY(call)                              \
    do {                                       \
        if ((s = (call)) != NEB_OK) goto done; \
    } while (0)

int main(void)
{
    struct own_model m = {0};
    neb_device *device = NULL;
    neb_params *params = NULL;
    neb_tape *tape = NULL;
    neb_optimizer *optimizer = NULL;
    struct neb_optimizer_config config = neb_optimizer_defaults();
    struct neb_step_info info = {0};
    neb_status s;
    TRY(neb_device_open("cpu", NULL, &device));
    TRY(neb_params_create(&params));
    add_parameters(&m, params);
    TRY(neb_params_ready(params, device, 1));
    TRY(neb_buffer_create(device, ROWS * 4, &m.ids));
    TRY(neb_buffer_create(device, ROWS * 4, &m.positions));
    TRY(neb_buffer_create(device, ROWS * 4, &m.targets));
    TRY(neb_buffer_create(device, (SEQS + 1) * 4, &m.starts));
    TRY(neb_tape_create(device, params, &tape));
    TRY(neb_optimizer_create(device, params, &config, &optimizer));
    TRY(train(optimizer, tape, &m, &info));
    printf("%s\n", info.loss[0] < 0.1f ? "learned" : "not learned");
done:
    if (s != NEB_OK) fprintf(stderr, "own_model: %s\n", neb_last_error());
    neb_optimizer_destroy(optimizer);
    neb_tape_destroy(tape);
    neb_buffer_destroy(m.ids);
    neb_buffer_destroy(m.positions);
    neb_buffer_destroy(m.targets);
    neb_buffer_destroy(m.starts);
    neb_params_destroy(params);
    neb_device_close(device);
    return s == NEB_OK && info.loss[0] < 0.1f ? 0 : 1;
}
