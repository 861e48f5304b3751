/* site_cut.c: where a model is cut between the sites of a pipeline, and which of them need the text.
 *
 * The first site has the embedding, the last one the loss; where the output is tied to the token table, the first site has
 * both. Every other site has layers that read hidden states alone: what they must know of a batch comes with them
 * (text/batch_outline.h), and the site needs no text. */
#include "task/site_cut.h"
#include "base/log.h"
#include "base/mem.h"
#include "task/settle.h"
#include "task/site_weights.h"

#include <inttypes.h>
#include <math.h>

/* The encoder and the first layer of the decoder share the token table. */
static void keep_starts(const struct neb_arch *a, int stages, struct neb_stage_range *range)
{
    int64_t all = neb__stage_layers(a), first = a->layers + 1, rest = all - first;
    if (a->kind != NEB_ENCODER_DECODER || range[0].end >= first || rest < stages - 1) return;
    range[0].end = first;
    for (int i = 1; i < stages; i++) {
        range[i].first = range[i - 1].end;
        range[i].end = first + rest * i / (stages - 1);
    }
}

static neb_status by_hand(const struct neb_job *j, int64_t all, struct neb_stage_range *range,
                          struct neb_stage_range *hole)
{
    int64_t at = 0, last = j->site[0].last_layers;
    for (int i = 0; i < j->n_sites; i++) {
        range[i] = (struct neb_stage_range){at, at + j->site[i].layers};
        at = range[i].end;
    }
    if (at + last != all)
        return neb__doc_fail(&j->doc, "sites",
                             "the sites have %" PRId64
                             " layers together (sites[].layers), but the model has %" PRId64,
                             at + last, all);
    if (last) *hole = (struct neb_stage_range){range[0].end, at};
    if (last) range[0].end = all;
    return NEB_OK;
}

static int table_sites(const struct neb_job *j, const struct neb_arch *a, const struct neb_stage_range *range)
{
    int holders = 0;
    for (int i = 0; i < j->n_sites; i++) holders += neb__stage_has_table(a, &range[i]);
    return holders;
}

static neb_status check_table(const struct neb_job *j, const struct neb_arch *a,
                              const struct neb_stage_range *range)
{
    if (table_sites(j, a, range) < 2) return NEB_OK;
    if (a->tied && a->head == NEB_HEAD_TOKENS)
        return neb__doc_fail(
            &j->doc, "model",
            "strategy pipeline: the output is tied to the token table (model.tied), which must be at "
            "one site: set model.tied: no, or give site '%s' the last layers, too "
            "(sites[0].last_layers; with %d layers or more the cut does so by itself)",
            j->site[0].name, 2 * j->n_sites);
    return neb__doc_fail(
        &j->doc, "sites",
        "strategy pipeline: encoder and decoder read one token table, which must be at one site: "
        "site '%s' needs at least %" PRId64 " layers, the encoder's and the first of the decoder",
        j->site[0].name, a->layers + 1);
}

/* The output is tied to the token table, and there are layers enough for the first site to have both ends. */
static bool closes(const struct neb_job *j, const struct neb_arch *a)
{
    return a->tied && a->head == NEB_HEAD_TOKENS && neb__stage_layers(a) >= 2 * j->n_sites;
}

/* Both ends of the model at the first site: half as much work at each of them as another site has. */
static neb_status close_ring(const struct neb_job *j, const struct neb_arch *a, struct neb_stage_range *range,
                             struct neb_stage_range *hole)
{
    struct neb_stage_range part[2 * NEB_JOB_SITES];
    const int n = j->n_sites;
    NEB_TRY(neb__stage_cut(a, 2 * n, part));
    keep_starts(a, 2 * n, part);
    for (int i = 1; i < n; i++) range[i] = (struct neb_stage_range){part[2 * i - 1].first, part[2 * i].end};
    range[0] = (struct neb_stage_range){0, neb__stage_layers(a)};
    *hole = (struct neb_stage_range){range[1].first, range[n - 1].end};
    return NEB_OK;
}

/* ---- sites that differ ---------------------------------------------------------------------------------------- */

/* What the first site has of a ring: both ends, of nearly as many layers. */
static double ends_strain(const struct neb_arch *a, const struct neb_stage_range *hole,
                          const struct neb_stage_room *room, const double *bytes)
{
    const struct neb_stage_range head = {0, hole->first}, tail = {hole->end, neb__stage_layers(a)};
    const struct neb_stage_room free_speed = {room->speed, 0};
    double held = 0;
    for (int64_t i = 0; i < tail.end; i++) held += i < head.end || i >= tail.first ? bytes[i] : 0;
    if (room->bytes > 0 && held > room->bytes) return 1e30 * held / room->bytes;
    return neb__stage_strain(a, &head, &free_speed, bytes) + neb__stage_strain(a, &tail, &free_speed, bytes);
}

static neb_status ring_for(const struct neb_job *j, const struct neb_arch *a,
                           const struct neb_stage_room *room, const double *bytes,
                           struct neb_stage_range *range, struct neb_stage_range *hole)
{
    const int64_t all = neb__stage_layers(a), least = a->kind == NEB_ENCODER_DECODER ? a->layers + 1 : 1;
    const int others = j->n_sites - 1;
    struct neb_stage_range middle[NEB_JOB_SITES];
    double best = INFINITY, most;
    for (int64_t head = least; head < all; head++)
        for (int64_t tail = 1; tail <= all - head - others; tail++) {
            const struct neb_stage_range h = {head, all - tail};
            if (least == 1 && (tail > head + 1 || head > tail + 1)) continue;
            const double own = ends_strain(a, &h, room, bytes);
            if (own >= best) continue;
            NEB_TRY(neb__stage_cut_for(a, h.first, h.end, others, 1, room + 1, bytes, middle, &most));
            if (fmax(own, most) >= best) continue;
            best = fmax(own, most);
            *hole = h;
            for (int i = 0; i < others; i++) range[i + 1] = middle[i];
        }
    return NEB_OK; /* not found: the equal cut stays */
}

static bool is_above(const struct neb_job *j, const struct neb_arch *a, const struct neb_stage_room *room,
                     const double *bytes, const struct neb_stage_range *range,
                     const struct neb_stage_range *hole)
{
    for (int i = 0; i < j->n_sites; i++)
        if ((!i && hole->end ? ends_strain(a, hole, room, bytes)
                             : neb__stage_strain(a, &range[i], &room[i], bytes)) >= 1e30)
            return true;
    return false;
}

/* Equal stages stay as they are where all sites are alike, and each has room for its own. */
static neb_status weigh(const struct neb_job *j, const struct neb_model_config *model,
                        const struct neb_arch *a, struct neb_stage_range *range, struct neb_stage_range *hole)
{
    struct neb_site_weights w;
    const int64_t all = neb__stage_layers(a), first = a->kind == NEB_ENCODER_DECODER ? a->layers + 1 : 1;
    double *bytes, most;
    neb__site_weights(j, &w);
    if (!w.limited && !w.paced) return NEB_OK;
    NEB_TRY(neb__site_layer_bytes(j, model, a, &bytes));
    neb_status status = NEB_OK;
    if (w.paced || is_above(j, a, w.site, bytes, range, hole)) {
        const int64_t least = all - first >= j->n_sites - 1 ? first : 1;
        status = hole->end ? ring_for(j, a, w.site, bytes, range, hole)
                           : neb__stage_cut_for(a, 0, all, j->n_sites, least, w.site, bytes, range, &most);
    }
    neb__free(bytes);
    return status;
}

neb_status neb__site_cut(const struct neb_job *j, const struct neb_model_config *model,
                         struct neb_stage_range *range, struct neb_stage_range *hole)
{
    struct neb_arch a;
    NEB_TRY(neb__model_config_check(model, &a));
    *hole = (struct neb_stage_range){0};
    if (j->site[0].layers > 0) {
        NEB_TRY(by_hand(j, neb__stage_layers(&a), range, hole));
    } else {
        NEB_TRY(neb__stage_cut(&a, j->n_sites, range));
        keep_starts(&a, j->n_sites, range);
        if (closes(j, &a)) NEB_TRY(close_ring(j, &a, range, hole));
        NEB_TRY(weigh(j, model, &a, range, hole));
    }
    return check_table(j, &a, range);
}

/* The size of the vocabulary plays no part. */
static bool is_ring(const struct neb_job *j)
{
    struct neb_settled_models models;
    struct neb_arch a;
    if (j->site[0].layers > 0) return j->site[0].last_layers > 0;
    neb__settle_models(j, j->tokenizer.vocab, &models);
    const bool before = neb__log_hush(true);
    const bool ring = neb__model_config_check(&models.model, &a) == NEB_OK && closes(j, &a);
    neb__log_hush(before); /* what is wrong is said where the model is cut */
    return ring;
}

bool neb__site_needs_text(const struct neb_job *j)
{
    if (j->at < 1 || j->plan != NEB_STRATEGY_PIPELINE) return true;
    return j->at == j->n_sites - 1 && !is_ring(j);
}
