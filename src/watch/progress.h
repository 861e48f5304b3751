/* progress.h: the progress display: one line that is redrawn on a terminal, plain lines otherwise. */
#ifndef NEB_WATCH_PROGRESS_H
#define NEB_WATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct neb_show {
    const char *name, *extra; /* extra: what else a line says; may change; NULL: nothing */
    bool terminal;
    int64_t every; /* plain lines: this often, in steps */
    int64_t drawn_ns;
    double limit_s; /* the run ends after this many seconds, whatever the steps; 0: it does not */
    double loss;    /* smoothed */
    int64_t first_step, start_ns, tokens;
};

void neb__show_begin(struct neb_show *s, const char *name, int64_t every, int64_t step);
void neb__show_step(struct neb_show *s, int64_t step, int64_t total, double loss, int64_t tokens, double lr);
/* A line of its own, above the display. */
void neb__show_line(struct neb_show *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void neb__show_end(struct neb_show *s);
double neb__show_rate(const struct neb_show *s); /* tokens per second since begin */

#endif
