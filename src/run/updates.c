/* updates.c: the updates of a site in memory: see updates.h.
 *
 * Between its arrival and its record an update stays in memory, as it was made or checked: applying it needs
 * neither the disk nor another hash. An update that no longer fits there is read back and checked. */
#include "run/updates.h"
#include "base/mem.h"

neb_status neb__updates_open(struct neb_updates *u, size_t cells, size_t max)
{
    neb__buf_init(&u->made, max);
    neb__buf_init(&u->left_out.coded, max);
    u->keep.covered = neb__calloc(cells, sizeof *u->keep.covered);
    return u->keep.covered ? NEB_OK : NEB_ERR_NOMEM;
}

void neb__updates_close(struct neb_updates *u)
{
    neb__buf_free(&u->made);
    neb__buf_free(&u->left_out.coded);
    for (int i = 0; i < NEB_RECENT; i++) neb__buf_free(&u->recent[i].bytes);
    neb__free(u->keep.covered);
}

static struct neb_recent *find(struct neb_updates *u, const struct neb_hash *hash)
{
    for (int i = 0; i < NEB_RECENT; i++)
        if (u->recent[i].bytes.len && neb__hash_equal(&u->recent[i].hash, hash)) return &u->recent[i];
    return NULL;
}

/* An empty place, or that of the oldest; room for n bytes within the limit. */
static struct neb_recent *place(struct neb_updates *u, size_t n)
{
    struct neb_recent *free = NULL;
    size_t held = n;
    for (int i = 0; i < NEB_RECENT; i++) {
        held += u->recent[i].bytes.cap;
        if (!u->recent[i].bytes.len && (!free || u->recent[i].bytes.cap > free->bytes.cap))
            free = &u->recent[i];
    }
    if (!free) free = &u->recent[u->next_recent++ % NEB_RECENT];
    for (int i = 0; held > NEB_RECENT_BYTES && i < NEB_RECENT; i++) {
        struct neb_buf *b = &u->recent[u->next_recent++ % NEB_RECENT].bytes;
        held -= b->cap;
        neb__buf_free(b);
    }
    return held > NEB_RECENT_BYTES ? NULL : free;
}

void neb__updates_remember(struct neb_updates *u, const struct neb_hash *hash, const void *bytes, size_t n)
{
    struct neb_recent *r = find(u, hash) ? NULL : place(u, n);
    if (!r) return;
    if (!r->bytes.data) neb__buf_init(&r->bytes, NEB_RECENT_BYTES);
    neb__buf_clear(&r->bytes);
    if (neb__buf_append(&r->bytes, bytes, n) != NEB_OK) neb__buf_clear(&r->bytes);
    r->hash = *hash;
    r->norm = -1;
}

void neb__updates_set_norm(struct neb_updates *u, const struct neb_hash *hash, double norm)
{
    struct neb_recent *r = find(u, hash);
    if (r) r->norm = norm;
}

double neb__updates_norm(struct neb_updates *u, const struct neb_hash *hash)
{
    const struct neb_recent *r = find(u, hash);
    return r ? r->norm : -1;
}

const struct neb_buf *neb__updates_recent(struct neb_updates *u, const struct neb_hash *hash)
{
    const struct neb_recent *r = find(u, hash);
    return r ? &r->bytes : NULL;
}

void neb__updates_forget(struct neb_updates *u, const struct neb_hash *hash)
{
    struct neb_recent *r = find(u, hash);
    if (r) neb__buf_clear(&r->bytes);
}

bool neb__updates_load(struct neb_updates *u, const struct neb_hash *hash, struct neb_buf *b,
                       struct neb_update_header *h)
{
    neb__buf_clear(b);
    return neb__update_load(&u->files, hash, b) == NEB_OK &&
           neb__update_header_get(b->data, b->len, h) == NEB_OK;
}

bool neb__updates_header(const struct neb_updates *u, const struct neb_hash *hash,
                         struct neb_update_header *h)
{
    uint8_t head[NEB_UPDATE_HEADER_SIZE];
    uint64_t size;
    return neb__update_head(&u->files, hash, head, sizeof head, &size) == NEB_OK &&
           neb__update_header_get(head, (size_t)size, h) == NEB_OK;
}
