/* test_console.c: what a person sees on a terminal. A child process draws on a pseudo-terminal, and the bytes that it
 * writes go through a small model of one: rows that wrap, a cursor, the few sequences that the console uses. */
#define _GNU_SOURCE
#include "check.h"
#include "base/console.h"
#include "base/log.h"
#include "watch/progress.h"

#include <ctype.h>
#include <pthread.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 600, COLUMNS = 400, THREADS = 4, LINES = 40, STEPS = 300 };

/* ---- a terminal -------------------------------------------------------------------------------------------------- */

struct screen {
    char row[ROWS][COLUMNS + 1]; /* without trailing blanks */
    int width, y, x;
    int wraps;   /* characters that did not fit their row */
    int colours; /* sequences that change the colour */
    int escapes; /* all sequences */
};

static void put(struct screen *s, char c)
{
    if ((c & 0xc0) == 0x80) return; /* the rest of a character */
    if (s->x == s->width) {
        s->wraps++;
        s->x = 0;
        s->y++;
    }
    assert_in_range(s->y, 0, ROWS - 1);
    size_t n = strlen(s->row[s->y]);
    while ((int)n < s->x) s->row[s->y][n++] = ' ';
    s->row[s->y][s->x++] = c;
}

static void erase_below(struct screen *s)
{
    s->row[s->y][s->x] = 0;
    for (int y = s->y + 1; y < ROWS; y++) s->row[y][0] = 0;
}

/* Returns the size of the sequence, which begins behind ESC. */
static size_t obey(struct screen *s, const char *p)
{
    size_t n = 1 + strspn(p + 1, "0123456789;");
    s->escapes++;
    assert_int_equal(p[0], '[');
    switch (p[n]) {
    case 'm': s->colours++; break;
    case 'J': erase_below(s); break;
    case 'A': s->y -= atoi(p + 1); break;
    default: fail_msg("an unknown sequence: %c", p[n]);
    }
    assert_in_range(s->y, 0, ROWS - 1);
    return n + 1;
}

static void feed(struct screen *s, const char *p)
{
    while (*p) {
        if (*p == '\033')
            p += 1 + obey(s, p + 1);
        else if (*p == '\r')
            s->x = 0, p++;
        else if (*p == '\n')
            s->x = 0, s->y++, p++; /* a cooked terminal writes \r\n */
        else
            put(s, *p++);
    }
}

/* As terminals that wrap anew do: the row with the cursor becomes several. */
static void narrow(struct screen *s, int width)
{
    char old[COLUMNS + 1];
    snprintf(old, sizeof old, "%s", s->row[s->y]);
    int rows = ((int)strlen(old) + width - 1) / width;
    for (int i = 0; i < rows; i++) snprintf(s->row[s->y + i], COLUMNS, "%.*s", width, old + i * width);
    s->width = width;
    s->y += rows > 0 ? rows - 1 : 0;
    s->x = (int)strlen(s->row[s->y]);
}

/* ---- a child on it ----------------------------------------------------------------------------------------------- */

struct child {
    pid_t pid;
    int terminal, order; /* the parent tells it to go on */
    struct screen screen;
};

static struct child *start(int width, const char *term, const char *no_colour, void (*draw)(int order))
{
    struct child *c = calloc(1, sizeof *c);
    struct winsize w = {.ws_row = 24, .ws_col = (unsigned short)width};
    int order[2];
    assert_non_null(c);
    assert_int_equal(pipe(order), 0);
    c->screen.width = width;
    c->pid = forkpty(&c->terminal, NULL, NULL, &w);
    assert_true(c->pid >= 0);
    if (!c->pid) {
        close(order[1]);
        setenv("TERM", term, 1);
        setenv("NO_COLOR", no_colour, 1);
        unsetenv("NEBULA_LOG");
        neb_log_set_level(NEB_LOG_INFO);
        draw(order[0]);
        fflush(NULL);
        _exit(0);
    }
    close(order[0]);
    c->order = order[1];
    return c;
}

/* Reads until this text came, or (NULL) until the end. */
static void watch(struct child *c, const char *until)
{
    char seen[1 << 16] = "", bytes[4096];
    size_t kept = 0;
    while (!until || !strstr(seen, until)) {
        ssize_t n = read(c->terminal, bytes, sizeof bytes - 64);
        if (n <= 0) break;
        bytes[n] = 0;
        assert_true(kept + (size_t)n < sizeof seen || !until);
        if (until) memcpy(seen + kept, bytes, (size_t)n + 1), kept += (size_t)n;
        /* a sequence is written whole, but may be read in parts: the rest of it comes at once */
        while (memrchr(bytes, '\033', (size_t)n) &&
               !strpbrk((char *)memrchr(bytes, '\033', (size_t)n), "mJA") && n < (ssize_t)sizeof bytes - 1 &&
               read(c->terminal, bytes + n, 1) == 1)
            bytes[++n] = 0;
        feed(&c->screen, bytes);
    }
}

static void finish(struct child *c)
{
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    assert_int_equal(status, 0);
    close(c->order);
    close(c->terminal);
    free(c);
}

static int rows_with(const struct screen *s, const char *text)
{
    int n = 0;
    for (int y = 0; y < ROWS; y++) n += strstr(s->row[y], text) != NULL;
    return n;
}

static const char *row_of(const struct screen *s, const char *text)
{
    for (int y = 0; y < ROWS; y++)
        if (strstr(s->row[y], text)) return s->row[y];
    return "";
}

/* ---- what is drawn ----------------------------------------------------------------------------------------------- */

static void *log_lines(void *arg)
{
    for (int i = 0; i < LINES; i++) neb__info("thread %d says %d", *(int *)arg, i);
    return NULL;
}

static const char extra[] =
    "link 12.00/11.00 Mbit/s out/in  int4 every 20 steps  compute 90 % encode 1 % wait 9 % recover 0 %";

static void begin(struct neb_progress_display *d)
{
    neb__progress_begin(d, "job", 100, 0);
    d->extra = extra;
}

static void steps_and_log_lines(int order)
{
    struct neb_progress_display d;
    pthread_t thread[THREADS];
    int number[THREADS];
    (void)order;
    begin(&d);
    neb__progress_step(&d, 1, STEPS, 5, 100, 1e-3);
    for (int i = 0; i < THREADS; i++) {
        number[i] = i;
        pthread_create(&thread[i], NULL, log_lines, &number[i]);
    }
    for (int i = 2; i <= STEPS; i++) {
        d.drawn_ns = 0; /* every step, not five times a second */
        neb__progress_step(&d, i, STEPS, 5, 100, 1e-3);
        if (i % 100 == 0) neb__progress_line(&d, "held out at step %d", i);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    neb__progress_end(&d);
    neb__console_line("the end");
}

static void two_widths(int order)
{
    struct neb_progress_display d;
    char go;
    begin(&d);
    neb__info("before");
    neb__progress_step(&d, 1, STEPS, 5, 100, 1e-3);
    if (read(order, &go, 1) != 1) _exit(3);
    d.drawn_ns = 0;
    neb__progress_step(&d, 2, STEPS, 5, 100, 1e-3);
    neb__progress_end(&d);
}

static void more_steps_than_asked(int order)
{
    struct neb_progress_display d;
    (void)order;
    begin(&d);
    d.target = 2e6;
    d.reached = 1.5e6;
    for (int i = 1; i <= 12; i++) neb__progress_step(&d, i, 10, 5, 100, 1e-3);
    neb__progress_end(&d);
}

/* ---- the tests --------------------------------------------------------------------------------------------------- */

static void assert_log_lines_whole(const struct screen *s)
{
    for (int t = 0; t < THREADS; t++)
        for (int i = 0; i < LINES; i++) {
            char text[64];
            snprintf(text, sizeof text, "info  thread %d says %d", t, i);
            const char *row = row_of(s, text);
            assert_true(*row && isdigit((unsigned char)row[0]) && row[2] == ':'); /* begins with its time */
        }
    assert_int_equal(rows_with(s, " says "), THREADS * LINES);
    assert_int_equal(rows_with(s, "held out at step"), 3);
}

static void nothing_is_glued_to_the_live_line(void **state)
{
    (void)state;
    struct child *c = start(80, "xterm", "", steps_and_log_lines);
    watch(c, NULL);
    assert_log_lines_whole(&c->screen);
    assert_int_equal(rows_with(&c->screen, "step "), 1 + 3); /* the live line stays once, at its last step */
    assert_string_equal(row_of(&c->screen, "the end"), "the end");
    const char *last = row_of(&c->screen, "job  step");
    assert_true(!strncmp(last, "job  step 300/300  loss 5.0000", 30));
    assert_int_equal(c->screen.wraps, 0);
    assert_true(c->screen.colours > 0);
    finish(c);
}

static void the_line_fits_any_width(void **state)
{
    (void)state;
    static const int widths[] = {200, 120, 80, 40, 20, 8};
    size_t before = COLUMNS;
    for (int i = 0; i < 6; i++) {
        struct child *c = start(widths[i], "xterm", "1", more_steps_than_asked);
        watch(c, NULL);
        const char *row = row_of(&c->screen, "step");
        assert_int_equal(c->screen.wraps, 0);
        assert_int_equal(c->screen.colours, 0); /* NO_COLOR */
        assert_true(strlen(row) < (size_t)widths[i] && strlen(row) < before);
        if (widths[i] >= 20) assert_non_null(strstr(row, "step 10/10 + 2"));
        if (widths[i] == 200) assert_non_null(strstr(row, "75 % of 2000 k tokens"));
        before = strlen(row);
        finish(c);
    }
}

static void a_narrower_terminal_is_noticed(void **state)
{
    (void)state;
    struct child *c = start(120, "xterm", "1", two_widths);
    struct winsize w = {.ws_row = 24, .ws_col = 50};
    watch(c, "int4 every 20 steps");
    narrow(&c->screen, 50);
    assert_int_equal(ioctl(c->terminal, TIOCSWINSZ, &w), 0);
    assert_int_equal(write(c->order, "x", 1), 1);
    watch(c, NULL);
    assert_int_equal(c->screen.wraps, 0);
    assert_int_equal(rows_with(&c->screen, "before"), 1); /* the line above is not touched */
    assert_int_equal(rows_with(&c->screen, "step 2/300"), 1);
    assert_int_equal(rows_with(&c->screen, "step 1/300"), 0); /* nothing of the wider line is left */
    assert_int_equal(rows_with(&c->screen, "int4"), 0);
    finish(c);
}

static void a_dumb_terminal_gets_plain_lines(void **state)
{
    (void)state;
    struct child *c = start(80, "dumb", "", steps_and_log_lines);
    watch(c, NULL);
    assert_int_equal(c->screen.escapes, 0);
    assert_int_equal(rows_with(&c->screen, "job  step "), 3); /* every 100 steps */
    assert_log_lines_whole(&c->screen);
    finish(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_glued_to_the_live_line),
        cmocka_unit_test(the_line_fits_any_width),
        cmocka_unit_test(a_narrower_terminal_is_noticed),
        cmocka_unit_test(a_dumb_terminal_gets_plain_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
