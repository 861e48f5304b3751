/* lab_chaos.c: see lab_chaos.h.
 *
 * One fault at a time: it begins at a multiple of the interval, lasts between a fifth and three fifths of it, and is taken back
 * before the next one. Kinds come in a shuffled order, each once before any comes again; the seed decides kind, site and
 * duration, so a plan can be repeated (its moments in the run cannot: they are moments of the clock).
 *
 *     kill        a site's processes are killed and started again
 *     cut         all lines of a site are cut
 *     one-way     one direction of one line is cut
 *     slow-line   all lines of a site have a twentieth of their rate
 *     slow-site   a site's processes stand still half of the time, some seconds at a time
 *     full-disk   no byte more fits on a site's disk
 *     clock       a site's wall clock jumps, up to two hours either way, and stays there until its next jump
 *
 * A full disk needs a disk for each site (lab_disk.c), and so root; a jump of the clock needs libfaketime (Debian: faketime),
 * which reads the present offset from a file. The kinds that this machine does not allow are left out with a message. */
#include "cli/lab_chaos.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/lab_disk.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum kind { KILL, CUT, ONE_WAY, SLOW_LINE, SLOW_SITE, FULL_DISK, CLOCK };

const char *const neb__chaos_names[NEB_CHAOS_KINDS] = {
    [KILL] = "kill",           [CUT] = "cut",
    [ONE_WAY] = "one-way",     [SLOW_LINE] = "slow-line",
    [SLOW_SITE] = "slow-site", [FULL_DISK] = "full-disk",
    [CLOCK] = "clock",
};

/* Where libfaketime may be: of Debian and its relatives, of others. */
static const char *const faketime_places[] = {"/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
                                              "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
                                              "/usr/lib64/faketime/libfaketimeMT.so.1",
                                              "/usr/lib/faketime/libfaketimeMT.so.1"};

enum { FAULTS_MAX = 1 << 16, ENVIRONMENT = 6 };
#define SLOW_SHARE 0.05
/* Seconds that a slow site stands still at a time. A site with train.speed makes up half a second (train_loop.c), so shorter
 * standstills would cost it nothing. */
#define STILL 2.5

struct neb_chaos {
    struct neb_lab *lab;
    double every, next; /* seconds */
    int sites;
    bool allowed[NEB_CHAOS_KINDS], disks, still;
    const char *faketime;
    char (*folder)[PATH_MAX], (*clock_file)[PATH_MAX]; /* (sites) */
    struct neb_rng rng;
    int bag[NEB_CHAOS_KINDS], left; /* kinds that are yet to come before all come again */
    struct neb_chaos_fault *fault;
    int faults, cap;
    bool active;
    int site, other;                              /* of the present fault */
    struct neb_lab_line before[NEB_LAB_SITES][2]; /* slow-line: the lines from and to the site */
};

/* ---- what this machine allows ------------------------------------------------------------------------------------ */

static neb_status open_disks(struct neb_chaos *c)
{
    NEB_TRY(neb__lab_disk_alone());
    for (int i = 0; i < c->sites; i++) {
        neb_status s = neb__lab_disk_open(c->folder[i]);
        if (s == NEB_OK) continue;
        while (--i >= 0) (void)neb__lab_disk_close(c->folder[i]);
        return s;
    }
    c->disks = true;
    return NEB_OK;
}

static void find_faketime(struct neb_chaos *c)
{
    for (size_t i = 0; !c->faketime && i < sizeof faketime_places / sizeof *faketime_places; i++)
        if (!access(faketime_places[i], R_OK)) c->faketime = faketime_places[i];
}

static neb_status read_kinds(const char *kinds, bool allowed[NEB_CHAOS_KINDS])
{
    char copy[256], *rest = copy, *name;
    snprintf(copy, sizeof copy, "%s", kinds);
    while ((name = strsep(&rest, ", "))) {
        int k = 0;
        while (k < NEB_CHAOS_KINDS && strcmp(name, neb__chaos_names[k])) k++;
        if (k == NEB_CHAOS_KINDS)
            return neb__fail(NEB_ERR_CONFIG,
                             "--faults '%s': '%s' is not a fault; there are kill, cut, one-way, slow-line, "
                             "slow-site, full-disk and clock, separated by commas",
                             kinds, name);
        allowed[k] = true;
    }
    return NEB_OK;
}

neb_status neb__chaos_check(const char *kinds)
{
    bool allowed[NEB_CHAOS_KINDS] = {0};
    return read_kinds(kinds, allowed);
}

/* A kind that was asked for by name and is not to be had ends the laboratory; of `all` it is left out. */
static neb_status without(struct neb_chaos *c, enum kind k, bool named, const char *why)
{
    if (named) return neb__fail(NEB_ERR_CONFIG, "faults of kind %s: %s", neb__chaos_names[k], why);
    c->allowed[k] = false;
    printf("without faults of kind %s: %s\n", neb__chaos_names[k], why);
    return NEB_OK;
}

static neb_status check_kinds(struct neb_chaos *c, const char *kinds)
{
    for (int k = 0; k < NEB_CHAOS_KINDS && !kinds; k++) c->allowed[k] = true;
    if (kinds) NEB_TRY(read_kinds(kinds, c->allowed));
    if (c->sites < 2) c->allowed[CUT] = c->allowed[ONE_WAY] = c->allowed[SLOW_LINE] = false;
    if (c->allowed[CLOCK]) find_faketime(c);
    if (c->allowed[CLOCK] && !c->faketime)
        NEB_TRY(without(c, CLOCK, kinds, "there is no libfaketime; apt install faketime"));
    if (!c->allowed[FULL_DISK]) return NEB_OK;
    neb_status s = open_disks(c);
    if (s == NEB_ERR_UNSUPPORTED)
        return without(c, FULL_DISK, kinds, "each site needs a disk of its own, which only root can mount");
    return s;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static neb_status set_clock(struct neb_chaos *c, int site, long seconds)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%+ld\n", seconds);
    return c->faketime ? neb__file_replace(c->clock_file[site], text, (size_t)n, 0600) : NEB_OK;
}

neb_status neb__chaos_create(struct neb_lab *lab, double every, uint64_t seed, const char *kinds,
                             char *const *folder, struct neb_chaos **out)
{
    struct neb_chaos *c = NEB_NEW(struct neb_chaos);
    if (!c) return neb__fail(NEB_ERR_NOMEM, "out of memory for faults");
    *c = (struct neb_chaos){.lab = lab,
                            .every = every,
                            .next = every,
                            .sites = neb__lab_sites(lab),
                            .rng = {neb__mix64(seed ^ 0xc4a05)}};
    c->folder = neb__calloc((size_t)c->sites, sizeof *c->folder);
    c->clock_file = neb__calloc((size_t)c->sites, sizeof *c->clock_file);
    neb_status s = c->folder && c->clock_file ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for faults");
    for (int i = 0; s == NEB_OK && i < c->sites; i++) {
        snprintf(c->folder[i], PATH_MAX, "%s", folder[i]);
        if (snprintf(c->clock_file[i], PATH_MAX, "%s.clock", folder[i]) >= PATH_MAX)
            s = neb__fail(NEB_ERR_INVALID, "the path %s is too long", folder[i]);
    }
    if (s == NEB_OK) s = check_kinds(c, kinds);
    for (int i = 0; s == NEB_OK && i < c->sites; i++) s = set_clock(c, i, 0);
    if (s != NEB_OK) {
        neb__chaos_free(c);
        return s;
    }
    *out = c;
    return NEB_OK;
}

void neb__chaos_unmount(struct neb_chaos *c)
{
    for (int i = 0; i < c->sites && c->disks; i++) (void)neb__lab_disk_close(c->folder[i]);
    c->disks = false;
}

void neb__chaos_free(struct neb_chaos *c)
{
    if (!c) return;
    neb__chaos_unmount(c);
    for (int i = 0; i < c->sites && c->faketime; i++) unlink(c->clock_file[i]);
    neb__free(c->folder);
    neb__free(c->clock_file);
    neb__free(c->fault);
    neb__free(c);
}

/* The steady clock stays as it is: only the wall clock of a machine jumps. */
neb_status neb__chaos_prepare(const struct neb_chaos *c, int site, struct neb_site_command *command)
{
    if (!c->faketime) return NEB_OK;
    int have = 0;
    while (command->env && command->env[have]) have++;
    char **env = NEB_NEW_ARRAY(char *, (size_t)have + ENVIRONMENT);
    char text[PATH_MAX + 64];
    bool ok = env;
    if (ok && have) memcpy(env, command->env, (size_t)have * sizeof *env);
    snprintf(text, sizeof text, "LD_PRELOAD=%s", c->faketime);
    ok = ok && (env[have++] = neb__strdup(text));
    snprintf(text, sizeof text, "FAKETIME_TIMESTAMP_FILE=%s", c->clock_file[site]);
    ok = ok && (env[have++] = neb__strdup(text)) &&
         (env[have++] = neb__strdup("FAKETIME_CACHE_DURATION=1")) &&
         (env[have++] = neb__strdup("FAKETIME_DONT_FAKE_MONOTONIC=1")) &&
         (env[have++] = neb__strdup("DONT_FAKE_MONOTONIC=1"));
    if (!env) return neb__fail(NEB_ERR_NOMEM, "out of memory for the variables of a site");
    neb__free(command->env);
    command->env = env;
    return ok ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the variables of a site");
}

/* ---- one fault --------------------------------------------------------------------------------------------------- */

/* Both directions of all lines of the site; the first failure is returned, and the others are set all the same. */
static neb_status set_lines_down(struct neb_chaos *c, bool down)
{
    neb_status first = NEB_OK;
    for (int i = 0; i < 2 * c->sites; i++) {
        const int other = i / 2, in = i % 2; /* towards the site */
        const int from = in ? other : c->site, to = in ? c->site : other;
        neb_status s = other == c->site ? NEB_OK : neb__lab_set_down(c->lab, from, to, down);
        if (first == NEB_OK) first = s;
    }
    return first;
}

static neb_status slow_lines(struct neb_chaos *c, bool slow)
{
    neb_status first = NEB_OK;
    for (int i = 0; i < 2 * c->sites; i++) {
        const int other = i / 2, in = i % 2; /* towards the site */
        const int from = in ? other : c->site, to = in ? c->site : other;
        struct neb_lab_line *before = &c->before[other][in];
        if (other == c->site) continue;
        if (slow) neb__lab_get_line(c->lab, from, to, before);
        neb_status s = neb__lab_set_rate(c->lab, from, to, slow ? before->rate * SLOW_SHARE : before->rate);
        if (first == NEB_OK) first = s;
    }
    return first;
}

static void say(struct neb_chaos *c, struct neb_lab_processes *sites, const char *what)
{
    char text[128];
    snprintf(text, sizeof text, "chaos: %s", what);
    neb__lab_processes_say(sites, c->site, text);
}

static neb_status or_not_running(bool done)
{
    return done ? NEB_OK : neb__quiet(NEB_ERR_INVALID, "the site does not run");
}

/* text: what is said of it; empty: it is said elsewhere. */
static neb_status begin(struct neb_chaos *c, struct neb_lab_processes *sites, const struct neb_chaos_fault *f,
                        long jump, char *text, size_t size)
{
    const double lasts = f->lasts;
    *text = 0;
    switch ((enum kind)f->kind) {
    case KILL: return or_not_running(neb__lab_processes_kill(sites, c->site, lasts));
    case CUT: snprintf(text, size, "all its lines are cut for %.1f s", lasts); return set_lines_down(c, true);
    case ONE_WAY:
        snprintf(text, size, "nothing gets from it to %s for %.1f s", neb__lab_name(c->lab, c->other), lasts);
        return neb__lab_set_down(c->lab, c->site, c->other, true);
    case SLOW_LINE:
        snprintf(text, size, "its lines have a twentieth of their rate for %.1f s", lasts);
        return slow_lines(c, true);
    case SLOW_SITE:
        snprintf(text, size, "it stands still half of the time for %.1f s", lasts);
        c->still = neb__lab_processes_signal(sites, c->site, SIGSTOP);
        return or_not_running(c->still);
    case FULL_DISK:
        snprintf(text, size, "its disk is full for %.1f s", lasts);
        return neb__lab_disk_full(c->folder[c->site], true);
    case CLOCK: snprintf(text, size, "its clock is off by %+ld s", jump); return set_clock(c, c->site, jump);
    }
    return NEB_OK;
}

/* Takes a fault back. NEB_OK: it is over */
static neb_status end(struct neb_chaos *c, struct neb_lab_processes *sites, int kind)
{
    switch ((enum kind)kind) {
    case CUT: return set_lines_down(c, false);
    case ONE_WAY: return neb__lab_set_down(c->lab, c->site, c->other, false);
    case SLOW_LINE: return slow_lines(c, false);
    case SLOW_SITE:
        (void)neb__lab_processes_signal(sites, c->site,
                                        SIGCONT); /* one that has ended stands still no more */
        c->still = false;
        return NEB_OK;
    case FULL_DISK: return neb__lab_disk_full(c->folder[c->site], false);
    case KILL:
    case CLOCK: break;
    }
    return NEB_OK;
}

/* A slow site stands still and goes on in turns. */
static void keep_slow(struct neb_chaos *c, struct neb_lab_processes *sites, double since)
{
    bool still = (int)(since / STILL) % 2 == 0;
    if (still != c->still) (void)neb__lab_processes_signal(sites, c->site, still ? SIGSTOP : SIGCONT);
    c->still = still;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static int draw_kind(struct neb_chaos *c)
{
    bool empty = !c->left;
    for (int k = 0; k < NEB_CHAOS_KINDS && empty; k++)
        if (c->allowed[k]) c->bag[c->left++] = k;
    if (!c->left) return -1;
    int at = (int)neb__rng_below(&c->rng, (uint64_t)c->left), kind = c->bag[at];
    c->bag[at] = c->bag[--c->left];
    return kind;
}

static bool reserve(struct neb_chaos *c)
{
    if (c->faults < c->cap) return true;
    int cap = c->cap ? 2 * c->cap : 64;
    struct neb_chaos_fault *more =
        cap > FAULTS_MAX ? NULL : neb__realloc(c->fault, (size_t)cap * sizeof *more);
    if (!more) return false;
    c->fault = more;
    c->cap = cap;
    return true;
}

/* Every fault takes the same numbers of the seed, whether it can be made or not. */
static void draw(struct neb_chaos *c, struct neb_lab_processes *sites, double now)
{
    char text[128], why[160];
    int kind = reserve(c) ? draw_kind(c) : -1;
    if (kind < 0) return;
    c->site = (int)neb__rng_below(&c->rng, (uint64_t)c->sites);
    c->other = c->sites > 1 ? (int)neb__rng_below(&c->rng, (uint64_t)c->sites - 1) : 0;
    c->other += c->sites > 1 && c->other >= c->site;
    double lasts = c->every * (0.2 + 0.4 * neb__rng_uniform(&c->rng));
    long jump = (long)(neb__rng_uniform(&c->rng) * 14400) - 7200;
    struct neb_chaos_fault *f = &c->fault[c->faults++];
    *f = (struct neb_chaos_fault){
        .from = now, .to = now + lasts, .lasts = lasts, .kind = kind, .site = c->site};
    if (begin(c, sites, f, jump, text, sizeof text) == NEB_OK) {
        c->active = true;
        if (*text) say(c, sites, text);
        return;
    }
    snprintf(why, sizeof why, "%s", neb_last_error());
    (void)end(c, sites, kind); /* what was done of it */
    f->failed = true;
    f->to = now;
    snprintf(text, sizeof text, "no %s: %.80s", neb__chaos_names[kind], why);
    say(c, sites, text);
}

/* A fault that cannot be taken back stays in force and is tried again in a second: the next one waits for it. */
static void finish(struct neb_chaos *c, struct neb_lab_processes *sites, struct neb_chaos_fault *f,
                   double now, bool stopping)
{
    const bool over = end(c, sites, f->kind) == NEB_OK;
    f->to = over || stopping ? now : now + 1;
    c->active = !over && !stopping;
    if (over && f->kind != KILL && f->kind != CLOCK) say(c, sites, "over");
}

void neb__chaos_tick(struct neb_chaos *c, struct neb_lab_processes *sites,
                     bool (*trains)(void *arg, int site), void *arg)
{
    double now = neb__lab_processes_time(sites);
    struct neb_chaos_fault *f = c->active ? &c->fault[c->faults - 1] : NULL;
    bool stopping = neb__lab_processes_stopping(sites);
    if (f && (now >= f->to || stopping)) {
        finish(c, sites, f, now, stopping);
    } else if (f && f->kind == SLOW_SITE) {
        keep_slow(c, sites, now - f->from);
    }
    if (stopping || c->active || now < c->next) return;
    bool killed = c->faults && c->fault[c->faults - 1].kind == KILL && !c->fault[c->faults - 1].failed;
    if (!killed || trains(arg, c->site)) draw(c, sites, now);
    while (c->next <= now) c->next += c->every;
}

int neb__chaos_faults(const struct neb_chaos *c, const struct neb_chaos_fault **list)
{
    *list = c->fault;
    return c->faults;
}
