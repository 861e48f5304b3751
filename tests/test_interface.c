/* test_interface.c: interface strings from Debian's packages: catalogues, plain sentences, held-out pairs, and package files
 * that are checked before they are unpacked. No network: apt-get and dpkg-deb are scripts of the test. */
#include "check.h"
#include "words.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "text/catalogue.h"
#include "text/debian_package.h"
#include "text/interface_strings.h"
#include "text/interface_text.h"
#include "text/line_reader.h"
#include "text/text_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char dir[256];

static const char *in(const char *name)
{
    static char path[8][600];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

/* ---- catalogues ---------------------------------------------------------------------------------------- */

struct entry {
    const char *english, *translation;
    size_t english_size, translation_size; /* 0: up to the first zero byte */
};

static void put_number(struct neb_buf *out, size_t v, bool big)
{
    uint32_t n = big ? __builtin_bswap32((uint32_t)v) : (uint32_t)v;
    assert_ok(neb__buf_append(out, &n, 4));
}

static size_t size_of(const char *s, size_t size)
{
    return size ? size : strlen(s);
}

/* A catalogue of the entries, as msgfmt writes it. */
static void make_catalogue(const struct entry *e, size_t n, bool big, struct neb_buf *out)
{
    size_t at = 20 + 16 * n;
    size_t header[] = {0x950412de, 0, n, 20, 20 + 8 * n};
    for (int i = 0; i < 5; i++) put_number(out, header[i], big);
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < n; i++) {
            size_t size = side ? size_of(e[i].translation, e[i].translation_size)
                               : size_of(e[i].english, e[i].english_size);
            put_number(out, size, big);
            put_number(out, at, big);
            at += size + 1;
        }
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < n; i++) {
            const char *s = side ? e[i].translation : e[i].english;
            size_t size = size_of(s, side ? e[i].translation_size : e[i].english_size);
            assert_ok(neb__buf_append(out, s, size));
            assert_ok(neb__buf_append(out, "", 1));
        }
}

static neb_status join(void *arg, const char *english, const char *translation)
{
    return neb__buf_printf(arg, "%s=%s|", english, translation);
}

static const struct entry entries[] = {
    {"", "Content-Type: text/plain; charset=UTF-8\n", 0, 0},
    {"menu\4Open", "Abrir", 0, 0},
    {"one file\0%d files", "un archivo\0%d archivos", 17, 22},
    {"Not translated", "", 0, 0},
    {"Latin 1", "a\xF1o", 0, 0},
    {"Year", "A\xC3\xB1o", 0, 0},
};

static void messages_of_a_catalogue(void **state)
{
    (void)state;
    for (int big = 0; big < 2; big++) {
        struct neb_buf file, out;
        neb__buf_init(&file, 4096);
        neb__buf_init(&out, 4096);
        make_catalogue(entries, 6, big, &file);
        assert_ok(neb__catalogue_read_bytes(file.data, file.len, join, &out));
        assert_ok(neb__buf_append(&out, "", 1));
        assert_string_equal((char *)out.data, "Open=Abrir|one file=un archivo|Year=A\xC3\xB1o|");
        neb__buf_free(&out);
        neb__buf_free(&file);
    }
}

/* However a catalogue is cut or changed, it is refused or its strings lie inside of it (ASan watches). */
static void damaged_catalogues_are_refused(void **state)
{
    (void)state;
    struct neb_buf file, out;
    neb__buf_init(&file, 4096);
    neb__buf_init(&out, 1 << 20);
    make_catalogue(entries, 6, false, &file);
    for (size_t n = 0; n < file.len; n++) {
        uint8_t *cut = malloc(n ? n : 1);
        memcpy(cut, file.data, n);
        assert_int_equal(neb__catalogue_read_bytes(cut, n, join, &out), NEB_ERR_CORRUPT);
        free(cut);
    }
    for (size_t at = 0; at < 20 + 16 * 6; at++) {
        uint8_t kept = file.data[at];
        file.data[at] = 0xFF;
        neb_status status = neb__catalogue_read_bytes(file.data, file.len, join, &out);
        assert_true(status == NEB_OK || status == NEB_ERR_CORRUPT);
        file.data[at] = kept;
    }
    neb__buf_free(&out);
    neb__buf_free(&file);
}

/* ---- sentences ----------------------------------------------------------------------------------------- */

static void strings_become_sentences(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"_Open File\xE2\x80\xA6", "Open File..."},
        {"E&xit and ~Save", "Exit and Save"},
        {"<b>Bold</b> text\\nin  two\xC2\xA0lines\n", "Bold text in two lines"},
        {"Copy %1 of %2 files", "Copy %1 of %2 files"},
        {"a < b or c > d is true", "a < b or c > d is true"},
    };
    char out[NEB_INTERFACE_TEXT], long_text[NEB_INTERFACE_TEXT + 1];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(neb__interface_tidy(cases[i][0], out));
        assert_string_equal(out, cases[i][1]);
    }
    memset(long_text, 'a', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    assert_false(neb__interface_tidy(long_text, out));
    assert_false(neb__interface_tidy("Fish &amp; chips", out));
    assert_false(neb__interface_tidy("%d:%d:%d x", out));
    assert_false(neb__interface_tidy("<b></b>", out));
}

static void normalised_sentences(void **state)
{
    (void)state;
    char out[NEB_INTERFACE_FORM];
    assert_int_equal(
        neb__interface_normalise("Don't OPEN \"%s\" (%1$d of {count}), $(ARG1): \xC3\x89t\xC3\xA9 2!", out),
        4);
    assert_string_equal(out, "dont open of \xC3\xA9t\xC3\xA9");
    assert_int_equal(neb__interface_normalise("100 % -- 7", out), 0);
    assert_string_equal(out, "");
}

/* ---- the corpus ---------------------------------------------------------------------------------------- */

static void write_catalogue(const char *path, const struct entry *e, size_t n)
{
    struct neb_buf file;
    neb__buf_init(&file, 1 << 20);
    make_catalogue(e, n, false, &file);
    assert_ok(neb__file_replace(path, file.data, file.len, 0644));
    neb__buf_free(&file);
}

enum { SENTENCES = 600 };

/* Every sentence twice: as it is, and in capitals with a full stop. Some translations are shared. */
static void make_package(const char *package, const char *lang)
{
    static char text[4 * SENTENCES][256];
    static struct entry e[2 * SENTENCES + 1];
    char path[200];
    for (int i = 0; i < SENTENCES; i++) {
        for (int side = 0; side < 2; side++) {
            char *plain = text[4 * i + side], *loud = text[4 * i + 2 + side];
            words_sentence(side, (uint64_t)(side ? i % 500 : i), 2 + i % 5, plain, sizeof text[0] - 2);
            snprintf(loud, sizeof text[0], "%s.", plain);
            loud[0] = (char)(loud[0] - 'a' + 'A');
        }
        e[2 * i] = (struct entry){text[4 * i], text[4 * i + 1], 0, 0};
        e[2 * i + 1] = (struct entry){text[4 * i + 2], text[4 * i + 3], 0, 0};
    }
    e[2 * SENTENCES] = (struct entry){"LibreOffice", "LibreOffice", 0, 0};
    snprintf(path, sizeof path, "pk/%s/usr/share/locale/%s/LC_MESSAGES", package, lang);
    assert_ok(neb__file_make_dir(in(path), 0755));
    snprintf(path, sizeof path, "pk/%s/usr/share/locale/%s/LC_MESSAGES/a.mo", package, lang);
    write_catalogue(in(path), e, 2 * SENTENCES + 1);
}

/* Both sides' normalised forms of a file of pairs. Returns how many lines there are. */
static int forms_of(const char *path, struct neb_text_set *english, struct neb_text_set *other,
                    int least_words)
{
    struct neb_line_reader *r;
    const char *line;
    size_t n;
    int lines = 0;
    assert_ok(neb__line_reader_open(path, &r));
    while (neb__line_reader_next(r, &line, &n) == NEB_OK) {
        char a[NEB_INTERFACE_TEXT], form[NEB_INTERFACE_FORM];
        const char *tab = memchr(line, '\t', n);
        assert_non_null(tab);
        snprintf(a, sizeof a, "%.*s", (int)(tab - line), line);
        assert_true(neb__interface_normalise(a, form) >= least_words);
        assert_ok(neb__text_set_add(english, neb__text_hash(form)));
        snprintf(a, sizeof a, "%.*s", (int)(line + n - tab - 1), tab + 1);
        (void)neb__interface_normalise(a, form);
        assert_ok(neb__text_set_add(other, neb__text_hash(form)));
        lines++;
    }
    neb__line_reader_close(r);
    return lines;
}

static void assert_apart(const struct neb_text_set *a, const struct neb_text_set *b)
{
    for (size_t i = 0; i <= a->mask; i++)
        if (a->slot[i]) assert_false(neb__text_set_has(b, a->slot[i]));
}

static void nothing_held_out_is_in_the_training(void **state)
{
    (void)state;
    struct neb_help_cfg cfg = {.langs = {"en", "xx_YY"}, .n = 2, .out = in("out"), .packages = in("pk")};
    struct neb_help_stats t;
    struct neb_text_set train[2] = {0}, test[2] = {0};
    make_package("strings-xx-yy", "xx_YY");
    assert_ok(neb__interface_corpus(&cfg, "strings-LANG", &t));
    assert_true(t.test[1] > 5 && t.valid[1] > 5 && t.train[1] > 400);
    assert_true(t.train[1] + t.valid[1] + t.test[1] <=
                SENTENCES); /* a sentence and its loud twin count once */
    assert_int_equal(forms_of(in("out/en-xx_YY.train.tsv"), &train[0], &train[1], 1), t.train[1]);
    assert_int_equal(forms_of(in("out/en-xx_YY.test.tsv"), &test[0], &test[1], 3), t.test[1]);
    assert_int_equal(forms_of(in("out/en-xx_YY.valid.tsv"), &test[0], &test[1], 3), t.valid[1]);
    for (int side = 0; side < 2; side++) {
        assert_apart(&test[side], &train[side]);
        neb__text_set_free(&train[side]);
        neb__text_set_free(&test[side]);
    }
    cfg.langs[0] = "de";
    assert_int_equal(neb__interface_corpus(&cfg, "strings-LANG", &t), NEB_ERR_CONFIG);
}

/* ---- packages ------------------------------------------------------------------------------------------ */

static void lines_of_apt(void **state)
{
    (void)state;
    struct neb_package_file f;
    static const char sum[] = "aee22c8e3b3c0431f6e1b0bc66f757ba36c860e2651a05eb050fde4897f06548";
    char text[400];
    snprintf(text, sizeof text,
             "some warning\n'http://h/p/a_1%%2b2.deb' a_4%%3a1+2_all.deb 861940 SHA256:%s\n", sum);
    assert_ok(neb__package_line(text, &f));
    assert_string_equal(f.name, "a_4%3a1+2_all.deb");
    assert_string_equal(f.sha256, sum);
    snprintf(text, sizeof text, "'http://h/a' ../a.deb 1 SHA256:%s\n", sum);
    assert_int_equal(neb__package_line(text, &f), NEB_ERR_CORRUPT);
    assert_int_equal(neb__package_line("'http://h/a' a.deb 1 SHA256:abc\n", &f), NEB_ERR_CORRUPT);
    assert_int_equal(neb__package_line("'http://h/a' a.deb 1 MD5Sum:00\n", &f), NEB_ERR_CORRUPT);
    assert_int_equal(neb__package_line("", &f), NEB_ERR_CORRUPT);
}

static void write_text(const char *path, const char *text, mode_t mode)
{
    assert_ok(neb__file_replace(path, text, strlen(text), mode));
}

/* An apt-get whose index says that a.deb holds "good", and which downloads `content`; a dpkg-deb that copies. */
static void make_tools(const char *content)
{
    char text[1024], hex[65];
    struct neb_hash sum;
    assert_ok(neb__hash("good", 4, &sum));
    neb__hash_hex(&sum, hex);
    assert_ok(neb__file_make_dir(in("bin"), 0755));
    snprintf(text, sizeof text,
             "#!/bin/sh\ncase \"$*\" in\n*print-uris*) echo \"'http://h/a.deb' a.deb 4 SHA256:%s\";;\n"
             "*download*) echo fetched >> %s; printf %s > a.deb;;\nesac\n",
             hex, in("log"), content);
    write_text(in("bin/apt-get"), text, 0755);
    write_text(in("bin/dpkg-deb"), "#!/bin/sh\nmkdir -p \"$3\" && cp \"$2\" \"$3/file\"\n", 0755);
}

static void assert_unpacked(const char *path, const char *content)
{
    struct neb_buf file;
    neb__buf_init(&file, 4096);
    assert_ok(neb__file_read(path, &file));
    assert_int_equal(file.len, strlen(content));
    assert_memory_equal(file.data, content, file.len);
    neb__buf_free(&file);
}

static void only_the_file_of_the_index_is_unpacked(void **state)
{
    (void)state;
    struct stat st;
    char path[1024], *kept = strdup(getenv("PATH"));
    snprintf(path, sizeof path, "%s:%s", in("bin"), kept);
    setenv("PATH", path, 1);
    make_tools("good");
    assert_ok(neb__file_make_dir(in("one"), 0755));
    write_text(in("one/a.deb"), "evil", 0644); /* lies there already: fetched anew */
    assert_ok(neb__debian_package(in("one"), "a"));
    assert_unpacked(in("one/a/file"), "good");
    assert_unpacked(in("log"), "fetched\n");
    assert_ok(neb__file_make_dir(in("two"), 0755));
    write_text(in("two/a.deb"), "good", 0644); /* the right one: not fetched again */
    assert_ok(neb__debian_package(in("two"), "a"));
    assert_unpacked(in("two/a/file"), "good");
    assert_unpacked(in("log"), "fetched\n");
    make_tools("evil"); /* what comes is not what the index names */
    assert_int_equal(neb__debian_package(in("three"), "a"), NEB_ERR_CORRUPT);
    assert_int_not_equal(stat(in("three/a"), &st), 0);
    assert_int_equal(neb__debian_package(in("three"), "../a"), NEB_ERR_CONFIG);
    setenv("PATH", kept, 1);
    free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_a_catalogue),
        cmocka_unit_test(damaged_catalogues_are_refused),
        cmocka_unit_test(strings_become_sentences),
        cmocka_unit_test(normalised_sentences),
        cmocka_unit_test(nothing_held_out_is_in_the_training),
        cmocka_unit_test(lines_of_apt),
        cmocka_unit_test(only_the_file_of_the_index_is_unpacked),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
