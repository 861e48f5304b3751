/* replay.c: a run repeated from its files. The outer state after record i follows from genesis and the
 * records up to i, and this command proves it.
 *
 * A replay shares only the formats and the arithmetic with a running session. The initial values come from
 * the `genesis` files beside the ledger, every record from the ledger, every update from the update files. If
 * the root equals the one that the sites reported, they applied exactly these records. A replay needs
 * `wan.archive: yes`, since a site that cleans up no longer has the updates that the first records name. The
 * folder is only read. */
#include "run/replay.h"
#include "base/mem.h"
#include "codec/codec.h"
#include "outer/arith.h"
#include "outer/outer.h"
#include "round/record.h"
#include "run/influence.h"
#include "run/run_folder.h"
#include "run/secure.h"
#include "seal/site.h"
#include "store/ledger.h"
#include "store/update_files.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct replay {
    struct neb_disk disk;
    struct neb_update_files updates;
    struct neb_outer *outer;
    struct neb_influence influence;
    struct neb_hash genesis;
    struct neb_record *open[NEB_CAPTURES]; /* the last OPEN of each fragment that has one */
    struct neb_buf update;                 /* the one in hand of a secure sum */
    struct neb_replay *out;
};

/* One update of the record in hand. */
struct part {
    struct neb_buf bytes;
    struct neb_codec_view view;
    bool open;
    float *values; /* (NEB_CELL) */
    uint16_t site;
    uint8_t cls;
    uint32_t weight;
};

/* ---- genesis ------------------------------------------------------------------------------------------- */

static neb_status load_genesis(struct replay *r)
{
    struct neb_buf theta;
    neb_status status = NEB_OK;
    neb__buf_init(&theta, (size_t)1 << 40);
    for (uint32_t c = 0; status == NEB_OK; c++) {
        char name[32];
        size_t before = theta.len;
        snprintf(name, sizeof name, "genesis-%u", c);
        status = neb__blob_load(&r->disk, name, &theta);
        size_t n = theta.len - before;
        if (status == NEB_OK && (n % 4 || !n || n > 4 * NEB_CELL || before % (4 * NEB_CELL)))
            status = neb__fail(NEB_ERR_CORRUPT, "%s does not hold one cell of initial values", name);
    }
    if (status == NEB_ERR_NOTFOUND && theta.len)
        status = neb__outer_create((uint32_t)NEB_CELL, (const float *)(const void *)theta.data, theta.len / 4,
                                   &r->outer);
    else if (status == NEB_ERR_NOTFOUND)
        status = neb__fail(status, "the folder holds no initial values: this site has not begun a run");
    neb__buf_free(&theta);
    return status;
}

/* ---- records ------------------------------------------------------------------------------------------- */

static neb_status open_part(struct replay *r, const struct neb_record *rec, const struct neb_named *p,
                            size_t n, struct part *out)
{
    struct neb_update_header h;
    neb__buf_init(&out->bytes, (size_t)1 << 31);
    neb_status status = neb__update_load(&r->updates, &p->hash, &out->bytes);
    if (status == NEB_ERR_NOTFOUND)
        return neb__fail(status,
                         "record %" PRIu64
                         " names an update of site %u that is not on this disk: only a run with "
                         "`wan.archive: yes` can be replayed, and not at a site that was away and took "
                         "whole cells in place of the updates",
                         rec->index, p->site);
    NEB_TRY(status);
    NEB_TRY(neb__update_header_get(out->bytes.data, out->bytes.len, &h));
    if (h.c0 != rec->c0 || h.c1 != rec->c1 || h.site != p->site || h.k != p->k)
        return neb__fail(NEB_ERR_CORRUPT, "record %" PRIu64 " names an update of other cells", rec->index);
    NEB_TRY(neb__codec_open(out->bytes.data + neb__update_code_at(&h), neb__update_code_size(&h), NULL, n,
                            &out->view));
    out->open = true;
    out->site = p->site;
    out->cls = h.cls;
    out->values = neb__malloc(NEB_CELL * sizeof *out->values);
    return out->values ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a replay");
}

static neb_status measure(struct replay *r, const struct neb_record *rec, struct part *part, double *norm)
{
    double sum = 0;
    for (uint32_t c = rec->c0; c < rec->c1; c++) {
        size_t first, n = neb__outer_cell(r->outer, c, &first);
        NEB_TRY(neb__codec_cell(&part->view, c - rec->c0, part->values));
        sum += neb__norms_square(part->values, n);
    }
    *norm = sqrt(sum);
    return NEB_OK;
}

/* What the rule of influence needs of a record. */
struct lengths {
    uint16_t site[NEB_SITES_MAX];
    uint8_t cls[NEB_SITES_MAX];
    double norm[NEB_SITES_MAX];
    float scale[NEB_SITES_MAX];
    struct neb_norm_step step;
};

static neb_status find_lengths(struct replay *r, const struct neb_record *rec, struct part *part, uint32_t n,
                               struct lengths *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out->site[i] = part[i].site;
        out->cls[i] = part[i].cls;
        NEB_TRY(measure(r, rec, &part[i], &out->norm[i]));
    }
    out->step = (struct neb_norm_step){n, out->site, out->cls, out->norm};
    return NEB_OK;
}

static void shorten(struct replay *r, struct part *part, uint32_t cell, bool enough, struct lengths *l)
{
    const struct neb_norm_rule rule = {r->influence.clip, r->influence.bound};
    size_t first, n = neb__outer_cell(r->outer, cell, &first);
    neb__norms_scales(&r->outer->norms[cell], &rule, &l->step, l->scale);
    for (uint32_t i = 0; i < l->step.n; i++) {
        if (!enough) l->scale[i] = 0;
        neb__norms_shorten(part[i].values, n, l->scale[i]);
    }
}

static neb_status apply_cells(struct replay *r, const struct neb_record *rec, struct part *part,
                              const uint32_t *weight, uint32_t n)
{
    const float *values[NEB_SITES_MAX] = {0};
    struct lengths lengths = {0};
    struct neb_outer_step step = {.mode =
                                      rec->mode == NEB_MODE_AVERAGE ? NEB_OUTER_AVERAGE : NEB_OUTER_NESTEROV,
                                  .updates = n,
                                  .weight = weight,
                                  .values = values,
                                  .combine = r->influence.combine,
                                  .liars = r->influence.liars};
    memcpy(&step.eta, &rec->eta, 4);
    memcpy(&step.mu, &rec->mu, 4);
    if (r->influence.on) {
        NEB_TRY(find_lengths(r, rec, part, n, &lengths));
        step.norm = &lengths.step;
        step.scale = lengths.scale;
    }
    for (uint32_t c = rec->c0; c < rec->c1; c++) {
        bool finite;
        if (r->outer->version[c] != rec->v)
            return neb__fail(NEB_ERR_CORRUPT, "record %" PRIu64 " is for version %" PRIu64 " of cell %u",
                             rec->index, rec->v, c);
        for (uint32_t i = 0; i < n; i++) {
            NEB_TRY(neb__codec_cell(&part[i].view, c - rec->c0, part[i].values));
            values[i] = part[i].values;
        }
        if (r->influence.on) shorten(r, part, c, neb__outer_enough(&step), &lengths);
        neb__outer_apply(r->outer, c, &step, &finite);
    }
    return NEB_OK;
}

/* ---- secure sums --------------------------------------------------------------------------------------- */

/* Takes the record over. */
static void keep_open(struct replay *r, struct neb_record *rec)
{
    int i = 0;
    while (i < NEB_CAPTURES - 1 && r->open[i] && r->open[i]->c0 != rec->c0) i++;
    neb__free(r->open[i]);
    r->open[i] = rec;
}

static const struct neb_buf *find_update(void *arg, const struct neb_hash *hash)
{
    struct replay *r = arg;
    neb__buf_clear(&r->update);
    return neb__update_load(&r->updates, hash, &r->update) == NEB_OK ? &r->update : NULL;
}

static neb_status apply_sum(struct replay *r, const struct neb_record *rec)
{
    const struct neb_record *open = NULL;
    const struct neb_norm_rule rule = {r->influence.clip, r->influence.bound};
    struct neb_mean_length length;
    struct neb_unmasked sum;
    for (int i = 0; i < NEB_CAPTURES; i++)
        if (r->open[i] && r->open[i]->c0 == rec->c0 && r->open[i]->attempt == rec->attempt) open = r->open[i];
    if (!open || open->c1 != rec->c1 || rec->c1 > r->outer->cells)
        return neb__fail(NEB_ERR_CORRUPT, "record %" PRIu64 " is a sum that no record opened", rec->index);
    float *mean = neb__malloc(NEB_CELL * sizeof *mean);
    if (!mean) return neb__fail(NEB_ERR_NOMEM, "out of memory for a replay");
    neb_status status =
        neb__unmask_open(r->outer, &r->influence, &r->genesis, open, rec, find_update, r, &sum);
    if (status == NEB_OK) neb__mean_length(rec, sum.norm, &length);
    for (uint32_t c = rec->c0; status == NEB_OK && c < rec->c1; c++) {
        const float *values[1] = {mean};
        const uint32_t weight[1] = {1};
        struct neb_outer_step step = {.mode = rec->mode == NEB_MODE_AVERAGE ? NEB_OUTER_AVERAGE
                                                                            : NEB_OUTER_NESTEROV,
                                      .updates = 1,
                                      .weight = weight,
                                      .values = values};
        size_t first, n = neb__outer_cell(r->outer, c, &first);
        bool finite;
        memcpy(&step.eta, &rec->eta, 4);
        memcpy(&step.mu, &rec->mu, 4);
        neb__unmask_cell(&sum, r->outer, c, mean);
        if (r->influence.on) {
            neb__norms_scales(&r->outer->norms[c], &rule, &length.step, &length.scale);
            neb__norms_shorten(mean, n, length.scale);
            step.norm = &length.step;
            step.scale = &length.scale;
        }
        neb__outer_apply(r->outer, c, &step, &finite);
    }
    if (status == NEB_OK) neb__unmask_close(&sum);
    neb__free(mean);
    for (uint32_t i = 0; i < rec->updates; i++) {
        r->out->tokens += neb__influence_tokens(&r->influence, rec, i) * (rec->c1 - rec->c0);
        r->out->steps[rec->update[i].site] += (uint64_t)rec->update[i].tau * (rec->c1 - rec->c0);
    }
    r->out->rounds++;
    r->out->updates += rec->updates;
    return status;
}

static neb_status apply_round(struct replay *r, const struct neb_record *rec)
{
    if (rec->attempt && rec->seeds) return apply_sum(r, rec);
    struct part *part = NEB_NEW_ARRAY(struct part, rec->updates + 1);
    uint32_t weight[NEB_SITES_MAX], capped[NEB_SITES_MAX], n = 0;
    size_t first, last, values;
    neb__influence_weights(&r->influence, rec, capped);
    if (!part) return neb__fail(NEB_ERR_NOMEM, "out of memory for a replay");
    neb_status status = rec->c1 <= r->outer->cells
                            ? NEB_OK
                            : neb__fail(NEB_ERR_CORRUPT,
                                        "record %" PRIu64 " names more cells than the model has", rec->index);
    if (status == NEB_OK) {
        values = neb__outer_cell(r->outer, rec->c1 - 1, &last);
        neb__outer_cell(r->outer, rec->c0, &first);
        for (uint32_t i = 0; status == NEB_OK && i < rec->updates; i++) {
            if (rec->update[i].reject) continue;
            status = open_part(r, rec, &rec->update[i], last + values - first, &part[n]);
            weight[n++] = capped[i];
            /* Each cell learns from them once: summed over the cells here, divided by their number later. */
            r->out->tokens += neb__influence_tokens(&r->influence, rec, i) * (rec->c1 - rec->c0);
            r->out->steps[rec->update[i].site] += (uint64_t)rec->update[i].tau * (rec->c1 - rec->c0);
        }
    }
    if (status == NEB_OK) status = apply_cells(r, rec, part, weight, n);
    for (uint32_t i = 0; i < n; i++) {
        if (part[i].open) neb__codec_close(&part[i].view);
        neb__buf_free(&part[i].bytes);
        neb__free(part[i].values);
    }
    neb__free(part);
    r->out->rounds++;
    r->out->updates += n;
    return status;
}

static neb_status walk(struct replay *r, uint64_t upto)
{
    struct neb_ledger ledger;
    struct neb_ledger_found found;
    NEB_TRY(neb__ledger_open(&r->disk, &ledger, &found));
    neb_status status =
        found.damaged ? neb__fail(NEB_ERR_CORRUPT, "the ledger is damaged; replay the run at another site")
                      : NEB_OK;
    for (uint64_t i = 0; status == NEB_OK && i < found.records && (!upto || i < upto); i++) {
        struct neb_record *rec = NULL;
        status = neb__record_decode(found.bytes.data + found.at[i], found.size[i], &rec);
        if (status == NEB_OK && rec->type == NEB_RECORD_ROUND) status = apply_round(r, rec);
        if (status == NEB_OK && rec->type == NEB_RECORD_OPEN)
            keep_open(r, rec);
        else
            neb__free(rec);
        r->out->records++;
    }
    neb__ledger_found_free(&found);
    return status;
}

static neb_status replay_all(struct replay *r, uint64_t upto)
{
    NEB_TRY(neb__update_files_open(&r->disk, 0, &r->updates));
    NEB_TRY(load_genesis(r));
    if (r->influence.on) NEB_TRY(neb__outer_keep_norms(r->outer));
    NEB_TRY(walk(r, upto));
    r->out->values = r->outer->values;
    r->out->tokens /= r->outer->cells;
    for (int i = 0; i < NEB_SITES_MAX; i++) r->out->steps[i] /= r->outer->cells;
    return neb__outer_root(r->outer, &r->out->root);
}

/* The rule is a fact of the roster's genesis. A folder without a roster is of a test, and has none. */
static neb_status find_rule(const struct neb_chain *chain, const char *run, struct replay *out)
{
    if (!chain) return NEB_OK;
    NEB_TRY(neb__influence_read(chain, &out->influence));
    return neb__chain_run_genesis(chain, run ? run : "", &out->genesis);
}

neb_status neb__run_replay(const char *folder, const char *run, uint64_t upto, struct neb_replay *out)
{
    struct neb_chain *chain = NULL;
    neb_status status = neb__site_roster_load(folder, &chain);
    if (status == NEB_OK || status == NEB_ERR_NOTFOUND)
        status = neb__run_replay_under(chain, folder, run, upto, out);
    neb__chain_free(chain);
    return status;
}

neb_status neb__run_replay_under(const struct neb_chain *chain, const char *folder, const char *run,
                                 uint64_t upto, struct neb_replay *out)
{
    struct neb_replay result = {0};
    struct replay r = {.out = &result};
    char dir[PATH_MAX];
    NEB_TRY(neb__arith_self_test());
    NEB_TRY(neb__codec_self_test());
    NEB_TRY(find_rule(chain, run, &r));
    neb__buf_init(&r.update, (size_t)1 << 31);
    NEB_TRY(neb__run_folder_find(folder, run, dir, sizeof dir));
    NEB_TRY(neb__disk_open_to_read(dir, &r.disk));
    neb_status status = replay_all(&r, upto);
    neb__outer_destroy(r.outer);
    for (int i = 0; i < NEB_CAPTURES; i++) neb__free(r.open[i]);
    neb__buf_free(&r.update);
    neb__disk_close(&r.disk);
    if (status == NEB_OK) *out = result;
    return status;
}
