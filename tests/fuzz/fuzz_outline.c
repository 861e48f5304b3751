/* fuzz_outline.c: outlines of batches, as a stage without text takes them from the stage before it. The first byte chooses the kind
 * of the batches. What is taken keeps every promise of a batch; nothing is left allocated. */
#include "base/mem.h"
#include "text/batch_outline.h"

#include <nebula/log.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TOKENS = 64, MAX_LEN = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum neb_batch_kind kinds[] = {NEB_BATCH_MLM, NEB_BATCH_CAUSAL, NEB_BATCH_PAIR};
    neb_log_set_level(NEB_LOG_NONE);
    if (!size || size > 1 << 16) return 0;
    const int64_t held = neb__mem_held();
    const enum neb_batch_kind kind = kinds[data[0] % 3];
    const struct neb_outline_room most = neb__outline_most(kind, TOKENS, MAX_LEN);
    struct neb_reader r = {data + 1, size - 1, false};
    struct neb_outline_head h;
    struct neb_batch *b = NULL;
    neb_status status = neb__outline_head_read(&r, kind, &most, &h);
    if (status == NEB_OK) status = neb__outline_batch_create(kind, &h.room, &b);
    for (int32_t i = 0; status == NEB_OK && i < h.batches; i++) {
        status = neb__outline_batch_read(&r, &h, b);
        if (status == NEB_OK && neb__batch_check(b, 1) != NEB_OK) abort();
    }
    if (status == NEB_OK) (void)neb__outline_end_read(&r);
    neb__batch_free(b);
    if (neb__mem_held() != held) abort();
    return 0;
}
