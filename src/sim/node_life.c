/* node_life.c: how a simulated machine begins, ends, and begins again.
 *
 * After a restart each cell of the site's own state comes from the newest own update on disk that is newer
 * than the checkpoint. The live delta is then the decoded update, plus the part it left out if that was saved
 * under the update's number. Without such an update the cell comes from the checkpoint. Both are states at an
 * older version of the log; the core's walk over the records brings them forward. */
#include "sim/world.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "outer/site.h"

#include <stdio.h>
#include <string.h>

enum { OWN_SIZE = sizeof(struct neb_sim_own), END_MS = 3000 };

void neb__node_create(struct neb_sim_world *w, struct neb_sim_node *n)
{
    neb__simdisk_init(&n->disk, &w->disk_rng);
    n->exists = true;
    n->secret = neb__mix64(w->opt.seed ^ 0x5ea1);
    n->actions_left = -1;
    n->step_ms = 40 + (int64_t)draw(w, 60);
    neb__node_format(w, n);
}

void neb__node_format(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_buf mark;
    neb__buf_init(&mark, NEB_MARK_MAX);
    if (neb__round_first_mark(&mark) != NEB_OK ||
        neb__ledger_create(&n->disk.disk, mark.data, mark.len) != NEB_OK)
        w->failed = NEB_ERR_NOMEM;
    neb__buf_free(&mark);
}

void neb__node_free(struct neb_sim_node *n)
{
    neb__cuts_stop(n);
    neb__round_destroy(n->core);
    neb__outer_destroy(n->outer);
    n->core = NULL;
    n->outer = NULL;
}

void neb__node_checkpoint(struct neb_sim_world *w, struct neb_sim_node *n)
{
    uint8_t b[16 + CELLS_MAX * OWN_SIZE];
    neb__oracle_checkpoint(w, n);
    neb__put64(b, n->checkpoint_id);
    neb__put64(b + 8, n->last_k);
    memcpy(b + 16, n->own, w->cfg.cells * OWN_SIZE);
    (void)neb__blob_save(&n->disk.disk, "checkpoint", b, 16 + w->cfg.cells * OWN_SIZE, true);
}

/* Links break with the process at their other end, and come back with it; each site notices a little later. */
void neb__node_noticed(struct neb_sim_world *w, struct neb_sim_node *n)
{
    enum { NOTICE_MS = 100 };
    for (int i = 0; w->noticed && i < w->sites; i++) {
        if (i == n->id || !w->node[i].alive) continue;
        struct neb_sim_event *e = neb__sim_later(w, 1 + (int64_t)draw(w, NOTICE_MS), EV_PEER, i);
        if (e) e->from = n->id;
    }
}

void neb__node_crash(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (!n->alive) return;
    TRACE(w, "site %d crashes", n->id);
    w->out->crashes++;
    n->alive = false;
    w->lines_changed = true;
    n->halted = false;
    n->life++;
    n->actions_left = -1;
    for (int i = 0; i < SITES; i++) w->bulk[n->id][i] = w->bulk[i][n->id] = 0;
    neb__node_free(n);
    neb__node_noticed(w, n);
    neb__simdisk_crash(&n->disk, draw(w, 3) != 0);
    if (!n->stopped) neb__sim_later(w, 200 + (int64_t)draw(w, w->quiet ? 500 : 4000), EV_START, n->id);
}

static uint64_t restore_checkpoint(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_buf b;
    uint64_t id = 0;
    neb__buf_init(&b, 1 << 16);
    memset(n->own, 0, sizeof n->own);
    n->checkpoint_k = n->last_k = 0;
    if (neb__blob_load(&n->disk.disk, "checkpoint", &b) == NEB_OK && b.len == 16 + w->cfg.cells * OWN_SIZE) {
        id = neb__get64(b.data);
        n->checkpoint_k = n->last_k = neb__get64(b.data + 8);
        memcpy(n->own, b.data + 16, w->cfg.cells * OWN_SIZE);
    }
    neb__buf_free(&b);
    return id;
}

struct restore {
    struct neb_sim_world *w;
    struct neb_sim_node *n;
    struct neb_buf b;
    struct neb_hash newest[CELLS_MAX];
    uint64_t k[CELLS_MAX];
    struct neb_hash all[512];
    int count;
};

static void one_update(void *arg, const struct neb_hash *name)
{
    struct restore *r = arg;
    struct neb_update_header h;
    neb__buf_clear(&r->b);
    if (r->count < 512) r->all[r->count++] = *name;
    (void)h;
}

static void newest_updates(struct restore *r)
{
    for (int i = 0; i < r->count; i++) {
        struct neb_update_header h;
        neb__buf_clear(&r->b);
        if (neb__update_load(&r->n->updates, &r->all[i], &r->b) != NEB_OK) continue;
        if (neb__update_header_get(r->b.data, r->b.len, &h) != NEB_OK || h.site != r->n->id) continue;
        if (h.k > r->n->last_k) r->n->last_k = h.k;
        for (uint32_t c = h.c0; c < h.c1; c++)
            if (h.k > r->n->checkpoint_k && h.k > r->k[c]) r->k[c] = h.k, r->newest[c] = r->all[i];
    }
}

static bool load_residual(struct neb_sim_node *n, uint32_t c, uint64_t k, float out[WIDTH])
{
    struct neb_buf b;
    char name[32];
    snprintf(name, sizeof name, "residual-%u", c);
    neb__buf_init(&b, 4096);
    bool ok = neb__blob_load(&n->disk.disk, name, &b) == NEB_OK && b.len == 8 + 4 * WIDTH;
    if (ok && !NEB_MUTANT(stale_residual)) ok = neb__get64(b.data) == k;
    memset(out, 0, 4 * WIDTH);
    if (ok) memcpy(out, b.data + 8, 4 * WIDTH);
    neb__buf_free(&b);
    return ok;
}

static void restore_own(struct restore *r)
{
    struct neb_sim_world *w = r->w;
    struct neb_sim_node *n = r->n;
    uint64_t checkpoint = restore_checkpoint(w, n);
    newest_updates(r);
    for (uint32_t c = 0; c < w->cfg.cells; c++) {
        struct neb_sim_own *o = &n->own[c];
        struct neb_update_header h;
        if (!r->k[c]) {
            TRACE(w, "site %d restores cell %u from checkpoint %llu at %llu", n->id, c,
                  (unsigned long long)checkpoint, (unsigned long long)o->version);
            neb__oracle_restored(w, n, c, NULL, checkpoint, false);
            continue;
        }
        neb__buf_clear(&r->b);
        if (neb__update_load(&n->updates, &r->newest[c], &r->b) != NEB_OK ||
            neb__update_header_get(r->b.data, r->b.len, &h) != NEB_OK)
            continue;
        memset(o, 0, sizeof *o);
        neb__toy_decode(r->b.data, r->b.len, &h, c, o->u);
        float left[WIDTH];
        bool residual = load_residual(n, c, h.k, left);
        for (int i = 0; i < WIDTH; i++) o->u[i] += left[i];
        memcpy(o->d, o->u, sizeof o->d);
        o->version = h.b;
        o->open = (struct neb_boot_update){.hash = r->newest[c], .k = h.k, .b = h.b, .attempt = h.attempt};
        o->work = o->work_open = h.tau;
        TRACE(w, "site %d restores cell %u from update %llx, residual %d", n->id, c, (unsigned long long)h.k,
              residual);
        neb__oracle_restored(w, n, c, &r->newest[c], 0, residual);
    }
}

static bool restore_outer(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (neb__outer_create(WIDTH, w->theta0, w->cfg.cells * WIDTH, &n->outer) != NEB_OK) return false;
    for (uint32_t c = 0; c < w->cfg.cells; c++) {
        float theta[WIDTH], m[WIDTH];
        uint64_t older;
        struct neb_snapshot s = {.cell = c, .values = WIDTH, .theta = theta, .m = m};
        if (neb__snapshot_load(&n->disk.disk, &s, &older) == NEB_OK)
            (void)neb__outer_install(n->outer, c, s.version, theta, m, NULL);
    }
    return true;
}

static bool create_core(struct neb_sim_world *w, struct neb_sim_node *n)
{
    struct neb_ledger_found found;
    if (neb__ledger_open(&n->disk.disk, &n->ledger, &found) != NEB_OK) return false;
    uint64_t merged[CELLS_MAX], work[CELLS_MAX];
    struct neb_boot_update open[CELLS_MAX];
    for (uint32_t c = 0; c < w->cfg.cells; c++)
        merged[c] = n->own[c].version, work[c] = n->own[c].work, open[c] = n->own[c].open;
    const uint8_t **rec = neb__calloc(found.records + 1, sizeof *rec);
    for (uint64_t i = 0; rec && i < found.records; i++) rec[i] = found.bytes.data + found.at[i];
    struct neb_round_extra *extra = neb__calloc(found.extras + 1, sizeof *extra);
    for (size_t i = 0; extra && i < found.extras; i++)
        extra[i] = (struct neb_round_extra){found.extra[i].kind, found.extra[i].index,
                                            (uint8_t *)found.extra[i].bytes, found.extra[i].length};
    struct neb_buf newest;
    neb__buf_init(&newest, 2 * NEB_CERTIFICATE_MAX);
    if (neb__blob_load(&n->disk.disk, "certificate", &newest) != NEB_OK) neb__buf_clear(&newest);
    struct neb_round_boot boot = {.damaged = found.damaged,
                                  .mark = found.mark_length ? found.bytes.data + found.mark_at : NULL,
                                  .mark_length = found.mark_length,
                                  .record = rec,
                                  .record_length = found.size,
                                  .records = found.records,
                                  .extra = extra,
                                  .extras = extra ? found.extras : 0,
                                  .certificate = newest.len ? newest.data : NULL,
                                  .certificate_length = newest.len,
                                  .applied = n->outer->version,
                                  .merged = merged,
                                  .open = open,
                                  .work = work};
    struct neb_round_config cfg = w->cfg;
    cfg.self = (uint16_t)n->id;
    cfg.seal = neb__sim_seal(n);
    cfg.seed = neb__mix64(w->opt.seed * 64 + (uint64_t)n->id + n->life * 4096);
    bool ok = rec && neb__round_create(&cfg, &boot, &n->core) == NEB_OK;
    if (ok) neb__round_set_end(n->core, END_MS);
    if (ok) neb__round_set_observers(n->core, w->observers);
    TRACE(w, "site %d starts: %llu records%s", n->id, (unsigned long long)found.records,
          found.damaged ? ", damaged" : "");
    neb__free(rec);
    neb__free(extra);
    neb__buf_free(&newest);
    neb__ledger_found_free(&found);
    return ok;
}

void neb__node_start(struct neb_sim_world *w, struct neb_sim_node *n)
{
    if (n->alive || n->stopped || !n->exists) return;
    struct restore r = {.w = w, .n = n};
    neb__buf_init(&r.b, 1 << 20);
    n->life++;
    n->paused = n->ended = n->halted = n->sync_failed = false;
    n->seen_commit = n->seen_epoch = 0;
    n->tick_at = 0;
    memset(n->fetched, 0, sizeof n->fetched);
    memset(n->sum, 0, sizeof n->sum);
    bool ok = neb__update_files_open(&n->disk.disk, 0, &n->updates) == NEB_OK &&
              neb__update_files_list(&n->updates, one_update, &r) == NEB_OK && restore_outer(w, n);
    if (ok) restore_own(&r);
    ok = ok && create_core(w, n);
    if (!ok) {
        w->failed = NEB_ERR_NOMEM;
        neb__buf_free(&r.b);
        return;
    }
    n->alive = true;
    n->started = w->now;
    if (w->opt.lasting_cuts) neb__cuts_start(w, n);
    if (n->leaving) neb__node_ask(w, n, NEB_OP_LEAVE, 0);
    for (int i = 0; i < w->sites; i++)
        if (i != n->id && w->node[i].exists) neb__node_peer(w, n, (unsigned)i, true);
    neb__node_noticed(w, n);
    for (int i = 0; i < r.count && n->alive; i++) {
        struct neb_sim_event *ev = neb__sim_later(w, 1, EV_STORED, n->id);
        if (!ev) break;
        neb__buf_clear(&r.b);
        ev->hash = r.all[i];
        ev->from = -1;
        bool good = neb__update_load(&n->updates, &r.all[i], &r.b) == NEB_OK &&
                    neb__update_header_get(r.b.data, r.b.len, &ev->update) == NEB_OK;
        ev->status = good ? NEB_OK : NEB_ERR_NOTFOUND;
        if (good) neb__oracle_durable(w, n, &r.all[i]);
    }
    neb__buf_free(&r.b);
    neb__sim_later(w, 1, EV_TICK, n->id);
    neb__sim_later(w, n->step_ms, EV_STEP, n->id);
}
