/* relay_rosters.c: the runs that a relay host serves, and what each may use.
 *
 * A roster comes from a file of the operator's, or a guest shows it (relay_shown.c). A guest's is taken if the guest has proved the
 * key of a member, the roster names this host (its key is in a member's address), and there is room; it is kept in the
 * host's folder, so that a restart does not ask for it again. A file that changes and a guest that shows newer epochs bring a
 * longer chain, which takes the place of the one that is held: every epoch is signed, so it does not matter who brings it. A key that left the roster serves
 * nobody from then on; the pairs that it has are closed.
 *
 * A run's member has an entry here from its first visit on, with its quotas. */
#include "net/relay/relay_host_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FILES_MAX = 1024 };

struct neb_relay_run *neb__relay_run_find(struct neb_relay_host *h, const struct neb_hash *genesis)
{
    for (struct neb_relay_run *r = h->runs; r; r = r->next)
        if (neb__hash_equal(&r->chain->genesis_hash, genesis)) return r;
    return NULL;
}

struct neb_relay_member *neb__relay_run_member(struct neb_relay_run *r, const struct neb_public *key)
{
    const struct neb_member *in_roster = neb__roster_by_key(&r->chain->now, key);
    struct neb_relay_member *m = r->members;
    if (!in_roster) return NULL;
    while (m && !neb__public_equal(&m->key, key)) m = m->next;
    if (m) return m;
    m = NEB_NEW(struct neb_relay_member);
    if (!m) return NULL;
    m->key = *key;
    m->id = in_roster->id;
    m->next = r->members;
    r->members = m;
    return m;
}

/* Connections of keys that are in the roster no more. */
static void send_away(struct neb_relay_host *h, const struct neb_relay_run *r)
{
    for (struct neb_guest *g = h->guests, *next; g; g = next) {
        next = g->next;
        if (g->run != r || !g->member || neb__roster_by_key(&r->chain->now, &g->member->key)) continue;
        neb__info("member %u of run %.8s… is none any more: closing its connection", g->member->id, r->name);
        neb__guest_close(g);
        next = h->guests;
    }
}

/* A chain whose signatures have been checked takes the place of ours if ours is its beginning. */
static neb_status renew(struct neb_relay_host *h, struct neb_relay_run *r, struct neb_chain *chain)
{
    uint64_t common = chain->epoch < r->chain->epoch ? chain->epoch : r->chain->epoch;
    struct neb_hash ours, theirs;
    neb__chain_hash_of(r->chain, common, &ours);
    neb__chain_hash_of(chain, common, &theirs);
    bool same = neb__hash_equal(&ours, &theirs), newer = same && chain->epoch > r->chain->epoch;
    if (newer) {
        struct neb_chain *old = r->chain;
        r->chain = chain;
        chain = old;
    }
    neb__chain_free(chain);
    if (!same)
        return neb__quiet(NEB_ERR_EXISTS, "this relay host holds another epoch %" PRIu64 " of the run",
                          common);
    if (newer) send_away(h, r);
    return NEB_OK;
}

neb_status neb__relay_run_add(struct neb_relay_host *h, struct neb_chain *chain, struct neb_relay_run **out)
{
    struct neb_relay_run *r = neb__relay_run_find(h, &chain->genesis_hash);
    if (r) {
        *out = r;
        return renew(h, r, chain);
    }
    r = NEB_NEW(struct neb_relay_run);
    if (!r) {
        neb__chain_free(chain);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a roster");
    }
    r->chain = chain;
    r->used_at = neb__now_ns();
    neb__hash_hex(&chain->genesis_hash, r->name);
    r->next = h->runs;
    h->runs = r;
    *out = r;
    return NEB_OK;
}

static void free_run(struct neb_relay_run *r)
{
    while (r->members) {
        struct neb_relay_member *m = r->members;
        r->members = m->next;
        neb__free(m);
    }
    neb__chain_free(r->chain);
    neb__free(r);
}

static bool path_of(const struct neb_relay_host *h, const struct neb_relay_run *r, char out[PATH_MAX])
{
    return h->config.folder && snprintf(out, PATH_MAX, "%s/%s", h->config.folder, r->name) < PATH_MAX;
}

/* Memory is what counts; a roster that cannot be kept is shown again after a restart. */
void neb__relay_run_keep(struct neb_relay_host *h, const struct neb_relay_run *r)
{
    char path[PATH_MAX];
    if (path_of(h, r, path)) neb__chain_write(r->chain, path, 0600);
}

static void forget_file(struct neb_relay_host *h, const char *path)
{
    for (struct neb_roster_file **at = &h->files; *at; at = &(*at)->next)
        if (!strcmp((*at)->path, path)) {
            struct neb_roster_file *f = *at;
            *at = f->next;
            neb__free(f);
            return;
        }
}

void neb__relay_run_drop(struct neb_relay_host *h, struct neb_relay_run *r)
{
    struct neb_relay_run **at = &h->runs;
    char path[PATH_MAX];
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    if (path_of(h, r, path)) {
        unlink(path);
        forget_file(h, path);
    }
    free_run(r);
}

/* ---- files --------------------------------------------------------------------------------------------- */

/* Says whether the file is new or has changed since it was last looked at, and notes how it is now. */
static bool has_changed(struct neb_relay_host *h, const char *path, const struct stat *st)
{
    struct neb_roster_file *f = h->files;
    int count = 0;
    for (; f && strcmp(f->path, path); f = f->next) count++;
    if (f && f->changed.tv_sec == st->st_mtim.tv_sec && f->changed.tv_nsec == st->st_mtim.tv_nsec)
        return false;
    if (!f && count < FILES_MAX && (f = neb__calloc(1, sizeof *f + strlen(path) + 1))) {
        strcpy(f->path, path);
        f->next = h->files;
        h->files = f;
    }
    if (f) f->changed = st->st_mtim;
    return f != NULL;
}

static neb_status read_roster(struct neb_relay_host *h, const char *path, const struct stat *st, bool shown)
{
    struct neb_chain *chain;
    struct neb_relay_run *r;
    if (!has_changed(h, path, st)) return NEB_OK;
    NEB_TRY(neb__chain_read(path, &chain));
    bool is_new = !neb__relay_run_find(h, &chain->genesis_hash);
    NEB_TRY(neb__relay_run_add(h, chain, &r));
    if (!shown) r->shown = false;
    if (!is_new) return NEB_OK;
    r->shown = shown;
    neb__info("serving run %.8s… (%u members, %s)", r->name, r->chain->now.count, path);
    return NEB_OK;
}

/* A file that is no roster is complained about once, by neb__chain_read(). */
static void look_at(struct neb_relay_host *h, const char *path, bool shown)
{
    struct stat st;
    if (!stat(path, &st) && S_ISREG(st.st_mode)) read_roster(h, path, &st, shown);
}

static bool is_hidden(const char *name)
{
    size_t n = strlen(name);
    return name[0] == '.' || (n > 4 && !strcmp(name + n - 4, ".tmp"));
}

/* A file that this host wrote has the run's name; every other is the operator's. */
static bool is_kept(const char *name)
{
    return strlen(name) == 2 * NEB_HASH_SIZE && strspn(name, "0123456789abcdef") == 2 * NEB_HASH_SIZE;
}

static void look_in_folder(struct neb_relay_host *h)
{
    char path[PATH_MAX];
    DIR *d = h->config.folder ? opendir(h->config.folder) : NULL;
    for (struct dirent *e; d && (e = readdir(d));)
        if (!is_hidden(e->d_name) &&
            snprintf(path, sizeof path, "%s/%s", h->config.folder, e->d_name) < (int)sizeof path)
            look_at(h, path, is_kept(e->d_name));
    if (d) closedir(d);
}

void neb__relay_rosters_look(struct neb_relay_host *h)
{
    for (int i = 0; i < h->config.files_n; i++) look_at(h, h->config.files[i], false);
    look_in_folder(h);
}

neb_status neb__relay_rosters_load(struct neb_relay_host *h)
{
    for (int i = 0; i < h->config.files_n; i++) {
        struct stat st;
        if (stat(h->config.files[i], &st))
            return neb__fail(NEB_ERR_NOTFOUND,
                             "there is no roster %s; give the file that nebula-i roster seal wrote",
                             h->config.files[i]);
        NEB_TRY(read_roster(h, h->config.files[i], &st, false));
    }
    look_in_folder(h);
    return NEB_OK;
}

void neb__relay_rosters_free(struct neb_relay_host *h)
{
    while (h->files) {
        struct neb_roster_file *f = h->files;
        h->files = f->next;
        neb__free(f);
    }
    while (h->runs) {
        struct neb_relay_run *r = h->runs;
        h->runs = r->next;
        free_run(r);
    }
}
