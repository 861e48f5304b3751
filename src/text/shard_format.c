/* shard_format.c: header and manifest of a set of shards, to bytes and back (layout in the header file). */
#include "text/shard_format.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void neb__shard_head_put(const struct neb_shard_head *h, uint8_t out[NEB_SHARD_HEAD])
{
    memset(out, 0, NEB_SHARD_HEAD);
    memcpy(out, NEB_SHARD_MAGIC, 8);
    neb__put32(out + 8, NEB_SET_VERSION);
    neb__put16(out + 12, (uint16_t)h->info.sides);
    neb__put16(out + 14, (uint16_t)h->width);
    neb__put32(out + 16, (uint32_t)h->info.vocab);
    neb__put32(out + 20, h->number);
    neb__put64(out + 24, h->samples);
    neb__put64(out + 32, h->tokens);
    neb__put64(out + 40, h->length);
    memcpy(out + 48, h->info.lang[0], NEB_LANG_SIZE);
    memcpy(out + 64, h->info.lang[1], NEB_LANG_SIZE);
    memcpy(out + 80, h->info.tokenizer.b, NEB_HASH_SIZE);
    neb__put32(out + 112, h->crc_tokens);
    neb__put32(out + 116, h->crc_index);
    neb__put32(out + 124, neb__crc32c(0, out, 124));
}

static neb_status check_head(const struct neb_shard_head *h, uint64_t file_length)
{
    if (h->info.sides < 1 || h->info.sides > 2 || (h->width != 2 && h->width != 4) || h->info.vocab <= 0 ||
        (h->width == 2 && h->info.vocab > 65536))
        return neb__quiet(NEB_ERR_CORRUPT, "the header is impossible");
    if (h->tokens > NEB_SHARD_MAX_TOKENS || h->samples > NEB_SHARD_MAX_TEXTS)
        return neb__quiet(NEB_ERR_CORRUPT, "the size is impossible");
    if (h->info.lang[0][NEB_LANG_SIZE - 1] || h->info.lang[1][NEB_LANG_SIZE - 1])
        return neb__quiet(NEB_ERR_CORRUPT, "a language name has no terminator");
    uint64_t want = neb__shard_index_at(h) + 4 * (h->samples * (uint64_t)h->info.sides + 1);
    if (h->length != want || file_length != want)
        return neb__quiet(NEB_ERR_CORRUPT, "%" PRIu64 " bytes instead of %" PRIu64, file_length, want);
    return NEB_OK;
}

neb_status neb__shard_head_get(const uint8_t *p, uint64_t file_length, struct neb_shard_head *out)
{
    struct neb_shard_head h = {.number = 0};
    if (file_length < NEB_SHARD_HEAD || memcmp(p, NEB_SHARD_MAGIC, 8))
        return neb__quiet(NEB_ERR_CORRUPT, "not a token shard");
    if (neb__get32(p + 8) != NEB_SET_VERSION)
        return neb__quiet(NEB_ERR_VERSION, "format version %u; this build reads %d",
                          (unsigned)neb__get32(p + 8), NEB_SET_VERSION);
    if (neb__get32(p + 124) != neb__crc32c(0, p, 124))
        return neb__quiet(NEB_ERR_CORRUPT, "the checksum of the header is wrong");
    h.info.sides = neb__get16(p + 12);
    h.width = neb__get16(p + 14);
    uint32_t vocab = neb__get32(p + 16);
    h.info.vocab = vocab > INT32_MAX ? -1 : (int32_t)vocab;
    h.number = neb__get32(p + 20);
    h.samples = neb__get64(p + 24);
    h.tokens = neb__get64(p + 32);
    h.length = neb__get64(p + 40);
    memcpy(h.info.lang[0], p + 48, NEB_LANG_SIZE);
    memcpy(h.info.lang[1], p + 64, NEB_LANG_SIZE);
    memcpy(h.info.tokenizer.b, p + 80, NEB_HASH_SIZE);
    h.crc_tokens = neb__get32(p + 112);
    h.crc_index = neb__get32(p + 116);
    NEB_TRY(check_head(&h, file_length));
    *out = h;
    return NEB_OK;
}

static neb_status join(const char *dir, const char *name, char *out)
{
    if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    return NEB_OK;
}

neb_status neb__shard_path(const char *dir, uint64_t generation, uint32_t number, char *out)
{
    char name[40];
    snprintf(name, sizeof name, "%016" PRIx64 "-%05x.tok", generation, (unsigned)number);
    return join(dir, name, out);
}

neb_status neb__set_read(const char *dir, uint64_t *generation, uint32_t *shards)
{
    char path[PATH_MAX];
    NEB_TRY(join(dir, "set.neb", path));
    if (access(path, F_OK)) return neb__quiet(NEB_ERR_NOTFOUND, "no token set in %s", dir);
    struct neb_buf file;
    neb__buf_init(&file, 4096);
    neb_status status = neb__file_read(path, &file);
    const uint8_t *p = file.data;
    if (status == NEB_OK && (file.len < NEB_SET_BYTES || memcmp(p, NEB_SET_MAGIC, 8)))
        status = neb__fail(NEB_ERR_CORRUPT, "%s is not a token set", path);
    if (status == NEB_OK && neb__get32(p + 8) != NEB_SET_VERSION)
        status = neb__fail(NEB_ERR_VERSION,
                           "%s has format version %u, but this build reads %d; tokenise the corpus again",
                           path, (unsigned)neb__get32(p + 8), NEB_SET_VERSION);
    if (status == NEB_OK && (file.len != NEB_SET_BYTES || neb__get32(p + 24) != neb__crc32c(0, p, 24) ||
                             neb__get32(p + 12) > NEB_SET_MAX_SHARDS))
        status = neb__fail(NEB_ERR_CORRUPT, "%s is damaged; tokenise the corpus again", path);
    if (status == NEB_OK) {
        *shards = neb__get32(p + 12);
        *generation = neb__get64(p + 16);
    }
    neb__buf_free(&file);
    return status;
}

neb_status neb__set_write(const char *dir, uint64_t generation, uint32_t shards)
{
    char path[PATH_MAX];
    NEB_TRY(join(dir, "set.neb", path));
    uint8_t b[NEB_SET_BYTES];
    memcpy(b, NEB_SET_MAGIC, 8);
    neb__put32(b + 8, NEB_SET_VERSION);
    neb__put32(b + 12, shards);
    neb__put64(b + 16, generation);
    neb__put32(b + 24, neb__crc32c(0, b, 24));
    return neb__file_replace(path, b, sizeof b, 0600);
}
