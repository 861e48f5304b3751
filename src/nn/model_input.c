/* model_input.c: one device buffer for everything a step reads.
 *
 * The buffer is a sequence of arrays, each 64-byte aligned and sized for the limits, so an array's offset
 * depends on the limits alone. The host keeps a staging copy of the same layout and uploads all of it: one
 * transfer per step.
 *
 * An unused loss row gets the index -1. Gathering it gives zeros and scattering its gradient does nothing. So
 * the used indices stay distinct, on which the scatter of a parallel device relies.
 *
 * A trained prompt is tokens like any other: every sequence is given its virtual ids, and the text's positions and loss
 * rows move on behind them. Nothing else of a step knows of it. */
#include "nn/model_input.h"
#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

enum side_array {
    IDS,
    POSITION,
    AT,
    TYPE,
    SAMPLE,
    STARTS,
    SEQ_SAMPLE,
    ZERO,
    PREFIX_STARTS,
    PREFIX_ID,
    PREFIX_ROW,
    SIDE_ARRAYS
};
enum { MAX_ROWS = 1 << 28, MAX_PREFIX = 1 << 16 };

struct neb_model_input {
    struct neb_model_input_limits limits;
    neb_buffer *buffer;
    int32_t *host; /* staging, the buffer's layout */
    size_t bytes;
    size_t side_at[2][SIDE_ARRAYS], target_row_at, target_at, weight_at; /* in elements of four bytes */

    int32_t *wide; /* host: a side with its prompts, and the loss rows; NULL: there is no prompt */

    /* what was loaded last */
    int sides;
    int32_t rows[2], seqs[2], max_len[2], targets;
    bool dense; /* prediction i is row i */
    double weight;
    struct neb_input input;
};

static size_t take(size_t *at, int64_t count)
{
    size_t here = *at;
    *at += ((size_t)count + 15) / 16 * 16;
    return here;
}

static int64_t prefix_rows(const struct neb_model_input *f, int64_t rows, int64_t seqs)
{
    return rows + seqs * f->limits.prefix;
}

static void lay_out(struct neb_model_input *f)
{
    const struct neb_model_input_limits *l = &f->limits;
    size_t at = 0;
    for (int s = 0; s < 2; s++) {
        if (!l->rows[s]) continue;
        for (int a = 0; a < SIDE_ARRAYS; a++) {
            int64_t n = l->rows[s];
            if (a == STARTS || a == PREFIX_STARTS) n = l->seqs + 1;
            if (a == SEQ_SAMPLE || a == ZERO) n = l->seqs;
            if (a == PREFIX_ID) n = prefix_rows(f, n, l->seqs);
            if (a >= PREFIX_STARTS && !l->prefix) n = 0;
            f->side_at[s][a] = take(&at, n);
        }
    }
    f->target_row_at = take(&at, l->targets);
    f->target_at = take(&at, l->targets);
    f->weight_at = take(&at, l->targets);
    f->bytes = at * 4;
}

/* ids, position, at, sample of the rows; starts; loss rows. */
static size_t wide_values(const struct neb_model_input *f)
{
    return 4 * (size_t)f->limits.rows[0] + (size_t)f->limits.seqs + 1 + (size_t)f->limits.targets;
}

neb_status neb__model_input_create(neb_device *d, const struct neb_model_input_limits *limits,
                                   struct neb_model_input **out)
{
    const struct neb_model_input_limits *l = limits;
    if (l->rows[0] < 1 || l->rows[0] > MAX_ROWS || l->rows[1] < 0 || l->rows[1] > MAX_ROWS || l->seqs < 1 ||
        l->seqs > MAX_ROWS || l->targets < 0 || l->targets > MAX_ROWS || l->prefix < 0 ||
        l->prefix > MAX_PREFIX || (int64_t)l->seqs * l->prefix > MAX_ROWS || l->prompt < 0 ||
        l->prompt > MAX_PREFIX || (int64_t)l->seqs * l->prompt > MAX_ROWS || (l->prompt && l->rows[1]))
        return neb__fail(
            NEB_ERR_INVALID,
            "a model input of %d+%d rows, %d sequences, %d targets and prefix %d is not possible", l->rows[0],
            l->rows[1], l->seqs, l->targets, l->prefix);
    struct neb_model_input *f = NEB_NEW(struct neb_model_input);
    if (!f) return neb__fail(NEB_ERR_NOMEM, "out of memory for a model input");
    f->limits = *limits;
    f->limits.rows[0] += l->seqs * l->prompt;
    lay_out(f);
    f->host = neb__aligned(f->bytes);
    if (l->prompt) f->wide = NEB_NEW_ARRAY(int32_t, wide_values(f));
    neb_status status =
        f->host && (f->wide || !l->prompt)
            ? neb_buffer_create(d, f->bytes, &f->buffer)
            : neb__fail(NEB_ERR_NOMEM, "out of memory for a model input of %zu bytes", f->bytes);
    if (status != NEB_OK) {
        neb__model_input_destroy(f);
        return status;
    }
    memset(f->host, 0, f->bytes);
    *out = f;
    return NEB_OK;
}

void neb__model_input_destroy(struct neb_model_input *f)
{
    if (!f) return;
    neb_buffer_destroy(f->buffer);
    neb__free(f->host);
    neb__free(f->wide);
    neb__free(f);
}

/* ---- loading ------------------------------------------------------------------------------------------- */

static neb_status check_side(const struct neb_model_input *f, int i, const struct neb_model_input_side *s)
{
    if (s->rows < 1 || s->spare < 0 || s->spare > f->limits.rows[i] ||
        s->rows > f->limits.rows[i] - s->spare || s->seqs < 1 || s->seqs > f->limits.seqs || s->max_len < 1)
        return neb__fail(NEB_ERR_RANGE,
                         "side %d of a batch has %d rows and %d sequences, the longest of %d rows; the model "
                         "input has room "
                         "for %d rows and %d sequences",
                         i, s->rows + s->spare, s->seqs, s->max_len, f->limits.rows[i], f->limits.seqs);
    if (s->starts[0] != 0 || s->starts[s->seqs] != s->rows)
        return neb__fail(NEB_ERR_RANGE,
                         "side %d of a batch: sequences cover rows %d to %d, but there are %d rows", i,
                         s->starts[0], s->starts[s->seqs], s->rows);
    for (int32_t q = 0; q < s->seqs; q++) {
        int64_t n = (int64_t)s->starts[q + 1] - s->starts[q];
        if (n < 0 || n > s->max_len)
            return neb__fail(NEB_ERR_RANGE,
                             "side %d of a batch: sequence %d has %" PRId64 " rows; 0 to %d are possible", i,
                             q, n, s->max_len);
    }
    return NEB_OK;
}

static neb_status check_targets(const struct neb_model_input *f, const struct neb_model_input_data *d)
{
    if (d->targets < 0 || d->targets > f->limits.targets)
        return neb__fail(NEB_ERR_RANGE, "a batch has %d targets; the model input has room for %d", d->targets,
                         f->limits.targets);
    int32_t rows = d->side[d->sides - 1].rows;
    for (int32_t i = 0; d->target_row && i < d->targets; i++)
        if (d->target_row[i] >= rows)
            return neb__fail(NEB_ERR_RANGE, "target %d of a batch is row %d, but there are %d rows", i,
                             d->target_row[i], rows);
    return NEB_OK;
}

static void load_prefix(struct neb_model_input *f, int i, const struct neb_model_input_side *s)
{
    int32_t p = f->limits.prefix, at = 0;
    int32_t *starts = f->host + f->side_at[i][PREFIX_STARTS], *id = f->host + f->side_at[i][PREFIX_ID],
            *row = f->host + f->side_at[i][PREFIX_ROW];
    for (int32_t q = 0; q < s->seqs; q++) {
        starts[q] = at;
        for (int32_t j = 0; j < p; j++) id[at++] = j;
        for (int32_t r = s->starts[q]; r < s->starts[q + 1]; r++) {
            row[r] = at;
            id[at++] = -1;
        }
    }
    starts[s->seqs] = at;
    for (int32_t r = s->rows; r < s->rows + s->spare; r++) row[r] = id[at++] = -1;
}

static void load_side(struct neb_model_input *f, int i, const struct neb_model_input_side *s)
{
    size_t n = (size_t)s->rows * 4;
    int32_t *type = f->host + f->side_at[i][TYPE], *seq_sample = f->host + f->side_at[i][SEQ_SAMPLE];
    memcpy(f->host + f->side_at[i][IDS], s->ids, n);
    memcpy(f->host + f->side_at[i][POSITION], s->position, n);
    memcpy(f->host + f->side_at[i][AT], s->at ? s->at : s->position, n);
    memcpy(f->host + f->side_at[i][SAMPLE], s->sample, n);
    memcpy(f->host + f->side_at[i][STARTS], s->starts, ((size_t)s->seqs + 1) * 4);
    if (s->type)
        memcpy(type, s->type, n);
    else
        memset(type, 0, n);
    for (int32_t q = 0; q < s->seqs; q++) /* an empty sequence draws no bits, so any id will do */
        seq_sample[q] = s->starts[q] < s->rows ? (int32_t)s->sample[s->starts[q]] : -1;
    if (f->limits.prefix) load_prefix(f, i, s);
    for (int a = IDS; a <= SAMPLE; a++)
        memset(f->host + f->side_at[i][a] + s->rows, a == SAMPLE ? 0xff : 0, (size_t)s->spare * 4);
    f->rows[i] = s->rows + s->spare;
    f->seqs[i] = s->seqs;
    f->max_len[i] = s->max_len;
}

static void load_targets(struct neb_model_input *f, const struct neb_model_input_data *d)
{
    int32_t *row = f->host + f->target_row_at;
    float *weight = (float *)(f->host + f->weight_at);
    bool dense = true;
    f->targets = d->targets;
    f->weight = 0;
    for (int32_t i = 0; i < d->targets; i++) {
        float w = d->weight ? d->weight[i] : 1;
        if (d->target[i] < 0) w = 0;
        int32_t r = d->target_row ? d->target_row[i] : i;
        f->host[f->target_at + (size_t)i] = d->target[i];
        weight[i] = w;
        row[i] = w != 0 ? r : -1;
        dense = dense && (r == i || w == 0);
        f->weight += w;
    }
    /* Classes have one target per sequence and no rows of their own, so they count as dense, too. */
    f->dense = !d->target_row || (dense && d->targets == d->side[d->sides - 1].rows);
}

/* The sequence that a row belongs to: the last one that begins at or before it. */
static int32_t sequence_of(const struct neb_model_input_side *s, int32_t row)
{
    int32_t low = 0, high = s->seqs - 1;
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (s->starts[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The same batch with a prompt before every sequence. */
static neb_status with_prompts(struct neb_model_input *f, const struct neb_model_input_data *d,
                               struct neb_model_input_data *out)
{
    const struct neb_model_input_side *s = &d->side[0];
    const int32_t p = f->limits.prompt, room = f->limits.rows[0];
    int32_t *ids = f->wide, *position = ids + room, *at = position + room, *sample = at + room,
            *starts = sample + room, *target_row = starts + f->limits.seqs + 1, row = 0;
    if (s->rows + s->seqs * p + s->spare > room || s->max_len > f->limits.positions - p)
        return neb__fail(
            NEB_ERR_RANGE,
            "texts of up to %d tokens behind a prompt of %d do not fit the model's %d positions; "
            "make train.max_len smaller",
            s->max_len, p, f->limits.positions);
    for (int32_t q = 0, r = 0; q < s->seqs; q++) {
        starts[q] = row;
        for (int32_t j = 0; j < p; j++, row++) {
            ids[row] = f->limits.prompt_id + j;
            position[row] = at[row] = j;
            sample[row] = s->starts[q] < s->rows ? (int32_t)s->sample[s->starts[q]] : -1;
        }
        for (; r < s->starts[q + 1]; r++, row++) {
            ids[row] = s->ids[r];
            position[row] = s->position[r] + p;
            at[row] = (s->at ? s->at[r] : s->position[r]) + p;
            sample[row] = (int32_t)s->sample[r];
        }
    }
    starts[s->seqs] = row;
    for (int32_t i = 0; i < d->targets; i++) {
        const int32_t r = d->target_row ? d->target_row[i] : i;
        target_row[i] = r < 0 ? r : r + (sequence_of(s, r) + 1) * p;
    }
    *out = *d;
    out->target_row = target_row;
    out->side[0] = (struct neb_model_input_side){.rows = row,
                                                 .seqs = s->seqs,
                                                 .max_len = s->max_len + p,
                                                 .ids = ids,
                                                 .position = position,
                                                 .sample = (const uint32_t *)sample,
                                                 .starts = starts,
                                                 .at = at,
                                                 .spare = s->spare};
    return NEB_OK;
}

static neb_status load(struct neb_model_input *f, const struct neb_model_input_data *d)
{
    for (int i = 0; i < d->sides; i++) load_side(f, i, &d->side[i]);
    f->sides = d->sides;
    load_targets(f, d);
    return neb_buffer_upload(f->buffer, f->host, f->bytes);
}

neb_status neb__model_input_load(struct neb_model_input *f, const struct neb_model_input_data *d)
{
    struct neb_model_input_data wide;
    if (d->sides < 1 || d->sides > 2 || (d->sides == 2 && !f->limits.rows[1]))
        return neb__fail(NEB_ERR_RANGE, "a batch of %d sides does not fit the model input", d->sides);
    for (int i = 0; i < d->sides; i++) NEB_TRY(check_side(f, i, &d->side[i]));
    if (d->sides == 2 && d->side[0].seqs != d->side[1].seqs)
        return neb__fail(NEB_ERR_RANGE,
                         "a batch has %d source sequences and %d target sequences; the numbers must be equal",
                         d->side[0].seqs, d->side[1].seqs);
    NEB_TRY(check_targets(f, d));
    if (!f->limits.prompt) return load(f, d);
    NEB_TRY(with_prompts(f, d, &wide));
    return load(f, &wide);
}

uint64_t neb__model_input_key(const struct neb_model_input *f)
{
    uint64_t h = (uint64_t)f->sides * 2 + f->dense;
    for (int i = 0; i < f->sides; i++) {
        h = neb__mix64(h ^ (uint64_t)f->rows[i] << 32 ^ (uint64_t)f->seqs[i]);
        h = neb__mix64(h ^ (uint64_t)f->max_len[i]);
    }
    return neb__mix64(h ^ (uint64_t)f->targets);
}

double neb__model_input_weight(const struct neb_model_input *f)
{
    return f->weight;
}

/* ---- inside a model ------------------------------------------------------------------------------------ */

static neb_tensor *view(struct neb_model_input *f, neb_tape *t, size_t at, neb_dtype type, int64_t n)
{
    return neb_input_at(t, f->buffer, at * 4, type, 1, &n);
}

static void input_side(struct neb_model_input *f, neb_tape *t, int i, struct neb_input_side *out)
{
    const size_t *at = f->side_at[i];
    int64_t rows = f->rows[i], seqs = f->seqs[i], p = f->limits.prefix;
    *out = (struct neb_input_side){.rows = rows, .prefix_rows = prefix_rows(f, rows, seqs)};
    out->ids = view(f, t, at[IDS], NEB_I32, rows);
    out->position = view(f, t, at[POSITION], NEB_I32, rows);
    out->at = view(f, t, at[AT], NEB_I32, rows);
    out->type = view(f, t, at[TYPE], NEB_I32, rows);
    out->sample = view(f, t, at[SAMPLE], NEB_I32, rows);
    out->first = view(f, t, at[STARTS], NEB_I32, seqs);
    out->zero = view(f, t, at[ZERO], NEB_I32, seqs);
    out->seqs.starts = view(f, t, at[STARTS], NEB_I32, seqs + 1);
    out->seqs.sample = view(f, t, at[SEQ_SAMPLE], NEB_I32, seqs);
    out->seqs.count = seqs;
    out->seqs.max_len = f->max_len[i];
    if (!p) return;
    out->with_prefix = out->seqs;
    out->with_prefix.starts = view(f, t, at[PREFIX_STARTS], NEB_I32, seqs + 1);
    out->with_prefix.max_len += p;
    out->prefix_id = view(f, t, at[PREFIX_ID], NEB_I32, out->prefix_rows);
    out->prefix_row = view(f, t, at[PREFIX_ROW], NEB_I32, rows);
}

const struct neb_input *neb__model_input_tensors(struct neb_model_input *f, neb_tape *t)
{
    struct neb_input *in = &f->input;
    *in = (struct neb_input){.targets = f->targets};
    for (int i = 0; i < f->sides; i++) input_side(f, t, i, &in->side[i]);
    if (!f->targets) return in;
    if (!f->dense) in->target_row = view(f, t, f->target_row_at, NEB_I32, f->targets);
    in->target = view(f, t, f->target_at, NEB_I32, f->targets);
    in->weight = view(f, t, f->weight_at, NEB_F32, f->targets);
    return in;
}
