/* segments.h (inside the laboratory): a frame of a TAP device. It is one IP packet, or a train of TCP
 * segments that the kernel has not cut yet. The laboratory counts, times and loses its packets one by one,
 * and writes those that arrive together and in order as one shorter train. */
#ifndef NEB_NET_LAB_SEGMENTS_H
#define NEB_NET_LAB_SEGMENTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

enum {
    NEB_SEGMENTS_VIRTIO = 10,   /* struct virtio_net_hdr, in front of every frame of the device */
    NEB_SEGMENTS_ETHERNET = 14, /* … and its Ethernet header, which stays as it is */
    NEB_SEGMENTS_PREFIX = NEB_SEGMENTS_VIRTIO + NEB_SEGMENTS_ETHERNET,
    NEB_SEGMENTS_MOST = NEB_SEGMENTS_PREFIX + 65535 + 1, /* the largest read */
    NEB_SEGMENTS_HEADERS = NEB_SEGMENTS_PREFIX + 60 + 60 /* prefix, IP and TCP headers at their longest */
};

struct neb_segment_train {
    struct neb_segment_train *next; /* in the list of unused frames */
    int refs;                       /* packets that still need it */
    uint32_t room, len;             /* bytes of `data`: allocated, used */
    uint32_t packets;               /* 1, or the number of segments of the train */
    uint32_t headers;               /* bytes of IP and transport headers; 0: unknown protocol */
    uint32_t payload;               /* bytes of each packet of a train but the last */
    uint8_t data[];                 /* prefix, IP packet */
};

/* Keeps frames of a few sizes for reuse. All zero is empty; clear releases the unused frames. */
struct neb_frames {
    struct neb_segment_train *unused[3];
};
/* Returns a frame with refs 1; NULL: no memory. */
struct neb_segment_train *neb__segments_take(struct neb_frames *f, uint32_t bytes);
void neb__segments_give(struct neb_frames *f, struct neb_segment_train *frame); /* one ref less */
void neb__segments_clear(struct neb_frames *f);

/* Finds the packets of data[0..len) and the IPv4 destination (host order). False: not IPv4, or malformed. */
bool neb__segments_parse(struct neb_segment_train *f, uint32_t *dest);
uint32_t neb__segments_packet_bytes(const struct neb_segment_train *f, uint32_t index); /* IP length */

/* Describes `count` packets, beginning with `first`, for one writev() to a device. `scratch` holds
 * NEB_SEGMENTS_HEADERS bytes. Returns the number of parts (at most 2). */
int neb__segments_cut(struct neb_segment_train *f, uint32_t first, uint32_t count, uint8_t *scratch,
                      struct iovec part[2]);

/* Returns where the payload of that packet lies; 0 bytes: it has none. */
uint8_t *neb__segments_payload(struct neb_segment_train *f, uint32_t index, uint32_t *bytes);

#endif
