/* segments.c: parses and cuts trains of TCP segments.
 *
 * A TAP device opened with IFF_VNET_HDR puts a 10-byte struct virtio_net_hdr (host byte order) in front of
 * each Ethernet frame: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset. With TCP offload switched on the
 * kernel leaves two jobs to the reader: the TCP checksum (flag NEEDS_CSUM: the field holds only the sum over
 * the pseudo header) and cutting (gso_type TCPv4: segments of gso_size payload bytes each). The reader can
 * leave both to the receiving kernel by writing the same prefix again. Since the bytes never leave the
 * machine, nobody ever needs to sum them.
 *
 * A part of a train has the train's headers with these fields made anew, as tcp_gso_segment() of the kernel
 * does it:
 *   IP    total length, identification + index, header checksum
 *   TCP   sequence + index * payload; FIN and PSH only on the last segment, CWR only on the first;
 *         pseudo-header sum
 */
#include "net/lab/segments.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <linux/virtio_net.h>
#include <string.h>

_Static_assert(sizeof(struct virtio_net_hdr) == NEB_SEGMENTS_VIRTIO, "the device's prefix");

static const uint32_t sizes[3] = {512, 4096, NEB_SEGMENTS_MOST};

static int size_class(uint32_t bytes)
{
    if (bytes <= sizes[0]) return 0;
    return bytes <= sizes[1] ? 1 : 2;
}

struct neb_segment_train *neb__segments_take(struct neb_frames *f, uint32_t bytes)
{
    int c = size_class(bytes);
    struct neb_segment_train *x = f->unused[c];
    if (x)
        f->unused[c] = x->next;
    else if (!(x = neb__malloc(sizeof *x + sizes[c])))
        return NULL;
    x->refs = 1;
    x->room = sizes[c];
    x->len = 0;
    return x;
}

void neb__segments_give(struct neb_frames *f, struct neb_segment_train *x)
{
    if (--x->refs) return;
    int c = size_class(x->room);
    x->next = f->unused[c];
    f->unused[c] = x;
}

void neb__segments_clear(struct neb_frames *f)
{
    for (int c = 0; c < 3; c++)
        while (f->unused[c]) {
            struct neb_segment_train *x = f->unused[c];
            f->unused[c] = x->next;
            neb__free(x);
        }
}

static uint32_t be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static void put_be16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

bool neb__segments_parse(struct neb_segment_train *f, uint32_t *dest)
{
    struct virtio_net_hdr h;
    const uint8_t *ip = f->data + NEB_SEGMENTS_PREFIX;
    if (f->len < NEB_SEGMENTS_PREFIX + 20) return false;
    memcpy(&h, f->data, sizeof h);
    uint32_t bytes = f->len - NEB_SEGMENTS_PREFIX, ihl = (ip[0] & 15u) * 4;
    if (ip[0] >> 4 != 4 || ihl < 20 || bytes < ihl) return false;
    uint32_t transport = ip[9] == 17 ? 8 : 0;
    if (ip[9] == 6 && bytes >= ihl + 20) transport = (ip[ihl + 12] >> 4) * 4u;
    f->packets = 1;
    f->payload = 0;
    f->headers = transport && bytes >= ihl + transport ? ihl + transport : 0;
    memcpy(dest, ip + 16, 4);
    *dest = ntohl(*dest);
    if ((h.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) == VIRTIO_NET_HDR_GSO_NONE) return true;
    if ((h.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) != VIRTIO_NET_HDR_GSO_TCPV4) return false;
    if (ip[9] != 6 || transport < 20 || !f->headers || !h.gso_size || bytes <= f->headers) return false;
    f->payload = h.gso_size;
    f->packets = (bytes - f->headers + h.gso_size - 1) / h.gso_size;
    return true;
}

uint32_t neb__segments_packet_bytes(const struct neb_segment_train *f, uint32_t index)
{
    uint32_t bytes = f->len - NEB_SEGMENTS_PREFIX;
    if (f->packets == 1) return bytes;
    uint32_t left = bytes - f->headers - index * f->payload;
    return f->headers + (left < f->payload ? left : f->payload);
}

uint8_t *neb__segments_payload(struct neb_segment_train *f, uint32_t index, uint32_t *bytes)
{
    *bytes = f->headers ? neb__segments_packet_bytes(f, index) - f->headers : 0;
    return f->data + NEB_SEGMENTS_PREFIX + f->headers + index * f->payload;
}

/* Returns the ones' complement sum of an even number of bytes, folded. */
static uint32_t sum16(const uint8_t *p, uint32_t n, uint32_t sum)
{
    for (uint32_t i = 0; i < n; i += 2) sum += be16(p + i);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static void cut_headers(const struct neb_segment_train *f, uint32_t first, uint32_t count, uint32_t bytes,
                        uint8_t *ip)
{
    uint32_t ihl = (ip[0] & 15u) * 4;
    uint8_t *tcp = ip + ihl;
    put_be16(ip + 2, f->headers + bytes);
    put_be16(ip + 4, be16(ip + 4) + first);
    put_be16(ip + 10, 0);
    put_be16(ip + 10, ~sum16(ip, ihl, 0));
    uint32_t seq;
    memcpy(&seq, tcp + 4, 4);
    seq = htonl(ntohl(seq) + first * f->payload);
    memcpy(tcp + 4, &seq, 4);
    if (first + count < f->packets) tcp[13] &= (uint8_t)~0x09; /* FIN, PSH */
    if (first > 0) tcp[13] &= (uint8_t)~0x80;                  /* CWR */
    put_be16(tcp + 16, sum16(ip + 12, 8, 6 + f->headers - ihl + bytes));
}

int neb__segments_cut(struct neb_segment_train *f, uint32_t first, uint32_t count, uint8_t *scratch,
                      struct iovec part[2])
{
    if (count == f->packets) {
        part[0] = (struct iovec){f->data, f->len};
        return 1;
    }
    uint32_t start = NEB_SEGMENTS_PREFIX + f->headers + first * f->payload, bytes = f->len - start;
    if (bytes > count * f->payload) bytes = count * f->payload;
    memcpy(scratch, f->data, NEB_SEGMENTS_PREFIX + f->headers);
    cut_headers(f, first, count, bytes, scratch + NEB_SEGMENTS_PREFIX);
    struct virtio_net_hdr h;
    memcpy(&h, scratch, sizeof h);
    h.hdr_len = (uint16_t)(NEB_SEGMENTS_ETHERNET + f->headers);
    if (count == 1) h.gso_type = VIRTIO_NET_HDR_GSO_NONE, h.gso_size = 0;
    memcpy(scratch, &h, sizeof h);
    part[0] = (struct iovec){scratch, NEB_SEGMENTS_PREFIX + f->headers};
    part[1] = (struct iovec){f->data + start, bytes};
    return 2;
}
