/* stage.c: cutting a model into stages, and running one of them.
 *
 * Work is counted in multiplications for a row of the batch: the products of each layer, and the output over
 * the vocabulary, which is worth several layers in a small model. Encoders predict masked rows only, about one
 * in seven. An embedding multiplies nothing, but moves a row in the forward and one in the backward. */
#include "base/mem.h"
#include "nn/model.h"
#include "tensor/slot.h"

#include <math.h>

enum { MOVE = 16, ATTENDED = 128 }; /* a moved value in multiplications; keys that a query meets */
static const double masked_share = 0.15;

/* ---- what a stage has ------------------------------------------------------------------------------------- */

static int64_t encoder_layers(const struct neb_arch *a)
{
    return a->kind == NEB_DECODER ? 0 : a->layers;
}

int64_t neb__stage_layers(const struct neb_arch *a)
{
    return a->kind == NEB_ENCODER_DECODER ? a->layers + a->decoder_layers : a->layers;
}

bool neb__stage_has_layer(const struct neb_stage *s, int64_t layer)
{
    bool inside = layer >= s->range.first && layer < s->range.end;
    return inside && !(layer >= s->hole.first && layer < s->hole.end);
}

bool neb__stage_has_encoder_start(const struct neb_arch *a, const struct neb_stage_range *r)
{
    return a->kind != NEB_DECODER && r->first == 0;
}

bool neb__stage_has_decoder_start(const struct neb_arch *a, const struct neb_stage_range *r)
{
    int64_t at = encoder_layers(a);
    return a->kind != NEB_ENCODER && r->first <= at && at < r->end;
}

bool neb__stage_is_last(const struct neb_arch *a, const struct neb_stage_range *r)
{
    return r->end == neb__stage_layers(a);
}

bool neb__stage_has_table(const struct neb_arch *a, const struct neb_stage_range *r)
{
    return neb__stage_has_encoder_start(a, r) || neb__stage_has_decoder_start(a, r) ||
           (neb__stage_is_last(a, r) && a->head == NEB_HEAD_TOKENS && a->tied);
}

void neb__stage_crossing(const struct neb_arch *a, int64_t layer, bool sides[2])
{
    int64_t encoder = encoder_layers(a);
    sides[0] = layer > 0; /* the encoder's rows cross every cut of the model */
    sides[1] = a->kind == NEB_ENCODER_DECODER && layer > encoder;
}

size_t neb__stage_message(const struct neb_arch *a, int64_t layer, const int64_t rows[2], neb_dtype type)
{
    bool sides[2];
    neb__stage_crossing(a, layer, sides);
    size_t n = (sides[0] ? (size_t)rows[0] : 0) + (sides[1] ? (size_t)rows[1] : 0);
    return n * (size_t)a->hidden * neb_dtype_size(type);
}

/* ---- cutting ---------------------------------------------------------------------------------------------- */

static double layer_cost(const struct neb_arch *a, bool cross)
{
    double d = (double)a->hidden, q = (double)(a->heads * a->head_dim);
    double kv = (double)(a->kv_heads * a->head_dim), ffn = (double)a->ffn;
    double attention = d * (q + 2 * kv) + q * d + 2 * q * ATTENDED;
    return (cross ? 2 : 1) * attention + (a->swiglu ? 3 : 2) * d * ffn;
}

static double head_cost(const struct neb_arch *a)
{
    double d = (double)a->hidden, e = (double)a->embedding;
    if (a->head == NEB_HEAD_RTD) return d * d;
    if (a->head != NEB_HEAD_TOKENS) return 0;
    return a->kind == NEB_ENCODER ? masked_share * (e * (double)a->vocab + d * e) : e * (double)a->vocab;
}

static double cost_of(const struct neb_arch *a, int64_t layer)
{
    int64_t encoder = encoder_layers(a), layers = neb__stage_layers(a);
    double cost = layer_cost(a, encoder && layer >= encoder);
    if (layer == 0 || layer == encoder) cost += MOVE * (double)a->embedding;
    if (layer == layers - 1) cost += head_cost(a);
    return cost;
}

double neb__stage_layer_work(const struct neb_arch *a, bool cross)
{
    return layer_cost(a, cross);
}

double neb__stage_ends_work(const struct neb_arch *a)
{
    const int starts = a->kind == NEB_ENCODER_DECODER ? 2 : 1;
    return starts * MOVE * (double)a->embedding + head_cost(a);
}

double neb__stage_ends(const struct neb_arch *a, const struct neb_stage_range *r)
{
    const int starts = neb__stage_has_encoder_start(a, r) + neb__stage_has_decoder_start(a, r);
    const double here = starts * MOVE * (double)a->embedding + (neb__stage_is_last(a, r) ? head_cost(a) : 0);
    return here / neb__stage_ends_work(a);
}

static bool fits(const double *cost, int64_t layers, int stages, double most, struct neb_stage_range *range)
{
    int64_t at = 0;
    for (int s = 0; s < stages; s++) {
        int64_t first = at, behind = stages - 1 - s; /* stages that still need a layer each */
        double sum = 0;
        while (at < layers - behind && (at == first || sum + cost[at] <= most)) sum += cost[at++];
        if (sum > most) return false;
        range[s] = (struct neb_stage_range){first, at};
    }
    return at == layers;
}

/* The smallest `most` with which all layers fit: it is the work of some run of layers. */
neb_status neb__stage_cut(const struct neb_arch *a, int stages, struct neb_stage_range *range)
{
    int64_t layers = neb__stage_layers(a);
    if (stages < 1 || stages > layers)
        return neb__fail(NEB_ERR_CONFIG,
                         "a model of %" PRId64
                         " layers cannot be cut into %d stages: every stage needs a layer",
                         layers, stages);
    double *cost = NEB_NEW_ARRAY(double, (size_t)layers), low = 0, high = 0;
    if (!cost) return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " layers", layers);
    for (int64_t i = 0; i < layers; i++) high += cost[i] = cost_of(a, i);
    for (int i = 0; i < 60; i++) {
        double most = (low + high) / 2;
        if (fits(cost, layers, stages, most, range))
            high = most;
        else
            low = most;
    }
    bool found = fits(cost, layers, stages, high, range);
    neb__free(cost);
    return found ? NEB_OK : neb__fail(NEB_ERR_INTERNAL, "no cut of %" PRId64 " layers was found", layers);
}

/* What is above its bytes is worse than any time. */
static double strain(double work, double bytes, const struct neb_stage_room *room)
{
    static const double above = 1e30;
    if (room->bytes > 0 && bytes > room->bytes) return above * bytes / room->bytes;
    return work / room->speed;
}

double neb__stage_strain(const struct neb_arch *a, const struct neb_stage_range *r,
                         const struct neb_stage_room *room, const double *layer_bytes)
{
    double work = 0, bytes = 0;
    for (int64_t i = r->first; i < r->end; i++) work += cost_of(a, i), bytes += layer_bytes[i];
    return strain(work, bytes, room);
}

/* best[s][e]: of the first s + 1 stages with the layers up to e; from[s][e]: where the last of them begins. */
neb_status neb__stage_cut_for(const struct neb_arch *a, int64_t first, int64_t end, int stages, int64_t least,
                              const struct neb_stage_room *room, const double *layer_bytes,
                              struct neb_stage_range *range, double *most)
{
    const int64_t n = end - first, row = n + 1;
    if (stages < 1 || n < stages)
        return neb__fail(NEB_ERR_CONFIG,
                         "%" PRId64 " layers cannot be cut into %d stages: every stage needs a layer", n,
                         stages);
    double *best = NEB_NEW_ARRAY(double, (size_t)(stages * row));
    int64_t *from = NEB_NEW_ARRAY(int64_t, (size_t)(stages * row));
    if (!best || !from) {
        neb__free(best);
        neb__free(from);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " layers", n);
    }
    for (int64_t i = 0; i < stages * row; i++) best[i] = INFINITY;
    for (int s = 0; s < stages; s++)
        for (int64_t e = s ? s + 1 : least; e <= n; e++) {
            double work = 0, bytes = 0;
            for (int64_t b = e - 1; b >= s; b--) {
                work += cost_of(a, first + b), bytes += layer_bytes[first + b];
                if (!s && b) continue;
                const double here = strain(work, bytes, &room[s]), before = s ? best[(s - 1) * row + b] : 0;
                const double now = here > before ? here : before;
                if (now < best[s * row + e]) best[s * row + e] = now, from[s * row + e] = b;
            }
        }
    *most = best[(stages - 1) * row + n];
    for (int64_t s = stages - 1, e = n; range && s >= 0; e = from[s * row + e], s--)
        range[s] = (struct neb_stage_range){first + from[s * row + e], first + e};
    neb__free(best);
    neb__free(from);
    return NEB_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

struct crossing {
    struct neb_model *m;
    neb_tape *t;
    size_t at; /* in the message */
};

static neb_tensor *receive(struct crossing *c, int64_t rows)
{
    const struct neb_stage *g = &c->m->stage;
    neb_tensor *x = neb__op_stage_in(c->t, g->in, g->in_grad, c->at, rows, c->m->arch.hidden);
    c->at += (size_t)(rows * c->m->arch.hidden) * neb_dtype_size(neb_compute_type(c->t));
    return x;
}

static void send(struct crossing *c, neb_tensor *x)
{
    int64_t shape[4] = {0};
    const struct neb_stage *g = &c->m->stage;
    neb__op_stage_out(c->t, x, g->out, g->out_grad, c->at);
    if (neb_tensor_shape(x, shape))
        c->at += (size_t)(shape[0] * shape[1]) * neb_dtype_size(neb_compute_type(c->t));
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

neb_tensor *neb__stage_run(struct neb_model *m, neb_tape *t, const struct neb_input *in)
{
    const struct neb_stage_range *r = &m->stage.range;
    const int64_t encoder = m->encoder.count;
    const struct neb_input_side *first = &in->side[0], *last = &in->side[m->arch.kind == NEB_ENCODER_DECODER];
    struct crossing from = {m, t, 0}, to = from;
    neb_tensor *x = NULL, *memory = NULL;
    if (r->first > encoder) x = receive(&from, last->rows); /* inside the decoder */
    if (r->first > 0 && r->first < encoder) x = receive(&from, first->rows);
    if (r->first >= encoder && encoder) memory = receive(&from, first->rows);
    if (r->first < encoder) {
        x = neb__stack_run(m, &m->encoder, t,
                           &(struct neb_stack_run){
                               .side = first, .first = r->first, .end = smaller(r->end, encoder), .x = x});
        if (r->end >= encoder && m->decoder.count) memory = x, x = NULL;
    }
    if (r->end > encoder)
        x = neb__stack_run(m, &m->decoder, t,
                           &(struct neb_stack_run){.side = last,
                                                   .memory_side = encoder ? first : NULL,
                                                   .memory = memory,
                                                   .first = larger(r->first - encoder, 0),
                                                   .end = r->end - encoder,
                                                   .x = x});
    if (neb__stage_is_last(&m->arch, r)) return x;
    if (x) send(&to, x);
    if (memory) send(&to, memory);
    return NULL;
}
