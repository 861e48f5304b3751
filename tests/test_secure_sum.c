/* test_secure_sum.c: what a RESULT comes to. The sum without its masks is that of the same packed codes without masks, bit for bit, with
 * all contributors and with one that dropped out; a dealer that promised another mask key than its public one spoils nothing. */
#include "check.h"
#include "base/mem.h"
#include "base/rng.h"
#include "run/secure.h"

#include <string.h>

enum { SITES = 5, CELLS = 2, VALUES = NEB_CELL + 700 };

/* Five sites, their secrets, and what each of them sends. */
struct world {
    struct neb_outer *outer;
    struct neb_hash genesis, id;
    struct neb_mask_pair pair[SITES];
    uint8_t own[SITES][NEB_MASK_KEY];
    uint16_t code[SITES][VALUES]; /* without masks */
    struct neb_buf update[SITES]; /* with them: header and code */
    struct neb_record *open, *result;
    struct neb_influence rule;
};

static const struct neb_buf *find(void *arg, const struct neb_hash *hash)
{
    struct world *w = arg;
    return hash->b[0] < SITES ? &w->update[hash->b[0]] : NULL;
}

static void make_secrets(struct world *w)
{
    uint8_t b[NEB_HASH_SIZE + 14] = {0};
    memset(w->genesis.b, 7, NEB_HASH_SIZE);
    memcpy(b, w->genesis.b, NEB_HASH_SIZE);
    neb__put64(b + NEB_HASH_SIZE + 4, 3);  /* version */
    neb__put16(b + NEB_HASH_SIZE + 12, 9); /* attempt */
    assert_ok(neb__hash(b, sizeof b, &w->id));
    w->open = neb__record_new_sum(0, SITES, 0);
    w->open->type = NEB_RECORD_OPEN;
    w->open->c1 = CELLS, w->open->v = 3, w->open->attempt = 9;
    for (int i = 0; i < SITES; i++) {
        assert_ok(neb__mask_pair_create(&w->pair[i]));
        assert_ok(neb__secret_random(w->own[i], NEB_MASK_KEY));
        w->open->contributor[i] =
            (struct neb_contributor){.site = (uint16_t)i, .weight = 100 + 10 * (uint32_t)i};
        memcpy(w->open->contributor[i].key, w->pair[i].public, NEB_MASK_KEY);
    }
}

static void mask(struct world *w, int i, uint16_t *v)
{
    uint8_t seed[NEB_MASK_KEY];
    assert_ok(neb__mask_add(w->own[i], 0, false, v, VALUES));
    for (int j = 0; j < SITES; j++) {
        if (j == i) continue;
        assert_ok(neb__mask_agree(w->pair[i].secret, w->pair[j].public, &w->id, "nebula sum mask",
                                  (uint16_t)(i < j ? i : j), (uint16_t)(i < j ? j : i), seed));
        assert_ok(neb__mask_add(seed, 0, j < i, v, VALUES));
    }
}

static void make_update(struct world *w, int i, int bits)
{
    static uint16_t v[VALUES];
    struct neb_update_header h = {.site = (uint16_t)i,
                                  .kind = NEB_UPDATE_MASKED,
                                  .rung = NEB_RUNG_SUM,
                                  .c1 = CELLS,
                                  .k = 1,
                                  .b = 3,
                                  .tau = 5,
                                  .weight = 1,
                                  .attempt = 9};
    size_t at = NEB_UPDATE_HEADER_SIZE, second = VALUES - NEB_CELL;
    memcpy(v, w->code[i], sizeof v);
    mask(w, i, v);
    h.length = (uint32_t)(4 + neb__packed_size(NEB_CELL, bits) + neb__packed_size(second, bits));
    neb__buf_init(&w->update[i], at + h.length);
    assert_ok(neb__buf_reserve(&w->update[i], at + h.length));
    w->update[i].len = at + h.length;
    neb__update_header_put(&h, w->update[i].data);
    memcpy(w->update[i].data + at, (const uint8_t[4]){'M', (uint8_t)bits}, 4);
    neb__packed_put(v, NEB_CELL, bits, w->update[i].data + at + 4);
    neb__packed_put(v + NEB_CELL, second, bits,
                    w->update[i].data + at + 4 + neb__packed_size(NEB_CELL, bits));
}

static void setup(struct world *w)
{
    struct neb_rng rng = {11};
    float *theta = NEB_NEW_ARRAY(float, VALUES);
    memset(w, 0, sizeof *w);
    assert_ok(neb__outer_create(NEB_CELL, theta, VALUES, &w->outer));
    neb__free(theta);
    for (int i = 0; i < VALUES; i++) w->outer->m[i] = 1e-3f * (float)(1 + i % 17);
    w->rule = (struct neb_influence){.on = true, .equal = false};
    make_secrets(w);
    for (int i = 0; i < SITES; i++)
        for (int k = 0; k < VALUES; k++)
            w->code[i][k] = (uint16_t)(int16_t)((int)(neb__rng_next(&rng) % 255) - 127);
    for (int i = 0; i < SITES; i++) make_update(w, i, neb__mask_bits(SITES));
}

/* RESULT with the updates of all sites but `without` (-1: of all). */
static void make_result(struct world *w, int without)
{
    const float mu = 0.9f;
    neb__free(w->result);
    w->result = neb__record_new_sum(without < 0 ? SITES : SITES - 1, 0, SITES);
    struct neb_record *rec = w->result;
    rec->type = NEB_RECORD_ROUND;
    rec->c1 = CELLS, rec->v = 3, rec->attempt = 9;
    memcpy(&rec->mu, &mu, sizeof mu);
    for (int i = 0, n = 0; i < SITES; i++) {
        memcpy(rec->seed[i], i == without ? w->pair[i].secret : w->own[i], NEB_SEED_SIZE);
        if (i == without) continue;
        rec->update[n].site = (uint16_t)i;
        rec->update[n++].hash.b[0] = (uint8_t)i;
    }
}

static void teardown(struct world *w)
{
    for (int i = 0; i < SITES; i++) neb__buf_free(&w->update[i]);
    neb__free(w->open);
    neb__free(w->result);
    neb__outer_destroy(w->outer);
}

static void is_the_sum_of_the_codes(struct world *w, int without)
{
    struct neb_unmasked u;
    static uint16_t sum[VALUES];
    static float got[NEB_CELL], want[NEB_CELL];
    make_result(w, without);
    assert_ok(neb__unmask_open(w->outer, &w->rule, &w->genesis, w->open, w->result, find, w, &u));
    memset(sum, 0, sizeof sum);
    for (int i = 0; i < SITES; i++)
        for (int k = 0; i != without && k < VALUES; k++) sum[k] = (uint16_t)(sum[k] + w->code[i][k]);
    for (uint32_t c = 0; c < CELLS; c++) {
        size_t first, n = neb__outer_cell(w->outer, c, &first);
        neb__unmask_cell(&u, w->outer, c, got);
        neb__codes_values(sum + first, u.bits, u.scale + (size_t)c * NEB_SCALES, u.factor, n, want);
        assert_memory_equal(want, got, n * sizeof *got);
    }
    assert_true(u.factor > 0 && u.norm > 0);
    neb__unmask_close(&u);
}

static void a_sum_is_that_of_the_same_codes_without_masks(void **state)
{
    (void)state;
    struct world *w = NEB_NEW(struct world);
    setup(w);
    is_the_sum_of_the_codes(w, -1);
    for (int i = 0; i < SITES; i++) is_the_sum_of_the_codes(w, i);
    teardown(w);
    neb__free(w);
}

/* The dealer's hash is that of a secret that has nothing to do with its public key, and it is not in the sum. Every site sees that. */
static void a_false_mask_key_makes_the_sum_worth_nothing(void **state)
{
    (void)state;
    struct world *w = NEB_NEW(struct world);
    struct neb_unmasked u;
    static float got[NEB_CELL];
    setup(w);
    make_result(w, 2);
    w->result->seed[2][5] ^= 1;
    assert_false(neb__sums_key_fits(&w->open->contributor[2], w->result->seed[2]));
    assert_true(neb__sums_key_fits(&w->open->contributor[2], w->pair[2].secret));
    assert_ok(neb__unmask_open(w->outer, &w->rule, &w->genesis, w->open, w->result, find, w, &u));
    neb__unmask_cell(&u, w->outer, 0, got);
    for (size_t k = 0; k < NEB_CELL; k++) assert_true(got[k] == 0);
    assert_true(u.norm == 0);
    neb__unmask_close(&u);
    teardown(w);
    neb__free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_is_that_of_the_same_codes_without_masks),
        cmocka_unit_test(a_false_mask_key_makes_the_sum_worth_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
