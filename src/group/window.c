/* window.c: operations of ranks on one machine, through memory that they share.
 *
 *     board      a line for each rank: its number, its beat, the number of barriers it has reached, its process
 *     in         two pieces for each rank, written by it, read by the others
 *     result     two pieces, written by all
 *     rings      one for each ordered pair of ranks, for sending
 *
 * An operation takes a long array piece by piece. The two pieces are used in turn: a rank that has passed the
 * next barrier knows that all others are done with the piece before, so one barrier a piece is enough for
 * copying, and two for a reduction. Sums are taken in the order of the ranks. */
#include "group/group_internal.h"
#include "base/mem.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, RING = 256 << 10, SMALL = 4096, LINE = 64, SPINS = 2000 };

struct line {
    _Alignas(LINE) _Atomic uint64_t beat;
    _Atomic uint64_t arrived;
    _Atomic int64_t pid;
    _Atomic int rank; /* among all ranks of the site, for messages */
    _Atomic int busy; /* how many things are under way that may take any time */
    _Atomic int failed;
    _Atomic uint64_t exchanges; /* that its device has begun */
};

struct ring {
    _Alignas(LINE) _Atomic uint64_t written; /* bytes, over all messages */
    _Alignas(LINE) _Atomic uint64_t read;
    _Alignas(LINE) uint8_t bytes[RING];
};

struct board {
    _Alignas(LINE) _Atomic int64_t stuck; /* 1 + the rank for which somebody waited in vain; 0: none */
    struct line line[];
};

struct neb_window {
    struct board *board;
    uint8_t *in, *result;
    struct ring *rings;
    uint64_t barriers;
    unsigned turn; /* which of the two pieces comes next */
};

static size_t board_bytes(int size)
{
    size_t n = sizeof(struct board) + (size_t)size * sizeof(struct line);
    return (n + 4095) / 4096 * 4096;
}

size_t neb__window_bytes(int size)
{
    size_t ranks = (size_t)size;
    return board_bytes(size) + ranks * 2 * PIECE + 2 * PIECE + ranks * ranks * sizeof(struct ring);
}

neb_status neb__window_open(struct neb_group *g, void *memory)
{
    struct neb_window *w = NEB_NEW(struct neb_window);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "out of memory for a group of ranks");
    uint8_t *p = memory;
    w->board = memory;
    w->in = p + board_bytes(g->size);
    w->result = w->in + (size_t)g->size * 2 * PIECE;
    w->rings = (struct ring *)(w->result + 2 * PIECE);
    atomic_store(&w->board->line[g->rank].rank, neb__group_site(g)->rank);
    atomic_store(&w->board->line[g->rank].pid, (int64_t)getpid());
    g->window = w;
    return NEB_OK;
}

void neb__window_close(struct neb_window *w)
{
    neb__free(w);
}

/* ---- waiting --------------------------------------------------------------------------------------------- */

void neb__window_beat(struct neb_group *g)
{
    atomic_fetch_add_explicit(&g->window->board->line[g->rank].beat, 1, memory_order_relaxed);
}

void neb__window_busy(struct neb_group *g, bool busy)
{
    atomic_fetch_add(&g->window->board->line[g->rank].busy, busy ? 1 : -1);
}

void neb__window_give_up(struct neb_group *g)
{
    int64_t none = 0;
    atomic_store(&g->window->board->line[g->rank].failed, 1);
    atomic_compare_exchange_strong(&g->window->board->stuck, &none, g->rank + 1);
}

/* A wait for one rank: how often it was looked at, and when it last made progress. */
struct patience {
    int rank;
    int64_t looks, since;
    uint64_t seen;
};

neb_status neb__window_lost(struct neb_group *g, int rank, const char *how)
{
    int64_t none = 0;
    atomic_compare_exchange_strong(&g->window->board->stuck, &none, rank + 1);
    snprintf(g->why, sizeof g->why, "rank %d of %d %s", atomic_load(&g->window->board->line[rank].rank),
             neb__group_site(g)->size, how);
    neb__group_break(g);
    return neb__fail(NEB_ERR_PEER, "%s", g->why);
}

static bool alive(const struct line *l)
{
    int64_t pid = atomic_load(&l->pid);
    return !pid || !kill((pid_t)pid, 0) || errno != ESRCH;
}

struct neb_rank_facts neb__window_facts(const struct neb_group *g, int rank)
{
    const struct line *l = &g->window->board->line[rank];
    return (struct neb_rank_facts){.beat = atomic_load_explicit(&l->beat, memory_order_relaxed),
                                   .exchanges = atomic_load(&l->exchanges),
                                   .busy = atomic_load(&l->busy) != 0,
                                   .alive = alive(l)};
}

void neb__window_publish(struct neb_group *g, uint64_t exchanges)
{
    atomic_store(&g->window->board->line[g->rank].exchanges, exchanges);
}

int neb__window_given_up(const struct neb_group *g)
{
    return (int)atomic_load(&g->window->board->stuck) - 1;
}

static neb_status look(struct neb_group *g, struct patience *p)
{
    struct line *l = &g->window->board->line[p->rank];
    int64_t stuck = atomic_load(&g->window->board->stuck);
    uint64_t now = atomic_load_explicit(&l->beat, memory_order_relaxed);
    neb__group_beat(g);
    if (stuck && atomic_load(&g->window->board->line[stuck - 1].failed))
        return neb__window_lost(g, (int)stuck - 1, "has failed; its log says more");
    if (stuck) return neb__window_lost(g, (int)stuck - 1, "does not answer; another rank has given it up");
    if (!alive(l)) return neb__window_lost(g, p->rank, "has ended");
    if (now != p->seen || !p->since || atomic_load(&l->busy)) {
        p->seen = now;
        p->since = neb__group_clock();
    } else if (neb__group_since(p->since) > g->timeout_s) {
        char how[80];
        snprintf(how, sizeof how, "has made no progress for %.0f s: it is stuck or gone", g->timeout_s);
        return neb__window_lost(g, p->rank, how);
    }
    return NEB_OK;
}

/* Spins for some microseconds, then lets others run, then sleeps. */
static neb_status patient(struct neb_group *g, struct patience *p)
{
    if (++p->looks < SPINS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return NEB_OK;
    }
    if (p->looks % 64 == 0) NEB_TRY(look(g, p));
    if (p->looks < 4 * SPINS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return NEB_OK;
}

neb_status neb__window_barrier(struct neb_group *g)
{
    struct neb_window *w = g->window;
    uint64_t target = ++w->barriers;
    atomic_store_explicit(&w->board->line[g->rank].arrived, target, memory_order_release);
    neb__window_beat(g);
    for (int r = 0; r < g->size; r++) {
        struct patience p = {.rank = r};
        while (atomic_load_explicit(&w->board->line[r].arrived, memory_order_acquire) < target)
            NEB_TRY(patient(g, &p));
    }
    return NEB_OK;
}

neb_status neb__window_await(struct neb_group *g, int rank, const _Atomic uint64_t *count, uint64_t least)
{
    struct patience p = {.rank = rank};
    neb__group_beat(g);
    while (atomic_load_explicit(count, memory_order_acquire) < least) NEB_TRY(patient(g, &p));
    return NEB_OK;
}

/* ---- reductions ------------------------------------------------------------------------------------------ */

static uint8_t *in_piece(const struct neb_group *g, int rank, unsigned turn)
{
    return g->window->in + ((size_t)rank * 2 + turn) * PIECE;
}

static size_t width(neb_group_type type)
{
    return type == NEB_GROUP_F32 ? 4 : 8;
}

/* to[i] = the ranks' values at `turn`, combined in rank order, i in [first, end). */
static void combine(const struct neb_group *g, unsigned turn, neb_group_type type, neb_group_op op,
                    int64_t first, int64_t end, void *to)
{
    size_t bytes = (size_t)(end - first) * width(type), at = (size_t)first * width(type);
    memcpy(to, in_piece(g, 0, turn) + at, bytes);
    for (int r = 1; r < g->size; r++) {
        const void *from = in_piece(g, r, turn) + at;
        int64_t n = end - first;
        if (type == NEB_GROUP_F32) {
            float *restrict a = to;
            const float *restrict b = from;
            for (int64_t i = 0; i < n; i++) a[i] += b[i];
        } else if (type == NEB_GROUP_F64) {
            double *restrict a = to;
            const double *restrict b = from;
            for (int64_t i = 0; i < n; i++) a[i] += b[i];
        } else {
            int64_t *restrict a = to;
            const int64_t *restrict b = from;
            for (int64_t i = 0; i < n; i++) {
                if (op == NEB_GROUP_SUM)
                    a[i] += b[i];
                else if (b[i] > a[i])
                    a[i] = b[i];
            }
        }
    }
}

/* A piece that is not worth sharing out: every rank combines all of it, and one barrier is enough. */
static neb_status reduce_small(struct neb_group *g, void *values, int64_t n, neb_group_type type,
                               neb_group_op op)
{
    unsigned turn = g->window->turn ^= 1;
    memcpy(in_piece(g, g->rank, turn), values, (size_t)n * width(type));
    NEB_TRY(neb__window_barrier(g));
    combine(g, turn, type, op, 0, n, values);
    return NEB_OK;
}

static neb_status reduce_piece(struct neb_group *g, void *values, int64_t n, neb_group_type type,
                               neb_group_op op)
{
    size_t w = width(type);
    unsigned turn = g->window->turn ^= 1;
    uint8_t *result = g->window->result + (size_t)turn * PIECE;
    int64_t first = n * g->rank / g->size, end = n * (g->rank + 1) / g->size;
    memcpy(in_piece(g, g->rank, turn), values, (size_t)n * w);
    NEB_TRY(neb__window_barrier(g));
    combine(g, turn, type, op, first, end, result + (size_t)first * w);
    NEB_TRY(neb__window_barrier(g));
    memcpy(values, result, (size_t)n * w);
    return NEB_OK;
}

neb_status neb__window_reduce(struct neb_group *g, void *values, int64_t n, neb_group_type type,
                              neb_group_op op)
{
    const int64_t most = (int64_t)(PIECE / width(type));
    if ((size_t)n * width(type) <= SMALL) return reduce_small(g, values, n, type, op);
    for (int64_t at = 0; at < n; at += most) {
        int64_t m = n - at < most ? n - at : most;
        NEB_TRY(reduce_piece(g, (uint8_t *)values + (size_t)at * width(type), m, type, op));
    }
    return NEB_OK;
}

/* The in piece of each rank is shared out among the owners: rank q sums the part that all wrote for it. */
neb_status neb__window_sum_scatter(struct neb_group *g, float *values, const int64_t *edge)
{
    const int64_t most = (int64_t)(PIECE / sizeof(float)) / g->size;
    int64_t longest = 0;
    for (int q = 0; q < g->size; q++)
        if (edge[q + 1] - edge[q] > longest) longest = edge[q + 1] - edge[q];
    for (int64_t at = 0; at < longest; at += most) {
        unsigned turn = g->window->turn ^= 1;
        float *own = (float *)in_piece(g, g->rank, turn);
        for (int q = 0; q < g->size; q++) {
            int64_t left = edge[q + 1] - edge[q] - at, n = left < most ? left : most;
            if (n > 0) memcpy(own + q * most, values + edge[q] + at, (size_t)n * sizeof *own);
        }
        NEB_TRY(neb__window_barrier(g));
        int64_t left = edge[g->rank + 1] - edge[g->rank] - at, n = left < most ? left : most;
        if (n > 0)
            combine(g, turn, NEB_GROUP_F32, NEB_GROUP_SUM, g->rank * most, g->rank * most + n,
                    values + edge[g->rank] + at);
    }
    return NEB_OK;
}

/* ---- copies ---------------------------------------------------------------------------------------------- */

neb_status neb__window_gather(struct neb_group *g, void *bytes, const int64_t *edge)
{
    uint8_t *to = bytes;
    int64_t longest = 0;
    for (int q = 0; q < g->size; q++)
        if (edge[q + 1] - edge[q] > longest) longest = edge[q + 1] - edge[q];
    for (int64_t at = 0; at < longest; at += PIECE) {
        unsigned turn = g->window->turn ^= 1;
        int64_t left = edge[g->rank + 1] - edge[g->rank] - at, n = left < PIECE ? left : PIECE;
        if (n > 0) memcpy(in_piece(g, g->rank, turn), to + edge[g->rank] + at, (size_t)n);
        NEB_TRY(neb__window_barrier(g));
        for (int q = 0; q < g->size; q++) {
            left = edge[q + 1] - edge[q] - at, n = left < PIECE ? left : PIECE;
            if (q != g->rank && n > 0) memcpy(to + edge[q] + at, in_piece(g, q, turn), (size_t)n);
        }
    }
    return NEB_OK;
}

neb_status neb__window_broadcast(struct neb_group *g, void *bytes, size_t n, int root)
{
    uint8_t *p = bytes;
    for (size_t at = 0; at < n; at += PIECE) {
        unsigned turn = g->window->turn ^= 1;
        size_t m = n - at < PIECE ? n - at : PIECE;
        if (g->rank == root) memcpy(in_piece(g, root, turn), p + at, m);
        NEB_TRY(neb__window_barrier(g));
        if (g->rank != root) memcpy(p + at, in_piece(g, root, turn), m);
    }
    return NEB_OK;
}

/* ---- from one rank to another ---------------------------------------------------------------------------- */

static struct ring *ring_of(const struct neb_group *g, int from, int to)
{
    return &g->window->rings[(size_t)from * (size_t)g->size + (size_t)to];
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

neb_status neb__window_send(struct neb_group *g, const void *bytes, size_t n, int to)
{
    struct ring *r = ring_of(g, g->rank, to);
    const uint8_t *p = bytes;
    struct patience wait = {.rank = to};
    while (n) {
        uint64_t at = atomic_load_explicit(&r->written, memory_order_relaxed);
        size_t room = RING - (size_t)(at - atomic_load_explicit(&r->read, memory_order_acquire));
        size_t m = least(least(n, room), RING - (size_t)(at % RING));
        if (!m) {
            NEB_TRY(patient(g, &wait));
            continue;
        }
        memcpy(r->bytes + at % RING, p, m);
        atomic_store_explicit(&r->written, at + m, memory_order_release);
        p += m, n -= m;
        wait = (struct patience){.rank = to};
    }
    return NEB_OK;
}

neb_status neb__window_receive(struct neb_group *g, void *bytes, size_t n, int from)
{
    struct ring *r = ring_of(g, from, g->rank);
    uint8_t *p = bytes;
    struct patience wait = {.rank = from};
    while (n) {
        uint64_t at = atomic_load_explicit(&r->read, memory_order_relaxed);
        size_t there = (size_t)(atomic_load_explicit(&r->written, memory_order_acquire) - at);
        size_t m = least(least(n, there), RING - (size_t)(at % RING));
        if (!m) {
            NEB_TRY(patient(g, &wait));
            continue;
        }
        memcpy(p, r->bytes + at % RING, m);
        atomic_store_explicit(&r->read, at + m, memory_order_release);
        p += m, n -= m;
        wait = (struct patience){.rank = from};
    }
    return NEB_OK;
}
