/* pump.c: moves packets out of the devices, through the packet path, into the devices.
 *
 * One thread does it. In a tick it advances the packet path, reads the packets that the sites sent, and
 * writes those that arrived. Between two ticks it sleeps until the path's next event or a readable device,
 * but at least QUANTUM, as network cards hold interrupts back. Packets that become due meanwhile are written
 * together, those of one train as one train. That bounds the cost (a wake-up costs tens of microseconds in a
 * virtual machine), and the error of the delay stays below twice the QUANTUM each way. A lone packet is not
 * held back at all.
 *
 * A sleeper wakes late, in a virtual machine by 50 to 300 microseconds. The thread estimates how late from
 * its own timed sleeps, and uses the estimate twice. First, it wakes 1.5 times that much before a packet is
 * due and polls the devices in a loop until then. Such spinning takes at most a SPIN_SHARE of its time. So it
 * does not happen on a busy line, where the queue hides the error anyway. It never happens in a `calm`
 * laboratory, whose sites compute: there the quantum is CALM_QUANTUM, since each wake-up takes a processor
 * and its caches from a site. Second, a packet that woke the thread is stamped that much earlier than it is
 * read.
 *
 * The thread asks for real-time priority, since a late tick is a late packet. Without the permission it keeps
 * the priority that it has.
 *
 * Invariant: frame->refs counts the frame's packets inside the packet path and in `run`s, plus one while it
 * is being parsed.
 */
#define _GNU_SOURCE
#include "net/lab/pump.h"
#include "net/lab/segments.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    QUANTUM = 150000, /* ns */
    CALM_QUANTUM = 500000,
    LATE_MOST = 400000,
    SPIN_SHARE = 20,     /* at most one part in this many */
    SPIN_MOST = 2000000, /* ns that may be saved up */
    READS = 64           /* frames read from a site in a tick */
};

/* Packets of one frame that are written together. */
struct run {
    struct neb_segment_train *frame;
    uint32_t first, count;
    int from;
};

struct neb_pump {
    int sites;
    struct neb_tun tun[NEB_LAB_SITES];
    struct run run[NEB_LAB_SITES];
    struct neb_packet_path *path;
    struct neb_frames frames;
    struct neb_segment_train *spare; /* the next read goes here */
    struct neb_rng rng;
    int64_t late;                 /* estimate: ns by which a sleep ends late */
    int64_t spin_left, spin_when; /* ns that may be spent spinning, as of spin_when */
    int64_t woken;                /* best estimate of when the last packet arrived */
    int wake;
    pthread_mutex_t lock;
    pthread_t thread;
    atomic_bool stop;
    bool calm;
    int64_t quantum;
};

/* ---- into the devices ---------------------------------------------------------------------------------- */

static void flush(struct neb_pump *p, int site)
{
    struct run *r = &p->run[site];
    if (!r->frame) return;
    uint8_t scratch[NEB_SEGMENTS_HEADERS];
    struct iovec part[2];
    int parts = neb__segments_cut(r->frame, r->first, r->count, scratch, part);
    if (writev(p->tun[site].fd, part, parts) < 0)
        for (uint32_t i = 0; i < r->count; i++) neb__packet_path_refused(p->path, r->from, site);
    for (uint32_t i = 0; i < r->count; i++) neb__segments_give(&p->frames, r->frame);
    r->frame = NULL;
}

static void flush_all(struct neb_pump *p)
{
    for (int i = 0; i < p->sites; i++) flush(p, i);
}

static void flip_a_bit(struct neb_pump *p, struct neb_segment_train *f, uint32_t index)
{
    uint32_t bytes;
    uint8_t *payload = neb__segments_payload(f, index, &bytes);
    if (!bytes) return;
    uint64_t bit = neb__rng_below(&p->rng, (uint64_t)bytes * 8);
    payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static void deliver(void *arg, const struct neb_path_packet *packet, int64_t at)
{
    struct neb_pump *p = arg;
    struct run *r = &p->run[packet->to];
    (void)at;
    if (packet->corrupt) flip_a_bit(p, packet->ref, packet->index);
    if (r->frame == packet->ref && r->first + r->count == packet->index) {
        r->count++;
        return;
    }
    flush(p, packet->to);
    *r = (struct run){.frame = packet->ref, .first = packet->index, .count = 1, .from = packet->from};
}

static void dropped(void *arg, const struct neb_path_packet *packet, enum neb_packet_drop why)
{
    struct neb_pump *p = arg;
    (void)why;
    neb__segments_give(&p->frames, packet->ref);
}

/* ---- out of the devices -------------------------------------------------------------------------------- */

/* Moves a small packet to a small frame, so that it does not hold a large one. */
static struct neb_segment_train *fitting(struct neb_pump *p, struct neb_segment_train *f, ssize_t n)
{
    f->len = (uint32_t)n;
    if (n > 4096) {
        p->spare = NULL;
        return f;
    }
    struct neb_segment_train *small = neb__segments_take(&p->frames, f->len);
    if (!small) return NULL;
    memcpy(small->data, f->data, f->len);
    small->len = f->len;
    return small;
}

static void take_in(struct neb_pump *p, int from, struct neb_segment_train *f, int64_t now)
{
    uint32_t dest;
    if (neb__segments_parse(f, &dest) && dest > NEB_LAB_SUBNET &&
        dest <= NEB_LAB_SUBNET + (uint32_t)p->sites) {
        int to = (int)(dest - NEB_LAB_SUBNET - 1);
        f->refs += (int)f->packets;
        for (uint32_t i = 0; i < f->packets; i++)
            neb__packet_path_send(p->path, now, from, to, neb__segments_packet_bytes(f, i), f, i);
    }
    neb__segments_give(&p->frames, f);
}

static void read_site(struct neb_pump *p, int site, int64_t now)
{
    for (int i = 0; i < READS; i++) {
        if (!p->spare && !(p->spare = neb__segments_take(&p->frames, NEB_SEGMENTS_MOST))) return;
        ssize_t n = read(p->tun[site].fd, p->spare->data, NEB_SEGMENTS_MOST);
        if (n <= 0) return;
        struct neb_segment_train *f = fitting(p, p->spare, n);
        if (f) take_in(p, site, f, now);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------------- */

static void prefer_this_thread(void)
{
    struct sched_param param = {.sched_priority = 1};
    prctl(PR_SET_NAME, "nebula-wan");
    prctl(PR_SET_TIMERSLACK, 1);
    if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &param) == 0) return;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), -15);
    neb__debug("lab: no real-time priority (%s): on a busy machine delays will be less exact",
               strerror(errno));
}

static void sleep_until(int64_t at)
{
    struct timespec t = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static int64_t tick(struct neb_pump *p, const struct pollfd *fds)
{
    pthread_mutex_lock(&p->lock);
    int64_t arrived = p->woken;
    neb__packet_path_advance(p->path, arrived);
    flush_all(p);
    for (int i = 0; i < p->sites; i++)
        if (fds[i].revents) read_site(p, i, arrived);
    p->woken = neb__now_ns();
    neb__packet_path_advance(p->path, p->woken);
    flush_all(p);
    int64_t next = neb__packet_path_next(p->path);
    pthread_mutex_unlock(&p->lock);
    return next;
}

/* ---- sleeping ------------------------------------------------------------------------------------------ */

static void slept(struct neb_pump *p, int64_t until, int64_t now)
{
    int64_t late = now - until;
    p->late += ((late < LATE_MOST ? late : LATE_MOST) - p->late) / 8;
}

static void learn_to_sleep(struct neb_pump *p)
{
    for (int i = 0; i < 12; i++) {
        int64_t until = neb__now_ns() + QUANTUM;
        sleep_until(until);
        slept(p, until, neb__now_ns());
    }
}

/* Returns how long before `next` to wake; 0: the share is used up. */
static int64_t head_start(struct neb_pump *p, int64_t now)
{
    int64_t want = p->late + p->late / 2;
    if (p->calm) return 0;
    p->spin_left += (now - p->spin_when) / SPIN_SHARE;
    p->spin_when = now;
    if (p->spin_left > SPIN_MOST) p->spin_left = SPIN_MOST;
    return want <= p->spin_left ? want : 0;
}

/* Waits for a readable device until `until` (INT64_MAX: for ever). Returns whether there is one. */
static bool readable(struct pollfd *fds, int n, int64_t until, int64_t now)
{
    int64_t left = until > now ? until - now : 0;
    struct timespec wait = {.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
    int got = ppoll(fds, (nfds_t)n, until == INT64_MAX ? NULL : &wait, NULL);
    for (int i = 0; got < 0 && i < n; i++) fds[i].revents = 0;
    return got > 0;
}

/* Sleeps until a little before `next` and then spins; a readable device ends both. Sets `woken`. */
static void sleep_to(struct neb_pump *p, struct pollfd *fds, int n, int64_t next)
{
    int64_t began = neb__now_ns(), until = next == INT64_MAX ? next : next - head_start(p, began);
    bool arrival = readable(fds, n, until, began);
    int64_t now = neb__now_ns(), awake = now;
    p->woken = arrival && now - began > p->late ? now - p->late : now;
    if (arrival) return;
    if (until > began) slept(p, until, now);
    while (now < next && !readable(fds, n, now, now)) now = neb__now_ns();
    p->woken = neb__now_ns();
    p->spin_left -= p->woken - awake;
}

/* Sleeps until there is something to do, but at least until `earliest`. */
static void wait_for_work(struct neb_pump *p, struct pollfd *fds, int n, int64_t next, int64_t earliest)
{
    if (next > earliest) sleep_to(p, fds, n, next);
    if (earliest - neb__now_ns() > 20000) {
        sleep_until(earliest);
        slept(p, earliest, neb__now_ns());
    }
    if (next > earliest) return;
    p->woken = neb__now_ns();
    readable(fds, n, p->woken, p->woken);
}

static void *pump(void *arg)
{
    struct neb_pump *p = arg;
    struct pollfd fds[NEB_LAB_SITES + 1] = {{0}};
    prefer_this_thread();
    learn_to_sleep(p);
    for (int i = 0; i < p->sites; i++) fds[i] = (struct pollfd){.fd = p->tun[i].fd, .events = POLLIN};
    fds[p->sites] = (struct pollfd){.fd = p->wake, .events = POLLIN};
    while (!atomic_load_explicit(&p->stop, memory_order_relaxed)) {
        int64_t began = neb__now_ns(), next = tick(p, fds);
        wait_for_work(p, fds, p->sites + 1, next, began + p->quantum);
        if (fds[p->sites].revents) {
            uint64_t n;
            (void)!read(p->wake, &n, sizeof n);
        }
    }
    return NULL;
}

static void wake(struct neb_pump *p)
{
    uint64_t one = 1;
    (void)!write(p->wake, &one, sizeof one);
}

struct neb_packet_path *neb__pump_lock(struct neb_pump *p)
{
    pthread_mutex_lock(&p->lock);
    return p->path;
}

void neb__pump_unlock(struct neb_pump *p)
{
    pthread_mutex_unlock(&p->lock);
    wake(p);
}

double neb__pump_cpu_seconds(struct neb_pump *p)
{
    clockid_t clock;
    struct timespec t;
    if (pthread_getcpuclockid(p->thread, &clock) || clock_gettime(clock, &t)) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The other threads handle signals; this one blocks them. */
static int start_thread(struct neb_pump *p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(&p->thread, NULL, pump, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

neb_status neb__pump_start(const struct neb_lab_config *cfg, const struct neb_tun *tun, struct neb_pump **out)
{
    struct neb_pump *p = NEB_NEW(struct neb_pump);
    if (!p) return neb__fail(NEB_ERR_NOMEM, "out of memory for the lab's forwarding thread");
    neb_status status;
    p->sites = cfg->sites;
    p->calm = cfg->calm;
    p->quantum = cfg->calm ? CALM_QUANTUM : QUANTUM;
    memcpy(p->tun, tun, (size_t)cfg->sites * sizeof *tun);
    p->rng.state = cfg->seed ^ 0xC0;
    p->woken = p->spin_when = neb__now_ns();
    struct neb_path_sink sink = {deliver, dropped, p};
    NEB_TRY_GOTO(status, neb__packet_path_create(cfg, &sink, neb__now_ns(), false, &p->path), no_path);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake < 0) {
        status = neb__fail(NEB_ERR_IO, "cannot make an eventfd: %s", strerror(errno));
        goto no_wake;
    }
    pthread_mutex_init(&p->lock, NULL);
    int e = start_thread(p);
    if (e) {
        status = neb__fail(NEB_ERR_IO, "cannot start the lab's forwarding thread: %s", strerror(e));
        goto no_thread;
    }
    *out = p;
    return NEB_OK;
no_thread:
    pthread_mutex_destroy(&p->lock);
    close(p->wake);
no_wake:
    neb__packet_path_destroy(p->path);
no_path:
    neb__free(p);
    return status;
}

void neb__pump_stop(struct neb_pump *p)
{
    if (!p) return;
    atomic_store(&p->stop, true);
    wake(p);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    close(p->wake);
    for (int i = 0; i < p->sites; i++)
        for (uint32_t k = 0; p->run[i].frame && k < p->run[i].count; k++)
            neb__segments_give(&p->frames, p->run[i].frame);
    neb__packet_path_destroy(p->path);
    if (p->spare) neb__segments_give(&p->frames, p->spare);
    neb__segments_clear(&p->frames);
    neb__free(p);
}
