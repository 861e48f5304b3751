/* proxy.h: how to ask a proxy for a connection to HOST:PORT. No I/O, no clock.
 *
 *     neb__proxy_parse("socks5://user:word@gate.example:1080", &proxy)
 *     neb__proxy_ask(&talk, &proxy, "b.example.org", 7100)     talk.out: what to send first
 *     neb__proxy_take(&talk, bytes, n, &used)                  NEB_ERR_AGAIN: send talk.out, if any, and read on
 *
 * HTTP CONNECT (RFC 9110, 9.3.6; Basic, RFC 7617) and SOCKS5 (RFC 1928, RFC 1929). A name goes to the proxy as it is:
 * the machine that dials often cannot look it up. */
#ifndef NEB_NET_PROXY_H
#define NEB_NET_PROXY_H

#include "seal/roster.h"

enum {
    NEB_PROXY_WORD = 128,           /* bytes of a user's name or password, with the terminating 0 */
    NEB_PROXY_REPLY_MAX = 16 << 10, /* bytes of an HTTP proxy's answer */
    NEB_PROXY_LINE = 160,           /* … of which its first line is kept */
    NEB_PROXY_OUT = 1024,
};

enum neb_proxy_kind { NEB_PROXY_NONE, NEB_PROXY_HTTP, NEB_PROXY_SOCKS };

struct neb_proxy {
    enum neb_proxy_kind kind;
    char host[NEB_ADDRESS_SIZE];
    uint16_t port;
    char user[NEB_PROXY_WORD], password[NEB_PROXY_WORD]; /* user "": none. Never logged */
};

/* Reads [http://|socks5://][USER[:PASSWORD]@]HOST:PORT[/]. socks5h:// is the same as socks5://. NEB_ERR_CONFIG: the
 * message does not repeat the text, which may hold a password. */
neb_status neb__proxy_parse(const char *text, struct neb_proxy *out);

/* Whether the list spares this host from a proxy, as no_proxy does: names separated by commas or blanks, with or without
 * a dot in front, each for itself and for what ends in it; addresses, also as ADDRESS/BITS; and * for all. */
bool neb__proxy_spares(const char *list, const char *host);

/* A host that may stand in a request or in a command: an address, or letters, digits, dots, - and _ behind a letter or
 * a digit. Rosters allow more. */
bool neb__host_is_plain(const char *host);

enum neb_proxy_stage { NEB_PROXY_HTTP_REPLY, NEB_PROXY_METHOD, NEB_PROXY_LOGIN, NEB_PROXY_REPLY };

struct neb_proxy_talk {
    const struct neb_proxy *proxy; /* borrowed */
    enum neb_proxy_stage stage;
    char host[NEB_ADDRESS_SIZE];
    uint16_t port;
    uint8_t out[NEB_PROXY_OUT]; /* to be sent: out_len bytes; the caller sets out_len to 0 then */
    size_t out_len;
    char in[NEB_PROXY_LINE + 256]; /* HTTP: the first line; SOCKS5: the reply */
    size_t got;                    /* bytes of the present reply */
    int newlines;                  /* HTTP: in a row, at the end of what came */
};

/* NEB_ERR_INVALID: the host is not plain. */
neb_status neb__proxy_ask(struct neb_proxy_talk *t, const struct neb_proxy *proxy, const char *host,
                          uint16_t port);
/* The bytes are hostile. `used`: how many of them were the proxy's; set with NEB_OK and NEB_ERR_AGAIN.
 *   NEB_OK          the connection is there; bytes behind `used` are the peer's
 *   NEB_ERR_AGAIN   more must come
 *   NEB_ERR_NET     the proxy refuses; NEB_ERR_PROTOCOL: this is no such proxy. neb_last_error() says why (not logged) */
neb_status neb__proxy_take(struct neb_proxy_talk *t, const uint8_t *p, size_t n, size_t *used);

#endif
