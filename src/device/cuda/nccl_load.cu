/* nccl_load.cu: finding libnccl.so.2 and its functions.
 *
 * The library is opened at the first use, once a process, and stays. The search order is: $NEBULA_NCCL_LIB (a
 * folder; "none" means that NCCL is not used), the loader's own path, the usual CUDA folders, and the packages of
 * the active Python environment ($VIRTUAL_ENV). */
#include "nccl.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

static const char name[] = "libnccl.so.2";

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

static void *find_library(const char *wanted)
{
    const char *venv = getenv("VIRTUAL_ENV");
    if (wanted && *wanted) return strcmp(wanted, "none") ? open_in(wanted, "") : NULL;
    void *p = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!p) p = open_in(getenv("CUDA_HOME"), "/lib64");
    if (!p) p = open_in("/usr/local/cuda", "/lib64");
    if (!p && venv) p = open_matching(venv, "/lib/python3*/site-packages/nvidia/nccl/lib");
    return p;
}

static const char *find_functions(struct neb_nccl_api *api)
{
#define NEB__X(symbol, args)                               \
    *(void **)&api->symbol = dlsym(api->library, #symbol); \
    if (!api->symbol) return #symbol;
    NEB_NCCL_FUNCTIONS(NEB__X)
#undef NEB__X
    *(void **)&api->ncclGetErrorString = dlsym(api->library, "ncclGetErrorString");
    *(void **)&api->ncclGetLastError = dlsym(api->library, "ncclGetLastError");
    return api->ncclGetErrorString ? NULL : "ncclGetErrorString";
}

static neb_status load(struct neb_cuda *dev, struct neb_nccl_api *api)
{
    const char *wanted = getenv("NEBULA_NCCL_LIB");
    api->library = find_library(wanted);
    if (!api->library && wanted && *wanted && strcmp(wanted, "none")) {
        const char *why = dlerror(); /* NULL: not even tried */
        return neb__cuda_fail(dev, NEB_ERR_CONFIG,
                              "cuda: NEBULA_NCCL_LIB names the folder %s, where %s cannot be opened: %s",
                              wanted, name, why ? why : "the path is too long");
    }
    if (!api->library) return NEB_ERR_NOTFOUND;
    const char *lacks = find_functions(api);
    if (lacks || api->ncclGetVersion(&api->version) != ncclSuccess || api->version < 21800) {
        int version = api->version;
        dlclose(api->library);
        if (lacks)
            return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED,
                                  "cuda: %s lacks the function %s; install NCCL 2.18 or newer", name, lacks);
        return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED, "cuda: NCCL %d is too old; install 2.18 or newer",
                              version);
    }
    return NEB_OK;
}

neb_status neb__nccl_load(struct neb_cuda *dev, const struct neb_nccl_api **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct neb_nccl_api api;
    static int there;
    neb_status s = NEB_OK;
    pthread_mutex_lock(&lock);
    if (!there) {
        memset(&api, 0, sizeof api);
        s = load(dev, &api);
        there = s == NEB_OK;
    }
    pthread_mutex_unlock(&lock);
    if (s == NEB_OK) *out = &api;
    return s;
}
