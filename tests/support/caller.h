/* caller.h: a client of our own making that speaks TLS and frames to a site of the scene, and says what it likes. */
#ifndef NEB_TEST_CALLER_H
#define NEB_TEST_CALLER_H

#include "net/wire.h"
#include "seal/tls.h"

struct caller {
    int fd;
    struct neb_tls_context *ctx;
    struct neb_tls *tls;
    uint8_t raw[1 << 16]; /* everything it sent, as on the wire */
    size_t raw_len;
};

/* A proper TLS handshake with any key. Owes a caller_hang_up(). */
void caller_dial(struct caller *c, int site, const struct neb_key *key);
void caller_shake(struct caller *c, const struct neb_key *key); /* the handshake alone, over c->fd */
void caller_hang_up(struct caller *c);
/* Waits at the port until a site dials, and makes the handshake as a server. Owes a caller_hang_up(). */
void caller_answer(struct caller *c, uint16_t port, const struct neb_key *key);

void caller_say_raw(struct caller *c, const void *p, size_t n);
void caller_say(struct caller *c, enum neb_frame_type type, const void *body, size_t n);
/* A whole message of one chunk. */
void caller_message(struct caller *c, enum neb_priority priority, uint64_t number, uint32_t kind,
                    const void *bytes, size_t n);

/* The next bytes inside TLS; false: the other side has closed. */
bool caller_hear(struct caller *c, uint8_t *to, size_t room, size_t *got);
/* Reads frames until a REFUSE; its code. 0: closed without one. */
int caller_refusal(struct caller *c);

struct neb_hello caller_hello(void);  /* as a member of the scene says it that was never here before */
struct neb_key *caller_key(int site); /* of a site of the scene; owes a neb__key_free() */
int caller_refused(const struct neb_key *key, const struct neb_hello *h); /* by s0: the code */

/* Dials s0 and says HELLO; s0 has judged it, and welcomed it, when this returns. */
void caller_greet(struct caller *c, const struct neb_key *key, const struct neb_hello *h);
/* The same to the end: a control connection that is in use. */
void caller_link(struct caller *c, const struct neb_key *key, const struct neb_hello *h);

#endif
