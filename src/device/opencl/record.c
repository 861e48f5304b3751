/* record.c: recordings. OpenCL 1.2 cannot record a queue, so the plug-in remembers the launches, copies and fills itself
 * and enqueues them again. A replay saves the program's work of choosing ops, finding kernels and translating addresses. */
#include "opencl.h"

#include <stdlib.h>
#include <string.h>

enum kind { LAUNCH, COPY, FILL };
struct step {
    enum kind kind;
    struct neb_ocl_launch *launch; /* cut to its arguments */
    cl_mem dst, src;
    size_t to, from, bytes;
    uint8_t byte;
};
struct neb_ocl_recording {
    struct step *step;
    size_t n, room;
};

neb_status neb__ocl_not_recording(struct neb_ocl *dev, const char *what)
{
    if (!dev->recording) return NEB_OK;
    return neb__ocl_fail(dev, NEB_ERR_STATE, "opencl: %s is not possible while a recording is being made",
                         what);
}

static void drop(struct neb_ocl_recording *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n; i++) free(r->step[i].launch);
    free(r->step);
    free(r);
}

void neb__ocl_record_drop(struct neb_ocl *dev)
{
    drop(dev->recording);
    dev->recording = NULL;
}

static neb_status add(struct neb_ocl *dev, struct step step)
{
    struct neb_ocl_recording *r = dev->recording;
    if (r->n == r->room) {
        size_t room = r->room ? 2 * r->room : 256;
        struct step *more = realloc(r->step, room * sizeof *more);
        if (!more) return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory for a recording");
        r->step = more;
        r->room = room;
    }
    r->step[r->n++] = step;
    return NEB_OK;
}

neb_status neb__ocl_record_launch(struct neb_ocl *dev, const struct neb_ocl_launch *l)
{
    struct neb_ocl_launch *copy = malloc(sizeof *copy);
    if (!copy) return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory for a recording");
    memcpy(copy, l, sizeof *copy);
    neb_status s = add(dev, (struct step){.kind = LAUNCH, .launch = copy});
    if (s != NEB_OK) free(copy);
    return s;
}

neb_status neb__ocl_record_copy(struct neb_ocl *dev, cl_mem dst, size_t to, cl_mem src, size_t from,
                                size_t bytes)
{
    return add(dev,
               (struct step){.kind = COPY, .dst = dst, .to = to, .src = src, .from = from, .bytes = bytes});
}

neb_status neb__ocl_record_fill(struct neb_ocl *dev, cl_mem dst, size_t to, uint8_t byte, size_t bytes)
{
    return add(dev, (struct step){.kind = FILL, .dst = dst, .to = to, .bytes = bytes, .byte = byte});
}

neb_status neb__ocl_graph_begin(void *ctx)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    NEB_TRY(neb__ocl_not_recording(dev, "graph_begin"));
    pthread_mutex_lock(&dev->lock);
    neb__ocl_tune(dev); /* which waits for the device, as nothing may that is recorded */
    pthread_mutex_unlock(&dev->lock);
    dev->recording = calloc(1, sizeof *dev->recording);
    return dev->recording ? NEB_OK
                          : neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory for a recording");
}

neb_status neb__ocl_graph_end(void *ctx, void **graph)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    if (!dev->recording) return neb__ocl_fail(dev, NEB_ERR_STATE, "opencl: graph_end without graph_begin");
    *graph = dev->recording;
    dev->recording = NULL;
    return NEB_OK;
}

static neb_status replay(struct neb_ocl *dev, const struct step *s)
{
    cl_int e = CL_SUCCESS;
    if (s->kind == LAUNCH) return neb__ocl_enqueue(s->launch);
    if (s->kind == COPY)
        e = clEnqueueCopyBuffer(dev->queue, s->src, s->dst, s->from, s->to, s->bytes, 0, NULL, NULL);
    else
        e = clEnqueueFillBuffer(dev->queue, s->dst, &s->byte, 1, s->to, s->bytes, 0, NULL, NULL);
    return e == CL_SUCCESS ? NEB_OK : neb__ocl_error(dev, e, "replay");
}

neb_status neb__ocl_graph_launch(void *ctx, void *graph)
{
    struct neb_ocl *dev = neb__ocl(ctx);
    const struct neb_ocl_recording *r = graph;
    neb_status s = neb__ocl_not_recording(dev, "graph_launch");
    pthread_mutex_lock(&dev->lock);
    for (size_t i = 0; s == NEB_OK && i < r->n; i++) s = replay(dev, &r->step[i]);
    pthread_mutex_unlock(&dev->lock);
    return s;
}

void neb__ocl_graph_free(void *ctx, void *graph)
{
    (void)ctx;
    drop(graph);
}
