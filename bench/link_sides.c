/* link_sides.c: the two ends of the line that bench_link.c measures.
 *
 * Each side is a process in its site of the laboratory. They and the benchmark share one `struct
 * neb_link_result`. The sender keeps the queue full and looks at the clock three times: after the warm-up,
 * after the measured time, and after its control messages. The benchmark reads the CPU time of both from
 * outside, from the kernel's clocks of the two processes, so counting costs them nothing. Work of the sites'
 * kernels and of the emulator on the emulator's thread is not in it. The CPU time of iperf3 is read in the
 * same way. Sender and receiver have one clock, because the sites are on one machine. */
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
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 4 << 20, QUEUE_AHEAD = 16 };

struct side {
    struct neb_link_result *r;
    char dir[256];
    struct neb_link_plan plan;
    int stripes;
    struct neb_net *net;
    struct neb_net_timer *timer;
    uint8_t *data;
    int ahead;
    int64_t began, control_at;
    struct neb_line first; /* when the measured time began */
};

/* ---- the sender ---------------------------------------------------------------------------------------- */

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

/* Counts from the last acknowledgement before the measured time to the last one in it, because chunks arrive
 * whole. */
static void measured(struct side *s, const struct neb_line *line)
{
    struct neb_link_result *r = s->r;
    r->seconds = (double)(line->acked_at - s->first.acked_at) * 1e-9;
    r->bytes = line->bytes_out - s->first.bytes_out;
    r->stripes = line->stripes;
    r->loss = line->loss;
    r->phase = NEB_BENCH_PROBING;
}

/* Does the work that is due. Returns the seconds until the next. */
static double step(struct side *s)
{
    struct neb_line line = {0};
    int64_t now = neb__now_ns();
    if (!neb__net_is_up(s->net, 2)) return 0.02;
    if (!s->began) s->began = now;
    double t = (double)(now - s->began) * 1e-9, end = s->plan.warm + s->plan.time;
    keep_busy(s);
    neb__net_line(s->net, 2, &line);
    if (t < s->plan.warm) return s->plan.warm - t;
    if (s->r->phase == NEB_BENCH_WARMING) {
        s->first = line;
        s->r->phase = NEB_BENCH_MEASURING;
    }
    if (t < end) return end - t;
    if (s->r->phase == NEB_BENCH_MEASURING) measured(s, &line);
    send_control(s, now);
    if (t > end + s->plan.control) s->r->phase = NEB_BENCH_OVER;
    return 0.05;
}

static void watch(void *arg)
{
    struct side *s = arg;
    double wait = step(s);
    neb__net_timer_stop(s->timer);
    s->timer = NULL;
    if (s->r->phase == NEB_BENCH_OVER ||
        neb__net_timer_start(s->net, wait + 0.001, 0, watch, s, &s->timer) != NEB_OK)
        neb__net_stop(s->net);
}

/* ---- the receiver -------------------------------------------------------------------------------------- */

static neb_status got_message(void *arg, struct neb_message *m)
{
    struct side *s = arg;
    int64_t then;
    if (m->kind != 2 || m->size != 16 || s->r->delays == NEB_BENCH_DELAYS_MAX) return NEB_OK;
    memcpy(&then, m->data, 8);
    s->r->delay[s->r->delays++] = (double)(neb__now_ns() - then) * 1e-9;
    return NEB_OK;
}

/* The sender is gone. */
static void peer_down(void *arg, uint16_t peer, neb_status why)
{
    struct side *s = arg;
    (void)peer, (void)why;
    if (s->r->phase == NEB_BENCH_OVER) neb__net_stop(s->net);
}

static int node_main(void *arg)
{
    struct side *s = arg;
    static const struct neb_net_events events = {.message = got_message, .peer_down = peer_down};
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
    if (sender) neb__net_timer_start(s->net, 0.02, 0, watch, s, &s->timer);
    neb__net_run(s->net);
    neb__net_close(s->net);
    neb__site_close(site);
    neb__free(s->data);
    return 0;
}

/* ---- counting ------------------------------------------------------------------------------------------ */

/* User and system time of n processes, in seconds. */
static double cpu_of(struct neb_lab *lab, const int *handle, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        clockid_t clock;
        struct timespec t;
        pid_t pid = neb__lab_pid(lab, handle[i]);
        if (pid > 0 && !clock_getcpuclockid(pid, &clock) && !clock_gettime(clock, &t))
            sum += (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
    }
    return sum;
}

/* Waits until the phase is over, at most `seconds`. */
static void await_phase(const struct neb_link_result *r, enum neb_bench_phase phase, double seconds)
{
    for (int64_t t = neb__now_ns(); r->phase == phase && neb__seconds_since(t) < seconds;) usleep(10000);
}

/* ---- one cell ------------------------------------------------------------------------------------------ */

static neb_status make_sites(const char *dir, struct neb_lab *lab, const struct neb_link_host *host)
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
        if (host) snprintf(members[i].address[0], NEB_ADDRESS_SIZE, "%s", host->address);
    }
    NEB_TRY(neb__chain_create(&members[0].key, NULL, 0, &(struct neb_roster){members, 2}, &chain));
    neb_status status = NEB_OK;
    for (int i = 0; i < 2 && status == NEB_OK; i++) {
        snprintf(path, sizeof path, "%s/%c", dir, 'a' + i);
        status = neb__site_roster_save(path, chain);
    }
    neb__chain_free(chain);
    return status;
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
    if (!mkdtemp(dir) || make_sites(dir, lab, plan->host) != NEB_OK) return 1;
    for (int i = 1; i >= 0; i--) {
        side[i].r = r, side[i].plan = *plan, side[i].stripes = stripes;
        snprintf(side[i].dir, sizeof side[i].dir, "%s/%c", dir, 'a' + i);
        struct neb_lab_command c = {.out = -1, .err = -1, .fn = node_main, .arg = &side[i]};
        if (neb__lab_start(lab, i, &c, &handle[i]) != NEB_OK) return 1;
        if (i) usleep(100000); /* it listens before the other dials */
    }
    await_phase(r, NEB_BENCH_WARMING, plan->warm + 20);
    double cpu = cpu_of(lab, handle, 2), host = plan->host ? cpu_of(lab, &plan->host->handle, 1) : 0;
    await_phase(r, NEB_BENCH_MEASURING, plan->time + 5);
    r->cpu = cpu_of(lab, handle, 2) - cpu;
    if (plan->host) r->host_cpu = cpu_of(lab, &plan->host->handle, 1) - host;
    for (int i = 0; i < 2; i++)
        if (neb__lab_wait(lab, handle[i], plan->control + 20, &status[i]) != NEB_OK)
            neb__lab_kill(lab, handle[i], 9);
    remove_dir(dir);
    return status[0] || status[1];
}

/* Adds up bytes and time of the server's intervals. (The summary has the sender's seconds, but also the bytes
 * that were still on the way when it stopped.) The last interval is a remainder and is left out. */
static double iperf_rate(const char *path)
{
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e), *list = json_object_get(root, "intervals");
    double bytes = 0, seconds = 0;
    for (size_t i = 0; i + 1 < json_array_size(list); i++) {
        json_t *sum = json_object_get(json_array_get(list, i), "sum");
        if (json_is_true(json_object_get(sum, "omitted"))) continue;
        bytes += json_number_value(json_object_get(sum, "bytes"));
        seconds += json_number_value(json_object_get(sum, "seconds"));
    }
    json_decref(root);
    return seconds > 0 ? 8 * bytes / seconds : 0;
}

struct neb_iperf_result neb__iperf_run(struct neb_lab *lab, const struct neb_link_plan *plan, int streams)
{
    char out[] = "/tmp/nebula-iperf-XXXXXX", t[16], o[16], p[16];
    const char *server[] = {"iperf3", "-s", "-1", "-J", NULL};
    const char *client[] = {"iperf3", "-c", neb__lab_address(lab, 0, 1), "-J", "-t", t, "-O", o, "-P",
                            p,        NULL};
    int fd = mkstemp(out), null = open("/dev/null", O_RDWR), handle[2], status;
    snprintf(t, sizeof t, "%d", (int)(plan->time + 0.5));
    snprintf(o, sizeof o, "%d", (int)(plan->warm + 0.5));
    snprintf(p, sizeof p, "%d", streams);
    struct neb_lab_command cb = {.argv = (char *const *)(uintptr_t)server, .out = fd, .err = null},
                           ca = {.argv = (char *const *)(uintptr_t)client, .out = null, .err = null};
    struct neb_iperf_result result = {0, 0};
    if (neb__lab_start(lab, 1, &cb, &handle[1]) == NEB_OK) {
        usleep(300000);
        if (neb__lab_start(lab, 0, &ca, &handle[0]) == NEB_OK) {
            usleep((useconds_t)(plan->warm * 1e6));
            double cpu = cpu_of(lab, handle, 2);
            usleep((useconds_t)(plan->time * 1e6 - 100000)); /* before they write their reports */
            cpu = (cpu_of(lab, handle, 2) - cpu) / (plan->time - 0.1);
            if (neb__lab_wait(lab, handle[0], 20, &status) == NEB_OK &&
                neb__lab_wait(lab, handle[1], 5, &status) != NEB_OK)
                neb__lab_kill(lab, handle[1], 9); /* it reports when it is over */
            result.bps = iperf_rate(out);
            if (result.bps > 0) result.cpu = cpu / (result.bps / 8e9);
        }
    }
    close(fd);
    close(null);
    remove(out);
    return result;
}
