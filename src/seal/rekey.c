/* rekey.c: a request for a new key, one line of text:
 *
 *     nebula-i-rekey 1 NAME GENESIS OLD NEW INDEX HASH SIGNATURE-OLD SIGNATURE-NEW        (hex)
 *
 * Both signatures are of genesis hash, old and new public key, index and hash of a record, so a request is worth something in one run and for one change.
 * A thief of the old key can ask as well as its owner. That is why the operator decides, who should ask the owner. The
 * history stays verifiable: each epoch of the chain has the keys of its time. */
#include "seal/rekey.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/mem.h"
#include "seal/site.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char purpose[] = "nebula-i rekey";
enum { SIGNED = 2 * NEB_HASH_SIZE + 2 * NEB_PUBLIC_SIZE + 8 };

struct request {
    char name[NEB_NAME_SIZE];
    struct neb_hash genesis;
    struct neb_public old, next;
    struct neb_rekey_head head;
    struct neb_signature by_old, by_next;
};

static void to_sign(const struct request *r, uint8_t out[SIGNED])
{
    memcpy(out, r->genesis.b, NEB_HASH_SIZE);
    memcpy(out + NEB_HASH_SIZE, r->old.b, NEB_PUBLIC_SIZE);
    memcpy(out + NEB_HASH_SIZE + NEB_PUBLIC_SIZE, r->next.b, NEB_PUBLIC_SIZE);
    neb__put64(out + NEB_HASH_SIZE + 2 * NEB_PUBLIC_SIZE, r->head.index);
    memcpy(out + SIGNED - NEB_HASH_SIZE, r->head.hash.b, NEB_HASH_SIZE);
}

static neb_status put_hex(struct neb_buf *out, const uint8_t *p, size_t n)
{
    NEB_TRY(neb__buf_append(out, " ", 1));
    for (size_t i = 0; i < n; i++) NEB_TRY(neb__buf_printf(out, "%02x", p[i]));
    return NEB_OK;
}

static int digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool get_hex(const char **at, const char *end, uint8_t *out, size_t n)
{
    const char *p = *at;
    if ((size_t)(end - p) < 1 + 2 * n || *p++ != ' ') return false;
    for (size_t i = 0; i < n; i++, p += 2) {
        int high = digit(p[0]), low = digit(p[1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    *at = p;
    return true;
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static neb_status path_in(const char *dir, const char *file, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, file) >= PATH_MAX)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    return NEB_OK;
}

static neb_status next_key(const char *dir, struct neb_key **out)
{
    char path[PATH_MAX];
    NEB_TRY(path_in(dir, "site.key.next", path));
    if (!access(path, F_OK)) return neb__key_load(path, out);
    struct neb_key *key;
    NEB_TRY(neb__key_create(&key));
    neb_status status = neb__key_save(key, path);
    if (status == NEB_OK)
        *out = key;
    else
        neb__key_free(key);
    return status;
}

static neb_status write_request(const struct request *r, struct neb_buf *out)
{
    NEB_TRY(neb__buf_printf(out, "nebula-i-rekey 1 %s", r->name));
    NEB_TRY(put_hex(out, r->genesis.b, NEB_HASH_SIZE));
    NEB_TRY(put_hex(out, r->old.b, NEB_PUBLIC_SIZE));
    uint8_t index[8];
    neb__put64(index, r->head.index);
    NEB_TRY(put_hex(out, r->next.b, NEB_PUBLIC_SIZE));
    NEB_TRY(put_hex(out, index, sizeof index));
    NEB_TRY(put_hex(out, r->head.hash.b, NEB_HASH_SIZE));
    NEB_TRY(put_hex(out, r->by_old.b, NEB_SIGNATURE_SIZE));
    NEB_TRY(put_hex(out, r->by_next.b, NEB_SIGNATURE_SIZE));
    return neb__buf_append(out, "\n", 1);
}

neb_status neb__rekey_request(const char *dir, const struct neb_rekey_head *head, struct neb_buf *out)
{
    struct request r = {.head = *head};
    struct neb_chain *chain = NULL;
    struct neb_key *old = NULL, *next = NULL;
    uint8_t text[SIGNED];
    neb_status status;
    NEB_TRY_GOTO(status, neb__site_identity(dir, r.name, &r.old), out);
    NEB_TRY_GOTO(status, neb__site_roster_load(dir, &chain), out);
    NEB_TRY_GOTO(status, neb__site_key(dir, &old), out);
    NEB_TRY_GOTO(status, next_key(dir, &next), out);
    r.genesis = chain->genesis_hash;
    neb__key_public(old, &r.old);
    neb__key_public(next, &r.next);
    to_sign(&r, text);
    NEB_TRY_GOTO(status, neb__key_sign(old, purpose, text, sizeof text, &r.by_old), out);
    NEB_TRY_GOTO(status, neb__key_sign(next, purpose, text, sizeof text, &r.by_next), out);
    status = write_request(&r, out);
out:
    neb__chain_free(chain);
    neb__key_free(old);
    neb__key_free(next);
    return status;
}

/* ---- checking ------------------------------------------------------------------------------------------ */

static bool parse(const char *text, size_t n, struct request *r)
{
    static const char head[] = "nebula-i-rekey 1 ";
    const char *p = text, *end = text + n;
    while (end > p && (end[-1] == '\n' || end[-1] == '\r')) end--;
    if ((size_t)(end - p) < sizeof head || memcmp(p, head, sizeof head - 1)) return false;
    p += sizeof head - 1;
    size_t name = 0;
    while (p + name < end && p[name] != ' ') name++;
    if (name >= NEB_NAME_SIZE || !neb__name_valid(p, name)) return false;
    memcpy(r->name, p, name);
    p += name;
    uint8_t index[8] = {0};
    bool whole = get_hex(&p, end, r->genesis.b, NEB_HASH_SIZE) &&
                 get_hex(&p, end, r->old.b, NEB_PUBLIC_SIZE) &&
                 get_hex(&p, end, r->next.b, NEB_PUBLIC_SIZE) && get_hex(&p, end, index, sizeof index) &&
                 get_hex(&p, end, r->head.hash.b, NEB_HASH_SIZE) &&
                 get_hex(&p, end, r->by_old.b, NEB_SIGNATURE_SIZE) &&
                 get_hex(&p, end, r->by_next.b, NEB_SIGNATURE_SIZE);
    r->head.index = neb__get64(index);
    return whole && p == end;
}

neb_status neb__rekey_check(const char *text, size_t n, const struct neb_chain *chain,
                            struct neb_roster *roster, struct neb_rekey_head *head)
{
    struct request r = {0};
    uint8_t bytes[SIGNED];
    if (!parse(text, n, &r))
        return neb__fail(NEB_ERR_CORRUPT, "not a request for a new key (nebula-i site rekey DIR makes one)");
    const struct neb_member *m = neb__roster_by_key(&chain->now, &r.old);
    to_sign(&r, bytes);
    if (!neb__hash_equal(&r.genesis, &chain->genesis_hash))
        return neb__fail(NEB_ERR_AUTH, "the request is for another run");
    if (!m || strcmp(m->name, r.name))
        return neb__fail(NEB_ERR_AUTH, "no member '%s' of the newest roster has the old key of the request",
                         r.name);
    if (neb__key_verify(&r.old, purpose, bytes, sizeof bytes, &r.by_old) != NEB_OK ||
        neb__key_verify(&r.next, purpose, bytes, sizeof bytes, &r.by_next) != NEB_OK)
        return neb__fail(NEB_ERR_AUTH, "the request is not signed by both keys of %s", r.name);
    size_t at = (size_t)(m - chain->now.members);
    NEB_TRY(neb__roster_copy(&chain->now, roster));
    roster->members[at].key = r.next;
    *head = r.head;
    return NEB_OK;
}

bool neb__rekey_taken(const char *text, size_t n, const struct neb_chain *chain, uint16_t *site)
{
    struct request r = {0};
    if (!parse(text, n, &r)) return false;
    const struct neb_member *m = neb__roster_by_key(&chain->now, &r.next);
    if (!m || strcmp(m->name, r.name)) return false;
    *site = m->id;
    return true;
}

/* ---- taking it ----------------------------------------------------------------------------------------- */

static neb_status write_identity(const char *dir, const char *name, const struct neb_public *key)
{
    char path[PATH_MAX], line[NEB_IDENTITY_SIZE + 1];
    NEB_TRY(path_in(dir, "site.id", path));
    neb__identity_format(name, key, line);
    strcat(line, "\n");
    return neb__file_replace(path, line, strlen(line), 0600);
}

/* The rename makes the change. A crash behind it leaves an old site.id, which the next call mends. */
neb_status neb__rekey_take(const char *dir, const struct neb_chain *chain, bool *taken)
{
    char name[NEB_NAME_SIZE], from[PATH_MAX], to[PATH_MAX];
    struct neb_public said, has;
    struct neb_key *key;
    *taken = false;
    NEB_TRY(neb__site_identity(dir, name, &said));
    NEB_TRY(path_in(dir, "site.key.next", from));
    NEB_TRY(path_in(dir, "site.key", to));
    bool waits = !access(from, F_OK);
    NEB_TRY(neb__key_load(waits ? from : to, &key));
    neb__key_public(key, &has);
    neb__key_free(key);
    const struct neb_member *m = neb__roster_by_key(&chain->now, &has);
    if (!m || strcmp(m->name, name) || neb__public_equal(&has, &said)) return NEB_OK;
    if (waits && rename(from, to))
        return neb__fail(NEB_ERR_IO, "cannot rename %s: %s", from, strerror(errno));
    NEB_TRY(neb__file_sync_parent(to));
    NEB_TRY(write_identity(dir, name, &has));
    *taken = true;
    return NEB_OK;
}
