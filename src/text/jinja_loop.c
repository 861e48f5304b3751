/* jinja_loop.c: `for`: over a list, a table's keys or pairs, the characters of a text. The items that pass the loop's condition
 * are found first, because `loop.last` and `loop.length` count only those. */
#include "text/jinja_parts.h"

#include <string.h>

enum { NAMES = 4 };

/* A for-loop while it is read: where its condition and body begin. */
struct loop {
    char item[NAMES][NEB_JINJA_NAME]; /* several: each item is a list of as many parts */
    int items;
    size_t condition, body; /* condition 0: there is none */
    int after;
    json_t *list; /* those items for which the condition holds */
};

static neb_status declare_item(struct neb_jinja *r, const struct loop *l, json_t *item)
{
    if (l->items == 1) return neb__jinja_declare(r, l->item[0], item);
    if (!json_is_array(item) || json_array_size(item) != (size_t)l->items)
        return neb__jinja_unknown(r, "loop with several names over",
                                  "items that are not lists of as many parts");
    for (int i = 0; i < l->items; i++)
        NEB_TRY(neb__jinja_declare(r, l->item[i], json_array_get(item, (size_t)i)));
    return NEB_OK;
}

/* Keeps the items of `all` for which the loop's condition holds. */
static neb_status choose_items(struct neb_jinja *r, struct loop *l, const json_t *all)
{
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *item = json_array_get(all, i), *v = NULL;
        bool keep = true;
        NEB_TRY(neb__jinja_step(r));
        if (l->condition) {
            NEB_TRY(neb__jinja_enter(r));
            r->at = l->condition;
            neb_status status = declare_item(r, l, item);
            if (status == NEB_OK) status = neb__jinja_plain_expression(r, true, &v);
            neb__jinja_leave(r);
            NEB_TRY(status);
            keep = neb__jinja_true(v);
            json_decref(v);
        }
        if (keep && json_array_append(l->list, item))
            return neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    }
    return NEB_OK;
}

/* a · a, b · (a, b) */
static neb_status names(struct neb_jinja *r, struct loop *l)
{
    const bool brackets = neb__jinja_take(r, "(");
    do {
        if (l->items == NAMES) return neb__jinja_unknown(r, "loop over", "so many names");
        NEB_TRY(neb__jinja_name(r, l->item[l->items++]));
    } while (neb__jinja_take(r, ","));
    if (brackets && !neb__jinja_take(r, ")")) return neb__jinja_malformed(r, "')'");
    return neb__jinja_take_word(r, "in") ? NEB_OK : neb__jinja_malformed(r, "'in'");
}

static neb_status loop_head(struct neb_jinja *r, struct loop *l)
{
    json_t *of = NULL, *all = NULL, *v = NULL;
    NEB_TRY(names(r, l));
    NEB_TRY(neb__jinja_plain_expression(r, true, &of));
    neb_status status = neb__jinja_list(r, of, &all);
    json_decref(of);
    NEB_TRY(status);
    if (neb__jinja_take_word(r, "if")) {
        neb__jinja_space(r);
        l->condition = r->at;
        status = neb__jinja_plain_expression(r, false, &v);
    }
    if (status == NEB_OK) status = neb__jinja_tag_end(r, "%}");
    l->body = r->at;
    l->after = r->after;
    if (status == NEB_OK) status = choose_items(r, l, all);
    json_decref(all);
    if (status != NEB_OK) return status;
    r->at = l->body;
    r->after = l->after;
    return NEB_OK;
}

/* The variable `loop`. */
static neb_status declare_state(struct neb_jinja *r, const struct loop *l, size_t i)
{
    const json_int_t n = (json_int_t)json_array_size(l->list), at = (json_int_t)i;
    json_t *state =
        json_pack("{s:I, s:I, s:I, s:I, s:b, s:b, s:I}", "index", at + 1, "index0", at, "revindex", n - at,
                  "revindex0", n - at - 1, "first", at == 0, "last", at + 1 == n, "length", n);
    if (state && i > 0) json_object_set(state, "previtem", json_array_get(l->list, i - 1));
    if (state && at + 1 < n) json_object_set(state, "nextitem", json_array_get(l->list, i + 1));
    neb_status status = state ? neb__jinja_declare(r, "loop", state)
                              : neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    json_decref(state);
    return status;
}

static neb_status loop_once(struct neb_jinja *r, const struct loop *l, size_t i, char met[NEB_JINJA_NAME])
{
    static const char *const until[] = {"else", "endfor", NULL};
    r->at = l->body;
    r->after = l->after;
    NEB_TRY(neb__jinja_step(r));
    NEB_TRY(neb__jinja_enter(r));
    neb_status status = declare_state(r, l, i);
    if (status == NEB_OK) status = declare_item(r, l, json_array_get(l->list, i));
    r->loops++;
    if (status == NEB_OK) status = neb__jinja_block(r, until, met);
    r->loops--;
    neb__jinja_leave(r);
    return status;
}

static neb_status run_loop(struct neb_jinja *r, struct loop *l)
{
    static const char *const until[] = {"else", "endfor", NULL};
    char met[NEB_JINJA_NAME] = "";
    NEB_TRY(loop_head(r, l));
    const size_t n = json_array_size(l->list);
    bool broken = false;
    for (size_t i = 0; i < n && !broken; i++) {
        NEB_TRY(loop_once(r, l, i, met));
        broken = r->leaving == NEB_JINJA_BREAK;
        r->leaving = NEB_JINJA_STAYS;
    }
    if (!n) NEB_TRY(neb__jinja_skip_block(r, until, met));
    NEB_TRY(neb__jinja_tag_end(r, "%}"));
    if (!strcmp(met, "endfor")) return NEB_OK;
    NEB_TRY(n ? neb__jinja_skip_block(r, until + 1, met) : neb__jinja_block(r, until + 1, met));
    return neb__jinja_tag_end(r, "%}");
}

neb_status neb__jinja_for(struct neb_jinja *r)
{
    struct loop l = {.list = json_array()};
    neb_status status =
        l.list ? run_loop(r, &l) : neb__fail(NEB_ERR_NOMEM, "out of memory for a chat template");
    json_decref(l.list);
    return status;
}
