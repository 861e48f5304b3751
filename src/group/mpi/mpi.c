/* mpi.c: the plug-in libnebula-i-mpi.so: the ranks of a site as processes of MPI.
 *
 * It only joins processes, shares memory and moves bytes; the program decides what is exchanged and how long
 * anybody waits. A closed context keeps its communicator until the end: freeing one is collective, and a rank
 * that failed would leave the others waiting. */
#include <nebula/group.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct context {
    MPI_Comm comm;
    MPI_Win window; /* MPI_WIN_NULL: none */
    int rank, size;
    int first; /* made by open() */
};

struct request {
    MPI_Request mpi;
    int *counts, *starts; /* of a gather; freed with the request */
};

static const struct neb_group_host *program;

static neb_status failed(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 80], why[MPI_MAX_ERROR_STRING];
    int n;
    if (code == MPI_SUCCESS) return NEB_OK;
    if (MPI_Error_string(code, why, &n) != MPI_SUCCESS) strcpy(why, "unknown error");
    snprintf(text, sizeof text, "MPI: %s: %s", what, why);
    return program->fail(NEB_ERR_PEER, text);
}

static neb_status no_memory(void)
{
    return program->fail(NEB_ERR_NOMEM, "out of memory in the MPI plug-in");
}

static neb_status wrap(MPI_Comm comm, int first, void **ctx, struct neb_group_place *out)
{
    struct context *c = calloc(1, sizeof *c);
    if (!c) return no_memory();
    *c = (struct context){.comm = comm, .window = MPI_WIN_NULL, .first = first};
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm, &c->rank);
    MPI_Comm_size(comm, &c->size);
    *out = (struct neb_group_place){c->rank, c->size};
    *ctx = c;
    return NEB_OK;
}

static neb_status mpi_open(const struct neb_group_host *host, void **ctx, struct neb_group_place *out)
{
    int have, begun;
    program = host;
    MPI_Initialized(&begun);
    if (!begun && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &have) != MPI_SUCCESS)
        return host->fail(NEB_ERR_UNSUPPORTED, "MPI cannot be started in this process");
    return wrap(MPI_COMM_WORLD, 1, ctx, out);
}

static neb_status mpi_split(void *ctx, int color, void **out, struct neb_group_place *place)
{
    struct context *c = ctx;
    MPI_Comm part;
    neb_status status = failed(MPI_Comm_split(c->comm, color, c->rank, &part), "splitting the ranks");
    return status == NEB_OK ? wrap(part, 0, out, place) : status;
}

/* The first rank's memory holds the whole window. */
static neb_status mpi_share(void *ctx, size_t bytes, void **out)
{
    struct context *c = ctx;
    MPI_Comm node;
    MPI_Aint size;
    int here, unit;
    *out = NULL;
    neb_status status =
        failed(MPI_Comm_split_type(c->comm, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &node),
               "finding this machine's ranks");
    if (status != NEB_OK) return status;
    MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN);
    MPI_Comm_size(node, &here);
    if (here != c->size) return NEB_OK;
    void *base;
    status = failed(
        MPI_Win_allocate_shared(c->rank ? 0 : (MPI_Aint)bytes, 1, MPI_INFO_NULL, node, &base, &c->window),
        "sharing memory (is /dev/shm full?)");
    if (status == NEB_OK)
        status = failed(MPI_Win_shared_query(c->window, 0, &size, &unit, &base), "sharing memory");
    if (status != NEB_OK) return status;
    if (!c->rank) memset(base, 0, bytes);
    status = failed(MPI_Barrier(node), "sharing memory");
    if (status == NEB_OK) *out = base;
    return status;
}

static MPI_Datatype type_of(neb_group_type t)
{
    if (t == NEB_GROUP_F32) return MPI_FLOAT;
    return t == NEB_GROUP_F64 ? MPI_DOUBLE : MPI_INT64_T;
}

static struct request *request_new(void **out)
{
    struct request *r = calloc(1, sizeof *r);
    *out = r;
    return r;
}

static void request_free(struct request *r)
{
    if (!r) return;
    free(r->counts);
    free(r->starts);
    free(r);
}

static neb_status begun(struct request *r, int code, const char *what)
{
    neb_status status = failed(code, what);
    if (status != NEB_OK) request_free(r);
    return status;
}

static neb_status mpi_reduce(void *ctx, void *values, int64_t n, neb_group_type type, neb_group_op op,
                             void **request)
{
    struct context *c = ctx;
    struct request *r = request_new(request);
    if (!r) return no_memory();
    return begun(r,
                 MPI_Iallreduce(MPI_IN_PLACE, values, (int)n, type_of(type),
                                op == NEB_GROUP_SUM ? MPI_SUM : MPI_MAX, c->comm, &r->mpi),
                 "adding up");
}

static neb_status mpi_gather(void *ctx, void *bytes, const int64_t *edge, void **request)
{
    struct context *c = ctx;
    struct request *r = request_new(request);
    if (!r) return no_memory();
    r->counts = malloc((size_t)c->size * sizeof(int));
    r->starts = malloc((size_t)c->size * sizeof(int));
    if (!r->counts || !r->starts) {
        request_free(r);
        return no_memory();
    }
    /* in units of 4 bytes, so that 8 GiB can be counted */
    for (int q = 0; q < c->size; q++) {
        r->counts[q] = (int)((edge[q + 1] - edge[q]) / 4);
        r->starts[q] = (int)(edge[q] / 4);
    }
    return begun(r,
                 MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bytes, r->counts, r->starts, MPI_INT32_T,
                                 c->comm, &r->mpi),
                 "gathering");
}

static neb_status mpi_broadcast(void *ctx, void *bytes, int64_t n, int root, void **request)
{
    struct context *c = ctx;
    struct request *r = request_new(request);
    if (!r) return no_memory();
    return begun(r, MPI_Ibcast(bytes, (int)n, MPI_BYTE, root, c->comm, &r->mpi), "broadcasting");
}

static neb_status mpi_send(void *ctx, const void *bytes, int64_t n, int to, void **request)
{
    struct context *c = ctx;
    struct request *r = request_new(request);
    if (!r) return no_memory();
    return begun(r, MPI_Isend(bytes, (int)n, MPI_BYTE, to, 1, c->comm, &r->mpi), "sending");
}

static neb_status mpi_receive(void *ctx, void *bytes, int64_t n, int from, void **request)
{
    struct context *c = ctx;
    struct request *r = request_new(request);
    if (!r) return no_memory();
    return begun(r, MPI_Irecv(bytes, (int)n, MPI_BYTE, from, 1, c->comm, &r->mpi), "receiving");
}

static neb_status mpi_test(void *ctx, void *request, int *done)
{
    struct request *r = request;
    (void)ctx;
    *done = 0;
    neb_status status = failed(MPI_Test(&r->mpi, done, MPI_STATUS_IGNORE), "waiting");
    if (*done || status != NEB_OK) request_free(r);
    return status;
}

static void mpi_abort(void *ctx, int code)
{
    struct context *c = ctx;
    MPI_Abort(c->comm, code);
}

static void mpi_close(void *ctx)
{
    struct context *c = ctx;
    if (c->first) MPI_Finalize();
    free(c);
}

static const struct neb_group_engine engine = {
    .abi = NEB_GROUP_ABI,
    .size = sizeof(struct neb_group_engine),
    .name = "mpi",
    .open = mpi_open,
    .split = mpi_split,
    .share = mpi_share,
    .reduce = mpi_reduce,
    .gather = mpi_gather,
    .broadcast = mpi_broadcast,
    .send = mpi_send,
    .receive = mpi_receive,
    .test = mpi_test,
    .abort = mpi_abort,
    .close = mpi_close,
};

__attribute__((visibility("default"))) const struct neb_group_engine *neb_group_plugin(uint32_t abi);
const struct neb_group_engine *neb_group_plugin(uint32_t abi)
{
    return abi == NEB_GROUP_ABI ? &engine : NULL;
}
