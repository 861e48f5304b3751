/* operator_parts.c: the signatures of one operator, or of as many of several as must agree.
 *
 * One operator signs as before there were several: in the order's own field. So the bytes of such orders never changed. */
#include "run/operator_parts.h"

#include <string.h>

static bool holds(const struct neb_public *key, const char *purpose, const void *p, size_t n,
                  const uint8_t signature[NEB_SEAL_SIZE])
{
    struct neb_signature given;
    memcpy(given.b, signature, NEB_SEAL_SIZE);
    return neb__key_verify(key, purpose, p, n, &given) == NEB_OK;
}

bool neb__operators_signed(const struct neb_operators *set, const char *purpose, const void *p, size_t n,
                           const struct neb_order *o)
{
    if (set->count == 1) return !o->parts && holds(&set->key[0], purpose, p, n, o->signature);
    if (o->parts < set->threshold) return false;
    for (int i = 0; i < o->parts; i++) {
        const struct neb_order_part *part = &o->part[i];
        if (part->who >= set->count || !holds(&set->key[part->who], purpose, p, n, part->signature))
            return false;
    }
    return true;
}
