/* group.h: the boundary between Nebula-I and an engine that starts and joins the processes of one site, and
 * the ABI of such plug-ins.
 *
 * An engine (MPI) is a shared object libnebula-i-NAME.so that exports
 *
 *     const struct neb_group_engine *neb_group_plugin(uint32_t abi);
 *
 * and returns NULL when it cannot serve that ABI version. A site of one process needs none.
 *
 * A process of a site is a rank. Every call below is collective: all ranks of the group make it, in the same
 * order. The calls that begin an exchange return at once; test() tells whether it is over, so that the caller
 * decides how long to wait. One thread makes all calls. */
#ifndef NEBULA_GROUP_H
#define NEBULA_GROUP_H

#include <nebula/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEB_GROUP_ABI 1u

typedef enum neb_group_type { NEB_GROUP_F32, NEB_GROUP_F64, NEB_GROUP_I64 } neb_group_type;
typedef enum neb_group_op { NEB_GROUP_SUM, NEB_GROUP_MAX } neb_group_op;

/* Functions of the program that a plug-in may call. `fail` stores the message for neb_last_error(), logs it,
 * and returns the status it was given. */
struct neb_group_host {
    neb_status (*fail)(neb_status status, const char *message);
};

struct neb_group_place {
    int rank, size;
};

struct neb_group_engine {
    uint32_t abi, size; /* NEB_GROUP_ABI; bytes of this table */
    const char *name;
    /* Joins the processes that were started together. */
    neb_status (*open)(const struct neb_group_host *host, void **ctx, struct neb_group_place *out);
    /* A group of the ranks that give the same colour, in their present order. */
    neb_status (*split)(void *ctx, int color, void **out, struct neb_group_place *place);
    /* Memory that all ranks of the group see, zeroed; NULL if they are on different machines. */
    neb_status (*share)(void *ctx, size_t bytes, void **out);
    /* In place, over all ranks. */
    neb_status (*reduce)(void *ctx, void *values, int64_t n, neb_group_type type, neb_group_op op,
                         void **request);
    /* Rank r has bytes [edge[r], edge[r + 1]) of `bytes`; afterwards every rank has all. */
    neb_status (*gather)(void *ctx, void *bytes, const int64_t *edge, void **request);
    neb_status (*broadcast)(void *ctx, void *bytes, int64_t n, int root, void **request);
    neb_status (*send)(void *ctx, const void *bytes, int64_t n, int to, void **request);
    neb_status (*receive)(void *ctx, void *bytes, int64_t n, int from, void **request);
    /* *done 1: the exchange is over and the request is gone. */
    neb_status (*test)(void *ctx, void *request, int *done);
    /* Ends all processes of the site with this exit code; does not return. */
    void (*abort)(void *ctx, int code);
    void (*close)(void *ctx); /* the context of open() last */
};

typedef const struct neb_group_engine *(*neb_group_plugin_fn)(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif
