/* verb_relay.c: `nebula-i relay`: a relay host, a machine that sites can reach and through which they reach each other.
 *
 * Its folder holds its key (made at the first start), `rosters` (those that members showed it, and any that the operator puts
 * there), and `status`, which --show prints. It is no member of any run. */
#include "cli/verb.h"
#include "cli/relay_folder.h"
#include "base/file.h"
#include "base/log.h"
#include "net/relay/relay_host.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct options {
    struct neb_relay_limits limits;
    char *listen, *address, *folder;
    bool show, print;
};

#define LIMIT(field, ...) NEB_OPT(struct neb_relay_limits, field, __VA_ARGS__)

static const struct neb_opt limits_table[] = {
    LIMIT(rosters, NEB_OPT_INT, "64", NULL,
          "rosters that members may show, if they name this host; 0: only those that you give it",
          NEB_OPT_RANGE(0, 512)),
    LIMIT(run_connections, NEB_OPT_INT, "512", NULL, "pairs of connections of one run",
          NEB_OPT_RANGE(1, 2000)),
    LIMIT(member_connections, NEB_OPT_INT, "128", NULL, "connections of one member", NEB_OPT_RANGE(2, 4000)),
    LIMIT(run_rate, NEB_OPT_RATE, "0", NULL, "that the members of one run may send together; 0: any",
          NEB_OPT_ZERO_OR(1e6, 1e15)),
    LIMIT(member_rate, NEB_OPT_RATE, "0", NULL, "that one member may send; 0: any",
          NEB_OPT_ZERO_OR(1e6, 1e15)),
    LIMIT(idle, NEB_OPT_TIME, "15m", NULL, "without a byte closes a pair", NEB_OPT_RANGE(10, 1e7)),
    LIMIT(meetings, NEB_OPT_INT, "64", NULL, "strangers that may wait to be paired at one time; 0: none",
          NEB_OPT_RANGE(0, 1000)),
    LIMIT(meetings_per_minute, NEB_OPT_REAL, "12", NULL, "attempts to pair from one network",
          NEB_OPT_RANGE(1, 1e6)),
    LIMIT(meeting_seconds, NEB_OPT_TIME, "10m", NULL, "the longest that pairing may take",
          NEB_OPT_RANGE(10, 3600)),
    NEB_OPT_END,
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, listen, NEB_OPT_TEXT, "0.0.0.0:7500", NULL,
            "HOST:PORT to listen on; port 0: any"),
    NEB_OPT(struct options, address, NEB_OPT_TEXT, "", NULL,
            "HOST:PORT by which sites reach it, for the address that it prints"),
    NEB_OPT(struct options, folder, NEB_OPT_TEXT, "relay", NULL,
            "with its key and rosters; made if it is missing"),
    NEB_OPT(struct options, print, NEB_OPT_BOOL, "no", NULL,
            "print the address for rosters that the host of this folder has, and end"),
    NEB_OPT(struct options, show, NEB_OPT_BOOL, "no", NULL, "print how the host of this folder is, and end"),
    NEB_OPT_END,
};

static struct neb_relay_host *running;

static void on_signal(int number)
{
    (void)number;
    if (running) neb__relay_host_stop(running);
}

/* How sites reach it: as --address says; else the address it listens on, or this machine's name where that is any. */
static void find_place(const struct options *o, uint16_t port, char out[NEB_ADDRESS_SIZE])
{
    char host[NEB_ADDRESS_SIZE], name[64] = "localhost";
    uint16_t given;
    if (o->address) {
        snprintf(out, NEB_ADDRESS_SIZE, "%s", o->address);
        return;
    }
    if (!neb__address_split(o->listen, host, &given)) snprintf(host, sizeof host, "127.0.0.1"); /* port 0 */
    bool any = !strcmp(host, "0.0.0.0") || !strcmp(host, "::");
    if (any && gethostname(name, sizeof name - 1)) snprintf(name, sizeof name, "localhost");
    const char *shown = any ? name : host;
    snprintf(out, NEB_ADDRESS_SIZE, strchr(shown, ':') ? "[%.100s]:%u" : "%.100s:%u", shown, port);
}

static neb_status say_where(const struct options *o, const struct neb_site *site, uint16_t port)
{
    char place[NEB_ADDRESS_SIZE], address[NEB_ADDRESS_SIZE];
    find_place(o, port, place);
    NEB_TRY(neb__relay_address_format(place, &site->public, address));
    printf("%s\n", address);
    fflush(stdout);
    neb__info("listening on port %u; a site that can be called here has this address in its roster:\n"
              "  nebula-i roster add draft IDENTITY %s",
              port, address);
    return NEB_OK;
}

/* Before it runs, so that a roster can name it. */
static neb_status print_address(const struct options *o)
{
    char host[NEB_ADDRESS_SIZE], place[NEB_ADDRESS_SIZE], address[NEB_ADDRESS_SIZE], name[NEB_NAME_SIZE];
    struct neb_public key;
    uint16_t port = 0;
    if (!o->address && !neb__address_split(o->listen, host, &port))
        return neb__fail(NEB_ERR_CONFIG,
                         "give the address by which sites reach this host: --address HOST:PORT");
    find_place(o, port, place);
    NEB_TRY(neb__relay_folder_make(o->folder));
    NEB_TRY(neb__site_identity(o->folder, name, &key));
    NEB_TRY(neb__relay_address_format(place, &key, address));
    printf("%s\n", address);
    return NEB_OK;
}

/* ---- how it is ----------------------------------------------------------------------------------------- */

static neb_status show(const char *folder)
{
    char path[PATH_MAX];
    struct neb_buf b;
    NEB_TRY(neb__relay_path(folder, "status", path));
    neb__buf_init(&b, 4096);
    neb_status status = neb__file_read(path, &b);
    if (status == NEB_OK) fwrite(b.data, 1, b.len, stdout);
    neb__buf_free(&b);
    return status;
}

/* ---- running ------------------------------------------------------------------------------------------- */

static void keep(const char *folder, struct neb_relay_host *h)
{
    enum { EVERY_MS = 200, WRITE_TURNS = 10 };
    for (int turn = 0; !neb__relay_host_is_stopping(h); turn++) {
        if (turn % WRITE_TURNS == 0) neb__relay_write_status(folder, h);
        poll(NULL, 0, EVERY_MS);
    }
    neb__relay_write_status(folder, h);
}

static neb_status serve(const struct options *o, struct neb_site *site, char **files, int n)
{
    char rosters[PATH_MAX];
    struct neb_relay_host_config config = {.key = site->key,
                                           .name = site->name,
                                           .listen = o->listen,
                                           .files = (const char *const *)files,
                                           .files_n = n,
                                           .folder = rosters,
                                           .limits = o->limits};
    struct sigaction stop = {.sa_handler = on_signal};
    struct neb_relay_host *h;
    NEB_TRY(neb__relay_path(o->folder, "rosters", rosters));
    NEB_TRY(neb__relay_host_open(&config, &h));
    running = h;
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    neb_status status = say_where(o, site, neb__relay_host_port(h));
    if (status == NEB_OK) status = neb__relay_host_start(h);
    if (status == NEB_OK) keep(o->folder, h);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    running = NULL;
    neb__relay_host_close(h);
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_site *site;
    if (o->show) return show(o->folder);
    if (o->print) return print_address(o);
    NEB_TRY(neb__relay_folder_open(o->folder, &site));
    neb_status status = serve(o, site, c->words, c->n);
    neb__site_close(site);
    return status;
}

const struct neb_verb neb__verb_relay = {
    .name = "relay",
    .args = "[ROSTER…] [--listen ADDR] [--folder DIR]",
    .help = "a relay host: sites that cannot reach each other meet here",
    .about =
        "Runs on any machine that the sites can reach. It joins connections of members of the ROSTERs that "
        "it is\n"
        "given, and of those that members show it (--rosters). What it passes on is sealed between the "
        "members: it\n"
        "sees who talks to whom, when and how much, and nothing else. It prints the address for rosters:\n"
        "relay://HOST:PORT#KEY (docs/relay.md).",
    .options = {{limits_table, offsetof(struct options, limits)}, {table, 0}},
    .size = sizeof(struct options),
    .most = NEB_ANY_NUMBER,
    .run = run,
};
