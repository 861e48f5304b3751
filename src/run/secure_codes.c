/* secure_codes.c: masked codes, their sum, and the sum without its masks.
 *
 * A code is an 8-bit integer: d, times this site's share of the greatest weight, in units of a scale that all sites share
 * (outer/scales.c). w bits hold the sum of all sites' codes, so sums are exact modulo 2^w, whatever the masks were; they are scaled
 * once, by scale / sum of the weights. The result is the same, bit for bit, as that of the same codes without masks.
 *
 *     masked code := 'M', u8 w, u16 0, then the cells' values, w bits each, every cell from a byte of its own
 *
 * The pair masks of two sites in the sum cancel. The own masks of all of them are taken off by the seeds of RESULT, and so are the pair
 * masks with contributors that are not in the sum. */
#include "run/secure.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "outer/arith.h"
#include "run/influence.h"

#include <math.h>
#include <openssl/crypto.h>
#include <string.h>

enum { MAGIC = 'M', HEAD = 4 };
enum { LATE_S = 20 }; /* seconds for which a site is avoided whose offer does not come */

/* ---- sizes and weights --------------------------------------------------------------------------------- */

static size_t code_size(const struct neb_outer *o, uint32_t c0, uint32_t c1, int w)
{
    size_t all = HEAD;
    for (uint32_t c = c0; c < c1; c++) {
        size_t first, n = neb__outer_cell(o, c, &first);
        all += neb__packed_size(n, w);
    }
    return all;
}

static int bits_of(const struct neb_outer *o, uint32_t c0, uint32_t c1, const uint8_t *code, size_t n)
{
    if (n < HEAD || code[0] != MAGIC || code[2] || code[3]) return 0;
    int w = code[1];
    return w >= neb__mask_bits(3) && w <= neb__mask_bits(NEB_SITES_MAX) && n == code_size(o, c0, c1, w) ? w
                                                                                                        : 0;
}

bool neb__sums_fits(const neb_session *s, const struct neb_update_header *h, const uint8_t *code, size_t n,
                    int sites)
{
    if (!s->secure || h->c0 >= h->c1 || h->c1 > s->mirror.outer->cells || h->rung != NEB_RUNG_SUM)
        return false;
    int w = bits_of(s->mirror.outer, h->c0, h->c1, code, n);
    return w && (!sites || w == neb__mask_bits(sites));
}

/* The weights that count, by the rule of the run, in the order of OPEN. Returns the greatest. */
static uint32_t weights_of(const struct neb_influence *rule, const struct neb_record *open, uint32_t *out)
{
    uint32_t most = 1;
    struct neb_record *all = neb__record_new(open->contributors);
    for (uint32_t i = 0; i < open->contributors; i++) {
        out[i] = open->contributor[i].weight;
        if (all)
            all->update[i] =
                (struct neb_named){.site = open->contributor[i].site, .weight = out[i], .tau = 1};
    }
    if (all) neb__influence_weights(rule, all, out);
    neb__free(all);
    for (uint32_t i = 0; i < open->contributors; i++) most = out[i] > most ? out[i] : most;
    return most;
}

static float share_of(const struct neb_influence *rule, const struct neb_record *open, unsigned site)
{
    uint32_t weight[NEB_SITES_MAX], most = weights_of(rule, open, weight);
    for (uint32_t i = 0; i < open->contributors; i++)
        if (open->contributor[i].site == site) return (float)((double)weight[i] / (double)most);
    return 1;
}

const struct neb_record *neb__sums_open_record(const neb_session *s, const struct neb_record *rec)
{
    for (uint64_t i = rec->index - 1; i > 0; i--) {
        const struct neb_record *open = neb__round_record(s->core, i);
        if (open && open->type == NEB_RECORD_OPEN && open->c0 == rec->c0)
            return open->attempt == rec->attempt && open->v == rec->v ? open : NULL;
    }
    return NULL;
}

/* ---- making one ---------------------------------------------------------------------------------------- */

struct mask {
    uint8_t seed[NEB_MASK_KEY];
    bool minus;
};

/* The seed that two sites share. The one with the lower number adds it. */
static neb_status pair_seed(const uint8_t secret[NEB_MASK_KEY], const uint8_t key[NEB_MASK_KEY],
                            const struct neb_hash *id, uint16_t a, uint16_t b, uint8_t out[NEB_MASK_KEY])
{
    return neb__mask_agree(secret, key, id, "nebula sum mask", a < b ? a : b, a < b ? b : a, out);
}

/* Everything that this site promised or was promised must be here: it reveals no share that it cannot check, and masks nothing for a
 * site whose offer it has not seen. */
static neb_status masks_for(neb_session *s, struct neb_sum_attempt *a, const struct neb_record *open,
                            struct mask *mask)
{
    struct neb_sum_offer *o = NEB_NEW(struct neb_sum_offer);
    uint8_t own[NEB_SHARE_SIZE], pair[NEB_SHARE_SIZE];
    neb_status status = o ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for masks");
    for (uint32_t i = 0; status == NEB_OK && i < open->contributors; i++) {
        const struct neb_contributor *c = &open->contributor[i];
        bool named = neb__sums_named_offer(a, c, o); /* false: the leader wrote another offer into OPEN */
        if (!named || !neb__sums_shares(s, a, o, own, pair)) {
            const struct neb_offer_entry *e = named ? neb__offer_entry(o, s->self) : NULL;
            if (e && !memcmp(e->keys, a->keys_id[s->self], NEB_KEYS_ID))
                neb__sums_avoid(s, a, c->site, NEB_SUM_BAD_S, "dealt this site shares that it cannot use");
            status = neb__quiet(NEB_ERR_STATE, "no valid share of site %u is here", c->site);
            break;
        }
        mask[i].minus = c->site < s->self;
        if (c->site == s->self)
            memcpy(mask[i].seed, a->own, NEB_MASK_KEY);
        else if (pair_seed(a->mask.secret, c->key, &a->id, s->self, c->site, mask[i].seed) != NEB_OK) {
            neb__sums_avoid(s, a, c->site, NEB_SUM_BAD_S, "offered a key that gives no secret");
            status = neb__quiet(NEB_ERR_STATE, "the key of site %u gives no secret", c->site);
        }
    }
    OPENSSL_cleanse(own, sizeof own);
    OPENSSL_cleanse(pair, sizeof pair);
    neb__free(o);
    return status;
}

static neb_status all_offers_here(neb_session *s, struct neb_sum_attempt *a, const struct neb_record *open)
{
    static const double patience_s = 10;
    uint32_t i = 0;
    while (i < open->contributors && neb__sums_offer_of(a, &open->contributor[i])) i++;
    if (i == open->contributors) return NEB_OK;
    if (!a->missed_at) a->missed_at = neb__now_ns();
    bool late = neb__seconds_since(a->missed_at) > patience_s;
    if (late)
        neb__sums_avoid(s, a, open->contributor[i].site, LATE_S,
                        "has made an offer that does not reach this site");
    return neb__quiet(late ? NEB_ERR_STATE : NEB_ERR_NOTFOUND, "the offer of site %u is not here",
                      open->contributor[i].site);
}

static bool all_finite(const float *x, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

static neb_status mask_cells(neb_session *s, const struct neb_update_header *h, const struct neb_record *open,
                             const struct mask *mask, int w, uint8_t *out)
{
    float scale[NEB_SCALES], factor = share_of(&s->influence, open, s->self);
    uint16_t *v = neb__malloc(NEB_CELL * sizeof *v);
    neb_status status = v ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for masked codes");
    for (uint32_t c = h->c0; status == NEB_OK && c < h->c1; c++) {
        size_t first, n = neb__outer_cell(s->mirror.outer, c, &first), at = (c - h->c0) * NEB_CELL;
        if (!all_finite(s->mirror.d + first, n)) {
            status = neb__quiet(NEB_ERR_RANGE, "a value of cell %u is not finite", c);
            break;
        }
        neb__outer_scales(s->mirror.outer, c, s->config.outer_momentum, scale);
        neb__codes_make(s->mirror.d + first, scale, factor, n, v);
        for (uint32_t i = 0; status == NEB_OK && i < open->contributors; i++)
            status = neb__mask_add(mask[i].seed, at, mask[i].minus, v, n);
        if (status == NEB_OK) neb__packed_put(v, n, w, out);
        out += neb__packed_size(n, w);
    }
    if (v) OPENSSL_cleanse(v, NEB_CELL * sizeof *v);
    neb__free(v);
    return status;
}

neb_status neb__sums_mask(neb_session *s, struct neb_update_header *h, uint64_t open_index,
                          struct neb_buf *out)
{
    const struct neb_record *open = neb__round_record(s->core, open_index);
    struct neb_sum_attempt *a = neb__sums_of(s, h->c0);
    struct mask mask[NEB_SITES_MAX];
    if (!open || !a || open->type != NEB_RECORD_OPEN)
        return neb__fail(NEB_ERR_INTERNAL, "no secure sum is open");
    if (a->attempt != open->attempt || a->version != open->v || !a->keyed || a->used)
        return neb__quiet(NEB_ERR_STATE, "this site has no secrets for the attempt, or has used them");
    if (a->threshold != open->threshold)
        return neb__quiet(NEB_ERR_STATE, "the secrets of this attempt are dealt for another roster");
    NEB_TRY(all_offers_here(s, a, open));
    NEB_TRY(masks_for(s, a, open, mask));
    a->used = true; /* whatever happens now, these masks hide no second update */
    const int w = neb__mask_bits((int)open->contributors);
    const size_t at = neb__update_code_at(h), size = code_size(s->mirror.outer, h->c0, h->c1, w);
    neb_status status = neb__sums_keep(s, a, open);
    neb__buf_clear(out);
    if (status == NEB_OK) status = neb__buf_reserve(out, at + size);
    if (status == NEB_OK) {
        out->len = at + size;
        memcpy(out->data + at, (const uint8_t[HEAD]){MAGIC, (uint8_t)w}, HEAD);
        status = mask_cells(s, h, open, mask, w, out->data + at + HEAD);
    }
    OPENSSL_cleanse(mask, sizeof mask);
    h->kind = NEB_UPDATE_MASKED;
    h->attempt = open->attempt;
    h->rung = NEB_RUNG_SUM;
    h->cls = NEB_DENSE;
    const struct neb_contributor *own = neb__record_contributor(open, s->self);
    if (own) h->weight = own->weight;
    h->tokens = (uint64_t)h->tau * h->weight;
    return status == NEB_OK || status == NEB_ERR_RANGE ? status : NEB_ERR_STATE;
}

/* ---- unmasking ----------------------------------------------------------------------------------------- */

bool neb__sums_key_fits(const struct neb_contributor *c, const uint8_t secret[NEB_SEED_SIZE])
{
    struct neb_mask_pair pair;
    return neb__mask_pair_from(secret, &pair) == NEB_OK && !memcmp(pair.public, c->key, NEB_MASK_KEY);
}

/* A dealer may promise and deal a secret that is not that of its public key. The masks with it cannot be taken off then. */
static bool keys_fit(const struct neb_record *open, const struct neb_record *rec)
{
    for (uint32_t i = 0; i < open->contributors; i++)
        if (!neb__record_of(rec, open->contributor[i].site) &&
            !neb__sums_key_fits(&open->contributor[i], rec->seed[i]))
            return false;
    return true;
}

/* The masks that are left in the sum: the own ones of the sites in it, and those with the sites that are not. */
static neb_status masks_left(const struct neb_hash *genesis, const struct neb_record *open,
                             const struct neb_record *rec, struct mask *mask, int *count)
{
    struct neb_hash id;
    uint8_t b[NEB_HASH_SIZE + 14];
    memcpy(b, genesis->b, NEB_HASH_SIZE);
    neb__put32(b + NEB_HASH_SIZE, open->c0);
    neb__put64(b + NEB_HASH_SIZE + 4, open->v);
    neb__put16(b + NEB_HASH_SIZE + 12, open->attempt);
    NEB_TRY(neb__hash(b, sizeof b, &id));
    int n = 0;
    for (uint32_t i = 0; i < open->contributors; i++) {
        const struct neb_contributor *c = &open->contributor[i];
        if (neb__record_of(rec, c->site)) {
            memcpy(mask[n].seed, rec->seed[i], NEB_MASK_KEY);
            mask[n++].minus = true;
            continue;
        }
        for (uint32_t j = 0; j < open->contributors; j++) {
            const struct neb_contributor *d = &open->contributor[j];
            if (!neb__record_of(rec, d->site)) continue;
            /* A key that gives no secret gave none to its partner, who could then not contribute. */
            if (pair_seed(rec->seed[i], d->key, &id, c->site, d->site, mask[n].seed) != NEB_OK) continue;
            mask[n++].minus = d->site < c->site; /* d added it */
        }
    }
    *count = n;
    return NEB_OK;
}

static neb_status add_codes(const struct neb_outer *o, const struct neb_record *rec, neb_find_update *find,
                            void *arg, struct neb_unmasked *u)
{
    for (uint32_t i = 0; i < rec->updates; i++) {
        const struct neb_buf *b = find(arg, &rec->update[i].hash);
        struct neb_update_header h;
        if (!b || neb__update_header_get(b->data, b->len, &h) != NEB_OK || h.c0 != rec->c0 || h.c1 != rec->c1)
            return neb__fail(NEB_ERR_CORRUPT, "a committed update of site %u cannot be read back",
                             rec->update[i].site);
        const uint8_t *code = b->data + neb__update_code_at(&h);
        int w = bits_of(o, rec->c0, rec->c1, code, neb__update_code_size(&h));
        if (w != u->bits) continue; /* not a code of this sum: it adds nothing, at any site */
        code += HEAD;
        for (uint32_t c = rec->c0; c < rec->c1; c++) {
            size_t first, n = neb__outer_cell(o, c, &first);
            neb__packed_add(code, n, w, u->sum + (first - u->first));
            code += neb__packed_size(n, w);
        }
    }
    return NEB_OK;
}

static float factor_of(const struct neb_influence *rule, const struct neb_record *open,
                       const struct neb_record *rec)
{
    uint32_t weight[NEB_SITES_MAX], most = weights_of(rule, open, weight);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < open->contributors; i++)
        if (neb__record_of(rec, open->contributor[i].site)) sum += weight[i];
    return sum ? (float)((double)most / (double)sum) : 0;
}

/* Room for the sum and the scales. They stay as they are while the cells change one after the other. */
static neb_status make_room(const struct neb_outer *outer, const struct neb_record *rec,
                            struct neb_unmasked *out)
{
    size_t last, n = neb__outer_cell(outer, rec->c1 - 1, &last);
    float mu;
    memset(out, 0, sizeof *out);
    neb__outer_cell(outer, rec->c0, &out->first);
    out->c0 = rec->c0;
    memcpy(&mu, &rec->mu, sizeof mu);
    out->sum = NEB_NEW_ARRAY(uint16_t, last + n - out->first);
    out->scale = NEB_NEW_ARRAY(float, (size_t)(rec->c1 - rec->c0) * NEB_SCALES);
    if (!out->sum || !out->scale) return neb__fail(NEB_ERR_NOMEM, "out of memory for a secure sum");
    for (uint32_t c = rec->c0; c < rec->c1; c++)
        neb__outer_scales(outer, c, mu, out->scale + (size_t)(c - rec->c0) * NEB_SCALES);
    return NEB_OK;
}

static const float *scales_of(const struct neb_unmasked *u, uint32_t cell)
{
    return u->scale + (size_t)(cell - u->c0) * NEB_SCALES;
}

static neb_status unmask_cells(const struct neb_outer *outer, const struct neb_record *rec,
                               const struct mask *mask, int masks, struct neb_unmasked *out)
{
    uint32_t saved;
    neb_status status = NEB_OK;
    for (uint32_t c = rec->c0; status == NEB_OK && c < rec->c1; c++) {
        size_t first, n = neb__outer_cell(outer, c, &first), at = first - out->first;
        for (int i = 0; status == NEB_OK && i < masks; i++)
            status = neb__mask_add(mask[i].seed, at, mask[i].minus, out->sum + at, n);
        neb__arith_enter(&saved);
        out->norm += neb__codes_square(out->sum + at, out->bits, scales_of(out, c), out->factor, n);
        neb__arith_leave(saved);
    }
    out->norm = sqrt(out->norm);
    return status;
}

neb_status neb__unmask_open(const struct neb_outer *outer, const struct neb_influence *rule,
                            const struct neb_hash *genesis, const struct neb_record *open,
                            const struct neb_record *rec, neb_find_update *find, void *arg,
                            struct neb_unmasked *out)
{
    struct mask *mask = NEB_NEW_ARRAY(struct mask, NEB_SITES_MAX * NEB_SITES_MAX / 2);
    int masks = 0;
    neb_status status = make_room(outer, rec, out);
    out->bits = neb__mask_bits((int)open->contributors);
    out->factor = factor_of(rule, open, rec);
    if (status == NEB_OK && !mask) status = neb__fail(NEB_ERR_NOMEM, "out of memory for a secure sum");
    if (status == NEB_OK && (!rec->seeds || rec->seeds != open->contributors))
        status = neb__fail(NEB_ERR_CORRUPT, "record %" PRIu64 " lacks the seeds of its sum", rec->index);
    /* A leader that lies can have such a sum committed all the same. It is noise, and counts for nothing at every site. */
    if (status == NEB_OK && !keys_fit(open, rec)) {
        neb__free(mask);
        out->factor = 0;
        return NEB_OK;
    }
    if (status == NEB_OK) status = add_codes(outer, rec, find, arg, out);
    if (status == NEB_OK) status = masks_left(genesis, open, rec, mask, &masks);
    if (status == NEB_OK) status = unmask_cells(outer, rec, mask, masks, out);
    neb__free(mask);
    if (status != NEB_OK) neb__unmask_close(out);
    return status;
}

void neb__unmask_close(struct neb_unmasked *u)
{
    neb__free(u->sum);
    neb__free(u->scale);
    u->sum = NULL;
    u->scale = NULL;
}

void neb__unmask_cell(const struct neb_unmasked *u, const struct neb_outer *outer, uint32_t cell, float *out)
{
    size_t first, n = neb__outer_cell(outer, cell, &first);
    uint32_t saved;
    neb__arith_enter(&saved);
    neb__codes_values(u->sum + (first - u->first), u->bits, scales_of(u, cell), u->factor, n, out);
    neb__arith_leave(saved);
}

void neb__unmask_own(const neb_session *s, const struct neb_unmasked *u, const struct neb_record *open,
                     uint32_t cell, const float *d, size_t n, uint16_t *codes, float *out)
{
    const float factor = share_of(&s->influence, open, s->self);
    neb__codes_make(d, scales_of(u, cell), factor, n, codes);
    neb__codes_values(codes, u->bits, scales_of(u, cell), 1 / factor, n, out);
}

/* Nobody's part in a mean can be judged, but the mean can: by the lengths of those before it. Three rows take them in turn, in place of
 * sites, since the rule wants three. */
void neb__mean_length(const struct neb_record *rec, double norm, struct neb_mean_length *out)
{
    *out =
        (struct neb_mean_length){.site = (uint16_t)(rec->v % 3), .cls = NEB_DENSE, .norm = norm, .scale = 1};
    out->step = (struct neb_norm_step){1, &out->site, &out->cls, &out->norm};
}
