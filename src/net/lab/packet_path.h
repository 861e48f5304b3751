/* packet_path.h (inside the laboratory): queues and lines in virtual time. No clock, no socket: times come in as arguments,
 * so that the same code runs on a real machine and in a test that checks it to the nanosecond. */
#ifndef NEB_NET_LAB_PACKET_PATH_H
#define NEB_NET_LAB_PACKET_PATH_H

#include "net/lab/lab.h"

enum neb_wire_drop { NEB_WIRE_LOST, NEB_WIRE_OVERFLOW, NEB_WIRE_CUT, NEB_WIRE_MEMORY };

/* One real packet on its way. What `ref` and `index` mean is the owner's business. */
struct neb_wire_packet {
    struct neb_wire_packet *next, *prev;
    int64_t due;
    void *ref;
    uint32_t index, bytes;
    uint16_t from, to;
    bool corrupt;
};

/* Both take over the packet's `ref`; the packet itself is gone when they return. */
struct neb_wire_sink {
    void (*deliver)(void *arg, const struct neb_wire_packet *p, int64_t at);
    void (*drop)(void *arg, const struct neb_wire_packet *p, enum neb_wire_drop why);
    void *arg;
};

struct neb_wire;

/* Time 0 of the schedule is `start` (ns). Lossless: a line that is down holds packets instead of dropping them, and
 * only a lack of memory drops. Owes a destroy, which drops what is on the way. */
neb_status neb__wire_create(const struct neb_lab_config *cfg, const struct neb_wire_sink *sink, int64_t start,
                            bool lossless, struct neb_wire **out);
void neb__wire_destroy(struct neb_wire *w);

/* The packet enters at `now`, or at the latest moment that the wire has been advanced to. */
void neb__wire_send(struct neb_wire *w, int64_t now, int from, int to, uint32_t bytes, void *ref,
                    uint32_t index);

/* Everything that happens up to and including `now`, in the order of its time. */
void neb__wire_advance(struct neb_wire *w, int64_t now);
int64_t neb__wire_next(const struct neb_wire *w); /* INT64_MAX: nothing will happen by itself */

/* Bytes the first queue on the way from -> to still has room for. A relay reads no more than that. */
int64_t neb__wire_room(const struct neb_wire *w, int from, int to);

void neb__wire_set_line(struct neb_wire *w, int64_t now, int from, int to, const struct neb_lab_line *line);
void neb__wire_get_line(const struct neb_wire *w, int from, int to, struct neb_lab_line *out);
void neb__wire_stats(const struct neb_wire *w, int from, int to, struct neb_lab_stats *out);
void neb__wire_refused(struct neb_wire *w, int from, int to); /* delivered, but the host did not take it */

#endif
