/* forked.c: see forked.h. The memory of a run is cut into regions: a large one for the group of all, one for each group that is
 * split off. A region begins with a board, by which its ranks agree on who gets which region. */
#include "forked.h"
#include "check.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 32, SPLITS = 16, PARTS = 16, BOARD = 1 << 16 };
static const size_t WHOLE = (size_t)256 << 20, PART = (size_t)16 << 20;

struct board {
    struct {
        _Atomic int color[RANKS], region[RANKS]; /* + 1 */
    } split[SPLITS];
    _Atomic int regions; /* of the group of all: taken so far */
};

_Static_assert(sizeof(struct board) <= BOARD, "the board is larger than its place");

struct forked {
    int rank, ranks, splits;
    char *memory;
    size_t used, size;
};

static struct {
    int rank, ranks;
    char *memory;
} child;

static size_t window(void)
{
    return WHOLE + PARTS * PART;
}

static struct forked *make(int rank, int ranks, char *memory, size_t size)
{
    struct forked *f = malloc(sizeof *f);
    assert_non_null(f);
    *f = (struct forked){.rank = rank, .ranks = ranks, .memory = memory, .used = BOARD, .size = size};
    return f;
}

static neb_status child_open(const struct neb_group_host *host, void **ctx, struct neb_group_place *out)
{
    (void)host;
    *ctx = make(child.rank, child.ranks, child.memory, WHOLE);
    *out = (struct neb_group_place){child.rank, child.ranks};
    return NEB_OK;
}

/* What a rank has written; all of them come. */
static int await(const _Atomic int *v)
{
    while (!atomic_load(v)) sched_yield();
    return atomic_load(v) - 1;
}

static neb_status child_split(void *ctx, int color, void **out, struct neb_group_place *place)
{
    struct forked *f = ctx;
    struct board *b = (struct board *)f->memory, *all = (struct board *)child.memory;
    int first = -1, rank = 0, ranks = 0;
    if (f->splits == SPLITS) return NEB_ERR_LIMIT;
    const int turn = f->splits++;
    atomic_store(&b->split[turn].color[f->rank], color + 1);
    for (int r = 0; r < f->ranks; r++) {
        if (await(&b->split[turn].color[r]) != color) continue;
        if (first < 0) first = r;
        if (r < f->rank) rank++;
        ranks++;
    }
    if (first == f->rank) atomic_store(&b->split[turn].region[first], atomic_fetch_add(&all->regions, 1) + 1);
    const int region = await(&b->split[turn].region[first]);
    if (region >= PARTS) return NEB_ERR_NOMEM;
    *out = make(rank, ranks, child.memory + WHOLE + (size_t)region * PART, PART);
    *place = (struct neb_group_place){rank, ranks};
    return NEB_OK;
}

static neb_status child_share(void *ctx, size_t bytes, void **out)
{
    struct forked *f = ctx;
    bytes = (bytes + 4095) / 4096 * 4096;
    if (bytes > f->size - f->used) return NEB_ERR_NOMEM;
    *out = f->memory + f->used;
    f->used += bytes;
    return NEB_OK;
}

static void child_close(void *ctx)
{
    free(ctx);
}

static const struct neb_group_engine engine = {.abi = NEB_GROUP_ABI,
                                               .size = sizeof engine,
                                               .open = child_open,
                                               .split = child_split,
                                               .share = child_share,
                                               .close = child_close};

void *forked_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

void forked_free(void *p, size_t bytes)
{
    munmap(p, bytes);
}

unsigned forked_ranks(int ranks, double timeout_s, int (*fn)(struct neb_group *g, void *arg), void *arg)
{
    pid_t pid[RANKS];
    unsigned failed = 0;
    assert_true(ranks <= RANKS);
    child.memory = forked_memory(window());
    child.ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r]) continue;
        struct neb_group *g = NULL;
        child.rank = r;
        int bad = neb__group_with(&engine, timeout_s, &g) != NEB_OK || fn(g, arg);
        neb__group_close(g);
        _exit(bad);
    }
    for (int r = 0; r < ranks; r++) {
        int status;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) failed |= 1u << r;
    }
    forked_free(child.memory, window());
    return failed;
}
