/* lookup.c: a host's name becomes addresses, on a thread of its own for each lookup, since getaddrinfo() may wait
 * for seconds.
 *
 * libuv has a pool of threads for this. At the exit of a process libuv joins them, also in a child made by fork(),
 * which has none of them and crashes: a program that trains must be free to fork. So nothing here starts the pool.
 *
 * The loop's thread owns the list. A lookup's thread changes its own lookup alone; net->lock is held when it says
 * that it has ended, and the loop's thread joins it then. */
#include "base/mem.h"
#include "net/link.h"

#include <netdb.h>
#include <pthread.h>
#include <stdio.h>

struct neb_lookup {
    struct neb_lookup *next;
    struct neb_net *net;
    pthread_t thread;
    uint16_t peer; /* or 0 */
    struct neb_stand *stand;
    int turn;
    char host[NEB_ADDRESS_SIZE], service[8];
    bool ended; /* under net->lock; the rest of this struct is the loop's then */
    int error;
    struct addrinfo *list;
};

static void *look_up(void *arg)
{
    struct neb_lookup *l = arg;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    l->error = getaddrinfo(l->host, l->service, &hints, &l->list);
    if (l->error) l->list = NULL;
    uv_mutex_lock(&l->net->lock);
    l->ended = true;
    uv_async_send(&l->net->wake); /* the loop is closed after this thread was joined */
    uv_mutex_unlock(&l->net->lock);
    return NULL;
}

static neb_status start(const struct neb_lookup *what, const char *host, uint16_t port)
{
    struct neb_lookup *l = NEB_NEW(struct neb_lookup);
    if (!l) return neb__quiet(NEB_ERR_NOMEM, "out of memory");
    *l = *what;
    l->next = l->net->lookups;
    snprintf(l->host, sizeof l->host, "%s", host);
    snprintf(l->service, sizeof l->service, "%u", port);
    if (pthread_create(&l->thread, NULL, look_up, l)) {
        neb__free(l);
        return neb__quiet(NEB_ERR_NOMEM, "the system refused a thread for looking up %s", host);
    }
    l->net->lookups = l;
    return NEB_OK;
}

neb_status neb__lookup_start(struct neb_peer *p, const char *host, uint16_t port, int turn)
{
    struct neb_lookup what = {.net = p->net, .peer = p->id, .turn = turn};
    return start(&what, host, port);
}

neb_status neb__lookup_stand(struct neb_stand *s, const char *host, uint16_t port)
{
    struct neb_lookup what = {.net = s->net, .stand = s};
    return start(&what, host, port);
}

/* Takes the first lookup that has ended out of the list, or any one. */
static struct neb_lookup *take(struct neb_net *net, bool any)
{
    struct neb_lookup **at = &net->lookups, *l;
    uv_mutex_lock(&net->lock);
    while (*at && !any && !(*at)->ended) at = &(*at)->next;
    uv_mutex_unlock(&net->lock);
    l = *at;
    if (!l) return NULL;
    *at = l->next;
    pthread_join(l->thread, NULL);
    return l;
}

static void release(struct neb_lookup *l)
{
    if (l->list) freeaddrinfo(l->list);
    neb__free(l);
}

void neb__lookup_take(struct neb_net *net)
{
    for (struct neb_lookup *l; (l = take(net, false)); release(l)) {
        struct neb_peer *p = neb__peer_find(net, l->peer);
        if (l->stand) neb__stand_resolved(l->stand, l->error, l->list);
        if (p) neb__net_resolved(p, l->error, l->list, l->turn);
    }
}

void neb__lookup_end(struct neb_net *net)
{
    for (struct neb_lookup *l; (l = take(net, true));) release(l);
}
