/* fuzz_files.c: any bytes as a checkpoint (first byte even) or as a set of one shard (odd). Their checksums are made to fit, so
 * that everything behind them is reached. What is accepted can be read to its last byte. */
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "store/checkpoint.h"
#include "store/checkpoint_format.h"
#include "text/shard_format.h"

#include <fcntl.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 8192 };

static char dir[64], path[4096];

static void tidy(void)
{
    char other[96];
    snprintf(other, sizeof other, "%s/set.neb", dir);
    unlink(other);
    unlink(path);
    rmdir(dir);
}

static void put(const uint8_t *data, size_t size)
{
    if (!*dir) {
        snprintf(dir, sizeof dir, "/dev/shm/nebula-fuzz-files-%ld", (long)getpid());
        if (mkdir(dir, 0700) || neb__set_write(dir, 1, 1) != NEB_OK ||
            neb__shard_path(dir, 1, 0, path) != NEB_OK)
            abort();
        atexit(tidy);
    }
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
}

static uint32_t sum_of(const uint8_t *p, size_t n)
{
    return neb__crc32c(0, p, n);
}

static void mend_checkpoint(uint8_t *p, size_t n)
{
    if (n < NEB_CKPT_HEAD) return;
    uint64_t sections = neb__get32(p + 12);
    if (sections > (n - NEB_CKPT_HEAD) / NEB_CKPT_ENTRY) return;
    for (uint64_t i = 0; i < sections; i++) {
        uint8_t *e = p + NEB_CKPT_HEAD + i * NEB_CKPT_ENTRY;
        uint64_t at = neb__get64(e + 64), size = neb__get64(e + 72);
        if (at <= n && size <= n - at) neb__put32(e + 80, sum_of(p + at, size));
    }
    neb__put64(p + 24, n);
    neb__put32(p + 64, sum_of(p + NEB_CKPT_HEAD, sections * NEB_CKPT_ENTRY));
    neb__put32(p + 68, sum_of(p, 68));
}

static const uint8_t *first_named(const uint8_t *data, const char *name)
{
    const uint8_t *e = data + NEB_CKPT_HEAD;
    while (strcmp((const char *)e, name)) e += NEB_CKPT_ENTRY;
    return e;
}

static void checkpoint(const uint8_t *data, size_t size)
{
    struct neb_ckpt *c;
    put(data, size);
    if (neb__ckpt_open(path, &c) != NEB_OK) return;
    for (size_t i = 0; i < neb__get32(data + 12); i++) {
        const char *name = (const char *)data + NEB_CKPT_HEAD + i * NEB_CKPT_ENTRY;
        const uint8_t *e = first_named(data, name);
        const void *section;
        size_t n;
        if (neb__ckpt_get(c, name, &section, &n) != NEB_OK || n != neb__get64(e + 72)) abort();
        if (memcmp(section, data + neb__get64(e + 64), n)) abort();
    }
    if (neb__ckpt_id(c)->step < 0) abort();
    neb__ckpt_close(c);
}

static void mend_shard(uint8_t *p, size_t n)
{
    if (n < NEB_SHARD_HEAD) return;
    uint64_t at = NEB_SHARD_HEAD + (neb__get64(p + 32) * neb__get16(p + 14) + 3) / 4 * 4;
    neb__put64(p + 40, n);
    if (at <= n) neb__put32(p + 116, sum_of(p + at, n - at));
    neb__put32(p + 124, sum_of(p, 124));
}

static void shard(const uint8_t *data, size_t size)
{
    struct neb_set *set;
    put(data, size);
    if (neb__set_open(dir, &set) != NEB_OK) return;
    const struct neb_set_info *info = neb__set_info(set);
    for (int64_t i = 0; i < neb__set_count(set); i++)
        for (int side = 0; side < info->sides; side++) {
            int32_t n = neb__set_length(set, i, side), *ids = n > 0 ? malloc(4 * (size_t)n) : NULL;
            if (n < 1) abort(); /* every sample has something */
            bool good = ids && neb__set_copy(set, i, side, 0, n, ids) == NEB_OK;
            for (int32_t k = 0; good && k < n; k++)
                if (ids[k] < 0 || ids[k] >= info->vocab) abort();
            free(ids);
        }
    neb__set_verify(set);
    neb__set_close(set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[MOST];
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    if (!size || size > MOST) return 0;
    memcpy(bytes, data + 1, size - 1);
    if (data[0] & 1) {
        mend_shard(bytes, size - 1);
        shard(bytes, size - 1);
    } else {
        mend_checkpoint(bytes, size - 1);
        checkpoint(bytes, size - 1);
    }
    if (neb__mem_held() != held) abort();
    return 0;
}
