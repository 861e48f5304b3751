/* forked.c: see forked.h. */
#include "forked.h"
#include "check.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WINDOW = 512 << 20 };

static struct {
    int rank, ranks;
    void *memory;
} child;

static neb_status child_open(const struct neb_group_host *host, void **ctx, struct neb_group_place *out)
{
    (void)host;
    *ctx = &child;
    *out = (struct neb_group_place){child.rank, child.ranks};
    return NEB_OK;
}

static neb_status child_share(void *ctx, size_t bytes, void **out)
{
    (void)ctx;
    if (bytes > WINDOW) return NEB_ERR_NOMEM;
    *out = child.memory;
    return NEB_OK;
}

static void child_close(void *ctx)
{
    (void)ctx;
}

static const struct neb_group_engine engine = {.abi = NEB_GROUP_ABI,
                                               .size = sizeof engine,
                                               .open = child_open,
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
    pid_t pid[32];
    unsigned failed = 0;
    assert_true(ranks <= 32);
    child.memory = forked_memory(WINDOW);
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
    forked_free(child.memory, WINDOW);
    return failed;
}
