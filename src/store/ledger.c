/* ledger.c: the log on disk.
 *
 * File `ledger`: entries that are only ever appended: u32 length, u8 kind (1 record, 2 mark, 3 certificate, 4
 * a site's word for its lapse, 5 prepare certificate, 6 leader's signature of its log, 7 vote), u64 index, 16 bytes of SHA-256 over (position, kind, index, content),
 * content. A batch is some records and other entries and then one mark, whose content is the core's promise (view, normal view, head …). A record replaces an earlier one
 * with the same index and everything behind that one. The mark's index is the log's head. Bytes behind the
 * last whole mark never counted.
 *
 * File `mark`: two slots, 4096 bytes apart, written in turn: u64 sequence, u64 bytes of the ledger that were
 * promised, 16 bytes of SHA-256. A slot is written after the ledger is synced, and it is synced itself before
 * anybody hears of the promise. A torn slot leaves the other one, and the ledger then holds more than that
 * one says. If the ledger ends before the promised length, something acknowledged is lost: the site must not
 * vote before the others have told it what.
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

static neb_status write_slot(struct neb_ledger *l, const char *file)
{
    uint8_t b[SLOT];
    neb__put64(b, l->sequence + 1);
    neb__put64(b + 8, l->length);
    NEB_TRY(sum16(b, 16, NULL, 0, b + 16));
    NEB_TRY(l->disk->ops->write(l->disk->ctx, file, (l->sequence + 1) % 2 * SLOT_GAP, b, SLOT));
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

static neb_status read_slots(const struct neb_disk *d, uint64_t *sequence, uint64_t *length, bool *any)
{
    uint64_t size;
    NEB_TRY(size_of(d, "mark", &size));
    for (uint64_t i = 0; i < 2; i++) {
        uint8_t b[SLOT], sum[16];
        if (i * SLOT_GAP + SLOT > size) continue;
        NEB_TRY(d->ops->read(d->ctx, "mark", i * SLOT_GAP, b, SLOT));
        NEB_TRY(sum16(b, 16, NULL, 0, sum));
        if (memcmp(sum, b + 16, 16) || (*any && neb__get64(b) <= *sequence)) continue;
        *any = true;
        *sequence = neb__get64(b);
        *length = neb__get64(b + 8);
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

/* Cuts off bytes behind the last whole batch before anything is written there. */
static neb_status cut_tail(struct neb_ledger *l)
{
    const struct neb_disk *d = l->disk;
    if (!l->tail) return NEB_OK;
    neb_status status = d->ops->cut(d->ctx, "ledger", l->length);
    if (status == NEB_OK && !NEB_MUTANT(skip_fsync)) status = d->ops->sync(d->ctx, "ledger");
    l->tail = status != NEB_OK;
    if (status != NEB_OK && status != NEB_ERR_NOSPACE) l->broken = true;
    return status;
}

static neb_status append_batch(struct neb_ledger *l, const struct neb_ledger_batch *batch, const char *slots)
{
    if (l->broken)
        return neb__fail(NEB_ERR_IO, "writing the ledger has failed before; restart this site to verify it");
    struct neb_buf b;
    neb__buf_init(&b, SIZE_MAX / 2);
    neb_status status = cut_tail(l);
    for (uint64_t i = 0; i < batch->count && status == NEB_OK; i++)
        status = append_entry(&b, l->length, RECORD, batch->first + i, batch->record[i], batch->length[i]);
    for (size_t i = 0; i < batch->extras && status == NEB_OK; i++)
        status = append_entry(&b, l->length, batch->extra[i].kind, batch->extra[i].index,
                              batch->extra[i].bytes, batch->extra[i].length);
    if (status == NEB_OK)
        status = append_entry(&b, l->length, MARK, batch->head, batch->mark, batch->mark_length);
    const struct neb_disk *d = l->disk;
    if (status == NEB_OK) status = d->ops->write(d->ctx, "ledger", l->length, b.data, b.len);
    if (status == NEB_OK && !NEB_MUTANT(skip_fsync)) {
        status = d->ops->sync(d->ctx, "ledger");
        if (status != NEB_OK) l->broken = true;
    }
    uint64_t was = l->length;
    if (status == NEB_OK) {
        l->length += b.len;
        status = write_slot(l, slots);
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
    NEB_TRY(look(disk, HEAD + mark_length));
    NEB_TRY(disk->ops->remove(disk->ctx, "ledger"));
    neb_status status = append_batch(
        &l, &(struct neb_ledger_batch){.first = 1, .mark = mark, .mark_length = mark_length}, "tmp-mark");
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

/* Walks whole entries; records count once the mark behind them is reached. *good is
 * the end of the last whole batch. */
static neb_status scan(struct neb_ledger_found *f, size_t *good)
{
    const uint8_t *p = f->bytes.data;
    size_t n = f->bytes.len, at = 0, batch = 0;
    *good = 0;
    while (at + HEAD <= n) {
        size_t size = neb__get32(p + at);
        uint8_t head[HEAD];
        if (size > NEB_LEDGER_ENTRY_MAX || size > n - at - HEAD) break;
        NEB_TRY(entry_head(at, p[at + 4], neb__get64(p + at + 5), p + at + HEAD, size, head));
        if (memcmp(head, p + at, HEAD)) break;
        at += HEAD + size;
        if (p[at - size - HEAD + 4] != MARK) continue;
        if (!follows(p, batch, at, f->records)) break;
        NEB_TRY(take_batch(f, p, batch, at));
        batch = *good = at;
    }
    return NEB_OK;
}

static neb_status read_all(const struct neb_disk *disk, struct neb_buf *out)
{
    uint64_t size;
    NEB_TRY(size_of(disk, "ledger", &size));
    NEB_TRY(neb__buf_reserve(out, (size_t)size + 1));
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
    uint64_t promised = 0;
    bool any = false;
    size_t good = 0;
    neb_status status = read_slots(disk, &l.sequence, &promised, &any);
    if (status == NEB_OK) status = read_all(disk, &found->bytes);
    if (status == NEB_OK) status = scan(found, &good);
    found->damaged = !any || good < promised || !found->mark_length;
    l.length = good;
    l.tail = found->bytes.len > good;
    /* If a process was killed before its sync, the bytes read here may be in the system's memory only. */
    if (status == NEB_OK && found->bytes.len && !NEB_MUTANT(skip_fsync))
        status = disk->ops->sync(disk->ctx, "ledger");
    if (status != NEB_OK) {
        neb__ledger_found_free(found);
        return status;
    }
    *out = l;
    return NEB_OK;
}
