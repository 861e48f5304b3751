/* console.h: the terminal as people see it: ordinary lines, and below them one live line that is redrawn in place.
 *
 * The live line never wraps: it is cut at the width that the terminal has when it is drawn. Lines of the log and of
 * neb__console_line() go above it, from any thread. There is a live line only where standard output is a terminal that
 * can redraw a line. All functions may be called from any thread. */
#ifndef NEB_BASE_CONSOLE_H
#define NEB_BASE_CONSOLE_H

#include <stdbool.h>

/* How a text is shown where the terminal has colours; plain elsewhere. */
enum neb_console_style { NEB_STYLE_PLAIN, NEB_STYLE_BOLD, NEB_STYLE_DIM, NEB_STYLE_WARN, NEB_STYLE_ERROR };

/* Standard output can redraw a line: it is a terminal, and TERM is neither empty nor "dumb". */
bool neb__console_redraws(void);
int neb__console_width(void); /* columns of standard output, asked at each call; 80 where it does not say */

/* The sequence that begins a style on this file descriptor (1 or 2); "" where it has no colour: it is not a terminal, TERM
 * is empty or "dumb", or NO_COLOR is set and not empty. */
const char *neb__console_begin_style(int fd, enum neb_console_style style);
const char *neb__console_end_style(int fd);

/* Columns that a text in UTF-8 may take; a wide character counts two, a style none. */
int neb__console_columns(const char *text);

void neb__console_show(const char *text); /* the live line; replaces the one before */
void neb__console_keep(void);             /* the live line becomes an ordinary one */
void neb__console_line(const char *text); /* an ordinary line on standard output */

/* Takes the live line away, and keeps other threads from drawing, until release brings it back. The caller may write to the
 * terminal in between, whole lines only, and must not call the other functions of this file. */
void neb__console_hold(void);
void neb__console_release(void);

#endif
