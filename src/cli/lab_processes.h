/* lab_processes.h: the processes of a laboratory's sites: started, their output shown line by line with the site's name in front,
 * waited for, stopped, killed and started again. A successful create owes a free. */
#ifndef NEB_CLI_LAB_PROCESSES_H
#define NEB_CLI_LAB_PROCESSES_H

#include "cli/lab_commands.h"

struct neb_lab_processes;

/* command[i]: of site i, without argv for the last sites if they are not ours; they must outlive the processes. logs: SITE/log under this folder gets a copy of everything a site
 * says; NULL: none. */
neb_status neb__lab_processes_create(struct neb_lab *lab, const struct neb_site_command *command,
                                     const char *logs, struct neb_lab_processes **out);
void neb__lab_processes_free(struct neb_lab_processes *c); /* NULL is fine; what still runs is killed */

/* "30s+10s a; 60s b": a site is killed (SIGKILL) at a time and started again later, or never. NEB_ERR_CONFIG */
neb_status neb__lab_processes_plan_kills(struct neb_lab_processes *c, const char *text);

/* Starts a site that fails again after two seconds, as a service manager would, up to so many times each. */
void neb__lab_processes_revive(struct neb_lab_processes *c, int times);

/* For a tick: kills a site now, as by plan, and starts it again after `away` seconds; sends its processes a signal; prints a
 * line in its name. False: the site does not run, and nothing happens. */
bool neb__lab_processes_kill(struct neb_lab_processes *c, int site, double away);
bool neb__lab_processes_signal(struct neb_lab_processes *c, int site, int sig);
void neb__lab_processes_say(struct neb_lab_processes *c, int site, const char *what);
/* Of this start of the site, unix seconds; 0: it does not run. */
double neb__lab_processes_started(const struct neb_lab_processes *c, int site);
double neb__lab_processes_time(const struct neb_lab_processes *c); /* seconds since the sites were started */
bool neb__lab_processes_stopping(const struct neb_lab_processes *c); /* all are to end now */

/* On a terminal: n lines that stay below everything else, until the next call or the end. Called from `tick`. */
void neb__lab_processes_panel(struct neb_lab_processes *c, char *const *lines, int n);

/* Kills every process after so many seconds, which does not count as a failure. */
void neb__lab_processes_limit(struct neb_lab_processes *c, double seconds);

/* Starts all sites and stays until all have ended. When one fails, the others get half a minute to end by themselves. INT,
 * TERM and HUP are passed on; five seconds later, or at the next signal, all is killed. `tick` (or NULL) is called about ten
 * times a second, until the last has ended. *status: of the first site that failed, or 0; 128 + signal when stopped by one. */
neb_status neb__lab_processes_run(struct neb_lab_processes *c, void (*tick)(void *arg), void *arg,
                                  int *status);

#endif
