/* way.h (inside src/net): how this site dials: straight, through a proxy, or by a command whose input and output carry
 * the connection. */
#ifndef NEB_NET_WAY_H
#define NEB_NET_WAY_H

#include "net/proxy.h"

enum { NEB_COMMAND_WORDS = 64, NEB_COMMAND_TEXT = 2048 };

/* A command in words. `text` holds them one behind the other, each with its terminating 0. */
struct neb_command {
    int n;
    size_t len;
    char text[NEB_COMMAND_TEXT];
};

struct neb_way {
    struct neb_proxy proxy;
    const char *origin; /* where the proxy was named, for messages */
    char *spared;       /* hosts that are dialled without the proxy; or NULL */
    bool by_environment;
    struct neb_command command; /* n 0: none */
};

/* proxy: as neb__proxy_parse() takes it; "none": none, whatever the environment says; NULL: as the environment says if
 * `environment`. command: or NULL, "none". NEB_ERR_CONFIG, NEB_ERR_NOMEM. A success owes a neb__way_free(). */
neb_status neb__way_init(struct neb_way *w, const char *proxy, const char *command, bool environment);
void neb__way_free(struct neb_way *w);
bool neb__way_uses_proxy(const struct neb_way *w, const char *host);

/* Cuts a command into words: at blanks, outside of '…' and "…"; \ takes the next character as it is. No shell reads it.
 * NEB_ERR_CONFIG: an open quote, an unknown %, too long, empty. */
neb_status neb__command_split(const char *text, struct neb_command *out);
/* Puts host and port in the place of %h and %p (and % of %%). A host with colons gets brackets in %h:%p.
 * NEB_ERR_INVALID: the host is not plain, or the words get too long. */
neb_status neb__command_fill(const struct neb_command *c, const char *host, uint16_t port,
                             struct neb_command *out);
/* Points to the words, ended by NULL. */
void neb__command_words(struct neb_command *c, char *argv[NEB_COMMAND_WORDS + 1]);

#endif
