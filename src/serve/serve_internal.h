/* serve_internal.h: what the files of src/serve share. */
#ifndef NEB_SERVE_INTERNAL_H
#define NEB_SERVE_INTERNAL_H

#include "base/buf.h"
#include "serve/serve.h"

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>

/* A text that several connections send. Under the server's lock. */
struct neb_serve_text {
    int refs;
    size_t n;
    char bytes[];
};

/* One viewer's event stream. */
struct neb_serve_stream {
    struct neb_serve *serve;
    struct MHD_Connection *connection;
    struct neb_serve_text *text; /* being sent; or NULL */
    size_t sent;
    uint64_t version; /* of the status that it has */
    int64_t beat_ns;  /* when something was last sent */
    bool suspended;
    struct neb_serve_stream *next;
};

/* One connection, from its acceptance to its end. */
struct neb_serve_peer {
    int fd;
    int64_t since_ns; /* it began, or its last request ended */
    bool asked;       /* a request is being answered */
    struct neb_serve_peer *next, **back;
};

enum { NEB_SERVE_COOKIE = 64 }; /* characters of the cookie's word */

struct neb_serve {
    struct neb_serve_config config;
    struct MHD_Daemon *daemon;
    int port;
    char cookie[NEB_SERVE_COOKIE + 1]; /* of whoever has shown the token; new with every start */
    pthread_mutex_t lock;              /* over everything below */
    struct neb_view *view;
    bool stopping;
    struct neb_history *history;
    json_t *status; /* as it was last told */
    uint64_t version;
    struct neb_serve_text *whole, *change; /* as events: the status; what changed since version - 1 */
    struct neb_serve_stream *streams;
    int n_streams;
    struct neb_serve_peer *peers;
    int wrong; /* words for orders that were wrong, since: */
    int64_t wrong_since;
    /* the ticking thread's alone */
    struct neb_view *next; /* what it looks with */
    double changed;        /* neb__view_changed() at the last look */
    double cost;           /* seconds of the last look */
};

/* serve_events.c. The lock is held in the first. */
void neb__serve_tell(struct neb_serve *s);
struct MHD_Response *neb__serve_events(struct neb_serve *s, struct MHD_Connection *c);
void neb__serve_wake(struct neb_serve *s);
/* What changed from a to b: objects by key, arrays of one length by place. NULL: nothing, or out of memory. */
json_t *neb__serve_diff(const json_t *a, const json_t *b);

/* serve_door.c */
neb_status neb__door_open(struct neb_serve *s); /* NEB_ERR_IO: no random numbers */
/* Why a request is not answered, whoever asks; NULL: it may be. */
const char *neb__door_turns_away(const struct neb_serve *s, struct MHD_Connection *c);
bool neb__door_may_look(const struct neb_serve *s, struct MHD_Connection *c);
bool neb__door_shows_token(const struct neb_serve *s, struct MHD_Connection *c); /* in the address */
void neb__door_admit(const struct neb_serve *s, struct MHD_Response *r);         /* sets the cookie */
/* 0: the request may give an order; else the code of the refusal. */
unsigned neb__door_may_order(struct neb_serve *s, struct MHD_Connection *c, const char **why);

/* serve_orders.c. A body owes a neb__free(). */
struct neb_serve_body;
struct neb_serve_body *neb__serve_body_new(void); /* NULL: out of memory */
void neb__serve_body_add(struct neb_serve_body *b, const char *bytes, size_t n);
unsigned neb__serve_order(struct neb_serve *s, const struct neb_serve_body *b, const char **why);
neb_status neb__serve_orders_json(struct neb_serve *s, struct neb_buf *out);

/* serve_routes.c */
void neb__serve_request_end(void **state); /* frees what neb__serve_answer() has kept there */
enum MHD_Result neb__serve_answer(void *serve, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **state);

/* serve_files.c: the parts of the page, which are in the program. NULL: no such file */
struct neb_serve_file {
    const char *path, *type, *bytes, *end;
};
const struct neb_serve_file *neb__serve_file(const char *path);

#endif
