/* tls.c: OpenSSL, restricted to one way of using it.
 *
 * TLS 1.3 only; X25519; Ed25519 certificates on both sides; AES-256-GCM and ChaCha20-Poly1305, the one that
 * this CPU does faster first; no tickets, no resumption, no early data, no renegotiation, no compression. No
 * setting makes it weaker. Our verify callback replaces OpenSSL's: it accepts exactly one certificate with an
 * Ed25519 key. It ignores dates and issuer, since a wrong clock must not be an outage. The roster pins the
 * key.
 *
 * OpenSSL reads and writes through our own BIO. The source puts ciphertext straight into OpenSSL's buffer,
 * where it is decrypted. Written ciphertext gathers in a capped buffer.
 *
 * Keys are renewed (KeyUpdate, both directions) every 64 GiB or every hour. Each write checks whether that is
 * due. */
#include "seal/tls.h"
#include "base/clock.h"
#include "base/mem.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <string.h>

struct neb_tls_context {
    SSL_CTX *ssl;
    BIO_METHOD *bio;
    uint64_t renew_bytes;
    int64_t renew_ns;
};

/* The place in the stream of records that the bytes read so far reach. We follow the records ourselves, since
 * OpenSSL does not tell. */
struct neb_tls_record {
    uint8_t head[5];
    uint32_t have;         /* bytes of the header so far */
    uint32_t length, left; /* bytes of the body, and how many of them are still to come */
};

struct neb_tls {
    SSL *ssl;
    neb_tls_source *source;
    void *source_arg;
    struct neb_tls_record record;
    struct neb_buf out;
    struct neb_public peer;
    bool peer_known;
    uint64_t renew_bytes, written;
    int64_t renew_ns, renewed_at;
    uint32_t renewals;
};

/* ---- the BIO ------------------------------------------------------------------------------------------- */

/* Advances the record state over n bytes that came in. */
static void follow(struct neb_tls_record *r, const uint8_t *p, size_t n)
{
    while (n) {
        size_t k = n < r->left ? n : r->left;
        r->left -= (uint32_t)k, p += k, n -= k;
        if (!n) return;
        r->head[r->have++] = *p++, n--;
        if (r->have < sizeof r->head) continue;
        r->have = 0;
        r->length = r->left = (uint32_t)r->head[3] << 8 | r->head[4];
    }
}

static int bio_read(BIO *b, char *to, size_t n, size_t *got)
{
    struct neb_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    *got = t->source(t->source_arg, (uint8_t *)to, n);
    if (!*got) {
        BIO_set_retry_read(b);
        return 0;
    }
    follow(&t->record, (const uint8_t *)to, *got);
    return 1;
}

static int bio_write(BIO *b, const char *p, size_t n, size_t *done)
{
    struct neb_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (neb__buf_append(&t->out, p, n) != NEB_OK) return 0;
    *done = n;
    return 1;
}

static long bio_ctrl(BIO *b, int cmd, long larg, void *parg)
{
    (void)b, (void)larg, (void)parg;
    return cmd == BIO_CTRL_FLUSH;
}

static int bio_create(BIO *b)
{
    BIO_set_init(b, 1);
    return 1;
}

static BIO_METHOD *bio_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "nebula-i");
    if (m && BIO_meth_set_read_ex(m, bio_read) && BIO_meth_set_write_ex(m, bio_write) &&
        BIO_meth_set_ctrl(m, bio_ctrl) && BIO_meth_set_create(m, bio_create))
        return m;
    BIO_meth_free(m);
    return NULL;
}

/* ---- certificates -------------------------------------------------------------------------------------- */

/* The dates span everything that a clock may say. Nobody checks them. */
static X509 *make_certificate(EVP_PKEY *key, const char *name)
{
    X509 *x = X509_new();
    X509_NAME *subject;
    ASN1_TIME *t = ASN1_TIME_new();
    bool ok = x && t && X509_set_version(x, 2) && ASN1_INTEGER_set(X509_get_serialNumber(x), 1) &&
              ASN1_TIME_set_string(t, "20000101000000Z") && X509_set1_notBefore(x, t) &&
              ASN1_TIME_set_string(t, "99991231235959Z") && X509_set1_notAfter(x, t) &&
              (subject = X509_get_subject_name(x)) &&
              X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const uint8_t *)name, -1, -1, 0) &&
              X509_set_issuer_name(x, subject) && X509_set_pubkey(x, key) && X509_sign(x, key, NULL);
    ASN1_TIME_free(t);
    if (ok) return x;
    X509_free(x);
    return NULL;
}

static neb_status certificate_key(X509 *x, struct neb_public *out)
{
    EVP_PKEY *key = x ? X509_get0_pubkey(x) : NULL;
    size_t n = NEB_PUBLIC_SIZE;
    if (!key || !EVP_PKEY_is_a(key, "ED25519") || EVP_PKEY_get_raw_public_key(key, out->b, &n) != 1 ||
        n != NEB_PUBLIC_SIZE) {
        ERR_clear_error();
        return neb__quiet(NEB_ERR_AUTH, "the certificate has no Ed25519 key");
    }
    return NEB_OK;
}

neb_status neb__tls_certificate_key(const uint8_t *der, size_t n, struct neb_public *out)
{
    struct neb_public key;
    X509 *x = n <= 65536 ? d2i_X509(NULL, &der, (long)n) : NULL;
    neb_status status = certificate_key(x, &key);
    X509_free(x);
    ERR_clear_error();
    if (status == NEB_OK) *out = key;
    return status;
}

static int verify(X509_STORE_CTX *store, void *arg)
{
    (void)arg;
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct neb_tls *t = ssl ? SSL_get_app_data(ssl) : NULL;
    STACK_OF(X509) *chain = X509_STORE_CTX_get0_untrusted(store);
    if (!t || (chain && sk_X509_num(chain) != 1) ||
        certificate_key(X509_STORE_CTX_get0_cert(store), &t->peer) != NEB_OK) {
        X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
        return 0;
    }
    t->peer_known = true;
    return 1;
}

/* ---- contexts ------------------------------------------------------------------------------------------ */

static const char *suites(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("aes")) return "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";
#endif
    return "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
}

static bool narrow(SSL_CTX *c)
{
    SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                               SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_max_cert_list(c, 8192);
    SSL_CTX_set_read_ahead(c, 1);
    SSL_CTX_set_default_read_buffer_len(c, 4 * (NEB_TLS_RECORD + 256));
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(c, verify, NULL);
    return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) &&
           SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) && SSL_CTX_set_ciphersuites(c, suites()) &&
           SSL_CTX_set1_groups_list(c, "X25519") && SSL_CTX_set1_sigalgs_list(c, "ed25519") &&
           SSL_CTX_set1_client_sigalgs_list(c, "ed25519") && SSL_CTX_set_num_tickets(c, 0) &&
           SSL_CTX_set_max_early_data(c, 0);
}

neb_status neb__tls_context_create(const struct neb_key *key, const char *name, struct neb_tls_context **out)
{
    struct neb_tls_context *c = NEB_NEW(struct neb_tls_context);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for TLS");
    X509 *x = make_certificate(neb__key_evp(key), name);
    c->renew_bytes = (uint64_t)64 << 30;
    c->renew_ns = (int64_t)3600 * 1000000000;
    c->bio = bio_method();
    c->ssl = SSL_CTX_new(TLS_method());
    bool ok = x && c->bio && c->ssl && narrow(c->ssl) && SSL_CTX_use_certificate(c->ssl, x) == 1 &&
              SSL_CTX_use_PrivateKey(c->ssl, neb__key_evp(key)) == 1;
    X509_free(x);
    if (!ok) {
        neb__tls_context_free(c);
        ERR_clear_error();
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "this OpenSSL lacks TLS 1.3 with X25519, Ed25519 and AES-256-GCM");
    }
    *out = c;
    return NEB_OK;
}

void neb__tls_context_free(struct neb_tls_context *c)
{
    if (!c) return;
    SSL_CTX_free(c->ssl);
    BIO_meth_free(c->bio);
    neb__free(c);
}

void neb__tls_context_renewal(struct neb_tls_context *c, uint64_t bytes, double seconds)
{
    c->renew_bytes = bytes;
    c->renew_ns = (int64_t)(seconds * 1e9);
}

/* ---- sessions ------------------------------------------------------------------------------------------ */

neb_status neb__tls_open(struct neb_tls_context *c, bool server, size_t out_max, neb_tls_source *source,
                         void *arg, struct neb_tls **out)
{
    struct neb_tls *t = NEB_NEW(struct neb_tls);
    BIO *bio = t ? BIO_new(c->bio) : NULL;
    if (t) t->ssl = SSL_new(c->ssl);
    if (!t || !bio || !t->ssl) {
        BIO_free(bio);
        neb__tls_close(t);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a TLS connection");
    }
    t->source = source;
    t->source_arg = arg;
    neb__buf_init(&t->out, out_max);
    BIO_set_data(bio, t);
    SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    if (server)
        SSL_set_accept_state(t->ssl);
    else
        SSL_set_connect_state(t->ssl);
    t->renew_bytes = c->renew_bytes;
    t->renew_ns = c->renew_ns;
    t->renewed_at = neb__now_ns();
    *out = t;
    return NEB_OK;
}

void neb__tls_close(struct neb_tls *t)
{
    if (!t) return;
    SSL_free(t->ssl);
    neb__buf_free(&t->out);
    neb__free(t);
}

/* A record's body is the plaintext, one byte for its type, and a tag of 16 bytes. */
enum { RECORD_EXTRA = 17 };

size_t neb__tls_missing(const struct neb_tls *t, size_t plain)
{
    const struct neb_tls_record *r = &t->record;
    size_t begun = r->left && r->length > RECORD_EXTRA ? r->length - RECORD_EXTRA : 0;
    size_t rest = plain > begun ? plain - begun : 0, records = (rest + NEB_TLS_RECORD - 1) / NEB_TLS_RECORD;
    return r->left + rest + records * (RECORD_EXTRA + sizeof r->head) - (records ? r->have : 0);
}

bool neb__tls_record_is_full(const struct neb_tls *t)
{
    return t->record.left && t->record.length == NEB_TLS_RECORD + RECORD_EXTRA;
}

size_t neb__tls_record_left(const struct neb_tls *t)
{
    const struct neb_tls_record *r = &t->record;
    return r->left ? r->left : sizeof r->head - r->have;
}

struct neb_buf *neb__tls_out(struct neb_tls *t)
{
    return &t->out;
}

/* Turns OpenSSL's error queue into one of our codes, and sets the error message. */
static neb_status ssl_error(struct neb_tls *t, int rc, const char *doing)
{
    int kind = SSL_get_error(t->ssl, rc);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) return NEB_ERR_AGAIN;
    if (kind == SSL_ERROR_ZERO_RETURN) return neb__quiet(NEB_ERR_PEER, "the peer closed the connection");
    unsigned long e = ERR_peek_last_error();
    const char *why = ERR_reason_error_string(e);
    int reason = ERR_GET_REASON(e);
    neb_status status = NEB_ERR_PROTOCOL;
    if (reason == SSL_R_UNSUPPORTED_PROTOCOL || reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION)
        status = NEB_ERR_VERSION;
    if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED || reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE ||
        reason == SSL_R_BAD_SIGNATURE || reason == SSL_R_NO_SHARED_SIGNATURE_ALGORITHMS)
        status = NEB_ERR_AUTH;
    if (reason == ERR_R_ASN1_LIB) { /* OpenSSL's own message would help nobody */
        status = NEB_ERR_AUTH;
        why = "malformed certificate";
    }
    neb__quiet(status, "%s: %s", doing, why ? why : "the connection ended");
    ERR_clear_error();
    return status;
}

neb_status neb__tls_handshake(struct neb_tls *t)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    if (rc != 1) return ssl_error(t, rc, "TLS handshake");
    if (!t->peer_known) return neb__quiet(NEB_ERR_AUTH, "TLS handshake: the peer sent no certificate");
    return NEB_OK;
}

void neb__tls_peer(const struct neb_tls *t, struct neb_public *out)
{
    *out = t->peer;
}

neb_status neb__tls_read(struct neb_tls *t, uint8_t *p, size_t n, size_t *got)
{
    ERR_clear_error();
    int rc = SSL_read_ex(t->ssl, p, n, got);
    return rc == 1 ? NEB_OK : ssl_error(t, rc, "TLS");
}

static neb_status renew(struct neb_tls *t, size_t n)
{
    t->written += n;
    if (t->written < t->renew_bytes && neb__now_ns() - t->renewed_at < t->renew_ns) return NEB_OK;
    t->written = 0;
    t->renewed_at = neb__now_ns();
    t->renewals++;
    return SSL_key_update(t->ssl, SSL_KEY_UPDATE_REQUESTED) == 1 ? NEB_OK : ssl_error(t, 0, "TLS key update");
}

neb_status neb__tls_write(struct neb_tls *t, const uint8_t *p, size_t n)
{
    size_t done;
    if (!n) return NEB_OK;
    ERR_clear_error();
    NEB_TRY(renew(t, n));
    int rc = SSL_write_ex(t->ssl, p, n, &done);
    if (rc == 1) return NEB_OK;
    neb_status status = ssl_error(t, rc, "TLS");
    return status == NEB_ERR_AGAIN
               ? neb__fail(NEB_ERR_NOSPACE, "TLS: the output buffer has no room for %zu bytes", n)
               : status;
}

void neb__tls_goodbye(struct neb_tls *t)
{
    SSL_shutdown(t->ssl);
    ERR_clear_error();
}

uint32_t neb__tls_renewals(const struct neb_tls *t)
{
    return t->renewals;
}
