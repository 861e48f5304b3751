/* wan_turns.c: SIGSTOP and SIGCONT for the sites of two laboratories.
 *
 * The sites are the descendants of a laboratory whose first argument is `train`. The laboratory itself, with
 * the emulator, always goes on. A turn is a second, too short for a link or a round to see an outage. A step
 * of a site takes about as long. So the time between two samples may hold one turn more or fewer of its own
 * than of the other run, a per cent of the measured time. Therefore the turns are noted, and each run's rate
 * is that of its own time. */
#include "wan_turns.h"
#include "base/clock.h"

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SITES_MAX = 8, DEPTH = 6 };

struct sites {
    pid_t pid[SITES_MAX];
    int n;
};

static bool trains(pid_t pid)
{
    char path[64], text[512] = {0};
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    size_t first = strlen(text) + 1;
    return first < n && !strcmp(text + first, "train");
}

static pid_t parent_of(pid_t pid)
{
    char path[64], line[512] = {0};
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f)) {
        const char *after = strrchr(line, ')'); /* the name in brackets may hold any character */
        if (after) sscanf(after + 1, " %*c %d", &parent);
    }
    if (f) fclose(f);
    return parent;
}

static void find_below(pid_t lab, struct sites *out)
{
    FILE *list = popen("ls /proc", "r");
    char name[64];
    out->n = 0;
    while (list && fgets(name, sizeof name, list)) {
        pid_t pid = atoi(name), up = pid;
        if (pid <= 1 || !trains(pid)) continue;
        for (int i = 0; i < DEPTH && up > 1 && up != lab; i++) up = parent_of(up);
        if (up == lab && out->n < SITES_MAX) out->pid[out->n++] = pid;
    }
    if (list) pclose(list);
}

static void signal_all(const struct sites *s, int signal)
{
    for (int i = 0; i < s->n; i++) kill(s->pid[i], signal);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void neb__take_turns(const pid_t a[2], double seconds, struct neb_turns *out)
{
    struct sites s[2];
    int64_t start = neb__now_ns();
    sleep(1); /* the sites start */
    for (int i = 0; i < 2; i++) find_below(a[i], &s[i]);
    for (out->n = 0; neb__seconds_since(start) < seconds && out->n < NEB_TURNS_MAX; out->n++) {
        int turn = out->n % 2;
        signal_all(&s[!turn], SIGSTOP);
        out->at[out->n] = now();
        signal_all(&s[turn], SIGCONT);
        sleep(1);
    }
    out->at[out->n] = now();
    for (int i = 0; i < 2; i++) signal_all(&s[i], SIGCONT);
}

double neb__bbr_turns_of(const struct neb_turns *t, int run, double t0, double t1)
{
    double sum = 0;
    for (int i = run; i < t->n; i += 2) sum += fmax(0, fmin(t->at[i + 1], t1) - fmax(t->at[i], t0));
    return sum;
}
