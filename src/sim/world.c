/* world.c: virtual time, the event queue, and the lines between the machines.
 *
 * One seed, one history: every choice comes from one generator, events at the same time keep the order in
 * which they were made, and nothing else is random. Lines deliver late, out of order, twice or not at all. */
#include "sim/world.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void neb__sim_trace(struct neb_sim_world *w, const char *fmt, ...)
{
    va_list ap;
    printf("%7lld ", (long long)w->now);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

static bool before(const struct neb_sim_event *a, const struct neb_sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

struct neb_sim_event *neb__sim_later(struct neb_sim_world *w, int64_t delay, enum neb_sim_event_kind kind,
                                     int node)
{
    if (w->events == w->event_cap) {
        size_t cap = w->event_cap ? 2 * w->event_cap : 256;
        struct neb_sim_event **h = neb__realloc(w->heap, cap * sizeof *h);
        if (h) w->heap = h, w->event_cap = cap;
    }
    struct neb_sim_event *e = w->spare;
    if (e)
        w->spare = e->next;
    else
        e = neb__malloc(sizeof *e);
    if (!e || w->events == w->event_cap) {
        neb__free(e);
        w->failed = NEB_ERR_NOMEM;
        return NULL;
    }
    memset(e, 0, sizeof *e);
    e->at = w->now + delay;
    e->order = w->order++;
    e->kind = kind;
    e->node = node;
    e->life = node >= 0 ? w->node[node].life : 0;
    size_t i = w->events++;
    for (; i && before(e, w->heap[(i - 1) / 2]); i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = e;
    return e;
}

static struct neb_sim_event *pop(struct neb_sim_world *w)
{
    struct neb_sim_event *top = w->heap[0], *last = w->heap[--w->events];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->events) break;
        if (c + 1 < w->events && before(w->heap[c + 1], w->heap[c])) c++;
        if (!before(w->heap[c], last)) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    if (w->events) w->heap[i] = last;
    return top;
}

static void release(struct neb_sim_world *w, struct neb_sim_event *e)
{
    neb__free(e->bytes);
    e->next = w->spare;
    w->spare = e;
}

enum { CELLS_QUEUED = 8 }; /* more than that: the line carries copies of cells that are on their way */

void neb__sim_send(struct neb_sim_world *w, int from, int to, enum neb_sim_event_kind kind,
                   const struct neb_sim_event *what, const uint8_t *bytes, size_t n)
{
    if (to < 0 || to >= w->sites || !w->node[to].exists || w->cut[from][to]) return;
    if (w->opt.lasting_cuts && !(w->node[from].linked & neb__bit((unsigned)to))) return;
    /* Links repeat what a line loses, so a site waits long for a cell. Questions and answers about cells are
     * therefore not lost while a run is watched after its faults. */
    bool kept = w->healed && (kind == EV_GETCELL || kind == EV_CELL || kind == EV_NONE);
    if (!kept && w->loss_permille && draw(w, 1000) < (uint64_t)w->loss_permille) return;
    int copies = w->loss_permille && !draw(w, 50) ? 2 : 1;
    for (int i = 0; i < copies; i++) {
        int64_t start = w->busy[from][to] > w->now ? w->busy[from][to] : w->now;
        int64_t sent = start + (int64_t)(n + 60) / w->bytes_per_ms;
        if (kind == EV_CELL) { /* behind everything else: it does not hold up frames */
            start = w->bulk[from][to] > w->now ? w->bulk[from][to] : w->now;
            w->bulk[from][to] = sent = start + w->cell_ms;
            if (sent - w->now > CELLS_QUEUED * w->cell_ms)
                neb__oracle_violated(w, "I10: more than %d cells wait on the line from site %d to site %d",
                                     CELLS_QUEUED, from, to);
        } else
            w->busy[from][to] = sent;
        int64_t delay = sent - w->now + w->delay_ms / 2 + (int64_t)draw(w, (uint64_t)w->delay_ms + 1);
        struct neb_sim_event *e = neb__sim_later(w, delay, kind, to);
        if (!e) return;
        e->from = from;
        e->hash = what->hash;
        e->cell = what->cell;
        e->version = what->version;
        e->index = what->index;
        if (!n) continue;
        e->bytes = neb__malloc(n);
        if (!e->bytes) {
            w->failed = NEB_ERR_NOMEM;
            return;
        }
        memcpy(e->bytes, bytes, n);
        e->length = n;
    }
}

static void configure(struct neb_sim_world *w)
{
    struct neb_round_config *c = &w->cfg;
    int k = w->opt.sites ? w->opt.sites : 2 + (int)draw(w, 4);
    bool equal = w->opt.liars || w->opt.byzantine; /* then every site votes, and one vote each */
    if (w->opt.byzantine && !w->opt.sites) k = 3 * (w->opt.liars ? w->opt.liars : 1) + 1 + (int)draw(w, 2);
    if (w->opt.liars && !w->opt.byzantine && !w->opt.sites) k = 2 * w->opt.liars + 2 + (int)draw(w, 2);
    if (w->opt.secure && !w->opt.sites && k < 3) k += 3;
    w->sites = k;
    c->cells = 1 + (uint32_t)draw(w, CELLS_MAX);
    c->fragments = 1 + (uint32_t)draw(w, c->cells < 2 ? c->cells : 2);
    c->nominal = 6;
    c->staleness = 1;
    c->pipeline = 1 + (uint32_t)draw(w, 4);
    c->drift_pause = draw(w, 3) != 0;
    c->drift_steps = 8 * c->nominal;
    float eta = 0.7f, mu = 0.9f;
    memcpy(&c->eta, &eta, 4);
    memcpy(&c->mu, &mu, 4);
    c->cell_bytes = 8 * WIDTH;
    c->promote = draw(w, 2);
    c->ping_ms = 400, c->elect_ms = 1500, c->contact_ms = 2500, c->round_ms = 1200, c->grace_ms = 2500;
    c->fetch_ms = 600, c->greet_ms = 1500, c->idle_ms = 6000;
    if (!draw(w, 3)) c->token_target = 100 + draw(w, 1500);
    c->quorum = w->opt.byzantine ? NEB_QUORUM_BYZANTINE : NEB_QUORUM_MAJORITY;
    c->end_drop = neb__mix64(w->opt.seed) % 3 == 0; /* no draw: the other seeds keep their history */
    c->secure = w->opt.secure;
    if (c->secure) c->end_drop = true;
    w->noticed = c->secure && neb__mix64(w->opt.seed ^ 0x1023) % 2; /* the others: nobody tells them */
    struct neb_members r = {.heavy = NEB_NO_SITE};
    for (int i = 0; i < k; i++) {
        r.members |= neb__bit((unsigned)i);
        r.trains |= neb__bit((unsigned)i);
        if (i < NEB_ROUND_VOTERS_MAX && (i < 3 || equal || draw(w, 4))) r.voters |= neb__bit((unsigned)i);
    }
    if (k == 3 && !draw(w, 4) && !c->secure) r.trains &= ~neb__bit(2); /* a witness */
    if (k == 2 && !equal && !draw(w, 3)) r.heavy = 0;                  /* a survivor */
    if (w->opt.observer && k < SITES) {
        w->observers = neb__bit((unsigned)k);
        r.members |= w->observers;
        w->sites = k + 1;
        if (w->opt.liars) w->liars = w->observers;
    }
    for (int i = 0; i < w->opt.liars && !(w->liars & w->observers);) {
        uint64_t bit =
            neb__bit((unsigned)draw(w, (uint64_t)(k < NEB_ROUND_VOTERS_MAX ? k : NEB_ROUND_VOTERS_MAX)));
        i += !(w->liars & bit);
        w->liars |= bit;
    }
    w->private = !draw(w, 6) && !c->secure;
    c->root_every = 1 + (uint32_t)draw(w, 8);
    c->cls = draw(w, 4) ? NEB_DENSE : NEB_SPARSE;
    c->roster = w->roster = w->known[w->rosters++] = r;
    (void)neb__hash(&w->opt.seed, sizeof w->opt.seed, &c->genesis);
    for (uint32_t i = 0; i < c->cells * WIDTH; i++)
        w->theta0[i] = (float)((int)draw(w, 2001) - 1000) / 512.0f;
}

static bool build(struct neb_sim_world *w)
{
    configure(w);
    if (w->liars) TRACE(w, "sites %llx lie", (unsigned long long)w->liars);
    if (neb__outer_create(WIDTH, w->theta0, w->cfg.cells * WIDTH, &w->reference) != NEB_OK) return false;
    w->leaf = neb__calloc((size_t)CELLS_MAX * 2, sizeof *w->leaf);
    if (!w->leaf) return false;
    for (uint32_t c = 0; c < w->cfg.cells; c++)
        if (neb__outer_leaf(w->reference, c, &w->leaf[c]) != NEB_OK) return false;
    for (int i = 0; i < SITES; i++) w->node[i].id = i;
    for (int i = 0; i < w->sites; i++) neb__node_create(w, &w->node[i]);
    if (w->opt.lasting_cuts) neb__cuts_plan(w);
    for (int i = 0; i < w->sites; i++) neb__sim_later(w, (int64_t)draw(w, 500), EV_START, i);
    neb__faults_plan(w);
    return w->failed == NEB_OK;
}

static void one_event(struct neb_sim_world *w, struct neb_sim_event *e)
{
    w->now = e->at;
    w->out->events++;
    if (w->lines_changed) neb__cuts_look(w);
    if (e->kind == EV_FAULT) {
        neb__faults_strike(w);
        for (int i = 0; i < w->sites; i++) neb__oracle_check(w, &w->node[i]);
        return;
    }
    struct neb_sim_node *n = &w->node[e->node];
    bool own = e->kind >= EV_TICK && e->kind != EV_START &&
               e->kind != EV_LINE; /* belongs to one life of the machine */
    if (w->disaster && e->kind < EV_TICK && w->node[e->from].stopped) return; /* it burnt with its sender */
    if (e->kind == EV_START)
        neb__node_start(w, n);
    else if (n->alive && (!own || e->life == n->life))
        neb__node_event(w, n, e);
    else
        return;
    neb__oracle_check(w, n);
}

static void tear_down(struct neb_sim_world *w)
{
    while (w->events) release(w, pop(w));
    while (w->spare) {
        struct neb_sim_event *e = w->spare;
        w->spare = e->next;
        neb__free(e);
    }
    for (int i = 0; i < SITES; i++) {
        neb__node_free(&w->node[i]);
        neb__simdisk_free(&w->node[i].disk);
        neb__simdisk_free(&w->node[i].image);
        neb__free(w->node[i].saved);
    }
    neb__outer_destroy(w->reference);
    neb__buf_free(&w->tape);
    neb__free(w->heap);
    neb__free(w->record);
    neb__free(w->leaf);
    neb__free(w->nonfinite);
    neb__free(w->fact);
    neb__free(w->secret);
    neb__free(w->attempt);
    neb__free(w);
}

neb_status neb__sim_fault(const struct neb_sim_fault *options, struct neb_sim_result *out)
{
    struct neb_sim_world *w = NEB_NEW(struct neb_sim_world);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "out of memory for a simulated world");
    memset(out, 0, sizeof *out);
    w->opt = *options;
    neb__buf_init(&w->tape, NEB_RELAY_MAX);
    w->out = out;
    w->rng.state = neb__mix64(options->seed);
    w->disk_rng.state = neb__mix64(options->seed ^ 0xd15c);
    if (!build(w) && w->failed == NEB_OK) w->failed = NEB_ERR_NOMEM;
    while (w->failed == NEB_OK && w->events) {
        struct neb_sim_event *e = pop(w);
        while (e->at > w->end && neb__oracle_waits(w)) continue;
        if (e->at > w->end) {
            release(w, e);
            break;
        }
        one_event(w, e);
        release(w, e);
    }
    neb__oracle_end(w);
    out->virtual_ms = w->now;
    neb_status status = w->failed;
    tear_down(w);
    return status;
}
