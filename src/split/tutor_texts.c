/* tutor_texts.c: a teacher's translations as bytes, in a file, and as targets.
 *
 *     entry     u8 number of texts, each u32 length and UTF-8; the likeliest first
 *     in an item    u32 bytes that follow; a bit for each sequence of the batch: its entry is here; the entries, each after
 *                   its u32 length, packed without loss where that is shorter (highest bit of the first field; then u32
 *                   bytes before packing)
 *     translations.cache   a keyed file (store/keyed_file.h) of entries
 *
 * A source's key is a hash of its text and the language to translate into, so that other cuts of it (copies) share its texts. Which of a source's texts a visit learns is a
 * function of the job's seed and the number of the draw, so both ends make the same targets, and an epoch sees others than
 * the one before. */
#include "split/tutor_texts.h"
#include "base/mem.h"
#include "base/rng.h"
#include "codec/lossless.h"
#include "split/split_site.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { TEXTS_MAX = 64, ENTRY_MAX = 1 << 20, SECTION_MAX = 64 << 20 };
#define PACKED 0x80000000u

neb_status neb__tutor_texts_init(struct neb_tutor_texts *t, const struct neb_data *data, int32_t seqs)
{
    *t = (struct neb_tutor_texts){
        .data = data, .room = seqs, .seq = NEB_NEW_ARRAY(struct neb_tutor_text, (size_t)seqs)};
    neb__buf_init(&t->bytes, SECTION_MAX);
    return t->seq ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the texts of %d sequences", seqs);
}

void neb__tutor_texts_free(struct neb_tutor_texts *t)
{
    neb__keyed_file_close(t->file);
    neb__buf_free(&t->bytes);
    neb__free(t->seq);
    *t = (struct neb_tutor_texts){0};
}

neb_status neb__tutor_texts_open(struct neb_tutor_texts *t, const char *out, const struct neb_hash *of,
                                 uint64_t mark)
{
    char path[PATH_MAX];
    if (t->data->job->wan.cache <= 0) return NEB_OK;
    if (snprintf(path, sizeof path, "%s/translations.cache", out) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %s", out);
    return neb__keyed_file_open(path, of, mark, &t->file);
}

/* ---- entries ------------------------------------------------------------------------------------------- */

/* The i-th text of an entry; NULL: there is none, or the entry is malformed. */
static const char *text_of(const uint8_t *entry, size_t size, int i, uint32_t *n)
{
    struct neb_reader r = {entry, size, false};
    int count = neb__read8(&r);
    const uint8_t *p = NULL;
    if (i >= count) return NULL;
    for (int k = 0; k <= i; k++) {
        *n = neb__read32(&r);
        p = neb__read(&r, *n);
    }
    return r.bad ? NULL : (const char *)p;
}

static bool is_sound(const uint8_t *entry, size_t size)
{
    struct neb_reader r = {entry, size, false};
    int count = neb__read8(&r);
    if (count > TEXTS_MAX) return false;
    for (int k = 0; k < count && !r.bad; k++) neb__read(&r, neb__read32(&r));
    return !r.bad && !r.left;
}

neb_status neb__tutor_texts_set(struct neb_tutor_texts *t, int32_t q, char *const *texts, int64_t n)
{
    struct neb_tutor_text *s = &t->seq[q];
    uint8_t count = 0, head[4];
    while (count < n && count < TEXTS_MAX && texts[count]) count++;
    s->at = t->bytes.len;
    NEB_TRY(neb__buf_append(&t->bytes, &count, 1));
    for (int i = 0; i < count; i++) {
        neb__put32(head, (uint32_t)strlen(texts[i]));
        NEB_TRY(neb__buf_append(&t->bytes, head, 4));
        NEB_TRY(neb__buf_append(&t->bytes, texts[i], strlen(texts[i])));
    }
    s->n = t->bytes.len - s->at;
    return NEB_OK;
}

/* ---- a batch ------------------------------------------------------------------------------------------- */

static neb_status name_source(const struct neb_tutor_texts *t, const struct neb_batch *b, int32_t q,
                              struct neb_keyset_key *key)
{
    const struct neb_batch_side *s = &b->side[0];
    const int32_t from = s->cu_seqlens[q], n = s->cu_seqlens[q + 1] - from;
    const int32_t lang = b->side[1].lang[b->side[1].cu_seqlens[q]];
    const char *name = lang >= 0 && lang < t->data->n_langs ? t->data->langs[lang] : "";
    struct neb_buf text;
    struct neb_hash hash;
    neb__buf_init(&text, ENTRY_MAX);
    neb_status status = neb__buf_append(&text, name, strlen(name) + 1);
    if (status == NEB_OK) status = neb__tok_decode(t->data->tok, s->ids + from, (size_t)n, &text);
    if (status == NEB_OK) status = neb__hash(text.data, text.len, &hash);
    if (status == NEB_OK) memcpy(key->b, hash.b, NEB_KEY);
    neb__buf_free(&text);
    return status;
}

neb_status neb__tutor_texts_plan(struct neb_tutor_texts *t, const struct neb_batch *b)
{
    t->seqs = b->side[0].nseq_used;
    neb__buf_clear(&t->bytes);
    if (t->seqs > t->room)
        return neb__fail(NEB_ERR_RANGE, "a batch of %d sequences; room for %d", t->seqs, t->room);
    for (int32_t q = 0; q < t->seqs; q++) {
        struct neb_tutor_text *s = &t->seq[q];
        *s = (struct neb_tutor_text){.at = t->bytes.len};
        NEB_TRY(name_source(t, b, q, &s->key));
        neb_status status = t->file ? neb__keyed_file_get(t->file, &s->key, &t->bytes) : NEB_ERR_NOTFOUND;
        s->n = t->bytes.len - s->at;
        if (status == NEB_OK && !is_sound(t->bytes.data + s->at, s->n)) status = NEB_ERR_CORRUPT;
        s->here = status == NEB_ERR_NOTFOUND || status == NEB_ERR_CORRUPT;
        if (s->here) s->n = 0;
        if (!s->here) NEB_TRY(status);
    }
    return NEB_OK;
}

neb_status neb__tutor_texts_keep(struct neb_tutor_texts *t, uint64_t batch)
{
    for (int32_t q = 0; t->file && q < t->seqs; q++) {
        const struct neb_tutor_text *s = &t->seq[q];
        if (!s->here || !neb__student_keeps(t->data->job, neb__keyed_file_bytes(t->file), s->n)) continue;
        NEB_TRY(neb__keyed_file_put(t->file, &s->key, batch, t->bytes.data + s->at, s->n));
    }
    return NEB_OK;
}

/* ---- items --------------------------------------------------------------------------------------------- */

static neb_status put_section(const struct neb_tutor_texts *t, struct neb_buf *out)
{
    const size_t map = ((size_t)t->seqs + 7) / 8, start = out->len;
    uint8_t head[4];
    NEB_TRY(neb__buf_reserve(out, map));
    memset(out->data + start, 0, map);
    out->len += map;
    for (int32_t q = 0; q < t->seqs; q++) {
        const struct neb_tutor_text *s = &t->seq[q];
        if (!s->here) continue;
        out->data[start + (size_t)q / 8] |= (uint8_t)(1 << q % 8);
        neb__put32(head, (uint32_t)s->n);
        NEB_TRY(neb__buf_append(out, head, 4));
        NEB_TRY(neb__buf_append(out, t->bytes.data + s->at, s->n));
    }
    return NEB_OK;
}

neb_status neb__tutor_texts_encode(const struct neb_tutor_texts *t, struct neb_buf *out)
{
    struct neb_buf plain;
    uint8_t head[8];
    size_t packed = 0;
    neb__buf_init(&plain, SECTION_MAX);
    neb_status status = put_section(t, &plain);
    uint8_t *room = status == NEB_OK && plain.len ? neb__malloc(plain.len) : NULL;
    const bool shorter = room &&
                         neb__lossless_pack(plain.data, plain.len, plain.len, room, &packed) == NEB_OK &&
                         packed && packed + 4 < plain.len;
    neb__put32(head, (uint32_t)(shorter ? packed | PACKED : plain.len));
    neb__put32(head + 4, (uint32_t)plain.len);
    if (status == NEB_OK) status = neb__buf_append(out, head, shorter ? 8 : 4);
    if (status == NEB_OK && plain.len)
        status = neb__buf_append(out, shorter ? room : plain.data, shorter ? packed : plain.len);
    neb__free(room);
    neb__buf_free(&plain);
    return status;
}

static neb_status corrupt(void)
{
    return neb__fail(NEB_ERR_CORRUPT, "malformed translations from the teacher's site");
}

/* The file and the item must have every text between them. */
static neb_status take_section(struct neb_tutor_texts *t, const uint8_t *bytes, size_t n)
{
    struct neb_reader r = {bytes, n, false};
    const uint8_t *map = neb__read(&r, ((size_t)t->seqs + 7) / 8);
    if (!map) return corrupt();
    for (int32_t q = 0; q < t->seqs; q++) {
        struct neb_tutor_text *s = &t->seq[q];
        if (!(map[q / 8] >> q % 8 & 1)) {
            if (!s->here) continue;
            return neb__fail(NEB_ERR_NOTFOUND,
                             "%s/translations.cache was lost or changed: it lacks texts that were received "
                             "before. Start the "
                             "run again from this site's model (init.from)",
                             t->data->job->out);
        }
        uint32_t size = neb__read32(&r);
        const uint8_t *entry = neb__read(&r, size);
        if (!entry || size > ENTRY_MAX || !is_sound(entry, size)) return corrupt();
        s->here = true;
        s->at = t->bytes.len;
        s->n = size;
        NEB_TRY(neb__buf_append(&t->bytes, entry, size));
    }
    return r.left ? corrupt() : NEB_OK;
}

neb_status neb__tutor_texts_decode(struct neb_tutor_texts *t, struct neb_reader *r)
{
    uint32_t size = neb__read32(r), plain = size & PACKED ? neb__read32(r) : 0;
    const uint8_t *bytes = neb__read(r, size & ~PACKED);
    if (!bytes || plain > SECTION_MAX) return corrupt();
    if (!(size & PACKED)) return take_section(t, bytes, size);
    uint8_t *room = neb__malloc(plain ? plain : 1);
    neb_status status = room ? neb__lossless_unpack(bytes, size & ~PACKED, plain, room)
                             : neb__fail(NEB_ERR_NOMEM, "out of memory for translations");
    if (status == NEB_OK) status = take_section(t, room, plain);
    neb__free(room);
    return status;
}

/* ---- targets ------------------------------------------------------------------------------------------- */

/* The text that a visit takes; NULL: the sequence's own target. */
static const char *choose(struct neb_tutor_texts *t, int32_t q, uint32_t sample, uint32_t *n)
{
    const struct neb_job *j = t->data->job;
    const struct neb_tutor_text *s = &t->seq[q];
    struct neb_rng rng = {neb__mix64((uint64_t)j->seed + 0x74657874) + neb__mix64(sample)};
    const int count = s->n ? t->bytes.data[s->at] : 0;
    if (neb__rng_uniform(&rng) < j->distill.gold) {
        t->gold++;
        return NULL;
    }
    return count ? text_of(t->bytes.data + s->at, s->n, (int)neb__rng_below(&rng, (uint64_t)count), n) : NULL;
}

neb_status neb__tutor_texts_apply(struct neb_tutor_texts *t, struct neb_batch *b)
{
    const struct neb_tok *tok = t->data->tok;
    struct neb_batch_target *list = NEB_NEW_ARRAY(struct neb_batch_target, (size_t)t->seqs + 1);
    struct neb_buf ids;
    struct neb_vocab v;
    int32_t taken = 0, offered = 0;
    neb__buf_init(&ids, SECTION_MAX);
    neb__vocab_of(tok, &v);
    neb_status status = list ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %d targets", t->seqs);
    for (int32_t q = 0; status == NEB_OK && q < t->seqs; q++) {
        uint32_t n = 0;
        const size_t before = ids.len;
        const char *text = choose(t, q, b->side[1].sample[b->side[1].cu_seqlens[q]], &n);
        if (text) status = neb__tok_encode_side(tok, 1, text, n, &ids);
        list[q].n = (int32_t)((ids.len - before) / sizeof(int32_t));
        offered += text != NULL;
    }
    const int32_t *at = (const int32_t *)ids.data;
    for (int32_t q = 0; status == NEB_OK && q < t->seqs; q++) list[q].ids = at, at += list[q].n;
    if (status == NEB_OK) status = neb__batch_retarget(b, list, v.special, v.eos, v.pad, &taken);
    t->taken += taken;
    t->unfit += offered - taken;
    neb__buf_free(&ids);
    neb__free(list);
    return status;
}
