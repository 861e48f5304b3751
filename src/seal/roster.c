/* roster.c: the rules and the byte layout of one roster.
 *
 *     u16 members, then for each, ids strictly ascending:
 *         u16 id, u8 votes, u8 flags, u8 name length, name, 32 bytes key,
 *         u8 addresses, for each: u8 length, text
 *
 * A roster has exactly one encoding (ascending ids, no padding, no optional fields). So equal rosters have
 * equal hashes, and a decoder can insist on that encoding. */
#include "seal/roster.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool neb__address_split(const char *address, char host[NEB_ADDRESS_SIZE], uint16_t *port)
{
    const char *from = address, *to, *digits;
    if (strlen(address) >= NEB_ADDRESS_SIZE) return false;
    if (*from == '[') {
        to = strchr(++from, ']');
        if (!to || to[1] != ':') return false;
        digits = to + 2;
    } else {
        to = strchr(from, ':');
        if (!to || strchr(to + 1, ':')) return false;
        digits = to + 1;
    }
    if (to == from || strlen(digits) < 1 || strlen(digits) > 5 ||
        strspn(digits, "0123456789") != strlen(digits))
        return false;
    for (const char *c = from; c < to; c++)
        if (*c <= ' ' || *c > '~') return false;
    long n = strtol(digits, NULL, 10);
    if (n < 1 || n > 65535) return false;
    memcpy(host, from, (size_t)(to - from));
    host[to - from] = 0;
    *port = (uint16_t)n;
    return true;
}

static neb_status check_member(const struct neb_member *m)
{
    char host[NEB_ADDRESS_SIZE];
    struct neb_relay_address relay;
    uint16_t port;
    size_t name_len = strnlen(m->name, NEB_NAME_SIZE);
    if (!neb__name_valid(m->name, name_len))
        return neb__quiet(NEB_ERR_INVALID,
                          "a member's name is not valid: 1 to 31 characters of a-z, 0-9 and -");
    if (m->id == 0 || m->id >= NEB_SIGNER_LAST)
        return neb__quiet(NEB_ERR_INVALID, "%s: member id %u is not allowed", m->name, m->id);
    if (m->flags & ~(NEB_MEMBER_WITNESS | NEB_MEMBER_LEARNER | NEB_MEMBER_OBSERVER))
        return neb__quiet(NEB_ERR_INVALID, "%s: unknown flags %#x", m->name, m->flags);
    if ((m->flags & NEB_MEMBER_OBSERVER) && (m->votes || m->flags != NEB_MEMBER_OBSERVES))
        return neb__quiet(NEB_ERR_INVALID, "%s: an observer neither votes nor trains, and stays one",
                          m->name);
    if ((m->flags & NEB_MEMBER_LEARNER) && m->votes)
        return neb__quiet(NEB_ERR_INVALID, "%s: a learner has no votes", m->name);
    if (m->votes > 2) return neb__quiet(NEB_ERR_INVALID, "%s: a member has at most 2 votes", m->name);
    if (m->addresses > NEB_ADDRESSES_MAX)
        return neb__quiet(NEB_ERR_INVALID, "%s: more than %d addresses", m->name, NEB_ADDRESSES_MAX);
    for (int i = 0; i < m->addresses; i++)
        if (!memchr(m->address[i], 0, NEB_ADDRESS_SIZE) ||
            (!neb__address_split(m->address[i], host, &port) && !neb__address_relay(m->address[i], &relay)))
            return neb__quiet(NEB_ERR_INVALID,
                              "%s: an address reads HOST:PORT or [V6]:PORT, or relay://HOST:PORT#KEY",
                              m->name);
    return NEB_OK;
}

neb_status neb__roster_check(const struct neb_roster *r)
{
    int voters = 0;
    if (r->count < 1 || r->count > NEB_MEMBERS_MAX)
        return neb__quiet(NEB_ERR_INVALID, "a roster has 1 to %d members, not %u", NEB_MEMBERS_MAX, r->count);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct neb_member *m = &r->members[i];
        NEB_TRY(check_member(m));
        voters += m->votes > 0;
        if (i && m->id <= r->members[i - 1].id)
            return neb__quiet(NEB_ERR_INVALID, "member ids are not ascending");
        for (uint32_t j = 0; j < i; j++) {
            if (!strcmp(r->members[j].name, m->name))
                return neb__quiet(NEB_ERR_INVALID, "two members are called %s", m->name);
            if (neb__public_equal(&r->members[j].key, &m->key))
                return neb__quiet(NEB_ERR_INVALID, "%s and %s have the same key", r->members[j].name,
                                  m->name);
        }
    }
    if (voters < 1 || voters > NEB_VOTERS_MAX)
        return neb__quiet(NEB_ERR_INVALID, "a roster has 1 to %d voters, not %d", NEB_VOTERS_MAX, voters);
    return NEB_OK;
}

static neb_status append_text(struct neb_buf *out, const char *text)
{
    uint8_t n = (uint8_t)strlen(text);
    NEB_TRY(neb__buf_append(out, &n, 1));
    return neb__buf_append(out, text, n);
}

neb_status neb__roster_encode(const struct neb_roster *r, struct neb_buf *out)
{
    uint8_t h[4];
    neb__put16(h, (uint16_t)r->count);
    NEB_TRY(neb__buf_append(out, h, 2));
    for (uint32_t i = 0; i < r->count; i++) {
        const struct neb_member *m = &r->members[i];
        neb__put16(h, m->id);
        h[2] = m->votes, h[3] = m->flags;
        NEB_TRY(neb__buf_append(out, h, 4));
        NEB_TRY(append_text(out, m->name));
        NEB_TRY(neb__buf_append(out, m->key.b, NEB_PUBLIC_SIZE));
        NEB_TRY(neb__buf_append(out, &m->addresses, 1));
        for (int a = 0; a < m->addresses; a++) NEB_TRY(append_text(out, m->address[a]));
    }
    return NEB_OK;
}

static bool read_text(struct neb_reader *r, char *to, size_t size)
{
    uint8_t n = neb__read8(r);
    const uint8_t *p = neb__read(r, n);
    if (!p || n >= size || memchr(p, 0, n)) return false;
    memcpy(to, p, n);
    to[n] = 0;
    return true;
}

static bool read_member(struct neb_reader *r, struct neb_member *m)
{
    m->id = neb__read16(r);
    m->votes = neb__read8(r);
    m->flags = neb__read8(r);
    if (!read_text(r, m->name, sizeof m->name)) return false;
    const uint8_t *key = neb__read(r, NEB_PUBLIC_SIZE);
    m->addresses = neb__read8(r);
    if (!key || r->bad || m->addresses > NEB_ADDRESSES_MAX) return false;
    memcpy(m->key.b, key, NEB_PUBLIC_SIZE);
    for (int a = 0; a < m->addresses; a++)
        if (!read_text(r, m->address[a], NEB_ADDRESS_SIZE)) return false;
    return true;
}

neb_status neb__roster_decode(struct neb_reader *r, struct neb_roster *out)
{
    struct neb_roster got = {NULL, neb__read16(r)};
    if (r->bad || got.count < 1 || got.count > NEB_MEMBERS_MAX)
        return neb__quiet(NEB_ERR_CORRUPT, "a roster claims %u members", got.count);
    got.members = NEB_NEW_ARRAY(struct neb_member, got.count);
    if (!got.members) return neb__fail(NEB_ERR_NOMEM, "out of memory for a roster");
    for (uint32_t i = 0; i < got.count; i++) {
        if (!read_member(r, &got.members[i])) {
            neb__roster_free(&got);
            return neb__quiet(NEB_ERR_CORRUPT, "member %u of a roster is damaged", i);
        }
    }
    if (neb__roster_check(&got) != NEB_OK) {
        neb__roster_free(&got);
        return NEB_ERR_CORRUPT;
    }
    *out = got;
    return NEB_OK;
}

neb_status neb__roster_copy(const struct neb_roster *r, struct neb_roster *out)
{
    struct neb_roster copy = {NEB_NEW_ARRAY(struct neb_member, r->count + 1), r->count};
    if (!copy.members) return neb__fail(NEB_ERR_NOMEM, "out of memory for a roster");
    if (r->count) memcpy(copy.members, r->members, r->count * sizeof *r->members);
    *out = copy;
    return NEB_OK;
}

void neb__roster_free(struct neb_roster *r)
{
    neb__free(r->members);
    *r = (struct neb_roster){0};
}

const struct neb_member *neb__roster_by_key(const struct neb_roster *r, const struct neb_public *key)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (neb__public_equal(&r->members[i].key, key)) return &r->members[i];
    return NULL;
}

const struct neb_member *neb__roster_by_id(const struct neb_roster *r, uint16_t id)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->members[i].id == id) return &r->members[i];
    return NULL;
}

const struct neb_member *neb__roster_by_name(const struct neb_roster *r, const char *name)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (!strcmp(r->members[i].name, name)) return &r->members[i];
    return NULL;
}

uint32_t neb__roster_votes(const struct neb_roster *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->count; i++) n += r->members[i].votes;
    return n;
}

static uint16_t who_begins(const struct neb_member *a, bool a_reachable, const struct neb_member *b,
                           bool b_reachable)
{
    if (!a_reachable && !b_reachable) return 0;
    if (!a_reachable) return a->id;
    if (!b_reachable) return b->id;
    return a->id < b->id ? a->id : b->id;
}

uint16_t neb__roster_dialler(const struct neb_member *a, const struct neb_member *b)
{
    return who_begins(a, neb__member_directs(a) > 0, b, neb__member_directs(b) > 0);
}

uint16_t neb__roster_caller(const struct neb_member *a, const struct neb_member *b)
{
    return who_begins(a, neb__member_has_relay(a), b, neb__member_has_relay(b));
}

/* Two sites have a line if one of them has an address, its own or a relay host's. So with one address in the roster every site reaches every other,
 * through that site if need be; without any, no two of them meet. */
neb_status neb__roster_meets(const struct neb_roster *r)
{
    char names[200] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->members[i].addresses) return NEB_OK;
        int more = snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", r->members[i].name);
        n += more > 0 && n + (size_t)more < sizeof names ? (size_t)more : 0;
    }
    if (r->count < 2) return NEB_OK;
    return neb__fail(
        NEB_ERR_CONFIG,
        "these sites cannot meet, because none of them has an address: %s. Give one that the others can dial "
        "an address (HOST:PORT behind its identity), or that of a relay host (what nebula-i relay prints); "
        "the "
        "others need none",
        names);
}
