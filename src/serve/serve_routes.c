/* serve_routes.c: what is asked, and the answer.
 *
 * GET and HEAD read and change nothing. POST gives an order, where that is switched on (serve_orders.c). serve_door.c says who may. */
#include "base/buf.h"
#include "base/mem.h"
#include "serve/serve_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *value;
} headers[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri "
     "'none'; form-action 'self'; frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"X-Frame-Options", "DENY"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
};

static enum MHD_Result answer_with(struct MHD_Connection *c, unsigned code, const char *type,
                                   struct MHD_Response *r)
{
    if (!r) return MHD_NO; /* out of memory: the connection is closed */
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        MHD_add_response_header(r, headers[i].name, headers[i].value);
    MHD_add_response_header(r, "Content-Type", type);
    enum MHD_Result ok = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result send_text(struct MHD_Connection *c, unsigned code, const char *type, const char *text)
{
    return answer_with(
        c, code, type,
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY));
}

static enum MHD_Result send_error(struct MHD_Connection *c, unsigned code, const char *why)
{
    char text[400];
    snprintf(text, sizeof text, "%s\n", why);
    return send_text(c, code, "text/plain; charset=utf-8", text);
}

static enum MHD_Result send_buffer(struct MHD_Connection *c, const char *type, neb_status status,
                                   struct neb_buf *b)
{
    enum MHD_Result ok =
        status == NEB_OK
            ? answer_with(c, MHD_HTTP_OK, type,
                          MHD_create_response_from_buffer(b->len, b->data, MHD_RESPMEM_MUST_COPY))
            : send_error(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "there is no memory for the answer");
    neb__buf_free(b);
    return ok;
}

/* ---- asking for the token ------------------------------------------------------------------------------ */

static const char asks_token[] =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width\"><title>nebula-i watch</title><link rel=\"icon\" href=\"data:,\"><main>"
    "<h1>nebula-i watch</h1><form action=\"/\"><p><label>The token of this run: <input name=\"token\" "
    "type=\"password\" autocomplete=\"off\" autofocus></label> "
    "<button>Look</button></p></form></main></html>\n";

static enum MHD_Result refuse(struct MHD_Connection *c, const char *url)
{
    if (!strcmp(url, "/")) return send_text(c, MHD_HTTP_UNAUTHORIZED, "text/html; charset=utf-8", asks_token);
    return send_error(
        c, MHD_HTTP_UNAUTHORIZED,
        "a token is needed: send it as 'Authorization: Bearer TOKEN', or open / and give it there");
}

/* /?token=T: the token is in an address, which histories keep. It is replaced by a cookie. */
static enum MHD_Result admit(const struct neb_serve *s, struct MHD_Connection *c)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    neb__door_admit(s, r);
    return answer_with(c, MHD_HTTP_SEE_OTHER, "text/plain", r);
}

/* ---- what is there ------------------------------------------------------------------------------------- */

static enum MHD_Result health(struct neb_serve *s, struct MHD_Connection *c)
{
    pthread_mutex_lock(&s->lock);
    bool found = s->view->n > 0;
    pthread_mutex_unlock(&s->lock);
    return found ? send_text(c, MHD_HTTP_OK, "text/plain", "ok\n")
                 : send_error(c, MHD_HTTP_SERVICE_UNAVAILABLE, "no site writes here yet");
}

static enum MHD_Result status(struct neb_serve *s, struct MHD_Connection *c)
{
    struct neb_buf b;
    neb__buf_init(&b, 64 << 20);
    pthread_mutex_lock(&s->lock);
    char *text = s->status ? json_dumps(s->status, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    pthread_mutex_unlock(&s->lock);
    neb_status made = text ? neb__buf_printf(&b, "%s\n", text) : neb__buf_printf(&b, "{\"sites\":[]}\n");
    free(text);
    return send_buffer(c, "application/json", made, &b);
}

static enum MHD_Result metrics(struct neb_serve *s, struct MHD_Connection *c)
{
    struct neb_buf b;
    neb__buf_init(&b, 64 << 20);
    pthread_mutex_lock(&s->lock);
    neb_status made = neb__view_prometheus(s->view, &b);
    pthread_mutex_unlock(&s->lock);
    return send_buffer(c, "text/plain; version=0.0.4; charset=utf-8", made, &b);
}

struct asked {
    struct neb_history_query q;
    int64_t after;
    neb_status status;
};

static enum MHD_Result take_key(void *arg, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct asked *a = arg;
    (void)kind;
    if (!strcmp(key, "after")) {
        long long after = value ? strtoll(value, NULL, 10) : 0;
        a->after = after > 0 ? after : 0;
        return MHD_YES;
    }
    a->status = neb__history_query_read(key, value ? value : "", &a->q);
    return a->status == NEB_OK ? MHD_YES : MHD_NO;
}

static enum MHD_Result history(struct neb_serve *s, struct MHD_Connection *c, bool log)
{
    struct asked a = {0};
    struct neb_buf b;
    MHD_get_connection_values(c, MHD_GET_ARGUMENT_KIND, take_key, &a);
    if (a.status != NEB_OK) return send_error(c, MHD_HTTP_BAD_REQUEST, neb_last_error());
    neb__buf_init(&b, 64 << 20);
    neb_status made =
        log ? neb__history_events_json(s->history, a.after, &b) : neb__history_json(s->history, &a.q, &b);
    return send_buffer(c, "application/json", made, &b);
}

static enum MHD_Result facts(struct neb_serve *s, struct MHD_Connection *c)
{
    struct neb_buf b;
    char *job = neb__history_note(s->history, "job_text"),
         *samples = neb__history_note(s->history, "samples");
    json_t *o = json_pack("{s:f, s:s, s:s?, s:s?, s:b}", "egress", s->config.egress, "version", NEB_VERSION,
                          "job", job, "samples", samples, "orders", s->config.orders != NULL);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    neb__buf_init(&b, 4 << 20);
    neb_status made = text ? neb__buf_printf(&b, "%s\n", text) : NEB_ERR_NOMEM;
    free(text);
    json_decref(o);
    neb__free(job);
    neb__free(samples);
    return send_buffer(c, "application/json", made, &b);
}

static enum MHD_Result orders(struct neb_serve *s, struct MHD_Connection *c)
{
    struct neb_buf b;
    if (!s->config.orders) return send_error(c, MHD_HTTP_NOT_FOUND, "orders are not taken here");
    neb__buf_init(&b, 1 << 20);
    neb_status made = neb__serve_orders_json(s, &b);
    return send_buffer(c, "application/json", made, &b);
}

static enum MHD_Result events(struct neb_serve *s, struct MHD_Connection *c)
{
    struct MHD_Response *r = neb__serve_events(s, c);
    if (!r) return send_error(c, MHD_HTTP_SERVICE_UNAVAILABLE, "too many viewers");
    MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* a proxy must not hold it back */
    return answer_with(c, MHD_HTTP_OK, "text/event-stream", r);
}

static enum MHD_Result route(struct neb_serve *s, struct MHD_Connection *c, const char *url)
{
    const struct neb_serve_file *f = neb__serve_file(url);
    if (f)
        return answer_with(c, MHD_HTTP_OK, f->type,
                           MHD_create_response_from_buffer((size_t)(f->end - f->bytes),
                                                           (void *)(uintptr_t)f->bytes,
                                                           MHD_RESPMEM_PERSISTENT));
    if (!strcmp(url, "/api/v1/status")) return status(s, c);
    if (!strcmp(url, "/api/v1/history")) return history(s, c, false);
    if (!strcmp(url, "/api/v1/log")) return history(s, c, true);
    if (!strcmp(url, "/api/v1/facts")) return facts(s, c);
    if (!strcmp(url, "/api/v1/events")) return events(s, c);
    if (!strcmp(url, "/api/v1/orders")) return orders(s, c);
    if (!strcmp(url, "/metrics")) return metrics(s, c);
    return send_error(c, MHD_HTTP_NOT_FOUND,
                      "there are /, /metrics, /healthz, /api/v1/status, /api/v1/history, /api/v1/log, "
                      "/api/v1/facts and /api/v1/events");
}

/* ---- a request ----------------------------------------------------------------------------------------- */

static void note_asked(struct neb_serve *s, struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct neb_serve_peer *p = info ? info->socket_context : NULL;
    pthread_mutex_lock(&s->lock);
    if (p) p->asked = true;
    pthread_mutex_unlock(&s->lock);
}

static int seen; /* its address alone is used: the headers of a request without a body are there */

void neb__serve_request_end(void **state)
{
    if (*state != &seen) neb__free(*state);
    *state = NULL;
}

static enum MHD_Result answer_get(struct neb_serve *s, struct MHD_Connection *c, const char *url)
{
    if (!strcmp(url, "/healthz")) return health(s, c);
    const char *why = neb__door_turns_away(s, c);
    if (why) return send_error(c, MHD_HTTP_FORBIDDEN, why);
    if (!strcmp(url, "/") && neb__door_shows_token(s, c)) return admit(s, c);
    if (!neb__door_may_look(s, c)) return refuse(c, url);
    return route(s, c, url);
}

/* Three kinds of calls: the headers, a piece of the body, its end. */
static enum MHD_Result answer_post(struct neb_serve *s, struct MHD_Connection *c, const char *url,
                                   const char *upload, size_t *upload_size, void **state)
{
    const char *why = neb__door_turns_away(s, c);
    unsigned code = MHD_HTTP_FORBIDDEN;
    if (*state && *upload_size) {
        neb__serve_body_add(*state, upload, *upload_size);
        *upload_size = 0;
        return MHD_YES;
    }
    if (*state) {
        note_asked(s, c);
        code = neb__serve_order(s, *state, &why);
        return send_error(c, code, why);
    }
    if (!why && strcmp(url, "/api/v1/orders")) code = MHD_HTTP_METHOD_NOT_ALLOWED, why = "only GET";
    if (!why) code = neb__door_may_order(s, c, &why);
    if (code) return send_error(c, code, why);
    *state = neb__serve_body_new();
    return *state ? MHD_YES : MHD_NO;
}

enum MHD_Result neb__serve_answer(void *serve, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_size, void **state)
{
    struct neb_serve *s = serve;
    (void)version;
    if (!strcmp(method, MHD_HTTP_METHOD_POST)) return answer_post(s, c, url, upload, upload_size, state);
    if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
        return send_error(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET");
    if (!*state) { /* the headers alone are there */
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_size) return MHD_NO; /* nobody has anything to bring */
    note_asked(s, c);
    return answer_get(s, c, url);
}
