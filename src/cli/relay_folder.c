/* relay_folder.c: the folder of a relay host, and a relay host beside a site in one process (`nebula-i train --relay`).
 *
 * A witness is a machine that every site reaches, which is what a relay host must be. So both can be one process: the host has its own
 * thread, port and key, and knows of the run only the roster file of the site. What is passed on does not come near the
 * site's own links. A second thread writes the status. */
#include "cli/relay_folder.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <uv.h>

neb_status neb__relay_path(const char *folder, const char *name, char out[PATH_MAX])
{
    if (snprintf(out, PATH_MAX, "%s/%s", folder, name) < PATH_MAX) return NEB_OK;
    return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", folder);
}

/* The host's key is that of a site's folder, so `nebula-i site show` and the like know it. */
neb_status neb__relay_folder_make(const char *folder)
{
    char path[PATH_MAX], identity[NEB_IDENTITY_SIZE];
    struct stat st;
    NEB_TRY(neb__relay_path(folder, "site.key", path));
    if (stat(path, &st)) NEB_TRY(neb__site_init(folder, "relay", identity));
    NEB_TRY(neb__relay_path(folder, "rosters", path));
    return neb__file_make_dir(path, 0700);
}

neb_status neb__relay_folder_open(const char *folder, struct neb_site **out)
{
    NEB_TRY(neb__relay_folder_make(folder));
    return neb__site_open(folder, out);
}

void neb__relay_write_status(const char *folder, struct neb_relay_host *h)
{
    char path[PATH_MAX], text[512];
    struct neb_relay_counts c;
    neb__relay_host_counts(h, &c);
    int n =
        snprintf(text, sizeof text,
                 "runs %u\nstanding %u\npairs %u\nmeetings %u\nstrangers %u\njoined %" PRIu64
                 "\nrefused %" PRIu64 "\nbytes %" PRIu64 "\ncpu_seconds %.3f\n",
                 c.runs, c.standing, c.pairs, c.meetings, c.strangers, c.joined, c.refused, c.bytes, c.cpu);
    if (neb__relay_path(folder, "status", path) == NEB_OK) neb__file_replace(path, text, (size_t)n, 0600);
}

/* ---- beside a site ------------------------------------------------------------------------------------- */

struct neb_relay_beside {
    struct neb_site *site;
    struct neb_relay_host *host;
    char folder[PATH_MAX], roster[PATH_MAX];
    const char *files[1];
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    bool ending, locked, threaded;
};

static void keep_status(void *arg)
{
    struct neb_relay_beside *b = arg;
    uv_mutex_lock(&b->lock);
    do {
        neb__relay_write_status(b->folder, b->host);
    } while (!b->ending && (uv_cond_timedwait(&b->wake, &b->lock, (uint64_t)2e9), !b->ending));
    uv_mutex_unlock(&b->lock);
}

static neb_status begin(struct neb_relay_beside *b, const char *listen)
{
    struct neb_relay_host_config config = {
        .name = "relay", .listen = listen, .files = b->files, .files_n = 1, .limits = NEB_RELAY_LIMITS};
    char address[NEB_ADDRESS_SIZE];
    struct stat st;
    if (stat(b->roster, &st))
        return neb__fail(NEB_ERR_NOTFOUND,
                         "there is no roster %s: nebula-i roster join ROSTER SITE, or nebula-i pair",
                         b->roster);
    NEB_TRY(neb__relay_folder_open(b->folder, &b->site));
    config.key = b->site->key;
    config.limits.rosters = 0;
    NEB_TRY(neb__relay_host_open(&config, &b->host));
    NEB_TRY(neb__relay_host_start(b->host));
    if (uv_mutex_init(&b->lock)) return neb__fail(NEB_ERR_NOMEM, "out of memory for a relay host");
    b->locked = true;
    uv_cond_init(&b->wake);
    b->threaded = !uv_thread_create(&b->thread, keep_status, b);
    if (neb__relay_address_format(listen, &b->site->public, address) == NEB_OK)
        neb__info("this process is also a relay host, on port %u, for the members of %s (%s)",
                  neb__relay_host_port(b->host), b->roster, strchr(address, '#'));
    return NEB_OK;
}

neb_status neb__relay_beside_start(const char *listen, const char *folder, const char *roster,
                                   struct neb_relay_beside **out)
{
    struct neb_relay_beside *b = NEB_NEW(struct neb_relay_beside);
    if (!b) return neb__fail(NEB_ERR_NOMEM, "out of memory for a relay host");
    b->files[0] = b->roster;
    neb_status status = snprintf(b->folder, sizeof b->folder, "%s", folder) < (int)sizeof b->folder &&
                                snprintf(b->roster, sizeof b->roster, "%s", roster) < (int)sizeof b->roster
                            ? begin(b, listen)
                            : neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", folder);
    if (status != NEB_OK) {
        neb__relay_beside_stop(b);
        return status;
    }
    *out = b;
    return NEB_OK;
}

void neb__relay_beside_stop(struct neb_relay_beside *b)
{
    if (!b) return;
    if (b->threaded) {
        uv_mutex_lock(&b->lock);
        b->ending = true;
        uv_cond_signal(&b->wake);
        uv_mutex_unlock(&b->lock);
        uv_thread_join(&b->thread);
    }
    neb__relay_host_close(b->host);
    if (b->locked) {
        uv_cond_destroy(&b->wake);
        uv_mutex_destroy(&b->lock);
    }
    neb__site_close(b->site);
    neb__free(b);
}
