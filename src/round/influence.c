/* influence.c: see influence.h.
 *
 * A site says how many tokens a step of it has, and how many steps an update holds. Both are claims, so they are compared
 * with those of the others in the same record: a weight counts up to four times the middle one, a number of steps up to
 * eight times the middle one or as often as the rule says. The middle is the lower one of an even number, so of two sites
 * the modest one decides.
 *
 * A robust rule drops the lowest and highest values of each coordinate. A lie that is far too long fills that place in
 * every coordinate, and the sign of the lie then decides which honest value is dropped with it: a liar that sends the
 * mirror image of another site's update bends the mean of the rest against that site. So an update that is far too long is
 * not named for the mean at all. The record then has the same effect as one without the liar, tokens included. */
#include "round/influence.h"

#include <stdlib.h>
#include <string.h>

enum { WEIGHT_TIMES = 4, STEPS_TIMES = 8, STEPS_MOST = 64, OUTLIER_TIMES = 2 };

/* ---- the text ------------------------------------------------------------------------------------------ */

static bool number(const char *text, double least, double most, double *out)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= least && v <= most)) return false;
    *out = v;
    return true;
}

static bool combine(const char *value, struct neb_influence *out)
{
    static const char *const names[] = {"mean", "trimmed", "median"};
    for (uint8_t i = 0; i < 3; i++)
        if (!strcmp(value, names[i])) {
            out->combine = i;
            return true;
        }
    return false;
}

static bool weights(const char *value, struct neb_influence *out)
{
    double v;
    out->equal = !strcmp(value, "equal");
    if (out->equal || !strcmp(value, "auto")) return true;
    if (!number(value, 1, UINT32_MAX, &v)) return false;
    out->weight_max = (uint32_t)v;
    return true;
}

static bool word(const char *key, const char *value, struct neb_influence *out)
{
    double v;
    if (!strcmp(key, "combine")) return combine(value, out);
    if (!strcmp(key, "weights")) return weights(value, out);
    if (!strcmp(key, "clip") && (!strcmp(value, "0") || number(value, 1, 1e6, &v))) {
        out->clip = strcmp(value, "0") ? (float)v : 0;
        return true;
    }
    if (!strcmp(key, "bound") && number(value, 0, 1e30, &v)) {
        out->bound = (float)v;
        return true;
    }
    if (!strcmp(key, "liars") && number(value, 1, 21, &v)) {
        out->liars = (uint8_t)v;
        return true;
    }
    if (!strcmp(key, "steps") && number(value, 1, STEPS_MOST, &v)) {
        out->steps = (uint8_t)v;
        return true;
    }
    return false;
}

/* A robust mean needs 2f + 1 updates, and is worth it only if one more may be late. */
static neb_status check(struct neb_influence *r, uint32_t sites)
{
    if (r->combine == NEB_COMBINE_MEAN) return NEB_OK;
    if (!r->liars) r->liars = sites >= 4 ? (uint8_t)((sites - 1) / 3) : 1;
    r->equal = true;
    if (sites && (sites < 4 || sites < 2u * r->liars + 1))
        return neb__fail(
            NEB_ERR_CONFIG,
            "influence: combine=trimmed and combine=median need four sites or more, and 2 * liars + 1 "
            "of them; this run has %u",
            sites);
    return NEB_OK;
}

neb_status neb__influence_parse(const char *text, uint32_t sites, struct neb_influence *out)
{
    struct neb_influence r = {.on = true};
    char copy[NEB_INFLUENCE_TEXT], *save = NULL;
    if (strlen(text) >= sizeof copy)
        return neb__fail(NEB_ERR_CONFIG, "influence: the rule is longer than %d bytes",
                         NEB_INFLUENCE_TEXT - 1);
    strcpy(copy, text);
    if (!strcmp(copy, "off")) {
        *out = (struct neb_influence){0};
        return NEB_OK;
    }
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *value = strchr(w, '=');
        if (value) *value++ = 0;
        if (!value || !word(w, value, &r))
            return neb__fail(
                NEB_ERR_CONFIG,
                "influence: '%s%s%s' is not a word of the rule: clip=F, bound=F, "
                "combine=mean|trimmed|median, liars=N, weights=equal|auto|N, steps=N, or off alone",
                w, value ? "=" : "", value ? value : "");
    }
    NEB_TRY(check(&r, sites));
    *out = r;
    return NEB_OK;
}

/* ---- weights and tokens -------------------------------------------------------------------------------- */

static uint64_t weight_of(const struct neb_named *p)
{
    return p->weight;
}

static uint64_t steps_of(const struct neb_named *p)
{
    return p->tau;
}

static uint64_t tokens_of(const struct neb_named *p)
{
    return p->tokens;
}

/* The middle value of the updates that are not rejected, the lower one of two; 0: there are none. */
static uint64_t middle(const struct neb_record *rec, uint64_t (*of)(const struct neb_named *))
{
    uint64_t v[NEB_SITES_MAX];
    uint32_t n = 0;
    for (uint32_t i = 0; i < rec->updates && n < NEB_SITES_MAX; i++) {
        if (rec->update[i].reject) continue;
        uint64_t x = of(&rec->update[i]);
        uint32_t j = n++;
        for (; j && v[j - 1] > x; j--) v[j] = v[j - 1];
        v[j] = x;
    }
    return n ? v[(n - 1) / 2] : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint32_t capped_weight(const struct neb_influence *rule, const struct neb_record *rec, uint32_t i)
{
    uint64_t most = rule->weight_max ? rule->weight_max : WEIGHT_TIMES * middle(rec, weight_of);
    return (uint32_t)least(rec->update[i].weight, most);
}

void neb__influence_weights(const struct neb_influence *rule, const struct neb_record *rec, uint32_t *out)
{
    for (uint32_t i = 0; i < rec->updates; i++) {
        out[i] = rec->update[i].weight;
        if (rule->on) out[i] = rule->equal ? 1 : capped_weight(rule, rec, i);
    }
}

uint64_t neb__influence_tokens(const struct neb_influence *rule, const struct neb_record *rec, uint32_t i)
{
    const struct neb_named *p = &rec->update[i];
    if (!rule->on) return p->tokens;
    const uint64_t times = rule->steps ? rule->steps : STEPS_TIMES;
    uint64_t steps = least(p->tau, times * middle(rec, steps_of));
    uint64_t seen = least(p->tokens, steps * capped_weight(rule, rec, i));
    return rule->combine == NEB_COMBINE_MEAN ? seen : least(seen, middle(rec, tokens_of));
}

/* ---- updates that are far too long --------------------------------------------------------------------- */

/* The lower one of the two in the middle: with at most `liars` lies among 2 * liars + 1 lengths, a length that is no more
 * than an honest one. */
static double middle_length(const double *norm, uint32_t n)
{
    double v[NEB_SITES_MAX];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i;
        for (; j && v[j - 1] > norm[i]; j--) v[j] = v[j - 1];
        v[j] = norm[i];
    }
    return v[(n - 1) / 2];
}

void neb__influence_outliers(const struct neb_influence *rule, const double *norm, uint32_t n, bool *out)
{
    const uint32_t needed = 2u * rule->liars + 1;
    memset(out, 0, n * sizeof *out);
    if (rule->combine == NEB_COMBINE_MEAN || !(rule->clip > 0) || n > NEB_SITES_MAX) return;
    for (uint32_t left = n; left > needed; left--) {
        double most = (double)rule->clip * OUTLIER_TIMES * middle_length(norm, n);
        uint32_t longest = n;
        for (uint32_t i = 0; i < n; i++)
            if (!out[i] && norm[i] > most && (longest == n || norm[i] > norm[longest])) longest = i;
        if (longest == n) return;
        out[longest] = true;
    }
}
