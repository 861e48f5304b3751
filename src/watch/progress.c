/* progress.c: the progress display. */
#include "watch/progress.h"
#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { REDRAW_NS = 200000000 };

void neb__progress_begin(struct neb_progress_display *s, const char *name, int64_t every, int64_t step)
{
    *s = (struct neb_progress_display){
        .name = name, .terminal = isatty(1), .every = every, .first_step = step, .start_ns = neb__now_ns()};
}

double neb__progress_rate(const struct neb_progress_display *s)
{
    double t = neb__seconds_since(s->start_ns);
    return t > 0 ? (double)s->tokens / t : 0;
}

static void print_status(const struct neb_progress_display *s, int64_t step, int64_t total, double lr,
                         const char *end)
{
    double t = neb__seconds_since(s->start_ns), done = (double)(step - s->first_step);
    double left = done > 0 && step < total ? t / done * (double)(total - step) : 0;
    if (s->limit_s > 0 && left > s->limit_s - t) left = s->limit_s > t ? s->limit_s - t : 0;
    printf("%s  step %lld/%lld  loss %.4f  lr %.2e  %.0f tokens/s  %d:%02d left", s->name, (long long)step,
           (long long)total, s->loss, lr, neb__progress_rate(s), (int)left / 60, (int)left % 60);
    if (s->extra && *s->extra) printf("  %s", s->extra);
    printf("%s", end);
    fflush(stdout);
}

void neb__progress_step(struct neb_progress_display *s, int64_t step, int64_t total, double loss,
                        int64_t tokens, double lr)
{
    s->tokens += tokens;
    s->loss = step - s->first_step <= 1 || s->loss == 0 ? loss : s->loss + 0.05 * (loss - s->loss);
    if (s->terminal) {
        if (neb__now_ns() - s->drawn_ns < REDRAW_NS && step < total) return;
        s->drawn_ns = neb__now_ns();
        printf("\r\033[K");
        print_status(s, step, total, lr, "");
    } else if (step % s->every == 0 || step == total) {
        print_status(s, step, total, lr, "\n");
    }
}

void neb__progress_line(struct neb_progress_display *s, const char *fmt, ...)
{
    va_list ap;
    if (s->terminal) printf("\r\033[K");
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout);
}

void neb__progress_end(struct neb_progress_display *s)
{
    if (s->terminal) printf("\n");
    fflush(stdout);
}
