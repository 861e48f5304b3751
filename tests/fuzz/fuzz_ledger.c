/* fuzz_ledger.c: a site's ledger with any entries in any order. The input is a byte that says how much of the file was
 * promised and by what kind of slots, then, again and again: u8 kind (0 a mark, 1 to 3 a record, 4 a note, else bytes that are
 * not an entry), u8 index, u8 length, content. Checksums are made to fit. What an open finds lies within the bytes that count,
 * and a record that is appended afterwards is found by the next open behind the same records, with its note. */
#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "store/ledger.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 29, ROOM = 1 << 16 };

/* Two files in memory. */
struct file {
    uint8_t bytes[ROOM];
    size_t n;
};
static struct file ledger, mark;

static struct file *file_of(const char *name)
{
    return strcmp(name, "mark") ? &ledger : &mark;
}

static neb_status size_of(void *ctx, const char *name, uint64_t *out)
{
    (void)ctx;
    *out = file_of(name)->n;
    return *out ? NEB_OK : NEB_ERR_NOTFOUND;
}

static neb_status read_file(void *ctx, const char *name, uint64_t at, void *to, size_t n)
{
    (void)ctx;
    if (at + n > file_of(name)->n) return NEB_ERR_IO;
    memcpy(to, file_of(name)->bytes + at, n);
    return NEB_OK;
}

static neb_status write_file(void *ctx, const char *name, uint64_t at, const void *from, size_t n)
{
    struct file *f = file_of(name);
    (void)ctx;
    if (at + n > ROOM) return NEB_ERR_NOSPACE;
    memcpy(f->bytes + at, from, n);
    if (at + n > f->n) f->n = at + n;
    return NEB_OK;
}

static neb_status cut_file(void *ctx, const char *name, uint64_t size)
{
    (void)ctx;
    file_of(name)->n = size;
    return NEB_OK;
}

static neb_status sync_file(void *ctx, const char *name)
{
    (void)ctx, (void)name;
    return NEB_OK;
}

static const struct neb_disk_ops ops = {
    .size = size_of, .read = read_file, .write = write_file, .cut = cut_file, .sync = sync_file};
static const struct neb_disk disk = {&ops, NULL};

static void sum16(const uint8_t *p, size_t n, uint8_t out[16])
{
    struct neb_hash h;
    if (neb__hash(p, n, &h) != NEB_OK) abort();
    memcpy(out, h.b, 16);
}

static void put_entry(uint8_t kind, uint64_t index, const uint8_t *content, size_t n)
{
    uint8_t key[17 + 256], *out = ledger.bytes + ledger.n;
    neb__put64(key, ledger.n);
    key[8] = kind;
    neb__put64(key + 9, index);
    memcpy(key + 17, content, n);
    neb__put32(out, (uint32_t)n);
    out[4] = kind;
    neb__put64(out + 5, index);
    sum16(key, 17 + n, out + 13);
    memcpy(out + HEAD, content, n);
    ledger.n += HEAD + n;
}

/* A slot, with a note or as programs without notes write it. */
static void put_slot(uint64_t sequence, uint64_t promised, bool noted)
{
    uint8_t *b = mark.bytes + sequence % 2 * 4096;
    neb__put64(b, sequence);
    neb__put64(b + 8, promised);
    sum16(b, 16, b + 16);
    mark.n = sequence % 2 * 4096 + 32;
    if (!noted) return;
    neb__put32(b + 32, 4);
    neb__put64(b + 36, sequence);
    memcpy(b + 44, "slot", 4);
    sum16(b, 48, b + 48);
    mark.n += 32;
}

static void make(const uint8_t *data, size_t size)
{
    memset(&mark, 0, sizeof mark);
    ledger.n = 0;
    uint8_t promise = size ? data[0] : 0;
    struct neb_reader r = {data + !!size, size - !!size, false};
    while (r.left >= 3 && ledger.n + HEAD + 512 < ROOM / 2) {
        uint8_t kind = neb__read8(&r), index = neb__read8(&r);
        size_t n = neb__read8(&r);
        if (n > r.left) n = r.left;
        static const uint8_t kinds[] = {2, 1, 1, 1, NEB_LEDGER_NOTE};
        if (kind < 5)
            put_entry(kinds[kind], index, r.p, n);
        else
            memcpy(ledger.bytes + ledger.n, r.p, n), ledger.n += n;
        (void)neb__read(&r, n);
    }
    uint64_t promised = promise % 4 == 1 ? ledger.n : ledger.n * promise / 256;
    if (promise & 64) put_slot(2, promised, promise & 32);
    if (promise % 4) put_slot(promise & 128 ? 1 : 3, promise & 128 ? promised / 2 : promised, promise & 16);
    if (promise & 64) mark.n = sizeof mark.bytes;
}

static void check(const struct neb_ledger *l, const struct neb_ledger_found *f)
{
    if (f->mark_length && f->mark_at + f->mark_length > l->length) abort();
    for (uint64_t i = 0; i < f->records; i++)
        if (f->at[i] + f->size[i] > l->length) abort();
    for (size_t i = 0; i < f->extras; i++) {
        const uint8_t *p = f->extra[i].bytes;
        if (p < f->bytes.data || p + f->extra[i].length > f->bytes.data + f->bytes.len) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_ledger l, again;
    struct neb_ledger_found f, g;
    const int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    make(data, size);
    if (neb__ledger_open(&disk, &l, &f) != NEB_OK) abort();
    check(&l, &f);
    const uint8_t *record[] = {(const uint8_t *)"record"};
    const size_t length[] = {6};
    const struct neb_ledger_extra note = {NEB_LEDGER_NOTE, 7, (const uint8_t *)"note", 4};
    struct neb_ledger_batch batch = {.extra = &note,
                                     .extras = 1,
                                     .first = f.records + 1,
                                     .count = 1,
                                     .record = record,
                                     .length = length,
                                     .head = f.records + 1,
                                     .mark = (const uint8_t *)"promise",
                                     .mark_length = 7};
    if (neb__ledger_append(&l, &batch) != NEB_OK || neb__ledger_open(&disk, &again, &g) != NEB_OK) abort();
    check(&again, &g);
    if (g.damaged || again.length != l.length || g.records != f.records + 1 || g.mark_length != 7) abort();
    if (!g.extras || g.extra[g.extras - 1].kind != NEB_LEDGER_NOTE || g.extra[g.extras - 1].length != 4)
        abort();
    for (uint64_t i = 0; i < f.records; i++)
        if (f.at[i] != g.at[i] || f.size[i] != g.size[i]) abort();
    neb__ledger_found_free(&f);
    neb__ledger_found_free(&g);
    if (neb__mem_held() != held) abort();
    return 0;
}
