/* test_gate.c: the channel between gateway and first rank, and the journal that ranks repeat. */
#define _GNU_SOURCE /* memfd_create */
#include "check.h"
#include "train/gate_channel.h"
#include "train/gate_journal.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the channel ------------------------------------------------------------------------------------------- */

/* A process that reached the socket, without the secret. */
static void knock(const struct neb_gate_channel *c)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    unsigned char wrong[NEB_GATE_SECRET];
    memcpy(wrong, c->secret, sizeof wrong);
    wrong[31] ^= 1;
    snprintf(a.sun_path, sizeof a.sun_path, "%.80s/socket", c->dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(0, connect(fd, (struct sockaddr *)&a, sizeof a));
    assert_int_equal(sizeof wrong, write(fd, wrong, sizeof wrong));
    bool there = true;
    struct pollfd p = {.fd = c->listener, .events = POLLIN};
    assert_int_equal(1, poll(&p, 1, 10000));
    assert_int_equal(NEB_OK, neb__gate_channel_accept((struct neb_gate_channel *)(uintptr_t)c, &there));
    assert_false(there);
    assert_int_equal(0, read(fd, wrong, 1)); /* it was shown the door */
    close(fd);
}

static void rank_end(void)
{
    struct neb_gate_channel c;
    char text[6] = "";
    int got;
    if (neb__gate_channel_connect(&c) != NEB_OK) _exit(1);
    if (neb__gate_channel_receive(&c, text, sizeof text, &got, NULL, NULL) != NEB_OK || got < 0) _exit(2);
    if (write(got, text, sizeof text) != sizeof text) _exit(3);
    if (neb__gate_channel_receive(&c, text, 1, NULL, NULL, NULL) != NEB_ERR_PEER) _exit(4);
    _exit(0);
}

static neb_status patience(void *turns)
{
    return ++*(int *)turns > 100 ? NEB_ERR_TIMEOUT : NEB_OK;
}

static void only_the_secret_opens(void **state)
{
    (void)state;
    struct neb_gate_channel c;
    struct stat st;
    char dir[PATH_MAX], path[PATH_MAX + 16], text[6];
    bool there = false;
    int turns = 0, status;
    assert_int_equal(NEB_OK, neb__gate_channel_offer(&c));
    snprintf(dir, sizeof dir, "%s", c.dir);
    assert_int_equal(0, stat(dir, &st));
    assert_int_equal(0700, st.st_mode & 0777);
    snprintf(path, sizeof path, "%s/secret", dir);
    assert_int_equal(0, stat(path, &st));
    assert_int_equal(0600, st.st_mode & 0777);
    knock(&c);
    pid_t pid = fork();
    if (!pid) rank_end();
    while (!there && patience(&turns) == NEB_OK) {
        struct pollfd p = {.fd = c.listener, .events = POLLIN};
        poll(&p, 1, 1000);
        assert_int_equal(NEB_OK, neb__gate_channel_accept(&c, &there));
    }
    assert_true(there);
    assert_int_not_equal(0, stat(dir, &st)); /* nobody else can try */
    int shared = memfd_create("test", 0);
    assert_int_equal(NEB_OK, neb__gate_channel_send(&c, "hello", 6, shared));
    neb__gate_channel_close(&c);
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_int_equal(0, status);
    assert_int_equal(6, pread(shared, text, 6, 0));
    assert_string_equal("hello", text);
    close(shared);
}

static void a_rank_elsewhere_hears_why(void **state)
{
    (void)state;
    struct neb_gate_channel c;
    setenv("NEBULA_GATEWAY", "/tmp/nebula-i-that-is-not-there", 1);
    assert_int_equal(NEB_ERR_NOTFOUND, neb__gate_channel_connect(&c));
    assert_non_null(strstr(neb_last_error(), "not started on the machine of its gateway"));
}

/* ---- the journal ------------------------------------------------------------------------------------------- */

static char out[] = "/tmp/neb-gate-XXXXXX";

static void expect_step(struct neb_gate_journal *j, float lr)
{
    struct neb_gate_entry e;
    bool more;
    assert_int_equal(NEB_OK, neb__gate_journal_next(j, NULL, 0, &e, &more));
    assert_true(more);
    assert_int_equal(NEB_GATE_JOURNAL_STEP, e.type);
    assert_true(e.lr == lr);
}

static void expect_end(struct neb_gate_journal *j)
{
    struct neb_gate_entry e;
    bool more;
    assert_int_equal(NEB_OK, neb__gate_journal_next(j, NULL, 0, &e, &more));
    assert_false(more);
}

static void what_came_after_a_checkpoint_is_repeated(void **state)
{
    (void)state;
    struct neb_gate_journal j;
    struct neb_gate_entry e;
    float values[5] = {1, 2, 3, 4, 5}, back[5] = {0};
    bool more;
    assert_int_equal(NEB_OK, neb__gate_journal_open(&j, out));
    neb__gate_journal_mark(&j, -1);
    neb__gate_journal_step(&j, &(struct neb_gate_entry){.lr = 0.1f});
    neb__gate_journal_values(&j, values, 1, 3);
    neb__gate_journal_mark(&j, 1); /* a checkpoint was ordered … */
    neb__gate_journal_step(&j, &(struct neb_gate_entry){.lr = 0.2f});
    assert_int_equal(NEB_OK, neb__gate_journal_seek(&j, -1)); /* … and did not come to the disk */
    expect_step(&j, 0.1f);
    assert_int_equal(NEB_OK, neb__gate_journal_next(&j, back, 5, &e, &more));
    assert_int_equal(NEB_GATE_JOURNAL_VALUES, e.type);
    assert_memory_equal(values + 1, back + 1, 3 * sizeof *values);
    assert_true(back[0] == 0 && back[4] == 0);
    expect_step(&j, 0.2f);
    expect_end(&j);
    neb__gate_journal_durable(&j, 1); /* it did */
    assert_int_equal(NEB_ERR_STATE, neb__gate_journal_seek(&j, -1));
    assert_int_equal(NEB_OK, neb__gate_journal_seek(&j, 1));
    expect_step(&j, 0.2f);
    expect_end(&j);
    assert_int_equal(sizeof e, j.end);
    neb__gate_journal_values(&j, values, 0, 5);
    assert_int_equal(NEB_OK, neb__gate_journal_seek(&j, 1));
    expect_step(&j, 0.2f);
    assert_int_equal(NEB_ERR_CORRUPT,
                     neb__gate_journal_next(&j, back, 4, &e, &more)); /* there is no room for it */
    neb__gate_journal_close(&j);
}

static void a_full_disk_costs_the_journal_only(void **state)
{
    (void)state;
    struct neb_gate_journal j;
    float value = 1;
    assert_int_equal(NEB_OK, neb__gate_journal_open(&j, out));
    neb__gate_journal_mark(&j, 7);
    int file = j.fd;
    j.fd = open("/dev/full", O_RDWR);
    neb__gate_journal_values(&j, &value, 0, 1);
    assert_int_not_equal(NEB_OK, j.broken);
    assert_int_equal(NEB_ERR_STATE, neb__gate_journal_seek(&j, 7));
    close(j.fd);
    j.fd = file;
    neb__gate_journal_mark(&j, 8); /* a new checkpoint is a new beginning */
    neb__gate_journal_step(&j, &(struct neb_gate_entry){.lr = 0.5f});
    assert_int_equal(NEB_OK, neb__gate_journal_seek(&j, 8));
    expect_step(&j, 0.5f);
    expect_end(&j);
    for (int64_t step = 9; step < 9 + 3 * NEB_GATE_JOURNAL_MARKS; step++) neb__gate_journal_mark(&j, step);
    assert_int_equal(NEB_OK, neb__gate_journal_seek(&j, 8)); /* the one that is on disk stays */
    assert_int_equal(NEB_OK, neb__gate_journal_seek(&j, 8 + 3 * NEB_GATE_JOURNAL_MARKS));
    neb__gate_journal_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_secret_opens),
        cmocka_unit_test(a_rank_elsewhere_hears_why),
        cmocka_unit_test(what_came_after_a_checkpoint_is_repeated),
        cmocka_unit_test(a_full_disk_costs_the_journal_only),
    };
    if (!mkdtemp(out)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char path[64];
    snprintf(path, sizeof path, "%s/ranks", out);
    rmdir(path);
    rmdir(out);
    return failed;
}
