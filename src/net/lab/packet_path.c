/* packet_path.c: the path of a packet through the laboratory, in virtual time.
 *
 *     site's uplink -> queue of the pair -> line of the pair -> site's downlink
 *                                          (loss, delay, jitter, reordering)
 *
 * Uplink, pair and downlink are queues: first in, first out, bounded in bytes (a packet that does not fit is
 * dropped at the tail), served at a rate. The head of a queue is being sent until `at`. The next packet
 * starts then, at the rate that holds then, so a change of rate acts on packets that already wait. A queue
 * with a bucket of `burst` bytes starts as if it had been idle earlier: that is a token bucket. A line is a
 * list sorted by arrival. Packets keep their order except those held back on purpose, which later ones
 * overtake. So a search from the tail passes only held-back packets.
 *
 * Queues and lines are nodes. Nodes with something due are in a heap by the time of their next event; the
 * number breaks ties. Events happen at their own time, not at the time of the call: a caller that comes late
 * delivers late but never shifts the packets behind. The schedule is one more source of events.
 *
 * A lossless path (for loopback lines, which carry byte streams and not packets) drops nothing: a line that
 * is down pauses its queue, and the caller asks for room before it sends.
 *
 * Invariants: a node is in the heap iff its list is not empty; node->at is its head's time; queue->bytes is
 * the sum over its list; every packet is in exactly one list.
 */
#include "net/lab/packet_path.h"
#include "net/lab/packet_faults.h"
#include "net/lab/schedule.h"
#include "base/mem.h"

#include <string.h>

enum kind { UP, PAIR, LINE, DOWN };

struct node {
    int64_t at; /* when the head leaves */
    int heap;   /* position in the heap, or -1 */
    int id;
    enum kind kind;
    struct neb_path_packet *head, *tail;
    /* queues */
    double ns_per_byte;      /* 0: unlimited */
    int64_t limit, bytes;    /* bytes allowed, bytes waiting */
    int64_t free_at, credit; /* when the queue may send again; ns of idle time that count */
    bool paused;             /* nothing leaves the queue */
    int64_t ahead;           /* ns from leaving this queue to the earliest delivery */
};

struct pair {
    struct neb_lab_line base, now; /* as set; with the schedule applied */
    struct neb_packet_faults faults;
    int64_t last; /* arrival of the last packet that kept its order */
    struct neb_lab_stats stats;
};

struct slab {
    struct slab *next;
    struct neb_path_packet packet[1024];
};

struct neb_packet_path {
    int n;
    struct neb_path_sink sink;
    struct node *node; /* (n) uplinks, (n) downlinks, (n, n) queues, (n, n) lines */
    struct node **heap;
    int heaped;
    struct pair *pair; /* (n, n) */
    struct neb_lab_event *event;
    int events, mtu, overhead;
    bool lossless;
    int64_t start, change; /* start of the schedule and its next change, absolute */
    int64_t clock;         /* latest time that a caller passed */
    int64_t held, memory;  /* bytes on the way; bytes allowed */
    struct neb_path_packet *free;
    struct slab *slabs;
};

static struct node *uplink(struct neb_packet_path *w, int site)
{
    return &w->node[site];
}

static struct node *downlink(struct neb_packet_path *w, int site)
{
    return &w->node[w->n + site];
}

static struct node *queue_of(struct neb_packet_path *w, int from, int to)
{
    return &w->node[2 * w->n + from * w->n + to];
}

static struct node *line_of(struct neb_packet_path *w, int from, int to)
{
    return &w->node[2 * w->n + w->n * w->n + from * w->n + to];
}

static struct pair *pair_of(const struct neb_packet_path *w, int from, int to)
{
    return &w->pair[from * w->n + to];
}

/* ---- the heap of nodes --------------------------------------------------------------------------------- */

static bool before(const struct node *a, const struct node *b)
{
    return a->at < b->at || (a->at == b->at && a->id < b->id);
}

static void place(struct neb_packet_path *w, int i, struct node *x)
{
    w->heap[i] = x;
    x->heap = i;
}

static void sift(struct neb_packet_path *w, struct node *x)
{
    int i = x->heap;
    for (int up; i > 0 && before(x, w->heap[up = (i - 1) / 2]); i = up) place(w, i, w->heap[up]);
    for (int child; (child = 2 * i + 1) < w->heaped; i = child) {
        if (child + 1 < w->heaped && before(w->heap[child + 1], w->heap[child])) child++;
        if (!before(w->heap[child], x)) break;
        place(w, i, w->heap[child]);
    }
    place(w, i, x);
}

/* Moves the node to the place in the heap that its list and its time require. */
static void settle(struct neb_packet_path *w, struct node *x)
{
    if (x->head) {
        if (x->heap < 0) place(w, w->heaped++, x);
        sift(w, x);
    } else if (x->heap >= 0) {
        struct node *last = w->heap[--w->heaped];
        int hole = x->heap;
        x->heap = -1;
        if (last != x) {
            place(w, hole, last);
            sift(w, last);
        }
    }
}

/* ---- packets ------------------------------------------------------------------------------------------- */

static struct neb_path_packet *packet_take(struct neb_packet_path *w)
{
    if (!w->free) {
        struct slab *s = neb__malloc(sizeof *s);
        if (!s) return NULL;
        s->next = w->slabs;
        w->slabs = s;
        for (int i = 0; i < 1024; i++) {
            s->packet[i].next = w->free;
            w->free = &s->packet[i];
        }
    }
    struct neb_path_packet *p = w->free;
    w->free = p->next;
    return p;
}

static void packet_give(struct neb_packet_path *w, struct neb_path_packet *p)
{
    w->held -= p->bytes;
    p->next = w->free;
    w->free = p;
}

static void drop(struct neb_packet_path *w, struct neb_path_packet *p, enum neb_packet_drop why)
{
    struct neb_lab_stats *s = &pair_of(w, p->from, p->to)->stats;
    if (why == NEB_PACKET_LOST)
        s->lost++;
    else if (why == NEB_PACKET_OVERFLOW)
        s->overflowed++;
    else
        s->cut++;
    w->sink.drop(w->sink.arg, p, why);
    packet_give(w, p);
}

/* Inserts the packet behind every packet of the list that is due no later. */
static void insert(struct node *x, struct neb_path_packet *p)
{
    struct neb_path_packet *after = x->tail;
    while (after && after->due > p->due) after = after->prev;
    p->prev = after;
    p->next = after ? after->next : x->head;
    *(p->next ? &p->next->prev : &x->tail) = p;
    *(after ? &after->next : &x->head) = p;
}

static struct neb_path_packet *remove_head(struct node *x)
{
    struct neb_path_packet *p = x->head;
    x->head = p->next;
    *(x->head ? &x->head->prev : &x->tail) = NULL;
    return p;
}

/* ---- the stages ---------------------------------------------------------------------------------------- */

static void leave(struct neb_packet_path *w, struct node *x, struct neb_path_packet *p, int64_t t);

/* Begins to send the head of the queue, no earlier than t. */
static void serve(const struct neb_packet_path *w, struct node *x, int64_t t)
{
    if (x->paused) {
        x->at = INT64_MAX / 2;
        return;
    }
    int64_t start = t - x->credit > x->free_at ? t - x->credit : x->free_at;
    x->free_at = start + (int64_t)((double)(x->head->bytes + (uint32_t)w->overhead) * x->ns_per_byte + 0.5);
    x->at = x->free_at > t ? x->free_at : t;
}

static void enter_queue(struct neb_packet_path *w, struct node *x, struct neb_path_packet *p, int64_t t)
{
    if (x->ns_per_byte == 0 && !x->head && !x->paused) {
        leave(w, x, p, t);
        return;
    }
    if (x->head && x->bytes + p->bytes > x->limit && !w->lossless) {
        drop(w, p, NEB_PACKET_OVERFLOW);
        return;
    }
    bool idle = !x->head;
    p->due = 0;
    insert(x, p);
    x->bytes += p->bytes;
    if (x->kind == PAIR) {
        struct neb_lab_stats *s = &pair_of(w, p->from, p->to)->stats;
        if (x->bytes > s->queued_most) s->queued_most = x->bytes;
    }
    if (idle) {
        serve(w, x, t);
        settle(w, x);
    }
}

static void enter_line(struct neb_packet_path *w, struct neb_path_packet *p, int64_t t)
{
    struct pair *pair = pair_of(w, p->from, p->to);
    struct neb_fate fate;
    neb__packet_faults_draw(&pair->faults, &pair->now, t, &fate);
    if (!w->lossless && (pair->now.down || fate.lost)) {
        drop(w, p, pair->now.down ? NEB_PACKET_CUT : NEB_PACKET_LOST);
        return;
    }
    p->corrupt = fate.corrupt;
    pair->stats.corrupted += fate.corrupt;
    p->due = t + fate.delay;
    if (p->due < pair->last) p->due = pair->last;
    if (fate.held) {
        double extra = pair->now.reorder_delay > 0 ? pair->now.reorder_delay : 1e-3;
        p->due += (int64_t)(extra * 1e9);
        pair->stats.reordered++;
    } else {
        pair->last = p->due;
    }
    struct node *x = line_of(w, p->from, p->to);
    insert(x, p);
    x->at = x->head->due;
    settle(w, x);
}

static void leave(struct neb_packet_path *w, struct node *x, struct neb_path_packet *p, int64_t t)
{
    switch (x->kind) {
    case UP: enter_queue(w, queue_of(w, p->from, p->to), p, t); break;
    case PAIR: enter_line(w, p, t); break;
    case LINE: enter_queue(w, downlink(w, p->to), p, t); break;
    case DOWN: {
        struct neb_lab_stats *s = &pair_of(w, p->from, p->to)->stats;
        s->delivered++;
        s->delivered_bytes += p->bytes;
        w->sink.deliver(w->sink.arg, p, t);
        packet_give(w, p);
        break;
    }
    }
}

/* Moves the head of x to the next stage. */
static void step(struct neb_packet_path *w, struct node *x)
{
    int64_t t = x->at;
    struct neb_path_packet *p = remove_head(x);
    if (x->kind == LINE) {
        if (x->head) x->at = x->head->due;
    } else {
        x->bytes -= p->bytes;
        if (x->head) serve(w, x, t);
    }
    settle(w, x);
    leave(w, x, p, t);
}

void neb__packet_path_send(struct neb_packet_path *w, int64_t now, int from, int to, uint32_t bytes,
                           void *ref, uint32_t index)
{
    struct pair *pair = pair_of(w, from, to);
    struct neb_path_packet *p = w->held + bytes > w->memory ? NULL : packet_take(w);
    pair->stats.sent++;
    pair->stats.sent_bytes += bytes;
    if (!p) {
        struct neb_path_packet gone = {
            .ref = ref, .index = index, .bytes = bytes, .from = (uint16_t)from, .to = (uint16_t)to};
        pair->stats.refused++;
        w->sink.drop(w->sink.arg, &gone, NEB_PACKET_NO_MEMORY);
        return;
    }
    *p = (struct neb_path_packet){
        .ref = ref, .index = index, .bytes = bytes, .from = (uint16_t)from, .to = (uint16_t)to};
    w->held += bytes;
    enter_queue(w, uplink(w, from), p, now > w->clock ? now : w->clock);
}

/* ---- settings ------------------------------------------------------------------------------------------ */

static void set_rate(struct neb_packet_path *w, struct node *x, int64_t now, double rate, int64_t limit,
                     int64_t burst)
{
    double before_ns = x->ns_per_byte;
    x->ns_per_byte = rate > 0 ? 8e9 / rate : 0;
    x->limit = limit;
    x->credit = (int64_t)((double)burst * x->ns_per_byte);
    if (!x->head || before_ns == x->ns_per_byte || x->at <= now || x->paused) return;
    x->at = now + (int64_t)((double)(x->at - now) * (x->ns_per_byte / before_ns));
    x->free_at = x->at;
    settle(w, x);
}

/* Returns how many bytes may wait: as configured, or one round trip of the line, at least 20 ms and 16
 * packets. */
static int64_t queue_limit(const struct neb_packet_path *w, int from, int to)
{
    const struct neb_lab_line *l = &pair_of(w, from, to)->base;
    if (l->queue > 0) return l->queue;
    double rtt = l->delay + pair_of(w, to, from)->base.delay;
    int64_t bytes = (int64_t)(l->rate / 8 * (rtt > 0.02 ? rtt : 0.02));
    return bytes > 16 * w->mtu ? bytes : 16 * w->mtu;
}

static void pause_queue(struct neb_packet_path *w, struct node *x, int64_t now, bool pause)
{
    if (x->paused == pause) return;
    x->paused = pause;
    if (x->head) {
        serve(w, x, now);
        settle(w, x);
    }
}

static void refresh(struct neb_packet_path *w, int64_t now, int from, int to)
{
    struct pair *p = pair_of(w, from, to);
    p->now = p->base;
    neb__schedule_apply(w->event, w->events, now - w->start, from, to, &p->now);
    set_rate(w, queue_of(w, from, to), now, p->now.rate, queue_limit(w, from, to), p->now.burst);
    queue_of(w, from, to)->ahead = neb__packet_faults_least_delay(&p->now);
    if (w->lossless) pause_queue(w, queue_of(w, from, to), now, p->now.down);
}

static void refresh_all(struct neb_packet_path *w, int64_t now)
{
    for (int i = 0; i < w->n; i++)
        for (int j = 0; j < w->n; j++) refresh(w, now, i, j);
    int64_t next = neb__schedule_next(w->event, w->events, now - w->start);
    w->change = next == INT64_MAX ? INT64_MAX : w->start + next;
}

void neb__packet_path_advance(struct neb_packet_path *w, int64_t now)
{
    if (now > w->clock) w->clock = now;
    for (;;) {
        int64_t at = w->heaped ? w->heap[0]->at : INT64_MAX;
        if (w->change <= now && w->change <= at)
            refresh_all(w, w->change);
        else if (w->heaped && at <= now)
            step(w, w->heap[0]);
        else
            return;
    }
}

/* Nobody outside cares about a packet that moves from a queue to the line before it arrives. Events keep
 * their own times, so the caller can catch up then. That halves the wake-ups. With many busy nodes the first
 * event is near anyway. */
int64_t neb__packet_path_next(const struct neb_packet_path *w)
{
    int64_t at = INT64_MAX;
    if (w->heaped > 64) at = w->heap[0]->at;
    for (int i = 0; i < w->heaped && w->heaped <= 64; i++)
        if (w->heap[i]->at + w->heap[i]->ahead < at) at = w->heap[i]->at + w->heap[i]->ahead;
    return at < w->change ? at : w->change;
}

int64_t neb__packet_path_room(const struct neb_packet_path *w, int from, int to)
{
    struct neb_packet_path *v = (struct neb_packet_path *)w;
    const struct node *x = uplink(v, from);
    int64_t room = x->ns_per_byte > 0 ? x->limit - x->bytes : INT64_MAX;
    x = queue_of(v, from, to);
    if (x->ns_per_byte > 0 && x->limit - x->bytes < room) room = x->limit - x->bytes;
    if (w->memory - w->held < room) room = w->memory - w->held;
    return room > 0 ? room : 0;
}

void neb__packet_path_set_line(struct neb_packet_path *w, int64_t now, int from, int to,
                               const struct neb_lab_line *line)
{
    neb__packet_path_advance(w, now);
    pair_of(w, from, to)->base = *line;
    refresh(w, now, from, to);
    refresh(w, now, to, from); /* the default queue of the way back depends on both delays */
}

void neb__packet_path_get_line(const struct neb_packet_path *w, int from, int to, struct neb_lab_line *out)
{
    *out = pair_of(w, from, to)->base;
}

void neb__packet_path_stats(const struct neb_packet_path *w, int from, int to, struct neb_lab_stats *out)
{
    *out = pair_of(w, from, to)->stats;
    out->queued = queue_of((struct neb_packet_path *)w, from, to)->bytes;
}

void neb__packet_path_refused(struct neb_packet_path *w, int from, int to)
{
    pair_of(w, from, to)->stats.refused++;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

/* The nodes are numbered as in neb_packet_path.node. */
static enum kind kind_of(int id, int sites)
{
    if (id < sites) return UP;
    if (id < 2 * sites) return DOWN;
    return id < 2 * sites + sites * sites ? PAIR : LINE;
}

static void prepare(struct neb_packet_path *w, const struct neb_lab_config *cfg)
{
    int n = cfg->sites, nodes = 2 * n + 2 * n * n;
    for (int i = 0; i < nodes; i++) w->node[i] = (struct node){.heap = -1, .id = i, .kind = kind_of(i, n)};
    for (int i = 0; i < n; i++) {
        const struct neb_lab_site *s = &cfg->site[i];
        set_rate(w, uplink(w, i), 0, s->up, s->up_queue > 0 ? s->up_queue : (int64_t)(s->up / 8 * 0.05), 0);
        set_rate(w, downlink(w, i), 0, s->down,
                 s->down_queue > 0 ? s->down_queue : (int64_t)(s->down / 8 * 0.05), 0);
        for (int j = 0; j < n; j++) {
            pair_of(w, i, j)->base = cfg->line[i * n + j];
            neb__packet_faults_init(&pair_of(w, i, j)->faults, cfg->seed, i, j);
        }
    }
}

neb_status neb__packet_path_create(const struct neb_lab_config *cfg, const struct neb_path_sink *sink,
                                   int64_t start, bool lossless, struct neb_packet_path **out)
{
    size_t n = (size_t)cfg->sites, nodes = 2 * n + 2 * n * n;
    struct neb_packet_path *w = NEB_NEW(struct neb_packet_path);
    if (!w) goto fail;
    w->n = cfg->sites;
    w->sink = *sink;
    w->start = start;
    w->lossless = lossless;
    w->mtu = cfg->mtu;
    w->overhead = cfg->overhead;
    w->memory = cfg->memory;
    w->events = cfg->events;
    w->node = NEB_NEW_ARRAY(struct node, nodes);
    w->heap = NEB_NEW_ARRAY(struct node *, nodes);
    w->pair = NEB_NEW_ARRAY(struct pair, n * n);
    w->event = NEB_NEW_ARRAY(struct neb_lab_event, (size_t)cfg->events + 1);
    if (!w->node || !w->heap || !w->pair || !w->event) goto fail;
    if (cfg->events) memcpy(w->event, cfg->event, (size_t)cfg->events * sizeof *w->event);
    prepare(w, cfg);
    refresh_all(w, start);
    *out = w;
    return NEB_OK;
fail:
    neb__packet_path_destroy(w);
    return neb__fail(NEB_ERR_NOMEM, "out of memory for a network of %d sites", cfg->sites);
}

void neb__packet_path_destroy(struct neb_packet_path *w)
{
    if (!w) return;
    for (int i = 0; w->node && w->pair && i < 2 * w->n + 2 * w->n * w->n; i++)
        while (w->node[i].head) drop(w, remove_head(&w->node[i]), NEB_PACKET_CUT);
    for (struct slab *s = w->slabs, *next; s; s = next) {
        next = s->next;
        neb__free(s);
    }
    neb__free(w->event);
    neb__free(w->pair);
    neb__free(w->heap);
    neb__free(w->node);
    neb__free(w);
}
