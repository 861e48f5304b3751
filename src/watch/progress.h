/* progress.h: the progress display: one line that is redrawn on a terminal, plain lines otherwise. */
#ifndef NEB_WATCH_PROGRESS_H
#define NEB_WATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct neb_progress_display {
    const char *name, *extra; /* extra: added to each line, may change; or NULL */
    bool terminal;
    int64_t every; /* steps from one plain line to the next */
    int64_t drawn_ns;
    double limit_s; /* the run ends after this many seconds, whatever the steps; 0: no limit */
    double loss;    /* smoothed */
    int64_t first_step, start_ns, tokens;
};

void neb__progress_begin(struct neb_progress_display *s, const char *name, int64_t every, int64_t step);
void neb__progress_step(struct neb_progress_display *s, int64_t step, int64_t total, double loss,
                        int64_t tokens, double lr);
/* Prints a line of its own above the display. */
void neb__progress_line(struct neb_progress_display *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void neb__progress_end(struct neb_progress_display *s);
double neb__progress_rate(const struct neb_progress_display *s); /* tokens per second since begin */

#endif
