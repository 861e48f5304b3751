/* relay.c: the laboratory of a machine that allows no namespaces: not possible yet, and says so. */
#include "net/lab/relay.h"

neb_status neb__relay_start(const struct neb_lab_config *cfg, struct neb_relay **out)
{
    (void)cfg, (void)out;
    return neb__fail(NEB_ERR_UNSUPPORTED, "a laboratory needs root or user namespaces on this machine");
}

void neb__relay_stop(struct neb_relay *r)
{
    (void)r;
}

const char *neb__relay_address(struct neb_relay *r, int viewer, int site)
{
    (void)r, (void)viewer, (void)site;
    return "";
}

struct neb_wire *neb__relay_lock(struct neb_relay *r)
{
    (void)r;
    return NULL;
}

void neb__relay_unlock(struct neb_relay *r)
{
    (void)r;
}

double neb__relay_cpu_seconds(struct neb_relay *r)
{
    (void)r;
    return 0;
}
