/* beside.c: gradients that the copies of a model add up while the last micro-batch still runs backwards.
 *
 * The slab is cut into buckets, from its end to its beginning: a model's parameters lie in it in the order in which ops read them, so
 * their gradients become complete in the opposite one. A bucket is begun when all of its gradients are complete and the bucket before
 * it is begun. So all ranks begin the same buckets in the same order, whatever their last micro-batches reach; what is left when the
 * runs are over is begun then. The sums are the same bits whenever they are begun.
 *
 * On GPUs that exchange by themselves the sums go on beside the compute stream, and a recording of the last micro-batch has all of them
 * in it, with the join at its end. While a run is recorded nothing happens yet; a launch does all of it. With zero 1 each rank gets
 * the sums of its own range alone.
 *
 * It is done where the copies are on several machines, or on GPUs, and hold all gradients (zero 0 and 1), unless the gradient has
 * another sum before this one: rows that tensor ranks share out, a token table at several stages, a caller's own. GPUs that also are tensor
 * ranks add up behind: exchanges of two groups at once could wait for each other's place on the device. With zero 2 and 3 each layer is
 * added up inside every micro-batch (tensor/partition.h). */
#include "optim/beside.h"
#include "base/mem.h"
#include "optim/optimizer.h"
#include "tensor/partition.h"

struct bucket {
    int64_t first, n; /* of the slab */
    int params, left; /* parameters in it; … whose gradients are not complete */
};

struct neb_beside {
    struct bucket *bucket;
    int n, next;  /* next: the first that is not begun */
    bool behind;  /* none is begun before the runs are over */
    bool at_work; /* armed, and not finished */
    bool joined;  /* the device's stream waits for all sums */
    bool done;    /* the slab holds the sums */
    struct neb_grad_sums calls;
    neb_tape *tape;
    struct neb_group *data;
    float *grad;
    const int64_t *edge;   /* of the ranks' ranges, where each needs its own sums alone; or NULL */
    int64_t *cut;          /* (ranks + 1) the same inside a bucket */
    int64_t values, width; /* of the slab, of a bucket */
    neb_status status;
};

static bool has_partial(const neb_params *ps)
{
    for (int i = 0; i < ps->count; i++)
        if (ps->list[i]->partial && ps->list[i]->trainable) return true;
    return false;
}

/* The buckets that hold values of p: [*from, *to]. False: none. */
static bool buckets_of(const struct neb_beside *b, const neb_param *p, int *from, int *to)
{
    if (!p->trainable || p->values < 1) return false;
    *from = (int)((b->values - p->offset - p->values) / b->width);
    *to = (int)((b->values - 1 - p->offset) / b->width);
    return true;
}

/* Ranks that share a device win nothing: its processors are busy with the others' backward pass. A size that the job names is kept to. */
static bool possible(const neb_optimizer *o, int64_t bucket)
{
    const bool gpu = !o->norm.host;
    struct neb_group *data = neb__layout_data(o->layout);
    if (!neb__device_sums_beside(data) || (!bucket && neb__device_shared(data))) return false;
    if (neb__partition_of_grads(o->params) || has_partial(o->params)) return false;
    return !gpu || neb__group_size(neb__layout_tensor(o->layout)) == 1;
}

static void cut_slab(struct neb_beside *b, const neb_params *ps)
{
    for (int i = 0; i < b->n; i++) {
        const int64_t end = b->values - (int64_t)i * b->width, first = end > b->width ? end - b->width : 0;
        b->bucket[i] = (struct bucket){.first = first, .n = end - first};
    }
    for (int i = 0, from, to; i < ps->count; i++)
        if (buckets_of(b, ps->list[i], &from, &to))
            for (; from <= to; from++) b->bucket[from].params++;
}

/* Each of them is a call of every rank, and in a recording several nodes. */
enum { MOST_BUCKETS = 1 << 15 };

static neb_status count_buckets(struct neb_beside *b)
{
    const int64_t n = (b->values + b->width - 1) / b->width;
    if (n > MOST_BUCKETS)
        return neb__fail(NEB_ERR_CONFIG,
                         "parallel.bucket: %" PRId64 " bytes would cut the gradients of %" PRId64
                         " values into %" PRId64 " sums, and %d are the most; make it larger",
                         4 * b->width, b->values, n, MOST_BUCKETS);
    b->n = (int)n;
    return NEB_OK;
}

static void begin(void *arg);
static void complete(void *arg, neb_param *p);
static neb_status over(void *arg);
static void launched(void *arg);

neb_status neb__beside_create(neb_optimizer *o, int64_t bucket)
{
    const neb_params *ps = o->params;
    const bool gpu = !o->norm.host;
    if (!possible(o, bucket)) return NEB_OK;
    struct neb_beside *b = o->beside = NEB_NEW(struct neb_beside);
    if (!b) return neb__fail(NEB_ERR_NOMEM, "out of memory for the ranks' sums");
    b->calls = (struct neb_grad_sums){
        .arg = b, .begin = begin, .ready = complete, .over = gpu ? over : NULL, .launched = launched};
    b->data = neb__layout_data(o->layout);
    b->grad = ps->grad;
    b->edge = gpu ? o->edge : NULL;
    b->values = ps->trainable_values;
    b->width = gpu ? NEB_SUM_BUCKET_GPU : NEB_SUM_BUCKET;
    if (bucket) b->width = bucket;
    NEB_TRY(count_buckets(b));
    b->bucket = NEB_NEW_ARRAY(struct bucket, (size_t)b->n);
    b->cut = NEB_NEW_ARRAY(int64_t, (size_t)neb__group_size(b->data) + 1);
    if (!b->bucket || !b->cut) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d buckets", b->n);
    cut_slab(b, ps);
    return NEB_OK;
}

void neb__beside_destroy(neb_optimizer *o)
{
    if (o->beside) {
        neb__free(o->beside->bucket);
        neb__free(o->beside->cut);
    }
    neb__free(o->beside);
}

void neb__beside_behind(neb_optimizer *o, bool behind)
{
    if (o->beside) o->beside->behind = behind;
}

/* The ranks' ranges inside a bucket. */
static const int64_t *cut_bucket(struct neb_beside *b, const struct bucket *k)
{
    for (int r = 0; b->edge && r <= neb__group_size(b->data); r++) {
        const int64_t at = b->edge[r] - k->first, inside = at < 0 ? 0 : at;
        b->cut[r] = inside < k->n ? inside : k->n;
    }
    return b->edge ? b->cut : NULL;
}

static void begin_next(struct neb_beside *b)
{
    const struct bucket *k = &b->bucket[b->next++];
    if (b->status == NEB_OK)
        b->status = neb__device_sum_begin(b->data, b->grad + k->first, k->n, cut_bucket(b, k));
}

static void begin(void *arg)
{
    struct neb_beside *b = arg;
    for (int i = 0; i < b->n; i++) b->bucket[i].left = b->bucket[i].params;
    b->next = 0;
    b->joined = false;
    b->status = NEB_OK;
}

static neb_status over(void *arg)
{
    struct neb_beside *b = arg;
    while (b->next < b->n) begin_next(b);
    NEB_TRY(b->status);
    b->joined = true;
    return neb__device_sum_join(b->data);
}

static void launched(void *arg)
{
    struct neb_beside *b = arg;
    b->next = b->n;
    b->joined = true;
}

static void complete(void *arg, neb_param *p)
{
    struct neb_beside *b = arg;
    int from, to;
    if (!buckets_of(b, p, &from, &to)) return;
    for (; from <= to; from++) b->bucket[from].left--;
    while (b->next < b->n && b->bucket[b->next].left <= 0) begin_next(b);
}

void neb__beside_arm(neb_optimizer *o, neb_tape *t, const struct neb_reduce *reduce)
{
    struct neb_beside *b = o->beside;
    if (b) b->at_work = b->done = false;
    if (!b || o->site || t->grad_ready || (reduce && reduce->grads)) return;
    if (b->behind && b->calls.over) return; /* a GPU adds up the whole slab at once */
    begin(b);
    b->at_work = true;
    b->tape = t;
    if (!b->behind) neb__tape_add_up(t, &b->calls);
}

void neb__beside_disarm(neb_optimizer *o)
{
    if (o->beside && o->beside->at_work) neb__tape_add_up(o->beside->tape, NULL);
}

neb_status neb__beside_finish(neb_optimizer *o)
{
    struct neb_beside *b = o->beside;
    if (!b || !b->at_work) return NEB_OK;
    b->at_work = false;
    if (!b->joined) NEB_TRY(over(b));
    b->done = true;
    return NEB_OK;
}

bool neb__beside_take(neb_optimizer *o)
{
    const bool done = o->beside && o->beside->done;
    if (done) o->beside->done = false;
    return done;
}
