/* recorded.c: see recorded.h. */
#include "recorded.h"
#include "check.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 1 << 16, SAMPLES = 256, NAME = 40 };

static struct {
    bool writes;
    char written[NAME]; /* the last one: encoded anew it is checked, not written again */
    int n;
    struct sample {
        char name[NAME];
        char *hex;
        bool came;
    } sample[SAMPLES];
} all;

void recorded_write(void)
{
    all.writes = true;
}

void recorded_open(const char *path)
{
    static char line[LINE];
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("cannot open %s", path);
    for (all.n = 0; fgets(line, sizeof line, f); all.n++) {
        assert_true(all.n < SAMPLES);
        struct sample *s = &all.sample[all.n];
        line[strcspn(line, "\n")] = 0;
        char *hex = strchr(line, ' ');
        assert_true(hex && hex - line < NAME);
        *hex++ = 0;
        s->came = false;
        strcpy(s->name, line);
        s->hex = strdup(hex);
        assert_non_null(s->hex);
    }
    fclose(f);
    assert_true(all.n > 0);
}

static struct sample *find(const char *name)
{
    for (int i = 0; i < all.n; i++)
        if (!strcmp(all.sample[i].name, name)) return &all.sample[i];
    fail_msg("no sample '%s'", name);
    return NULL;
}

void recorded_is(const char *name, const uint8_t *bytes, size_t n)
{
    static char hex[LINE];
    assert_true(2 * n < sizeof hex);
    hex[0] = 0;
    for (size_t i = 0; i < n; i++) snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    if (all.writes) {
        if (strcmp(all.written, name)) printf("%s %s\n", name, hex);
        snprintf(all.written, sizeof all.written, "%s", name);
        return;
    }
    struct sample *s = find(name);
    s->came = true;
    size_t at = 0;
    while (hex[at] && hex[at] == s->hex[at]) at++;
    if (hex[at] || s->hex[at])
        fail_msg("%s differs from byte %zu on: %.16s… here, %.16s… recorded", name, at / 2, hex + at / 2 * 2,
                 s->hex + at / 2 * 2);
}

void recorded_close(void)
{
    for (int i = 0; i < all.n; i++) {
        if (!all.sample[i].came) fail_msg("nothing makes the sample '%s'", all.sample[i].name);
        free(all.sample[i].hex);
    }
    all.n = 0;
}
