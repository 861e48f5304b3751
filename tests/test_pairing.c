/* test_pairing.c: codes, CPace against the vectors of its draft, and pairings without a network: the right code, wrong ones
 * (NEB_GUESSES of them), and every byte of every message changed. */
#include "check.h"
#include "seal/pairing.h"

#include <nebula/log.h>
#include <stdio.h>
#include <string.h>

/* ---- codes --------------------------------------------------------------------------------------------- */

/* Whether one letter changed, added or left out makes one word of the other. */
static bool alike(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), same = 0;
    while (a[same] && a[same] == b[same]) same++;
    if (n == m) return !strcmp(a + same + (n > same), b + same + (n > same));
    if (n + 1 == m) return !strcmp(a + same, b + same + 1);
    return m + 1 == n && !strcmp(a + same + 1, b + same);
}

/* 2,048 words in order; one wrong letter never makes another word. */
static void test_words(void **state)
{
    (void)state;
    static char word[NEB_PAIR_WORDS][8];
    const char *at = neb__pair_words;
    int n = 0;
    for (; *at; n++) {
        size_t len = strcspn(at, " ");
        assert_true(n < NEB_PAIR_WORDS && len >= 4 && len <= 7 && at[len] == ' ');
        memcpy(word[n], at, len);
        assert_int_equal(strspn(word[n], "abcdefghijklmnopqrstuvwxyz"), len);
        if (n) assert_true(strcmp(word[n - 1], word[n]) < 0);
        at += len + 1;
    }
    assert_int_equal(n, NEB_PAIR_WORDS);
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (alike(word[i], word[k])) fail_msg("%s and %s are too much alike", word[i], word[k]);
}

static bool same(const struct neb_pair_code *a, const struct neb_pair_code *b)
{
    return a->number == b->number && !memcmp(a->word, b->word, sizeof a->word);
}

static void test_codes(void **state)
{
    (void)state;
    struct neb_pair_code c, d;
    char text[NEB_PAIR_CODE_SIZE];
    for (int i = 0; i < 200; i++) {
        assert_ok(neb__pair_code_make(&c));
        neb__pair_code_format(&c, text);
        assert_ok(neb__pair_code_parse(text, &d));
        assert_true(same(&c, &d));
    }
    assert_ok(neb__pair_code_parse("4821-canal-violet-piano", &c));
    assert_ok(neb__pair_code_parse(" 4821 CANAL  violet-Piano ", &d));
    assert_true(same(&c, &d));
    static const char *const bad[] = {"",
                                      "canal-violet-piano",
                                      "821-canal-violet-piano",
                                      "48211-canal-violet-piano",
                                      "4821-canal-violet",
                                      "4821-canal-violet-piano-piano",
                                      "4821-canal-violet-pianopianopianopiano",
                                      "4821-canal-violet-pianx",
                                      "-4821-canal\n-violet-piano"};
    check_log_quiet();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_status(neb__pair_code_parse(bad[i], &c), NEB_ERR_INVALID);
    assert_status(neb__pair_code_parse("4821-kanal-violet-piano", &c), NEB_ERR_INVALID);
    assert_non_null(strstr(neb_last_error(), "did you mean 'canal'?"));
    check_log_restore();
}

/* ---- CPace --------------------------------------------------------------------------------------------- */

static uint8_t vector[16][128];
static size_t vector_n[16];
static const char *const names[] = {"PRS", "CI", "sid", "ya",     "ADa",       "Ya",        "yb",
                                    "ADb", "Yb", "K",   "ISK_IR", "invalid_s", "invalid_1", "invalid_2"};
enum { PRS, CI, SID, YA_SECRET, ADA, YA, YB_SECRET, ADB, YB, K, ISK, INVALID_S, INVALID_1, INVALID_2 };

static struct neb_bytes v(int i)
{
    return (struct neb_bytes){vector[i], vector_n[i]};
}

static int read_vectors(void **state)
{
    (void)state;
    char name[32], hex[512];
    FILE *f = fopen(NEB_TEST_DATA "/cpace.txt", "r");
    if (!f || fscanf(f, "%*[^\n]") != 0) return 1;
    while (fscanf(f, "%31s %511s", name, hex) == 2)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            if (strcmp(name, names[i])) continue;
            vector_n[i] = strlen(hex) / 2;
            for (size_t k = 0; k < vector_n[i]; k++) sscanf(hex + 2 * k, "%2hhx", &vector[i][k]);
        }
    fclose(f);
    return 0;
}

static void test_vectors(void **state)
{
    (void)state;
    struct neb_cpace a, b;
    uint8_t tag[NEB_CPACE_TAG];
    assert_int_equal(vector_n[ISK], 64);
    assert_ok(neb__cpace_begin_with(&a, true, v(PRS), v(CI), v(SID), v(ADA), vector[YA_SECRET]));
    assert_ok(neb__cpace_begin_with(&b, false, v(PRS), v(CI), v(SID), v(ADB), vector[YB_SECRET]));
    assert_memory_equal(a.share, vector[YA], 32);
    assert_memory_equal(b.share, vector[YB], 32);
    assert_ok(neb__cpace_finish(&a, b.share, v(ADB)));
    assert_ok(neb__cpace_finish(&b, a.share, v(ADA)));
    assert_memory_equal(a.isk, vector[ISK], 64);
    assert_memory_equal(b.isk, vector[ISK], 64);
    neb__cpace_tag(&a, tag);
    assert_ok(neb__cpace_check(&b, tag));
    neb__cpace_tag(&b, tag);
    assert_ok(neb__cpace_check(&a, tag));
    tag[17] ^= 4;
    assert_status(neb__cpace_check(&a, tag), NEB_ERR_AUTH);
    assert_ok(neb__cpace_begin_with(&a, true, v(PRS), v(CI), v(SID), v(ADA), vector[INVALID_S]));
    assert_status(neb__cpace_finish(&a, vector[INVALID_1], v(ADB)), NEB_ERR_AUTH);
    assert_status(neb__cpace_finish(&a, vector[INVALID_2], v(ADB)), NEB_ERR_AUTH);
}

/* Inputs of 128 bytes and more have a length of two bytes. */
static void test_long_inputs(void **state)
{
    (void)state;
    struct neb_cpace a, b;
    uint8_t big[NEB_CPACE_INPUT_MAX + 1] = {1}, tag[NEB_CPACE_TAG];
    struct neb_bytes all = {big, NEB_CPACE_INPUT_MAX}, over = {big, sizeof big}, none = {"", 0};
    assert_ok(neb__cpace_begin(&a, true, all, all, all, all));
    assert_ok(neb__cpace_begin(&b, false, all, all, all, none));
    assert_ok(neb__cpace_finish(&a, b.share, none));
    assert_ok(neb__cpace_finish(&b, a.share, all));
    neb__cpace_tag(&a, tag);
    assert_ok(neb__cpace_check(&b, tag));
    check_log_quiet();
    assert_status(neb__cpace_begin(&a, true, over, all, all, all), NEB_ERR_INVALID);
    assert_status(neb__cpace_begin(&a, true, all, all, all, over), NEB_ERR_INVALID);
    check_log_restore();
}

/* ---- pairings ------------------------------------------------------------------------------------------ */

static const struct neb_public relay = {{7}};

struct two {
    struct neb_pairing c, j;
    uint8_t hello_c[NEB_PAIRING_HELLO], hello_j[NEB_PAIRING_HELLO];
    uint8_t proof_c[NEB_PAIRING_PROOF], proof_j[NEB_PAIRING_PROOF];
};

static void begin(struct two *t, const struct neb_pair_code *c, const struct neb_pair_code *j)
{
    assert_ok(neb__pairing_begin(&t->c, true, c, &relay, t->hello_c));
    assert_ok(neb__pairing_begin(&t->j, false, j, &relay, t->hello_j));
}

/* Returns how the two proofs were judged: bit 0 the creator's verdict, bit 1 the joiner's. */
static int meet(struct two *t)
{
    assert_ok(neb__pairing_hello(&t->c, t->hello_j, sizeof t->hello_j, t->proof_c));
    assert_ok(neb__pairing_hello(&t->j, t->hello_c, sizeof t->hello_c, t->proof_j));
    return (neb__pairing_proof(&t->c, t->proof_j, sizeof t->proof_j) == NEB_OK) |
           (neb__pairing_proof(&t->j, t->proof_c, sizeof t->proof_c) == NEB_OK) << 1;
}

static void test_right_code(void **state)
{
    (void)state;
    struct two t;
    struct neb_pair_code code;
    uint8_t sealed[100], open[100];
    assert_ok(neb__pair_code_make(&code));
    begin(&t, &code, &code);
    check_log_quiet();
    assert_status(neb__pairing_seal(&t.c, "x", 1, sealed), NEB_ERR_STATE); /* too early */
    check_log_restore();
    assert_int_equal(meet(&t), 3);
    assert_memory_equal(t.c.session, t.j.session, NEB_PAIRING_SESSION);
    for (int i = 0; i < 3; i++) {
        assert_ok(neb__pairing_seal(&t.c, "seventeen letters", 17, sealed));
        assert_ok(neb__pairing_open(&t.j, sealed, 17 + NEB_PAIRING_OVERHEAD, open));
        assert_memory_equal(open, "seventeen letters", 17);
    }
    assert_status(neb__pairing_open(&t.j, sealed, 17 + NEB_PAIRING_OVERHEAD, open),
                  NEB_ERR_AUTH); /* repeated */
    assert_status(neb__pairing_open(&t.c, sealed, 17 + NEB_PAIRING_OVERHEAD, open),
                  NEB_ERR_AUTH); /* one's own */
    for (size_t i = 0; i < 17 + NEB_PAIRING_OVERHEAD; i++) {
        assert_ok(neb__pairing_seal(&t.c, "seventeen letters", 17, sealed));
        sealed[i] ^= 1;
        assert_int_not_equal(neb__pairing_open(&t.j, sealed, 17 + NEB_PAIRING_OVERHEAD, open), NEB_OK);
        sealed[i] ^= 1;
        assert_ok(neb__pairing_open(&t.j, sealed, 17 + NEB_PAIRING_OVERHEAD, open));
    }
}

/* Each wrong code is one guess: neither side takes the proof, and what the guesser has seen does not let it try another
 * word: the keys of every other word differ. */
static void test_wrong_codes(void **state)
{
    (void)state;
    struct neb_pair_code code;
    const char *many = getenv("NEB_GUESSES");
    int guesses = many ? atoi(many) : 1000;
    assert_ok(neb__pair_code_make(&code));
    for (int i = 0; i < guesses; i++) {
        struct two t;
        struct neb_pair_code guess;
        assert_ok(neb__pair_code_make(&guess));
        guess.number = code.number;
        if (same(&guess, &code)) continue;
        begin(&t, &code, &guess);
        if (meet(&t)) fail_msg("guess %d was taken", i);
        assert_memory_not_equal(t.c.session, t.j.session, NEB_PAIRING_SESSION);
    }
}

/* Whoever stands in between changes one byte of a message: nobody is paired with anybody. */
static void test_changed_bytes(void **state)
{
    (void)state;
    struct neb_pair_code code, other;
    struct two t;
    uint8_t proof[NEB_PAIRING_PROOF];
    assert_ok(neb__pair_code_make(&code));
    for (size_t i = 0; i < NEB_PAIRING_HELLO; i++) {
        begin(&t, &code, &code);
        t.hello_j[i] ^= 1;
        neb_status status = neb__pairing_hello(&t.c, t.hello_j, sizeof t.hello_j, t.proof_c);
        assert_ok(neb__pairing_hello(&t.j, t.hello_c, sizeof t.hello_c, t.proof_j));
        if (status != NEB_OK) continue;
        assert_int_not_equal(neb__pairing_proof(&t.c, t.proof_j, sizeof t.proof_j), NEB_OK);
        assert_int_not_equal(neb__pairing_proof(&t.j, t.proof_c, sizeof t.proof_c), NEB_OK);
    }
    for (size_t i = 0; i < NEB_PAIRING_PROOF; i++) {
        begin(&t, &code, &code);
        assert_ok(neb__pairing_hello(&t.c, t.hello_j, sizeof t.hello_j, t.proof_c));
        assert_ok(neb__pairing_hello(&t.j, t.hello_c, sizeof t.hello_c, t.proof_j));
        t.proof_j[i] ^= 1;
        assert_int_not_equal(neb__pairing_proof(&t.c, t.proof_j, sizeof t.proof_j), NEB_OK);
    }
    begin(&t, &code, &code); /* one's own message, sent back */
    assert_status(neb__pairing_hello(&t.c, t.hello_c, sizeof t.hello_c, proof), NEB_ERR_STATE);
    assert_ok(neb__pairing_hello(&t.c, t.hello_j, sizeof t.hello_j, t.proof_c));
    assert_status(neb__pairing_proof(&t.c, t.proof_c, sizeof t.proof_c), NEB_ERR_AUTH);
    assert_status(neb__pairing_hello(&t.c, t.hello_j, 3, proof), NEB_ERR_PROTOCOL);
    t.hello_j[0] = 9;
    assert_status(neb__pairing_hello(&t.c, t.hello_j, sizeof t.hello_j, proof), NEB_ERR_VERSION);
    begin(&t, &code, &code); /* another relay host, another number */
    struct neb_public second = {{8}};
    assert_ok(neb__pairing_begin(&t.j, false, &code, &second, t.hello_j));
    assert_int_equal(meet(&t), 0);
    other = code;
    other.number ^= 1;
    begin(&t, &code, &other);
    assert_int_equal(meet(&t), 0);
}

static void test_cards(void **state)
{
    (void)state;
    struct neb_pair_code code;
    struct two t, again;
    struct neb_key *key, *foreign;
    struct neb_member m = {.votes = 1, .flags = NEB_MEMBER_WITNESS, .addresses = 2}, got;
    struct neb_buf card;
    assert_ok(neb__pair_code_make(&code));
    begin(&t, &code, &code);
    assert_int_equal(meet(&t), 3);
    begin(&again, &code, &code);
    assert_int_equal(meet(&again), 3);
    assert_ok(neb__key_create(&key));
    assert_ok(neb__key_create(&foreign));
    neb__key_public(key, &m.key);
    snprintf(m.name, sizeof m.name, "paris");
    snprintf(m.address[0], NEB_ADDRESS_SIZE, "paris.example.org:7100");
    snprintf(m.address[1], NEB_ADDRESS_SIZE, "[fd00::1]:7100");
    neb__buf_init(&card, NEB_PAIRING_CARD_MAX);
    assert_ok(neb__pair_card_make(&t.c, &m, key, &card));
    assert_ok(neb__pair_card_read(&t.j, card.data, card.len, &got));
    assert_memory_equal(&got, &m, sizeof m);
    assert_status(neb__pair_card_read(&again.j, card.data, card.len, &got),
                  NEB_ERR_AUTH); /* of another pairing */
    for (size_t n = 0; n < card.len; n++)
        assert_int_not_equal(neb__pair_card_read(&t.j, card.data, n, &got), NEB_OK);
    for (size_t i = 0; i < card.len; i++) {
        card.data[i] ^= 1;
        assert_int_not_equal(neb__pair_card_read(&t.j, card.data, card.len, &got), NEB_OK);
        card.data[i] ^= 1;
    }
    neb__buf_clear(&card);
    assert_ok(neb__pair_card_make(&t.c, &m, foreign, &card)); /* somebody else's identity */
    assert_status(neb__pair_card_read(&t.j, card.data, card.len, &got), NEB_ERR_AUTH);
    neb__buf_free(&card);
    neb__key_free(key);
    neb__key_free(foreign);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),         cmocka_unit_test(test_codes),
        cmocka_unit_test(test_vectors),       cmocka_unit_test(test_long_inputs),
        cmocka_unit_test(test_right_code),    cmocka_unit_test(test_wrong_codes),
        cmocka_unit_test(test_changed_bytes), cmocka_unit_test(test_cards)};
    return cmocka_run_group_tests(tests, read_vectors, NULL);
}
