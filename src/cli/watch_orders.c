/* watch_orders.c: see watch_orders.h.
 *
 * The page gives the orders that a person gives in a hurry: end the run, take out a site, how much of the lines rounds may use,
 * how long an update may be, who goes on alone. Those that can make a second history or let somebody in (force, adopt, admit) stay
 * with the command line. The last ORDERS of them are remembered. Ten in a minute are enough for anybody. */
#include "cli/watch_orders.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/give_order.h"
#include "seal/site.h"

#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ORDERS = 32, A_MINUTE = 10, PATIENCE_S = 60 };

static const struct {
    const char *name;
    uint8_t op;
    bool word; /* it has one */
} kinds[] = {{"end", NEB_OP_END, false},
             {"evict", NEB_OP_EVICT, true},
             {"budget", NEB_OP_BUDGET, true},
             {"bound", NEB_OP_BOUND, true},
             {"survivor", NEB_OP_SURVIVOR, true}};

struct given {
    int64_t n, time, start_ns;
    size_t kind;
    char word[64], path[PATH_MAX], note[240];
    enum neb_order_fate fate;
};

struct neb_watch_orders {
    char folder[PATH_MAX], operator_[PATH_MAX];
    struct neb_serve_orders table;
    pthread_mutex_t lock; /* over the list: the server's thread gives, the watching one looks */
    struct given list[ORDERS];
    int64_t n;
};

static neb_status sign(struct neb_watch_orders *w, struct given *g)
{
    char *words[] = {g->word};
    const struct neb_demand d = {.op = kinds[g->kind].op, .n = kinds[g->kind].word ? 1 : 0, .words = words};
    unsigned missing;
    return neb__order_give(w->folder, w->operator_, &d, g->path, sizeof g->path, &missing);
}

/* ---- giving -------------------------------------------------------------------------------------------- */

static neb_status find_kind(const char *order, const char *word, size_t *out)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, order)) continue;
        *out = i;
        if (kinds[i].word == (*word != 0)) return NEB_OK;
        return neb__quiet(NEB_ERR_INVALID,
                          kinds[i].word ? "the order %s needs a word" : "the order %s has no word", order);
    }
    return neb__quiet(NEB_ERR_INVALID,
                      "the page gives end, evict, budget, bound and survivor; nebula-i order all");
}

/* The lock is held. */
static bool too_many(const struct neb_watch_orders *w)
{
    if (w->n < A_MINUTE) return false;
    return neb__seconds_since(w->list[(w->n - A_MINUTE) % ORDERS].start_ns) < 60;
}

static neb_status give(void *arg, const char *order, const char *word)
{
    struct neb_watch_orders *w = arg;
    struct given g = {.time = (int64_t)time(NULL), .start_ns = neb__now_ns(), .fate = NEB_FATE_WAITING};
    NEB_TRY(find_kind(order, word, &g.kind));
    snprintf(g.word, sizeof g.word, "%s", word);
    pthread_mutex_lock(&w->lock);
    neb_status status = NEB_OK;
    if (too_many(w)) status = neb__quiet(NEB_ERR_LIMIT, "ten orders in a minute are enough: wait a little");
    if (status == NEB_OK) status = sign(w, &g);
    if (status == NEB_OK) {
        g.n = ++w->n;
        w->list[(g.n - 1) % ORDERS] = g;
        neb__info("order through the page: %s %s", order, word);
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* ---- what has become of them ---------------------------------------------------------------------------- */

static const char *state_of(enum neb_order_fate fate)
{
    switch (fate) {
    case NEB_FATE_DONE: return "carried out";
    case NEB_FATE_REFUSED: return "refused";
    case NEB_FATE_LATE: return "too late";
    default: return "waiting";
    }
}

static void look_at(struct neb_watch_orders *w, struct given *g)
{
    if (g->fate != NEB_FATE_WAITING) return;
    g->fate = neb__order_fate(g->path);
    if (g->fate == NEB_FATE_REFUSED) snprintf(g->note, sizeof g->note, "the site's log says why");
    if (g->fate != NEB_FATE_LATE) return;
    bool again = neb__seconds_since(g->start_ns) < PATIENCE_S;
    if (again && sign(w, g) == NEB_OK)
        g->fate = NEB_FATE_WAITING;
    else
        snprintf(g->note, sizeof g->note, "%s",
                 again ? neb_last_error() : "other orders came first; give it again");
}

static int64_t first_kept(const struct neb_watch_orders *w)
{
    return w->n > ORDERS ? w->n - ORDERS : 0;
}

void neb__watch_orders_look(struct neb_watch_orders *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    for (int64_t i = first_kept(w); i < w->n; i++) look_at(w, &w->list[i % ORDERS]);
    pthread_mutex_unlock(&w->lock);
}

static json_t *list(void *arg)
{
    struct neb_watch_orders *w = arg;
    json_t *all = json_array();
    pthread_mutex_lock(&w->lock);
    for (int64_t i = first_kept(w); i < w->n; i++) {
        const struct given *g = &w->list[i % ORDERS];
        json_array_append_new(all, json_pack("{s:I, s:I, s:s, s:s, s:s, s:s}", "n", (json_int_t)g->n, "time",
                                             (json_int_t)g->time, "order", kinds[g->kind].name, "word",
                                             g->word, "state", state_of(g->fate), "note", g->note));
    }
    pthread_mutex_unlock(&w->lock);
    return json_pack("{s:o}", "orders", all);
}

/* ---- opening ------------------------------------------------------------------------------------------- */

/* The key and the folder of an order are looked for now, so that nobody learns in a hurry that they are missing. */
static neb_status check(const struct neb_watch_orders *w)
{
    struct neb_chain *chain = NULL;
    struct neb_operator_keys keys = {.n = 0};
    neb_status status = neb__site_roster_load(w->folder, &chain);
    if (status == NEB_OK) status = neb__operator_keys(w->operator_, &keys);
    if (status == NEB_OK && keys.n < chain->operators.threshold)
        status = neb__fail(NEB_ERR_INVALID, "%u operators of the run must sign an order: --operator DIR,DIR",
                           chain->operators.threshold);
    neb__operator_keys_free(&keys);
    neb__chain_free(chain);
    return status;
}

neb_status neb__watch_orders_open(const char *folder, const char *operator_, struct neb_watch_orders **out)
{
    struct neb_watch_orders *w = NEB_NEW(struct neb_watch_orders);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "out of memory for orders");
    pthread_mutex_init(&w->lock, NULL);
    w->table = (struct neb_serve_orders){.arg = w, .give = give, .list = list};
    snprintf(w->folder, sizeof w->folder, "%s", folder);
    snprintf(w->operator_, sizeof w->operator_, "%s", operator_);
    neb_status status = check(w);
    if (status != NEB_OK) {
        neb__watch_orders_close(w);
        return status;
    }
    *out = w;
    return NEB_OK;
}

void neb__watch_orders_close(struct neb_watch_orders *w)
{
    if (!w) return;
    pthread_mutex_destroy(&w->lock);
    neb__free(w);
}

const struct neb_serve_orders *neb__watch_orders_table(struct neb_watch_orders *w)
{
    return w ? &w->table : NULL;
}
