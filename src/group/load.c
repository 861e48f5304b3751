/* load.c: loads the plug-in that joins the processes of a site, and checks its table before calling any slot. */
#include "group/group_internal.h"
#include "base/plugin.h"

#include <dlfcn.h>

static neb_status check(const struct neb_group_engine *e, const char *path)
{
    if (!e || e->abi != NEB_GROUP_ABI || e->size < sizeof *e)
        return neb__fail(NEB_ERR_VERSION,
                         "%s: does not serve version %u of the group ABI; rebuild the plug-in", path,
                         NEB_GROUP_ABI);
    if (!e->open || !e->split || !e->share || !e->reduce || !e->gather || !e->broadcast || !e->send ||
        !e->receive || !e->test || !e->abort || !e->close)
        return neb__fail(NEB_ERR_UNSUPPORTED, "%s: a required slot is missing", path);
    return NEB_OK;
}

neb_status neb__group_load(const struct neb_group_engine **out)
{
    char path[NEB_PLUGIN_PATH] = "";
    bool found = false;
    void *library = neb__plugin_find("mpi", path, &found);
    if (!library && found) {
        const char *why = dlerror();
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "%s cannot be loaded: %s (Debian: apt install libopenmpi3 openmpi-bin)", path,
                         why ? why : "unknown reason");
    }
    if (!library)
        return neb__fail(NEB_ERR_NOTFOUND,
                         "several ranks need libnebula-i-mpi.so, which was not found in $NEBULA_PLUGIN_PATH, "
                         "the program's folder, ../lib beside it or the system's library folders; build "
                         "it with Open MPI installed (Debian: apt install libopenmpi-dev openmpi-bin)");
    neb_group_plugin_fn entry;
    *(void **)&entry = dlsym(library, "neb_group_plugin");
    if (!entry)
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "%s: does not export neb_group_plugin(), so it is not a plug-in for ranks", path);
    const struct neb_group_engine *engine = entry(NEB_GROUP_ABI);
    NEB_TRY(check(engine, path));
    *out = engine;
    return NEB_OK;
}
