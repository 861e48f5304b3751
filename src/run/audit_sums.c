/* audit_sums.c: whether the records of secure sums follow from each other. A quorum has signed them, and an audit believes no quorum:
 * each attempt is opened once with enough sites, has survivors among these once, and ends once, as RESULT with the seeds that its OPEN
 * promised or as VOID. A seed of the other kind, or a second set of survivors, would lay an update open: so would an attempt that is
 * opened again, whose updates have the masks of the first time. */
#include "run/audit_sums.h"
#include "round/round.h"

static struct neb_audit_sum *sum_of(struct neb_audit_sums *s, uint32_t c0)
{
    for (int i = 0; i < s->fragments; i++)
        if (s->of[i].c0 == c0) return &s->of[i];
    if (s->fragments == NEB_CAPTURES) return NULL;
    s->of[s->fragments] = (struct neb_audit_sum){.c0 = c0};
    return &s->of[s->fragments++];
}

static const char *opened(struct neb_audit_sum *s, const struct neb_record *rec,
                          const struct neb_members *roster)
{
    const int sites = __builtin_popcountll(roster->trains);
    const bool first = !s->attempt, next = rec->attempt == neb__sum_next(s->attempt);
    if (s->open) return "opens a secure sum while one of these cells is under way";
    s->open = rec;
    s->attempt = rec->attempt;
    if (!next) return "opens a secure sum out of turn: its masks may have been used before";
    if (!first && rec->v != s->v) return "opens a secure sum of another version of its cells";
    if (rec->threshold != neb__sum_threshold(sites) || (int)rec->contributors < neb__sum_least(sites))
        return "opens a secure sum of too few sites, or for too few shares";
    for (uint32_t i = 0; i < rec->contributors; i++)
        if (!(roster->trains & neb__bit(rec->contributor[i].site)))
            return "opens a secure sum with a site that does not train";
    return NULL;
}

static const char *survived(struct neb_audit_sum *s, const struct neb_record *rec,
                            const struct neb_members *roster)
{
    if (!s->open || s->open->attempt != rec->attempt)
        return "names updates of a secure sum that no record opened";
    if (s->survivors) return "names updates of a secure sum a second time";
    s->survivors = rec;
    if (rec->epoch != s->open->epoch || rec->v != s->open->v || rec->c1 != s->open->c1)
        return "names updates of a secure sum that was opened for other cells, or for another roster";
    if ((int)rec->updates < neb__sum_least(__builtin_popcountll(roster->trains)))
        return "makes a secure sum of too few updates";
    for (uint32_t i = 0; i < rec->updates; i++)
        if (!neb__record_contributor(s->open, rec->update[i].site) || !rec->update[i].tau ||
            rec->update[i].b != rec->v || rec->update[i].reject)
            return "names an update in a secure sum that does not belong there";
    return NULL;
}

static const char *ended(struct neb_audit_sum *s, const struct neb_record *rec)
{
    const struct neb_record *open = s->open, *who = s->survivors;
    s->open = s->survivors = NULL;
    if (!open || open->attempt != rec->attempt || open->v != rec->v || open->c1 != rec->c1)
        return "ends a secure sum that no record opened";
    s->v = rec->v + (rec->type == NEB_RECORD_ROUND);
    if (rec->type == NEB_RECORD_VOID)
        return who ? "drops a secure sum, whose updates are then not counted" : NULL;
    if (!who || !neb__sum_repeats(who, rec)) return "ends a secure sum with other updates than were named";
    if (neb__record_is_void(rec)) return NULL;
    if (!neb__sum_seeds_right(open, who, (const uint8_t(*)[NEB_SEED_SIZE])rec->seed, rec->seeds))
        return "unmasks a secure sum with other seeds than were promised";
    return NULL;
}

const char *neb__audit_sums_add(struct neb_audit_sums *s, const struct neb_record *rec,
                                const struct neb_members *roster)
{
    struct neb_audit_sum *sum;
    if (rec->type == NEB_RECORD_ROUND && !rec->attempt)
        return s->fragments ? "names updates that are not masked, in a run of secure sums" : NULL;
    if (!rec->attempt) return NULL;
    if (!(sum = sum_of(s, rec->c0))) return "names more fragments than a run can have";
    switch (rec->type) {
    case NEB_RECORD_OPEN: return opened(sum, rec, roster);
    case NEB_RECORD_SURVIVORS: return survived(sum, rec, roster);
    default: return ended(sum, rec);
    }
}
