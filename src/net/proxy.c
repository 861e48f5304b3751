/* proxy.c: the exchange with an HTTP or a SOCKS5 proxy, byte by byte and without I/O.
 *
 *     HTTP     CONNECT host:port HTTP/1.1, headers, an empty line   →  HTTP/1.x 2xx …, headers, an empty line
 *     SOCKS5   05 methods…                                          →  05 method
 *              01 user password (if method 2 was chosen)            →  01 00
 *              05 01 00 address port                                →  05 00 00 address port
 *
 * A proxy is a stranger that answers: its bytes are counted before they are kept, an HTTP answer ends at
 * NEB_PROXY_REPLY_MAX bytes, and its first line is made printable before it gets into a message. Nothing behind the
 * proxy's own answer is taken: those bytes belong to TLS, which notices every change that a proxy makes to them. */
#define _GNU_SOURCE /* memrchr */
#include "net/proxy.h"
#include "base/printable.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what a user writes -------------------------------------------------------------------------------- */

static int hex(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, tolower((unsigned char)c)) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* %41 stands for A, so that a password may hold @ and :. */
static bool decode(const char *from, size_t n, char out[NEB_PROXY_WORD])
{
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '%') {
            if (i + 2 >= n || hex(from[i + 1]) < 0 || hex(from[i + 2]) < 0) return false;
            c = (char)(16 * hex(from[i + 1]) + hex(from[i + 2]));
            i += 2;
        }
        if (!c || len + 1 >= NEB_PROXY_WORD) return false;
        out[len++] = c;
    }
    out[len] = 0;
    return true;
}

static neb_status not_a_proxy(const char *why)
{
    return neb__fail(NEB_ERR_CONFIG,
                     "the proxy's address is not valid: %s; it reads http://HOST:PORT or socks5://HOST:PORT, "
                     "with USER:PASSWORD@ before HOST where the proxy asks for them",
                     why);
}

static neb_status read_scheme(const char **text, struct neb_proxy *p)
{
    static const struct {
        const char *prefix;
        enum neb_proxy_kind kind;
    } known[] = {
        {"http://", NEB_PROXY_HTTP}, {"socks5://", NEB_PROXY_SOCKS}, {"socks5h://", NEB_PROXY_SOCKS}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].prefix);
        if (strncasecmp(*text, known[i].prefix, n)) continue;
        p->kind = known[i].kind;
        *text += n;
        return NEB_OK;
    }
    p->kind = NEB_PROXY_HTTP;
    return strstr(*text, "://") ? not_a_proxy("only http and socks5 proxies are known") : NEB_OK;
}

neb_status neb__proxy_parse(const char *text, struct neb_proxy *out)
{
    struct neb_proxy p = {0};
    char address[NEB_ADDRESS_SIZE];
    NEB_TRY(read_scheme(&text, &p));
    size_t n = strcspn(text, "/");
    if (text[n] && text[n + 1]) return not_a_proxy("something stands behind the port");
    const char *at = memrchr(text, '@', n);
    if (at) {
        const char *colon = memchr(text, ':', (size_t)(at - text)), *end = colon ? colon : at;
        if (!decode(text, (size_t)(end - text), p.user) || !*p.user ||
            (colon && !decode(colon + 1, (size_t)(at - colon - 1), p.password)))
            return not_a_proxy("the user or the password is empty, too long, or has a % without two digits");
        n -= (size_t)(at + 1 - text);
        text = at + 1;
    }
    if (n >= sizeof address) return not_a_proxy("it is too long");
    memcpy(address, text, n);
    address[n] = 0;
    if (!neb__address_split(address, p.host, &p.port) || !neb__host_is_plain(p.host))
        return not_a_proxy("HOST:PORT is missing");
    *out = p;
    return NEB_OK;
}

bool neb__host_is_plain(const char *host)
{
    uint8_t b[16];
    if (inet_pton(AF_INET6, host, b) == 1) return true;
    if (!isalnum((unsigned char)*host)) return false;
    for (const char *c = host; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr(".-_", *c)) return false;
    return true;
}

/* 4 or 16 bytes; 0: not an address. */
static size_t address_bytes(const char *text, uint8_t out[16])
{
    if (inet_pton(AF_INET, text, out) == 1) return 4;
    return inet_pton(AF_INET6, text, out) == 1 ? 16 : 0;
}

static bool in_network(const char *item, const char *host)
{
    uint8_t a[16], b[16];
    char net[64];
    size_t n = strcspn(item, "/");
    long bits = -1;
    if (n >= sizeof net) return false;
    memcpy(net, item, n);
    net[n] = 0;
    size_t size = address_bytes(host, a);
    if (!size || address_bytes(net, b) != size) return false;
    if (item[n]) {
        char *end;
        bits = strtol(item + n + 1, &end, 10);
        if (*end || end == item + n + 1) return false;
    }
    if (bits < 0 || bits > (long)(8 * size)) bits = (long)(8 * size);
    size_t whole = (size_t)bits / 8;
    int rest = (int)(bits % 8);
    return !memcmp(a, b, whole) && (!rest || (a[whole] ^ b[whole]) >> (8 - rest) == 0);
}

static bool ends_in(const char *host, const char *tail)
{
    while (*tail == '.') tail++;
    size_t n = strlen(host), t = strlen(tail);
    if (!t || t > n || strcasecmp(host + n - t, tail)) return false;
    return t == n || host[n - t - 1] == '.';
}

bool neb__proxy_spares(const char *list, const char *host)
{
    while (list && *list) {
        char item[NEB_ADDRESS_SIZE];
        size_t n = strcspn(list, ", \t");
        if (n && n < sizeof item) {
            memcpy(item, list, n);
            item[n] = 0;
            if (!strcmp(item, "*") || ends_in(host, item) || in_network(item, host)) return true;
        }
        list += n + (list[n] != 0);
    }
    return false;
}

/* ---- asking -------------------------------------------------------------------------------------------- */

static void ask_http(struct neb_proxy_talk *t)
{
    const struct neb_proxy *p = t->proxy;
    bool v6 = strchr(t->host, ':') != NULL;
    char goal[NEB_ADDRESS_SIZE + 16], login[2 * NEB_PROXY_WORD], code[4 * NEB_PROXY_WORD] = "";
    snprintf(goal, sizeof goal, v6 ? "[%s]:%u" : "%s:%u", t->host, t->port);
    int n = snprintf(login, sizeof login, "%s:%s", p->user, p->password);
    if (*p->user) EVP_EncodeBlock((unsigned char *)code, (const unsigned char *)login, n);
    n = snprintf((char *)t->out, sizeof t->out, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s%s%s\r\n", goal, goal,
                 *code ? "Proxy-Authorization: Basic " : "", code, *code ? "\r\n" : "");
    t->out_len = (size_t)n;
    t->stage = NEB_PROXY_HTTP_REPLY;
}

static void put(struct neb_proxy_talk *t, const void *p, size_t n)
{
    memcpy(t->out + t->out_len, p, n);
    t->out_len += n;
}

static void put_word(struct neb_proxy_talk *t, const char *word)
{
    uint8_t n = (uint8_t)strlen(word);
    put(t, &n, 1);
    put(t, word, n);
}

static void ask_methods(struct neb_proxy_talk *t)
{
    t->out_len = 0;
    if (*t->proxy->user)
        put(t, "\5\2\0\2", 4);
    else
        put(t, "\5\1\0", 3);
    t->stage = NEB_PROXY_METHOD;
}

static void ask_login(struct neb_proxy_talk *t)
{
    t->out_len = 0;
    put(t, "\1", 1);
    put_word(t, t->proxy->user);
    put_word(t, t->proxy->password);
    t->stage = NEB_PROXY_LOGIN;
}

static void ask_connect(struct neb_proxy_talk *t)
{
    uint8_t address[16], port[2] = {(uint8_t)(t->port >> 8), (uint8_t)t->port};
    size_t n = address_bytes(t->host, address);
    t->out_len = 0;
    put(t, "\5\1\0", 3);
    if (n) {
        put(t, n == 4 ? "\1" : "\4", 1);
        put(t, address, n);
    } else {
        put(t, "\3", 1);
        put_word(t, t->host);
    }
    put(t, port, 2);
    t->stage = NEB_PROXY_REPLY;
}

neb_status neb__proxy_ask(struct neb_proxy_talk *t, const struct neb_proxy *proxy, const char *host,
                          uint16_t port)
{
    *t = (struct neb_proxy_talk){.proxy = proxy, .port = port};
    if (!neb__host_is_plain(host) || strlen(host) >= sizeof t->host)
        return neb__quiet(NEB_ERR_INVALID, "its address in the roster cannot be given to a proxy");
    snprintf(t->host, sizeof t->host, "%s", host);
    if (proxy->kind == NEB_PROXY_HTTP)
        ask_http(t);
    else
        ask_methods(t);
    return NEB_OK;
}

/* ---- the answer ---------------------------------------------------------------------------------------- */

static neb_status not_this_kind(const struct neb_proxy_talk *t)
{
    const struct neb_proxy *p = t->proxy;
    return neb__quiet(NEB_ERR_PROTOCOL, "what answers at %s:%u is not %s proxy", p->host, p->port,
                      p->kind == NEB_PROXY_HTTP ? "an HTTP" : "a SOCKS5");
}

static neb_status wants_login(const struct neb_proxy_talk *t)
{
    const struct neb_proxy *p = t->proxy;
    return neb__quiet(NEB_ERR_NET,
                      *p->user ? "the proxy %s:%u does not take this user and password"
                               : "the proxy %s:%u wants a user and a password (USER:PASSWORD@HOST:PORT)",
                      p->host, p->port);
}

static neb_status judge_http(struct neb_proxy_talk *t)
{
    const struct neb_proxy *p = t->proxy;
    int major, minor, code;
    t->in[t->got < NEB_PROXY_LINE ? t->got : NEB_PROXY_LINE - 1] = 0;
    t->in[strcspn(t->in, "\r\n")] = 0;
    if (sscanf(t->in, "HTTP/%1d.%1d %3d", &major, &minor, &code) != 3) return not_this_kind(t);
    if (code >= 200 && code < 300) return NEB_OK;
    if (code == 407) return wants_login(t);
    neb__text_clean(t->in);
    return neb__quiet(NEB_ERR_NET, "the proxy %s:%u does not connect to %s:%u: it says '%s'%s", p->host,
                      p->port, t->host, t->port, t->in,
                      code == 403 ? " (many proxies pass port 443 alone: let the other site listen there)"
                                  : "");
}

static neb_status take_http(struct neb_proxy_talk *t, const uint8_t *p, size_t n, size_t *used)
{
    for (size_t i = 0; i < n; i++) {
        if (t->got < NEB_PROXY_LINE) t->in[t->got] = (char)p[i];
        if (t->got < 5 && p[i] != (uint8_t) "HTTP/"[t->got]) return not_this_kind(t);
        if (++t->got > NEB_PROXY_REPLY_MAX)
            return neb__quiet(NEB_ERR_PROTOCOL, "the answer of the proxy %s:%u has no end", t->proxy->host,
                              t->proxy->port);
        if (p[i] == '\n')
            t->newlines++;
        else if (p[i] != '\r')
            t->newlines = 0;
        if (t->newlines < 2) continue;
        *used = i + 1;
        return judge_http(t);
    }
    *used = n;
    return NEB_ERR_AGAIN;
}

static neb_status judge_reply(const struct neb_proxy_talk *t)
{
    static const char *const why[] = {"",
                                      "a failure of its own",
                                      "its rules forbid it",
                                      "no such network",
                                      "no such host",
                                      "nobody listens there",
                                      "it took too long",
                                      "it cannot connect at all",
                                      "it does not know this kind of address"};
    const struct neb_proxy *p = t->proxy;
    unsigned code = (uint8_t)t->in[1];
    if (!code) return NEB_OK;
    return neb__quiet(NEB_ERR_NET, "the proxy %s:%u does not connect to %s:%u: %s", p->host, p->port, t->host,
                      t->port, code < sizeof why / sizeof *why ? why[code] : "for an unknown reason");
}

/* Returns how long the present reply is, as far as its first bytes tell; 0: malformed. */
static size_t reply_size(const struct neb_proxy_talk *t)
{
    const uint8_t *in = (const uint8_t *)t->in;
    if (t->stage != NEB_PROXY_REPLY) return t->got && in[0] != (t->stage == NEB_PROXY_LOGIN ? 1 : 5) ? 0 : 2;
    if (t->got && in[0] != 5) return 0;
    if (t->got >= 2 && in[1]) return 2; /* a refusal: some proxies send no more */
    if (t->got < 5) return 5;
    switch (in[3]) {
    case 1: return 4 + 4 + 2;
    case 3: return 4 + 1 + (size_t)in[4] + 2;
    case 4: return 4 + 16 + 2;
    default: return 0;
    }
}

/* A reply is whole. */
static neb_status next_stage(struct neb_proxy_talk *t)
{
    uint8_t said = (uint8_t)t->in[1];
    if (t->stage == NEB_PROXY_REPLY) return judge_reply(t);
    t->got = 0;
    if (t->stage == NEB_PROXY_METHOD) {
        if (said != 0 && (said != 2 || !*t->proxy->user))
            return said == 0xff ? wants_login(t) : not_this_kind(t);
        if (said == 2)
            ask_login(t);
        else
            ask_connect(t);
        return NEB_ERR_AGAIN;
    }
    if (said) return wants_login(t);
    ask_connect(t);
    return NEB_ERR_AGAIN;
}

static neb_status take_socks(struct neb_proxy_talk *t, const uint8_t *p, size_t n, size_t *used)
{
    size_t at = 0;
    while (at < n) {
        t->in[t->got++] = (char)p[at++];
        size_t size = reply_size(t);
        if (!size) return not_this_kind(t);
        if (t->got < size) continue;
        *used = at;
        return next_stage(t); /* a proxy speaks only when it is asked */
    }
    *used = at;
    return NEB_ERR_AGAIN;
}

neb_status neb__proxy_take(struct neb_proxy_talk *t, const uint8_t *p, size_t n, size_t *used)
{
    return t->stage == NEB_PROXY_HTTP_REPLY ? take_http(t, p, n, used) : take_socks(t, p, n, used);
}
