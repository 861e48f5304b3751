/* web_certificate.c: see web_certificate.h. The certificate is self-signed and valid for ten years: a browser that was
 * told to trust it keeps doing so over restarts. It is not an authority: whoever gets its key can pose as this page, and as
 * nothing else, to a browser that trusts it. */
#include "seal/web_certificate.h"
#include "base/file.h"
#include "seal/site.h"

#include <limits.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char purpose[] = "nebula watch certificate 1";

static bool add_extension(X509 *x, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = e && X509_add_ext(x, e, -1);
    X509_EXTENSION_free(e);
    return ok;
}

static X509 *make_certificate(EVP_PKEY *key, const char *name)
{
    X509 *x = X509_new();
    unsigned char serial[8];
    char names[128];
    BIGNUM *n = NULL;
    snprintf(names, sizeof names, "DNS:%s,DNS:localhost,IP:127.0.0.1,IP:0:0:0:0:0:0:0:1", name);
    bool ok = x && RAND_bytes(serial, sizeof serial) == 1;
    serial[0] &= 0x7f;
    ok =
        ok && (n = BN_bin2bn(serial, sizeof serial, NULL)) && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(x));
    ok = ok && X509_set_version(x, 2) && X509_gmtime_adj(X509_getm_notBefore(x), -86400) &&
         X509_gmtime_adj(X509_getm_notAfter(x), 3650L * 86400) && X509_set_pubkey(x, key);
    X509_NAME *who = ok ? X509_get_subject_name(x) : NULL;
    ok = who &&
         X509_NAME_add_entry_by_txt(who, "CN", MBSTRING_UTF8, (const unsigned char *)name, -1, -1, 0) &&
         X509_set_issuer_name(x, who);
    ok = ok && add_extension(x, NID_basic_constraints, "critical,CA:FALSE") &&
         add_extension(x, NID_key_usage, "critical,digitalSignature") &&
         add_extension(x, NID_ext_key_usage, "serverAuth") && add_extension(x, NID_subject_alt_name, names) &&
         X509_sign(x, key, EVP_sha256());
    BN_free(n);
    if (ok) return x;
    X509_free(x);
    return NULL;
}

static neb_status take_bio(BIO *b, struct neb_buf *out)
{
    char *bytes;
    long n = BIO_get_mem_data(b, &bytes);
    neb_status status = n > 0 ? neb__buf_append(out, bytes, (size_t)n)
                              : neb__fail(NEB_ERR_INTERNAL, "OpenSSL cannot write a key or certificate");
    return status;
}

static neb_status make_pair(const char *name, struct neb_buf *certificate, struct neb_buf *key)
{
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *x = k ? make_certificate(k, name) : NULL;
    BIO *a = BIO_new(BIO_s_mem()), *b = BIO_new(BIO_s_mem());
    neb_status status = NEB_ERR_NOMEM;
    if (x && a && b && PEM_write_bio_PKCS8PrivateKey(a, k, NULL, NULL, 0, NULL, NULL) &&
        PEM_write_bio_X509(b, x)) {
        status = take_bio(a, key);
        if (status == NEB_OK) status = take_bio(b, certificate);
    } else {
        status = neb__fail(NEB_ERR_INTERNAL, "cannot make a certificate for the page");
    }
    BIO_free(a);
    BIO_free(b);
    X509_free(x);
    EVP_PKEY_free(k);
    return status;
}

static neb_status find_fingerprint(const struct neb_buf *certificate, char out[NEB_FINGERPRINT_SIZE])
{
    BIO *b = BIO_new_mem_buf(certificate->data, (int)certificate->len);
    X509 *x = b ? PEM_read_bio_X509(b, NULL, NULL, NULL) : NULL;
    unsigned char hash[32];
    unsigned n = 0;
    bool ok = x && X509_digest(x, EVP_sha256(), hash, &n) && n == sizeof hash;
    for (unsigned i = 0; ok && i < n; i++) snprintf(out + 3 * i, 4, "%02X%s", hash[i], i + 1 < n ? ":" : "");
    X509_free(x);
    BIO_free(b);
    return ok ? NEB_OK
              : neb__fail(NEB_ERR_CORRUPT, "the site's watch.crt is damaged: remove it and watch.key");
}

/* The site's own key vouches for the fingerprint. */
static neb_status vouch(const char *folder, const char *fingerprint)
{
    char path[PATH_MAX];
    struct neb_key *key;
    struct neb_signature signature;
    NEB_TRY(neb__site_key(folder, &key));
    neb_status status = neb__key_sign(key, purpose, fingerprint, strlen(fingerprint), &signature);
    neb__key_free(key);
    if (status != NEB_OK) return status;
    snprintf(path, sizeof path, "%s/watch.sig", folder);
    return neb__file_replace(path, &signature, sizeof signature, 0644);
}

neb_status neb__web_certificate(const char *folder, struct neb_buf *certificate, struct neb_buf *key,
                                char fingerprint[NEB_FINGERPRINT_SIZE])
{
    char name[NEB_NAME_SIZE], crt[PATH_MAX], pem[PATH_MAX];
    struct neb_public public;
    struct stat st;
    if (snprintf(crt, sizeof crt, "%s/watch.crt", folder) >= (int)sizeof crt ||
        snprintf(pem, sizeof pem, "%s/watch.key", folder) >= (int)sizeof pem)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", folder);
    NEB_TRY(neb__site_identity(folder, name, &public));
    bool there = !stat(pem, &st);
    if (there && (st.st_mode & 077))
        return neb__fail(NEB_ERR_AUTH, "%s can be read by others: chmod 600 it, or remove it", pem);
    if (there) {
        NEB_TRY(neb__file_read(pem, key));
        NEB_TRY(neb__file_read(crt, certificate));
        NEB_TRY(find_fingerprint(certificate, fingerprint));
    } else {
        NEB_TRY(make_pair(name, certificate, key));
        NEB_TRY(find_fingerprint(certificate, fingerprint));
        NEB_TRY(vouch(folder, fingerprint));
        NEB_TRY(neb__file_replace(crt, certificate->data, certificate->len, 0644));
        NEB_TRY(neb__file_replace(pem, key->data, key->len, 0600));
    }
    NEB_TRY(neb__buf_append(certificate, "", 1));
    return neb__buf_append(key, "", 1);
}
