/* shard_read.c: reads a set of shards through memory maps.
 *
 * Opening reads every header and index once (a few bytes per sample). Tokens are read only when copied. Each
 * copied id is compared with the vocabulary, so a damaged file cannot cause an access outside an embedding
 * table.
 *
 * A file that is shortened while it is mapped, or a disk that fails, is an error too (base/map_guard.h). Such a set stays
 * unusable, because the pages that are gone read as zeros from then on. */
#include "text/shard_format.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/map_guard.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct shard {
    struct neb_shard_head head;
    uint8_t *map;
    size_t length;
    int64_t first;     /* number of its first sample */
    _Atomic bool lost; /* its file is no longer whole */
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

/* Words that the file of this shard is no longer whole. */
static neb_status say_lost(const struct neb_set *set, const struct shard *s)
{
    char path[PATH_MAX];
    struct stat st;
    NEB_TRY(neb__shard_path(set->dir, set->generation, (uint32_t)(s - set->shard), path));
    if (!stat(path, &st) && (uint64_t)st.st_size < s->length)
        return neb__fail(NEB_ERR_CORRUPT,
                         "%s was shortened while it was in use, to %" PRIu64 " bytes of %zu; bring the whole "
                         "file back, or remove %s and tokenise the corpus again",
                         path, (uint64_t)st.st_size, s->length, set->dir);
    return neb__fail(NEB_ERR_CORRUPT, "%s cannot be read any more: it was shortened, or its disk fails",
                     path);
}

neb_status neb__set_check(const struct neb_set *set)
{
    for (uint32_t i = 0; i < set->shards; i++)
        if (atomic_load_explicit(&set->shard[i].lost, memory_order_relaxed))
            return say_lost(set, &set->shard[i]);
    return NEB_OK;
}

static void end_guard(struct shard *s, struct neb_map_guard *g)
{
    if (!neb__map_guard_end(g)) atomic_store_explicit(&s->lost, true, memory_order_relaxed);
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
    neb__map_guard_prepare();
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
    struct neb_map_guard guard;
    const bool mapped = status == NEB_OK;
    if (mapped) neb__map_guard_begin(&guard, s->map, s->length);
    if (status == NEB_OK) status = neb__shard_head_get(s->map, s->length, &s->head);
    const struct neb_set_info *a = &set->shard[0].head.info, *b = &s->head.info;
    if (status == NEB_OK &&
        (s->head.number != number || a->sides != b->sides || a->vocab != b->vocab ||
         !neb__hash_equal(&a->tokenizer, &b->tokenizer) || memcmp(a->lang, b->lang, sizeof a->lang)))
        status = neb__quiet(NEB_ERR_CORRUPT, "it belongs to another set");
    if (status == NEB_OK) status = check_index(set, s);
    if (mapped) end_guard(s, &guard);
    if (mapped && s->lost) return say_lost(set, s);
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
static struct shard *shard_of(const struct neb_set *set, int64_t sample)
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

static struct shard *find_text(const struct neb_set *set, int64_t sample, int side, uint64_t *text)
{
    int sides = set->shard[0].head.info.sides;
    if (sample < 0 || sample >= set->samples || side < 0 || side >= sides) return NULL;
    struct shard *s = shard_of(set, sample);
    *text = (uint64_t)(sample - s->first) * (uint64_t)sides + (uint64_t)side;
    return s;
}

/* Where the text starts, and where it ends; nothing if its shard is lost. */
static void find_tokens(struct shard *s, uint64_t text, uint32_t *start, uint32_t *end)
{
    struct neb_map_guard guard;
    neb__map_guard_begin(&guard, s->map, s->length);
    *start = text_start(s, text);
    *end = text_start(s, text + 1);
    end_guard(s, &guard);
    if (*end < *start || *end > s->head.tokens || s->lost) *start = *end = 0;
}

int32_t neb__set_length(const struct neb_set *set, int64_t sample, int side)
{
    uint64_t t;
    uint32_t start, end;
    struct shard *s = find_text(set, sample, side, &t);
    if (!s) return 0;
    find_tokens(s, t, &start, &end);
    return (int32_t)(end - start);
}

/* Returns the greatest id. */
static uint32_t copy_tokens(struct shard *s, uint64_t first, int32_t n, int32_t *out)
{
    const uint8_t *p = s->map + NEB_SHARD_HEAD + first * (uint64_t)s->head.width;
    uint32_t worst = 0;
    struct neb_map_guard guard;
    neb__map_guard_begin(&guard, s->map, s->length);
    for (int32_t i = 0; i < n; i++) {
        uint32_t id = s->head.width == 2 ? neb__get16(p + 2 * (size_t)i) : neb__get32(p + 4 * (size_t)i);
        worst = id > worst ? id : worst;
        out[i] = (int32_t)id;
    }
    end_guard(s, &guard);
    return worst;
}

neb_status neb__set_copy(const struct neb_set *set, int64_t sample, int side, int32_t from, int32_t n,
                         int32_t *out)
{
    uint64_t t;
    struct shard *s = find_text(set, sample, side, &t);
    uint32_t start = 0, end = 0, worst;
    if (s) find_tokens(s, t, &start, &end);
    if (s && s->lost) return say_lost(set, s);
    if (!s || from < 0 || n < 0 || (int64_t)from + n > end - start)
        return neb__fail(NEB_ERR_INVALID, "tokens [%d, +%d) do not exist in sample %" PRId64 " of %s",
                         (int)from, (int)n, sample, set->dir);
    worst = copy_tokens(s, (uint64_t)start + (uint64_t)from, n, out);
    if (s->lost) return say_lost(set, s);
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
        struct shard *s = &set->shard[i];
        struct neb_map_guard guard;
        neb__map_guard_begin(&guard, s->map, s->length);
        uint32_t sum = neb__crc32c(0, s->map + NEB_SHARD_HEAD, s->head.tokens * (uint64_t)s->head.width);
        end_guard(s, &guard);
        if (s->lost) return say_lost(set, s);
        if (sum != s->head.crc_tokens)
            return neb__fail(NEB_ERR_CORRUPT,
                             "%s is damaged: the tokens of shard %u do not match their checksum; tokenise "
                             "the corpus again",
                             set->dir, (unsigned)i);
    }
    return NEB_OK;
}
