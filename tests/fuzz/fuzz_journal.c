/* fuzz_journal.c: a segment file with any content, opened as a journal. */
#include "net/journal.h"
#include "base/mem.h"

#include <fcntl.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char dir[64], path[128];
    struct neb_journal *j;
    struct neb_buf b;
    neb_log_set_level(NEB_LOG_NONE);
    snprintf(dir, sizeof dir, "/dev/shm/nebula-fuzz-%ld", (long)getpid());
    snprintf(path, sizeof path, "%s/j.%016x", dir, 1);
    if (neb__journal_open(dir, "j", 1, &j) == NEB_OK) neb__journal_close(j);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
    if (neb__journal_open(dir, "j", 1, &j) == NEB_OK) {
        neb__buf_init(&b, 64 << 20);
        for (uint64_t i = 1; i < neb__journal_next(j); i++)
            if (neb__journal_read(j, i, &b) != NEB_OK) abort(); /* what an open accepts can be read */
        uint64_t next = neb__journal_next(j);
        if (neb__journal_append(j, (const uint8_t *)"x", 1) != NEB_OK || neb__journal_next(j) != next + 1)
            abort();
        neb__buf_free(&b);
        neb__journal_close(j);
    }
    unlink(path);
    rmdir(dir);
    return 0;
}
