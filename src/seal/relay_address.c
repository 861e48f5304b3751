/* relay_address.c: the address of a relay host in a roster, relay://HOST:PORT#KEY.
 *
 * The key is part of the address, so whoever signed the roster has pinned it. A roster has exactly one encoding, and so has a
 * key: 64 lower-case hex digits. */
#include "seal/roster.h"

#include <stdio.h>
#include <string.h>

static const char scheme[] = "relay://";

bool neb__address_is_relay(const char *address)
{
    return !strncmp(address, scheme, sizeof scheme - 1);
}

static int digit(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static bool read_key(const char *hex, struct neb_public *out)
{
    if (strlen(hex) != 2 * NEB_PUBLIC_SIZE) return false;
    for (int i = 0; i < NEB_PUBLIC_SIZE; i++) {
        int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out->b[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool neb__address_relay(const char *address, struct neb_relay_address *out)
{
    struct neb_relay_address a = {.port = 0};
    char place[NEB_ADDRESS_SIZE];
    if (strlen(address) >= NEB_ADDRESS_SIZE || !neb__address_is_relay(address)) return false;
    snprintf(place, sizeof place, "%s", address + sizeof scheme - 1);
    char *mark = strchr(place, '#');
    if (!mark) return false;
    *mark = 0;
    if (!neb__address_split(place, a.host, &a.port) || !read_key(mark + 1, &a.key)) return false;
    *out = a;
    return true;
}

neb_status neb__relay_address_format(const char *place, const struct neb_public *key,
                                     char out[NEB_ADDRESS_SIZE])
{
    char hex[2 * NEB_PUBLIC_SIZE + 1], host[NEB_ADDRESS_SIZE];
    uint16_t port;
    for (int i = 0; i < NEB_PUBLIC_SIZE; i++) snprintf(hex + 2 * i, 3, "%02x", key->b[i]);
    if (!neb__address_split(place, host, &port))
        return neb__fail(NEB_ERR_INVALID, "'%s': an address reads HOST:PORT or [V6]:PORT", place);
    if (snprintf(out, NEB_ADDRESS_SIZE, "%s%s#%s", scheme, place, hex) >= NEB_ADDRESS_SIZE)
        return neb__fail(NEB_ERR_INVALID, "'%s' is too long: an address has at most %d characters", place,
                         NEB_ADDRESS_SIZE - 1);
    return NEB_OK;
}

const char *neb__member_direct(const struct neb_member *m, int n)
{
    for (int i = 0; i < m->addresses; i++)
        if (!neb__address_is_relay(m->address[i]) && n-- == 0) return m->address[i];
    return NULL;
}

int neb__member_directs(const struct neb_member *m)
{
    int n = 0;
    for (int i = 0; i < m->addresses; i++) n += !neb__address_is_relay(m->address[i]);
    return n;
}

bool neb__member_has_relay(const struct neb_member *m)
{
    return neb__member_directs(m) < m->addresses;
}
