/* progress.h: the progress of a training: on a terminal one live line that fits its width, otherwise plain lines now and
 * then. Nothing is shown where the log leaves out messages of level info (-q, NEBULA_LOG=warn); neb__progress_line()
 * always prints. */
#ifndef NEB_WATCH_PROGRESS_H
#define NEB_WATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct neb_progress_display {
    const char *name;
    const char
        *extra; /* more to show, in parts with two spaces between them, the most important first; or NULL */
    bool live, quiet, over;
    int64_t every; /* steps from one plain line to the next */
    int64_t drawn_ns;
    double limit_s;         /* the run ends after this many seconds, whatever the steps; 0: no limit */
    double reached, target; /* tokens of all sites so far, and those that end the run; target 0: none do */
    double first_reached;
    double loss; /* smoothed */
    double lr;
    int64_t first_step, step, total, printed, start_ns, tokens;
};

void neb__progress_begin(struct neb_progress_display *s, const char *name, int64_t every, int64_t step);
void neb__progress_step(struct neb_progress_display *s, int64_t step, int64_t total, double loss,
                        int64_t tokens, double lr);
/* Shows `note` in place of the fields while no steps are made. Where there is no live line it does nothing: the log has
 * the note as a line. */
void neb__progress_waits(struct neb_progress_display *s, const char *note);
/* Prints a line of its own above the display. */
void neb__progress_line(struct neb_progress_display *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Shows the last step, unless it stands there. Only lines may follow; a second end does nothing. */
void neb__progress_end(struct neb_progress_display *s);
double neb__progress_rate(const struct neb_progress_display *s); /* tokens per second since begin */

#endif
