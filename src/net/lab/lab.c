/* lab.c: a laboratory's life: choosing its mode, building it, changing its lines, taking it down.
 *
 * Everything that a lab owns in the kernel depends on descriptors and processes of this process: namespaces
 * without names, TAP devices that are open files, commands tied by a socket. So taking a lab down means
 * closing them, and the kernel does that for us when we are killed.
 */
#define _GNU_SOURCE
#include "net/lab/lab_internal.h"
#include "net/lab/loopback_lines.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static atomic_bool in_userns; /* this process has entered its own user namespace */

static void close_tuns(struct neb_lab *lab)
{
    for (int i = 0; i < lab->sites; i++) {
        if (lab->tun[i].fd >= 0) close(lab->tun[i].fd);
        if (lab->tun[i].ns >= 0) close(lab->tun[i].ns);
        lab->tun[i] = (struct neb_tun){-1, -1};
    }
}

static neb_status open_tuns(struct neb_lab *lab, const struct neb_lab_config *cfg)
{
    neb_status status = NEB_OK;
    for (int i = 0; status == NEB_OK && i < lab->sites; i++) {
        snprintf(lab->address[i], sizeof lab->address[i], "10.77.0.%d", i + 1);
        status = neb__tun_open(NEB_LAB_SUBNET + (uint32_t)i + 1, cfg->mtu, cfg->offload, &lab->tun[i]);
    }
    if (status != NEB_OK) close_tuns(lab);
    return status;
}

/* Builds the lab from namespaces, as root or as root of our own user namespace. NEB_ERR_UNSUPPORTED: this
 * machine does not allow it. */
static neb_status build_namespaces(struct neb_lab *lab, const struct neb_lab_config *cfg)
{
    neb_status status = NEB_ERR_UNSUPPORTED;
    lab->mode = atomic_load(&in_userns) ? NEB_LAB_USER : NEB_LAB_NAMESPACES;
    if (cfg->mode != NEB_LAB_USER || lab->mode == NEB_LAB_USER) status = open_tuns(lab, cfg);
    if (status == NEB_ERR_UNSUPPORTED && lab->mode != NEB_LAB_USER && cfg->mode != NEB_LAB_NAMESPACES) {
        char why[256];
        snprintf(why, sizeof why, "%s", cfg->mode == NEB_LAB_USER ? "" : neb_last_error());
        status = neb__userns_enter();
        if (status == NEB_OK) {
            atomic_store(&in_userns, true);
            lab->mode = NEB_LAB_USER;
            status = open_tuns(lab, cfg);
        }
        if (status != NEB_OK && why[0]) neb__error_prefix("%s", why);
    }
    if (status == NEB_OK) status = neb__pump_start(cfg, lab->tun, &lab->pump);
    return status;
}

static neb_status build(struct neb_lab *lab, const struct neb_lab_config *cfg)
{
    if (cfg->mode != NEB_LAB_RELAY) {
        neb_status status = build_namespaces(lab, cfg);
        if (status != NEB_ERR_UNSUPPORTED || cfg->mode != NEB_LAB_AUTO) return status;
        neb__warn("lab: this machine does not allow network namespaces (%s); using mode relay instead: it "
                  "shapes TCP connections to %d ports over loopback by rate, delay, jitter and outages, and "
                  "loses or reorders nothing",
                  neb_last_error(), cfg->ports);
    }
    lab->mode = NEB_LAB_RELAY;
    return neb__loopback_start(cfg, &lab->loopback);
}

neb_status neb__lab_create(const struct neb_lab_config *cfg, struct neb_lab **out)
{
    NEB_TRY(neb__lab_config_check(cfg));
    struct neb_lab *lab = NEB_NEW(struct neb_lab);
    if (!lab) return neb__fail(NEB_ERR_NOMEM, "out of memory for a laboratory");
    lab->sites = cfg->sites;
    for (int i = 0; i < lab->sites; i++) {
        memcpy(lab->name[i], cfg->site[i].name, NEB_LAB_NAME);
        lab->tun[i] = (struct neb_tun){-1, -1};
    }
    pthread_mutex_init(&lab->lock, NULL);
    neb_status status = NEB_OK;
    lab->process = NEB_NEW_ARRAY(struct neb_lab_process, NEB_LAB_PROCESSES);
    if (!lab->process) status = neb__fail(NEB_ERR_NOMEM, "out of memory for a laboratory");
    if (status == NEB_OK) status = build(lab, cfg);
    if (status != NEB_OK) {
        neb__lab_destroy(lab);
        return status;
    }
    *out = lab;
    return NEB_OK;
}

void neb__lab_destroy(struct neb_lab *lab)
{
    if (!lab) return;
    if (lab->process) neb__lab_kill_all(lab);
    neb__pump_stop(lab->pump);
    neb__loopback_stop(lab->loopback);
    close_tuns(lab);
    pthread_mutex_destroy(&lab->lock);
    neb__free(lab->process);
    neb__free(lab);
}

/* ---- questions ----------------------------------------------------------------------------------------- */

enum neb_lab_mode neb__lab_mode(const struct neb_lab *lab)
{
    return lab->mode;
}

int neb__lab_sites(const struct neb_lab *lab)
{
    return lab->sites;
}

int neb__lab_find(const struct neb_lab *lab, const char *name)
{
    for (int i = 0; i < lab->sites; i++)
        if (!strcmp(lab->name[i], name)) return i;
    return -1;
}

const char *neb__lab_name(const struct neb_lab *lab, int site)
{
    return lab->name[site];
}

const char *neb__lab_address(const struct neb_lab *lab, int viewer, int site)
{
    return lab->loopback ? neb__loopback_address(lab->loopback, viewer, site) : lab->address[site];
}

/* ---- lines --------------------------------------------------------------------------------------------- */

static struct neb_packet_path *lock(struct neb_lab *lab)
{
    return lab->loopback ? neb__loopback_lock(lab->loopback) : neb__pump_lock(lab->pump);
}

static void unlock(struct neb_lab *lab)
{
    if (lab->loopback)
        neb__loopback_unlock(lab->loopback);
    else
        neb__pump_unlock(lab->pump);
}

static neb_status check_pair(const struct neb_lab *lab, int from, int to)
{
    if (from < 0 || to < 0 || from >= lab->sites || to >= lab->sites || from == to)
        return neb__fail(NEB_ERR_INVALID, "no line from site %d to site %d", from, to);
    return NEB_OK;
}

neb_status neb__lab_set_line(struct neb_lab *lab, int from, int to, const struct neb_lab_line *line)
{
    NEB_TRY(check_pair(lab, from, to));
    NEB_TRY(neb__lab_line_check(line, lab->name[from], lab->name[to]));
    neb__packet_path_set_line(lock(lab), neb__now_ns(), from, to, line);
    unlock(lab);
    return NEB_OK;
}

void neb__lab_get_line(struct neb_lab *lab, int from, int to, struct neb_lab_line *out)
{
    neb__packet_path_get_line(lock(lab), from, to, out);
    unlock(lab);
}

neb_status neb__lab_set_rate(struct neb_lab *lab, int from, int to, double rate)
{
    struct neb_lab_line l;
    NEB_TRY(check_pair(lab, from, to));
    neb__lab_get_line(lab, from, to, &l);
    l.rate = rate;
    return neb__lab_set_line(lab, from, to, &l);
}

neb_status neb__lab_set_down(struct neb_lab *lab, int from, int to, bool down)
{
    struct neb_lab_line l;
    NEB_TRY(check_pair(lab, from, to));
    neb__lab_get_line(lab, from, to, &l);
    l.down = down;
    return neb__lab_set_line(lab, from, to, &l);
}

void neb__lab_stats(struct neb_lab *lab, int from, int to, struct neb_lab_stats *out)
{
    struct neb_packet_path *w = lock(lab);
    neb__packet_path_stats(w, from, to, out);
    unlock(lab);
}

double neb__lab_cpu_seconds(struct neb_lab *lab)
{
    return lab->loopback ? neb__loopback_cpu_seconds(lab->loopback) : neb__pump_cpu_seconds(lab->pump);
}
