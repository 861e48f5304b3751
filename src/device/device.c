/* device.c: finds a device by name and checks a plug-in's table before calling any of its slots.
 *
 * "cpu" is built in, and "auto" is cuda where that can be opened, else cpu. Any other name is a plug-in, the
 * shared object libnebula-i-NAME.so (base/plugin.h). A number behind a colon chooses among several of a kind.
 *
 * A plug-in is foreign code with a version: its table must carry our ABI number, be at least as large as the
 * table this program was built with (a larger one has slots that we do not know and do not call), and have
 * every required slot. A message of refusal names the file, so it answers "which of my three copies was
 * loaded?". */
#define _GNU_SOURCE
#include "device/device.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plugin.h"

#include <nebula/engine.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct slot_name {
    size_t offset;
    const char *name;
};

#define SLOT(field)                                    \
    {                                                  \
        offsetof(struct neb_device_ops, field), #field \
    }
static const struct slot_name required[] = {
    SLOT(open),   SLOT(close),    SLOT(info), SLOT(alloc), SLOT(free),
    SLOT(upload), SLOT(download), SLOT(copy), SLOT(fill),  SLOT(sync),
};
#define LISTED(slot, type) SLOT(slot),
static const struct slot_name primitives[] = {NEB_PRIMITIVE_SLOTS(LISTED)};
#undef LISTED
static const struct slot_name side[] = {SLOT(side_download), SLOT(side_upload), SLOT(fence_done),
                                        SLOT(fence_wait), SLOT(fence_join)};
static const struct slot_name graph[] = {SLOT(graph_begin), SLOT(graph_end), SLOT(graph_launch),
                                         SLOT(graph_free)};
static const struct slot_name host[] = {SLOT(host_alloc), SLOT(host_free)};
static const struct slot_name packing[] = {SLOT(packed_bytes), SLOT(pack_linear)};
static const struct slot_name narrow[] = {SLOT(linear_narrow), SLOT(linear_narrow_bwd)};
static const struct slot_name exchanges[] = {SLOT(comm_facts), SLOT(comm_id),    SLOT(comm_open),
                                             SLOT(exchange),   SLOT(comm_state), SLOT(comm_abort),
                                             SLOT(comm_close)};
static const struct slot_name beside[] = {SLOT(exchange_beside), SLOT(exchange_join)};
static const struct slot_name biased[] = {SLOT(attn_biased), SLOT(attn_biased_bwd)};
#undef SLOT

static bool has(const struct neb_device_ops *ops, const struct slot_name *s)
{
    void (*fn)(void);
    memcpy(&fn, (const char *)ops + s->offset, sizeof fn);
    return fn != NULL;
}

static neb_status check_required(const struct neb_device_ops *ops, const struct slot_name *slots, size_t n,
                                 const char *where)
{
    for (size_t i = 0; i < n; i++)
        if (!has(ops, &slots[i]))
            return neb__fail(NEB_ERR_UNSUPPORTED, "%s: the required slot %s is missing", where,
                             slots[i].name);
    return NEB_OK;
}

static neb_status check_group(const struct neb_device_ops *ops, const struct slot_name *group, int n,
                              const char *where)
{
    for (int i = 1; i < n; i++)
        if (has(ops, &group[i]) != has(ops, &group[0]))
            return neb__fail(NEB_ERR_UNSUPPORTED,
                             "%s: has only one of the slots %s and %s; a plug-in needs both or neither",
                             where, group[0].name, group[i].name);
    return NEB_OK;
}

/* A slot that computes and is in none of the lists would be wrapped and rehearsed by nobody. */
#define ONE(slot, type) +1
enum {
    COMPUTING = 0 NEB_PRIMITIVE_SLOTS(ONE) NEB_FUSED_SLOTS(ONE) NEB_OPTIONAL_SLOTS(ONE),
    OTHERS =
        33, /* open to scratch_bytes, packed_bytes, comm_facts to comm_close, probe, exchange_beside, exchange_join */
    TABLE = 16 + (COMPUTING + OTHERS) * (int)sizeof(void *) + 8
};
#undef ONE
_Static_assert(
    sizeof(void *) != 8 || sizeof(struct neb_device_ops) == TABLE,
    "the device's table changed: put a slot that computes into nebula/device_slots.h; wrap any other in "
    "host_wrap.c, then count it here");

/* A plug-in that was built with other argument structs must not be taken for one of this version. */
#define SIZE(s) sizeof(struct s)
enum {
    ABI_SIZES =
        (int)(SIZE(neb_gemm) + SIZE(neb_copy2d) + SIZE(neb_axpby) + SIZE(neb_mul) + SIZE(neb_act_args) +
              SIZE(neb_bias) + SIZE(neb_colsum) + SIZE(neb_swiglu) + SIZE(neb_embed) + SIZE(neb_rows) +
              SIZE(neb_pool_args) + SIZE(neb_rope) + SIZE(neb_dropout_args) + SIZE(neb_attn_softmax) +
              SIZE(neb_attn_dropout) + SIZE(neb_norm) + SIZE(neb_norm_bwd) + SIZE(neb_linear) +
              SIZE(neb_linear_bwd) + SIZE(neb_attn) + SIZE(neb_attn_bwd) + SIZE(neb_attn_listed) +
              SIZE(neb_linear_xent) + SIZE(neb_xent) + SIZE(neb_bce) + SIZE(neb_pair_loss) + SIZE(neb_best) +
              SIZE(neb_sample) + SIZE(neb_muon_args) + SIZE(neb_update) + SIZE(neb_clip) + SIZE(neb_sumsq) +
              SIZE(neb_pack_linear) + SIZE(neb_reduce) + SIZE(neb_comm_facts) + SIZE(neb_comm_place) +
              SIZE(neb_comm_exchange) + SIZE(neb_narrow) + SIZE(neb_widen) + SIZE(neb_linear_narrow) +
              SIZE(neb_linear_narrow_bwd) + SIZE(neb_attn_biased) + SIZE(neb_attn_biased_bwd) +
              SIZE(neb_comm_state) + SIZE(neb_device_ops) + SIZE(neb_device_config) + SIZE(neb_device_info))
};
#undef SIZE
_Static_assert(sizeof(void *) != 8 || ABI_SIZES == 6840,
               "a struct of the device ABI changed: raise NEB_DEVICE_ABI, then put the new sum here");

neb_status neb__device_check_ops(const struct neb_device_ops *ops, const char *where)
{
    if (ops->abi != NEB_DEVICE_ABI)
        return neb__fail(
            NEB_ERR_VERSION,
            "%s: has version %u of the device ABI, but this program has version %u; rebuild the plug-in",
            where, ops->abi, NEB_DEVICE_ABI);
    if (ops->size < sizeof *ops)
        return neb__fail(NEB_ERR_VERSION,
                         "%s: its table has %u bytes, but this program needs %zu; rebuild the plug-in", where,
                         ops->size, sizeof *ops);
    if (!ops->name || !ops->name[0])
        return neb__fail(NEB_ERR_UNSUPPORTED, "%s: the device has no name", where);
    NEB_TRY(check_required(ops, required, sizeof required / sizeof *required, where));
    if (!(ops->flags & NEB_DEVICE_HOST_PRIMITIVES))
        NEB_TRY(check_required(ops, primitives, sizeof primitives / sizeof *primitives, where));
    NEB_TRY(check_group(ops, side, sizeof side / sizeof *side, where));
    NEB_TRY(check_group(ops, graph, sizeof graph / sizeof *graph, where));
    NEB_TRY(check_group(ops, packing, sizeof packing / sizeof *packing, where));
    NEB_TRY(check_group(ops, narrow, sizeof narrow / sizeof *narrow, where));
    NEB_TRY(check_group(ops, exchanges, sizeof exchanges / sizeof *exchanges, where));
    NEB_TRY(check_group(ops, beside, sizeof beside / sizeof *beside, where));
    NEB_TRY(check_group(ops, biased, sizeof biased / sizeof *biased, where));
    return check_group(ops, host, sizeof host / sizeof *host, where);
}

/* Without a line in the log: the caller may have another device to try. */
static neb_status load(const char *name, struct neb_device *d)
{
    if (!name[0] || strlen(name) > 32 ||
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") != strlen(name))
        return neb__quiet(
            NEB_ERR_INVALID,
            "'%s' is not a device name; use auto, cpu, cuda, opencl or the name of another plug-in", name);
    char path[NEB_PLUGIN_PATH] = "";
    bool found = false;
    d->library = neb__plugin_find(name, path, &found);
    if (!d->library && found) {
        const char *why = dlerror();
        return neb__quiet(NEB_ERR_UNSUPPORTED, "%s cannot be loaded: %s", path, why ? why : "unknown reason");
    }
    if (!d->library)
        return neb__quiet(
            NEB_ERR_NOTFOUND,
            "device '%s': libnebula-i-%s.so was not found in $NEBULA_PLUGIN_PATH, the program's folder, "
            "../lib beside it or the system's library folders; put it there or set NEBULA_PLUGIN_PATH",
            name, name);
    neb_device_plugin_fn entry;
    *(void **)&entry = dlsym(d->library, "neb_device_plugin");
    if (!entry)
        return neb__quiet(NEB_ERR_UNSUPPORTED,
                          "%s: does not export neb_device_plugin(), so it is not a device plug-in", path);
    d->ops = entry(NEB_DEVICE_ABI);
    if (!d->ops)
        return neb__quiet(NEB_ERR_VERSION,
                          "%s: does not serve version %u of the device ABI; rebuild the plug-in", path,
                          NEB_DEVICE_ABI);
    return neb__device_check_ops(d->ops, path);
}

/* This thread tries whether a device can be opened: that it cannot is an answer, not an error. */
static _Thread_local bool trying;

/* The functions that a plug-in may call. */
static neb_status host_fail(neb_status status, const char *message)
{
    return trying ? neb__quiet(status, "%s", message) : neb__fail(status, "%s", message);
}
static void host_log(int level, const char *line)
{
    neb__log((neb_log_level)level, "%s", line);
}
static const struct neb_device_host host_calls = {host_fail, host_log};

static neb_status open_named(const char *name, const struct neb_device_config *config, neb_device **out)
{
    struct neb_device *d = NEB_NEW(struct neb_device);
    if (!d) return neb__fail(NEB_ERR_NOMEM, "out of memory for device '%s'", name);
    d->config = *config;
    d->config.host = &host_calls;
    neb_status status = NEB_OK;
    if (!strcmp(name, "cpu")) {
        d->ops = &neb__cpu_ops;
    } else {
        status = load(name, d);
        if (status != NEB_OK && !trying) neb__fail(status, "%s", neb_last_error());
    }
    bool loaded = status == NEB_OK;
    if (loaded) status = d->ops->open(&d->config, &d->ctx);
    if (status == NEB_OK && (d->ops->flags & NEB_DEVICE_HOST_PRIMITIVES)) {
        status = neb__host_ops_wrap(d);
        if (status != NEB_OK) d->ops->close(d->ctx);
    }
    d->config.isa = NULL; /* the string belongs to the caller */
    if (status != NEB_OK) {
        if (d->library && !loaded)
            dlclose(d->library); /* one that was called stays, as in neb_device_close() */
        neb__free(d);
        return status;
    }
    *out = d;
    return NEB_OK;
}

/* "auto": the GPU where there is one, else the CPU. The log says which and why, once a process. */
static neb_status open_auto(const struct neb_device_config *config, neb_device **out)
{
    static atomic_bool said;
    struct neb_device_info info;
    trying = true;
    neb_status status = open_named("cuda", config, out);
    trying = false;
    bool say = !atomic_exchange(&said, true);
    if (status == NEB_OK) {
        neb_device_get_info(*out, &info);
        if (say) neb__info("device auto: computing on the GPU, %s", info.description);
        return NEB_OK;
    }
    if (say && status == NEB_ERR_NOTFOUND)
        neb__info(
            "device auto: computing on the CPU; this program has no CUDA plug-in (libnebula-i-cuda.so)");
    else if (say)
        neb__log(status == NEB_ERR_VERSION ? NEB_LOG_WARN : NEB_LOG_INFO,
                 "device auto: computing on the CPU, because the GPU cannot be used: %s", neb_last_error());
    return open_named("cpu", config, out);
}

/* "NAME:2" is device number 2 of that kind; "NAME" leaves the number alone. */
static neb_status split_name(const char *name, char kind[NEB_DEVICE_NAME], int *index)
{
    const char *colon = strchr(name, ':');
    const size_t n = colon ? (size_t)(colon - name) : strlen(name);
    char *end = NULL;
    long number = *index;
    if (colon) number = colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : -1;
    if (n >= NEB_DEVICE_NAME || number < 0 || number > 9999 || (end && *end))
        return neb__fail(NEB_ERR_INVALID, "'%s' is not a device; use NAME or NAME:NUMBER, such as opencl:1",
                         name);
    memcpy(kind, name, n);
    kind[n] = 0;
    *index = (int)number;
    return NEB_OK;
}

neb_status neb__device_probe(const char *kind, int index, struct neb_device_info *out)
{
    struct neb_device d = {0};
    neb_status status = load(kind, &d);
    if (status != NEB_OK || !d.ops->probe) {
        if (d.library) dlclose(d.library);
        return status != NEB_OK ? status : NEB_ERR_UNSUPPORTED;
    }
    trying = true;
    status = d.ops->probe(index, &host_calls, out);
    trying = false;
    return status; /* a plug-in that was called stays loaded */
}

int neb__device_count(const char *name)
{
    struct neb_device_info info;
    char kind[NEB_DEVICE_NAME];
    int index = 0, n = 0;
    if (!strcmp(name, "cpu") || split_name(name, kind, &index) != NEB_OK) return 0;
    if (strchr(name, ':')) return 1;
    while (neb__device_probe(strcmp(kind, "auto") ? kind : "cuda", n, &info) == NEB_OK) n++;
    return n;
}

neb_status neb_device_open(const char *name, const struct neb_device_config *config, neb_device **out)
{
    const struct neb_device_config fallback = {.compute = NEB_F32};
    struct neb_device_config own = config ? *config : fallback;
    char kind[NEB_DEVICE_NAME];
    NEB_TRY(split_name(name, kind, &own.index));
    config = &own;
    name = kind;
    if (config->compute != NEB_F32 && config->compute != NEB_BF16)
        return neb__fail(NEB_ERR_DTYPE, "a device computes in f32 or bf16, not in type %d",
                         (int)config->compute);
    return strcmp(name, "auto") ? open_named(name, config, out) : open_auto(config, out);
}

void neb_device_close(neb_device *d)
{
    if (!d) return;
    d->ops->close(d->ctx);
    neb__free(d->table);
    /* A plug-in stays loaded, because CUDA's runtime registers destructors that must not be unmapped. */
    neb__free(d);
}
