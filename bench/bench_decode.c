/* bench_decode.c: how fast a decoder of a model folder generates, at several numbers of sequences at once.
 *
 * Every sequence begins with a prompt of its own (numbers made up) and goes on greedily to a fixed length, as any search
 * does: the whole of neb__decoding_generate() is timed, with the prompt. A first turn plans and records and is not
 * counted; the median of the others counts. At one sequence a token must read every weight once, so `weights` over the
 * time of a token is what the decoder takes of the memory's bandwidth. bench/vs_transformers_generate.py measures the same
 * with the transformers library. */
#include "bench.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/opts.h"
#include "nn/decode.h"
#include "task/folder.h"
#include "tensor/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS_MAX = 15 };

struct options {
    char *model, *seqs, *device, *dtype;
    int64_t prompt, length, turns, threads;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, model, NEB_OPT_TEXT, "", NULL, "the folder of a decoder"),
    NEB_OPT(struct options, seqs, NEB_OPT_TEXT, "1,64", NULL, "sequences at once: several numbers"),
    NEB_OPT(struct options, prompt, NEB_OPT_INT, "128", "tokens", "prompt of a sequence"),
    NEB_OPT(struct options, length, NEB_OPT_INT, "256", "tokens", "generated for each"),
    NEB_OPT(struct options, turns, NEB_OPT_INT, "3", NULL, "counted turns, at most 15"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores"),
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "f32", NULL, "compute type; bf16 on a GPU"),
    NEB_OPT_END,
};

struct rig {
    neb_device *device;
    struct neb_ready model;
    int32_t *ids, *starts, *out, *lengths;
};

static int32_t most_of(const char *list)
{
    char word[16];
    int32_t most = 0;
    for (int i = 0; neb__list_part(list, i, word, sizeof word); i++)
        most = atoi(word) > most ? atoi(word) : most;
    return most;
}

static neb_status open_rig(struct rig *r, const struct options *o)
{
    const struct neb_device_config config = {.threads = (int)o->threads,
                                             .compute = strcmp(o->dtype, "bf16") ? NEB_F32 : NEB_BF16};
    const size_t n = (size_t)most_of(o->seqs);
    NEB_TRY(neb_device_open(o->device, &config, &r->device));
    NEB_TRY(neb__ready_open(o->model, NULL, r->device, &r->model));
    r->ids = NEB_NEW_ARRAY(int32_t, n * (size_t)o->prompt);
    r->starts = NEB_NEW_ARRAY(int32_t, n + 1);
    r->out = NEB_NEW_ARRAY(int32_t, n * (size_t)o->length);
    r->lengths = NEB_NEW_ARRAY(int32_t, n);
    if (!r->ids || !r->starts || !r->out || !r->lengths)
        return neb__fail(NEB_ERR_NOMEM, "out of memory for the benchmark");
    for (size_t i = 0; i <= n; i++) r->starts[i] = (int32_t)(i * (size_t)o->prompt);
    for (size_t i = 0; i < n * (size_t)o->prompt; i++)
        r->ids[i] = (int32_t)(i * 7919 % (size_t)r->model.model->outputs);
    return NEB_OK;
}

static void close_rig(struct rig *r)
{
    neb__ready_close(&r->model);
    neb_device_close(r->device);
    neb__free(r->ids);
    neb__free(r->starts);
    neb__free(r->out);
    neb__free(r->lengths);
}

/* Bytes of the weights that every token reads: of the table it reads one row. */
static double weight_bytes(const struct rig *r)
{
    const neb_params *ps = r->model.params;
    const double size = r->device->config.compute == NEB_BF16 ? 2 : 4;
    double n = 0;
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (p != r->model.model->token || r->model.model->arch.tied) n += (double)p->values * size;
    }
    return n;
}

static neb_status take_turns(struct rig *r, const struct options *o, struct neb_decoding *d, int32_t seqs,
                             double time[TURNS_MAX])
{
    const struct neb_search how = {.max_new = (int32_t)o->length, .eos = -1, .beams = 1};
    for (int64_t i = -1; i < o->turns; i++) {
        const int64_t start = neb__now_ns();
        NEB_TRY(neb__decoding_generate(d, &how, NULL, seqs, r->ids, r->starts, r->out, r->lengths));
        if (i >= 0) time[i] = neb__seconds_since(start);
    }
    return NEB_OK;
}

static neb_status measure(struct rig *r, const struct options *o, int32_t seqs, struct neb_figures *f)
{
    const struct neb_decode_limits l = {seqs, (int32_t)(o->prompt + o->length), seqs * (int32_t)o->prompt, 0};
    struct neb_decoding *d = NULL;
    double time[TURNS_MAX];
    char name[48];
    NEB_TRY(neb__decoding_create(r->device, r->model.model, &l, &d));
    neb_status status = take_turns(r, o, d, seqs, time);
    neb__decoding_destroy(d);
    NEB_TRY(status);
    const double took = neb__figures_median(time, (int)o->turns), steps = (double)o->length;
    snprintf(name, sizeof name, "decode.tokens.%d", (int)seqs);
    neb__figures_add(f, name, steps * seqs / took, "tokens/s", NEB_REPORT, 0);
    snprintf(name, sizeof name, "decode.weights.%d", (int)seqs);
    neb__figures_add(f, name, weight_bytes(r) * steps / took / 1e9, "GB/s", NEB_REPORT, 0);
    return NEB_OK;
}

static neb_status measure_all(struct rig *r, const struct options *o, struct neb_figures *f)
{
    struct neb_device_info info;
    char word[16];
    const int64_t start = neb__now_ns();
    NEB_TRY(open_rig(r, o));
    neb__figures_add(f, "decode.open", neb__seconds_since(start), "s", NEB_REPORT, 0);
    for (int i = 0; neb__list_part(o->seqs, i, word, sizeof word); i++) NEB_TRY(measure(r, o, atoi(word), f));
    neb_device_get_info(r->device, &info);
    neb__figures_add(f, "decode.memory", (double)info.memory_peak / 1073741824, "GiB", NEB_REPORT, 0);
    return NEB_OK;
}

static bool sensible(const struct options *o)
{
    char word[16];
    bool good = o->model && o->seqs && o->prompt > 0 && o->length > 0 && o->prompt + o->length <= 1 << 20 &&
                o->turns > 0 && o->turns <= TURNS_MAX;
    for (int i = 0; good && neb__list_part(o->seqs, i, word, sizeof word); i++)
        good = atoi(word) > 0 && atoi(word) <= 4096;
    return good && most_of(o->seqs) > 0;
}

static int run(int argc, char **argv)
{
    const bool json = neb__bench_json(&argc, argv);
    struct options o;
    int n = 0, rc = 2;
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc, argv, &n) == NEB_OK && !n && sensible(&o)) {
        struct rig r = {0};
        struct neb_figures *f = neb__figures_begin("decode", json);
        const neb_status status = f ? measure_all(&r, &o, f) : NEB_ERR_NOMEM;
        close_rig(&r);
        rc = f ? neb__figures_end(f) : 1;
        if (status != NEB_OK) rc = 1;
    } else {
        fprintf(stderr, "usage: nebula-i bench decode --model FOLDER [options]\n\n");
        neb__opts_help(table, stderr);
    }
    neb__opts_free(table, &o);
    return rc;
}

const struct neb_bench neb__bench_decode = {"decode", "tokens a second of a model folder's decoder", run,
                                            table};
