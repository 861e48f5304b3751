/* shard_read.c: reads a set of shards through memory maps.
 *
 * Opening reads every header and index once (a few bytes per sample). Tokens are read only when copied. Each
 * copied id is compared with the vocabulary, so a damaged file cannot cause an access outside an embedding
 * table. */
#include "text/shard_format.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct shard {
    struct neb_shard_head head;
    uint8_t *map;
    size_t length;
    int64_t first; /* number of its first sample */
};

struct neb_set {
    char *dir;
    uint64_t generation;
    uint32_t shards;
    struct shard *shard;
    int64_t samples, tokens[2];
};

static const uint8_t *index_of(const struct shard *s)
{
    return s->map + neb__shard_index_at(&s->head);
}

static uint32_t text_start(const struct shard *s, uint64_t text)
{
    return neb__get32(index_of(s) + 4 * text);
}

static neb_status check_index(struct neb_set *set, struct shard *s)
{
    uint64_t texts = s->head.samples * (uint64_t)s->head.info.sides;
    if (neb__crc32c(0, index_of(s), 4 * (texts + 1)) != s->head.crc_index)
        return neb__quiet(NEB_ERR_CORRUPT, "the checksum of the index is wrong");
    for (const uint8_t *p = s->map + NEB_SHARD_HEAD + s->head.tokens * (uint64_t)s->head.width;
         p < index_of(s); p++)
        if (*p) return neb__quiet(NEB_ERR_CORRUPT, "there are non-zero bytes between tokens and index");
    uint32_t at = text_start(s, 0);
    if (at) return neb__quiet(NEB_ERR_CORRUPT, "the index does not start at zero");
    for (uint64_t t = 0; t < texts; t++) {
        uint32_t next = text_start(s, t + 1);
        if (next <= at) return neb__quiet(NEB_ERR_CORRUPT, "the index does not increase");
        set->tokens[s->head.info.sides == 2 ? t % 2 : 0] += next - at;
        at = next;
    }
    return at == s->head.tokens ? NEB_OK
                                : neb__quiet(NEB_ERR_CORRUPT, "the index does not end at the last token");
}

static neb_status map_shard(const char *path, struct shard *s)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) {
        int e = errno;
        if (fd >= 0) close(fd);
        return neb__quiet(NEB_ERR_CORRUPT, "%s",
                          strerror(e)); /* the manifest lists this file, so it must exist */
    }
    s->length = (size_t)st.st_size;
    s->map = s->length < NEB_SHARD_HEAD ? MAP_FAILED : mmap(NULL, s->length, PROT_READ, MAP_SHARED, fd, 0);
    int e = errno;
    close(fd);
    if (s->map != MAP_FAILED) return NEB_OK;
    s->map = NULL;
    if (s->length < NEB_SHARD_HEAD) return neb__quiet(NEB_ERR_CORRUPT, "too short");
    return neb__quiet(NEB_ERR_IO, "%s", strerror(e));
}

static neb_status open_shard(struct neb_set *set, uint32_t number)
{
    struct shard *s = &set->shard[number];
    char path[PATH_MAX];
    NEB_TRY(neb__shard_path(set->dir, set->generation, number, path));
    neb_status status = map_shard(path, s);
    if (status == NEB_OK) status = neb__shard_head_get(s->map, s->length, &s->head);
    const struct neb_set_info *a = &set->shard[0].head.info, *b = &s->head.info;
    if (status == NEB_OK &&
        (s->head.number != number || a->sides != b->sides || a->vocab != b->vocab ||
         !neb__hash_equal(&a->tokenizer, &b->tokenizer) || memcmp(a->lang, b->lang, sizeof a->lang)))
        status = neb__quiet(NEB_ERR_CORRUPT, "it belongs to another set");
    if (status == NEB_OK) status = check_index(set, s);
    if (status != NEB_OK) {
        char why[160];
        strncpy(why, neb_last_error(), sizeof why - 1);
        why[sizeof why - 1] = 0;
        return neb__fail(status, "%s: %s; tokenise the corpus again", path, why);
    }
    s->first = set->samples;
    set->samples += (int64_t)s->head.samples;
    return NEB_OK;
}

neb_status neb__set_open(const char *dir, struct neb_set **out)
{
    uint64_t generation;
    uint32_t shards;
    neb_status status = neb__set_read(dir, &generation, &shards);
    if (status == NEB_ERR_NOTFOUND)
        return neb__fail(status, "there is no token set in %s (set.neb is missing)", dir);
    if (status != NEB_OK) return status;
    if (!shards)
        return neb__fail(NEB_ERR_CORRUPT, "%s/set.neb lists no shards; tokenise the corpus again", dir);
    struct neb_set *set = NEB_NEW(struct neb_set);
    if (!set) return neb__fail(NEB_ERR_NOMEM, "out of memory for a token set");
    set->generation = generation;
    set->dir = neb__strdup(dir);
    set->shard = NEB_NEW_ARRAY(struct shard, shards);
    status = set->dir && set->shard ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a token set");
    for (uint32_t i = 0; status == NEB_OK && i < shards; i++) {
        set->shards = i + 1;
        status = open_shard(set, i);
    }
    if (status != NEB_OK) {
        neb__set_close(set);
        return status;
    }
    *out = set;
    return NEB_OK;
}

bool neb__set_finished(const char *dir)
{
    uint64_t generation;
    uint32_t shards;
    return neb__set_read(dir, &generation, &shards) != NEB_ERR_NOTFOUND;
}

void neb__set_close(struct neb_set *set)
{
    if (!set) return;
    for (uint32_t i = 0; i < set->shards; i++)
        if (set->shard[i].map) munmap(set->shard[i].map, set->shard[i].length);
    neb__free(set->shard);
    neb__free(set->dir);
    neb__free(set);
}

const struct neb_set_info *neb__set_info(const struct neb_set *set)
{
    return &set->shard[0].head.info;
}

int64_t neb__set_count(const struct neb_set *set)
{
    return set->samples;
}

int64_t neb__set_tokens(const struct neb_set *set, int side)
{
    return set->tokens[side];
}

/* The shard of an existing sample. */
static const struct shard *shard_of(const struct neb_set *set, int64_t sample)
{
    uint32_t low = 0, high = set->shards - 1;
    while (low < high) {
        uint32_t mid = (low + high + 1) / 2;
        if (set->shard[mid].first <= sample)
            low = mid;
        else
            high = mid - 1;
    }
    return &set->shard[low];
}

static const struct shard *find_text(const struct neb_set *set, int64_t sample, int side, uint64_t *text)
{
    int sides = set->shard[0].head.info.sides;
    if (sample < 0 || sample >= set->samples || side < 0 || side >= sides) return NULL;
    const struct shard *s = shard_of(set, sample);
    *text = (uint64_t)(sample - s->first) * (uint64_t)sides + (uint64_t)side;
    return s;
}

int32_t neb__set_length(const struct neb_set *set, int64_t sample, int side)
{
    uint64_t t;
    const struct shard *s = find_text(set, sample, side, &t);
    return s ? (int32_t)(text_start(s, t + 1) - text_start(s, t)) : 0;
}

neb_status neb__set_copy(const struct neb_set *set, int64_t sample, int side, int32_t from, int32_t n,
                         int32_t *out)
{
    uint64_t t;
    const struct shard *s = find_text(set, sample, side, &t);
    if (!s || from < 0 || n < 0 || (int64_t)from + n > text_start(s, t + 1) - text_start(s, t))
        return neb__fail(NEB_ERR_INVALID, "tokens [%d, +%d) do not exist in sample %" PRId64 " of %s",
                         (int)from, (int)n, sample, set->dir);
    const uint8_t *p =
        s->map + NEB_SHARD_HEAD + ((uint64_t)text_start(s, t) + (uint64_t)from) * (uint64_t)s->head.width;
    uint32_t worst = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t id = s->head.width == 2 ? neb__get16(p + 2 * (size_t)i) : neb__get32(p + 4 * (size_t)i);
        worst = id > worst ? id : worst;
        out[i] = (int32_t)id;
    }
    if (worst >= (uint32_t)s->head.info.vocab)
        return neb__fail(NEB_ERR_CORRUPT,
                         "%s is damaged: sample %" PRId64
                         " holds token %u, but the vocabulary has %d; tokenise the corpus again",
                         set->dir, sample, (unsigned)worst, (int)s->head.info.vocab);
    return NEB_OK;
}

neb_status neb__set_verify(const struct neb_set *set)
{
    for (uint32_t i = 0; i < set->shards; i++) {
        const struct shard *s = &set->shard[i];
        if (neb__crc32c(0, s->map + NEB_SHARD_HEAD, s->head.tokens * (uint64_t)s->head.width) !=
            s->head.crc_tokens)
            return neb__fail(NEB_ERR_CORRUPT,
                             "%s is damaged: the tokens of shard %u do not match their checksum; tokenise "
                             "the corpus again",
                             set->dir, (unsigned)i);
    }
    return NEB_OK;
}
