/* pair_code.c: pairing codes to text and back. */
#include "seal/pair_code.h"
#include "base/hash.h"
#include "base/nearest.h"
#include "seal/key.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 7 };

/* The n-th word, 0 to NEB_PAIR_WORDS - 1. */
static void word_at(unsigned n, char out[LONGEST + 1])
{
    const char *at = neb__pair_words;
    while (n--) at = strchr(at, ' ') + 1;
    size_t len = strcspn(at, " ");
    memcpy(out, at, len);
    out[len] = 0;
}

/* Returns NEB_PAIR_WORDS if it is none. */
static unsigned find_word(const char *word)
{
    char known[LONGEST + 1];
    const char *at = neb__pair_words;
    for (unsigned n = 0; *at; n++) {
        size_t len = strcspn(at, " ");
        memcpy(known, at, len);
        known[len] = 0;
        if (!strcmp(known, word)) return n;
        at += len + 1;
    }
    return NEB_PAIR_WORDS;
}

neb_status neb__pair_code_make(struct neb_pair_code *out)
{
    uint32_t random[4];
    NEB_TRY(neb__random_bytes(random, sizeof random));
    out->number = 1000 + random[0] % NEB_PAIR_NUMBERS;
    for (int i = 0; i < 3; i++)
        out->word[i] = (uint16_t)(random[1 + i] % NEB_PAIR_WORDS); /* a power of two */
    return NEB_OK;
}

size_t neb__pair_code_secret(const struct neb_pair_code *c, char out[NEB_PAIR_CODE_SIZE])
{
    char word[3][LONGEST + 1];
    for (int i = 0; i < 3; i++) word_at(c->word[i], word[i]);
    return (size_t)snprintf(out, NEB_PAIR_CODE_SIZE, "%s-%s-%s", word[0], word[1], word[2]);
}

void neb__pair_code_format(const struct neb_pair_code *c, char out[NEB_PAIR_CODE_SIZE])
{
    char words[NEB_PAIR_CODE_SIZE];
    neb__pair_code_secret(c, words);
    snprintf(out, NEB_PAIR_CODE_SIZE, "%u-%.26s", c->number, words);
}

static neb_status not_a_word(const char *word)
{
    struct neb_nearest near = {.word = word, .within = 3};
    static _Thread_local char known[NEB_PAIR_WORDS][LONGEST + 1];
    char hint[NEB_HINT];
    const char *at = neb__pair_words;
    for (unsigned i = 0; i < NEB_PAIR_WORDS; i++) {
        size_t len = strcspn(at, " ");
        memcpy(known[i], at, len);
        known[i][len] = 0;
        neb__nearest_try(&near, known[i]);
        at += len + 1;
    }
    neb__nearest_hint(&near, hint);
    return neb__fail(NEB_ERR_INVALID, "'%s' is not a word of any code%s", word, hint);
}

neb_status neb__pair_code_parse(const char *text, struct neb_pair_code *out)
{
    char part[4][16] = {{0}};
    int n = 0;
    while (*text && n < 5) {
        size_t len = strcspn(text, "- \t");
        for (size_t i = 0; i < len && n < 4 && i < 15; i++)
            part[n][i] = (char)tolower((unsigned char)text[i]);
        n += len > 0;
        text += len;
        text += strspn(text, "- \t");
    }
    char *end;
    unsigned long number = strtoul(part[0], &end, 10);
    if (n != 4 || *end || number < 1000 || number > 9999)
        return neb__fail(
            NEB_ERR_INVALID,
            "a code has a number of four digits and three words, such as 4821-canal-violet-piano");
    struct neb_pair_code c = {.number = (unsigned)number};
    for (int i = 0; i < 3; i++) {
        unsigned w = find_word(part[1 + i]);
        if (w == NEB_PAIR_WORDS) return not_a_word(part[1 + i]);
        c.word[i] = (uint16_t)w;
    }
    *out = c;
    return NEB_OK;
}

neb_status neb__pair_code_place(const struct neb_pair_code *c, uint8_t out[32])
{
    char text[64];
    struct neb_hash h;
    int n = snprintf(text, sizeof text, "nebula-i pair at %u", c->number);
    NEB_TRY(neb__hash(text, (size_t)n, &h));
    memcpy(out, h.b, 32);
    return NEB_OK;
}
