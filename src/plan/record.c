/* record.c: see record.h. A line is
 *
 *     data tensor pipeline zero sequence offload bits : SECONDS BYTES BYTES
 *
 * bits: of what crosses between the stages of a pipeline between sites; 0: the whole model is here. */
#include "plan/record.h"
#include "base/file.h"
#include "plan/line.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 256 << 10, PATH = 1024 };

static neb_status path_of(const char *out, char path[PATH])
{
    if (snprintf(path, PATH, "%s/plan", out) < PATH) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", out);
}

neb_status neb__planner_record(const char *out, const struct neb_planned *p)
{
    char path[PATH];
    struct neb_buf b;
    NEB_TRY(path_of(out, path));
    NEB_TRY(neb__file_make_dir(out, 0700));
    neb__buf_init(&b, TEXT);
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < p->fit; i++) {
        const struct neb_planner_row *r = &p->row[i];
        const struct neb_planner_layout *l = &r->layout;
        status = neb__buf_printf(&b, "%d %d %d %d %d %d %d : %.9g %.0f %.0f\n", l->data, l->tensor,
                                 l->pipeline, l->zero, l->sequence, (int)l->offload,
                                 r->line ? r->line->bits : 0, r->step_s, r->first, r->wan.step_bytes);
    }
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, 0600);
    neb__buf_free(&b);
    return status;
}

static bool is_line_of(const char *line, const struct neb_planner_layout *l, int bits,
                       struct neb_planner_figures *f)
{
    int x[7];
    return sscanf(line, "%d %d %d %d %d %d %d : %lf %lf %lf", &x[0], &x[1], &x[2], &x[3], &x[4], &x[5], &x[6],
                  &f->step_s, &f->memory, &f->wan_bytes) == 10 &&
           x[6] == bits && x[0] == l->data && x[1] == l->tensor && x[2] == l->pipeline && x[3] == l->zero &&
           x[4] == l->sequence && x[5] == (int)l->offload;
}

neb_status neb__planner_recorded(const char *out, const struct neb_planner_layout *l, int bits,
                                 struct neb_planner_figures *figures)
{
    char path[PATH];
    struct neb_buf b;
    NEB_TRY(path_of(out, path));
    if (access(path, R_OK)) return neb__quiet(NEB_ERR_NOTFOUND, "%s: nothing was foreseen", path);
    neb__buf_init(&b, TEXT);
    neb_status status = neb__file_read(path, &b);
    if (status == NEB_OK) status = neb__buf_append(&b, "", 1);
    bool found = false;
    for (char *line = (char *)b.data, *next; status == NEB_OK && !found && line && *line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        found = is_line_of(line, l, bits, figures);
        if (!next) break;
    }
    neb__buf_free(&b);
    if (status != NEB_OK || found) return status;
    return neb__quiet(NEB_ERR_NOTFOUND, "%s has no line for this layout", path);
}

static size_t line(char *text, size_t size, const char *what, double foreseen, double measured,
                   const char *unit)
{
    if (measured < 0 || (!foreseen && !measured)) return 0;
    const double off = measured > 0 ? 100 * (foreseen - measured) / measured : 0;
    const int n = snprintf(text, size, "%s: foreseen %.4g %s, measured %.4g %s (%+.1f %%)\n", what, foreseen,
                           unit, measured, unit, off);
    return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

void neb__planner_compare(const struct neb_planner_figures *f, const struct neb_planner_figures *m,
                          char *text, size_t size)
{
    size_t n = 0;
    *text = '\0';
    n += line(text + n, size - n, "a step", f->step_s, m->step_s, "s");
    n += line(text + n, size - n, "the device's memory", f->memory / 0x1p20,
              m->memory < 0 ? -1 : m->memory / 0x1p20, "MiB");
    line(text + n, size - n, "over the WAN, a step", f->wan_bytes / 1e3,
         m->wan_bytes < 0 ? -1 : m->wan_bytes / 1e3, "kB");
}
