/* test_group.c: the ranks of a site: operations through shared memory, and ranks that die or hang. The ranks
 * are children of this process; their engine has only a place and shared memory, and their patience the clock of ticks.h. far.h has
 * ranks that are as if each were on a machine of its own. */
#include "support/check.h"
#include "support/far.h"
#include "support/forked.h"
#include "support/ticks.h"
#include "base/log.h"
#include "group/channel.h"
#include "group/group_internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, LONG = 3000017 }; /* LONG: several pieces and an odd rest */

static struct {
    int rank;
    uint8_t *memory;
    size_t bytes, used;
} child;

static neb_status child_open(const struct neb_group_host *host, void **ctx, struct neb_group_place *out)
{
    (void)host;
    *ctx = &child;
    *out = (struct neb_group_place){child.rank, RANKS};
    return NEB_OK;
}

static neb_status child_share(void *ctx, size_t bytes, void **out)
{
    (void)ctx;
    assert_true(child.used + bytes <= child.bytes);
    *out = child.memory + child.used;
    child.used += (bytes + 4095) / 4096 * 4096;
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

/* Runs fn at every rank; the children's exit codes come back as bits of ranks that failed. pauses: a rank that
 * would never end; -1: none. */
static unsigned run_ranks(double timeout_s, int pauses, int (*fn)(struct neb_group *g))
{
    pid_t pid[RANKS];
    unsigned failed = 0;
    child.bytes = (size_t)512 << 20;
    child.memory =
        mmap(NULL, child.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(child.memory != MAP_FAILED);
    ticks_begin(RANKS, 0.1);
    for (int r = 0; r < RANKS; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r]) continue;
        struct neb_group *g;
        child.rank = r;
        ticks_follow(r);
        int bad = neb__group_with(&engine, timeout_s, &g) != NEB_OK || fn(g);
        ticks_without(r);
        _exit(bad);
    }
    for (int left = RANKS; left; left--) {
        int status, r = 0;
        pid_t ended = waitpid(-1, &status, 0);
        while (r < RANKS && pid[r] != ended) r++;
        assert_true(r < RANKS);
        if (!WIFEXITED(status) || WEXITSTATUS(status)) failed |= 1u << r;
        if (left == 2 && pauses >= 0) kill(pid[pauses], SIGKILL); /* the others are done */
    }
    ticks_end();
    munmap(child.memory, child.bytes);
    return failed;
}

static unsigned at_all_ranks(double timeout_s, int (*fn)(struct neb_group *g))
{
    return run_ranks(timeout_s, -1, fn);
}

/* ---- operations ------------------------------------------------------------------------------------------ */

static float value(int rank, int64_t i)
{
    return (float)((rank + 1) * 1000) / (float)(i % 977 + 1);
}

static float in_order(int64_t i)
{
    float sum = value(0, i);
    for (int r = 1; r < RANKS; r++) sum += value(r, i);
    return sum;
}

static float *filled(int rank, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++) x[i] = value(rank, i);
    return x;
}

static int sums(struct neb_group *g)
{
    static const int64_t sizes[] = {1, 7, 1024, 1025, LONG};
    for (int k = 0; k < 5; k++) {
        float *x = filled(neb__group_rank(g), sizes[k]);
        if (!x || neb__group_sum(g, x, sizes[k]) != NEB_OK) return 1;
        for (int64_t i = 0; i < sizes[k]; i++)
            if (x[i] != in_order(i)) return 2;
        free(x);
    }
    double d[2] = {neb__group_rank(g) + 0.5, 1};
    int64_t most[2] = {neb__group_rank(g), -neb__group_rank(g)};
    if (neb__group_sum_doubles(g, d, 2) != NEB_OK || d[0] != 4.5 || d[1] != 3) return 3;
    if (neb__group_max(g, most, 2) != NEB_OK || most[0] != RANKS - 1 || most[1] != 0) return 4;
    return 0;
}

/* One rank's range is empty, and the others differ in length. */
static const int64_t edges[RANKS + 1] = {0, 2000001, 2000001, LONG};

static int scattered(struct neb_group *g)
{
    int r = neb__group_rank(g);
    float *x = filled(r, LONG);
    if (!x || neb__group_sum_scatter(g, x, edges) != NEB_OK) return 1;
    for (int64_t i = edges[r]; i < edges[r + 1]; i++)
        if (x[i] != in_order(i)) return 2;
    if (neb__group_gather(g, x, edges) != NEB_OK) return 3;
    for (int64_t i = 0; i < LONG; i++)
        if (x[i] != in_order(i)) return 4;
    free(x);
    return 0;
}

static int told(struct neb_group *g)
{
    float *x = filled(neb__group_rank(g), LONG);
    if (!x || neb__group_broadcast(g, x, LONG * sizeof *x, 1) != NEB_OK) return 1;
    for (int64_t i = 0; i < LONG; i++)
        if (x[i] != value(1, i)) return 2;
    /* round and round, longer than a ring's memory */
    int next = (neb__group_rank(g) + 1) % RANKS, before = (neb__group_rank(g) + RANKS - 1) % RANKS;
    if (neb__group_rank(g) && neb__group_receive(g, x, LONG * sizeof *x, before) != NEB_OK) return 3;
    if (neb__group_send(g, x, LONG * sizeof *x, next) != NEB_OK) return 4;
    if (!neb__group_rank(g) && neb__group_receive(g, x, LONG * sizeof *x, before) != NEB_OK) return 5;
    for (int64_t i = 0; i < LONG; i++)
        if (x[i] != value(1, i)) return 6;
    free(x);
    return 0;
}

static void test_operations(void **state)
{
    (void)state;
    assert_int_equal(at_all_ranks(30, sums), 0);
    assert_int_equal(at_all_ranks(30, scattered), 0);
    assert_int_equal(at_all_ranks(30, told), 0);
}

/* A group of one: nothing changes. */
static void test_alone(void **state)
{
    (void)state;
    struct neb_group *g;
    float x[2] = {1, 2};
    const int64_t edge[2] = {0, 2};
    assert_ok(neb__group_self(&g));
    assert_ok(neb__group_sum(g, x, 2));
    assert_ok(neb__group_sum_scatter(NULL, x, edge));
    assert_ok(neb__group_gather(g, x, edge));
    assert_true(x[0] == 1 && x[1] == 2);
    assert_int_equal(neb__group_agree(g, NEB_ERR_IO), NEB_ERR_IO);
    neb__group_close(g);
}

/* ---- ranks that fail ------------------------------------------------------------------------------------- */

/* Every rank gets the failing one's status; the well ones name it. */
static int disagree(struct neb_group *g)
{
    neb_status own = neb__group_rank(g) == 2 ? NEB_ERR_SHAPE : NEB_OK;
    if (neb__group_agree(g, own) != NEB_ERR_SHAPE) return 1;
    return own == NEB_OK && !strstr(neb_last_error(), "rank 2 of 3");
}

/* The well ranks of `fn` name rank 1 and do not try again. */
static int names_rank_1(struct neb_group *g)
{
    float x = 1;
    if (neb__group_sum(g, &x, 1) != NEB_ERR_PEER || !strstr(neb_last_error(), "rank 1 of 3")) return 1;
    return neb__group_barrier(g) != NEB_ERR_PEER;
}

static int one_dies(struct neb_group *g)
{
    if (neb__group_barrier(g) != NEB_OK) return 1;
    if (neb__group_rank(g) == 1) raise(SIGKILL);
    return names_rank_1(g);
}

static int one_hangs(struct neb_group *g)
{
    const int r = neb__group_rank(g);
    if (neb__group_barrier(g) != NEB_OK) return 1;
    if (r == 1) ticks_without(r);
    while (r == 1) pause();
    return names_rank_1(g);
}

static _Atomic int *hearer; /* its process, in memory that all ranks share */

/* Returns when that rank waits: of its beats two come before it, the others while it does. */
static void until_it_waits(const struct neb_group *g, int rank)
{
    const uint64_t beat = neb__window_facts(g, rank).beat;
    while (neb__window_facts(g, rank).beat < beat + 4) usleep(1000);
}

/* The first rank is busy, so the others wait for it without a limit. One of them is stopped meanwhile. */
static int one_is_stopped_while_it_hears(struct neb_group *g)
{
    const int r = neb__group_rank(g);
    char x = 0;
    if (neb__group_barrier(g) != NEB_OK) return 1;
    if (r) neb__group_unhurried(g, true);
    if (r == 1) *hearer = getpid();
    if (!r) {
        neb__group_busy(g, true);
        while (!*hearer) usleep(1000);
        until_it_waits(g, 1);
        ticks_without(1);
        kill(*hearer, SIGSTOP);
        neb__group_busy(g, false);
    }
    if (neb__group_broadcast(g, &x, 1, 0) != NEB_OK) return 2; /* it had come to hear it */
    if (r) neb__group_unhurried(g, false);
    return names_rank_1(g);
}

enum { PATIENCE = 1, FAR_PATIENCE = 5 }; /* s */

/* Sleeps a little, since a rank that spins keeps the others from their turn. */
static void work_a_moment(struct neb_group *g)
{
    usleep(20);
    neb__group_beat(g);
}

/* Slow, but not stuck: it shows its beat. */
static int one_is_slow(struct neb_group *g)
{
    const int64_t since = neb__group_clock();
    while (neb__group_rank(g) == 1 && neb__group_since(since) < 2 * PATIENCE) work_a_moment(g);
    return neb__group_barrier(g) != NEB_OK;
}

static void test_failures(void **state)
{
    (void)state;
    check_log_quiet();
    assert_int_equal(at_all_ranks(30, disagree), 0);
    assert_int_equal(at_all_ranks(30, one_dies), 1u << 1);
    assert_int_equal(run_ranks(1, 1, one_hangs), 1u << 1);
    assert_int_equal(at_all_ranks(PATIENCE, one_is_slow), 0);
    hearer = forked_memory(sizeof *hearer);
    assert_int_equal(run_ranks(1, 1, one_is_stopped_while_it_hears), 1u << 1);
    forked_free(hearer, sizeof *hearer);
    check_log_restore();
}

/* Rank 0 waits for rank 1, which hangs; rank 2 waits for rank 0. Both name rank 1, and only that one. */
static int far_one_hangs(struct neb_group *g, void *arg)
{
    char x = 1;
    const int r = neb__group_rank(g);
    (void)arg;
    if (r == 1) far_leave();
    while (r == 1) pause();
    if (neb__group_receive(g, &x, 1, r ? 0 : 1) != NEB_ERR_PEER) return 1;
    return !strstr(neb_last_error(), "rank 1 of 3 stuck or gone") ||
           !strstr(neb__group_why(g), "rank 1 of 3");
}

/* A rank that works and shows its beat answers, so nobody is named. */
static int far_one_works(struct neb_group *g, void *over)
{
    char x = 1;
    _Atomic int *ended = over;
    if (neb__group_rank(g) == 1) {
        while (*ended < 2) work_a_moment(g);
        return 0;
    }
    neb_status status = neb__group_receive(g, &x, 1, 1);
    ++*ended;
    return status != NEB_ERR_PEER || !strstr(neb_last_error(), "every rank answers");
}

static void stuck_ranks_on_other_machines_are_named(void **state)
{
    (void)state;
    _Atomic int *ended = forked_memory(sizeof *ended);
    check_log_quiet();
    assert_int_equal(far_ranks(3, FAR_PATIENCE, far_one_hangs, NULL), 1u << 1);
    assert_int_equal(far_ranks(3, FAR_PATIENCE, far_one_works, ended), 0);
    check_log_restore();
    forked_free(ended, sizeof *ended);
}

/* ---- channels --------------------------------------------------------------------------------------------- */

enum { MESSAGES = 40, WORDS = 100000 };
static const struct neb_channel_size sizes[RANKS - 1] = {{WORDS * sizeof(int), 3}, {WORDS * sizeof(int), 2}};

static void write_message(struct neb_channel *c, int place, int what)
{
    int *words = neb__channel_place(c, place);
    for (int i = 0; i < WORDS; i++) words[i] = what + i;
}

static bool reads(const struct neb_channel *c, int place, int what)
{
    const int *words = neb__channel_place(c, place);
    for (int i = 0; i < WORDS; i++)
        if (words[i] != what + i) return false;
    return true;
}

/* Every message goes ahead through all ranks and back; a rank keeps two of them until they come back. */
static int there_and_back(struct neb_group *g)
{
    struct neb_channels c;
    if (neb__channels_open(g, sizes, &c) != NEB_OK) return 1;
    int first = !neb__group_rank(g), last = neb__group_rank(g) == RANKS - 1, lead = last ? 0 : 1;
    for (int i = 0; i < MESSAGES + lead; i++) {
        if (i < MESSAGES) {
            if (!first && neb__channel_await(c.ahead_in) != NEB_OK) return 2;
            if (!first && !reads(c.ahead_in, i % neb__channel_places(c.ahead_in), 1000 * i)) return 3;
            if (!last && neb__channel_reserve(c.ahead_out) != NEB_OK) return 4;
            if (!last) write_message(c.ahead_out, i % neb__channel_places(c.ahead_out), 1000 * i);
            if (!last && neb__channel_post(c.ahead_out) != NEB_OK) return 5;
        }
        int k = i - lead;
        if (k < 0) continue;
        if (!last && neb__channel_await(c.back_in) != NEB_OK) return 6;
        if (!last && !reads(c.back_in, k % neb__channel_places(c.back_in), -k)) return 7;
        if (!first && !reads(c.ahead_in, k % neb__channel_places(c.ahead_in), 1000 * k)) return 8;
        if (!first && neb__channel_reserve(c.back_out) != NEB_OK) return 9;
        if (!first) write_message(c.back_out, k % neb__channel_places(c.back_out), -k);
        if (!first && neb__channel_post(c.back_out) != NEB_OK) return 10;
        if (!last) neb__channel_release(c.back_in);
        if (!first) neb__channel_release(c.ahead_in);
    }
    neb__channels_close(&c);
    return 0;
}

static void messages_go_along_a_line(void **state)
{
    (void)state;
    assert_int_equal(at_all_ranks(30, there_and_back), 0);
}

/* The middle rank fails; its neighbours are told, whether they wait for a message or for a place. */
static int one_gives_up(struct neb_group *g)
{
    struct neb_channels c;
    neb_status status = NEB_OK;
    if (neb__channels_open(g, sizes, &c) != NEB_OK) return 1;
    check_log_quiet();
    if (neb__group_rank(g) == 1) {
        neb__channels_fail(&c);
    } else if (neb__group_rank(g) == 0) {
        for (int i = 0; i < 4 && status == NEB_OK; i++) {
            status = neb__channel_reserve(c.ahead_out);
            if (status == NEB_OK) status = neb__channel_post(c.ahead_out);
        }
    } else {
        status = neb__channel_await(c.ahead_in);
    }
    neb__channels_close(&c);
    return neb__group_rank(g) != 1 && status != NEB_ERR_PEER;
}

static void neighbours_hear_of_a_failure(void **state)
{
    (void)state;
    assert_int_equal(at_all_ranks(30, one_gives_up), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(stuck_ranks_on_other_machines_are_named),
        cmocka_unit_test(messages_go_along_a_line),
        cmocka_unit_test(neighbours_hear_of_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
