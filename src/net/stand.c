/* stand.c: this site's side of relay hosts (net/relay/relay_host.h): standing there, calling members, answering calls.
 *
 * At every relay host among its own addresses a site stands: it keeps one connection there, on which the host tells it who
 * calls. To answer it makes a new connection to the host and names the call. To call a member it makes a connection to one
 * of that member's relay hosts. Either way the host says JOINED, and from then on the socket leads to the other member: TLS
 * begins anew, with the member's own key, and the greeting is that of any connection (greet.c). So a relay host that lies can
 * delay or break a connection, and nothing else.
 *
 * The talk with the host runs in a TLS session of its own, in which the host proves the key that the roster pins. That session
 * is read record by record, so that no byte of the other member's is taken for one of the host's.
 *
 * A host that has not seen the newest roster asks for it, and is shown the whole chain. When the roster changes, a site stands up
 * anew. Names are looked up once, and again after a failure. */
#include "net/link.h"
#include "net/relay/relay_wire.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STANDS_MAX = 64, ANSWERING_MAX = 64, SILENT_SECONDS = 45, STAND_BACKOFF_MAX = 10 };

struct neb_talk {
    bool shaken, showed;
    struct neb_relay_ask ask;
    struct neb_relay_reader reader;
};

/* ---- the hosts of the roster --------------------------------------------------------------------------- */

static void warn(struct neb_net *net, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void warn(struct neb_net *net, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    neb__log_limited(&net->log, fmt, ap);
    va_end(ap);
}

/* Once for a row of attempts that fail alike. A host that lies may word each refusal differently: then it is ten lines a second. */
static void complain(struct neb_stand *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void complain(struct neb_stand *s, const char *fmt, ...)
{
    char text[sizeof s->trouble];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!strcmp(text, s->trouble)) return;
    memcpy(s->trouble, text, sizeof text);
    warn(s->net, "relay host %s: %s", s->goal, text);
}

static struct neb_stand *find(struct neb_net *net, const struct neb_relay_address *at)
{
    int count = 0;
    for (struct neb_stand *s = net->stands; s; s = s->next, count++)
        if (s->at.port == at->port && !strcmp(s->at.host, at->host) &&
            neb__public_equal(&s->at.key, &at->key))
            return s;
    struct neb_stand *s = count < STANDS_MAX ? NEB_NEW(struct neb_stand) : NULL;
    if (!s) return NULL;
    s->net = net;
    s->at = *at;
    s->backoff = net->config.dial_min;
    snprintf(s->goal, sizeof s->goal, strchr(at->host, ':') ? "[%.100s]:%u" : "%.100s:%u", at->host,
             at->port);
    s->next = net->stands;
    net->stands = s;
    return s;
}

void neb__stand_follow(struct neb_net *net)
{
    for (struct neb_stand *s = net->stands; s; s = s->next) s->ours = false;
    for (uint32_t i = 0; i < net->chain->now.count; i++) {
        const struct neb_member *m = &net->chain->now.members[i];
        for (int a = 0; a < m->addresses; a++) {
            struct neb_relay_address at;
            struct neb_stand *s = neb__address_relay(m->address[a], &at) ? find(net, &at) : NULL;
            if (s && m->id == net->self) s->ours = true;
        }
    }
    for (struct neb_stand *s = net->stands; s; s = s->next) {
        struct neb_conn *c = s->standing;
        if (!c || (s->ours && s->epoch == net->chain->epoch)) continue;
        s->standing = NULL; /* it stands up anew, and shows the newer roster */
        s->here = false;
        s->dial_at = 0;
        neb__conn_close(c);
    }
    if (net->stands) neb__net_hurry(net);
}

void neb__stand_free(struct neb_net *net)
{
    while (net->stands) {
        struct neb_stand *s = net->stands;
        net->stands = s->next;
        neb__free(s);
    }
}

/* ---- dialling ------------------------------------------------------------------------------------------ */

void neb__stand_resolved(struct neb_stand *s, int error, const struct addrinfo *list)
{
    const struct addrinfo *a = list;
    int count = 0;
    s->resolving = false;
    if (error || !list) {
        complain(s, "its name cannot be found: %s", error ? gai_strerror(error) : "it has no address");
        s->dial_at = neb__now_ns() + (int64_t)2e9;
        return;
    }
    for (; a; a = a->ai_next) count++;
    a = list;
    for (int n = s->turn % count; n > 0; n--) a = a->ai_next;
    if (a->ai_addrlen > sizeof s->sa) return;
    memcpy(&s->sa, a->ai_addr, a->ai_addrlen);
    s->sa_len = a->ai_addrlen;
    neb__net_hurry(s->net);
}

/* Looks the host's name up, or the proxy's. */
static void resolve(struct neb_stand *s)
{
    const struct neb_way *w = &s->net->way;
    if (s->resolving || s->sa_len || w->command.n) return;
    s->by_proxy = neb__way_uses_proxy(w, s->at.host);
    s->resolving = true;
    if (neb__lookup_stand(s, s->by_proxy ? w->proxy.host : s->at.host,
                          s->by_proxy ? w->proxy.port : s->at.port) == NEB_OK)
        return;
    s->resolving = false;
    complain(s, "%s", neb_last_error());
}

static neb_status connect_to(struct neb_stand *s, int *out)
{
    int fd = socket(s->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&s->sa, s->sa_len) && errno != EINPROGRESS)) {
        neb_status status = neb__quiet(NEB_ERR_NET, "%s", strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    *out = fd;
    return NEB_OK;
}

/* Opens a connection to the host that will ask it for `what`. NEB_ERR_AGAIN: its name is being looked up. */
static neb_status open_to(struct neb_stand *s, uint16_t peer, enum neb_relay_what what, struct neb_conn **out)
{
    struct neb_net *net = s->net;
    struct neb_talk *talk;
    struct neb_conn *c;
    struct neb_dial_command *d = NULL;
    int fd;
    if (!net->way.command.n && !s->sa_len) {
        resolve(s);
        return neb__quiet(NEB_ERR_AGAIN, "the name of the relay host is being looked up");
    }
    if (net->way.command.n)
        NEB_TRY(neb__dial_command_start(net, peer, s->at.host, s->at.port, &fd, &d));
    else
        NEB_TRY(connect_to(s, &fd));
    neb_status status = neb__conn_open(net, fd, true, &c);
    if (status != NEB_OK) {
        if (d) neb__dial_command_left(d, true);
        return status;
    }
    c->by_command = d;
    c->stand = s;
    if (d)
        snprintf(c->remote, sizeof c->remote, "%.40s, by a command", s->goal);
    else
        neb__net_name_address(c, (struct sockaddr *)&s->sa, s->sa_len);
    talk = NEB_NEW(struct neb_talk);
    status = talk ? NEB_OK : neb__quiet(NEB_ERR_NOMEM, "out of memory for a relay host");
    if (status == NEB_OK && s->by_proxy && !d) status = neb__tunnel_open(c, s->goal);
    if (status != NEB_OK) {
        neb__free(talk);
        neb__conn_close(c);
        return status;
    }
    talk->ask = (struct neb_relay_ask){.version_min = NEB_RELAY_VERSION_MIN,
                                       .version_max = NEB_RELAY_VERSION,
                                       .what = (uint8_t)what,
                                       .run = net->chain->genesis_hash,
                                       .epoch = net->chain->epoch};
    c->talk = talk;
    *out = c;
    return NEB_OK;
}

static void stand_later(struct neb_stand *s)
{
    s->here = false;
    s->turn++;
    s->sa_len = 0;
    s->dial_at = neb__now_ns() + (int64_t)(s->backoff * (0.5 + neb__net_jitter(s->net)) * 1e9);
    s->backoff = s->backoff * 2 < STAND_BACKOFF_MAX ? s->backoff * 2 : STAND_BACKOFF_MAX;
}

static void stand_up(struct neb_stand *s)
{
    struct neb_conn *c;
    neb_status status = open_to(s, 0, NEB_RELAY_STAND, &c);
    if (status == NEB_ERR_AGAIN) return;
    if (status != NEB_OK) {
        complain(s, "cannot be reached: %s", neb_last_error());
        stand_later(s);
        return;
    }
    s->standing = c;
    s->heard_at = neb__now_ns();
    s->epoch = s->net->chain->epoch;
}

void neb__stand_tick(struct neb_net *net, int64_t now)
{
    for (struct neb_stand *s = net->stands; s; s = s->next) {
        if (!s->sa_len && now >= s->dial_at) resolve(s);
        if (!s->ours) continue;
        if (!s->standing && now >= s->dial_at) stand_up(s);
        if (s->here && (double)(now - s->heard_at) * 1e-9 > SILENT_SECONDS) {
            struct neb_conn *c = s->standing;
            complain(s, "has said nothing for %d s", SILENT_SECONDS);
            s->standing = NULL;
            stand_later(s);
            neb__conn_close(c);
        }
    }
}

bool neb__stand_is_quiet(const struct neb_conn *c)
{
    return c->stand && c->stand->standing == c && c->stand->here;
}

/* The peer's relay hosts in turn. */
static struct neb_stand *choose(struct neb_peer *p)
{
    const struct neb_member *m = neb__roster_by_id(&p->net->chain->now, p->id);
    struct neb_relay_address at[NEB_ADDRESSES_MAX];
    int count = 0;
    for (int i = 0; m && i < m->addresses; i++) count += neb__address_relay(m->address[i], &at[count]);
    return count ? find(p->net, &at[p->call_turn % count]) : NULL;
}

void neb__stand_call(struct neb_peer *p, enum neb_conn_role role, int stripe)
{
    struct neb_stand *s = role == NEB_CONN_STRIPE ? p->control->stand : choose(p);
    struct neb_conn *c;
    uint64_t token = p->token;
    if (!s) return;
    neb_status status = open_to(s, p->id, NEB_RELAY_CALL, &c);
    if (status == NEB_ERR_AGAIN) return;
    if (status == NEB_OK && role == NEB_CONN_CONTROL &&
        (status = neb__random_bytes(&token, sizeof token)) != NEB_OK)
        neb__conn_close(c);
    if (status != NEB_OK) {
        neb__debug("cannot call %s: %s", p->name, neb_last_error());
        s->sa_len = 0;
        if (role == NEB_CONN_CONTROL)
            neb__link_uncallable(p);
        else
            p->stripes.retry_at = neb__now_ns() + NEB_STRIPE_RETRY_NS;
        return;
    }
    c->talk->ask.peer = p->id;
    c->peer = p;
    c->role = role;
    c->stripe = (uint8_t)stripe;
    c->token = token;
    if (role == NEB_CONN_CONTROL)
        p->calling = c;
    else
        p->stripe[stripe] = c;
}

/* ---- talking ------------------------------------------------------------------------------------------- */

static neb_status begin_talk(struct neb_conn *c)
{
    uint8_t body[NEB_RELAY_ASK_SIZE];
    struct neb_public key;
    NEB_TRY(neb__tls_handshake(c->tls));
    c->talk->shaken = true;
    neb__tls_peer(c->tls, &key);
    if (!neb__public_equal(&key, &c->stand->at.key))
        return neb__quiet(NEB_ERR_AUTH,
                          "another machine answers there: its key is not the one in the roster");
    neb__relay_ask_put(&c->talk->ask, body);
    return neb__relay_send(c->tls, NEB_RELAY_ASK, body, sizeof body);
}

/* The host does not know this run, or not its newest epoch. Once in a connection: five bytes make us send 256 KiB. */
static neb_status show_roster(struct neb_conn *c)
{
    struct neb_buf b;
    uint8_t body[NEB_RELAY_BODY_MAX];
    c->talk->showed = true;
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX);
    neb_status status = neb__chain_encode(c->net->chain, &b);
    if (status == NEB_ERR_NOSPACE)
        status = neb__quiet(NEB_ERR_LIMIT,
                            "the roster is too long to be shown; give it to the relay host as a file");
    for (size_t at = 0; status == NEB_OK && at < b.len;) {
        size_t n = b.len - at < NEB_RELAY_SHOW_PIECE ? b.len - at : NEB_RELAY_SHOW_PIECE;
        body[0] = at + n == b.len;
        memcpy(body + 1, b.data + at, n);
        status = neb__relay_send(c->tls, NEB_RELAY_SHOW, body, n + 1);
        at += n;
    }
    neb__buf_free(&b);
    return status;
}

/* A member calls. Who it is will be proved by its own greeting; a host that invents calls makes us dial it, a few times. */
static neb_status answer(struct neb_conn *c, const struct neb_relay_message *m)
{
    struct neb_stand *s = c->stand;
    struct neb_relay_ring ring;
    struct neb_conn *fresh;
    NEB_TRY(neb__relay_ring_get(m->body, m->size, &ring));
    if (!neb__peer_find(c->net, ring.caller) || s->answering >= ANSWERING_MAX) return NEB_OK;
    if (open_to(s, ring.caller, NEB_RELAY_ANSWER, &fresh) != NEB_OK) {
        neb__debug("cannot answer a call at %s: %s", s->goal, neb_last_error());
        return NEB_OK;
    }
    s->answering++;
    fresh->talk->ask.ticket = ring.ticket;
    return NEB_OK;
}

/* From here on the socket leads to the other member. */
static neb_status joined(struct neb_conn *c)
{
    bool called = c->talk->ask.what == NEB_RELAY_CALL;
    if (!called) c->stand->answering--;
    neb__free(c->talk);
    c->talk = NULL;
    NEB_TRY(neb__conn_renew(c, called));
    c->stand->turn = 0;
    if (!called) neb__strangers_admit(c);
    return NEB_OK;
}

static neb_status refused(struct neb_conn *c, const struct neb_relay_message *m)
{
    struct neb_relay_refusal r;
    NEB_TRY(neb__relay_refusal_get(m->body, m->size, &r));
    bool everyday = r.code == NEB_RELAY_REFUSE_ABSENT || r.code == NEB_RELAY_REFUSE_TICKET;
    if (!everyday && c->talk->ask.what != NEB_RELAY_STAND)
        complain(c->stand, "refuses a connection: %s", r.text);
    return neb__quiet(NEB_ERR_AUTH, "it refuses this site: %s", r.text);
}

static neb_status got(struct neb_conn *c, const struct neb_relay_message *m)
{
    struct neb_stand *s = c->stand;
    s->heard_at = neb__now_ns();
    switch (m->type) {
    case NEB_RELAY_WANT: return show_roster(c);
    case NEB_RELAY_REFUSE: return refused(c, m);
    case NEB_RELAY_RING: return answer(c, m);
    case NEB_RELAY_PING: return neb__relay_send(c->tls, NEB_RELAY_PONG, NULL, 0);
    case NEB_RELAY_JOINED: return joined(c);
    case NEB_RELAY_HERE:
        s->here = true;
        s->backoff = c->net->config.dial_min;
        s->trouble[0] = 0;
        neb__info("standing at the relay host %s: members can call this site there", s->goal);
        return NEB_OK;
    default: return NEB_OK;
    }
}

static uint32_t allowed(const struct neb_conn *c)
{
    uint32_t always = 1u << NEB_RELAY_REFUSE | (c->talk->showed ? 0 : 1u << NEB_RELAY_WANT);
    if (c->talk->ask.what != NEB_RELAY_STAND) return always | 1u << NEB_RELAY_JOINED;
    if (!c->stand->here) return always | 1u << NEB_RELAY_HERE;
    return 1u << NEB_RELAY_REFUSE | 1u << NEB_RELAY_RING | 1u << NEB_RELAY_PING | 1u << NEB_RELAY_PONG;
}

neb_status neb__stand_talk(struct neb_conn *c)
{
    struct neb_relay_message m;
    if (!c->talk->shaken) NEB_TRY(begin_talk(c));
    while (c->state == NEB_CONN_RELAY) {
        NEB_TRY(neb__relay_next(c->tls, &c->talk->reader, allowed(c), &m));
        NEB_TRY(got(c, &m));
    }
    return NEB_OK;
}

void neb__stand_lost(struct neb_conn *c, const char *why)
{
    struct neb_stand *s = c->stand;
    if (c->talk->ask.what == NEB_RELAY_ANSWER) s->answering--;
    if (s->standing != c) {
        if (!c->talk->shaken) s->sa_len = s->standing && s->here ? s->sa_len : 0; /* look its name up again */
        return;
    }
    s->standing = NULL;
    complain(s, s->here ? "the connection ended: %s" : "cannot stand there: %s", why);
    stand_later(s);
    neb__net_hurry(c->net);
}
