/* words.c: made-up text for tests. */
#include "words.h"
#include "check.h"
#include "base/rng.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

static const char *const stems[] = {"lum", "tar", "ven", "kor", "sil", "mar", "del", "pon", "rix", "gal",
                                    "bel", "nur", "fas", "hom", "jat", "wel", "zor", "cip", "dra", "tus"};
static const char *const ends[][3] = {{"", "a", "ing"}, {"en", "ß", "ung"}, {"é", "eau", "ique"}};

size_t words_sentence(int lang, uint64_t number, int words, char *out, size_t size)
{
    struct neb_rng r = {number * 7919 + 13};
    int n = words ? words : 3 + (int)neb__rng_below(&r, 22);
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        const char *a = stems[neb__rng_below(&r, 20)], *b = stems[neb__rng_below(&r, 20)];
        const char *end = ends[lang % 3][neb__rng_below(&r, 3)];
        int k = snprintf(out + at, size - at, "%s%s%s%s", i ? " " : "", a, b, end);
        if (k < 0 || at + (size_t)k >= size) break;
        at += (size_t)k;
    }
    return at;
}

void words_file(const char *path, int lang, int lang2, int lines)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    char text[1024];
    for (int i = 0; i < lines; i++) {
        words_sentence(lang, (uint64_t)i, 0, text, sizeof text);
        fprintf(f, "%s", text);
        if (lang2 >= 0) {
            words_sentence(lang2, (uint64_t)i, 0, text, sizeof text);
            fprintf(f, "\t%s", text);
        }
        fprintf(f, "\n");
    }
    assert_int_equal(fclose(f), 0);
}

static int next(void *arg, const char **text, size_t *n)
{
    static char line[1024];
    int *i = arg;
    if (*i == 600) return 0;
    *n = words_sentence(*i % 3, (uint64_t)*i / 3, 0, line, sizeof line);
    *text = line;
    ++*i;
    return 1;
}

struct neb_tok *words_tokenizer(const char *type)
{
    static const char *const langs[] = {"aa", "bb", "cc", NULL};
    struct neb_tok_train cfg = {.type = type, .vocab = 200, .langs = langs, .coverage = 1, .threads = 1};
    struct neb_buf model;
    struct neb_tok *tok;
    int i = 0;
    neb__buf_init(&model, 16 << 20);
    assert_ok(neb__tok_train(&cfg, next, &i, &model));
    assert_ok(neb__tok_open_bytes(model.data, model.len, 0, NULL, &tok));
    neb__buf_free(&model);
    return tok;
}
