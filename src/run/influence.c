/* influence.c: the rule of the genesis about what one site can do to the model, and the updates that it makes shorter.
 *
 * The rule itself is arithmetic of the log (round/influence.c, outer/norms.c). Here it is read, and its effects are said: in
 * the log when a site's updates were made shorter once, twice, four times and so on, and in the status. */
#include "run/influence.h"
#include "base/log.h"
#include "run/session.h"

#include <stdio.h>
#include <string.h>

neb_status neb__influence_read(const struct neb_chain *chain, struct neb_influence *out)
{
    for (uint32_t i = 0; i < chain->fact_count; i++) {
        const struct neb_fact *f = &chain->facts[i];
        char text[NEB_INFLUENCE_TEXT];
        if (strcmp(f->name, NEB_INFLUENCE_FACT)) continue;
        snprintf(text, sizeof text, "%.*s", (int)f->size, (const char *)f->value);
        return neb__influence_parse(text, 0, out);
    }
    *out = (struct neb_influence){0};
    return NEB_OK;
}

neb_status neb__influence_fact(const char *text, uint32_t sites, struct neb_fact *out)
{
    struct neb_influence rule;
    NEB_TRY(neb__influence_parse(text, sites, &rule));
    *out = (struct neb_fact){.name = NEB_INFLUENCE_FACT, .size = (uint16_t)strlen(text)};
    memcpy(out->value, text, strlen(text));
    return NEB_OK;
}

neb_status neb__session_influence_load(neb_session *s)
{
    NEB_TRY(neb__influence_read(neb__net_roster(s->net), &s->influence));
    if (neb__session_robust(s) && s->secure)
        return neb__fail(NEB_ERR_CONFIG, "the roster combines updates coordinate by coordinate (trimmed, "
                                         "median), which must see every one; "
                                         "privacy.aggregate: secure shows only their sum");
    if (neb__session_robust(s) && s->fixed && s->fixed->cls != NEB_DENSE)
        return neb__fail(
            NEB_ERR_CONFIG,
            "wan.rung is '%s', but the roster combines updates coordinate by coordinate, which needs a "
            "dense rung (int8, int4, …)",
            s->fixed->name);
    return NEB_OK;
}

bool neb__session_robust(const neb_session *s)
{
    return s->influence.combine != NEB_COMBINE_MEAN;
}

/* Counts an update of the site that did not enter as it was sent. *name: the site's, if it is time to say so. */
static bool count(neb_session *s, uint16_t site, uint64_t *n, char *name)
{
    if (site >= NEB_SITES_MAX) return false;
    pthread_mutex_lock(&s->lock);
    *n = ++s->scaled[site];
    pthread_mutex_unlock(&s->lock);
    if (*n & (*n - 1)) return false;
    neb__members_name(&s->members, site, name);
    return true;
}

void neb__session_rejected(neb_session *s, uint64_t record, uint16_t site)
{
    char name[NEB_NAME_SIZE];
    uint64_t n;
    if (!count(s, site, &n, name)) return;
    neb__warn("record %" PRIu64
              ": the update of site '%s' is left out, tokens included, since it is far longer "
              "than the rule of the roster allows (%" PRIu64 " of its updates so far)",
              record, name, n);
}

void neb__session_scaled(neb_session *s, uint64_t record, uint16_t site, double norm, float scale)
{
    char name[NEB_NAME_SIZE];
    uint64_t n;
    if (!count(s, site, &n, name)) return;
    neb__news_add(s, "scaled",
                  "record %" PRIu64 ": the update of %s enters with factor %.3g (%" PRIu64 " so far)", record,
                  name, (double)scale, n);
    if (scale > 0)
        neb__log(scale < 0.5f ? NEB_LOG_WARN : NEB_LOG_INFO,
                 "record %" PRIu64
                 ": the update of site '%s' is %.3g long and enters with factor %.3g, since the rule of "
                 "the roster allows no more (%" PRIu64 " of its updates so far); the rest comes later",
                 record, name, norm, (double)scale, n);
    else
        neb__info("record %" PRIu64 ": the update of site '%s' does not enter, since too few sites sent one",
                  record, name);
}

void neb__session_capped(neb_session *s, const struct neb_record *rec)
{
    const struct neb_named *own = neb__record_of(rec, s->self);
    uint32_t weight[NEB_SITES_MAX];
    if (!s->influence.on || s->influence.equal || !own || own->reject) return;
    neb__influence_weights(&s->influence, rec, weight);
    const uint32_t counts = weight[own - rec->update];
    if (counts >= own->weight) return;
    const uint64_t n = ++s->capped;
    if (n & (n - 1)) return;
    neb__warn(
        "record %" PRIu64 ": this site's update has %" PRIu32 " tokens a step and counts as %" PRIu32
        ", since the roster lets no site weigh more than %s (%" PRIu64
        " of its updates so far); if the sites trust each other, the word 'weights=%" PRIu32
        "' in the rule of the next roster lifts that (roster seal --influence; nebula-i lab: wan.influence)",
        rec->index, own->weight, counts,
        s->influence.weight_max ? "its rule says" : "four times the middle one", n, own->weight);
}

uint64_t neb__session_scaled_text(neb_session *s, char *text, size_t size)
{
    uint64_t all = 0;
    size_t n = 0;
    *text = 0;
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        char name[NEB_NAME_SIZE];
        pthread_mutex_lock(&s->lock);
        uint64_t k = s->scaled[i];
        pthread_mutex_unlock(&s->lock);
        if (!k) continue;
        neb__members_name(&s->members, i, name);
        if (n < size) n += (size_t)snprintf(text + n, size - n, "%s%s: %" PRIu64, n ? "; " : "", name, k);
        all += k;
    }
    return all;
}
