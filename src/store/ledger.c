/* ledger.c: the log on disk.
 *
 * File `ledger`: entries that are only ever appended: u32 length, u8 kind (1 record, 2 mark, 3 certificate, 4
 * a site's word for its lapse, 5 prepare certificate, 6 leader's signature of its log, 7 vote, 8 note), u64 index, 16 bytes of
 * SHA-256 over (position, kind, index, content), content. A batch is some records and other entries and then one mark, whose
 * content is the core's promise (view, normal view, head …). A record replaces an earlier one with the same index and everything
 * behind that one. The mark's index is the log's head. Bytes behind the last whole mark never counted.
 *
 * File `mark`: two slots, 4096 bytes apart, written in turn: u64 sequence, u64 bytes of the ledger that were
 * promised, 16 bytes of SHA-256; then the note of that batch: u32 length, u64 index, content, 16 bytes of SHA-256 over the whole
 * slot. A slot is written after the ledger is synced, and it is synced itself before anybody hears of the promise. A torn slot
 * leaves the other one, and the ledger then holds more than that one says. If the ledger ends before the promised length,
 * something acknowledged is lost: the site must not vote before the others have told it what.
 *
 * The **note** is the one entry that does not stay: each batch brings its own, which replaces that of the batch before, so notes
 * do not make the ledger longer. It stands behind the mark, where the next batch is written over it, and in the slot, which
 * outlives that. One of the two is whole at any time: the ledger is synced before the slot is written, and the slot before the
 * next batch. A batch behind two whole slots, neither of which promises it, counts only with its note: its own slot was not begun.
 * (If one slot is not whole, that may have been the one that promised the batch.) Programs that know no notes take a note for the
 * beginning of a batch that was broken off, and write slots without one.
 *
 * Opening changes nothing, so a reader leaves the file as it is. The next append cuts off bytes that do not
 * count. A read that fails is an error and says nothing about the file's content.
 *
 * A new site's `mark` appears last and whole, by a rename. If there is no `mark` and the ledger is no longer
 * than its first batch, a start was broken off, and nothing was ever promised. */
#include "store/ledger.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/mutant.h"

enum { RECORD = 1, MARK = 2, HEAD = 29, SLOT = 32, SLOT_GAP = 4096 };
enum { NOTE_HEAD = 12, SLOT_MAX = SLOT + NOTE_HEAD + NEB_LEDGER_NOTE_MAX + 16 };

static neb_status sum16(const void *a, size_t n, const void *b, size_t m, uint8_t out[16])
{
    struct neb_hasher h;
    struct neb_hash sum;
    NEB_TRY(neb__hasher_init(&h));
    neb_status status = neb__hasher_update(&h, a, n);
    if (status == NEB_OK && m) status = neb__hasher_update(&h, b, m);
    neb_status f = neb__hasher_final(&h, status == NEB_OK ? &sum : NULL);
    if (status != NEB_OK || f != NEB_OK) return status != NEB_OK ? status : f;
    memcpy(out, sum.b, 16);
    return NEB_OK;
}

static neb_status entry_head(uint64_t at, uint8_t kind, uint64_t index, const uint8_t *p, size_t n,
                             uint8_t out[HEAD])
{
    uint8_t key[17];
    neb__put64(key, at);
    key[8] = kind;
    neb__put64(key + 9, index);
    neb__put32(out, (uint32_t)n);
    out[4] = kind;
    neb__put64(out + 5, index);
    return sum16(key, sizeof key, p, n, out + 13);
}

/* The slot for the ledger's present length, and the note of its last batch. */
static neb_status write_slot(struct neb_ledger *l, const char *file, const struct neb_ledger_extra *note)
{
    uint8_t b[SLOT_MAX];
    size_t n = SLOT + NOTE_HEAD + note->length;
    neb__put64(b, l->sequence + 1);
    neb__put64(b + 8, l->length);
    NEB_TRY(sum16(b, 16, NULL, 0, b + 16));
    neb__put32(b + SLOT, (uint32_t)note->length);
    neb__put64(b + SLOT + 4, note->index);
    if (note->length) memcpy(b + SLOT + NOTE_HEAD, note->bytes, note->length);
    NEB_TRY(sum16(b, n, NULL, 0, b + n));
    NEB_TRY(l->disk->ops->write(l->disk->ctx, file, (l->sequence + 1) % 2 * SLOT_GAP, b, n + 16));
    if (NEB_MUTANT(skip_fsync)) return l->sequence++, NEB_OK;
    NEB_TRY(l->disk->ops->sync(l->disk->ctx, file));
    l->sequence++;
    return NEB_OK;
}

static neb_status size_of(const struct neb_disk *d, const char *name, uint64_t *size)
{
    *size = 0;
    neb_status status = d->ops->size(d->ctx, name, size);
    return status == NEB_ERR_NOTFOUND ? NEB_OK : status;
}

/* The newest whole slot. */
struct slot {
    bool any, both; /* both: the other one is whole, too */
    bool noted;     /* its note is whole */
    uint64_t sequence, promised;
    struct neb_ledger_note note;
};

static neb_status read_note(const uint8_t *b, size_t size, struct slot *s)
{
    uint8_t sum[16];
    size_t n = size >= SLOT + NOTE_HEAD ? neb__get32(b + SLOT) : SIZE_MAX;
    s->noted = false;
    if (n > NEB_LEDGER_NOTE_MAX || SLOT + NOTE_HEAD + n + 16 > size) return NEB_OK;
    NEB_TRY(sum16(b, SLOT + NOTE_HEAD + n, NULL, 0, sum));
    s->noted = !memcmp(sum, b + SLOT + NOTE_HEAD + n, 16);
    s->note.index = neb__get64(b + SLOT + 4);
    s->note.length = n;
    memcpy(s->note.bytes, b + SLOT + NOTE_HEAD, n);
    return NEB_OK;
}

static neb_status read_slots(const struct neb_disk *d, struct slot *s)
{
    uint64_t size;
    NEB_TRY(size_of(d, "mark", &size));
    for (uint64_t i = 0; i < 2; i++) {
        uint8_t b[SLOT_MAX], sum[16];
        if (i * SLOT_GAP + SLOT > size) continue;
        uint64_t left = size - i * SLOT_GAP;
        size_t n = left < SLOT_MAX ? (size_t)left : SLOT_MAX;
        NEB_TRY(d->ops->read(d->ctx, "mark", i * SLOT_GAP, b, n));
        NEB_TRY(sum16(b, 16, NULL, 0, sum));
        if (memcmp(sum, b + 16, 16)) continue;
        s->both = s->any;
        if (s->any && neb__get64(b) <= s->sequence) continue;
        s->any = true;
        s->sequence = neb__get64(b);
        s->promised = neb__get64(b + 8);
        NEB_TRY(read_note(b, n, s));
    }
    return NEB_OK;
}

static neb_status append_entry(struct neb_buf *b, uint64_t base, uint8_t kind, uint64_t index,
                               const uint8_t *p, size_t n)
{
    uint8_t head[HEAD];
    if (n > NEB_LEDGER_ENTRY_MAX)
        return neb__fail(NEB_ERR_INVALID, "a ledger entry of %zu bytes is too large", n);
    NEB_TRY(entry_head(base + b->len, kind, index, p, n, head));
    NEB_TRY(neb__buf_append(b, head, HEAD));
    return neb__buf_append(b, p, n);
}

/* Cuts off bytes behind the last whole batch before anything is written there. If the note of that batch is nowhere but there,
 * a slot gets it first. */
static neb_status cut_tail(struct neb_ledger *l)
{
    const struct neb_disk *d = l->disk;
    neb_status status = NEB_OK;
    if (l->note_at_risk) {
        struct neb_ledger_extra note = {NEB_LEDGER_NOTE, l->note.index, l->note.bytes, l->note.length};
        status = write_slot(l, "mark", &note);
        l->note_at_risk = status != NEB_OK;
    }
    if (l->tail && status == NEB_OK) {
        status = d->ops->cut(d->ctx, "ledger", l->length);
        if (status == NEB_OK && !NEB_MUTANT(skip_fsync)) status = d->ops->sync(d->ctx, "ledger");
        l->tail = status != NEB_OK;
    }
    if (status != NEB_OK && status != NEB_ERR_NOSPACE) l->broken = true;
    return status;
}

/* The bytes of a batch. *counts of them are the batch, the others its note. */
static neb_status put_batch(const struct neb_ledger *l, const struct neb_ledger_batch *batch,
                            struct neb_ledger_extra *note, struct neb_buf *b, size_t *counts)
{
    for (uint64_t i = 0; i < batch->count; i++)
        NEB_TRY(append_entry(b, l->length, RECORD, batch->first + i, batch->record[i], batch->length[i]));
    for (size_t i = 0; i < batch->extras; i++) {
        const struct neb_ledger_extra *e = &batch->extra[i];
        if (e->kind == NEB_LEDGER_NOTE)
            *note = *e;
        else
            NEB_TRY(append_entry(b, l->length, e->kind, e->index, e->bytes, e->length));
    }
    if (note->length > NEB_LEDGER_NOTE_MAX)
        return neb__fail(NEB_ERR_INVALID, "a note of %zu bytes is too large", note->length);
    NEB_TRY(append_entry(b, l->length, MARK, batch->head, batch->mark, batch->mark_length));
    *counts = b->len;
    return append_entry(b, l->length, NEB_LEDGER_NOTE, note->index, note->bytes, note->length);
}

static neb_status append_batch(struct neb_ledger *l, const struct neb_ledger_batch *batch, const char *slots)
{
    if (l->broken)
        return neb__fail(NEB_ERR_IO, "writing the ledger has failed before; restart this site to verify it");
    struct neb_buf b;
    struct neb_ledger_extra note = {.kind = NEB_LEDGER_NOTE, .bytes = (const uint8_t *)""};
    size_t counts = 0;
    neb__buf_init(&b, SIZE_MAX / 2);
    neb_status status = cut_tail(l);
    if (status == NEB_OK) status = put_batch(l, batch, &note, &b, &counts);
    const struct neb_disk *d = l->disk;
    if (status == NEB_OK) status = d->ops->write(d->ctx, "ledger", l->length, b.data, b.len);
    if (status == NEB_OK && !NEB_MUTANT(skip_fsync)) {
        status = d->ops->sync(d->ctx, "ledger");
        if (status != NEB_OK) l->broken = true;
    }
    uint64_t was = l->length;
    if (status == NEB_OK) {
        l->length += counts;
        status = write_slot(l, slots, &note);
        if (status != NEB_OK) l->length = was, l->broken = status != NEB_ERR_NOSPACE;
    }
    if (status != NEB_OK) l->tail = true; /* a shorter batch in its place must not bring back its remains */
    neb__buf_free(&b);
    if (status == NEB_OK || (status == NEB_ERR_NOSPACE && !l->broken)) return status;
    return NEB_ERR_IO;
}

neb_status neb__ledger_append(struct neb_ledger *l, const struct neb_ledger_batch *batch)
{
    return append_batch(l, batch, "mark");
}

/* NEB_ERR_EXISTS: these files are more than a start that was broken off. */
static neb_status look(const struct neb_disk *disk, size_t first_batch)
{
    uint64_t size;
    neb_status status = disk->ops->size(disk->ctx, "mark", &size);
    if (status == NEB_ERR_NOTFOUND) {
        NEB_TRY(size_of(disk, "ledger", &size));
        status = size > first_batch ? NEB_OK : NEB_ERR_NOTFOUND;
    }
    if (status == NEB_ERR_NOTFOUND) return NEB_OK;
    return status != NEB_OK ? status : neb__quiet(NEB_ERR_EXISTS, "this folder already holds a run's ledger");
}

neb_status neb__ledger_create(const struct neb_disk *disk, const uint8_t *mark, size_t mark_length)
{
    struct neb_ledger l = {.disk = disk};
    NEB_TRY(look(disk, HEAD + mark_length + HEAD));
    NEB_TRY(disk->ops->remove(disk->ctx, "ledger"));
    neb_status status = append_batch(
        &l, &(struct neb_ledger_batch){.first = 1, .mark = mark, .mark_length = mark_length}, "tmp-mark");
    static const struct neb_ledger_extra none = {.kind = NEB_LEDGER_NOTE};
    if (status == NEB_OK) status = write_slot(&l, "tmp-mark", &none); /* two whole slots from the beginning */
    if (status == NEB_OK) status = disk->ops->rename(disk->ctx, "tmp-mark", "mark");
    if (status == NEB_OK) status = disk->ops->sync_dir(disk->ctx);
    static const char *const made[] = {"tmp-mark", "mark", "ledger"};
    for (int i = 0; status != NEB_OK && i < 3; i++) (void)disk->ops->remove(disk->ctx, made[i]);
    return status;
}

void neb__ledger_found_free(struct neb_ledger_found *f)
{
    neb__buf_free(&f->bytes);
    neb__free(f->at);
    neb__free(f->size);
    neb__free(f->extra);
}

static neb_status found_extra(struct neb_ledger_found *f, uint8_t kind, uint64_t index, size_t at,
                              size_t size)
{
    if (f->extras == f->extra_capacity) {
        size_t cap = f->extra_capacity ? 2 * f->extra_capacity : 32;
        struct neb_ledger_extra *e = neb__realloc(f->extra, cap * sizeof *e);
        if (!e) return neb__fail(NEB_ERR_NOMEM, "out of memory for the ledger");
        f->extra = e, f->extra_capacity = cap;
    }
    f->extra[f->extras++] = (struct neb_ledger_extra){kind, index, f->bytes.data + at, size};
    return NEB_OK;
}

static neb_status found_put(struct neb_ledger_found *f, uint64_t index, size_t at, size_t size)
{
    if (index > f->capacity) {
        uint64_t cap = f->capacity ? 2 * f->capacity : 64;
        size_t *a = neb__realloc(f->at, cap * sizeof *a);
        if (a) f->at = a;
        size_t *z = a ? neb__realloc(f->size, cap * sizeof *z) : NULL;
        if (z) f->size = z;
        if (!a || !z) return neb__fail(NEB_ERR_NOMEM, "out of memory for the ledger");
        f->capacity = cap;
    }
    f->at[index - 1] = at;
    f->size[index - 1] = size;
    f->records = index;
    return NEB_OK;
}

/* Whether the records of a batch follow those before it without a gap. A batch counts as a whole or not at all. */
static bool follows(const uint8_t *p, size_t from, size_t to, uint64_t records)
{
    for (size_t e = from; e < to; e += HEAD + neb__get32(p + e)) {
        uint64_t index = neb__get64(p + e + 5);
        if (p[e + 4] != RECORD) continue;
        if (!index || index > records + 1) return false;
        records = index;
    }
    return true;
}

static neb_status take_batch(struct neb_ledger_found *f, const uint8_t *p, size_t from, size_t to)
{
    for (size_t e = from; e < to;) {
        size_t len = neb__get32(p + e);
        uint64_t index = neb__get64(p + e + 5);
        if (p[e + 4] == RECORD) {
            NEB_TRY(found_put(f, index, e + HEAD, len));
        } else if (p[e + 4] != MARK) {
            NEB_TRY(found_extra(f, p[e + 4], index, e + HEAD, len));
        } else {
            if (index < f->records) f->records = index;
            f->mark_at = e + HEAD, f->mark_length = len;
        }
        e += HEAD + len;
    }
    return NEB_OK;
}

/* Whether an entry begins there and is whole. */
static neb_status whole_entry(const struct neb_buf *b, size_t at, bool *whole, size_t *size)
{
    uint8_t head[HEAD];
    *whole = false;
    if (b->len < HEAD || at > b->len - HEAD) return NEB_OK;
    const uint8_t *p = b->data + at;
    *size = neb__get32(p);
    if (*size > NEB_LEDGER_ENTRY_MAX || *size > b->len - at - HEAD) return NEB_OK;
    NEB_TRY(entry_head(at, p[4], neb__get64(p + 5), p + HEAD, *size, head));
    *whole = !memcmp(head, p, HEAD);
    return NEB_OK;
}

static neb_status note_behind(const struct neb_buf *b, size_t at, bool *there, size_t *size)
{
    NEB_TRY(whole_entry(b, at, there, size));
    if (*there && (b->data[at + 4] != NEB_LEDGER_NOTE || *size > NEB_LEDGER_NOTE_MAX)) *there = false;
    return NEB_OK;
}

/* Walks whole entries; records count once the mark behind them is reached. *good is
 * the end of the last whole batch. */
static neb_status scan(struct neb_ledger_found *f, const struct slot *slot, size_t *good)
{
    const uint8_t *p = f->bytes.data;
    size_t at = 0, batch = 0, size;
    bool whole;
    *good = 0;
    for (;;) {
        NEB_TRY(whole_entry(&f->bytes, at, &whole, &size));
        if (!whole) return NEB_OK;
        uint8_t kind = p[at + 4];
        at += HEAD + size;
        if (kind != MARK) continue;
        if (!follows(p, batch, at, f->records)) return NEB_OK;
        if (slot->noted && slot->both && at > slot->promised)
            NEB_TRY(note_behind(&f->bytes, at, &whole, &size));
        if (!whole) return NEB_OK; /* its slot was not begun, so nobody has heard of this batch */
        NEB_TRY(take_batch(f, p, batch, at));
        batch = *good = at;
    }
}

/* The note of the last batch, which ends at `good`, is the last entry that is found. */
static neb_status find_note(struct neb_ledger_found *f, const struct slot *slot, size_t good,
                            struct neb_ledger *l)
{
    bool in_slot = slot->noted && slot->promised == good;
    size_t at = good, size = 0;
    bool there;
    NEB_TRY(note_behind(&f->bytes, good, &there, &size));
    l->tail = f->bytes.len > good + (there ? HEAD + size : 0);
    /* On a damaged disk a slot for what is left would hide the damage. */
    l->note_at_risk = !in_slot && !f->damaged;
    if (there) {
        l->note.index = neb__get64(f->bytes.data + at + 5);
        at += HEAD;
    } else if (in_slot) {
        l->note.index = slot->note.index;
        at = f->bytes.len, size = slot->note.length;
        NEB_TRY(neb__buf_append(&f->bytes, slot->note.bytes, size)); /* there is room */
    } else
        size = 0;
    l->note.length = size;
    if (!size) return NEB_OK;
    memcpy(l->note.bytes, f->bytes.data + at, size);
    return found_extra(f, NEB_LEDGER_NOTE, l->note.index, at, size);
}

static neb_status read_all(const struct neb_disk *disk, struct neb_buf *out)
{
    uint64_t size;
    NEB_TRY(size_of(disk, "ledger", &size));
    NEB_TRY(neb__buf_reserve(out, (size_t)size + 1 + NEB_LEDGER_NOTE_MAX));
    if (!size) return NEB_OK;
    neb_status status = disk->ops->read(disk->ctx, "ledger", 0, out->data, (size_t)size);
    if (status == NEB_OK) out->len = (size_t)size;
    return status;
}

neb_status neb__ledger_open(const struct neb_disk *disk, struct neb_ledger *out,
                            struct neb_ledger_found *found)
{
    memset(found, 0, sizeof *found);
    neb__buf_init(&found->bytes, SIZE_MAX / 2);
    struct neb_ledger l = {.disk = disk};
    struct slot slot = {.any = false};
    size_t good = 0;
    neb_status status = read_slots(disk, &slot);
    if (status == NEB_OK) status = read_all(disk, &found->bytes);
    bool any = found->bytes.len;
    if (status == NEB_OK) status = scan(found, &slot, &good);
    found->damaged = !slot.any || good < slot.promised || !found->mark_length;
    if (status == NEB_OK) status = find_note(found, &slot, good, &l);
    l.sequence = slot.sequence;
    l.length = good;
    /* If a process was killed before its sync, the bytes read here may be in the system's memory only. */
    if (status == NEB_OK && any && !NEB_MUTANT(skip_fsync)) status = disk->ops->sync(disk->ctx, "ledger");
    if (status == NEB_OK && slot.any && !NEB_MUTANT(skip_fsync)) status = disk->ops->sync(disk->ctx, "mark");
    if (status != NEB_OK) {
        neb__ledger_found_free(found);
        return status;
    }
    *out = l;
    return NEB_OK;
}
