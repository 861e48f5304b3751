/* member_words.c: a member of a roster from words of a command line or a draft. */
#include "cli/member_words.h"
#include "seal/site.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

neb_status neb__member_identity(const char *text, struct neb_member *m)
{
    struct stat st;
    if (!stat(text, &st) && S_ISDIR(st.st_mode)) return neb__site_identity(text, m->name, &m->key);
    if (neb__identity_parse(text, strlen(text), m->name, &m->key) == NEB_OK) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "'%s': %s", text, neb_last_error());
}

neb_status neb__member_address(struct neb_member *m, const char *address)
{
    char host[NEB_ADDRESS_SIZE];
    uint16_t port;
    struct neb_relay_address relay;
    if (m->addresses >= NEB_ADDRESSES_MAX)
        return neb__fail(NEB_ERR_INVALID, "%s: at most %d addresses", m->name, NEB_ADDRESSES_MAX);
    if (!neb__address_split(address, host, &port) && !neb__address_relay(address, &relay))
        return neb__fail(NEB_ERR_INVALID,
                         "'%s': an address reads HOST:PORT or [V6]:PORT; that of a relay host reads "
                         "relay://HOST:PORT#KEY, as nebula-i relay prints it",
                         address);
    snprintf(m->address[m->addresses++], NEB_ADDRESS_SIZE, "%s", address);
    return NEB_OK;
}
