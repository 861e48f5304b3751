/* work_outline.c: what batches look like (text/batch_outline.h), handed through the stages of several sites.
 *
 * A stage between the ends of the model gets an outline before the batches of each step, and before each batch of held-out text. It
 * gives it on if the stage behind it is such a one, too. Where the text is here, the outline is made from the batches that this
 * site has drawn, and must be that of the stage before, to the byte: so sites whose text differs find out, and whether a site has the text
 * changes neither the messages nor their number. Where it is not, the batches are filled from the outline.
 *
 * A site without text does not know how large its batches can be until the first outline says so. The room for its messages
 * and inputs is made then. */
#include "base/mem.h"
#include "optim/site_stage.h"
#include "task/work_slots.h"
#include "text/batch_outline.h"

#include <stdio.h>
#include <string.h>

struct neb_work_outlines {
    struct neb_outline_head
        own; /* of a site with the text: its kind, its vocabulary, the room of its batches */
    struct neb_outline_room most;
    struct neb_outline_head head; /* of the last one that came */
    struct neb_buf came, made;
    struct neb_outline_room room; /* of a site without text: the largest so far, and that of its … */
    struct neb_batch **batch;     /* (n) batches; NULL: nothing has come yet */
    int64_t n;
};

bool neb__work_has_text(const struct neb_work *w)
{
    return !w->data->textless;
}

static const struct neb_stage_ways *ways(const struct neb_work *w)
{
    return w->links.stage.ways;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

neb_status neb__work_open_outlines(struct neb_work *w, const struct neb_model_input_limits *limits)
{
    struct neb_batches_cfg cfg = {0};
    const struct neb_job_train *t = &w->job->train;
    if (!ways(w) || (!ways(w)->outlines_in && !ways(w)->outlines_out)) return NEB_OK;
    struct neb_work_outlines *o = NEB_NEW(struct neb_work_outlines);
    if (!o) return neb__fail(NEB_ERR_NOMEM, "out of memory for outlines of batches");
    w->outlines = o;
    neb__buf_init(&o->came, NEB_STAGE_OUTLINE_MAX);
    neb__buf_init(&o->made, NEB_STAGE_OUTLINE_MAX);
    w->job->objective->set_batches(&cfg);
    o->most = neb__outline_most(cfg.kind, t->tokens, t->max_len);
    o->own = (struct neb_outline_head){
        .kind = cfg.kind,
        .vocab = (int32_t)w->data->models.model.vocab,
        .room = {{limits->rows[0], limits->rows[1]}, limits->seqs, (int32_t)t->max_len}};
    return NEB_OK;
}

static void free_batches(struct neb_work_outlines *o)
{
    for (int64_t i = 0; o->batch && i < o->n; i++) neb__batch_free(o->batch[i]);
    neb__free(o->batch);
    o->batch = NULL;
}

void neb__work_close_outlines(struct neb_work *w)
{
    struct neb_work_outlines *o = w->outlines;
    if (!o) return;
    free_batches(o);
    neb__buf_free(&o->came);
    neb__buf_free(&o->made);
    neb__free(o);
    w->outlines = NULL;
}

/* ---- a site with the text --------------------------------------------------------------------------------- */

static neb_status other_batches(void)
{
    return neb__fail(
        NEB_ERR_CONFIG,
        "the sites before this one have drawn other batches: data, tokenizer, seed, train.tokens, "
        "train.max_len, train.micro, train.mask and train.eval_every must be the same at all sites "
        "that have the text");
}

/* The room may differ: one site may have more held-out text than the other. */
static neb_status compare(const struct neb_work_outlines *o)
{
    enum { ROOM = 4 * 4, ROOM_END = 7 * 4 };
    const struct neb_buf *a = &o->came, *b = &o->made;
    struct neb_reader r = {a->data, a->len, false};
    struct neb_outline_head head;
    NEB_TRY(neb__outline_head_read(&r, o->own.kind, &o->most, &head));
    const bool same = a->len == b->len && !memcmp(a->data, b->data, ROOM) &&
                      !memcmp(a->data + ROOM_END, b->data + ROOM_END, a->len - ROOM_END);
    return same ? NEB_OK : other_batches();
}

/* `made` is what this site knows. What came goes on as it is. all: every rank of the site is here. */
static neb_status exchange(struct neb_work *w, bool all)
{
    struct neb_work_outlines *o = w->outlines;
    struct neb_site_stage *s = w->stages->site;
    NEB_TRY(neb__site_stage_take_outline(s, all, &o->came));
    if (ways(w)->outlines_in) NEB_TRY(compare(o));
    const struct neb_buf *on = ways(w)->outlines_in ? &o->came : &o->made;
    return neb__site_stage_give_outline(s, all, on->data, on->len);
}

static neb_status begin(struct neb_work_outlines *o, const struct neb_outline_head *what)
{
    struct neb_outline_head h = *what;
    h.kind = o->own.kind;
    h.vocab = o->own.vocab;
    h.room = o->own.room;
    neb__buf_clear(&o->made);
    return neb__outline_head_write(&h, &o->made);
}

neb_status neb__work_compare_step(struct neb_work *w)
{
    struct neb_work_outlines *o = w->outlines;
    if (!o) return NEB_OK;
    const struct neb_outline_head h = {.what = NEB_OUTLINE_STEP, .batches = (int32_t)w->job->train.micro};
    NEB_TRY(begin(o, &h));
    for (int i = 0; i < w->runs; i++)
        if (!i || w->pieces[i].batch != w->pieces[i - 1].batch)
            NEB_TRY(neb__outline_batch_write(w->pieces[i].batch, &o->made));
    return exchange(w, true);
}

neb_status neb__work_compare_eval(struct neb_work *w, const struct neb_batch *b, int runs)
{
    struct neb_work_outlines *o = w->outlines;
    const struct neb_outline_head h = {.what = NEB_OUTLINE_EVAL, .batches = 1, .runs = runs};
    if (!o) return NEB_OK;
    NEB_TRY(begin(o, &h));
    NEB_TRY(neb__outline_batch_write(b, &o->made));
    return exchange(w, false);
}

neb_status neb__work_compare_eval_end(struct neb_work *w, const char *const *languages, int n)
{
    struct neb_work_outlines *o = w->outlines;
    struct neb_outline_head h = {.what = n < 0 ? NEB_OUTLINE_EVAL_NONE : NEB_OUTLINE_EVAL_END};
    if (!o) return NEB_OK;
    for (; h.names < n && h.names < NEB_OUTLINE_NAMES; h.names++)
        snprintf(h.name[h.names], sizeof h.name[0], "%s", languages[h.names]);
    NEB_TRY(begin(o, &h));
    return exchange(w, false);
}

/* ---- a site without text ---------------------------------------------------------------------------------- */

static neb_status check_vocabulary(const struct neb_work *w, const struct neb_outline_head *h)
{
    const int64_t own = w->data->models.model.vocab;
    if (h->vocab == own) return NEB_OK;
    return neb__fail(
        NEB_ERR_CONFIG,
        "the sites with the text have a vocabulary of %d tokens, and this site has taken it to be %" PRId64
        " (%s): bring their tokenizer here and name it as tokenizer.file, and remove the folder `out` of "
        "this site",
        h->vocab, own, w->data->tok ? "that of the tokenizer here" : "tokenizer.vocab");
}

static bool is_larger(const struct neb_outline_room *a, const struct neb_outline_room *b)
{
    return a->rows[0] > b->rows[0] || a->rows[1] > b->rows[1] || a->seqs > b->seqs;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* The first outline says how large the batches can be. A site before this one may say later that they can be larger, if it starts
 * again with more held-out text. */
static neb_status make_room(struct neb_work *w)
{
    struct neb_work_outlines *o = w->outlines;
    const struct neb_outline_room *r = &o->head.room;
    if (o->batch && !is_larger(r, &o->room)) return NEB_OK;
    free_batches(o);
    o->room =
        (struct neb_outline_room){{larger(r->rows[0], o->room.rows[0]), larger(r->rows[1], o->room.rows[1])},
                                  larger(r->seqs, o->room.seqs),
                                  r->max_len};
    const struct neb_model_input_limits limits = {.rows = {o->room.rows[0], o->room.rows[1]},
                                                  .seqs = o->room.seqs};
    NEB_TRY(neb__work_resize_site(w, &limits));
    o->n = w->job->train.micro;
    o->batch = NEB_NEW_ARRAY(struct neb_batch *, (size_t)o->n);
    neb_status status =
        o->batch ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for %" PRId64 " batches", o->n);
    for (int64_t i = 0; status == NEB_OK && i < o->n; i++)
        status = neb__outline_batch_create(o->own.kind, &o->room, &o->batch[i]);
    if (status != NEB_OK) free_batches(o);
    return status;
}

static neb_status read_batches(struct neb_work *w, struct neb_reader *r)
{
    struct neb_work_outlines *o = w->outlines;
    if (o->head.batches > w->job->train.micro) return other_batches();
    for (int32_t i = 0; i < o->head.batches; i++) NEB_TRY(neb__outline_batch_read(r, &o->head, o->batch[i]));
    return neb__outline_end_read(r);
}

/* Takes the next outline, checks it, and only then gives it on. */
static neb_status take(struct neb_work *w, bool all)
{
    struct neb_work_outlines *o = w->outlines;
    struct neb_site_stage *s = w->stages->site;
    NEB_TRY(neb__site_stage_take_outline(s, all, &o->came));
    struct neb_reader r = {o->came.data, o->came.len, false};
    NEB_TRY(neb__outline_head_read(&r, o->own.kind, &o->most, &o->head));
    NEB_TRY(check_vocabulary(w, &o->head));
    if ((o->head.what == NEB_OUTLINE_STEP) != all) return other_batches();
    if (all && o->head.batches != w->job->train.micro) return other_batches();
    NEB_TRY(make_room(w));
    NEB_TRY(read_batches(w, &r));
    return neb__site_stage_give_outline(s, all, o->came.data, o->came.len);
}

neb_status neb__work_take_step(struct neb_work *w)
{
    NEB_TRY(take(w, true));
    for (int64_t i = 0; i < w->outlines->n; i++) w->outlines->batch[i]->step = w->batches + i;
    return NEB_OK;
}

struct neb_batch *neb__work_bare_batch(struct neb_work *w, int64_t i)
{
    return w->outlines->batch[i];
}

neb_status neb__work_take_eval(struct neb_work *w, struct neb_batch **b, struct neb_outline_head *head)
{
    NEB_TRY(take(w, false));
    *head = w->outlines->head;
    *b = head->what == NEB_OUTLINE_EVAL ? w->outlines->batch[0] : NULL;
    return NEB_OK;
}
