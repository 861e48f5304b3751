/* operator_words.c: see operator_words.h. */
#include "cli/operator_words.h"
#include "cli/member_words.h"
#include "seal/site.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Gives each word between commas. */
static neb_status each(const char *text, neb_status (*fn)(void *arg, const char *word), void *arg)
{
    char word[PATH_MAX];
    for (const char *p = text; p;) {
        size_t n = strcspn(p, ",");
        if (!n || n >= sizeof word)
            return neb__fail(NEB_ERR_INVALID, "'%.80s': operators are named one by one, with commas between",
                             text);
        memcpy(word, p, n);
        word[n] = 0;
        NEB_TRY(fn(arg, word));
        p = p[n] ? p + n + 1 : NULL;
    }
    return NEB_OK;
}

static neb_status too_many(void)
{
    return neb__fail(NEB_ERR_INVALID, "a run has at most %d operators", NEB_OPERATORS_MAX);
}

static neb_status load_key(void *arg, const char *dir)
{
    struct neb_operator_keys *k = arg;
    if (k->n == NEB_OPERATORS_MAX) return too_many();
    NEB_TRY(neb__site_key(dir, &k->key[k->n]));
    k->n++;
    return NEB_OK;
}

neb_status neb__operator_keys(const char *text, struct neb_operator_keys *out)
{
    *out = (struct neb_operator_keys){.n = 0};
    return each(text, load_key, out);
}

void neb__operator_keys_free(struct neb_operator_keys *k)
{
    while (k->n) neb__key_free(k->key[--k->n]);
}

static neb_status add_operator(void *arg, const char *who)
{
    struct neb_operators *set = arg;
    struct neb_member m = {0};
    if (set->count == NEB_OPERATORS_MAX) return too_many();
    NEB_TRY(neb__member_identity(who, &m));
    set->key[set->count++] = m.key;
    return NEB_OK;
}

neb_status neb__operator_set(const char *text, int64_t threshold, struct neb_operators *out)
{
    *out = (struct neb_operators){.count = 0};
    NEB_TRY(each(text, add_operator, out));
    out->threshold = (uint8_t)(threshold ? threshold : out->count / 2 + 1);
    return neb__operators_make(out);
}

struct before {
    uint64_t epoch;
    struct neb_operators *out;
};

static void note(void *arg, uint64_t epoch, uint64_t head, const struct neb_operators *set)
{
    struct before *b = arg;
    (void)head;
    if (epoch < b->epoch) *b->out = *set;
}

neb_status neb__operators_before(const struct neb_chain *chain, uint64_t epoch, struct neb_operators *out)
{
    *out = chain->operators;
    return neb__chain_walk_operators(chain, note, &(struct before){epoch, out});
}
