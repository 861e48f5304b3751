/* simdisk.c: files in memory with two contents each: the one that the program
 * sees, and the one on the platter.
 *
 * sync copies the changed range of one file to the platter; sync_dir copies the folder's names. A crash
 * throws away the program's content, but every 512-byte sector that was written and not synced may have
 * reached the platter, or may now hold neither the old nor the new bytes. Renames that were not synced have
 * happened or not, all together. */
#include "sim/simdisk.h"
#include "base/mem.h"

#include <string.h>

enum { SECTOR = 512 };

struct content {
    uint8_t *p;
    size_t n, cap;
};

struct simnode {
    struct content now, safe;
    size_t lo, hi; /* changed since the last sync */
    int links;     /* names in either folder */
};

struct simname {
    uint64_t key; /* a hash of the name, to compare quickly */
    char name[100];
    int inode;
};

static bool resize(struct content *c, size_t n)
{
    if (n > c->cap) {
        size_t cap = c->cap ? c->cap : 256;
        while (cap < n) cap *= 2;
        uint8_t *p = neb__realloc(c->p, cap);
        if (!p) return false;
        c->p = p, c->cap = cap;
    }
    if (n > c->n) memset(c->p + c->n, 0, n - c->n);
    c->n = n;
    return true;
}

static uint64_t key_of(const char *name)
{
    uint64_t h = 1469598103934665603u;
    while (*name) h = (h ^ (uint8_t)*name++) * 1099511628211u;
    return h;
}

static struct simname *find(const struct neb_simdisk *d, const char *name)
{
    uint64_t key = key_of(name);
    for (int i = 0; i < d->names; i++)
        if (d->now[i].key == key && !strcmp(d->now[i].name, name)) return &d->now[i];
    return NULL;
}

/* Counts down to the moment the power goes. */
static neb_status alive(struct neb_simdisk *d)
{
    if (d->ops_left > 0 && --d->ops_left == 0) d->dead = true;
    return d->dead ? neb__quiet(NEB_ERR_IO, "power is off") : NEB_OK;
}

static neb_status nomem(void)
{
    return neb__fail(NEB_ERR_NOMEM, "out of memory in the simulated disk");
}

static int new_inode(struct neb_simdisk *d)
{
    for (int i = 0; i < d->inodes; i++)
        if (!d->inode[i].links) {
            d->inode[i].now.n = d->inode[i].safe.n = 0;
            d->inode[i].lo = d->inode[i].hi = 0;
            return i;
        }
    if (d->inodes == d->inode_cap) {
        int cap = d->inode_cap ? 2 * d->inode_cap : 32;
        struct simnode *p = neb__realloc(d->inode, (size_t)cap * sizeof *p);
        if (!p) return -1;
        d->inode = p, d->inode_cap = cap;
    }
    memset(&d->inode[d->inodes], 0, sizeof d->inode[0]);
    return d->inodes++;
}

static neb_status use(struct neb_simdisk *d, const char *name, bool make, struct simnode **out)
{
    struct simname *n = find(d, name);
    if (!n && !make) return neb__quiet(NEB_ERR_NOTFOUND, "no file %s", name);
    if (!n) {
        int i = new_inode(d);
        if (i < 0) return nomem();
        if (d->names == d->name_cap) {
            int cap = d->name_cap ? 2 * d->name_cap : 32;
            struct simname *p = neb__realloc(d->now, (size_t)cap * sizeof *p);
            if (!p) return nomem();
            d->now = p, d->name_cap = cap;
        }
        n = &d->now[d->names++];
        strncpy(n->name, name, sizeof n->name - 1);
        n->name[sizeof n->name - 1] = 0;
        n->key = key_of(name);
        n->inode = i;
        d->inode[i].links++;
    }
    *out = &d->inode[n->inode];
    return NEB_OK;
}

static neb_status sim_size(void *ctx, const char *name, uint64_t *out)
{
    struct simnode *f;
    NEB_TRY(alive(ctx));
    NEB_TRY(use(ctx, name, false, &f));
    *out = f->now.n;
    return NEB_OK;
}

static neb_status sim_read(void *ctx, const char *name, uint64_t at, void *to, size_t n)
{
    struct simnode *f;
    NEB_TRY(alive(ctx));
    NEB_TRY(use(ctx, name, false, &f));
    if (at > f->now.n || n > f->now.n - at) return neb__quiet(NEB_ERR_IO, "%s ends too early", name);
    if (n) memcpy(to, f->now.p + at, n);
    return NEB_OK;
}

static void changed(struct simnode *f, size_t lo, size_t hi)
{
    if (f->lo == f->hi) f->lo = lo, f->hi = hi;
    if (lo < f->lo) f->lo = lo;
    if (hi > f->hi) f->hi = hi;
}

static neb_status sim_write(void *ctx, const char *name, uint64_t at, const void *from, size_t n)
{
    struct neb_simdisk *d = ctx;
    struct simnode *f;
    NEB_TRY(alive(d));
    if (d->full) return neb__quiet(NEB_ERR_NOSPACE, "the simulated disk is full");
    NEB_TRY(use(d, name, true, &f));
    if (at + n > f->now.n && !resize(&f->now, at + n)) return nomem();
    if (n) memcpy(f->now.p + at, from, n);
    changed(f, at, at + n);
    return NEB_OK;
}

static neb_status sim_cut(void *ctx, const char *name, uint64_t size)
{
    struct simnode *f;
    NEB_TRY(alive(ctx));
    NEB_TRY(use(ctx, name, true, &f));
    size_t was = f->now.n;
    if (!resize(&f->now, size)) return nomem();
    changed(f, size < was ? size : was, size > was ? size : was);
    return NEB_OK;
}

static neb_status sim_sync(void *ctx, const char *name)
{
    struct neb_simdisk *d = ctx;
    struct simnode *f;
    NEB_TRY(alive(d));
    NEB_TRY(use(d, name, false, &f));
    if (d->fail_sync) {
        d->fail_sync = false;
        return neb__quiet(NEB_ERR_IO, "the simulated sync fails");
    }
    if (!resize(&f->safe, f->now.n)) return nomem();
    size_t hi = f->hi < f->now.n ? f->hi : f->now.n;
    if (f->lo < hi) memcpy(f->safe.p + f->lo, f->now.p + f->lo, hi - f->lo);
    f->lo = f->hi = 0;
    return NEB_OK;
}

static void unlink_name(struct neb_simdisk *d, struct simname *n)
{
    d->inode[n->inode].links--;
    *n = d->now[--d->names];
}

static neb_status sim_rename(void *ctx, const char *from, const char *to)
{
    struct neb_simdisk *d = ctx;
    NEB_TRY(alive(d));
    struct simname *n = find(d, to);
    if (!find(d, from)) return neb__quiet(NEB_ERR_NOTFOUND, "no file %s", from);
    if (n) unlink_name(d, n);
    n = find(d, from);
    strncpy(n->name, to, sizeof n->name - 1);
    n->key = key_of(to);
    return NEB_OK;
}

static neb_status sim_remove(void *ctx, const char *name)
{
    struct neb_simdisk *d = ctx;
    NEB_TRY(alive(d));
    struct simname *n = find(d, name);
    if (n) unlink_name(d, n);
    return NEB_OK;
}

static bool names_copy(struct neb_simdisk *d, struct simname **to, int *count, int *cap,
                       const struct simname *from, int n)
{
    if (n > *cap) {
        struct simname *p = neb__realloc(*to, (size_t)n * 2 * sizeof *p);
        if (!p) return false;
        *to = p, *cap = 2 * n;
    }
    for (int i = 0; i < n; i++) d->inode[from[i].inode].links++;
    for (int i = 0; i < *count; i++) d->inode[(*to)[i].inode].links--;
    if (n) memcpy(*to, from, (size_t)n * sizeof **to);
    *count = n;
    return true;
}

static neb_status sim_sync_dir(void *ctx)
{
    struct neb_simdisk *d = ctx;
    NEB_TRY(alive(d));
    if (!names_copy(d, &d->safe, &d->safe_names, &d->safe_cap, d->now, d->names)) return nomem();
    return NEB_OK;
}

static neb_status sim_list(void *ctx, const char *prefix, void (*each)(void *arg, const char *name),
                           void *arg)
{
    struct neb_simdisk *d = ctx;
    NEB_TRY(alive(d));
    for (int i = 0; i < d->names; i++)
        if (!strncmp(d->now[i].name, prefix, strlen(prefix))) each(arg, d->now[i].name);
    return NEB_OK;
}

static const struct neb_disk_ops ops = {sim_size,   sim_read,   sim_write,    sim_cut, sim_sync,
                                        sim_rename, sim_remove, sim_sync_dir, sim_list};

void neb__simdisk_init(struct neb_simdisk *d, struct neb_rng *rng)
{
    memset(d, 0, sizeof *d);
    d->disk = (struct neb_disk){&ops, d};
    d->rng = rng;
    d->ops_left = -1;
}

void neb__simdisk_free(struct neb_simdisk *d)
{
    for (int i = 0; i < d->inodes; i++) {
        neb__free(d->inode[i].now.p);
        neb__free(d->inode[i].safe.p);
    }
    neb__free(d->inode);
    neb__free(d->now);
    neb__free(d->safe);
    memset(d, 0, sizeof *d);
}

static void crash_file(struct neb_simdisk *d, struct simnode *f)
{
    if (f->lo < f->hi) {
        bool longer = f->now.n > f->safe.n;
        size_t size = neb__rng_below(d->rng, 2) ? f->now.n : f->safe.n;
        if (longer && size > f->safe.n && !neb__rng_below(d->rng, 3))
            size = f->safe.n + neb__rng_below(d->rng, size - f->safe.n);
        if (!resize(&f->safe, size)) return;
        for (size_t s = f->lo / SECTOR * SECTOR; s < f->hi && s < size; s += SECTOR) {
            size_t end = s + SECTOR < size ? s + SECTOR : size;
            uint64_t fate = neb__rng_below(d->rng, 8);
            if (fate < 4 && end <= f->now.n) memcpy(f->safe.p + s, f->now.p + s, end - s);
            if (fate == 4) /* torn: only sectors that were being written are at risk */
                for (size_t i = s < f->lo ? f->lo : s; i < end && i < f->hi; i++)
                    f->safe.p[i] = (uint8_t)neb__rng_next(d->rng);
        }
    }
    if (!resize(&f->now, f->safe.n)) return;
    if (f->safe.n) memcpy(f->now.p, f->safe.p, f->safe.n);
    f->lo = f->hi = 0;
}

void neb__simdisk_crash(struct neb_simdisk *d, bool power)
{
    d->dead = d->full = d->fail_sync = false;
    d->ops_left = -1;
    if (!power) return;
    if (neb__rng_below(d->rng, 2))
        (void)names_copy(d, &d->safe, &d->safe_names, &d->safe_cap, d->now, d->names);
    else
        (void)names_copy(d, &d->now, &d->names, &d->name_cap, d->safe, d->safe_names);
    for (int i = 0; i < d->inodes; i++) crash_file(d, &d->inode[i]);
}

bool neb__simdisk_damage(struct neb_simdisk *d, const char *prefix)
{
    int pick[64], n = 0;
    for (int i = 0; i < d->safe_names && n < 64; i++)
        if (!strncmp(d->safe[i].name, prefix, strlen(prefix)) && d->inode[d->safe[i].inode].safe.n)
            pick[n++] = i;
    if (!n) return false;
    struct simnode *f = &d->inode[d->safe[pick[neb__rng_below(d->rng, (uint64_t)n)]].inode];
    size_t at = neb__rng_below(d->rng, f->safe.n) / SECTOR * SECTOR;
    for (size_t i = at; i < at + SECTOR && i < f->safe.n; i++)
        f->safe.p[i] = f->now.p[i] = (uint8_t)(f->safe.p[i] ^ 0x5a);
    return true;
}

void neb__simdisk_wipe(struct neb_simdisk *d)
{
    struct neb_rng *rng = d->rng;
    neb__simdisk_free(d);
    neb__simdisk_init(d, rng);
}

neb_status neb__simdisk_copy(const struct neb_simdisk *from, struct neb_simdisk *to)
{
    struct neb_rng *rng = from->rng;
    neb__simdisk_free(to);
    neb__simdisk_init(to, rng);
    for (int i = 0; i < from->safe_names; i++) {
        const struct content *c = &from->inode[from->safe[i].inode].safe;
        NEB_TRY(sim_write(to, from->safe[i].name, 0, c->p, c->n));
        NEB_TRY(sim_sync(to, from->safe[i].name));
    }
    return sim_sync_dir(to);
}
