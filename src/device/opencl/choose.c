/* choose.c: the devices of this machine. They are numbered over all platforms, in the order in which OpenCL's loader
 * lists them: device 1 of two platforms with one device each is the second platform's. */
#include "opencl.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 64 }; /* platforms, and devices of one */

static neb_status say(const struct neb_device_host *host, neb_status s, const char *text)
{
    return host && host->fail ? host->fail(s, text) : s;
}

static void text_of(cl_device_id id, cl_device_info what, char *out, size_t size)
{
    char text[1024] = "";
    if (clGetDeviceInfo(id, what, sizeof text, text, NULL) != CL_SUCCESS) text[0] = 0;
    text[sizeof text - 1] = 0;
    const char *from = text + strspn(text, " ");
    snprintf(out, size, "%.*s", (int)size - 1, from);
    for (size_t n = strlen(out); n && out[n - 1] == ' '; n--) out[n - 1] = 0;
}

/* The device of that number. spread: numbers count round the devices. */
static neb_status find(int index, bool spread, const struct neb_device_host *host, cl_platform_id *platform,
                       cl_device_id *id)
{
    cl_platform_id platforms[MOST];
    cl_device_id devices[MOST];
    cl_uint n = 0;
    int count = 0;
    if (clGetPlatformIDs(MOST, platforms, &n) != CL_SUCCESS || n == 0)
        return say(host, NEB_ERR_UNSUPPORTED,
                   "opencl: this machine has no OpenCL driver; install the vendor's, or pocl for the CPU "
                   "(Debian: apt "
                   "install pocl-opencl-icd)");
    for (cl_uint p = 0; p < n && p < MOST; p++) {
        cl_uint found = 0;
        if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST, devices, &found) != CL_SUCCESS) continue;
        if (found > MOST) found = MOST;
        if (index >= count && index < count + (int)found) {
            *platform = platforms[p];
            *id = devices[index - count];
            return NEB_OK;
        }
        count += (int)found;
    }
    if (spread && index >= count && count) return find(index % count, false, host, platform, id);
    char text[120];
    if (count)
        snprintf(text, sizeof text, "opencl: device %d does not exist; this machine has 0 to %d", index,
                 count - 1);
    else
        snprintf(text, sizeof text, "opencl: the drivers of this machine offer no device");
    return say(host, count ? NEB_ERR_NOTFOUND : NEB_ERR_UNSUPPORTED, text);
}

/* "OpenCL 1.2 …" → 102 */
static int version_of(cl_device_id id)
{
    char text[64];
    int major = 0, minor = 0;
    text_of(id, CL_DEVICE_VERSION, text, sizeof text);
    return sscanf(text, "OpenCL %d.%d", &major, &minor) == 2 ? 100 * major + minor : 0;
}

/* ---- what a device has beside OpenCL 1.2 ---- */

enum { EXTRA_FP16 = 1, EXTRA_BF16 = 2, EXTRA_SUBGROUPS = 4, EXTRA_MATRIX = 8 };

static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
    return false;
}

/* fp16 that rounds to nearest and knows infinities: other fp16 is of no use to us. */
static bool good_fp16(cl_device_id id, const char *words)
{
    const cl_device_info half_config = 0x1033; /* CL_DEVICE_HALF_FP_CONFIG, which OpenCL 1.2's headers lack */
    const cl_device_fp_config needed = CL_FP_ROUND_TO_NEAREST | CL_FP_INF_NAN;
    cl_device_fp_config has = 0;
    return has_word(words, "cl_khr_fp16") &&
           clGetDeviceInfo(id, half_config, sizeof has, &has, NULL) == CL_SUCCESS && (has & needed) == needed;
}

/* Subgroups that can add up: OpenCL C has them from 2.0 on, Intel's extension in 1.2, too. */
static bool good_subgroups(cl_device_id id, const char *words)
{
    return has_word(words, "cl_intel_subgroups") ||
           (has_word(words, "cl_khr_subgroups") && version_of(id) >= 200);
}

static int extras_of(cl_device_id id)
{
    size_t n = 0;
    if (clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, 0, NULL, &n) != CL_SUCCESS) return 0;
    char *words = calloc(n + 1, 1);
    if (!words || clGetDeviceInfo(id, CL_DEVICE_EXTENSIONS, n, words, NULL) != CL_SUCCESS) {
        free(words);
        return 0;
    }
    const int extras = (good_fp16(id, words) ? EXTRA_FP16 : 0) |
                       (strstr(words, "bfloat16") ? EXTRA_BF16 : 0) |
                       (good_subgroups(id, words) ? EXTRA_SUBGROUPS : 0) |
                       (strstr(words, "matrix_multiply") ? EXTRA_MATRIX : 0);
    free(words);
    return extras;
}

/* Products in fp16 are for runs in bf16. The environment may forbid them, or have them without measuring. */
static neb_status choose_fp16(struct neb_ocl *dev)
{
    const char *wanted = getenv("NEBULA_OPENCL_FP16");
    dev->fp16 = NEB_OCL_FP16_NEVER;
    if (dev->config.compute != NEB_BF16 || (wanted && !strcmp(wanted, "no"))) return NEB_OK;
    const bool there = extras_of(dev->id) & EXTRA_FP16, always = wanted && !strcmp(wanted, "yes");
    if (always && !there)
        return neb__ocl_fail(dev, NEB_ERR_UNSUPPORTED,
                             "opencl %d: %s cannot compute in fp16; unset NEBULA_OPENCL_FP16",
                             dev->config.index, dev->name);
    if (there) dev->fp16 = always ? NEB_OCL_FP16_ALWAYS : NEB_OCL_FP16_MEASURED;
    return NEB_OK;
}

/* Sums over the work-items that share a row, by subgroups: in the GPU's cut of the kernels. */
static neb_status choose_subgroups(struct neb_ocl *dev)
{
    const char *wanted = getenv("NEBULA_OPENCL_SUBGROUPS");
    const int version = version_of(dev->id);
    const bool there = !dev->cpu && (extras_of(dev->id) & EXTRA_SUBGROUPS);
    if (wanted && !strcmp(wanted, "yes") && !there)
        return neb__ocl_fail(
            dev, NEB_ERR_UNSUPPORTED,
            "opencl %d: %s has no subgroups, or runs the kernels for CPUs; unset NEBULA_OPENCL_SUBGROUPS",
            dev->config.index, dev->name);
    dev->subgroups = there && !(wanted && !strcmp(wanted, "no"));
    dev->language = "CL1.2";
    if (dev->subgroups && version >= 200) dev->language = version >= 300 ? "CL3.0" : "CL2.0";
    return NEB_OK;
}

neb_status neb__ocl_probe(int index, const struct neb_device_host *host, struct neb_device_info *out)
{
    cl_platform_id platform;
    cl_device_id id;
    char name[96], on[64] = "";
    cl_ulong bytes = 0;
    if (index < 0) return NEB_ERR_INVALID;
    NEB_TRY(find(index, false, host, &platform, &id));
    memset(out, 0, sizeof *out);
    text_of(id, CL_DEVICE_NAME, name, sizeof name);
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof on - 1, on, NULL);
    clGetDeviceInfo(id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    const int extras = extras_of(id);
    snprintf(out->description, sizeof out->description, "%.56s (%.32s)%s%s%s%s", name, on,
             extras & EXTRA_FP16 ? ", fp16" : "", extras & EXTRA_BF16 ? ", bf16" : "",
             extras & EXTRA_SUBGROUPS ? ", subgroups" : "", extras & EXTRA_MATRIX ? ", matrix" : "");
    out->memory_total = (int64_t)bytes;
    out->asynchronous = 1;
    return NEB_OK;
}

/* A kind of device asks for its cut of the kernels. The environment may choose the other one: a test of the GPU's cut
 * needs no GPU. */
static void cut_kernels(struct neb_ocl *dev, cl_device_type type)
{
    const char *wanted = getenv("NEBULA_OPENCL_KERNELS");
    dev->cpu = (type & CL_DEVICE_TYPE_CPU) && !(type & CL_DEVICE_TYPE_GPU);
    if (wanted && !strcmp(wanted, "cpu")) dev->cpu = true;
    if (wanted && !strcmp(wanted, "gpu")) dev->cpu = false;
    dev->cut =
        dev->cpu
            ? (struct neb_ocl_cut){.vw = 8, .wg = 1, .span = 4096, .cols = 64, .aw = 1, .embed_block = 256}
            : (struct neb_ocl_cut){.vw = 1, .wg = 128, .span = 1, .cols = 1, .aw = 64, .embed_block = 1024};
}

neb_status neb__ocl_choose(struct neb_ocl *dev)
{
    cl_device_type type = 0;
    cl_bool compiler = CL_FALSE, available = CL_FALSE;
    size_t group = 0;
    cl_ulong local = 0;
    NEB_TRY(find(dev->config.index, dev->config.spread, &dev->host, &dev->platform, &dev->id));
    text_of(dev->id, CL_DEVICE_NAME, dev->name, sizeof dev->name);
    text_of(dev->id, CL_DRIVER_VERSION, dev->driver, sizeof dev->driver);
    text_of(dev->id, CL_DEVICE_VERSION, dev->version, sizeof dev->version);
    clGetPlatformInfo(dev->platform, CL_PLATFORM_NAME, sizeof dev->platform_name - 1, dev->platform_name,
                      NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_COMPILER_AVAILABLE, sizeof compiler, &compiler, NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_AVAILABLE, sizeof available, &available, NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof dev->units, &dev->units, NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof dev->memory_total, &dev->memory_total, NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof dev->largest, &dev->largest, NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof group, &group, NULL);
    clGetDeviceInfo(dev->id, CL_DEVICE_LOCAL_MEM_SIZE, sizeof local, &local, NULL);
    if (!available || !compiler)
        return neb__ocl_fail(dev, NEB_ERR_UNSUPPORTED, "opencl %d: %s %s", dev->config.index, dev->name,
                             available ? "has no compiler for OpenCL C" : "is not available now");
    if (version_of(dev->id) < 102)
        return neb__ocl_fail(dev, NEB_ERR_UNSUPPORTED, "opencl %d: %s has %s; OpenCL 1.2 is needed",
                             dev->config.index, dev->name, dev->version);
    cut_kernels(dev, type);
    if (!dev->cpu && (group < 256 || local < 32768))
        return neb__ocl_fail(
            dev, NEB_ERR_UNSUPPORTED,
            "opencl %d: %s has groups of %zu work-items and %llu bytes of local memory; 256 and 32768 "
            "are needed",
            dev->config.index, dev->name, group, (unsigned long long)local);
    NEB_TRY(choose_subgroups(dev));
    return choose_fp16(dev);
}
