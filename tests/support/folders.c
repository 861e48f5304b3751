/* folders.c: see folders.h. */
#include "folders.h"
#include "check.h"
#include "base/file.h"
#include "store/safetensors.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[200];

int folder_set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    return 0;
}

int folder_tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

const char *folder_in(const char *name)
{
    static char path[4][400];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

const char *folder_recorded(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/hf/%s", NEB_TEST_DATA, name);
    return path;
}

void folder_read(const char *path, struct neb_buf *out)
{
    neb__buf_init(out, 64 << 20);
    assert_ok(neb__file_read(path, out));
}

void folder_put(const char *folder, const char *name, const char *text)
{
    char path[600];
    assert_ok(neb__file_make_dir(folder_in(folder), 0755));
    snprintf(path, sizeof path, "%s/%s", folder_in(folder), name);
    assert_ok(neb__file_replace(path, text, strlen(text), 0644));
}

void folder_copy(const char *kind, const char *name, const char *folder)
{
    struct neb_buf bytes;
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder_recorded(kind), name);
    folder_read(path, &bytes);
    assert_ok(neb__file_make_dir(folder_in(folder), 0755));
    snprintf(path, sizeof path, "%s/%s", folder_in(folder), name);
    assert_ok(neb__file_replace(path, bytes.data, bytes.len, 0644));
    neb__buf_free(&bytes);
}

void folder_config(const char *kind, const char *folder, const char *key, const char *value)
{
    char path[700];
    snprintf(path, sizeof path, "%s/config.json", folder_recorded(kind));
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    json_object_del(j, key);
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        assert_int_equal(json_object_set_new(j, key, v), 0);
    }
    char *text = json_dumps(j, 0);
    assert_non_null(text);
    folder_put(folder, "config.json", text);
    free(text);
    json_decref(j);
}

void folder_tensors(const char *kind, const char *folder, const struct folder_edit *edits, int n)
{
    struct neb_st *st;
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", folder_recorded(kind));
    assert_ok(neb__st_open(path, &st));
    struct neb_st_tensor *list = calloc((size_t)(neb__st_count(st) + n), sizeof *list);
    uint8_t **made = calloc((size_t)n + 1, sizeof *made);
    assert_true(list && made);
    int count = 0;
    for (int i = 0; i < neb__st_count(st); i++) {
        int k = 0;
        while (k < n && (edits[k].copy_of || strcmp(edits[k].name, neb__st_at(st, i)->name) != 0)) k++;
        if (k == n) list[count++] = *neb__st_at(st, i);
    }
    for (int k = 0; k < n; k++) {
        if (!edits[k].copy_of) continue;
        const struct neb_st_tensor *t = neb__st_find(st, edits[k].copy_of);
        assert_non_null(t);
        made[k] = malloc(t->size);
        assert_non_null(made[k]);
        memcpy(made[k], t->data, t->size);
        if (edits[k].changed) made[k][t->size / 2] ^= 1;
        list[count] = *t;
        list[count].name = edits[k].name;
        list[count++].data = made[k];
    }
    assert_ok(neb__file_make_dir(folder_in(folder), 0755));
    snprintf(path, sizeof path, "%s/model.safetensors", folder_in(folder));
    assert_ok(neb__st_write(path, list, count, NULL, 0644));
    for (int k = 0; k < n; k++) free(made[k]);
    free(made);
    free(list);
    neb__st_close(st);
}

void folder_run(neb_tape *t, void *arg)
{
    struct folder_run *r = arg;
    const struct neb_input *in_ = neb__model_input_tensors(r->feed, t);
    neb_tensor *x = neb__model_run(r->m->model, t, in_);
    neb_output(
        t,
        neb__model_logits(r->m->model, t, x, &in_->side[r->m->model->arch.kind == NEB_ENCODER_DECODER], NULL),
        r->out, NEB_F32);
}

void folder_compare(struct neb_ready *m, const char *kind, const struct vectors *v, int i)
{
    char name[32];
    int32_t position[32], starts[2] = {0, 0};
    uint32_t sample[32] = {0};
    float got[32 * 64];
    neb_tape *tape;
    struct folder_run r = {.m = m};
    struct neb_model_input_limits limits = {.rows = {32}, .seqs = 1};
    snprintf(name, sizeof name, "ids%d", i);
    struct vector *ids = vectors_need(v, name);
    snprintf(name, sizeof name, "logits%d", i);
    struct vector *want = vectors_need(v, name);
    int32_t n = (int32_t)ids->n;
    for (int32_t k = 0; k < n; k++) position[k] = k;
    starts[1] = n;
    struct neb_model_input_data d = {.sides = 1,
                                     .side = {{.rows = n,
                                               .seqs = 1,
                                               .max_len = n,
                                               .ids = ids->data.i,
                                               .position = position,
                                               .sample = sample,
                                               .starts = starts}}};
    neb__model_input_fit(m->model, &limits);
    const size_t before =
        (size_t)m->model->peft.prompt_length * (want->n / (size_t)n); /* of virtual tokens */
    assert_ok(neb__model_input_create(m->device, &limits, &r.feed));
    assert_ok(neb_buffer_create(m->device, sizeof got, &r.out));
    assert_ok(neb_tape_create(m->device, m->params, &tape));
    assert_ok(neb__model_input_load(r.feed, &d));
    struct neb_run run = {.fn = folder_run, .arg = &r, .key = 1};
    assert_ok(neb_tape_run(tape, &run));
    assert_ok(neb_buffer_download(r.out, got, (before + want->n) * sizeof *got));
    memmove(got, got + before, want->n * sizeof *got);
    for (size_t k = 0; k < want->n; k++)
        if (!(fabsf(got[k] - want->data.f[k]) <= 1e-4f))
            fail_msg("%s, sequence %d: logit %zu is %.7g, transformers has %.7g", kind, i, k, got[k],
                     want->data.f[k]);
    neb_tape_destroy(tape);
    neb_buffer_destroy(r.out);
    neb__model_input_destroy(r.feed);
}
