/* tls.h: TLS 1.3 between two sites, as a filter from bytes to bytes. It does not own a socket.
 *
 * A context holds the site's key and its self-signed certificate; a successful create owes a free. A session
 * (struct neb_tls) is one connection. It asks its source for ciphertext when neb__tls_read() wants plaintext.
 * neb__tls_write() takes plaintext, and the ciphertext gathers in `out`.
 *
 * The handshake proves that the peer holds the private half of the key that neb__tls_peer() returns. The
 * caller decides from the newest roster whether that key may do anything. Dates, names and issuers in a
 * certificate mean nothing. */
#ifndef NEB_SEAL_TLS_H
#define NEB_SEAL_TLS_H

#include "base/buf.h"
#include "seal/key.h"

struct neb_tls_context;
struct neb_tls;

enum { NEB_TLS_RECORD = 16384 /* the largest plaintext of a record; a record adds 22 bytes */ };

neb_status neb__tls_context_create(const struct neb_key *key, const char *name, struct neb_tls_context **out);
void neb__tls_context_free(struct neb_tls_context *c); /* NULL is fine; sessions may outlive it */
/* Sets when keys are renewed. The default is 64 GiB or an hour. */
void neb__tls_context_renewal(struct neb_tls_context *c, uint64_t bytes, double seconds);

/* Writes up to n bytes of the peer's ciphertext to `to`. Returns how many; 0: nothing is there now. */
typedef size_t neb_tls_source(void *arg, uint8_t *to, size_t n);

/* `out_max` is the most ciphertext that may wait in neb__tls_out(). Handshake and read ask the source; they
 * have used up all its bytes when they return NEB_ERR_AGAIN. */
neb_status neb__tls_open(struct neb_tls_context *c, bool server, size_t out_max, neb_tls_source *source,
                         void *arg, struct neb_tls **out);
void neb__tls_close(struct neb_tls *t); /* NULL is fine */
struct neb_buf *neb__tls_out(struct neb_tls *t);

/* Both are for a session whose read returned NEB_ERR_AGAIN. The first returns how many bytes of ciphertext
 * must still arrive until `plain` bytes of plaintext can be read, if the peer fills its records. The second
 * says whether a full record is under way. */
size_t neb__tls_missing(const struct neb_tls *t, size_t plain);
bool neb__tls_record_is_full(const struct neb_tls *t);
/* Bytes that the present record, or its header, still lacks. A source that never gives more than that leaves in the socket
 * what follows the session's last record. */
size_t neb__tls_record_left(const struct neb_tls *t);

/* NEB_OK: finished. NEB_ERR_AGAIN: needs bytes from the peer. NEB_ERR_AUTH, NEB_ERR_PROTOCOL,
 * NEB_ERR_VERSION: failed (not logged; neb_last_error() says why); `out` may hold an alert for the peer. */
neb_status neb__tls_handshake(struct neb_tls *t);
void neb__tls_peer(const struct neb_tls *t, struct neb_public *out); /* after the handshake */

/* Reads up to n bytes. NEB_ERR_AGAIN: nothing now. NEB_ERR_PEER: the peer closed properly. NEB_ERR_PROTOCOL:
 * damaged, forged or forbidden bytes. */
neb_status neb__tls_read(struct neb_tls *t, uint8_t *p, size_t n, size_t *got);
/* Writes all n bytes, or the session is broken. NEB_ERR_NOSPACE: out_max is too small for them, a defect of
 * the caller. */
neb_status neb__tls_write(struct neb_tls *t, const uint8_t *p, size_t n);
void neb__tls_goodbye(struct neb_tls *t); /* puts close_notify into `out` */
uint32_t neb__tls_renewals(const struct neb_tls *t);

/* Extracts the Ed25519 key of a certificate in DER, which is hostile. NEB_ERR_AUTH: the certificate is
 * malformed or has another kind of key. */
neb_status neb__tls_certificate_key(const uint8_t *der, size_t n, struct neb_public *out);

#endif
