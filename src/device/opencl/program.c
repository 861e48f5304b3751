/* program.c: compiling kernels at first use. The sources in kernels/ are part of the plug-in (sources.h). A module is compiled for a variant of its options; the result is kept in memory and on disk (cache.c). A cached
 * binary that the driver refuses is compiled again. */
#include "opencl.h"
#include "sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void options_of(const struct neb_ocl *dev, enum neb_ocl_module module, uint32_t variant, char *out,
                       size_t size)
{
    const struct neb_ocl_cut *c = &dev->cut;
    int n = snprintf(out, size, "-cl-std=%s -w -DVW=%d -DWG=%d -DSPAN=%d -DCOLS=%d -DBF16=%d -DSUBGROUPS=%d",
                     dev->language, c->vw, c->wg, c->span, c->cols, (int)(variant & 1), (int)dev->subgroups);
    if (module == NEB_OCL_ATTN) /* the head size, where the compiler wants to know it */
        snprintf(out + n, size - (size_t)n, " -DAW=%d -DHD=%d", c->aw, (int)(variant >> 1));
    if (module == NEB_OCL_GEMM) neb__ocl_tile_options(dev, variant, out + n, size - (size_t)n);
}

static void key_of(const struct neb_ocl *dev, enum neb_ocl_module module, const char *options, char *key,
                   size_t size)
{
    const enum neb_ocl_module part[2] = {NEB_OCL_MODULES, module};
    unsigned char digest[2][32];
    char hex[129];
    for (int i = 0; i < 2; i++)
        neb__ocl_sha256(neb__ocl_sources[part[i]].text, neb__ocl_sources[part[i]].size, digest[i]);
    for (int i = 0; i < 64; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i / 32][i % 32]);
    snprintf(key, size, "kernels\n%s\n%s\n%s\n%s\n", dev->kernels.key, neb__ocl_sources[module].name, options,
             hex);
}

static neb_status report_build(const struct neb_ocl *dev, cl_program program, const char *name, cl_int e)
{
    char log[600] = "";
    size_t n = 0;
    if (clGetProgramBuildInfo(program, dev->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &n) == CL_SUCCESS && n > 1) {
        char *all = malloc(n + 1);
        if (all &&
            clGetProgramBuildInfo(program, dev->id, CL_PROGRAM_BUILD_LOG, n, all, NULL) == CL_SUCCESS) {
            all[n] = 0;
            snprintf(log, sizeof log, "%.590s", all);
        }
        free(all);
    }
    return neb__ocl_fail(dev, NEB_ERR_DEVICE, "opencl %d: %s cannot compile %s.cl (%s): %s",
                         dev->config.index, dev->name, name, neb__ocl_error_name(e), log);
}

static cl_program from_cache(struct neb_ocl *dev, const char *key, const char *options)
{
    unsigned char *bytes;
    size_t n;
    if (!neb__ocl_cache_read(dev, key, &bytes, &n)) return NULL;
    const unsigned char *binary = bytes;
    cl_int loaded = CL_SUCCESS, e = CL_SUCCESS;
    cl_program p = clCreateProgramWithBinary(dev->context, 1, &dev->id, &n, &binary, &loaded, &e);
    if (e == CL_SUCCESS && loaded == CL_SUCCESS) e = clBuildProgram(p, 1, &dev->id, options, NULL, NULL);
    free(bytes);
    if (e == CL_SUCCESS && loaded == CL_SUCCESS) return p;
    if (p) clReleaseProgram(p);
    return NULL;
}

static void to_cache(struct neb_ocl *dev, const char *key, cl_program program)
{
    size_t n = 0;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, NULL) != CL_SUCCESS || n == 0)
        return;
    unsigned char *binary = malloc(n);
    if (!binary) return;
    if (clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == CL_SUCCESS)
        neb__ocl_cache_write(dev, key, binary, n);
    free(binary);
}

static neb_status compile(struct neb_ocl *dev, enum neb_ocl_module module, uint32_t variant, cl_program *out)
{
    char options[400], key[1400];
    const struct neb_ocl_source *common = &neb__ocl_sources[NEB_OCL_MODULES],
                                *own = &neb__ocl_sources[module];
    options_of(dev, module, variant, options, sizeof options);
    key_of(dev, module, options, key, sizeof key);
    *out = from_cache(dev, key, options);
    if (*out) return NEB_OK;
    const char *text[2] = {common->text, own->text};
    const size_t size[2] = {common->size, own->size};
    cl_int e = CL_SUCCESS;
    cl_program p = clCreateProgramWithSource(dev->context, 2, text, size, &e);
    if (e != CL_SUCCESS) return neb__ocl_error(dev, e, "clCreateProgramWithSource");
    e = clBuildProgram(p, 1, &dev->id, options, NULL, NULL);
    if (e != CL_SUCCESS) {
        neb_status s = report_build(dev, p, own->name, e);
        clReleaseProgram(p);
        return s;
    }
    to_cache(dev, key, p);
    *out = p;
    return NEB_OK;
}

/* Room for one more in an array of things of that size. */
static bool room_for(void **array, size_t n, size_t *room, size_t size)
{
    if (n < *room) return true;
    size_t more = *room ? 2 * *room : 32;
    void *larger = realloc(*array, more * size);
    if (!larger) return false;
    *array = larger;
    *room = more;
    return true;
}

static neb_status program_of(struct neb_ocl *dev, enum neb_ocl_module module, uint32_t variant,
                             cl_program *out)
{
    struct neb_ocl_kernels *k = &dev->kernels;
    for (size_t i = 0; i < k->programs; i++)
        if (k->program[i].module == module && k->program[i].variant == variant)
            return *out = k->program[i].program, NEB_OK;
    if (!room_for((void **)&k->program, k->programs, &k->program_room, sizeof *k->program))
        return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory for kernels");
    NEB_TRY(compile(dev, module, variant, out));
    k->program[k->programs++] = (struct neb_ocl_program){module, variant, *out};
    return NEB_OK;
}

neb_status neb__ocl_kernel(struct neb_ocl *dev, enum neb_ocl_module module, uint32_t variant,
                           const char *name, cl_kernel *out)
{
    struct neb_ocl_kernels *k = &dev->kernels;
    cl_program program;
    for (size_t i = 0; i < k->kernels; i++)
        if (k->kernel[i].name == name && k->kernel[i].variant == variant && k->kernel[i].module == module)
            return *out = k->kernel[i].kernel, NEB_OK;
    if (!room_for((void **)&k->kernel, k->kernels, &k->kernel_room, sizeof *k->kernel))
        return neb__ocl_fail(dev, NEB_ERR_NOMEM, "opencl: out of memory for kernels");
    NEB_TRY(program_of(dev, module, variant, &program));
    cl_int e = CL_SUCCESS;
    cl_kernel made = clCreateKernel(program, name, &e);
    if (e != CL_SUCCESS) return neb__ocl_error(dev, e, name);
    k->kernel[k->kernels++] = (struct neb_ocl_kernel){name, module, variant, made};
    *out = made;
    return NEB_OK;
}

void neb__ocl_kernels_close(struct neb_ocl *dev)
{
    struct neb_ocl_kernels *k = &dev->kernels;
    for (size_t i = 0; i < k->kernels; i++) clReleaseKernel(k->kernel[i].kernel);
    for (size_t i = 0; i < k->programs; i++) clReleaseProgram(k->program[i].program);
    free(k->kernel);
    free(k->program);
    memset(k, 0, sizeof *k);
}
