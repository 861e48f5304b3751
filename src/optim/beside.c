/* beside.c: gradients that the copies of a model add up while the last micro-batch still runs backwards.
 *
 * The slab is cut into buckets, from its end to its beginning: a model's parameters lie in it in the order in which ops read them, so
 * their gradients become complete in the opposite one. A bucket is begun when all of its gradients are complete and the bucket before
 * it is begun. So all ranks begin the same buckets in the same order, whatever their last micro-batches reach; what is left when the
 * runs are over is begun then. The sums are the same bits whenever they are begun.
 *
 * It is done where the copies are on several machines and hold all gradients (zero 0 and 1), unless the gradient has another
 * sum before this one: rows that tensor ranks share out, a token table at several stages, a caller's own. With zero 2 and 3 each layer is
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
    bool done;    /* the slab holds the sums */
    neb_tape *tape;
    struct neb_group *data;
    float *grad;
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

neb_status neb__beside_create(neb_optimizer *o, int64_t bucket)
{
    const neb_params *ps = o->params;
    struct neb_group *data = neb__layout_data(o->layout);
    if (!neb__group_sums_beside(data) || !o->norm.host || neb__partition_of_grads(ps) || has_partial(ps))
        return NEB_OK;
    struct neb_beside *b = o->beside = NEB_NEW(struct neb_beside);
    const int64_t width = bucket ? bucket : NEB_SUM_BUCKET;
    const int n = (int)((ps->trainable_values + width - 1) / width);
    if (b) b->bucket = NEB_NEW_ARRAY(struct bucket, (size_t)n);
    if (!b || !b->bucket) return neb__fail(NEB_ERR_NOMEM, "out of memory for %d buckets", n);
    b->n = n;
    b->data = data;
    b->grad = ps->grad;
    b->values = ps->trainable_values;
    b->width = width;
    for (int i = 0; i < n; i++) {
        const int64_t end = b->values - (int64_t)i * width, first = end > width ? end - width : 0;
        b->bucket[i] = (struct bucket){.first = first, .n = end - first};
    }
    for (int i = 0, from, to; i < ps->count; i++)
        if (buckets_of(b, ps->list[i], &from, &to))
            for (; from <= to; from++) b->bucket[from].params++;
    return NEB_OK;
}

void neb__beside_destroy(neb_optimizer *o)
{
    if (o->beside) neb__free(o->beside->bucket);
    neb__free(o->beside);
}

void neb__beside_behind(neb_optimizer *o, bool behind)
{
    if (o->beside) o->beside->behind = behind;
}

static void begin_next(struct neb_beside *b)
{
    const struct bucket *k = &b->bucket[b->next++];
    if (b->status == NEB_OK) b->status = neb__group_sum_begin(b->data, b->grad + k->first, k->n);
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
    for (int i = 0; i < b->n; i++) b->bucket[i].left = b->bucket[i].params;
    b->next = 0;
    b->status = NEB_OK;
    b->at_work = true;
    b->done = false;
    b->tape = t;
    if (!b->behind) neb_tape_on_grad_ready(t, complete, b);
}

void neb__beside_disarm(neb_optimizer *o)
{
    if (o->beside && o->beside->at_work) neb_tape_on_grad_ready(o->beside->tape, NULL, NULL);
}

neb_status neb__beside_finish(neb_optimizer *o)
{
    struct neb_beside *b = o->beside;
    if (!b || !b->at_work) return NEB_OK;
    b->at_work = false;
    while (b->next < b->n) begin_next(b);
    NEB_TRY(b->status);
    NEB_TRY(neb__group_sum_join(b->data));
    b->done = true;
    return NEB_OK;
}

bool neb__beside_take(neb_optimizer *o)
{
    const bool done = o->beside && o->beside->done;
    if (done) o->beside->done = false;
    return done;
}
