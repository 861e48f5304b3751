/* launch.c: one launch of a kernel: the arguments are collected in a struct, then set and enqueued, or remembered while a
 * recording runs. An error on the way is kept and returned by run. */
#include "opencl.h"

#include <string.h>

struct neb_ocl_launch neb__ocl_begin(struct neb_ocl *dev, enum neb_ocl_module module, uint32_t variant,
                                     const char *name)
{
    struct neb_ocl_launch l;
    l.dev = dev, l.name = name, l.kernel = NULL, l.n = 0, l.local_given = false;
    l.status = neb__ocl_kernel(dev, module, variant, name, &l.kernel);
    return l;
}

static struct neb_ocl_arg *next(struct neb_ocl_launch *l, size_t size)
{
    static struct neb_ocl_arg nowhere;
    if (l->status == NEB_OK && l->n == NEB_OCL_ARGS)
        l->status = neb__ocl_fail(l->dev, NEB_ERR_INTERNAL, "opencl: %s: too many arguments", l->name);
    if (l->status != NEB_OK) return &nowhere;
    struct neb_ocl_arg *a = &l->arg[l->n++];
    a->size = size;
    return a;
}

void neb__ocl_long(struct neb_ocl_launch *l, int64_t v)
{
    next(l, sizeof(cl_long))->v.l = v;
}
void neb__ocl_int(struct neb_ocl_launch *l, int v)
{
    next(l, sizeof(cl_int))->v.i = v;
}
void neb__ocl_uint(struct neb_ocl_launch *l, uint32_t v)
{
    next(l, sizeof(cl_uint))->v.u = v;
}
void neb__ocl_float(struct neb_ocl_launch *l, float v)
{
    next(l, sizeof(cl_float))->v.f = v;
}
void neb__ocl_mem_at(struct neb_ocl_launch *l, cl_mem mem, int64_t first)
{
    next(l, sizeof(cl_mem))->v.mem = mem;
    neb__ocl_long(l, first);
}
void neb__ocl_mem(struct neb_ocl_launch *l, cl_mem mem)
{
    neb__ocl_mem_at(l, mem, 0);
}

/* A kernel does not touch what its flags say is missing, so NULL becomes a buffer that is always there. */
void neb__ocl_ptr(struct neb_ocl_launch *l, const void *p, size_t size)
{
    cl_mem mem = NULL;
    size_t offset = 0;
    if (l->status != NEB_OK) return;
    if (!p) {
        l->status = neb__ocl_work(l->dev, NEB_OCL_WORK_PARTS, 1, &mem);
    } else {
        l->status = neb__ocl_find(l->dev, p, 1, &mem, &offset);
        if (l->status == NEB_OK && offset % size)
            l->status = neb__ocl_fail(l->dev, NEB_ERR_INVALID, "opencl: %s: %p is not aligned to %zu bytes",
                                      l->name, p, size);
    }
    if (l->status != NEB_OK) return;
    next(l, sizeof(cl_mem))->v.mem = mem;
    neb__ocl_long(l, (int64_t)(offset / size));
}

neb_status neb__ocl_enqueue(const struct neb_ocl_launch *l)
{
    for (int i = 0; i < l->n; i++) {
        cl_int e = clSetKernelArg(l->kernel, (cl_uint)i, l->arg[i].size, &l->arg[i].v);
        if (e != CL_SUCCESS)
            return neb__ocl_fail(l->dev, NEB_ERR_DEVICE, "opencl %d: argument %d of %s: %s",
                                 l->dev->config.index, i, l->name, neb__ocl_error_name(e));
    }
    /* Some GPUs count at most 65535 groups in the second dimension. Kernels with more rows than that take their row from
     * the global id, so they run in slices. */
    const size_t rows = l->global[1], wide = l->local_given ? l->local[1] : 1;
    const size_t most = l->dev->cpu ? rows : 65535 * wide;
    for (size_t first = 0; first < rows; first += most) {
        const size_t offset[3] = {0, first, 0};
        const size_t range[3] = {l->global[0], rows - first < most ? rows - first : most, l->global[2]};
        cl_int e = clEnqueueNDRangeKernel(l->dev->queue, l->kernel, 3, first ? offset : NULL, range,
                                          l->local_given ? l->local : NULL, 0, NULL, NULL);
        if (e != CL_SUCCESS) return neb__ocl_error(l->dev, e, l->name);
    }
    return NEB_OK;
}

static neb_status go(struct neb_ocl_launch *l)
{
    if (l->status != NEB_OK) return l->status;
    for (int i = 0; i < 3; i++)
        if (l->global[i] == 0) return NEB_OK;
    return l->dev->recording ? neb__ocl_record_launch(l->dev, l) : neb__ocl_enqueue(l);
}

neb_status neb__ocl_run(struct neb_ocl_launch *l, int64_t x, int64_t y, int64_t z)
{
    l->global[0] = (size_t)x, l->global[1] = (size_t)y, l->global[2] = (size_t)z;
    return go(l);
}

neb_status neb__ocl_run_groups(struct neb_ocl_launch *l, int64_t gx, int64_t gy, int64_t gz, int lx, int ly)
{
    l->local_given = true;
    l->local[0] = (size_t)lx, l->local[1] = (size_t)ly, l->local[2] = 1;
    return neb__ocl_run(l, gx * lx, gy * ly, gz);
}

/* The bounds of the kernel's loop absorb what the rounding adds. */
neb_status neb__ocl_run_each(struct neb_ocl_launch *l, int64_t n, int64_t rows)
{
    const struct neb_ocl_cut *c = &l->dev->cut;
    const int64_t items = neb__ocl_ceil(n, c->span);
    if (l->dev->cpu) return neb__ocl_run_groups(l, items, rows, 1, 1, 1);
    return neb__ocl_run_groups(l, neb__ocl_ceil(items, 128), rows, 1, 128, 1);
}

neb_status neb__ocl_run_rows(struct neb_ocl_launch *l, int64_t rows, int64_t more)
{
    return neb__ocl_run_groups(l, rows, more, 1, l->dev->cut.wg, 1);
}
