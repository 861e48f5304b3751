/* console.c: the live line at the bottom of a terminal, and the lines above it.
 *
 * One lock guards standard output while a line is written. A writer first takes the live line away, then writes whole
 * lines, then draws the live line again. So no other line is ever glued to it. At most one column less than the width is
 * used: a character in the last column makes some terminals wrap.
 *
 * A terminal that was made narrower wraps the old live line by itself. The number of its rows follows from its length and
 * the new width, and all of them are taken away. */
#include "base/console.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LIVE = 1024, WIDTH = 80 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char live[LIVE]; /* "": there is no live line */
static int drawn;       /* columns of the live line on the terminal; 0: none is there */

static bool is_terminal(int fd)
{
    const char *term = getenv("TERM");
    return isatty(fd) && term && *term && strcmp(term, "dumb");
}

bool neb__console_redraws(void)
{
    return is_terminal(STDOUT_FILENO);
}

int neb__console_width(void)
{
    struct winsize w;
    if (!ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_col) return w.ws_col;
    const char *columns = getenv("COLUMNS");
    long n = columns ? strtol(columns, NULL, 10) : 0;
    return n > 0 && n < LIVE ? (int)n : WIDTH;
}

/* ---- styles ------------------------------------------------------------------------------------------------------ */

static bool has_colour(int fd)
{
    const char *no = getenv("NO_COLOR");
    return is_terminal(fd) && !(no && *no);
}

const char *neb__console_begin_style(int fd, enum neb_console_style style)
{
    static const char *const begin[] = {[NEB_STYLE_PLAIN] = "",
                                        [NEB_STYLE_BOLD] = "\033[1m",
                                        [NEB_STYLE_DIM] = "\033[2m",
                                        [NEB_STYLE_WARN] = "\033[33m",
                                        [NEB_STYLE_ERROR] = "\033[31m"};
    return has_colour(fd) ? begin[style] : "";
}

const char *neb__console_end_style(int fd)
{
    return has_colour(fd) ? "\033[0m" : "";
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* The size of the style that begins here, or 0. */
static size_t style_size(const char *p)
{
    if (p[0] != '\033' || p[1] != '[') return 0;
    size_t n = 2 + strspn(p + 2, "0123456789;");
    return p[n] == 'm' ? n + 1 : 0;
}

/* The size of the character here, and its columns. From U+1100 on a character may be wide. */
static size_t character(const char *p, int *columns)
{
    unsigned char c = (unsigned char)*p;
    size_t n = 1;
    while ((p[n] & 0xc0) == 0x80) n++;
    *columns = c > 0xe1 || (c == 0xe1 && (unsigned char)p[1] >= 0x84) ? 2 : 1;
    return n;
}

int neb__console_columns(const char *text)
{
    int sum = 0, columns;
    while (*text) {
        size_t style = style_size(text);
        text += style ? style : character(text, &columns);
        sum += style ? 0 : columns;
    }
    return sum;
}

/* ---- drawing, the lock being held -------------------------------------------------------------------------------- */

static void take_away(void)
{
    if (!drawn) return;
    int rows = (drawn - 1) / neb__console_width();
    if (rows) printf("\033[%dA", rows);
    printf("\r\033[J");
    drawn = 0;
}

static void draw(void)
{
    int room = neb__console_width() - 1, columns;
    bool styled = false;
    for (const char *p = live; *p;) {
        size_t style = style_size(p), n = style ? style : character(p, &columns);
        if (!style && drawn + columns > room) break;
        if (!style) drawn += columns;
        styled |= style > 0;
        fwrite(p, 1, n, stdout);
        p += n;
    }
    if (styled) fputs(neb__console_end_style(STDOUT_FILENO), stdout);
    fflush(stdout);
}

/* ---- for all threads --------------------------------------------------------------------------------------------- */

void neb__console_hold(void)
{
    pthread_mutex_lock(&lock);
    if (!drawn) return;
    take_away();
    fflush(stdout);
}

void neb__console_release(void)
{
    if (*live) draw();
    pthread_mutex_unlock(&lock);
}

void neb__console_show(const char *text)
{
    if (!neb__console_redraws()) return;
    pthread_mutex_lock(&lock);
    take_away();
    snprintf(live, sizeof live, "%s", text);
    draw();
    pthread_mutex_unlock(&lock);
}

void neb__console_keep(void)
{
    pthread_mutex_lock(&lock);
    if (drawn) putchar('\n');
    *live = 0;
    drawn = 0;
    fflush(stdout);
    pthread_mutex_unlock(&lock);
}

void neb__console_line(const char *text)
{
    neb__console_hold();
    puts(text);
    fflush(stdout);
    neb__console_release();
}
