/* test_hf.c: models of the Hugging Face world: what they compute here and there, export as the inverse of import, and
 * folders that lie. tools/hf_parity.py recorded the models and their logits with the transformers library. */
#include "check.h"
#include "vectors.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/safetensors.h"
#include "task/hf.h"
#include "task/line_batches.h"
#include "task/translate.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const kinds[] = {"bert_mlm",          "bert",       "bert_class", "xlmr",   "electra",
                                    "electra_generator", "distilbert", "gpt2",       "llama2", "llama3",
                                    "llama_linear",      "mistral",    "qwen2",      "qwen3",  "gemma"};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Encoder-decoders with their tokenizers, and the languages in which they are asked. */
static const struct {
    const char *name, *from, *to;
} pairs[] = {{"marian", NULL, NULL},
             {"m2m100", "en", "de"},
             {"nllb", "eng_Latn", "deu_Latn"},
             {"nllb-tail", "eng_Latn", "deu_Latn"},
             {"bart", NULL, NULL},
             {"mbart", "en_XX", "de_DE"},
             {"mbart50", "en_XX", "de_DE"},
             {"t5", NULL, NULL},
             {"mt5", NULL, NULL}};
enum { PAIRS = sizeof pairs / sizeof *pairs, LINES = 4 };
static char dir[200];

static const char *in(const char *name)
{
    static char path[4][400];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static const char *recorded(const char *name)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/hf/%s", NEB_TEST_DATA, name);
    return path;
}

/* ---- the same numbers ------------------------------------------------------------------------------------------- */

struct run {
    struct neb_ready *m;
    struct neb_model_input *feed;
    neb_buffer *out;
};

static void run_fn(neb_tape *t, void *arg)
{
    struct run *r = arg;
    const struct neb_input *in_ = neb__model_input_tensors(r->feed, t);
    neb_tensor *x = neb__model_run(r->m->model, t, in_);
    neb_output(
        t,
        neb__model_logits(r->m->model, t, x, &in_->side[r->m->model->arch.kind == NEB_ENCODER_DECODER], NULL),
        r->out, NEB_F32);
}

static void compare(struct neb_ready *m, const char *kind, const struct vectors *v, int i)
{
    char name[32];
    int32_t position[32], starts[2] = {0, 0};
    uint32_t sample[32] = {0};
    float got[32 * 64];
    neb_tape *tape;
    struct run r = {.m = m};
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
    struct neb_run run = {.fn = run_fn, .arg = &r, .key = 1};
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

static void logits_are_those_of_transformers(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int k = 0; k < KINDS; k++) {
        struct vectors v;
        struct neb_ready m;
        char path[700];
        assert_ok(neb__hf_import(recorded(kinds[k]), in("ours")));
        assert_ok(neb__ready_open(in("ours"), NULL, device, &m));
        snprintf(path, sizeof path, "%s/expect.bin", recorded(kinds[k]));
        vectors_load(path, &v);
        for (int i = 0; i < 2; i++) compare(&m, kinds[k], &v, i);
        vectors_free(&v);
        neb__ready_close(&m);
    }
    neb_device_close(device);
}

static void read_all(const char *path, struct neb_buf *out)
{
    neb__buf_init(out, 64 << 20);
    assert_ok(neb__file_read(path, out));
}

/* ---- translation ------------------------------------------------------------------------------------------------- */

/* What the model reads of a line: as the command line makes it. */
static void line_is_read_as_there(const struct neb_ready *m, const struct neb_frame_tokens *f,
                                  const char *line, const struct vector *want)
{
    struct neb_line_batches *p;
    struct neb_model_input_side side;
    const int *numbers;
    struct neb_line_batches_config c = {
        .tok = m->tok, .lead = f->lead, .tail = f->tail, .max_len = 64, .rows = 64, .seqs = 1};
    assert_ok(neb__line_batches_create(&c, &p));
    assert_ok(neb__line_batches_add(p, line, NULL, 0));
    neb__line_batches_order(p, 0);
    assert_int_equal(neb__line_batches_next(p, &side, &numbers), 1);
    assert_int_equal(side.rows, (int)want->n);
    assert_memory_equal(side.ids, want->data.i, want->n * sizeof *side.ids);
    neb__line_batches_destroy(p);
}

static void compare_pair(struct neb_ready *m, const char *kind, const struct vectors *v, int i,
                         const struct neb_frame_tokens *f)
{
    char name[32];
    static float got[16 * 512];
    int32_t position[64], starts[2][2] = {{0}};
    uint32_t sample[64] = {0};
    neb_tape *tape;
    struct run r = {.m = m};
    struct neb_model_input_limits limits = {.rows = {64, 64}, .seqs = 1};
    struct neb_model_input_data d = {.sides = 2};
    for (int32_t k = 0; k < 64; k++) position[k] = k;
    for (int s = 0; s < 2; s++) {
        snprintf(name, sizeof name, s ? "target%d" : "ids%d", i);
        struct vector *ids = vectors_need(v, name);
        starts[s][1] = (int32_t)ids->n;
        d.side[s] = (struct neb_model_input_side){.rows = (int32_t)ids->n,
                                                  .seqs = 1,
                                                  .max_len = (int32_t)ids->n,
                                                  .ids = ids->data.i,
                                                  .position = position,
                                                  .sample = sample,
                                                  .starts = starts[s]};
    }
    assert_int_equal(d.side[1].ids[0], f->start);
    if (f->first >= 0) assert_int_equal(d.side[1].ids[1], f->first);
    snprintf(name, sizeof name, "logits%d", i);
    struct vector *want = vectors_need(v, name);
    const int64_t wide = (int64_t)want->n / d.side[1].rows, here = m->model->outputs;
    assert_true(want->n <= sizeof got / sizeof *got && here <= wide);
    assert_ok(neb__model_input_create(m->device, &limits, &r.feed));
    assert_ok(neb_buffer_create(m->device, sizeof got, &r.out));
    assert_ok(neb_tape_create(m->device, m->params, &tape));
    assert_ok(neb__model_input_load(r.feed, &d));
    struct neb_run run = {.fn = run_fn, .arg = &r, .key = 1};
    assert_ok(neb_tape_run(tape, &run));
    assert_ok(neb_buffer_download(r.out, got, (size_t)(d.side[1].rows * here) * sizeof *got));
    for (int64_t row = 0; row < d.side[1].rows; row++)
        for (int64_t k = 0; k < here; k++) {
            float x = got[row * here + k], y = want->data.f[row * wide + k];
            if (!(fabsf(x - y) <= 1e-4f * fmaxf(1, fabsf(y))))
                fail_msg("%s, line %d, token %d, logit %d is %.7g, transformers has %.7g", kind, i, (int)row,
                         (int)k, x, y);
        }
    neb_tape_destroy(tape);
    neb_buffer_destroy(r.out);
    neb__model_input_destroy(r.feed);
}

/* The text of the recorded target. */
static void target_says_the_same(const struct neb_ready *m, const struct vector *target, const char *want)
{
    struct neb_buf text;
    neb__buf_init(&text, 1 << 16);
    assert_ok(neb__tok_decode(m->tok, target->data.i, target->n, &text));
    assert_ok(neb__buf_append(&text, "", 1));
    const char *got = (const char *)text.data;
    while (*got == ' ') got++;
    while (*want == ' ') want++;
    assert_string_equal(got, want);
    neb__buf_free(&text);
}

static json_t *recorded_lines(const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/lines.json", recorded(name));
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

static void translations_are_those_of_transformers(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int k = 0; k < PAIRS; k++) {
        struct vectors v;
        struct neb_ready m;
        const struct neb_frame *frame;
        struct neb_frame_tokens f;
        char path[700], name[32];
        json_t *j = recorded_lines(pairs[k].name);
        assert_ok(neb__hf_import(recorded(pairs[k].name), in("pair")));
        assert_ok(neb__ready_open(in("pair"), NULL, device, &m));
        assert_ok(neb__folder_frame(&m.folder, &frame));
        assert_ok(neb__frame_find(frame, m.tok, pairs[k].from, pairs[k].to, &f));
        snprintf(path, sizeof path, "%s/expect.bin", recorded(pairs[k].name));
        vectors_load(path, &v);
        for (int i = 0; i < LINES; i++) {
            const char *line = json_string_value(json_array_get(json_object_get(j, "lines"), (size_t)i));
            const char *text = json_string_value(json_array_get(json_object_get(j, "texts"), (size_t)i));
            snprintf(name, sizeof name, "ids%d", i);
            line_is_read_as_there(&m, &f, line, vectors_need(&v, name));
            snprintf(name, sizeof name, "target%d", i);
            target_says_the_same(&m, vectors_need(&v, name), text);
            compare_pair(&m, pairs[k].name, &v, i, &f);
        }
        json_decref(j);
        vectors_free(&v);
        neb__ready_close(&m);
        check_remove_dir(in("pair"));
    }
    neb_device_close(device);
}

/* Import, export, import: the same bytes, tokenizer and all. */
static void translators_go_out_as_they_came(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "model.yaml",     "source.spm",
                                        "target.spm",        "tokenizer.json", "tokenizer.model"};
    for (int k = 0; k < PAIRS; k++) {
        assert_ok(neb__hf_import(recorded(pairs[k].name), in("there")));
        assert_ok(neb__hf_export(in("there"), in("out")));
        assert_ok(neb__hf_import(in("out"), in("back again")));
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            struct neb_buf a, b;
            char path[500], other[500];
            snprintf(path, sizeof path, "%s/%s", in("there"), files[i]);
            snprintf(other, sizeof other, "%s/%s", in("back again"), files[i]);
            assert_int_equal(access(path, F_OK), access(other, F_OK));
            if (access(path, F_OK)) continue;
            read_all(path, &a);
            read_all(other, &b);
            assert_int_equal(a.len, b.len);
            assert_memory_equal(a.data, b.data, a.len);
            neb__buf_free(&a);
            neb__buf_free(&b);
        }
        check_remove_dir(in("there"));
        check_remove_dir(in("out"));
        check_remove_dir(in("back again"));
    }
}

/* T5 reads and writes its sentinels as a part of the text, from either kind of file. */
static void sentinels_are_part_of_a_text(void **state)
{
    (void)state;
    static const char *const names[] = {"t5", "mt5"};
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int k = 0; k < 2; k++) {
        struct neb_ready m;
        struct neb_buf ids, text;
        static const char line[] = "A <extra_id_0> in the<extra_id_12> snow";
        assert_ok(neb__hf_import(recorded(names[k]), in("sentinels")));
        assert_ok(neb__ready_open(in("sentinels"), NULL, device, &m));
        neb__buf_init(&ids, 1 << 16);
        neb__buf_init(&text, 1 << 16);
        assert_ok(neb__tok_encode(m.tok, line, sizeof line - 1, &ids));
        const int32_t *id = (const int32_t *)(const void *)ids.data;
        int found[2] = {0};
        for (size_t i = 0; i < ids.len / sizeof *id; i++) {
            found[0] += id[i] == neb__tok_id(m.tok, "<extra_id_0>");
            found[1] += id[i] == neb__tok_id(m.tok, "<extra_id_12>");
        }
        assert_int_equal(found[0], 1);
        assert_int_equal(found[1], 1);
        assert_true(neb__tok_id(m.tok, "<extra_id_0>") > neb__tok_id(m.tok, "<extra_id_12>"));
        assert_ok(neb__tok_decode(m.tok, id, ids.len / sizeof *id, &text));
        assert_ok(neb__buf_append(&text, "", 1));
        assert_non_null(strstr((const char *)text.data, "<extra_id_0>"));
        assert_non_null(strstr((const char *)text.data, "<extra_id_12>"));
        assert_int_equal(neb__tok_id(m.tok, "<extra_id_100>"), -1);
        neb__buf_free(&ids);
        neb__buf_free(&text);
        neb__ready_close(&m);
        check_remove_dir(in("sentinels"));
    }
    neb_device_close(device);
}

/* Marian's language token, a line that brings its own, and lines that have to name what they lack. */
static void languages_are_asked_for(void **state)
{
    (void)state;
    neb_device *device;
    struct neb_ready m;
    struct neb_translator *t;
    struct neb_translate_config c = {.beams = 2, .batch = 2, .max_len = 12, .length_penalty = 1};
    char *text[2];
    assert_ok(neb_device_open("cpu", NULL, &device));
    assert_ok(neb__hf_import(recorded("marian"), in("asked")));
    assert_ok(neb__ready_open(in("asked"), NULL, device, &m));
    const char *tagged[] = {">>deu<< A man.", " A man."};
    struct neb_buf ids;
    neb__buf_init(&ids, 1 << 16);
    assert_ok(neb__tok_encode(m.tok, tagged[0], strlen(tagged[0]), &ids));
    assert_int_equal(((const int32_t *)(const void *)ids.data)[0], neb__tok_id(m.tok, ">>deu<<"));
    neb__buf_free(&ids);
    c.to = (char[]){"deu"};
    assert_ok(neb__translator_open(&m, &c, &t));
    assert_ok(neb__translator_translate(t, tagged + 1, 1, text));
    neb__free(text[0]);
    neb__translator_close(t);
    check_log_quiet();
    c.to = (char[]){"xxx"};
    assert_status(neb__translator_open(&m, &c, &t), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), ">>xxx<<"));
    neb__ready_close(&m);
    assert_ok(neb__hf_import(recorded("nllb"), in("asked")));
    assert_ok(neb__ready_open(in("asked"), NULL, device, &m));
    c.to = (char[]){"deu_Latn"};
    assert_status(neb__translator_open(&m, &c, &t), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "--from"));
    check_log_restore();
    neb__ready_close(&m);
    neb_device_close(device);
}

/* ---- out again -------------------------------------------------------------------------------------------------- */

/* Gemma multiplies by 1 + w. That number is kept, to the bit; bits of w that it does not have are not. */
static void assert_same_plus_one(const struct neb_st_tensor *x, const struct neb_st_tensor *y)
{
    const float *a = x->data, *b = y->data;
    for (size_t i = 0; i < x->size / sizeof *a; i++) {
        const float one[2] = {1 + a[i], 1 + b[i]};
        assert_memory_equal(&one[0], &one[1], sizeof *one);
    }
}

static void export_is_the_inverse_of_import(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct neb_buf a, b;
        assert_ok(neb__hf_import(recorded(kinds[k]), in("ours")));
        assert_ok(neb__hf_export(in("ours"), in("back")));
        assert_ok(neb__hf_import(in("back"), in("again")));
        static const char *const files[] = {"model.safetensors", "model.yaml"};
        for (int i = 0; i < 2; i++) {
            char path[500];
            snprintf(path, sizeof path, "%s/%s", in("ours"), files[i]);
            read_all(path, &a);
            snprintf(path, sizeof path, "%s/%s", in("again"), files[i]);
            read_all(path, &b);
            assert_int_equal(a.len, b.len);
            assert_memory_equal(a.data, b.data, a.len);
            neb__buf_free(&a);
            neb__buf_free(&b);
        }
        if (!strcmp(kinds[k], "bert_mlm")) continue; /* that one lies in several files */
        char path[700];
        struct neb_st *was, *is;
        snprintf(path, sizeof path, "%s/model.safetensors", recorded(kinds[k]));
        assert_ok(neb__st_open(path, &was));
        snprintf(path, sizeof path, "%s/model.safetensors", in("back"));
        assert_ok(neb__st_open(path, &is));
        for (int i = 0; i < neb__st_count(is); i++) {
            const struct neb_st_tensor *x = neb__st_at(is, i), *y = neb__st_find(was, x->name);
            if (!y) fail_msg("%s: export wrote '%s', which transformers did not", kinds[k], x->name);
            assert_int_equal(x->size, y->size);
            bool padded = !strcmp(kinds[k], "xlmr") && strstr(x->name, "position_embeddings");
            size_t skip = padded ? 2 * 12 * sizeof(float) : 0; /* rows that are never read */
            if (!strcmp(kinds[k], "gemma") && strstr(x->name, "norm"))
                assert_same_plus_one(x, y);
            else
                assert_memory_equal((const char *)x->data + skip, (const char *)y->data + skip,
                                    x->size - skip);
        }
        neb__st_close(was);
        neb__st_close(is);
    }
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[600];
    assert_ok(neb__file_make_dir(in(folder), 0755));
    snprintf(path, sizeof path, "%s/%s", in(folder), name);
    assert_ok(neb__file_replace(path, text, strlen(text), 0644));
}

static void copy_recorded(const char *kind, const char *name, const char *folder)
{
    struct neb_buf bytes;
    char path[700];
    snprintf(path, sizeof path, "%s/%s", recorded(kind), name);
    read_all(path, &bytes);
    assert_ok(neb__file_make_dir(in(folder), 0755));
    snprintf(path, sizeof path, "%s/%s", in(folder), name);
    assert_ok(neb__file_replace(path, bytes.data, bytes.len, 0644));
    neb__buf_free(&bytes);
}

/* ---- values of 16 bits -------------------------------------------------------------------------------------------- */

/* Two bytes of every value stay: as bf16 the upper ones; as fp16 small whole numbers divided by 64. */
static void write_halves(const char *kind, bool bf16, const char *to)
{
    struct neb_st *st;
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", recorded(kind));
    assert_ok(neb__st_open(path, &st));
    const int n = neb__st_count(st);
    struct neb_st_tensor *list = calloc((size_t)n, sizeof *list);
    assert_non_null(list);
    for (int i = 0; i < n; i++) {
        list[i] = *neb__st_at(st, i);
        const size_t count = list[i].size / 4;
        uint16_t *half = malloc(2 * count);
        assert_non_null(half);
        for (size_t k = 0; k < count; k++) {
            memcpy(&half[k], (const uint8_t *)list[i].data + 4 * k + 2, 2);
            if (!bf16)
                half[k] =
                    (uint16_t)((k % 7 ? 0x3C00 : 0x0003) + (k * 31 & 0x83FF)); /* 1 … 2, and subnormal ones */
        }
        list[i].type = bf16 ? NEB_ST_BF16 : NEB_ST_F16;
        list[i].size /= 2;
        list[i].data = half;
    }
    copy_recorded(kind, "config.json", to);
    snprintf(path, sizeof path, "%s/model.safetensors", in(to));
    assert_ok(neb__st_write(path, list, n, NULL, 0644));
    for (int i = 0; i < n; i++) free((void *)(uintptr_t)list[i].data);
    free(list);
    neb__st_close(st);
}

/* Import keeps them, and so does a folder that is written while they are frozen. */
static void values_of_16_bits_stay(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct neb_ready m;
        struct neb_buf a, b;
        char path[500];
        write_halves("llama2", bf16, "halves");
        assert_ok(neb__hf_import(in("halves"), in("kept")));
        assert_ok(neb__ready_open(in("kept"), NULL, device, &m));
        assert_ok(neb__folder_write(&m.folder, in("written"), m.model, NULL));
        snprintf(path, sizeof path, "%s/model.safetensors", in("kept"));
        read_all(path, &a);
        struct neb_st *st;
        assert_ok(neb__st_open(path, &st));
        for (int i = 0; i < neb__st_count(st); i++)
            assert_int_equal(neb__st_at(st, i)->type, bf16 ? NEB_ST_BF16 : NEB_ST_F16);
        neb__st_close(st);
        snprintf(path, sizeof path, "%s/model.safetensors", in("written"));
        read_all(path, &b);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        neb__buf_free(&a);
        neb__buf_free(&b);
        neb__ready_close(&m);
    }
    neb_device_close(device);
}

/* ---- adapters ---------------------------------------------------------------------------------------------------- */

/* The model with what the method added beside its weights. neb__ready_open() may merge it. */
static void open_apart(const char *path, neb_device *device, struct neb_ready *m)
{
    int n;
    memset(m, 0, sizeof *m);
    m->device = device;
    assert_ok(neb__model_yaml_read(path, &m->folder));
    assert_ok(neb_params_create(&m->params));
    assert_ok(neb__model_create(&m->folder.model, &m->folder.peft, "", NULL, m->params, &m->model));
    assert_ok(neb_params_ready(m->params, device, 1));
    assert_ok(neb__folder_load(&m->folder, m->model, NULL, true, &n));
}

/* off: by how much a value may differ; 0: the same bytes. */
static void same_tensors(const char *was_path, const char *is_path, double off)
{
    struct neb_st *was, *is;
    assert_ok(neb__st_open(was_path, &was));
    assert_ok(neb__st_open(is_path, &is));
    assert_int_equal(neb__st_count(was), neb__st_count(is));
    for (int i = 0; i < neb__st_count(is); i++) {
        const struct neb_st_tensor *x = neb__st_at(is, i), *y = neb__st_find(was, x->name);
        assert_non_null(y);
        assert_int_equal(x->rank, y->rank);
        for (int k = 0; k < x->rank; k++) assert_int_equal(x->shape[k], y->shape[k]);
        assert_int_equal(x->size, y->size);
        if (!off) assert_memory_equal(x->data, y->data, x->size);
        for (size_t k = 0; off && k < x->size / sizeof(float); k++)
            assert_true(fabs((double)(((const float *)x->data)[k] - ((const float *)y->data)[k])) <= off);
    }
    neb__st_close(was);
    neb__st_close(is);
}

static void check_adapter(const char *name, neb_device *device, const char *on)
{
    struct vectors v;
    struct neb_ready m;
    char path[700], out[700];
    assert_ok(neb__hf_import_adapter(recorded(name), in("base"), in("both")));
    snprintf(path, sizeof path, "%s/expect.bin", recorded(name));
    vectors_load(path, &v);
    open_apart(in("both"), device, &m);
    const char *patterns = strstr(name, "ia3") ? m.folder.peft.ia3_on : m.folder.peft.lora_on;
    if (on) assert_string_equal(patterns, on);
    for (int i = 0; i < 2; i++) compare(&m, name, &v, i);
    neb__ready_close(&m);
    assert_ok(neb__ready_open(in("both"), NULL, device, &m));
    for (int i = 0; i < 2; i++) compare(&m, name, &v, i);
    neb__ready_close(&m);
    if (on) { /* merged: the same numbers without the method */
        assert_ok(neb__hf_export(in("both"), in("merged")));
        assert_ok(neb__hf_import(in("merged"), in("plain")));
        assert_ok(neb__ready_open(in("plain"), NULL, device, &m));
        assert_string_equal(m.folder.peft.method, "full");
        for (int i = 0; i < 2; i++) compare(&m, name, &v, i);
        neb__ready_close(&m);
    }
    vectors_free(&v);
    assert_ok(neb__hf_export_adapter(in("both"), in("adapter")));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", recorded(name));
    snprintf(out, sizeof out, "%s/adapter_model.safetensors", in("adapter"));
    same_tensors(path, out, strstr(name, "prefix") ? 1e-6 : 0); /* its keys are turned there and back */
}

static void adapters_compute_as_in_peft(void **state)
{
    (void)state;
    neb_device *device;
    assert_ok(neb_device_open("cpu", NULL, &device));
    assert_ok(neb__hf_import(recorded("llama3"), in("base")));
    check_adapter("llama3_lora", device, "*.attention.q,*.attention.v,*.ffn.up");
    check_adapter("llama3_dora", device, "*.attention.k,*.ffn.gate,*.ffn.out");
    check_adapter("llama3_ia3", device, "*.attention.k,*.attention.v");
    check_adapter("llama3_prefix", device, NULL); /* it cannot be merged */
    check_adapter("llama3_prompt", device, NULL);
    check_log_quiet();
    assert_status(neb__hf_export(in("both"), in("never")), NEB_ERR_UNSUPPORTED);
    check_log_restore();
    neb_device_close(device);
}

static void nothing_is_written_over_itself(void **state)
{
    (void)state;
    char link[300];
    copy_recorded("llama3", "config.json", "itself");
    copy_recorded("llama3", "model.safetensors", "itself");
    snprintf(link, sizeof link, "%s", in("link"));
    assert_int_equal(symlink("itself", link), 0);
    check_log_quiet();
    assert_status(neb__hf_import(in("itself"), link), NEB_ERR_INVALID);
    assert_ok(neb__hf_import(recorded("llama3"), in("base")));
    snprintf(link, sizeof link, "%s", in("base"));
    assert_status(neb__hf_export(link, link), NEB_ERR_INVALID);
    assert_status(neb__hf_export_adapter(link, link), NEB_ERR_INVALID);
    assert_status(neb__hf_import_adapter(recorded("llama3_lora"), link, link), NEB_ERR_INVALID);
    check_log_restore();
}

/* A name that ends where the letter of a LoRA matrix is expected. */
static void short_names_are_answered(void)
{
    char path[500];
    static const float value[1];
    static const char *const names[] = {"base_model.model.lora_", "base_model.model.model.lora_",
                                        "base_model.model.model.layers.0.self_attn.q_proj.lora_A",
                                        "base_model.model..lora_B.weight", ".lora_"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct neb_st_tensor t = {
            .name = names[i], .type = NEB_ST_F32, .rank = 1, .shape = {1}, .data = value, .size = 4};
        snprintf(path, sizeof path, "%s/adapter_model.safetensors", in("wrong"));
        assert_ok(neb__st_write(path, &t, 1, NULL, 0644));
        assert_status(neb__hf_import_adapter(in("wrong"), in("base"), in("never")), NEB_ERR_NOTFOUND);
    }
}

static void wrong_adapters_are_answered(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        neb_status status;
        const char *says;
    } wrong[] = {
        {"{", NEB_ERR_CORRUPT, "adapter_config.json"},
        {"{\"peft_type\": \"LOHA\"}", NEB_ERR_UNSUPPORTED, "'peft_type'"},
        {"{\"peft_type\": \"PROMPT_TUNING\", \"num_virtual_tokens\": 0}", NEB_ERR_UNSUPPORTED, "num_virtual"},
        {"{\"peft_type\": \"PROMPT_TUNING\", \"num_virtual_tokens\": 2}", NEB_ERR_NOTFOUND, "is no prompt"},
        {"{\"peft_type\": \"PREFIX_TUNING\"}", NEB_ERR_CORRUPT, "num_virtual_tokens"},
        {"{\"peft_type\": \"PREFIX_TUNING\", \"num_virtual_tokens\": 2}", NEB_ERR_NOTFOUND, "is no prefix"},
        {"{\"peft_type\": \"P_TUNING\"}", NEB_ERR_UNSUPPORTED, "'peft_type'"},
        {"{\"peft_type\": \"IA3\"}", NEB_ERR_NOTFOUND, "is not IA3"}, /* the tensors are LoRA's */
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"bias\": \"all\"}", NEB_ERR_UNSUPPORTED, "'bias'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"use_dora\": true}", NEB_ERR_CORRUPT, "magnitudes"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_bias\": true}", NEB_ERR_UNSUPPORTED, "'lora_bias'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"rank_pattern\": {\"q_proj\": 4}}", NEB_ERR_UNSUPPORTED,
         "'rank_pattern'"},
        {"{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 6}", NEB_ERR_SHAPE, "is needed"},
        {"{\"peft_type\": \"LORA\", \"lora_alpha\": 6}", NEB_ERR_CORRUPT, "'r'"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_dropout\": 7}", NEB_ERR_CONFIG, "lora_dropout"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": -1}", NEB_ERR_CONFIG, "lora_alpha"},
    };
    assert_ok(neb__hf_import(recorded("llama3"), in("base")));
    copy_recorded("llama3_lora", "adapter_model.safetensors", "wrong");
    check_log_quiet();
    assert_ok(neb__hf_import(recorded("gpt2"), in("learned"))); /* whose positions a prefix would move */
    assert_status(neb__hf_import_adapter(recorded("llama3_prefix"), in("learned"), in("never")),
                  NEB_ERR_UNSUPPORTED);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t held = neb__mem_held();
        put("wrong", "adapter_config.json", wrong[i].config);
        assert_status(neb__hf_import_adapter(in("wrong"), in("base"), in("never")), wrong[i].status);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i].says);
        assert_int_equal(neb__mem_held(), held);
    }
    put("wrong", "adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": 2}");
    short_names_are_answered();
    copy_recorded("llama3_lora", "adapter_model.safetensors", "wrong");
    assert_ok(neb__hf_import(recorded("gpt2"), in("base"))); /* another model */
    assert_status(neb__hf_import_adapter(in("wrong"), in("base"), in("never")), NEB_ERR_NOTFOUND);
    assert_status(neb__hf_export_adapter(in("base"), in("never")), NEB_ERR_UNSUPPORTED);
    check_log_restore();
}

/* ---- tokenizers ------------------------------------------------------------------------------------------------- */

/* The tokenizer, not the kind of the model, says how ids are numbered. */
static void numbering_is_the_tokenizers(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *file, *config, *numbering;
    } list[] = {
        {"bert", "sentencepiece.bpe.model", "{\"tokenizer_class\": \"XLMRobertaTokenizer\"}", "xlm-r"},
        {"bert", "sentencepiece.bpe.model", "{}", "xlm-r"},
        {"bert", "tokenizer.model", "{\"tokenizer_class\": \"XLMRobertaTokenizerFast\"}", "xlm-r"},
        {"bert", "spiece.model", "{}", "plain"},
        {"bert", "vocab.txt", "{\"do_lower_case\": false}", "plain"},
        {"xlmr", "sentencepiece.bpe.model", "{}", "xlm-r"},
        {"xlmr", "spiece.model", "{}", "xlm-r"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        struct neb_model_yaml f;
        char name[16];
        snprintf(name, sizeof name, "numbers%zu", i);
        copy_recorded(list[i].kind, "config.json", name);
        copy_recorded(list[i].kind, "model.safetensors", name);
        put(name, list[i].file, "the bytes of a tokenizer");
        put(name, "tokenizer_config.json", list[i].config);
        assert_ok(neb__hf_import(in(name), in("numbered")));
        assert_ok(neb__model_yaml_read(in("numbered"), &f));
        if (strcmp(f.numbering, list[i].numbering)) fail_msg("%zu: %s", i, f.numbering);
        assert_int_equal(f.cased, strstr(list[i].config, "false") != NULL);
        neb__model_yaml_free(&f);
    }
}

/* ---- folders that lie ------------------------------------------------------------------------------------------- */

#define LLAMA_SIZES                                                                                  \
    "\"vocab_size\": 31, \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 1, " \
    "\"num_attention_heads\": 2, "
#define MARIAN_SIZES                                                                      \
    "\"vocab_size\": 31, \"d_model\": 12, \"encoder_layers\": 1, \"decoder_layers\": 1, " \
    "\"encoder_attention_heads\": 2, \"encoder_ffn_dim\": 20, \"activation_function\": \"relu\", "
#define T5_SIZES \
    "\"vocab_size\": 31, \"d_model\": 12, \"d_kv\": 5, \"d_ff\": 20, \"num_layers\": 1, \"num_heads\": 2, "
#define BERT_SIZES                                                                                    \
    "\"vocab_size\": 31, \"hidden_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 3, " \
    "\"intermediate_size\": 20, \"hidden_act\": \"gelu\", "

static void wrong_folders_are_answered(void **state)
{
    (void)state;
    static const struct {
        const char *config, *index;
        neb_status status;
        const char *says;
    } wrong[] = {
        {"{", "{}", NEB_ERR_CORRUPT, "config.json"},
        {"[]", "{}", NEB_ERR_CORRUPT, "not a JSON object"},
        {"{\"model_type\": \"umt5\"}", "{}", NEB_ERR_UNSUPPORTED, "'umt5' is not"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"feed_forward_proj\": \"gated-relu\"}", "{}",
         NEB_ERR_UNSUPPORTED, "'gated-relu' is not"},
        {"{\"model_type\": \"t5\", " T5_SIZES
         "\"feed_forward_proj\": \"gated-gelu\", \"dense_act_fn\": \"gelu\"}",
         "{}", NEB_ERR_UNSUPPORTED, "'dense_act_fn': contradicts"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"is_gated_act\": true}", "{}", NEB_ERR_UNSUPPORTED,
         "'is_gated_act': contradicts"},
        {"{\"model_type\": \"mt5\", " T5_SIZES "\"relative_attention_num_buckets\": 7}", "{}",
         NEB_ERR_CORRUPT, "impossible model"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"relative_attention_max_distance\": 16}", "{}",
         NEB_ERR_CORRUPT, "'relative_distance'"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"per_layer_bias\": true}", "{}", NEB_ERR_UNSUPPORTED,
         "'per_layer_bias': is not known"},
        {"{\"model_type\": \"t5\", " T5_SIZES "\"is_encoder_decoder\": false}", "{}", NEB_ERR_UNSUPPORTED,
         "'is_encoder_decoder'"},
        {"{\"model_type\": \"bert\"}", "{}", NEB_ERR_CORRUPT, "'vocab_size': is missing"},
        {"{\"model_type\": \"bert\", \"vocab_size\": -3}", "{}", NEB_ERR_CORRUPT, "out of range"},
        {"{\"model_type\": \"bert\", \"vocab_size\": 1e300}", "{}", NEB_ERR_CORRUPT, "not a whole number"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 0}", "{}", NEB_ERR_CORRUPT,
         "impossible model"},
        {"{\"model_type\": \"bert\", " BERT_SIZES
         "\"max_position_embeddings\": 16, \"position_embedding_type\": \"relative_key\"}",
         "{}", NEB_ERR_UNSUPPORTED, "relative_key"},
        {"{\"model_type\": \"llama\", " LLAMA_SIZES "\"rope_parameters\": {\"rope_type\": \"default\", "
         "\"partial_rotary_factor\": 0.5}}",
         "{}", NEB_ERR_UNSUPPORTED, "'partial_rotary_factor' is not known"},
        {"{\"model_type\": \"llama\", " LLAMA_SIZES
         "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}",
         "{}", NEB_ERR_UNSUPPORTED, "'yarn'"},
        {"{\"model_type\": \"llama\", " LLAMA_SIZES
         "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4, "
         "\"original_max_position_embeddings\": 0}}",
         "{}", NEB_ERR_UNSUPPORTED, "original_max_position_embeddings"},
        {"{\"model_type\": \"marian\", " MARIAN_SIZES "\"decoder_ffn_dim\": 24}", "{}", NEB_ERR_UNSUPPORTED,
         "'decoder_ffn_dim': 24"},
        {"{\"model_type\": \"marian\", " MARIAN_SIZES "\"normalize_before\": true}", "{}",
         NEB_ERR_UNSUPPORTED, "'normalize_before'"},
        {"{\"model_type\": \"marian\", " MARIAN_SIZES "\"share_encoder_decoder_embeddings\": false}", "{}",
         NEB_ERR_UNSUPPORTED, "'share_encoder_decoder_embeddings'"},
        {"{\"model_type\": \"m2m_100\", " MARIAN_SIZES "\"expert_capacity\": 64}", "{}", NEB_ERR_UNSUPPORTED,
         "'expert_capacity': is not known"},
        {"{\"model_type\": \"bart\", " MARIAN_SIZES "\"eos_token_id\": \"x\"}", "{}", NEB_ERR_CORRUPT,
         "'eos_token_id'"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}", "{}", NEB_ERR_CORRUPT,
         "weight_map"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}",
         "{\"weight_map\": {\"a\": \"../../etc/passwd\"}}", NEB_ERR_CORRUPT, "not in the folder"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}",
         "{\"weight_map\": {\"a\": 3}}", NEB_ERR_CORRUPT, "has no file"},
        {"{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}",
         "{\"weight_map\": {\"a\": \"absent.safetensors\"}}", NEB_ERR_NOTFOUND, "absent"},
    };
    check_log_quiet();
    assert_ok(neb__hf_import(recorded("gpt2"), in("learned"))); /* whose positions a prefix would move */
    assert_status(neb__hf_import_adapter(recorded("llama3_prefix"), in("learned"), in("never")),
                  NEB_ERR_UNSUPPORTED);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t held = neb__mem_held();
        put("bad", "config.json", wrong[i].config);
        put("bad", "model.safetensors.index.json", wrong[i].index);
        assert_status(neb__hf_import(in("bad"), in("never")), wrong[i].status);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i].says);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
}

/* The recorded T5 with the copies of its token table that older files have; `other` differs from the table in one bit. alone: the
 * table itself is not there, only its copies. */
static void write_copies(const char *const *names, int n, const char *other, bool alone)
{
    struct neb_st *st;
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", recorded("t5"));
    assert_ok(neb__st_open(path, &st));
    const int all = neb__st_count(st);
    struct neb_st_tensor *list = calloc((size_t)(all + n), sizeof *list);
    const struct neb_st_tensor *shared = neb__st_find(st, "shared.weight");
    int count = 0;
    uint8_t *changed = malloc(shared->size);
    assert_true(list && changed);
    memcpy(changed, shared->data, shared->size);
    changed[shared->size / 2] ^= 1;
    for (int i = 0; i < all; i++)
        if (!alone || neb__st_at(st, i) != shared) list[count++] = *neb__st_at(st, i);
    for (int i = 0; i < n; i++) {
        list[count + i] = *shared;
        list[count + i].name = names[i];
        if (other && !strcmp(names[i], other)) list[count + i].data = changed;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", in("copies"));
    assert_ok(neb__st_write(path, list, count + n, NULL, 0644));
    free(changed);
    free(list);
    neb__st_close(st);
}

/* Whether T5's output is the token table, the tensors say; whether it is divided, the config. */
static void t5_is_tied_where_its_tensors_are_equal(void **state)
{
    (void)state;
    static const char *const names[] = {"lm_head.weight", "encoder.embed_tokens.weight",
                                        "decoder.embed_tokens.weight"};
    static const struct {
        const char *config;
        bool scaled;
    } says[] = {
        {"\"model_type\": \"t5\", ", true},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": false, ", false},
        {"\"model_type\": \"t5\", \"tie_word_embeddings\": true, \"scale_decoder_outputs\": false, ", false},
        {"\"model_type\": \"mt5\", ", false}};
    struct neb_model_yaml f;
    check_log_quiet();
    for (int alone = 0; alone < 2; alone++) {
        for (int i = 0; i < 2; i++) {
            copy_recorded("t5", "config.json", "copies");
            write_copies(names, 3, i ? names[0] : NULL, alone);
            assert_ok(neb__hf_import(in("copies"), in("tied")));
            assert_ok(neb__model_yaml_read(in("tied"), &f));
            assert_true(f.model.tied == !i && f.model.head_scale);
            neb__model_yaml_free(&f);
        }
        write_copies(names, 3, names[1], alone);
        assert_status(neb__hf_import(in("copies"), in("never")), NEB_ERR_UNSUPPORTED);
        assert_non_null(strstr(neb_last_error(), "coder.embed_tokens.weight"));
    }
    check_log_restore();
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        struct neb_model_config m;
        struct neb_hf_config c;
        char text[600];
        snprintf(text, sizeof text, "{%s%s\"d_kv\": 5}", says[i].config, T5_SIZES);
        assert_ok(neb__model_config_init(NULL, &m));
        assert_ok(neb__hf_config_read(text, strlen(text), &m, &c));
        if (m.head_scale != says[i].scaled) fail_msg("%s", text);
        assert_true(!m.attention_scale && !m.bias && m.head_dim == 5 && m.relative_buckets == 32);
        neb__model_config_free(&m);
    }
}

/* A size that is not the tensors', a tensor that is not there. */
static void config_and_tensors_must_agree(void **state)
{
    (void)state;
    struct neb_buf bytes;
    char path[700];
    snprintf(path, sizeof path, "%s/model.safetensors", recorded("bert"));
    read_all(path, &bytes);
    put("bad2", "config.json", "{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 17}");
    snprintf(path, sizeof path, "%s/model.safetensors", in("bad2"));
    assert_ok(neb__file_replace(path, bytes.data, bytes.len, 0644));
    check_log_quiet();
    assert_status(neb__hf_import(in("bad2"), in("never")), NEB_ERR_SHAPE);
    assert_non_null(strstr(neb_last_error(), "position_embeddings.weight is 16 x 12"));
    char *layers = strdup("{\"model_type\": \"bert\", " BERT_SIZES "\"max_position_embeddings\": 16}");
    *(strstr(layers, "layers\": 2") + 9) = '3';
    put("bad2", "config.json", layers);
    free(layers);
    assert_status(neb__hf_import(in("bad2"), in("never")), NEB_ERR_NOTFOUND);
    assert_non_null(strstr(neb_last_error(), "encoder.layer.2."));
    bytes.data[20] ^= 0x20;
    assert_ok(neb__file_replace(path, bytes.data, bytes.len / 2, 0644));
    assert_status(neb__hf_import(in("bad2"), in("never")), NEB_ERR_CORRUPT);
    check_log_restore();
    neb__buf_free(&bytes);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    int64_t held = neb__mem_held();
    static const char *const names[] = {"electra", "marian", "m2m100", "t5", "mt5"};
    check_log_quiet();
    for (int k = 0; k < 5; k++) {
        neb_status status = NEB_ERR_NOMEM;
        for (int64_t i = 1; status != NEB_OK; i += 1 + i / 8) {
            neb__mem_fail_at(i);
            status = neb__hf_import(recorded(names[k]), in("ours"));
            if (status == NEB_OK) status = neb__hf_export(in("ours"), in("back"));
            neb__mem_fail_at(0);
            assert_true(status == NEB_OK || status == NEB_ERR_NOMEM);
            assert_int_equal(neb__mem_held(), held);
        }
    }
    check_log_restore();
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_transformers),
        cmocka_unit_test(export_is_the_inverse_of_import),
        cmocka_unit_test(translations_are_those_of_transformers),
        cmocka_unit_test(translators_go_out_as_they_came),
        cmocka_unit_test(languages_are_asked_for),
        cmocka_unit_test(sentinels_are_part_of_a_text),
        cmocka_unit_test(values_of_16_bits_stay),
        cmocka_unit_test(adapters_compute_as_in_peft),
        cmocka_unit_test(nothing_is_written_over_itself),
        cmocka_unit_test(wrong_adapters_are_answered),
        cmocka_unit_test(numbering_is_the_tokenizers),
        cmocka_unit_test(wrong_folders_are_answered),
        cmocka_unit_test(t5_is_tied_where_its_tensors_are_equal),
        cmocka_unit_test(config_and_tensors_must_agree),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
