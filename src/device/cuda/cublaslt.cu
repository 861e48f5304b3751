/* cublaslt.cu: finding libcublasLt.so.13 and its functions.
 *
 * The search order is: $NEBULA_CUDA_LIB (a folder), the loader's own path, the usual CUDA folders, and the
 * CUDA packages of the active Python environment ($VIRTUAL_ENV). */
#include "cublaslt.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "libcublasLt.so.13";

static void *open_in(const char *folder, const char *rest)
{
    char path[1024];
    if (!folder || !*folder) return NULL;
    int n = snprintf(path, sizeof path, "%s%s/%s", folder, rest, name);
    return n > 0 && n < (int)sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_matching(const char *folder, const char *pattern)
{
    char path[1024];
    glob_t found;
    void *library = NULL;
    int n = snprintf(path, sizeof path, "%s%s/%s", folder, pattern, name);
    if (n < 0 || n >= (int)sizeof path || glob(path, 0, NULL, &found) != 0) return NULL;
    for (size_t i = 0; i < found.gl_pathc && !library; i++)
        library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
    globfree(&found);
    return library;
}

static void *find_library(void)
{
    const char *venv = getenv("VIRTUAL_ENV");
    void *p = open_in(getenv("NEBULA_CUDA_LIB"), "");
    if (!p) p = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!p) p = open_in(getenv("CUDA_HOME"), "/lib64");
    if (!p) p = open_in("/usr/local/cuda", "/lib64");
    if (!p) p = open_in("/usr/local/cuda-13", "/lib64");
    if (!p && venv) p = open_matching(venv, "/lib/python3*/site-packages/nvidia/cu13/lib");
    return p;
}

neb_status neb__lt_load(struct neb_cuda *dev, struct neb_lt_api *out)
{
    struct neb_lt_api api;
    memset(&api, 0, sizeof api);
    api.library = find_library();
    if (!api.library)
        return neb__cuda_fail(
            dev, NEB_ERR_UNSUPPORTED,
            "cuda: %s was not found; install CUDA 13's cuBLAS or name its folder in NEBULA_CUDA_LIB", name);
#define NEB__X(symbol)                                                                                     \
    *(void **)&api.symbol = dlsym(api.library, #symbol);                                                   \
    if (!api.symbol) {                                                                                     \
        dlclose(api.library);                                                                              \
        return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED,                                                    \
                              "cuda: %s lacks the function %s; install cuBLAS of CUDA 13", name, #symbol); \
    }
    NEB_LT_FUNCTIONS(NEB__X)
#undef NEB__X
    *out = api;
    return NEB_OK;
}

void neb__lt_unload(struct neb_lt_api *api)
{
    if (api->library) dlclose(api->library);
    memset(api, 0, sizeof *api);
}
