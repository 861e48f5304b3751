/* fuzz_lab.c: what the laboratory reads: packets of a device (first byte even), and descriptions (odd). */
#include "net/lab/segments.h"
#include "net/lab/lab.h"
#include "base/mem.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void packet(const uint8_t *data, size_t size)
{
    struct neb_segment_train *f = neb__malloc(sizeof *f + size); /* no byte more than it has */
    uint32_t dest, bytes, sum = 0;
    uint8_t scratch[NEB_SEGMENTS_HEADERS];
    struct iovec part[2];
    if (!f) return;
    f->len = f->room = (uint32_t)size;
    memcpy(f->data, data, size);
    if (neb__segments_parse(f, &dest)) {
        for (uint32_t i = 0; i < f->packets; i++) {
            sum += neb__segments_packet_bytes(f, i) - (i ? f->headers : 0);
            neb__segments_payload(f, i, &bytes);
            int n = neb__segments_cut(f, i, 1, scratch, part);
            size_t total = part[0].iov_len + (n == 2 ? part[1].iov_len : 0);
            if (total != NEB_SEGMENTS_PREFIX + neb__segments_packet_bytes(f, i)) abort();
        }
        if (sum != size - NEB_SEGMENTS_PREFIX) abort(); /* every byte is in one packet */
    }
    neb__free(f);
}

static void description(const uint8_t *data, size_t size)
{
    struct neb_lab_config cfg;
    int64_t held = neb__mem_held();
    if (neb__lab_config_parse("input", data, size, &cfg) != NEB_OK) return;
    if (neb__lab_config_check(&cfg) != NEB_OK) abort(); /* what is loaded is allowed */
    neb__lab_config_free(&cfg);
    if (neb__mem_held() != held) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    neb_log_set_level(NEB_LOG_NONE);
    if (size < 1 || size > 60000) return 0;
    if (data[0] & 1)
        description(data + 1, size - 1);
    else
        packet(data + 1, size - 1);
    return 0;
}
