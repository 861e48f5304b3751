/* link_sides.c: what runs at the two ends of the line that bench_link.c measures.
 *
 * Each side is a process in its site of the laboratory; they and the benchmark share one `struct neb_link_result`. The sender
 * keeps the queue full and looks at the clock: warm-up, measured time, then control messages. The receiver only counts its
 * CPU time when told to, and the delays. Sender and receiver have one clock, as the sites are on one machine. */
#include "link_sides.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/net.h"

#include <fcntl.h>
#include <jansson.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MESSAGE = 4 << 20, QUEUE_AHEAD = 6 };

struct side {
    struct neb_link_result *r;
    char dir[256];
    struct neb_link_plan plan;
    int stripes;
    struct neb_net *net;
    struct neb_net_timer *timer;
    uint8_t *data;
    int ahead;
    int64_t began, first_at, last_at, control_at;
    uint64_t first_bytes, last_bytes;
    double cpu_then;
};

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* ---- the sender -------------------------------------------------------------------------------------------------- */

static void keep_busy(struct side *s);

static void bulk_sent(void *arg, neb_status status)
{
    struct side *s = arg;
    s->ahead--;
    if (status == NEB_OK) keep_busy(s);
}

static void keep_busy(struct side *s)
{
    while (s->ahead < QUEUE_AHEAD &&
           neb__net_send(s->net, 2, NEB_BULK, 1, s->data, MESSAGE, bulk_sent, s) == NEB_OK)
        s->ahead++;
}

static void send_control(struct side *s, int64_t now)
{
    uint8_t m[16];
    if (now - s->control_at < 45000000) return;
    s->control_at = now;
    memcpy(m, &now, 8);
    memset(m + 8, 0, 8);
    neb__net_send_copy(s->net, 2, NEB_CONTROL, 2, m, sizeof m, NULL, NULL);
}

/* Between the first and the last acknowledgement seen in the measured time, so that whole chunks do not blur it. */
static void measure(struct side *s, int64_t now, const struct neb_line *line)
{
    if (!s->first_at && line->bytes_out != s->first_bytes) {
        s->first_at = s->last_at = now;
        s->first_bytes = s->last_bytes = line->bytes_out;
        s->cpu_then = cpu_seconds();
        s->r->measuring = 1;
    }
    if (line->bytes_out != s->last_bytes) {
        s->last_bytes = line->bytes_out;
        s->last_at = now;
    }
}

static void measured(struct side *s, const struct neb_line *line)
{
    struct neb_link_result *r = s->r;
    r->cpu[0] = cpu_seconds() - s->cpu_then;
    r->seconds = (double)(s->last_at - s->first_at) * 1e-9;
    r->bytes = s->last_bytes - s->first_bytes;
    r->stripes = line->stripes;
    r->loss = line->loss;
    r->measuring = 0;
    r->probing = 1;
}

/* Seconds until the next look: often where the measured time begins and ends, for these looks are paid for too. */
static double next_look(const struct side *s, double t)
{
    double end = s->plan.warm + s->plan.time;
    if (t >= end) return 0.05;
    return t < s->plan.warm - 0.15 || (s->first_at && t < end - 0.4) ? 0.1 : 0.01;
}

static void watch(void *arg)
{
    struct side *s = arg;
    struct neb_line line = {0};
    int64_t now = neb__now_ns();
    bool up = neb__net_is_up(s->net, 2);
    if (up && !s->began) s->began = now;
    double t = s->began ? (double)(now - s->began) * 1e-9 : 0, end = s->plan.warm + s->plan.time;
    if (up) {
        keep_busy(s);
        neb__net_line(s->net, 2, &line);
        if (t < s->plan.warm)
            s->first_bytes = line.bytes_out;
        else if (t < end)
            measure(s, now, &line);
        else if (!s->r->probing)
            measured(s, &line);
        else
            send_control(s, now);
    }
    if (t > end + s->plan.control) {
        s->r->stop = 1;
        neb__net_stop(s->net);
        return;
    }
    neb__net_timer_stop(s->timer);
    s->timer = NULL;
    if (neb__net_timer_start(s->net, next_look(s, t), 0, watch, s, &s->timer) != NEB_OK)
        neb__net_stop(s->net);
}

/* ---- the receiver ------------------------------------------------------------------------------------------------ */

static neb_status got_message(void *arg, struct neb_message *m)
{
    struct side *s = arg;
    int64_t then;
    if (m->kind != 2 || m->size != 16 || !s->r->probing || s->r->delays == NEB_BENCH_DELAYS_MAX)
        return NEB_OK;
    memcpy(&then, m->data, 8);
    s->r->delay[s->r->delays++] = (double)(neb__now_ns() - then) * 1e-9;
    return NEB_OK;
}

static void watch_stop(void *arg)
{
    struct side *s = arg;
    if (s->r->measuring && s->cpu_then == 0) s->cpu_then = cpu_seconds();
    if (s->r->probing && s->r->cpu[1] == 0) s->r->cpu[1] = cpu_seconds() - s->cpu_then;
    if (s->r->stop) neb__net_stop(s->net);
}

static int node_main(void *arg)
{
    struct side *s = arg;
    static const struct neb_net_events events = {.message = got_message};
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_site *site;
    neb_log_set_level(getenv("NEBULA_LOG") ? NEB_LOG_INFO : NEB_LOG_WARN);
    if (neb__site_open(s->dir, &site) != NEB_OK) return 1;
    cfg.site = site;
    cfg.events = &events;
    cfg.arg = s;
    cfg.stripes = s->stripes;
    cfg.stripes_max = 32;
    bool sender = strstr(s->dir, "/a") != NULL;
    s->data = neb__calloc(MESSAGE, 1);
    if (!s->data || neb__net_open(&cfg, &s->net) != NEB_OK) return 1;
    neb__net_timer_start(s->net, 0.02, sender ? 0 : 0.1, sender ? watch : watch_stop, s, &s->timer);
    neb__net_run(s->net);
    neb__net_close(s->net);
    neb__site_close(site);
    neb__free(s->data);
    return 0;
}

/* ---- one cell ---------------------------------------------------------------------------------------------------- */

static neb_status make_sites(const char *dir, struct neb_lab *lab)
{
    struct neb_member members[2];
    struct neb_chain *chain = NULL;
    char path[300], identity[NEB_IDENTITY_SIZE];
    memset(members, 0, sizeof members);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        NEB_TRY(neb__site_init(path, i ? "b" : "a", identity));
        NEB_TRY(neb__site_identity(path, members[i].name, &members[i].key));
        members[i].votes = members[i].addresses = 1;
        snprintf(members[i].address[0], NEB_ADDRESS_SIZE, "%s:7400", neb__lab_address(lab, i, i));
    }
    NEB_TRY(neb__chain_create(&members[0].key, NULL, 0, &(struct neb_roster){members, 2}, &chain));
    neb_status s = NEB_OK;
    for (int i = 0; i < 2 && s == NEB_OK; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        s = neb__site_roster_save(path, chain);
    }
    neb__chain_free(chain);
    return s;
}

static void remove_dir(const char *dir)
{
    static const char *const files[] = {"site.key", "site.id", "lock", "incarnation", "roster", ""};
    char path[400];
    for (int i = 0; i < 2; i++)
        for (int f = 0; f < 6; f++) {
            snprintf(path, sizeof path, "%s/%c/%s", dir, 'a' + i, files[f]);
            remove(path);
        }
    remove(dir);
}

int neb__link_run(struct neb_lab *lab, const struct neb_link_plan *plan, int stripes,
                  struct neb_link_result *r)
{
    char dir[] = "/tmp/nebula-bench-XXXXXX";
    struct side side[2];
    int handle[2] = {-1, -1}, status[2] = {1, 1};
    memset(r, 0, sizeof *r);
    memset(side, 0, sizeof side);
    if (!mkdtemp(dir) || make_sites(dir, lab) != NEB_OK) return 1;
    for (int i = 1; i >= 0; i--) {
        side[i].r = r, side[i].plan = *plan, side[i].stripes = stripes;
        snprintf(side[i].dir, sizeof side[i].dir, "%s/%c", dir, 'a' + i);
        struct neb_lab_command c = {.out = -1, .err = -1, .fn = node_main, .arg = &side[i]};
        if (neb__lab_start(lab, i, &c, &handle[i]) != NEB_OK) return 1;
        if (i) usleep(100000); /* it listens before the other dials */
    }
    for (int i = 0; i < 2; i++)
        if (neb__lab_wait(lab, handle[i], plan->warm + plan->time + plan->control + 20, &status[i]) != NEB_OK)
            neb__lab_kill(lab, handle[i], 9);
    remove_dir(dir);
    return status[0] || status[1];
}

/* From the server's intervals: what arrived in which time. (The summary's seconds are the sender's, while the bytes include
 * what was still on the way when it stopped.) The last interval is a remainder and left out. */
static struct neb_iperf_result iperf_result(const char *path)
{
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e), *list = json_object_get(root, "intervals");
    json_t *cpu = json_object_get(json_object_get(root, "end"), "cpu_utilization_percent");
    double busy = 0.01 * (json_number_value(json_object_get(cpu, "host_total")) +
                          json_number_value(json_object_get(cpu, "remote_total")));
    double bytes = 0, seconds = 0;
    for (size_t i = 0; i + 1 < json_array_size(list); i++) {
        json_t *sum = json_object_get(json_array_get(list, i), "sum");
        if (json_is_true(json_object_get(sum, "omitted"))) continue;
        bytes += json_number_value(json_object_get(sum, "bytes"));
        seconds += json_number_value(json_object_get(sum, "seconds"));
    }
    json_decref(root);
    if (!(seconds > 0) || !(bytes > 0)) return (struct neb_iperf_result){0, 0};
    return (struct neb_iperf_result){8 * bytes / seconds, busy * seconds / (bytes * 1e-9)};
}

struct neb_iperf_result neb__iperf_run(struct neb_lab *lab, const struct neb_link_plan *plan, int streams)
{
    char out[] = "/tmp/nebula-iperf-XXXXXX", t[16], o[16], p[16];
    const char *server[] = {"iperf3", "-s", "-1", "-J", NULL};
    const char *client[] = {"iperf3", "-c", neb__lab_address(lab, 0, 1), "-J", "-t", t, "-O", o, "-P",
                            p,        NULL};
    int fd = mkstemp(out), null = open("/dev/null", O_RDWR), a, b, status;
    snprintf(t, sizeof t, "%d", (int)(plan->time + 0.5));
    snprintf(o, sizeof o, "%d", (int)(plan->warm + 0.5));
    snprintf(p, sizeof p, "%d", streams);
    struct neb_lab_command cb = {.argv = (char *const *)(uintptr_t)server, .out = fd, .err = null},
                           ca = {.argv = (char *const *)(uintptr_t)client, .out = null, .err = null};
    struct neb_iperf_result result = {0, 0};
    if (neb__lab_start(lab, 1, &cb, &b) == NEB_OK) {
        usleep(300000);
        if (neb__lab_start(lab, 0, &ca, &a) == NEB_OK &&
            neb__lab_wait(lab, a, plan->warm + plan->time + 20, &status) == NEB_OK)
            if (neb__lab_wait(lab, b, 5, &status) != NEB_OK)
                neb__lab_kill(lab, b, 9); /* it reports when it is over */
        result = iperf_result(out);
    }
    close(fd);
    close(null);
    remove(out);
    return result;
}
