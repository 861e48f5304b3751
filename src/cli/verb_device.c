/* verb_device.c: `nebula-i device`: which devices there are, what one is, and whether it computes correctly. */
#include "cli/verb.h"
#include "device/conform.h"
#include "device/device.h"

#include <nebula/engine.h>
#include <nebula/log.h>
#include <string.h>

struct options {
    char *device, *dtype, *isa, *only;
    int64_t threads, seed;
    bool tiny;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "which device: cpu, cuda, opencl or another plug-in's name; NAME:1 is the second of its kind"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "f32", NULL, "compute type", NEB_OPT_CHOICE("f32", "bf16")),
    NEB_OPT(struct options, isa, NEB_OPT_TEXT, "", NULL, "instructions of the cpu, instead of the best",
            NEB_OPT_CHOICE("avx512", "avx2", "plain")),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "cpu: threads; 0: one per core",
            NEB_OPT_RANGE(0, 1024)),
    NEB_OPT(struct options, only, NEB_OPT_TEXT, "", NULL, "test: only the cases of this name"),
    NEB_OPT(struct options, tiny, NEB_OPT_BOOL, "no", NULL,
            "test: small shapes and few cases, for a device that is simulated"),
    NEB_OPT(struct options, seed, NEB_OPT_INT, "1", NULL, "test: of the random shapes and values"),
    NEB_OPT_END,
};

static neb_status open_device(const struct options *o, neb_device **out)
{
    struct neb_device_config config = {.threads = (int)o->threads, .isa = o->isa};
    config.compute = strcmp(o->dtype, "bf16") ? NEB_F32 : NEB_BF16;
    return neb_device_open(o->device, &config, out);
}

static void print_line(const char *name, const struct neb_device_info *info)
{
    printf("%-6s %s, %.1f GiB\n", name, info->description, (double)info->memory_total / (1 << 30));
}

static void print_info(const char *name, neb_device *d)
{
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    print_line(name, &info);
}

static void ignore(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

/* A plug-in that can say what it has lists all its devices; of another one, the first is opened. */
static void list_kind(const char *kind)
{
    struct neb_device_info info;
    char name[NEB_DEVICE_NAME + 12];
    neb_device *d;
    int n = 0;
    while (strcmp(kind, "cpu") && neb__device_probe(kind, n, &info) == NEB_OK) {
        snprintf(name, sizeof name, "%s:%d", kind, n++);
        print_line(name, &info);
    }
    if (n) return;
    if (neb_device_open(kind, NULL, &d) == NEB_OK) {
        print_info(kind, d);
        neb_device_close(d);
    } else {
        printf("%-6s not usable: %s\n", kind, neb_last_error());
    }
}

static neb_status list(struct neb_call *c)
{
    (void)c;
    static const char *const kinds[] = {"cpu", "cuda", "opencl"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        neb_log_set_sink(ignore, NULL); /* a missing plug-in is an answer here, not an error */
        list_kind(kinds[i]);
        neb_log_set_sink(NULL, NULL);
    }
    return NEB_OK;
}

static neb_status info(struct neb_call *c)
{
    const struct options *o = c->options;
    neb_device *d;
    NEB_TRY(open_device(o, &d));
    print_info(o->device, d);
    neb_device_close(d);
    return NEB_OK;
}

static neb_status test(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_conform_result r;
    neb_device *d;
    NEB_TRY(open_device(o, &d));
    neb_status status = o->tiny ? neb__conform_run_tiny(d, o->only, (uint64_t)o->seed, stdout, &r)
                                : neb__conform_run(d, o->only, (uint64_t)o->seed, stdout, &r);
    neb_device_close(d);
    NEB_TRY(status);
    printf("%d cases, %d checks, %d failures", r.cases, r.checks, r.failures);
    if (r.skipped) printf(", %d skipped (the device lacks the fused slot)", r.skipped);
    printf("\n");
    c->code = r.failures ? 1 : 0;
    return NEB_OK;
}

static const struct neb_verb parts[] = {
    {.name = "list", .args = "", .help = "the devices of this machine", .run = list},
    {.name = "info", .args = "[options]", .help = "what one of them is", .run = info},
    {.name = "test", .args = "[options]", .help = "whether it computes correctly", .run = test},
    {0},
};

const struct neb_verb neb__verb_device = {
    .name = "device",
    .args = "",
    .help = "show and check compute devices",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .parts = parts,
};
