/* verb_device.c: `nebula-i device`: which devices there are, what one is, and whether it computes correctly. */
#include "cli/verb.h"
#include "base/opts.h"
#include "device/conform.h"

#include <nebula/engine.h>
#include <nebula/log.h>
#include <string.h>

struct options {
    char *device, *dtype, *isa, *only;
    int64_t threads, seed;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, device, NEB_OPT_TEXT, "cpu", NULL,
            "which device: cpu, cuda or another plug-in's name"),
    NEB_OPT(struct options, dtype, NEB_OPT_TEXT, "f32", NULL, "f32 or bf16"),
    NEB_OPT(struct options, isa, NEB_OPT_TEXT, "", NULL, "cpu: avx512, avx2 or plain instead of the best"),
    NEB_OPT(struct options, threads, NEB_OPT_INT, "0", NULL, "cpu: threads; 0 means one per core"),
    NEB_OPT(struct options, only, NEB_OPT_TEXT, "", NULL, "test: only the cases of this name"),
    NEB_OPT(struct options, seed, NEB_OPT_INT, "1", NULL, "test: of the random shapes and values"),
    NEB_OPT_END,
};

static neb_status open_device(const struct options *o, neb_device **out)
{
    struct neb_device_config config = {.threads = (int)o->threads, .isa = o->isa};
    if (o->dtype && !strcmp(o->dtype, "bf16"))
        config.compute = NEB_BF16;
    else if (o->dtype && strcmp(o->dtype, "f32"))
        return neb__fail(NEB_ERR_CONFIG, "--dtype: '%s' is neither f32 nor bf16", o->dtype);
    return neb_device_open(o->device ? o->device : "cpu", &config, out);
}

static void print_info(const char *name, neb_device *d)
{
    struct neb_device_info info;
    neb_device_get_info(d, &info);
    printf("%-6s %s, %.1f GiB\n", name, info.description, (double)info.memory_total / (1 << 30));
}

static void ignore(void *arg, neb_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static int list(void)
{
    static const char *const names[] = {"cpu", "cuda"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        neb_device *d;
        neb_log_set_sink(ignore, NULL); /* a missing plug-in is an answer here, not an error */
        neb_status s = neb_device_open(names[i], NULL, &d);
        neb_log_set_sink(NULL, NULL);
        if (s == NEB_OK) {
            print_info(names[i], d);
            neb_device_close(d);
        } else {
            printf("%-6s not usable: %s\n", names[i], neb_last_error());
        }
    }
    return 0;
}

static int test(const struct options *o, neb_device *d)
{
    struct neb_conform_result r;
    if (neb__conform_run(d, o->only, (uint64_t)o->seed, stdout, &r) != NEB_OK) return 1;
    printf("%d cases, %d checks, %d failures", r.cases, r.checks, r.failures);
    if (r.skipped) printf(", %d skipped (the device lacks the fused slot)", r.skipped);
    printf("\n");
    return r.failures ? 1 : 0;
}

static int usage(FILE *to)
{
    fprintf(to, "usage: nebula-i device list | info | test [options]\n\n");
    neb__opts_help(table, to);
    return to == stdout ? 0 : 2;
}

static int run(int argc, char **argv)
{
    struct options o = {0};
    int n = 0, rc = 1;
    neb_device *d = NULL;
    if (argc < 1 || !strcmp(argv[0], "--help")) return usage(argc < 1 ? stderr : stdout);
    const char *what = argv[0];
    if (!strcmp(what, "list")) return list();
    if (strcmp(what, "info") && strcmp(what, "test")) return usage(stderr);
    if (neb__opts_init(table, &o) != NEB_OK) return 1;
    if (neb__opts_args(table, &o, argc - 1, argv + 1, &n) != NEB_OK || n > 0)
        rc = usage(stderr);
    else if (open_device(&o, &d) == NEB_OK) {
        rc = 0;
        if (!strcmp(what, "info"))
            print_info(o.device ? o.device : "cpu", d);
        else
            rc = test(&o, d);
        neb_device_close(d);
    }
    neb__opts_free(table, &o);
    return rc;
}

const struct neb_verb neb__verb_device = {"device", "list|info|test …", "show and check compute devices",
                                          run};
