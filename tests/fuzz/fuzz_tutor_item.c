/* fuzz_tutor_item.c: what a teacher's site sends about a batch. The input stands behind the head of an item, which is made to fit,
 * so that everything after it is reached: no byte read too far, no token outside the vocabulary, nothing left allocated. */
#include "base/bytes.h"
#include "base/mem.h"
#include "split/tutor_item.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEQS = 9, ROWS = 40, K = 4, WIDTH = 12, VOCAB = 300, HEAD = 8 };

static struct neb_tutor_plan plan;
static struct neb_tutor_seq seq[SEQS];

static void set_up(void)
{
    neb_log_set_level(NEB_LOG_NONE);
    plan = (struct neb_tutor_plan){.seq = seq, .seqs = SEQS, .room = SEQS, .check = 7};
    for (int q = 0; q < SEQS; q++)
        seq[q] = (struct neb_tutor_seq){.first = 4 * q, .count = q % 5, .row = 4 * q, .rows = 4};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int32_t ids[ROWS * K];
    static float logits[ROWS * K], hidden[ROWS * WIDTH];
    const struct neb_tutor_room room = {ids, logits, hidden};
    if (!plan.seq) set_up();
    if (!size || size > 1 << 16) return 0;
    int64_t held = neb__mem_held();
    struct neb_tutor_shape shape = {data[0] & 1 ? K : 0, data[0] & 2 ? WIDTH : 0, VOCAB};
    uint8_t *item = neb__malloc(HEAD + size - 1);
    if (!item) return 0;
    neb__put32(item, plan.check);
    neb__put32(item + 4, SEQS);
    memcpy(item + HEAD, data + 1, size - 1);
    memset(ids, 0, sizeof ids);
    neb_status status = neb__tutor_item_decode(&shape, &plan, item, HEAD + size - 1, &room);
    for (int i = 0; status == NEB_OK && i < ROWS * K; i++)
        if (ids[i] < 0 || ids[i] >= VOCAB) abort();
    neb__free(item);
    if (neb__mem_held() != held) abort();
    return 0;
}
