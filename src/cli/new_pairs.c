/* new_pairs.c: pairs of sentences for a new translation job: the user's, or the program's own, a hundred and more in English
 * and German. Those are few, but enough to see everything work. */
#include "cli/new_text.h"
#include "cli/new_files.h"
#include "cli/new_parts.h"
#include "text/line_reader.h"

#include <stdio.h>
#include <string.h>

static neb_status write_own(struct neb_new_parts *s)
{
    const struct neb_new_file *f = neb__new_file("pairs.tsv");
    if (strcmp(s->out->from, "en") || strcmp(s->out->to, "de"))
        return neb__fail(
            NEB_ERR_NOTFOUND,
            "nebula-i has no pairs from %s to %s; give pairs of your own with --text FILE, or take "
            "--langs en-de",
            s->out->from, s->out->to);
    snprintf(s->out->source, sizeof s->out->source, "nebula-i itself");
    for (const char *p = f->bytes; p < f->end;) {
        const char *stop = memchr(p, '\n', (size_t)(f->end - p));
        size_t n = (size_t)((stop ? stop : f->end) - p);
        if (n) neb__new_parts_line(s, p, n);
        p += n + 1;
    }
    return NEB_OK;
}

static neb_status write_file(struct neb_new_parts *s, const char *file)
{
    struct neb_line_reader *r;
    const char *line;
    size_t n;
    snprintf(s->out->source, sizeof s->out->source, "%s", file);
    NEB_TRY(neb__line_reader_open(file, &r));
    neb_status status;
    while ((status = neb__line_reader_next(r, &line, &n)) == NEB_OK) {
        if (!n) continue;
        if (!memchr(line, '\t', n)) {
            status =
                neb__fail(NEB_ERR_CONFIG, "%s:%lld: no tab; a line is a sentence, a tab and its translation",
                          file, (long long)neb__line_reader_number(r));
            break;
        }
        neb__new_parts_line(s, line, n);
    }
    neb__line_reader_close(r);
    return status == NEB_ERR_AGAIN ? NEB_OK : status;
}

static neb_status set_languages(const char *langs, struct neb_new_text *out)
{
    if (sscanf(langs, "%15[a-z]-%15[a-z]", out->from, out->to) == 2 &&
        strlen(out->from) + strlen(out->to) + 1 == strlen(langs))
        return NEB_OK;
    return neb__fail(NEB_ERR_CONFIG, "--langs '%s': it reads FROM-TO, such as en-de", langs);
}

neb_status neb__new_pairs(const char *dir, const char *file, const char *langs, struct neb_new_text *out)
{
    struct neb_new_parts s = {.out = out};
    *out = (struct neb_new_text){0};
    NEB_TRY(set_languages(langs, out));
    neb_status status = neb__new_parts_open(&s, dir, "tsv");
    if (status == NEB_OK && file) status = write_file(&s, file);
    if (status == NEB_OK && !file) status = write_own(&s);
    return neb__new_parts_close(&s, status);
}
