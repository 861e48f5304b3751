/* update_files.c: update files and snapshot files.
 *
 * An update file `p-<hash>` holds the update's header and its code as they travelled. The name is the hash of
 * the whole file, so it needs no checksum, and a peer can be served straight from it. A snapshot file
 * `cell-<n>-<version mod 2>` is a blob: u32 cell, u64 version, u64 values, theta, m, and what else belongs
 * to the cell (lengths of updates). A new snapshot replaces
 * the file with the older version. */
#include "store/update_files.h"
#include "base/bytes.h"

#include <stdio.h>

static void name_of(const struct neb_hash *h, char out[80])
{
    memcpy(out, "p-", 2);
    neb__hash_hex(h, out + 2);
}

static bool hash_of(const char *name, struct neb_hash *out)
{
    if (strlen(name) != 2 + 2 * NEB_HASH_SIZE) return false;
    for (int i = 0; i < 2 * NEB_HASH_SIZE; i++) {
        char c = name[2 + i];
        int d = -1;
        if (c >= '0' && c <= '9') d = c - '0';
        if (c >= 'a' && c <= 'f') d = c - 'a' + 10;
        if (d < 0) return false;
        out->b[i / 2] = (uint8_t)(i & 1 ? out->b[i / 2] | d : d << 4);
    }
    return true;
}

struct listing {
    struct neb_update_files *count;
    void (*each)(void *arg, const struct neb_hash *name);
    void *arg;
};

static void one_file(void *arg, const char *name)
{
    struct listing *l = arg;
    struct neb_hash h;
    uint64_t size;
    if (!hash_of(name, &h)) return;
    if (l->each) l->each(l->arg, &h);
    if (l->count && l->count->disk->ops->size(l->count->disk->ctx, name, &size) == NEB_OK)
        l->count->bytes += size;
}

neb_status neb__update_files_open(const struct neb_disk *disk, uint64_t quota, struct neb_update_files *out)
{
    struct neb_update_files p = {disk, 0, quota};
    struct listing l = {.count = &p};
    neb__disk_sweep(disk);
    /* A process may have made the name and been killed before the name was durable. */
    NEB_TRY(disk->ops->sync_dir(disk->ctx));
    NEB_TRY(disk->ops->list(disk->ctx, "p-", one_file, &l));
    *out = p;
    return NEB_OK;
}

neb_status neb__update_files_list(const struct neb_update_files *p,
                                  void (*each)(void *arg, const struct neb_hash *name), void *arg)
{
    struct listing l = {.each = each, .arg = arg};
    return p->disk->ops->list(p->disk->ctx, "p-", one_file, &l);
}

bool neb__update_exists(const struct neb_update_files *p, const struct neb_hash *name)
{
    char file[80];
    uint64_t size;
    name_of(name, file);
    return p->disk->ops->size(p->disk->ctx, file, &size) == NEB_OK;
}

neb_status neb__update_save(struct neb_update_files *p, const struct neb_hash *name, const void *bytes,
                            size_t n)
{
    struct neb_hash h;
    NEB_TRY(neb__hash(bytes, n, &h));
    if (!neb__hash_equal(&h, name))
        return neb__quiet(NEB_ERR_CORRUPT, "the update's bytes do not match its name");
    return neb__update_keep(p, name, bytes, n);
}

neb_status neb__update_keep(struct neb_update_files *p, const struct neb_hash *name, const void *bytes,
                            size_t n)
{
    char file[80];
    if (p->quota && p->bytes + n > p->quota)
        return neb__fail(NEB_ERR_NOSPACE,
                         "updates would exceed their quota of %" PRIu64 " bytes: raise ledger_quota, "
                         "or wait until all sites have applied the older rounds",
                         p->quota);
    name_of(name, file);
    NEB_TRY(neb__disk_replace(p->disk, file, &(struct neb_disk_piece){bytes, n}, 1, true));
    p->bytes += n;
    return NEB_OK;
}

neb_status neb__update_load(struct neb_update_files *p, const struct neb_hash *name, struct neb_buf *out)
{
    char file[80];
    uint64_t size;
    struct neb_hash h;
    name_of(name, file);
    NEB_TRY(p->disk->ops->size(p->disk->ctx, file, &size));
    NEB_TRY(neb__buf_reserve(out, (size_t)size + 1));
    NEB_TRY(p->disk->ops->read(p->disk->ctx, file, 0, out->data + out->len, (size_t)size));
    NEB_TRY(neb__hash(out->data + out->len, (size_t)size, &h));
    if (!neb__hash_equal(&h, name)) {
        bool gone = neb__update_remove(p, name) == NEB_OK;
        return neb__quiet(NEB_ERR_CORRUPT, "update %.16s is damaged%s", file + 2, gone ? "; removed" : "");
    }
    out->len += (size_t)size;
    return NEB_OK;
}

neb_status neb__update_head(const struct neb_update_files *p, const struct neb_hash *name, void *out,
                            size_t n, uint64_t *size)
{
    char file[80];
    name_of(name, file);
    NEB_TRY(p->disk->ops->size(p->disk->ctx, file, size));
    return p->disk->ops->read(p->disk->ctx, file, 0, out, n);
}

neb_status neb__update_remove(struct neb_update_files *p, const struct neb_hash *name)
{
    char file[80];
    uint64_t size = 0;
    name_of(name, file);
    if (p->disk->ops->size(p->disk->ctx, file, &size) == NEB_OK)
        p->bytes -= size < p->bytes ? size : p->bytes;
    return p->disk->ops->remove(p->disk->ctx, file);
}

enum { SNAP_HEAD = 20 };

static void snapshot_name(uint32_t cell, int slot, char out[40])
{
    snprintf(out, 40, "cell-%u-%d", cell, slot);
}

/* The version of a snapshot file, 0 when there is none or it is damaged. Its content is left in b. */
static uint64_t peek(const struct neb_disk *d, const struct neb_snapshot *s, int slot, struct neb_buf *b)
{
    char name[40];
    snapshot_name(s->cell, slot, name);
    neb__buf_clear(b);
    if (neb__blob_load(d, name, b) != NEB_OK || b->len != SNAP_HEAD + 8 * s->values + s->more_size) return 0;
    if (neb__get32(b->data) != s->cell || neb__get64(b->data + 12) != s->values) return 0;
    return neb__get64(b->data + 4);
}

neb_status neb__snapshot_save(const struct neb_disk *d, const struct neb_snapshot *s)
{
    struct neb_buf b;
    struct neb_snapshot here = *s;
    neb__buf_init(&b, SNAP_HEAD + 8 * s->values + s->more_size + NEB_HASH_SIZE);
    uint64_t v0 = peek(d, s, 0, &b), v1 = peek(d, s, 1, &b);
    neb__buf_free(&b);
    here.slot = v0 <= v1 ? 0 : 1;
    return neb__snapshot_put(d, &here);
}

neb_status neb__snapshot_put(const struct neb_disk *d, const struct neb_snapshot *s)
{
    char name[40];
    uint8_t head[SNAP_HEAD];
    snapshot_name(s->cell, s->slot, name);
    neb__put32(head, s->cell);
    neb__put64(head + 4, s->version);
    neb__put64(head + 12, s->values);
    const struct neb_disk_piece pieces[] = {
        {head, SNAP_HEAD}, {s->theta, 4 * s->values}, {s->m, 4 * s->values}, {s->more, s->more_size}};
    return neb__blob_join(d, name, pieces, s->more_size ? 4 : 3, true);
}

neb_status neb__snapshot_load(const struct neb_disk *d, struct neb_snapshot *s, uint64_t *older)
{
    struct neb_buf b;
    neb__buf_init(&b, SNAP_HEAD + 8 * s->values + s->more_size + NEB_HASH_SIZE);
    uint64_t v0 = peek(d, s, 0, &b), v1 = peek(d, s, 1, &b);
    if (!v0 && !v1) {
        neb__buf_free(&b);
        return neb__quiet(NEB_ERR_NOTFOUND, "no snapshot of cell %u", s->cell);
    }
    if (v0 > v1) (void)peek(d, s, 0, &b);
    s->slot = v0 > v1 ? 0 : 1;
    s->version = v0 > v1 ? v0 : v1;
    *older = v0 > v1 ? v1 : v0;
    memcpy(s->theta, b.data + SNAP_HEAD, 4 * s->values);
    memcpy(s->m, b.data + SNAP_HEAD + 4 * s->values, 4 * s->values);
    if (s->more_size) memcpy(s->more, b.data + SNAP_HEAD + 8 * s->values, s->more_size);
    neb__buf_free(&b);
    return NEB_OK;
}
