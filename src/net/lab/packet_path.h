/* packet_path.h (inside the laboratory): queues and lines in virtual time. It has no clock and no socket: the
 * caller passes the time, so the same code runs on a real machine and in a test that checks it to the
 * nanosecond. */
#ifndef NEB_NET_LAB_PACKET_PATH_H
#define NEB_NET_LAB_PACKET_PATH_H

#include "net/lab/lab.h"

enum neb_packet_drop { NEB_PACKET_LOST, NEB_PACKET_OVERFLOW, NEB_PACKET_CUT, NEB_PACKET_NO_MEMORY };

/* One real packet on its way. The owner decides what `ref` and `index` mean. */
struct neb_path_packet {
    struct neb_path_packet *next, *prev;
    int64_t due;
    void *ref;
    uint32_t index, bytes;
    uint16_t from, to;
    bool corrupt;
};

/* Both callbacks take over the packet's `ref`. The packet itself is gone when they return. */
struct neb_path_sink {
    void (*deliver)(void *arg, const struct neb_path_packet *p, int64_t at);
    void (*drop)(void *arg, const struct neb_path_packet *p, enum neb_packet_drop why);
    void *arg;
};

struct neb_packet_path;

/* Time 0 of the schedule is `start` (ns). If `lossless`, a line that is down holds packets instead of
 * dropping them, and only a lack of memory drops any. Success owes a destroy, which drops the packets on the
 * way. */
neb_status neb__packet_path_create(const struct neb_lab_config *cfg, const struct neb_path_sink *sink,
                                   int64_t start, bool lossless, struct neb_packet_path **out);
void neb__packet_path_destroy(struct neb_packet_path *w);

/* The packet enters at `now`, or at the time that the path has been advanced to, whichever is later. */
void neb__packet_path_send(struct neb_packet_path *w, int64_t now, int from, int to, uint32_t bytes,
                           void *ref, uint32_t index);

/* Carries out every event up to and including `now`, in the order of time. */
void neb__packet_path_advance(struct neb_packet_path *w, int64_t now);
/* Returns the time of the next event; INT64_MAX: none will come by itself. */
int64_t neb__packet_path_next(const struct neb_packet_path *w);

/* Returns how many bytes fit into the first queue on the way from -> to. Loopback lines read no more than
 * that. */
int64_t neb__packet_path_room(const struct neb_packet_path *w, int from, int to);

void neb__packet_path_set_line(struct neb_packet_path *w, int64_t now, int from, int to,
                               const struct neb_lab_line *line);
void neb__packet_path_get_line(const struct neb_packet_path *w, int from, int to, struct neb_lab_line *out);
void neb__packet_path_stats(const struct neb_packet_path *w, int from, int to, struct neb_lab_stats *out);
/* Counts a packet that was delivered but that the host did not take. */
void neb__packet_path_refused(struct neb_packet_path *w, int from, int to);

#endif
