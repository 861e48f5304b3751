/* decoder_model.c: a decoder on its device, its text on standard output, and Ctrl-C.
 *
 * Ctrl-C only leaves a note. The text ends behind the token that is being made, with a line end, and everything is closed.
 * A second Ctrl-C ends the program at once, as it would without us. */
#include "cli/decoder_model.h"
#include "base/clock.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

const struct neb_opt neb__decoder_options[] = {
    NEB_OPT(struct neb_decoder_options, device, NEB_OPT_TEXT, "cpu", NULL,
            "cpu, auto (the GPU where there is one) or a plug-in such as cuda"),
    NEB_OPT(struct neb_decoder_options, dtype, NEB_OPT_TEXT, "f32", NULL, "compute type; bf16 on a GPU",
            NEB_OPT_CHOICE("f32", "bf16")),
    NEB_OPT(struct neb_decoder_options, threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores",
            NEB_OPT_RANGE(0, 1024)),
    NEB_OPT(struct neb_decoder_options, stats, NEB_OPT_BOOL, "no", NULL,
            "say how many tokens a second it made"),
    NEB_OPT_END,
};

/* ---- Ctrl-C -------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t asked;

static void note(int signal)
{
    (void)signal;
    asked = 1;
}

void neb__interrupt_catch(void)
{
    const struct sigaction a = {.sa_handler = note, .sa_flags = SA_RESETHAND};
    sigaction(SIGINT, &a, NULL);
}

bool neb__interrupt_asked(void)
{
    return asked;
}

void neb__interrupt_again(void)
{
    asked = 0;
    neb__interrupt_catch();
}

/* ---- the model ----------------------------------------------------------------------------------------------------- */

neb_status neb__decoder_model_open(const char *folder, const struct neb_decoder_options *o,
                                   struct neb_decoder_model *out)
{
    struct neb_device_config config = {.compute = strcmp(o->dtype, "bf16") ? NEB_F32 : NEB_BF16,
                                       .threads = (int)o->threads};
    NEB_TRY(neb_device_open(o->device, &config, &out->device));
    neb_status status = neb__ready_open(folder, NULL, out->device, &out->model);
    if (status == NEB_OK) {
        status = neb__generator_open(&out->model, &o->how, &out->generator);
        if (status == NEB_OK) return NEB_OK;
        neb__ready_close(&out->model);
    }
    neb_device_close(out->device);
    return status;
}

void neb__decoder_model_close(struct neb_decoder_model *m)
{
    neb__generator_close(m->generator);
    neb__ready_close(&m->model);
    neb_device_close(m->device);
}

/* ---- the text ------------------------------------------------------------------------------------------------------ */

void neb__decoder_output_begin(struct neb_decoder_output *out)
{
    out->tokens = 0;
    out->began = neb__now_ns();
}

neb_status neb__decoder_output_write(void *arg, const char *text, size_t n, int32_t id, double logp)
{
    struct neb_decoder_output *out = arg;
    out->tokens += id >= 0;
    if (out->scores && id >= 0)
        printf("%d %.7g\n", (int)id, logp);
    else if (!out->scores)
        fwrite(text, 1, n, stdout);
    if (out->keep) NEB_TRY(neb__buf_append(out->keep, text, n));
    if (fflush(stdout) || ferror(stdout)) return neb__fail(NEB_ERR_IO, "cannot write the text");
    return asked && id >= 0 ? neb__quiet(NEB_ERR_CANCELLED, "interrupted") : NEB_OK;
}

neb_status neb__decoder_output_end(struct neb_decoder_output *out, const struct neb_decoder_options *o)
{
    const double took = neb__seconds_since(out->began);
    putchar('\n');
    if (fflush(stdout) || ferror(stdout)) return neb__fail(NEB_ERR_IO, "cannot write the text");
    if (o->stats)
        fprintf(stderr, "%" PRId64 " tokens in %.3f s, %.1f tokens/s\n", out->tokens, took,
                (double)out->tokens / took);
    return NEB_OK;
}
