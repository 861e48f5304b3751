/* serve_door.c: who may look, and who may give orders.
 *
 * Looking: with a token, everybody must show it: as `Authorization: Bearer`, or once as ?token= in the address, which is then
 * replaced by a cookie. The cookie is a random word of this start of the server. So it is worth nothing elsewhere and later, and
 * the token itself lies in no browser. Without a token the server listens on this machine alone, and the name in `Host` must be
 * this machine's, so that a page from elsewhere cannot be pointed here by its own DNS.
 *
 * Ordering: a second word, which is never in a cookie, must be in the request's `Authorization`. A browser sends a cookie to
 * whichever server runs on a port of the same machine, and along with requests that another page makes. It sends neither this header
 * nor a body of JSON for another page without asking here first, and such a question is answered by a refusal. A browser that names
 * the page that asks (`Origin`, `Sec-Fetch-Site`) must name this one. Wrong words are counted: ten in a minute close the door for
 * the rest of it. */
#include "base/clock.h"
#include "serve/serve_internal.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

enum { WORD = 256, WRONG_MOST = 10, WRONG_S = 60 };

static const char cookie_name[] = "nebula_watch";

static const char *value_of(struct MHD_Connection *c, enum MHD_ValueKind kind, const char *key)
{
    return MHD_lookup_connection_value(c, kind, key);
}

neb_status neb__door_open(struct neb_serve *s)
{
    unsigned char bytes[NEB_SERVE_COOKIE / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return neb__fail(NEB_ERR_IO, "the system gives no random numbers");
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(s->cookie + 2 * i, 3, "%02x", bytes[i]);
    return NEB_OK;
}

/* Takes the same time wherever the two differ. */
static bool same_word(const char *want, const char *have)
{
    unsigned char a[WORD] = {0}, b[WORD] = {0}, differ = 0;
    size_t m = strlen(want), n = strlen(have);
    memcpy(a, want, m < WORD ? m : WORD);
    memcpy(b, have, n < WORD ? n : WORD);
    for (volatile size_t i = 0; i < WORD; i++) differ |= a[i] ^ b[i];
    return !differ && n == m && m < WORD;
}

/* NULL: there is none */
static const char *bearer_of(struct MHD_Connection *c)
{
    const char *bearer = value_of(c, MHD_HEADER_KIND, "Authorization");
    return bearer && !strncasecmp(bearer, "Bearer ", 7) ? bearer + 7 : NULL;
}

/* ---- where the request comes from ---------------------------------------------------------------------- */

/* NAME, NAME:PORT or [ADDRESS]:PORT. */
static bool host_is_here(const char *host)
{
    char name[80];
    if (!host || strlen(host) >= sizeof name) return false;
    const char *end = *host == '[' ? strchr(host, ']') : strchr(host, ':');
    if (*host == '[' && !end) return false;
    if (*host == '[') host++;
    snprintf(name, sizeof name, "%.*s", (int)(end ? (size_t)(end - host) : strlen(host)), host);
    return neb__serve_is_local(name);
}

/* A browser tells when another site's page asks. Such a page could not read the answer, but it could keep the server busy.
 * A link that somebody follows is fine. */
static bool asked_by_another_page(struct MHD_Connection *c)
{
    const char *site = value_of(c, MHD_HEADER_KIND, "Sec-Fetch-Site"),
               *to = value_of(c, MHD_HEADER_KIND, "Sec-Fetch-Dest");
    return site && !strcmp(site, "cross-site") && !(to && !strcmp(to, "document"));
}

const char *neb__door_turns_away(const struct neb_serve *s, struct MHD_Connection *c)
{
    if (!s->config.token && !host_is_here(value_of(c, MHD_HEADER_KIND, "Host")))
        return "the address must name this machine: use 127.0.0.1 or localhost, or give --token";
    if (asked_by_another_page(c)) return "a page of another site may not ask";
    return NULL;
}

/* ---- looking ------------------------------------------------------------------------------------------- */

bool neb__door_may_look(const struct neb_serve *s, struct MHD_Connection *c)
{
    const char *bearer = bearer_of(c), *cookie = value_of(c, MHD_COOKIE_KIND, cookie_name);
    if (!s->config.token) return true;
    if (bearer) return same_word(s->config.token, bearer);
    return cookie && same_word(s->cookie, cookie);
}

bool neb__door_shows_token(const struct neb_serve *s, struct MHD_Connection *c)
{
    const char *token = value_of(c, MHD_GET_ARGUMENT_KIND, "token");
    return s->config.token && token && same_word(s->config.token, token);
}

void neb__door_admit(const struct neb_serve *s, struct MHD_Response *r)
{
    char cookie[NEB_SERVE_COOKIE + 120];
    snprintf(cookie, sizeof cookie, "%s=%s; Path=/; HttpOnly; SameSite=Strict%s", cookie_name, s->cookie,
             s->config.certificate ? "; Secure" : "");
    MHD_add_response_header(r, "Set-Cookie", cookie);
    MHD_add_response_header(r, "Location", "/");
}

/* ---- ordering ------------------------------------------------------------------------------------------ */

/* `http://HOST` of the page that asks; HOST must be the one that this request is for. */
static bool is_own_page(struct MHD_Connection *c)
{
    const char *origin = value_of(c, MHD_HEADER_KIND, "Origin"), *host = value_of(c, MHD_HEADER_KIND, "Host"),
               *site = value_of(c, MHD_HEADER_KIND, "Sec-Fetch-Site");
    if (site && strcmp(site, "same-origin") && strcmp(site, "none")) return false;
    if (!origin) return true; /* not a browser */
    const char *at = strstr(origin, "://");
    return at && host && !strcasecmp(at + 3, host);
}

/* The lock is taken here: requests of one thread, but the count is read by tests in another. */
static bool too_many_wrong(struct neb_serve *s, bool wrong)
{
    pthread_mutex_lock(&s->lock);
    if (neb__seconds_since(s->wrong_since) > WRONG_S) s->wrong = 0, s->wrong_since = neb__now_ns();
    bool shut = s->wrong >= WRONG_MOST;
    s->wrong += wrong;
    pthread_mutex_unlock(&s->lock);
    return shut;
}

unsigned neb__door_may_order(struct neb_serve *s, struct MHD_Connection *c, const char **why)
{
    const char *type = value_of(c, MHD_HEADER_KIND, "Content-Type"), *word = bearer_of(c);
    *why = "orders are not taken here: start `nebula-i watch` with --orders";
    if (!s->config.orders) return MHD_HTTP_NOT_FOUND;
    *why = "a page of another site may not give orders";
    if (!is_own_page(c)) return MHD_HTTP_FORBIDDEN;
    *why = "an order is sent as application/json";
    if (!type || strncasecmp(type, "application/json", 16)) return MHD_HTTP_UNSUPPORTED_MEDIA_TYPE;
    *why = "too many wrong words: wait a minute";
    if (too_many_wrong(s, false)) return MHD_HTTP_TOO_MANY_REQUESTS;
    *why = "the word for orders is wrong; it goes into 'Authorization: Bearer WORD'";
    if (word && same_word(s->config.order_word, word)) return 0;
    too_many_wrong(s, true);
    return MHD_HTTP_UNAUTHORIZED;
}
