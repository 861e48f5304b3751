/* relay_side.c: a relay host in a laboratory, for the link benchmark: a process in a site of its own. */
#include "link_sides.h"
#include "net/relay/relay_host.h"

#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int host_main(void *arg)
{
    const struct neb_link_host *host = arg;
    struct neb_relay_host_config config = {
        .key = host->key, .listen = host->place, .limits = NEB_RELAY_LIMITS};
    struct neb_relay_host *h;
    neb_log_set_level(getenv("NEBULA_LOG") ? NEB_LOG_INFO : NEB_LOG_WARN);
    if (neb__relay_host_open(&config, &h) != NEB_OK) return 1;
    neb__relay_host_run(h); /* until it is killed */
    neb__relay_host_close(h);
    return 0;
}

neb_status neb__link_host_start(struct neb_lab *lab, int site, struct neb_link_host *host)
{
    struct neb_public public;
    struct neb_lab_command command = {.out = -1, .err = -1, .fn = host_main, .arg = host};
    NEB_TRY(neb__key_create(&host->key));
    neb__key_public(host->key, &public);
    snprintf(host->place, sizeof host->place, "%s:7500", neb__lab_address(lab, 0, site));
    neb_status status = neb__relay_address_format(host->place, &public, host->address);
    if (status == NEB_OK) status = neb__lab_start(lab, site, &command, &host->handle);
    if (status != NEB_OK)
        neb__key_free(host->key);
    else
        usleep(100000); /* it listens before the others dial */
    return status;
}

void neb__link_host_end(struct neb_lab *lab, struct neb_link_host *host)
{
    neb__lab_kill(lab, host->handle, 9);
    neb__key_free(host->key);
}
