/* net.c: the node: its loop, its thread, and the functions of net.h.
 *
 * Everything happens on the loop's thread. Other threads reach it by posts: a list under a lock and a
 * wake-up. Requests that callbacks make (sending, resuming, changing the roster) are not carried out inside
 * them but just before the loop sleeps again (settle()). So no callback runs inside another, and many small
 * messages share one TLS record and one system call. */
#include "net/link.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>

/* ---- between two events -------------------------------------------------------------------------------- */

static void pump_peer(struct neb_peer *p)
{
    p->dirty = false;
    if (p->control && !p->control->blocked) neb__conn_pump(p->control);
    neb__control_copy_pump(p);
    for (int i = 0; p->up && i < neb__bbr_turns_stripes(p); i++) {
        struct neb_conn *c = p->stripe[i];
        if (!c || !neb__bbr_turns_may_send(c) || c->state != NEB_CONN_READY || (c->blocked && !p->top_up))
            continue;
        if (neb__outbox_has(&p->out, i)) neb__conn_pump(c);
    }
    p->top_up = false;
}

static void on_ack_timer(uv_timer_t *timer)
{
    struct neb_net *net = timer->data;
    net->ack_timer_on = false;
    neb__conn_read_waiting(net, true); /* so that data in the sockets is acknowledged too */
    for (struct neb_peer *p = net->peers; p; p = p->next)
        if (p->ack_due) p->dirty = true;
}

static void settle(struct neb_net *net)
{
    int64_t due = INT64_MAX;
    neb__net_tick_early(net);
    if (net->roster_changed) {
        net->roster_changed = false;
        neb__greet_roster_changed(net);
    }
    for (struct neb_peer *p = net->peers; p; p = p->next) {
        for (int i = 0; i < NEB_PRIORITIES; i++) {
            if (!p->again[i]) continue;
            p->again[i] = false;
            neb__link_deliver(p, i);
        }
        if (p->streams) neb__net_stream_flush(p);
        if (p->dirty) pump_peer(p);
        if (p->ack_due && p->ack_due < due) due = p->ack_due;
    }
    if (due < INT64_MAX && !net->ack_timer_on) {
        int64_t wait = (due - neb__now_ns()) / 1000000;
        net->ack_timer_on = true;
        uv_timer_start(&net->ack_timer, on_ack_timer, wait < 1 ? 1 : (uint64_t)wait + 1, 0);
    }
}

static void on_prepare(uv_prepare_t *handle)
{
    settle(handle->data);
}

static void on_first_tick(uv_timer_t *timer)
{
    neb__net_tick(timer->data);
}

/* ---- posts --------------------------------------------------------------------------------------------- */

neb_status neb__net_post(struct neb_net *net, void (*fn)(void *arg), void *arg)
{
    struct neb_post *post = NEB_NEW(struct neb_post);
    if (!post) return neb__fail(NEB_ERR_NOMEM, "out of memory for a post");
    *post = (struct neb_post){NULL, fn, arg};
    uv_mutex_lock(&net->lock);
    bool refused = net->closed;
    if (!refused) {
        *net->posts_end = post;
        net->posts_end = &post->next;
        uv_async_send(&net->wake);
    }
    uv_mutex_unlock(&net->lock);
    if (!refused) return NEB_OK;
    neb__free(post);
    return neb__quiet(NEB_ERR_STATE, "the node is closing");
}

static void run_posts(struct neb_net *net)
{
    uv_mutex_lock(&net->lock);
    struct neb_post *list = net->posts;
    net->posts = NULL;
    net->posts_end = &net->posts;
    bool stop = net->stopping;
    uv_mutex_unlock(&net->lock);
    while (list) {
        struct neb_post *post = list;
        list = post->next;
        post->fn(post->arg);
        neb__free(post);
    }
    if (stop) uv_stop(&net->loop);
}

static void on_wake(uv_async_t *handle)
{
    run_posts(handle->data);
    neb__lookup_take(handle->data);
}

void neb__net_stop(struct neb_net *net)
{
    uv_mutex_lock(&net->lock);
    net->stopping = true;
    if (net->loop_ready && !net->closed) uv_async_send(&net->wake);
    uv_mutex_unlock(&net->lock);
}

/* ---- open, run, close ---------------------------------------------------------------------------------- */

static neb_status check_config(const struct neb_net_config *c)
{
    if (!c->site || !c->events)
        return neb__fail(NEB_ERR_CONFIG, "a node needs a site and its callbacks (events)");
    if (c->stripes < 0 || c->stripes > NEB_CONTROL_COPY || c->stripes_max < 1 ||
        c->stripes_max > NEB_CONTROL_COPY)
        return neb__fail(NEB_ERR_CONFIG, "stripes must be 0 (adaptive) to %d", NEB_CONTROL_COPY);
    for (int i = 0; i < NEB_PRIORITIES; i++)
        if (c->window[i] < NEB_CONTROL_MESSAGE_MAX || c->window[i] > (size_t)1 << 40)
            return neb__fail(NEB_ERR_CONFIG, "a window must be 1 MiB to 1 TiB, not %zu bytes", c->window[i]);
    if (!(c->heartbeat > 0) || !(c->dead_after > 2 * c->heartbeat) || !(c->dial_min > 0) ||
        c->dial_max < c->dial_min || !(c->max_rate >= 0) || !(c->greet > 0))
        return neb__fail(NEB_ERR_CONFIG, "heartbeat, dead_after (more than two heartbeats), dial_min, "
                                         "dial_max or max_rate is out of range");
    return NEB_OK;
}

static neb_status init_loop(struct neb_net *net)
{
    if (uv_loop_init(&net->loop)) return neb__fail(NEB_ERR_NOMEM, "cannot make an event loop");
    if (uv_async_init(&net->loop, &net->wake, on_wake)) {
        uv_loop_close(&net->loop);
        return neb__fail(NEB_ERR_NOMEM, "cannot make an event loop");
    }
    net->loop_ready = true;
    uv_prepare_init(&net->loop, &net->prepare);
    uv_timer_init(&net->loop, &net->tick);
    uv_timer_init(&net->loop, &net->ack_timer);
    uv_timer_init(&net->loop, &net->read_timer);
    uv_timer_init(&net->loop, &net->turn_timer);
    net->read_timer.data = net->turn_timer.data = net;
    net->wake.data = net->prepare.data = net->tick.data = net->ack_timer.data = net;
    uv_prepare_start(&net->prepare, on_prepare);
    uv_timer_start(&net->tick, on_first_tick, 1, 0);
    return NEB_OK;
}

static neb_status init_node(struct neb_net *net)
{
    const struct neb_net_config *c = &net->config;
    NEB_TRY(neb__site_roster_load(c->site->dir, &net->chain));
    const struct neb_member *me = neb__roster_by_key(&net->chain->now, &c->site->public);
    if (!me)
        return neb__fail(NEB_ERR_AUTH,
                         "%s is not a member in epoch %" PRIu64
                         " of the run: it was evicted, or its key was replaced",
                         c->site->name, net->chain->epoch);
    net->self = me->id;
    NEB_TRY(neb__way_init(&net->way, c->proxy, c->dial, c->environment));
    if (net->way.by_environment)
        neb__info("dialling through the proxy %s:%u, as %s says", net->way.proxy.host, net->way.proxy.port,
                  net->way.origin);
    net->skip = neb__malloc(NEB_SKIP);
    if (!net->skip) return neb__fail(NEB_ERR_NOMEM, "out of memory for a node");
    NEB_TRY(neb__random_bytes(&net->jitter.state, sizeof net->jitter.state));
    NEB_TRY(neb__tls_context_create(c->site->key, c->site->name, &net->tls));
    NEB_TRY(init_loop(net));
    NEB_TRY(neb__net_listen(net));
    for (uint32_t i = 0; i < net->chain->now.count; i++)
        if (net->chain->now.members[i].id != net->self)
            NEB_TRY(neb__peer_add(net, &net->chain->now.members[i]));
    neb__stand_follow(net);
    return NEB_OK;
}

neb_status neb__net_open(const struct neb_net_config *config, struct neb_net **out)
{
    NEB_TRY(check_config(config));
    struct neb_net *net = NEB_NEW(struct neb_net);
    if (!net) return neb__fail(NEB_ERR_NOMEM, "out of memory for a node");
    net->config = *config;
    net->posts_end = &net->posts;
    net->listen_fd = -1;
    uv_mutex_init(&net->lock);
    neb_status status = NEB_OK;
    if ((config->listen && !(net->listen = neb__strdup(config->listen))) ||
        (config->congestion && !(net->congestion = neb__strdup(config->congestion))))
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for a node");
    if (status == NEB_OK) status = init_node(net);
    if (status != NEB_OK) {
        neb__net_close(net);
        return status;
    }
    *out = net;
    return NEB_OK;
}

neb_status neb__net_run(struct neb_net *net)
{
    uv_run(&net->loop, UV_RUN_DEFAULT);
    return NEB_OK;
}

static void thread_main(void *arg)
{
    neb__net_run(arg);
}

neb_status neb__net_start(struct neb_net *net)
{
    if (uv_thread_create(&net->thread, thread_main, net))
        return neb__fail(NEB_ERR_NOMEM, "cannot start the loop's thread");
    net->threaded = true;
    return NEB_OK;
}

static void say_goodbye(struct neb_net *net)
{
    for (struct neb_peer *p = net->peers; p; p = p->next)
        if (p->control && neb__conn_frame(p->control, NEB_FRAME_BYE, NULL, 0) == NEB_OK) p->up = false;
}

static void timer_closed(uv_handle_t *handle)
{
    neb__free(handle->data);
}

/* Frees the timers that the layers above did not stop. */
static void close_handle(uv_handle_t *handle, void *arg)
{
    bool timer = handle->type == UV_TIMER && handle->data != arg;
    if (!uv_is_closing(handle)) uv_close(handle, timer ? timer_closed : NULL);
}

static void close_loop(struct neb_net *net)
{
    static const struct neb_net_events nobody;
    net->config.events = &nobody; /* from here on only `sent` is called back */
    say_goodbye(net);
    while (net->peers) neb__peer_remove(net->peers, NEB_ERR_CANCELLED);
    while (net->conns) neb__conn_close(net->conns);
    neb__dial_commands_end(net);
    uv_walk(&net->loop, close_handle, net);
    while (uv_run(&net->loop, UV_RUN_DEFAULT)) {}
    uv_loop_close(&net->loop);
    if (net->listen_fd >= 0) close(net->listen_fd);
}

void neb__net_end(struct neb_net *net)
{
    if (net->closed) return;
    neb__net_stop(net);
    if (net->threaded) uv_thread_join(&net->thread);
    neb__lookup_end(net);
    if (net->loop_ready) run_posts(net); /* earlier posts still run */
    uv_mutex_lock(&net->lock);
    net->closed = true;
    uv_mutex_unlock(&net->lock);
    if (net->loop_ready) close_loop(net);
    run_posts(net);
}

void neb__net_close(struct neb_net *net)
{
    if (!net) return;
    neb__net_end(net);
    neb__stand_free(net);
    neb__tls_context_free(net->tls);
    neb__chain_free(net->chain);
    neb__free(net->skip);
    neb__free(net->listen);
    neb__free(net->congestion);
    neb__way_free(&net->way);
    uv_mutex_destroy(&net->lock);
    neb__free(net);
}

/* ---- asking -------------------------------------------------------------------------------------------- */

uint16_t neb__net_self(const struct neb_net *net)
{
    return net->self;
}

const struct neb_chain *neb__net_roster(const struct neb_net *net)
{
    return net->chain;
}

neb_status neb__net_extend_roster(struct neb_net *net, const uint8_t *epochs, size_t n)
{
    uint64_t was = net->chain->epoch;
    NEB_TRY(neb__chain_extend(net->chain, epochs, n));
    if (net->chain->epoch == was) return NEB_OK;
    net->roster_changed = true;
    return neb__site_roster_save(net->config.site->dir, net->chain);
}

uint64_t neb__net_dropped(const struct neb_net *net)
{
    return net->dropped;
}

bool neb__net_is_up(const struct neb_net *net, uint16_t peer)
{
    const struct neb_peer *p = neb__peer_find(net, peer);
    return p && p->up;
}

neb_status neb__net_line(const struct neb_net *net, uint16_t peer, struct neb_line *out)
{
    const struct neb_peer *p = neb__peer_find(net, peer);
    if (!p) return neb__quiet(NEB_ERR_NOTFOUND, "no member %u", peer);
    const struct neb_measure *m = &p->measure;
    *out = (struct neb_line){.up = p->up,
                             .relayed = p->control && p->control->stand,
                             .goodput_out = m->goodput,
                             .goodput_in = m->goodput_in,
                             .goodput_age = m->goodput_at ? neb__seconds_since(m->goodput_at) : -1,
                             .rtt = m->rtt,
                             .rtt_min = m->rtt_min,
                             .loss = m->loss,
                             .silent = p->up ? neb__seconds_since(p->pong_at) : 0,
                             .bytes_out = p->out.acked_bytes,
                             .bytes_in = p->in.bytes,
                             .acked_at = m->acked_at,
                             .queued = neb__outbox_bytes(&p->out),
                             .reconnects = p->reconnects};
    for (int i = 0; i < neb__bbr_turns_stripes(p); i++)
        out->stripes += p->stripe[i] && p->stripe[i]->state == NEB_CONN_READY;
    return NEB_OK;
}

/* ---- sending ------------------------------------------------------------------------------------------- */

static neb_status check_send(struct neb_net *net, uint16_t peer, enum neb_priority priority, uint32_t kind,
                             size_t size, struct neb_peer **out)
{
    struct neb_peer *p = neb__peer_find(net, peer);
    if (!p) return neb__quiet(NEB_ERR_NOTFOUND, "no member %u", peer);
    if (priority < 0 || priority >= NEB_PRIORITIES || kind > NEB_KIND_USER_MAX)
        return neb__fail(NEB_ERR_INVALID, "cannot send a message of priority %d, kind %u", priority, kind);
    const struct neb_outbox_queue *q = &p->out.queue[priority];
    if (size > q->window || (priority == NEB_CONTROL && size > NEB_CONTROL_MESSAGE_MAX))
        return neb__fail(NEB_ERR_LIMIT,
                         "a message of %zu bytes to %s does not fit its window of %" PRIu64 " bytes", size,
                         p->name, q->window);
    size_t most = net->config.queue_max;
    if (priority == NEB_CONTROL && most > NEB_CONTROL_QUEUE_MAX) most = NEB_CONTROL_QUEUE_MAX;
    if (q->queued_bytes && q->queued_bytes + size > most)
        return neb__quiet(NEB_ERR_AGAIN, "%" PRIu64 " bytes already wait for %s", q->queued_bytes, p->name);
    *out = p;
    return NEB_OK;
}

neb_status neb__net_send(struct neb_net *net, uint16_t peer, enum neb_priority priority, uint32_t kind,
                         const void *data, size_t size, neb_sent_fn sent, void *arg)
{
    struct neb_peer *p = NULL;
    NEB_TRY(check_send(net, peer, priority, kind, size, &p));
    NEB_TRY(neb__outbox_push(&p->out, priority, kind, data, size, false, sent, arg));
    neb__link_touch(p);
    return NEB_OK;
}

neb_status neb__net_send_copy(struct neb_net *net, uint16_t peer, enum neb_priority priority, uint32_t kind,
                              const void *data, size_t size, neb_sent_fn sent, void *arg)
{
    struct neb_peer *p = NULL;
    NEB_TRY(check_send(net, peer, priority, kind, size, &p));
    uint8_t *copy = neb__malloc(size ? size : 1);
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for a message");
    if (size) memcpy(copy, data, size);
    neb_status status = neb__outbox_push(&p->out, priority, kind, copy, size, true, sent, arg);
    if (status != NEB_OK)
        neb__free(copy);
    else
        neb__link_touch(p);
    return status;
}

void neb__net_resume(struct neb_net *net, uint16_t peer, enum neb_priority priority)
{
    struct neb_peer *p = neb__peer_find(net, peer);
    if (p && p->held[priority]) p->again[priority] = true;
}

/* ---- timers -------------------------------------------------------------------------------------------- */

struct neb_net_timer {
    uv_timer_t uv;
    void (*fn)(void *arg);
    void *arg;
};

static void on_timer(uv_timer_t *handle)
{
    struct neb_net_timer *t = handle->data;
    t->fn(t->arg);
}

neb_status neb__net_timer_start(struct neb_net *net, double first, double repeat, void (*fn)(void *arg),
                                void *arg, struct neb_net_timer **out)
{
    struct neb_net_timer *t = NEB_NEW(struct neb_net_timer);
    if (!t) return neb__fail(NEB_ERR_NOMEM, "out of memory for a timer");
    t->fn = fn;
    t->arg = arg;
    uv_timer_init(&net->loop, &t->uv);
    t->uv.data = t;
    uv_update_time(&net->loop);
    uv_timer_start(&t->uv, on_timer, (uint64_t)(first * 1000 + 0.5), (uint64_t)(repeat * 1000 + 0.5));
    *out = t;
    return NEB_OK;
}

void neb__net_timer_stop(struct neb_net_timer *t)
{
    if (t) uv_close((uv_handle_t *)&t->uv, timer_closed);
}
