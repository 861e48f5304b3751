/* relay_visitor.h: a guest of a relay host as tests make it: it blocks, and may say anything. */
#ifndef NEB_TESTS_RELAY_VISITOR_H
#define NEB_TESTS_RELAY_VISITOR_H

#include "net/relay/relay_wire.h"
#include "seal/key.h"

struct relay_visitor {
    int fd;
    struct neb_tls_context *context;
    struct neb_tls *tls;
    struct neb_relay_reader reader;
};

/* Connects to 127.0.0.1. `from`: the address of this end, such as "127.0.9.1", for a visitor of another network; NULL: any. */
int visitor_dial(uint16_t port, const char *from);
/* Makes TLS on the connected socket, which is taken over, and asks. */
void visitor_ask(struct relay_visitor *v, int fd, const struct neb_key *key, const struct neb_relay_ask *ask);
neb_status visitor_hear(struct relay_visitor *v, struct neb_relay_message *m);
void visitor_expect(struct relay_visitor *v, enum neb_relay_type type, struct neb_relay_message *m);
int visitor_refused(struct relay_visitor *v); /* the code */
void visitor_flush(struct relay_visitor *v);
/* Shows a chain in pieces; WANT comes first. */
void visitor_show(struct relay_visitor *v, const uint8_t *p, size_t n);
void visitor_leave(struct relay_visitor *v);

#endif
