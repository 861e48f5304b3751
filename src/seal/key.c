/* key.c: Ed25519 through OpenSSL. There is one kind of key, one kind of signature, and nothing to negotiate.
 *
 * A private key exists in three places: the kernel's randomness, the EVP_PKEY of a struct neb_key, and a PEM
 * file of mode 0600. It is never printed and never logged; buffers that held it are wiped. Outside OpenSSL a
 * public key is always its 32 raw bytes.
 *
 * Signatures are over purpose || 0 || message. */
#include "seal/key.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_FILE_MAX = 4096 };

struct neb_key {
    EVP_PKEY *evp;
    struct neb_public public;
};

neb_status neb__random_bytes(void *p, size_t n)
{
    if (n > INT32_MAX || RAND_bytes(p, (int)n) != 1)
        return neb__fail(NEB_ERR_INTERNAL, "the operating system gave no random bytes");
    return NEB_OK;
}

/* Takes over `evp` in every case. */
static neb_status wrap(EVP_PKEY *evp, struct neb_key **out)
{
    size_t n = NEB_PUBLIC_SIZE;
    struct neb_key *key = NEB_NEW(struct neb_key);
    if (!key) {
        EVP_PKEY_free(evp);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a key");
    }
    key->evp = evp;
    if (EVP_PKEY_get_raw_public_key(evp, key->public.b, &n) != 1 || n != NEB_PUBLIC_SIZE) {
        neb__key_free(key);
        return neb__fail(NEB_ERR_INTERNAL, "OpenSSL made an Ed25519 key without a public half");
    }
    *out = key;
    return NEB_OK;
}

neb_status neb__key_create(struct neb_key **out)
{
    EVP_PKEY *evp = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    if (!evp) return neb__fail(NEB_ERR_INTERNAL, "cannot make an Ed25519 key");
    return wrap(evp, out);
}

void neb__key_free(struct neb_key *key)
{
    if (!key) return;
    EVP_PKEY_free(key->evp);
    neb__free(key);
}

void neb__key_public(const struct neb_key *key, struct neb_public *out)
{
    *out = key->public;
}

void *neb__key_evp(const struct neb_key *key)
{
    return key->evp;
}

/* O_EXCL refuses to overwrite even when two processes run at once. */
static neb_status write_new(const char *path, const char *data, long n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return neb__fail(NEB_ERR_EXISTS, "%s exists already; a key is never overwritten", path);
    if (fd < 0) return neb__fail(NEB_ERR_IO, "cannot create %s: %s", path, strerror(errno));
    bool ok = write(fd, data, (size_t)n) == n && !fsync(fd);
    int e = errno;
    ok &= !close(fd);
    if (!ok) {
        unlink(path);
        return neb__fail(NEB_ERR_IO, "cannot write %s: %s", path, strerror(e));
    }
    return neb__file_sync_parent(path);
}

neb_status neb__key_save(const struct neb_key *key, const char *path)
{
    char *data = NULL;
    BIO *bio = BIO_new(BIO_s_secmem());
    neb_status status;
    if (!bio || PEM_write_bio_PrivateKey(bio, key->evp, NULL, NULL, 0, NULL, NULL) != 1) {
        status = neb__fail(NEB_ERR_NOMEM, "cannot encode the key");
    } else {
        long n = BIO_get_mem_data(bio, &data);
        status = write_new(path, data, n);
    }
    BIO_free(bio);
    return status;
}

static int no_password(char *buf, int size, int writing, void *arg)
{
    (void)buf, (void)size, (void)writing, (void)arg;
    return -1; /* an encrypted key file is an error, not a prompt */
}

neb_status neb__key_parse(const uint8_t *pem, size_t n, struct neb_key **out)
{
    if (n > KEY_FILE_MAX) return neb__fail(NEB_ERR_CORRUPT, "not a key file: it has %zu bytes", n);
    BIO *bio = BIO_new_mem_buf(pem, (int)n);
    if (!bio) return neb__fail(NEB_ERR_NOMEM, "out of memory for a key");
    EVP_PKEY *evp = PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
    BIO_free(bio);
    ERR_clear_error();
    if (!evp || !EVP_PKEY_is_a(evp, "ED25519")) {
        EVP_PKEY_free(evp);
        return neb__fail(NEB_ERR_CORRUPT, "not an Ed25519 private key in PEM form");
    }
    return wrap(evp, out);
}

neb_status neb__key_load(const char *path, struct neb_key **out)
{
    struct stat st;
    if (!stat(path, &st) && (st.st_mode & 077))
        return neb__fail(NEB_ERR_AUTH, "%s may be read by others (mode %03o); run: chmod 600 %s", path,
                         (unsigned)st.st_mode & 0777, path);
    struct neb_buf b;
    neb__buf_init(&b, KEY_FILE_MAX);
    neb_status status = neb__file_read(path, &b);
    if (status == NEB_OK) status = neb__key_parse(b.data, b.len, out);
    if (status != NEB_OK) neb__error_prefix("%s", path);
    if (b.data) OPENSSL_cleanse(b.data, b.cap);
    neb__buf_free(&b);
    return status;
}

/* Puts purpose || 0 || message into one buffer. Ed25519 hashes the message twice, so it has no streaming
 * interface. */
static neb_status envelope(const char *purpose, const void *p, size_t n, uint8_t **out, size_t *size)
{
    size_t head = strlen(purpose) + 1;
    uint8_t *all = neb__malloc(head + n);
    if (!all) return neb__fail(NEB_ERR_NOMEM, "out of memory for a signature");
    memcpy(all, purpose, head);
    if (n) memcpy(all + head, p, n);
    *out = all;
    *size = head + n;
    return NEB_OK;
}

neb_status neb__key_sign(const struct neb_key *key, const char *purpose, const void *p, size_t n,
                         struct neb_signature *out)
{
    uint8_t *all = NULL;
    size_t size = 0, len = NEB_SIGNATURE_SIZE;
    NEB_TRY(envelope(purpose, p, n, &all, &size));
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, key->evp) == 1 &&
              EVP_DigestSign(ctx, out->b, &len, all, size) == 1 && len == NEB_SIGNATURE_SIZE;
    EVP_MD_CTX_free(ctx);
    neb__free(all);
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "cannot sign (%s)", purpose);
}

neb_status neb__key_verify(const struct neb_public *key, const char *purpose, const void *p, size_t n,
                           const struct neb_signature *signature)
{
    uint8_t *all = NULL;
    size_t size = 0;
    NEB_TRY(envelope(purpose, p, n, &all, &size));
    EVP_PKEY *evp = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, key->b, NEB_PUBLIC_SIZE);
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = evp && ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, evp) == 1 &&
              EVP_DigestVerify(ctx, signature->b, NEB_SIGNATURE_SIZE, all, size) == 1;
    EVP_MD_CTX_free(ctx);
    EVP_PKEY_free(evp);
    neb__free(all);
    ERR_clear_error();
    return ok ? NEB_OK : neb__quiet(NEB_ERR_AUTH, "a signature (%s) is not valid", purpose);
}

bool neb__public_equal(const struct neb_public *a, const struct neb_public *b)
{
    return !memcmp(a->b, b->b, NEB_PUBLIC_SIZE);
}

void neb__public_short(const struct neb_public *key, char out[9])
{
    snprintf(out, 9, "%02x%02x%02x%02x", key->b[0], key->b[1], key->b[2], key->b[3]);
}

bool neb__name_valid(const char *name, size_t n)
{
    if (n < 1 || n >= NEB_NAME_SIZE || name[0] == '-') return false;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-')) return false;
    }
    return true;
}

static void checksum(const char *name, const struct neb_public *key, char out[9])
{
    uint8_t all[NEB_NAME_SIZE + NEB_PUBLIC_SIZE] = {0};
    struct neb_hash h = {{0}};
    memcpy(all, name, strlen(name));
    memcpy(all + NEB_NAME_SIZE, key->b, NEB_PUBLIC_SIZE);
    if (neb__hash(all, sizeof all, &h) != NEB_OK) memset(h.b, 0, sizeof h.b);
    snprintf(out, 9, "%02x%02x%02x%02x", h.b[0], h.b[1], h.b[2], h.b[3]);
}

void neb__identity_format(const char *name, const struct neb_public *key, char out[NEB_IDENTITY_SIZE])
{
    char hex[2 * NEB_PUBLIC_SIZE + 1], sum[9];
    for (int i = 0; i < NEB_PUBLIC_SIZE; i++) snprintf(hex + 2 * i, 3, "%02x", key->b[i]);
    checksum(name, key, sum);
    snprintf(out, NEB_IDENTITY_SIZE, "%s:ed25519:%s:%s", name, hex, sum);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

neb_status neb__identity_parse(const char *text, size_t n, char name[NEB_NAME_SIZE], struct neb_public *key)
{
    static const char kind[] = ":ed25519:";
    enum { KIND = sizeof kind - 1, HEX = 2 * NEB_PUBLIC_SIZE, TAIL = KIND + HEX + 1 + 8 };
    if (n <= TAIL || n - TAIL >= NEB_NAME_SIZE)
        return neb__quiet(NEB_ERR_INVALID, "an identity reads NAME:ed25519:64-HEX-DIGITS:8-HEX-DIGITS");
    size_t name_len = n - TAIL;
    const char *p = text + name_len;
    if (!neb__name_valid(text, name_len))
        return neb__quiet(NEB_ERR_INVALID, "an identity begins with a name of a-z, 0-9 and -");
    if (memcmp(p, kind, KIND) || p[KIND + HEX] != ':')
        return neb__quiet(NEB_ERR_INVALID, "an identity reads NAME:ed25519:64-HEX-DIGITS:8-HEX-DIGITS");
    struct neb_public k;
    for (int i = 0; i < NEB_PUBLIC_SIZE; i++) {
        int hi = hex_digit(p[KIND + 2 * i]), lo = hex_digit(p[KIND + 2 * i + 1]);
        if (hi < 0 || lo < 0) return neb__quiet(NEB_ERR_INVALID, "an identity's key is 64 digits 0-9 a-f");
        k.b[i] = (uint8_t)(hi << 4 | lo);
    }
    char who[NEB_NAME_SIZE] = {0}, sum[9];
    memcpy(who, text, name_len);
    checksum(who, &k, sum);
    if (memcmp(sum, p + KIND + HEX + 1, 8))
        return neb__quiet(NEB_ERR_INVALID,
                          "the identity of '%s' is mistyped (its checksum does not match); copy it again",
                          who);
    memcpy(name, who, NEB_NAME_SIZE);
    *key = k;
    return NEB_OK;
}
