/* linear_xent.cu: the output layer with its loss, one chunk of rows at a time: logits, their loss and
 * gradient in place, then the gradients of input and weights. A chunk's logits take at most CHUNK_BYTES and
 * are never kept. */
#include "kernel.cuh"

#define CHUNK_BYTES ((int64_t)1 << 30)

static int64_t padded_classes(const struct neb_linear_xent *p)
{
    return neb__ceil_div(p->classes, 64) * 64; /* rows of logits stay 128-byte aligned for any vocabulary */
}

/* Processes that share out the classes exchange sums chunk by chunk: all of them cut the rows alike. */
static int64_t chunk_rows(const struct neb_linear_xent *p)
{
    int64_t classes = p->share ? neb__ceil_div(p->share->total, p->share->ranks) : p->classes;
    int64_t row = neb__ceil_div(classes, 64) * 64 * (int64_t)neb__type_size(p->type);
    int64_t chunks = neb__ceil_div(p->rows * row, CHUNK_BYTES);
    int64_t rows = neb__ceil_div(neb__ceil_div(p->rows, chunks < 1 ? 1 : chunks), 128) * 128;
    return rows > p->rows ? p->rows : rows;
}

static int64_t sums_bytes(const struct neb_linear_xent *p)
{
    int64_t n = p->share ? chunk_rows(p) * p->share->ranks * (int64_t)sizeof(struct neb_class_sums) : 0;
    return neb__ceil_div(n, 256) * 256;
}

int64_t neb__linear_xent_scratch(struct neb_cuda *dev, const struct neb_linear_xent *p)
{
    (void)dev;
    if (p->rows <= 0) return 0;
    int64_t logits = chunk_rows(p) * padded_classes(p) * (int64_t)neb__type_size(p->type);
    return neb__ceil_div(logits, 256) * 256 + neb__ceil_div(p->rows * 5, 256) * 256 + sums_bytes(p);
}

/* A vocabulary is rarely a multiple of eight, but cuBLASLt's fast kernels need multiples of eight. So every
 * product over the classes runs over the largest multiple and once more, cheaply, over the few classes that
 * are left. */
static int64_t even_classes(const struct neb_linear_xent *p)
{
    return p->classes >= 64 ? p->classes / 8 * 8 : p->classes;
}

static neb_status logits_of(struct neb_cuda *dev, const struct neb_linear_xent *p, const char *x,
                            int64_t rows, char *logits)
{
    size_t size = neb__type_size(p->type);
    int64_t even = even_classes(p);
    for (int64_t first = 0; first < p->classes; first += even) {
        struct neb_linear l = {};
        l.x = x, l.w = (const char *)p->w + first * p->in * size, l.y = logits + first * size;
        if (p->bias) l.bias = (const char *)p->bias + first * size;
        l.rows = rows, l.in = p->in, l.out = first ? p->classes - even : even;
        l.ldx = p->in, l.ldy = padded_classes(p), l.alpha = 1.f, l.type = p->type;
        NEB_TRY(neb__cuda_linear(dev, &l));
    }
    return NEB_OK;
}

static neb_status gradients_of(struct neb_cuda *dev, const struct neb_linear_xent *p, const char *x, char *dx,
                               int64_t rows, char *logits, int acc_dw)
{
    size_t size = neb__type_size(p->type);
    int64_t even = even_classes(p);
    for (int64_t first = 0; first < p->classes; first += even) {
        struct neb_linear_bwd l = {};
        l.g = logits + first * size, l.x = x, l.w = (const char *)p->w + first * p->in * size;
        l.dx = dx, l.dw = p->dw ? p->dw + first * p->in : NULL;
        l.rows = rows, l.in = p->in, l.out = first ? p->classes - even : even;
        l.ldg = padded_classes(p), l.ldx = p->in, l.lddx = p->in;
        l.acc_dx = first > 0, l.acc_dw = acc_dw, l.alpha = 1.f, l.type = p->type;
        NEB_TRY(neb__cuda_linear_bwd(dev, &l));
    }
    return NEB_OK;
}

static neb_status xent_chunk(struct neb_cuda *dev, const struct neb_linear_xent *p, int64_t first,
                             int64_t rows, char *logits, struct neb_class_sums *sums, float *losses,
                             uint8_t *marks)
{
    size_t size = neb__type_size(p->type);
    int64_t ld = padded_classes(p);
    const char *x = (const char *)p->x + first * p->in * size;
    NEB_TRY(logits_of(dev, p, x, rows, logits));

    struct neb_xent xent = {};
    xent.logits = logits, xent.rows = rows, xent.classes = p->classes, xent.ld = ld,
    xent.want_grad = p->want_grad;
    xent.t = p->t, xent.loss = p->loss, xent.type = p->type;
    if (xent.t.target) xent.t.target += first;
    if (xent.t.teacher_ids) xent.t.teacher_ids += first * p->t.teacher_k;
    if (xent.t.teacher_logits)
        xent.t.teacher_logits += first * (p->t.teacher_ids ? p->t.teacher_k : p->classes);
    if (xent.loss.weight) xent.loss.weight += first;
    NEB_TRY(p->share ? neb__class_rows(dev, &xent, p->share, sums, losses + first, marks + first)
                     : neb__xent_rows(dev, &xent, losses + first, marks + first));
    if (!p->want_grad) return NEB_OK;

    char *dx = p->dx ? (char *)p->dx + first * p->in * size : NULL;
    NEB_TRY(gradients_of(dev, p, x, dx, rows, logits, first > 0 || p->acc_dw));
    if (!p->db) return NEB_OK;
    struct neb_colsum columns = {logits, p->db, rows, p->classes, ld, first > 0 || p->acc_db, p->type};
    return neb__cuda_colsum(dev, &columns);
}

neb_status neb__cuda_linear_xent(void *ctx, const struct neb_linear_xent *p)
{
    struct neb_cuda *dev = neb__cuda(ctx);
    if (p->share && (p->t.kd != 0.f || !p->t.target))
        return neb__cuda_fail(dev, NEB_ERR_UNSUPPORTED,
                              "cuda: linear_xent: shared classes have targets and no teacher");
    if (p->rows <= 0) return NEB_OK;
    int64_t step = chunk_rows(p), bytes = step * padded_classes(p) * (int64_t)neb__type_size(p->type);
    struct neb_class_sums *sums = (struct neb_class_sums *)p->scratch;
    char *logits = (char *)p->scratch + sums_bytes(p);
    float *losses = (float *)(logits + neb__ceil_div(bytes, 256) * 256);
    uint8_t *marks = (uint8_t *)(losses + p->rows);
    for (int64_t first = 0; first < p->rows; first += step)
        NEB_TRY(xent_chunk(dev, p, first, p->rows - first < step ? p->rows - first : step, logits, sums,
                           losses, marks));
    return neb__sum_losses(dev, losses, marks, p->rows, p->loss.ctl, p->loss.slot);
}
