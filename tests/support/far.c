/* far.c: see far.h. The engine's exchanges lie in memory that the children share, one behind the other: all ranks make the same ones in
 * the same order, so each finds the place by itself, and none is used twice. */
#include "far.h"
#include "base/mem.h"
#include "check.h"
#include "forked.h"
#include "group/group_internal.h"
#include "ticks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 8, PARTS = 8 };
static const size_t part_bytes = (size_t)4 << 30; /* of an address space; hardly any of it is used */
static const size_t pair_bytes = (size_t)16 << 20;

static struct common {
    _Atomic int hangs[RANKS];
} * common;

static char *memory;
static int rank, ranks, parts, sums, gathers, most_gathers;
void (*far_on_sum)(void);

/* Of a group: where its next exchange, and its next message from and to each rank, will be. */
struct part {
    char *exchange, *sent[RANKS], *received[RANKS];
};

struct head {
    _Atomic int there[RANKS];
};

enum kind { SUM, GATHER, BROADCAST, SEND, RECEIVE };

struct request {
    enum kind kind;
    struct head *head;
    char *values, *area; /* area: (ranks, bytes), or the message */
    size_t bytes;
    neb_group_type type;
    neb_group_op op;
    int peer;
    int64_t edge[RANKS + 1];
};

/* ---- groups -------------------------------------------------------------------------------------------------- */

static struct part *new_part(void)
{
    struct part *p = NEB_NEW(struct part);
    if (!p || parts == PARTS) _exit(99);
    char *at = memory + (size_t)parts++ * part_bytes;
    for (int r = 0; r < ranks; r++) {
        p->sent[r] = at + (size_t)(rank * ranks + r) * pair_bytes;
        p->received[r] = at + (size_t)(r * ranks + rank) * pair_bytes;
    }
    p->exchange = at + (size_t)(ranks * ranks) * pair_bytes;
    return p;
}

static neb_status far_open(const struct neb_group_host *host, void **ctx, struct neb_group_place *out)
{
    (void)host;
    *ctx = new_part();
    *out = (struct neb_group_place){rank, ranks};
    return NEB_OK;
}

static neb_status far_split(void *ctx, int color, void **out, struct neb_group_place *place)
{
    (void)ctx, (void)color;
    return far_open(NULL, out, place);
}

static neb_status far_share(void *ctx, size_t bytes, void **out)
{
    (void)ctx, (void)bytes;
    *out = NULL;
    return NEB_OK;
}

static void far_close(void *ctx)
{
    neb__free(ctx);
}

static void far_abort(void *ctx, int code)
{
    (void)ctx;
    _exit(code);
}

/* ---- exchanges ----------------------------------------------------------------------------------------------- */

static size_t whole_lines(size_t n)
{
    return (n + 63) / 64 * 64;
}

static struct request *begin(enum kind kind, char **place, void *values, size_t bytes, int copies, void **out)
{
    struct request *r = NEB_NEW(struct request);
    if (!r) _exit(99);
    *r = (struct request){
        .kind = kind, .head = (struct head *)(void *)*place, .values = values, .bytes = bytes};
    r->area = *place + whole_lines(sizeof(struct head));
    *place = r->area + whole_lines(bytes * (size_t)copies);
    *out = r;
    return r;
}

static void put(struct request *r, size_t at, size_t n)
{
    if (r->kind == SUM)
        memcpy(r->area + (size_t)rank * r->bytes, r->values, n);
    else if (n)
        memcpy(r->area + at, r->values + at, n);
    atomic_store(&r->head->there[rank], 1);
}

static neb_status far_reduce(void *ctx, void *values, int64_t n, neb_group_type type, neb_group_op op,
                             void **out)
{
    struct part *p = ctx;
    struct request *r =
        begin(SUM, &p->exchange, values, (size_t)n * (type == NEB_GROUP_F32 ? 4 : 8), ranks, out);
    r->type = type;
    r->op = op;
    put(r, 0, r->bytes);
    /* the engine may use this memory as it likes until the end */
    memset(values, 0xff, r->bytes);
    if (type != NEB_GROUP_F32) return NEB_OK;
    sums++;
    if (far_on_sum) far_on_sum();
    return NEB_OK;
}

static neb_status far_gather(void *ctx, void *bytes, const int64_t *edge, void **out)
{
    struct part *p = ctx;
    struct request *r = begin(GATHER, &p->exchange, bytes, (size_t)edge[ranks], 1, out);
    memcpy(r->edge, edge, (size_t)(ranks + 1) * sizeof *edge);
    put(r, (size_t)edge[rank], (size_t)(edge[rank + 1] - edge[rank]));
    /* the engine may write the others' parts at any time until the end */
    for (int q = 0; q < ranks; q++)
        if (q != rank) memset(r->values + edge[q], 0xff, (size_t)(edge[q + 1] - edge[q]));
    if (++gathers > most_gathers) most_gathers = gathers;
    return NEB_OK;
}

static neb_status far_broadcast(void *ctx, void *bytes, int64_t n, int root, void **out)
{
    struct part *p = ctx;
    struct request *r = begin(BROADCAST, &p->exchange, bytes, (size_t)n, 1, out);
    r->peer = root;
    if (rank == root) put(r, 0, (size_t)n);
    return NEB_OK;
}

static neb_status far_send(void *ctx, const void *bytes, int64_t n, int to, void **out)
{
    struct part *p = ctx;
    struct request *r = begin(SEND, &p->sent[to], (void *)(uintptr_t)bytes, (size_t)n, 1, out);
    r->peer = rank;
    put(r, 0, (size_t)n);
    return NEB_OK;
}

static neb_status far_receive(void *ctx, void *bytes, int64_t n, int from, void **out)
{
    struct part *p = ctx;
    begin(RECEIVE, &p->received[from], bytes, (size_t)n, 1, out)->peer = from;
    return NEB_OK;
}

static bool all_there(const struct request *r)
{
    if (r->kind > GATHER) return atomic_load(&r->head->there[r->peer]);
    for (int q = 0; q < ranks; q++)
        if (!atomic_load(&r->head->there[q])) return false;
    return true;
}

static void combine(const struct request *r)
{
    memcpy(r->values, r->area, r->bytes);
    for (int q = 1; q < ranks; q++) {
        const void *from = r->area + (size_t)q * r->bytes;
        void *to = r->values;
        const size_t n = r->bytes / (r->type == NEB_GROUP_F32 ? 4 : 8);
        for (size_t i = 0; i < n; i++) {
            if (r->type == NEB_GROUP_F32)
                ((float *)to)[i] += ((const float *)from)[i];
            else if (r->type == NEB_GROUP_F64)
                ((double *)to)[i] += ((const double *)from)[i];
            else if (r->op == NEB_GROUP_SUM)
                ((int64_t *)to)[i] += ((const int64_t *)from)[i];
            else if (((const int64_t *)from)[i] > ((int64_t *)to)[i])
                ((int64_t *)to)[i] = ((const int64_t *)from)[i];
        }
    }
}

static neb_status far_test(void *ctx, void *request, int *done)
{
    struct request *r = request;
    (void)ctx;
    *done = all_there(r);
    if (!*done) return NEB_OK;
    if (r->kind == SUM) combine(r);
    if (r->kind == RECEIVE || (r->kind == BROADCAST && r->peer != rank)) memcpy(r->values, r->area, r->bytes);
    for (int q = 0; r->kind == GATHER && q < ranks; q++)
        memcpy(r->values + r->edge[q], r->area + r->edge[q], (size_t)(r->edge[q + 1] - r->edge[q]));
    gathers -= r->kind == GATHER;
    neb__free(r);
    return NEB_OK;
}

static const struct neb_group_engine engine = {.abi = NEB_GROUP_ABI,
                                               .size = sizeof engine,
                                               .name = "far",
                                               .open = far_open,
                                               .split = far_split,
                                               .share = far_share,
                                               .reduce = far_reduce,
                                               .gather = far_gather,
                                               .broadcast = far_broadcast,
                                               .send = far_send,
                                               .receive = far_receive,
                                               .test = far_test,
                                               .abort = far_abort,
                                               .close = far_close};

/* ---- ranks --------------------------------------------------------------------------------------------------- */

void far_leave(void)
{
    atomic_store(&common->hangs[rank], 1);
    ticks_without(rank);
}

int far_gathers(void)
{
    return most_gathers;
}

int far_sums(void)
{
    return sums;
}

/* Whether those that are still there would never end. */
static bool others_ended(const pid_t *pid)
{
    for (int r = 0; r < ranks; r++)
        if (pid[r] && !atomic_load(&common->hangs[r])) return false;
    return true;
}

unsigned far_ranks(int n, double timeout_s, int (*fn)(struct neb_group *g, void *arg), void *arg)
{
    pid_t pid[RANKS];
    unsigned failed = 0;
    assert_true(n <= RANKS);
    ranks = n;
    common = forked_memory(sizeof *common);
    memory = forked_memory(PARTS * part_bytes);
    ticks_begin(n, 0.02);
    for (rank = 0; rank < n; rank++) {
        pid[rank] = fork();
        assert_true(pid[rank] >= 0);
        if (pid[rank]) continue;
        struct neb_group *g = NULL;
        ticks_follow(rank);
        int bad = neb__group_with(&engine, timeout_s, &g) != NEB_OK || fn(g, arg);
        ticks_without(rank);
        _exit(bad);
    }
    for (int left = n; left; left--) {
        int status, r = 0;
        for (; others_ended(pid) && r < n; r++)
            if (pid[r]) kill(pid[r], SIGKILL);
        pid_t ended = waitpid(-1, &status, 0);
        for (r = 0; r < n && pid[r] != ended;) r++;
        assert_true(r < n);
        pid[r] = 0;
        ticks_without(r);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) failed |= 1u << r;
    }
    ticks_end();
    forked_free(memory, PARTS * part_bytes);
    forked_free(common, sizeof *common);
    return failed;
}
