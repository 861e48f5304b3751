/* greet.c: identifies the site at the other end, and decides whether it may come in.
 *
 * After the TLS handshake the peer's key is proved but not yet judged. The dialler sends HELLO, and the other
 * side answers with its own. A stranger must not learn from a HELLO which run there is. So a dialler that
 * finds another key than the dialled member's sends a blind one, without run, genesis and epoch; a listener
 * answers a blind one only if the dialler's key is a member's. This leads on after a change of keys that the
 * dialler has missed: the chain that it gets shows the new key. Then the same rules hold for both:
 *
 *   1. A peer with another protocol version, run id or genesis is refused.
 *   2. The side with the newer roster epoch sends the chain to the other (to a member only, on the control
 *      connection). The side with the older epoch judges nothing before it has caught up. So a site that
 *      missed a change of keys is not locked out by it.
 *   3. The key must belong to a member in our newest epoch: to the dialled member if we dialled. Two
 *      different rosters for one epoch are refused. But a hash in a greeting proves nothing, so first each
 *      side sends its whole chain. A side that finds there an epoch signed as properly as its own reports
 *      the fork. A site that was removed is shown the epoch that removes it.
 *   4. Only the newest incarnation of a site is accepted; two processes of one incarnation mean a copied
 *      folder. A stripe must name the token of the control connection that it belongs to.
 *
 * Then WELCOME follows. A connection is in use once WELCOME was sent and received. When it is received, rules
 * 3 and 4 are applied once more, in case the peer held it back. Until then the peer is a stranger: it has
 * its time (patience.c), and its memory is bounded by one HELLO and one CHAIN frame. WELCOME goes first and the
 * chain behind it: a side that lacks epochs answers WELCOME only when it has them all. */
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *who(const struct neb_conn *c, char out[64])
{
    struct neb_public key;
    char digits[9];
    neb__tls_peer(c->tls, &key);
    neb__public_short(&key, digits);
    const struct neb_member *m = neb__roster_by_key(&c->net->chain->now, &key);
    snprintf(out, 64, "%s (key %s…)", m ? m->name : "a stranger", digits);
    return out;
}

/* Tells the peer and the log about the refusal. */
static neb_status say_refusal(struct neb_conn *c, enum neb_refuse_code code, const char *text)
{
    uint8_t body[NEB_REFUSE_MAX];
    char name[64];
    size_t n = strlen(text);
    body[0] = (uint8_t)code, body[1] = 0;
    memcpy(body + 2, text, n);
    neb__net_stranger_log(c->net, "refused %s at %s: %s", who(c, name), c->remote, text);
    return neb__conn_frame(c, NEB_FRAME_REFUSE, body, n + 2);
}

/* Returns the code that closes the connection. */
static neb_status refuse(struct neb_conn *c, enum neb_refuse_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static neb_status refuse(struct neb_conn *c, enum neb_refuse_code code, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (say_refusal(c, code, text) == NEB_OK) neb__conn_pump(c);
    return neb__quiet(code == NEB_REFUSE_VERSION ? NEB_ERR_VERSION : NEB_ERR_AUTH, "%s", text);
}

/* The server has the key of the member that we dialled. */
static bool is_the_dialled(const struct neb_conn *c)
{
    struct neb_public key;
    neb__tls_peer(c->tls, &key);
    return neb__public_equal(&key, &c->peer->key);
}

static void make_blind(struct neb_hello *h)
{
    memset(h->run_id, 0, sizeof h->run_id);
    memset(&h->genesis, 0, sizeof h->genesis);
    memset(&h->head, 0, sizeof h->head);
    h->epoch = 0;
}

static bool is_blind(const struct neb_hello *h)
{
    static const struct neb_hello zero;
    return !memcmp(h->run_id, zero.run_id, sizeof zero.run_id) && neb__hash_equal(&h->genesis, &zero.genesis);
}

/* A blind HELLO of a member: it may lack every epoch. Others are refused without a word about the run. */
static neb_status see_through(struct neb_conn *c)
{
    const struct neb_chain *chain = c->net->chain;
    struct neb_public key;
    neb__tls_peer(c->tls, &key);
    if (!neb__roster_by_key(&chain->now, &key)) return refuse(c, NEB_REFUSE_KEY, "the key is not valid here");
    memcpy(c->theirs.run_id, chain->run_id, NEB_RUN_ID_SIZE);
    c->theirs.genesis = chain->genesis_hash;
    c->theirs.epoch = 0;
    neb__chain_hash_of(chain, 0, &c->theirs.head);
    return NEB_OK;
}

static neb_status send_hello(struct neb_conn *c)
{
    struct neb_net *net = c->net;
    uint8_t body[NEB_HELLO_SIZE];
    struct neb_hello h = {.version_min = NEB_WIRE_VERSION_MIN,
                          .version_max = NEB_WIRE_VERSION,
                          .role = (uint8_t)c->role,
                          .stripe = c->stripe,
                          .genesis = net->chain->genesis_hash,
                          .epoch = net->chain->epoch,
                          .head = net->chain->head,
                          .incarnation = net->config.site->incarnation,
                          .boot = net->config.site->boot,
                          .token = c->token,
                          .chunk = NEB_CHUNK};
    memcpy(h.run_id, net->chain->run_id, NEB_RUN_ID_SIZE);
    for (int i = 0; i < NEB_PRIORITIES; i++) h.window[i] = net->config.window[i];
    if (c->dialled && !is_the_dialled(c)) make_blind(&h);
    neb__hello_put(&h, body);
    c->hello_out = true;
    return neb__conn_frame(c, NEB_FRAME_HELLO, body, sizeof body);
}

neb_status neb__greet_begin(struct neb_conn *c)
{
    c->framer.allowed = 1u << NEB_FRAME_HELLO | 1u << NEB_FRAME_REFUSE;
    neb__strangers_proved(c);
    if (c->state == NEB_CONN_CLOSED) return NEB_ERR_AGAIN;
    return c->dialled ? send_hello(c) : NEB_OK;
}

/* Ends a contested greeting when each side has sent its chain and refused. */
static neb_status part(struct neb_conn *c)
{
    if (c->refuse_out)
        return c->refuse_in ? neb__quiet(NEB_ERR_AUTH, "two different rosters for one epoch") : NEB_OK;
    c->refuse_out = true;
    return say_refusal(c, NEB_REFUSE_FORK, "two different rosters for one epoch");
}

/* A chain may be long. It goes frame by frame, each when the one before has left. */
neb_status neb__greet_fill(struct neb_conn *c)
{
    const struct neb_chain *chain = c->net->chain;
    const uint8_t *p;
    size_t n;
    if (!c->tell || neb__conn_waiting(c)) return NEB_OK;
    if (c->tell > chain->epoch) return c->contested ? part(c) : NEB_OK;
    c->tell += neb__chain_tail(chain, c->tell - 1, NEB_EPOCH_BYTES_MAX, &p, &n);
    return n ? neb__conn_frame(c, NEB_FRAME_CHAIN, p, n) : NEB_OK;
}

/* No link will be made, but a member is shown why. */
static neb_status contest(struct neb_conn *c)
{
    if (c->role != NEB_CONN_CONTROL || c->state != NEB_CONN_GREETING)
        return refuse(c, NEB_REFUSE_FORK, "two different rosters for one epoch");
    c->contested = true;
    c->tell = 1;
    return neb__greet_fill(c);
}

static neb_status check_control(struct neb_conn *c, const struct neb_peer *p)
{
    const struct neb_hello *h = &c->theirs;
    if (p->boot && h->incarnation < p->incarnation)
        return refuse(c, NEB_REFUSE_INCARNATION,
                      "incarnation %" PRIu64 " of %s is older than %" PRIu64
                      ", which was connected: an older process, or a folder restored from a backup",
                      h->incarnation, p->name, p->incarnation);
    if (p->boot && h->incarnation == p->incarnation && h->boot != p->boot)
        return refuse(c, NEB_REFUSE_INCARNATION,
                      "two processes claim incarnation %" PRIu64
                      " of %s: its site folder was copied; stop one of them",
                      h->incarnation, p->name);
    return NEB_OK;
}

/* A site that was removed is shown the signed epochs up to the one that removes it, and no later one. They
 * are proof, so it can stop instead of knocking for ever. */
static neb_status show_removal(struct neb_conn *c, const struct neb_public *key)
{
    const struct neb_chain *chain = c->net->chain;
    struct neb_hash ours;
    const uint8_t *p;
    size_t n;
    if (!c->hello_in || c->role != NEB_CONN_CONTROL || c->theirs.epoch >= chain->epoch) return NEB_OK;
    neb__chain_hash_of(chain, c->theirs.epoch, &ours);
    if (!neb__hash_equal(&c->theirs.head, &ours)) return NEB_OK;
    NEB_TRY(neb__chain_removal(chain, c->theirs.epoch, key, NEB_EPOCH_BYTES_MAX, &p, &n));
    return n ? neb__conn_frame(c, NEB_FRAME_CHAIN, p, n) : NEB_OK;
}

static neb_status check_member(struct neb_conn *c, struct neb_peer **out)
{
    struct neb_net *net = c->net;
    struct neb_public key;
    neb__tls_peer(c->tls, &key);
    const struct neb_member *m = neb__roster_by_key(&net->chain->now, &key);
    if (!m) NEB_TRY(show_removal(c, &key));
    if (!m || m->id == net->self)
        return refuse(c, NEB_REFUSE_KEY, "the key is not valid in epoch %" PRIu64 " of the roster",
                      net->chain->epoch);
    if (c->dialled && m->id != c->peer->id)
        return refuse(c, NEB_REFUSE_KEY, "dialled %s, but %s answered", c->peer->name, m->name);
    struct neb_peer *p = neb__peer_find(net, m->id);
    if (!p) return neb__fail(NEB_ERR_INTERNAL, "%s is a member but not a peer", m->name);
    *out = p;
    return NEB_OK;
}

/* Both sides have sent WELCOME. Rules 3 and 4 must hold at this moment too. Since our own WELCOME went out
 * the member may have been evicted or given another key, or a newer process of it may have connected. */
static neb_status admit(struct neb_conn *c)
{
    struct neb_peer *p = NULL;
    NEB_TRY(check_member(c, &p));
    if (c->role == NEB_CONN_CONTROL) NEB_TRY(check_control(c, p));
    c->peer = p;
    return neb__link_attach(c);
}

/* Applies rules 2 to 4. Does nothing while the chain is still to come. */
static neb_status judge(struct neb_conn *c)
{
    struct neb_peer *p = NULL;
    struct neb_hash ours;
    if (!c->hello_in || c->welcome_out || c->contested || c->theirs.epoch > c->net->chain->epoch)
        return NEB_OK;
    NEB_TRY(check_member(c, &p));
    neb__chain_hash_of(c->net->chain, c->theirs.epoch, &ours);
    if (!neb__hash_equal(&c->theirs.head, &ours)) return contest(c);
    if (c->role == NEB_CONN_CONTROL)
        NEB_TRY(check_control(c, p));
    else if (!p->up || p->token != c->theirs.token || p->boot != c->theirs.boot)
        return refuse(c, NEB_REFUSE_TOKEN, "its stripe belongs to a link that does not exist, or no longer");
    c->peer = p;
    c->welcome_out = true;
    NEB_TRY(neb__conn_frame(c, NEB_FRAME_WELCOME, NULL, 0));
    if (c->role == NEB_CONN_CONTROL) c->tell = c->theirs.epoch + 1;
    return c->welcome_in ? neb__link_attach(c) : NEB_OK;
}

static neb_status got_hello(struct neb_conn *c, const uint8_t *body, size_t n)
{
    neb_status status = neb__hello_get(body, n, &c->theirs);
    if (status == NEB_ERR_VERSION) return refuse(c, NEB_REFUSE_VERSION, "%s", neb_last_error());
    NEB_TRY(status);
    if (!c->dialled && is_blind(&c->theirs)) NEB_TRY(see_through(c));
    if (memcmp(c->theirs.run_id, c->net->chain->run_id, NEB_RUN_ID_SIZE))
        return refuse(c, NEB_REFUSE_RUN, "it belongs to another run");
    if (!neb__hash_equal(&c->theirs.genesis, &c->net->chain->genesis_hash))
        return refuse(c, NEB_REFUSE_GENESIS, "it has another genesis for this run");
    c->hello_in = true;
    c->framer.allowed = 1u << NEB_FRAME_CHAIN | 1u << NEB_FRAME_WELCOME | 1u << NEB_FRAME_REFUSE;
    if (!c->dialled) {
        c->role = c->theirs.role;
        c->stripe = c->theirs.stripe;
        c->token = c->theirs.token;
        NEB_TRY(send_hello(c));
    }
    return judge(c);
}

/* An epoch of the peer's chain is signed as properly as ours of that number. The proof counts even from a
 * stranger; but only members are shown our own chain. */
static neb_status got_fork(struct neb_conn *c)
{
    struct neb_net *net = c->net;
    struct neb_public key;
    neb__tls_peer(c->tls, &key);
    const struct neb_member *m = neb__roster_by_key(&net->chain->now, &key);
    c->fork_seen = true;
    if (net->config.events->roster_fork)
        net->config.events->roster_fork(net->config.arg, m ? m->id : 0, net->chain->epoch);
    if (c->contested) return NEB_OK;
    return m ? contest(c) : refuse(c, NEB_REFUSE_FORK, "two different rosters for one epoch");
}

/* A tail longer than one frame comes in several. The sender has already judged us, so we wait for all of
 * them. */
static neb_status got_chain(struct neb_conn *c, const uint8_t *body, size_t n)
{
    struct neb_net *net = c->net;
    uint64_t was = net->chain->epoch;
    if (c->fork_seen) return NEB_OK; /* the following epochs continue the other branch */
    neb_status status = neb__chain_extend(net->chain, body, n);
    if (status == NEB_ERR_EXISTS) return got_fork(c);
    if (status != NEB_OK)
        return status == NEB_ERR_NOMEM
                   ? status
                   : refuse(c, NEB_REFUSE_PROTOCOL, "its roster is not valid: %s", neb_last_error());
    if (net->chain->epoch == was) return judge(c);
    if (c->tell) c->tell = net->chain->epoch + 1;
    neb__info("received a newer roster (epoch %" PRIu64 ") from %s", net->chain->epoch, c->remote);
    net->roster_changed = true; /* handled between events, since it may close any connection, even this one */
    return neb__site_roster_save(net->config.site->dir, net->chain);
}

static neb_status got_refuse(struct neb_conn *c, const uint8_t *body, size_t n)
{
    uint16_t code;
    char text[257], name[64];
    NEB_TRY(neb__refuse_get(body, n, &code, text));
    if (code == NEB_REFUSE_TOKEN) return neb__quiet(NEB_ERR_AUTH, "%s", text);
    neb__net_stranger_log(c->net, "%s at %s refuses this site: %s", who(c, name), c->remote, text);
    c->refuse_in = true;
    if (c->contested && (!c->refuse_out || neb__conn_waiting(c)))
        return NEB_OK; /* the peer waits for our chain */
    return neb__quiet(NEB_ERR_AUTH, "%s", text);
}

neb_status neb__greet_frame(struct neb_conn *c, enum neb_frame_type type, const uint8_t *body, size_t n)
{
    switch (type) {
    case NEB_FRAME_HELLO: return got_hello(c, body, n);
    case NEB_FRAME_CHAIN: return got_chain(c, body, n);
    case NEB_FRAME_REFUSE: return got_refuse(c, body, n);
    case NEB_FRAME_WELCOME:
        if (c->welcome_in) return neb__quiet(NEB_ERR_PROTOCOL, "the peer sent WELCOME twice");
        c->welcome_in = true;
        return c->welcome_out && !c->contested ? admit(c) : NEB_OK;
    default: return neb__quiet(NEB_ERR_PROTOCOL, "unexpected frame of type %d in a greeting", type);
    }
}

/* Closes the links of members that left or have a new key, makes peers of new members, and tells all
 * members. */
static void peers_follow(struct neb_net *net)
{
    struct neb_peer *p, *next;
    for (p = net->peers; p; p = next) {
        next = p->next;
        const struct neb_member *m = neb__roster_by_id(&net->chain->now, p->id);
        if (m) neb__strangers_learn(p, m);
        if (!m) {
            neb__warn("%s is no longer a member (epoch %" PRIu64 ")", p->name, net->chain->epoch);
            neb__peer_remove(p, NEB_ERR_AUTH);
        } else if (!neb__public_equal(&p->key, &m->key)) {
            neb__warn("%s has a new key (epoch %" PRIu64 "): its links with the old one are closed", p->name,
                      net->chain->epoch);
            p->key = m->key;
            p->boot = p->incarnation = 0; /* the site with the new key may count from one again */
            neb__link_down(p, NEB_ERR_AUTH);
        } else if (p->control) {
            neb__link_touch(p); /* it may lack an epoch */
        }
    }
    for (uint32_t i = 0; i < net->chain->now.count; i++) {
        const struct neb_member *m = &net->chain->now.members[i];
        if (m->id != net->self && !neb__peer_find(net, m->id)) neb__peer_add(net, m);
    }
    neb__stand_follow(net);
}

void neb__greet_roster_changed(struct neb_net *net)
{
    struct neb_conn *c, *next;
    peers_follow(net);
    for (c = net->conns; c; c = next) {
        next = c->next;
        if (c->state != NEB_CONN_GREETING) continue;
        if (judge(c) != NEB_OK) {
            neb__link_detach(c, NEB_ERR_AUTH);
            neb__conn_close(c);
            next = net->conns; /* the list may have changed: start over (it holds no closed ones) */
            continue;
        }
        if (c->state == NEB_CONN_GREETING && neb__conn_waiting(c)) neb__conn_pump(c);
    }
    if (net->config.events->roster) net->config.events->roster(net->config.arg, net->chain);
}
