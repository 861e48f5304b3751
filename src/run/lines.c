/* lines.c: the lines to the other sites as they are measured: see lines.h.
 *
 * Goodput is taken from the updates themselves. An update is pushed to every member at once; to one of them
 * it took the time from the push, or from the acknowledgement of the update before it if that came later, to
 * its own acknowledgement; one round trip is not the line's fault when the line was idle before. So only time
 * counts in which there was something to send, and updates that overlap are not counted twice. An
 * acknowledgement may be some milliseconds late because a thread was: the true rate lies between what was
 * seen and what it would be without that. The last sample stands if it lies there, too; so an update too
 * small to fill the line does not make it look slow. */
#include "run/lines.h"
#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static const double smooth = 0.3, stalled_s = 5, late_thread_s = 0.02;

void neb__lines_init(struct neb_lines *l)
{
    pthread_mutex_init(&l->lock, NULL);
}

void neb__lines_free(struct neb_lines *l)
{
    pthread_mutex_destroy(&l->lock);
}

double neb__lines_smooth(double before, double seconds)
{
    return before > 0 ? (1 - smooth) * before + smooth * seconds : seconds;
}

/* ---- what the threads tell ----------------------------------------------------------------------------- */

void neb__lines_came_up(struct neb_lines *l, uint16_t peer)
{
    if (peer >= NEB_SITES_MAX) return;
    pthread_mutex_lock(&l->lock);
    l->up_since[peer] = neb__now_ns();
    pthread_mutex_unlock(&l->lock);
}

void neb__lines_measured(struct neb_lines *l, uint16_t peer, const struct neb_line *line)
{
    pthread_mutex_lock(&l->lock);
    l->line[peer] = *line;
    pthread_mutex_unlock(&l->lock);
}

void neb__lines_stepped(struct neb_lines *l, double seconds)
{
    pthread_mutex_lock(&l->lock);
    l->step_s = neb__lines_smooth(l->step_s, seconds);
    pthread_mutex_unlock(&l->lock);
}

void neb__lines_watch(struct neb_lines *l, const struct neb_hash *hash, double bytes)
{
    pthread_mutex_lock(&l->lock);
    struct neb_update_push *p = &l->push[l->next_push++ % NEB_PUSHES];
    *p = (struct neb_update_push){.id = l->next_push, .since = neb__now_ns(), .bytes = bytes};
    l->current = p->id;
    l->hash = *hash;
    pthread_mutex_unlock(&l->lock);
}

void neb__lines_pushed(struct neb_lines *l, const struct neb_sending *to)
{
    pthread_mutex_lock(&l->lock);
    l->sent += to->bytes;
    for (int i = 0; i < NEB_PUSHES; i++)
        if (to->push && l->push[i].id == to->push) l->push[i].left++;
    pthread_mutex_unlock(&l->lock);
}

/* The time an update kept a line busy that was free from `free_at` on. */
static double busy_for(int64_t since, int64_t free_at, int64_t now, double rtt)
{
    double took = (double)(now - (free_at > since ? free_at : since)) * 1e-9;
    if (free_at <= since) took -= rtt;
    return took > 1e-3 ? took : 1e-3;
}

static void reached_everybody(struct neb_lines *l, uint64_t id, double rtt, int64_t now, bool waited)
{
    for (int i = 0; i < NEB_PUSHES; i++) {
        struct neb_update_push *p = &l->push[i];
        if (p->id != id) continue;
        p->waited |= waited;
        if (--p->left > 0) continue;
        l->late_bytes = p->bytes;
        l->late_s = p->waited ? 0 : fmax(busy_for(p->since, l->all_until, now, rtt) - late_thread_s, 1e-3);
        l->all_until = now;
        p->id = 0;
    }
}

void neb__lines_acked(struct neb_lines *l, const struct neb_sending *to, uint16_t peer, bool ok)
{
    if (!to->push || peer >= NEB_SITES_MAX) return;
    int64_t now = neb__now_ns();
    pthread_mutex_lock(&l->lock);
    double rtt = l->line[peer].rtt_min;
    bool waited = to->since < l->up_since[peer]; /* an outage says nothing about the line's rate */
    if (ok && waited) l->busy_until[peer] = now;
    if (ok && !waited) {
        double took = busy_for(to->since, l->busy_until[peer], now, rtt);
        l->sum_bytes[peer] += to->bytes;
        l->sum_s[peer] += took;
        l->goodput[peer] = to->bytes / took;
        l->busy_until[peer] = now;
    }
    reached_everybody(l, to->push, rtt, now, waited);
    pthread_mutex_unlock(&l->lock);
}

/* ---- what they ask ------------------------------------------------------------------------------------- */

struct neb_line neb__lines_get(struct neb_lines *l, uint16_t peer)
{
    struct neb_line line = {0};
    if (peer >= NEB_SITES_MAX) return line;
    pthread_mutex_lock(&l->lock);
    line = l->line[peer];
    pthread_mutex_unlock(&l->lock);
    return line;
}

int neb__lines_up(struct neb_lines *l)
{
    int n = 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_SITES_MAX; i++) n += l->line[i].up;
    pthread_mutex_unlock(&l->lock);
    return n;
}

double neb__lines_goodput(struct neb_lines *l, uint16_t peer)
{
    pthread_mutex_lock(&l->lock);
    double g = l->goodput[peer];
    pthread_mutex_unlock(&l->lock);
    return g;
}

double neb__lines_slowest(struct neb_lines *l)
{
    double least = 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        double g = l->goodput[i];
        if (l->line[i].up && g > 0 && (!least || g < least)) least = g;
    }
    pthread_mutex_unlock(&l->lock);
    return least;
}

uint64_t neb__lines_watched(struct neb_lines *l, const struct neb_hash *hash)
{
    pthread_mutex_lock(&l->lock);
    uint64_t push = neb__hash_equal(hash, &l->hash) ? l->current : 0;
    pthread_mutex_unlock(&l->lock);
    return push;
}

/* The rate of the line, by `bytes` in `s` seconds and the sample before. */
static double sample(double *last, double bytes, double s)
{
    double least = bytes / s, most = s > late_thread_s ? bytes / (s - late_thread_s) : INFINITY;
    *last = *last > 0 ? fmin(fmax(*last, least), most) : least;
    return *last;
}

/* One sample an interval: of each peer that took an update in, and of the whole egress. */
static void give_samples(struct neb_lines *l, struct neb_rate *rate, int members)
{
    double bytes = 0, most = 0;
    bool stuck = false;
    int64_t now = neb__now_ns();
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        if (l->sum_s[i] > 0) {
            neb__rate_sample(rate, i, sample(&l->sampled[i], l->sum_bytes[i], l->sum_s[i]) * (members - 1));
            bytes += l->sum_bytes[i];
            most = fmax(most, l->sum_s[i]);
        }
        if (!l->line[i].up) neb__rate_peer_gone(rate, i), l->sampled[i] = 0;
        stuck |= l->line[i].up && l->line[i].queued && l->line[i].bytes_out == l->moved[i];
        l->moved[i] = l->line[i].bytes_out;
        l->sum_bytes[i] = l->sum_s[i] = 0;
    }
    if (most > 0) neb__rate_sample(rate, -1, sample(&l->sampled_out, bytes, most));
    for (int i = 0; i < NEB_PUSHES && stuck && most == 0; i++)
        if (l->push[i].id && (double)(now - l->push[i].since) * 1e-9 > stalled_s) {
            neb__rate_sample(rate, -1, l->sampled_out = 0);
            break;
        }
    if (l->late_s > 0) neb__rate_sent(rate, l->late_bytes, l->late_s);
    l->late_s = 0;
}

/* The least round trip: a queue that the updates themselves make is part of their sending. */
double neb__lines_report(struct neb_lines *l, struct neb_rate *rate, struct neb_rate_input *in)
{
    pthread_mutex_lock(&l->lock);
    in->members = 1;
    for (int i = 0; i < NEB_SITES_MAX; i++)
        if (l->line[i].up) in->members++, in->rtt = fmax(in->rtt, l->line[i].rtt_min);
    if (in->members < 2) in->members = 2; /* nobody is there now; what is made waits for them */
    in->step = l->step_s;
    double sent = l->sent;
    give_samples(l, rate, in->members);
    pthread_mutex_unlock(&l->lock);
    return sent;
}

/* ---- updates on their way ------------------------------------------------------------------------------ */

struct neb_shared *neb__lines_share(struct neb_lines *l, const struct neb_hash *hash, const void *bytes,
                                    size_t n)
{
    struct neb_shared *b = NULL;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_FLIGHTS && !b; i++)
        if (l->flights[i].used && neb__hash_equal(&l->flights[i].hash, hash)) b = l->flights[i].shared;
    if (b) b->refs++;
    pthread_mutex_unlock(&l->lock);
    if (b || !(b = neb__malloc(sizeof *b + n))) return b;
    b->refs = 1;
    memcpy(b->bytes, bytes, n);
    return b;
}

void neb__lines_unshare(struct neb_lines *l, struct neb_shared *shared)
{
    if (!shared) return;
    pthread_mutex_lock(&l->lock);
    bool last = --shared->refs == 0;
    pthread_mutex_unlock(&l->lock);
    if (last) neb__free(shared);
}

int neb__lines_take_off(struct neb_lines *l, const struct neb_flight *flight)
{
    int place = 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_FLIGHTS && !place; i++) {
        if (l->flights[i].used) continue;
        l->flights[i] = *flight;
        l->flights[i].used = true;
        place = i + 1;
    }
    pthread_mutex_unlock(&l->lock);
    return place;
}

void neb__lines_land(struct neb_lines *l, int flight)
{
    if (!flight) return;
    pthread_mutex_lock(&l->lock);
    l->flights[flight - 1].used = false;
    pthread_mutex_unlock(&l->lock);
}

bool neb__lines_under_way(struct neb_lines *l, uint16_t peer, const struct neb_hash *hash)
{
    bool found = false;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_FLIGHTS && !found; i++) {
        const struct neb_flight *f = &l->flights[i];
        found = f->used && f->peer == peer && neb__hash_equal(&f->hash, hash);
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}

bool neb__lines_has_room(struct neb_lines *l, uint16_t peer, bool asked_for)
{
    size_t bytes = 0;
    int n = 0;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_FLIGHTS; i++) {
        const struct neb_flight *f = &l->flights[i];
        if (!f->used || f->asked_for != asked_for || f->peer != peer) continue;
        bytes += f->size;
        n++;
    }
    pthread_mutex_unlock(&l->lock);
    return !n || (n < NEB_UPDATES_SENT && bytes < NEB_SENT_BYTES);
}

/* ---- cells on their way -------------------------------------------------------------------------------- */

neb_status neb__lines_cell_begin(struct neb_lines *l, uint16_t peer, uint32_t cell)
{
    neb_status status = NEB_ERR_LIMIT;
    int place = -1;
    if (peer >= NEB_SITES_MAX) return status;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_CELLS_ASKED; i++) {
        if (!l->cells[peer][i].cell) place = i;
        if (l->cells[peer][i].cell != cell + 1) continue;
        if (++l->cells[peer][i].again <= NEB_CELL_AGAIN) status = NEB_ERR_EXISTS;
        place = -1;
        break;
    }
    if (status == NEB_ERR_LIMIT && place >= 0) {
        l->cells[peer][place].cell = cell + 1;
        l->cells[peer][place].again = 0;
        status = NEB_OK;
    }
    pthread_mutex_unlock(&l->lock);
    return status;
}

void neb__lines_cell_end(struct neb_lines *l, uint16_t peer, uint32_t cell)
{
    if (peer >= NEB_SITES_MAX) return;
    pthread_mutex_lock(&l->lock);
    for (int i = 0; i < NEB_CELLS_ASKED; i++)
        if (l->cells[peer][i].cell == cell + 1) l->cells[peer][i].cell = 0;
    pthread_mutex_unlock(&l->lock);
}
