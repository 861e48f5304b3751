/* verb_lab.c: `nebula-i lab JOB.yaml --wan 100mbit,50ms`: every site of a job on this machine, in the WAN laboratory.
 *
 * The text is tokenised once, then each site runs `nebula-i train JOB.yaml --site NAME`, or a program of the user's, inside
 * the laboratory, with a key, a roster, a folder and an address made for it: nothing else differs from sites far apart.
 * Everything lies in the job's folder OUT: OUT/data the tokens, OUT/NAME what site NAME writes, OUT/NAME/site its key, roster
 * and ledger, OUT/NAME/log what it said. The same command goes on where the last one ended. */
#include "cli/verb.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/lab_chaos.h"
#include "cli/lab_commands.h"
#include "cli/lab_compare.h"
#include "cli/lab_processes.h"
#include "cli/lab_relay.h"
#include "cli/lab_summary.h"
#include "cli/site_commands.h"
#include "task/data.h"
#include "run/lab_sites.h"
#include "watch/status.h"
#include "train/train.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct options {
    char *wan, *schedule, *kill, *mode, *faults, *relay;
    int64_t seed, port;
    double time, chaos;
    bool apart, json;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, wan, NEB_OPT_TEXT, "100mbit,50ms", NULL,
            "every line: rate, round trip, loss such as 100mbit,50ms,0.1%"),
    NEB_OPT(struct options, schedule, NEB_OPT_TEXT, "", NULL,
            "trouble on the lines: '60s+60s down; 200s rate=5mbit'"),
    NEB_OPT(struct options, kill, NEB_OPT_TEXT, "", NULL,
            "kill sites and start them again: '30s+10s a; 90s b'"),
    NEB_OPT(struct options, mode, NEB_OPT_TEXT, "auto", NULL, "how the network is made",
            NEB_OPT_CHOICE("auto", "namespaces", "user", "relay")),
    NEB_OPT(
        struct options, chaos, NEB_OPT_TIME, "0", NULL,
        "the run twice, without faults and with one this often, and what is left of its speed; 0: no faults",
        NEB_OPT_RANGE(0, 1e6)),
    NEB_OPT(
        struct options, faults, NEB_OPT_TEXT, "", NULL,
        "with --chaos: kill,cut,one-way,slow-line,slow-site,full-disk,clock, or some of them; empty: all"),
    NEB_OPT(struct options, json, NEB_OPT_BOOL, "no", NULL,
            "with --chaos: its figures as JSON on the output, everything else on the error output"),
    NEB_OPT(struct options, relay, NEB_OPT_TEXT, "no", NULL,
            "a relay host at a site `relay-host`; beside: the sites also dial each other; only: they cannot",
            NEB_OPT_CHOICE("no", "beside", "only")),
    NEB_OPT(struct options, seed, NEB_OPT_INT, "1", NULL, "of loss, jitter and faults"),
    NEB_OPT(struct options, port, NEB_OPT_INT, "7000", NULL,
            "of the sites; laboratories at the same time need different ones where they are relays",
            NEB_OPT_RANGE(1, 65535)),
    NEB_OPT(struct options, time, NEB_OPT_TIME, "0", NULL, "kill all sites after this long; 0: let them end",
            NEB_OPT_RANGE(0, 1e9)),
    NEB_OPT(struct options, apart, NEB_OPT_BOOL, "no", NULL,
            "every site trains alone, as if there were no others: to compare speeds with"),
    NEB_OPT_END,
};

/* ---- before the sites start ------------------------------------------------------------------------------------ */

/* Tokenises everything once, so that the sites need not do it at the same time. In a process of its own: a laboratory of an
 * ordinary user needs a process that has only ever had one thread. */
static neb_status prepare(const struct neb_job *job)
{
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) return neb__fail(NEB_ERR_IO, "the system refused a process");
    if (!child) {
        struct neb_data data;
        neb_status s = neb__data_prepare_plan(job, &data);
        if (s == NEB_OK) neb__data_free(&data);
        fflush(NULL);
        _exit(s == NEB_OK ? 0 : 1);
    }
    int status;
    while (waitpid(child, &status, 0) < 0) {}
    return WIFEXITED(status) && !WEXITSTATUS(status)
               ? NEB_OK
               : neb__quiet(NEB_ERR_CONFIG, "the data of the job could not be prepared");
}

static bool has_relay(const struct options *o)
{
    return strcmp(o->relay, "no") != 0;
}

static neb_status make_lab(const struct options *o, const struct neb_job *job, struct neb_lab **out)
{
    struct neb_lab_line line;
    struct neb_lab_config cfg = {0};
    const char *names[NEB_LAB_SITES + 1];
    NEB_TRY(neb__lab_line_parse(o->wan, &line));
    for (int i = 0; i < job->n_sites; i++) {
        names[i] = job->site[i].name;
        if (strlen(names[i]) >= NEB_LAB_NAME)
            return neb__fail(NEB_ERR_CONFIG, "site '%s': a name has at most %d letters", names[i],
                             NEB_LAB_NAME - 1);
    }
    names[job->n_sites] = NEB_LAB_RELAY_NAME;
    NEB_TRY(neb__lab_config_init(job->n_sites + has_relay(o), names, &line, &cfg));
    cfg.calm = true;
    neb_status status = neb__lab_mode_parse(o->mode, &cfg.mode);
    cfg.seed = (uint64_t)o->seed;
    cfg.ports = 1;
    cfg.port[0] = (uint16_t)o->port;
    if (status == NEB_OK && o->schedule) status = neb__lab_schedule_parse(o->schedule, &cfg);
    if (status == NEB_OK) status = neb__lab_create(&cfg, out);
    neb__lab_config_free(&cfg);
    if (status == NEB_OK && has_relay(o) && neb__lab_mode(*out) == NEB_LAB_RELAY) {
        neb__lab_destroy(*out);
        return neb__fail(NEB_ERR_UNSUPPORTED,
                         "--relay needs a laboratory of namespaces, and this machine allows none");
    }
    return status;
}

/* Sites that are dialled have the address at which the first site sees them: in a relay each sees its own. */
static neb_status make_sites(const struct options *o, const struct neb_job *job, struct neb_lab *lab,
                             const struct neb_lab_relay *relay)
{
    static char text[NEB_LAB_SITES][NEB_ADDRESS_SIZE + 64];
    char *address[NEB_LAB_SITES];
    for (int i = 0; i < job->n_sites; i++) {
        address[i] = text[i];
        snprintf(text[i], sizeof text[i], "%s:%d %s", neb__lab_address(lab, 0, i), (int)o->port,
                 relay->address);
        if (!strcmp(o->relay, "only")) snprintf(text[i], sizeof text[i], "%s", relay->address);
    }
    for (int i = 0; i < job->n_sites; i++) {
        char out[PATH_MAX];
        neb__lab_site_out(job, job->out, i, out, sizeof out);
        NEB_TRY(neb__file_make_dir(out, 0700));
    }
    return neb__sites_make(job, job->out, neb__lab_site_folder, address);
}

/* ---- the panel on a terminal ------------------------------------------------------------------------------------ */

struct panel {
    const struct neb_job *job;
    struct neb_lab_processes *sites;
    int64_t drawn_ns;
};

/* One line a site, from what it wrote about itself a moment ago. */
static void site_line(const struct neb_job *job, int i, struct neb_status_file *f, char *out, size_t size,
                      int columns)
{
    static const struct neb_site_status unknown = {.state = "starting"};
    bool read = neb__lab_status(job, i, f);
    const struct neb_site_status *s = read ? &f->site[f->self] : &unknown;
    snprintf(out, size,
             "%-10s %-11s step %-6" PRId64 " loss %-7.4f %6.0f tok/s  out %6.2f in %6.2f Mbit/s  %s  "
             "compute %.0f encode %.0f wait %.0f recover %.0f %%",
             job->site[i].name, neb__status_state(s), s->step ? s->step : s->own_steps, s->loss,
             s->tokens_per_second, s->link_out / 1e6, s->link_in / 1e6, s->pace, s->share_compute,
             s->share_encode, s->share_wait, s->share_recover);
    if (columns > 0 && columns < (int)size) out[columns] = 0;
}

static void draw_panel(void *arg)
{
    struct panel *p = arg;
    char text[NEB_LAB_SITES][320], *lines[NEB_LAB_SITES];
    struct winsize w;
    if (neb__seconds_since(p->drawn_ns) < 0.5 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w)) return;
    if (p->job->n_sites + 2 > w.ws_row) return;
    p->drawn_ns = neb__now_ns();
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    if (!f) return;
    for (int i = 0; i < p->job->n_sites; i++) {
        lines[i] = text[i];
        site_line(p->job, i, f, text[i], sizeof text[i], w.ws_col - 1);
    }
    neb__free(f);
    neb__lab_processes_panel(p->sites, lines, p->job->n_sites);
}

/* ---- the run --------------------------------------------------------------------------------------------------- */

/* scripts: the users' commands behind `--`, one a site; NULL: nebula-i train. */
static neb_status make_commands(const struct neb_lab_plan *p, char **scripts[], struct neb_site_command *out)
{
    for (int i = 0; i < p->job->n_sites; i++)
        NEB_TRY(scripts ? neb__lab_command_script(p, i, scripts[i], &out[i])
                        : neb__lab_command_train(p, i, &out[i]));
    return NEB_OK;
}

enum { REVIVALS = 20 }; /* of a site that fails under faults */

struct ticking {
    struct panel panel;
    struct neb_chaos *chaos; /* NULL: no faults */
    struct neb_lab_arm *arm; /* NULL: nothing is compared */
};

/* By what the site's present process has said itself. */
static bool trains(void *arg, int site)
{
    const struct ticking *t = arg;
    double started = neb__lab_processes_started(t->panel.sites, site);
    if (!(started > 0) || neb__lab_status_time(t->panel.job, site) < started) return false;
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    bool read = f && neb__lab_status(t->panel.job, site, f);
    bool does = read && (f->site[f->self].own_steps > 0 || f->site[f->self].ended);
    neb__free(f);
    return does;
}

static void tick(void *arg)
{
    struct ticking *t = arg;
    if (t->chaos) neb__chaos_tick(t->chaos, t->panel.sites, trains, t);
    if (t->arm) neb__lab_arm_watch(t->arm, t->panel.job, neb__lab_processes_time(t->panel.sites));
    if (isatty(STDOUT_FILENO)) draw_panel(&t->panel);
}

static neb_status run_sites(const struct options *o, const struct neb_lab_plan *p, char **scripts[],
                            struct neb_chaos *chaos, struct neb_lab_arm *arm, int *status)
{
    struct neb_site_command command[NEB_LAB_SITES] = {0};
    const struct neb_job *job = p->job;
    struct neb_lab_processes *sites = NULL;
    neb_status s = make_commands(p, scripts, command);
    for (int i = 0; s == NEB_OK && chaos && i < job->n_sites; i++)
        s = neb__chaos_prepare(chaos, i, &command[i]);
    if (s == NEB_OK) s = neb__lab_processes_create(p->lab, command, job->out, &sites);
    if (s == NEB_OK && o->kill) s = neb__lab_processes_plan_kills(sites, o->kill);
    if (s == NEB_OK) neb__lab_processes_limit(sites, o->time);
    if (s == NEB_OK && chaos) neb__lab_processes_revive(sites, REVIVALS);
    struct ticking ticking = {.panel = {.job = job, .sites = sites}, .chaos = chaos, .arm = arm};
    if (s == NEB_OK) s = neb__lab_processes_run(sites, tick, &ticking, status);
    if (sites && arm) arm->seconds = neb__lab_processes_time(sites);
    neb__lab_processes_free(sites);
    for (int i = 0; i < job->n_sites; i++) neb__site_command_free(&command[i]);
    return s;
}

static void say_what_runs(const struct options *o, const struct neb_lab_plan *p)
{
    const struct neb_job *job = p->job;
    int64_t threads = neb__lab_threads(job);
    printf("%d sites, %s %s, %s between them (%s); %" PRId64 " thread%s a site; everything is in %s\n",
           job->n_sites, o->apart ? "each alone instead of" : "strategy", neb__strategy_name(job->plan),
           o->wan, neb__lab_mode_name(neb__lab_mode(p->lab)), threads, threads == 1 ? "" : "s", job->out);
}

/* The faults of a laboratory whose sites' folders are made. every: seconds; INFINITY: none. */
static neb_status make_chaos(const struct options *o, double every, const struct neb_job *job,
                             struct neb_lab *lab, struct neb_chaos **out)
{
    char path[NEB_LAB_SITES][PATH_MAX], *folder[NEB_LAB_SITES];
    for (int i = 0; i < job->n_sites; i++) {
        folder[i] = path[i];
        neb__lab_site_out(job, job->out, i, path[i], sizeof path[i]);
    }
    return neb__chaos_create(lab, every, (uint64_t)o->seed, o->faults, folder, out);
}

static neb_status check_job(const struct options *o, const struct neb_job *job, bool scripts)
{
    if (!job->n_sites)
        return neb__doc_fail(&job->doc, "sites", "the job has no sites: `sites:` names them (docs/sites.md)");
    if (job->n_sites + has_relay(o) > NEB_LAB_SITES)
        return neb__doc_fail(&job->doc, "sites", "a laboratory has at most %d sites", NEB_LAB_SITES);
    if (scripts && o->apart)
        return neb__fail(NEB_ERR_CONFIG,
                         "--apart is for nebula-i train: leave it out, or the command behind --");
    if (o->chaos > 0 && (scripts || o->apart))
        return neb__fail(NEB_ERR_CONFIG,
                         "--chaos compares trainings of nebula-i train together: leave out %s",
                         scripts ? "the command behind --" : "--apart");
    if (o->chaos > 0 && has_relay(o))
        return neb__fail(NEB_ERR_CONFIG, "--chaos has no faults for a relay host: leave out --relay");
    if (o->chaos > 0 && o->faults) NEB_TRY(neb__chaos_check(o->faults));
    if (!(o->chaos > 0) && (o->json || o->faults))
        return neb__fail(NEB_ERR_CONFIG, "--%s goes with --chaos, such as --chaos 15s",
                         o->json ? "json" : "faults");
    return NEB_OK;
}

/* One laboratory from its making to the end of its sites. chaos: gets faults every so many seconds, arm: what is compared; both
 * NULL: without. */
static neb_status run_lab(const struct neb_call *c, const struct neb_job *job, double every,
                          struct neb_chaos **chaos, struct neb_lab_arm *arm, int *status)
{
    const struct options *o = c->options;
    struct neb_lab_plan plan = {
        .job = job, .words = c->words, .n = c->n, .port = (int)o->port, .apart = o->apart};
    char **scripts[NEB_LAB_SITES];
    if (c->command) NEB_TRY(neb__site_commands(c->command, job->n_sites, scripts));
    NEB_TRY(neb__file_make_dir(job->out, 0700));
    NEB_TRY(make_lab(o, job, &plan.lab));
    struct neb_lab_relay relay = {.handle = -1, .log = -1};
    neb_status s =
        has_relay(o) ? neb__lab_relay_init(&relay, plan.lab, job->n_sites, (int)o->port, job->out) : NEB_OK;
    if (s == NEB_OK) s = make_sites(o, job, plan.lab, &relay);
    if (s == NEB_OK && has_relay(o)) s = neb__lab_relay_start(&relay, plan.lab);
    if (s == NEB_OK && chaos) s = make_chaos(o, every, job, plan.lab, chaos);
    say_what_runs(o, &plan);
    if (s == NEB_OK) s = run_sites(o, &plan, c->command ? scripts : NULL, chaos ? *chaos : NULL, arm, status);
    neb__lab_relay_end(&relay, plan.lab);
    neb__lab_destroy(plan.lab);
    return s;
}

static neb_status run_job(const struct neb_call *c, const struct neb_job *job, int *status)
{
    NEB_TRY(check_job(c->options, job, c->command));
    NEB_TRY(neb__file_make_dir(job->out, 0700));
    if (!c->command) NEB_TRY(prepare(job));
    NEB_TRY(run_lab(c, job, 0, NULL, NULL, status));
    return *status == 0 || *status > 128 ? neb__lab_summary(job, c->command) : NEB_OK;
}

/* ---- with faults and without ------------------------------------------------------------------------------------ */

/* One of the two runs, in a folder of its own below that of the job; the tokens are common. Both have what the faults need (disks
 * of their own, a clock that can jump), because that costs time by itself. */
static neb_status run_arm(const struct neb_call *c, const struct neb_job *job, const char *name, double every,
                          struct neb_chaos **chaos, struct neb_lab_arm *arm, int *status)
{
    char out[PATH_MAX], cache[PATH_MAX];
    struct neb_job own = *job;
    if (snprintf(out, sizeof out, "%s/%s", job->out, name) >= (int)sizeof out)
        return neb__fail(NEB_ERR_CONFIG, "the path %s is too long", job->out);
    if (!access(out, F_OK))
        return neb__fail(
            NEB_ERR_CONFIG,
            "%s is there already: runs with and without faults are compared from their beginning; remove "
            "it, or give another folder with out=FOLDER",
            out);
    neb__lab_cache(job, cache, sizeof cache);
    own.out = out;
    own.cache = cache;
    printf("\n== %s\n", isinf(every) ? "without faults" : "with faults");
    NEB_TRY(run_lab(c, &own, every, chaos, arm, status));
    if (*status && *status <= 128) return NEB_OK;
    neb__chaos_unmount(*chaos);
    NEB_TRY(neb__lab_summary(&own, c->command));
    return neb__lab_arm_read(&own, arm);
}

/* A run that --time ended leaves its sites at different records. */
static neb_status check_roots(const struct options *o, const struct neb_lab_arm *calm,
                              const struct neb_lab_arm *rough)
{
    const bool differ = calm->root == NEB_ROOT_DIFFERENT || rough->root == NEB_ROOT_DIFFERENT;
    const bool known = calm->root == NEB_ROOT_ONE && rough->root == NEB_ROOT_ONE;
    if (known || (!differ && o->time > 0)) return NEB_OK;
    return neb__fail(NEB_ERR_CORRUPT,
                     "the sites do not end with one state root%s: nebula-i status shows what each has, and "
                     "its log why",
                     differ ? "" : ", or it is not known of all");
}

static neb_status compare(const struct neb_call *c, const struct neb_job *job, FILE *json, int *status)
{
    struct neb_lab_arm calm = {0}, rough = {0};
    const struct options *o = c->options;
    struct neb_chaos *none = NULL, *chaos = NULL;
    char page[PATH_MAX];
    NEB_TRY(check_job(c->options, job, c->command));
    NEB_TRY(neb__file_make_dir(job->out, 0700));
    NEB_TRY(prepare(job));
    neb_status s = run_arm(c, job, "calm", INFINITY, &none, &calm, status);
    if (s == NEB_OK && !*status) s = run_arm(c, job, "chaos", o->chaos, &chaos, &rough, status);
    if (s == NEB_OK && !*status) {
        struct neb_lab_pair pair = {.job = job, .calm = &calm, .chaos = &rough};
        pair.faults = neb__chaos_faults(chaos, &pair.fault);
        snprintf(page, sizeof page, "%s/chaos.html", job->out);
        s = neb__lab_compare(&pair, page, json);
        if (s == NEB_OK) s = check_roots(o, &calm, &rough);
    }
    neb__chaos_free(none);
    neb__chaos_free(chaos);
    neb__lab_arm_free(&calm);
    neb__lab_arm_free(&rough);
    return s;
}

/* With --json all that the sites and the laboratory print goes to the error output. */
static neb_status run_compare(const struct neb_call *c, const struct neb_job *job, int *status)
{
    const struct options *o = c->options;
    FILE *json = NULL;
    if (o->json) {
        fflush(stdout);
        int own = dup(STDOUT_FILENO);
        json = own >= 0 ? fdopen(own, "w") : NULL;
        if (!json || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
            return neb__fail(NEB_ERR_IO, "the output cannot be opened a second time");
    }
    neb_status s = compare(c, job, json, status);
    if (json) fclose(json);
    return s;
}

static neb_status run(struct neb_call *c)
{
    struct neb_job job;
    NEB_TRY(neb__job_read(c->words[0], c->words + 1, c->n - 1, &job));
    const struct options *o = c->options;
    neb_status status = o->chaos > 0 ? run_compare(c, &job, &c->code) : run_job(c, &job, &c->code);
    neb__job_free(&job);
    return status;
}

const struct neb_verb neb__verb_lab = {
    .name = "lab",
    .args = "JOB.yaml [options] [section.key=value …] [-- COMMAND [: COMMAND …]]",
    .help = "all sites of a job on this machine, a WAN between them",
    .about =
        "Runs every site of the job on this machine, a wide-area network between them. Further keys are\n"
        "those of nebula-i train --help. COMMAND, such as `python train.py`, is run as every site instead "
        "of\n"
        "nebula-i train, or one command for each site, `:` between them. It finds its job, its site and its\n"
        "settings in its environment: nebula_i.Run() and neb_session_open_job() need no more "
        "(docs/sites.md).",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .missing = "give a job file",
    .most = NEB_ANY_NUMBER,
    .command = true,
    .run = run,
};
