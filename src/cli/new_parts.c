/* new_parts.c: see new_parts.h. One line in HELD_OUT is held out: neighbouring lines differ enough, and both parts are alike. */
#include "cli/new_parts.h"
#include "base/file.h"

#include <limits.h>
#include <stdbool.h>

enum { HELD_OUT = 16, LINES_LEAST = 100 };

neb_status neb__new_parts_open(struct neb_new_parts *s, const char *dir, const char *ending)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/text", dir) >= (int)sizeof path - 16)
        return neb__fail(NEB_ERR_INVALID, "the path of folder '%.80s…' is too long", dir);
    NEB_TRY(neb__file_make_dir(path, 0755));
    snprintf(path, sizeof path, "%s/text/train.%s", dir, ending);
    s->train = fopen(path, "we");
    snprintf(path, sizeof path, "%s/text/valid.%s", dir, ending);
    s->valid = s->train ? fopen(path, "we") : NULL;
    return s->valid ? NEB_OK : neb__fail(NEB_ERR_IO, "cannot write %s", path);
}

void neb__new_parts_line(struct neb_new_parts *s, const char *text, size_t n)
{
    bool held = s->lines++ % HELD_OUT == HELD_OUT - 1;
    FILE *to = held ? s->valid : s->train;
    fwrite(text, 1, n, to);
    fputc('\n', to);
    s->out->held_out += held;
    s->out->lines += !held;
    if (!held) s->out->bytes += (int64_t)n + 1;
}

static neb_status close_file(FILE *f)
{
    bool bad = f && ferror(f);
    if (f && fclose(f)) bad = true;
    return bad ? neb__fail(NEB_ERR_IO, "the text could not be written: is the disk full?") : NEB_OK;
}

neb_status neb__new_parts_close(struct neb_new_parts *s, neb_status status)
{
    neb_status a = close_file(s->train), b = close_file(s->valid);
    if (status == NEB_OK) status = a == NEB_OK ? b : a;
    if (status == NEB_OK && s->lines < LINES_LEAST)
        status = neb__fail(NEB_ERR_CONFIG, "%s has %lld lines; a text to train on needs %d or more",
                           s->out->source, (long long)s->lines, LINES_LEAST);
    return status;
}
