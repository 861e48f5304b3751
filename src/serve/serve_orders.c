/* serve_orders.c: an order that comes by POST, and what has become of the ones before.
 *
 *     POST /api/v1/orders   {"order": "evict", "word": "c"}     202: signed and left for the site
 *     GET  /api/v1/orders   {"orders": [{"n", "time", "order", "word", "state", "note"}, …]}
 *
 * A body is small and is kept whole. The server itself signs nothing: whoever started it lends it the two functions of
 * struct neb_serve_orders. */
#include "base/mem.h"
#include "serve/serve_internal.h"

#include <stdlib.h>
#include <string.h>

enum { BODY = 1024 };

struct neb_serve_body {
    size_t n;
    bool too_long;
    char bytes[BODY];
};

struct neb_serve_body *neb__serve_body_new(void)
{
    return NEB_NEW(struct neb_serve_body);
}

void neb__serve_body_add(struct neb_serve_body *b, const char *bytes, size_t n)
{
    if (n > BODY - b->n) b->too_long = true;
    if (b->too_long) return;
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

static bool is_name(const char *text)
{
    size_t n = text ? strlen(text) : 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~') return false;
    return n < 64;
}

unsigned neb__serve_order(struct neb_serve *s, const struct neb_serve_body *b, const char **why)
{
    *why = "the order is too long";
    if (b->too_long) return MHD_HTTP_CONTENT_TOO_LARGE;
    json_t *o = json_loadb(b->bytes, b->n, JSON_REJECT_DUPLICATES, NULL);
    const char *order = json_string_value(json_object_get(o, "order")),
               *word = json_string_value(json_object_get(o, "word"));
    unsigned code = MHD_HTTP_BAD_REQUEST;
    *why = "an order is {\"order\": NAME, \"word\": VALUE}, without blanks in either";
    if (order && is_name(order) && is_name(word)) {
        bool given = s->config.orders->give(s->config.orders->arg, order, word ? word : "") == NEB_OK;
        *why = given ? "signed; GET /api/v1/orders says what becomes of it" : neb_last_error();
        code = given ? MHD_HTTP_ACCEPTED : MHD_HTTP_CONFLICT;
    }
    json_decref(o);
    return code;
}

neb_status neb__serve_orders_json(struct neb_serve *s, struct neb_buf *out)
{
    json_t *o = s->config.orders->list(s->config.orders->arg);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    neb_status made = text ? neb__buf_printf(out, "%s\n", text) : NEB_ERR_NOMEM;
    free(text);
    return made;
}
