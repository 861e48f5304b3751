/* fuzz_stage_item.c: items from the neighbour of a stage. The first byte chooses what is due: a run of one or two parts, sums, an
 * outline or parameters. Then items follow, each behind its length; the first bits of a length byte say whether its head is made to
 * fit. Never more is kept than is due, and nothing is left allocated. */
#include "base/bytes.h"
#include "base/mem.h"
#include "split/stage_message.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIDTH = 12, STAGES = 3, MOST = 4096 };

static const struct neb_stage_message runs[] = {
    {.run = NEB_STAGE_TRAINS, .number = 1, .check = 9, .parts = 1, .part = {{4, 3}}, .width = WIDTH},
    {.run = NEB_STAGE_EVALUATES, .check = 9, .parts = 2, .part = {{5, 5}, {2, 0}}, .width = WIDTH},
};

static struct neb_stage_due due_of(uint8_t choice)
{
    switch (choice % 5) {
    case 0:
    case 1: return neb__stage_due_run(&runs[choice % 5]);
    case 2:
        return (struct neb_stage_due){.kind = NEB_STAGE_ITEM_SUMS,
                                      .most = STAGES * sizeof(struct neb_stage_row)};
    case 3: return (struct neb_stage_due){.kind = NEB_STAGE_ITEM_OUTLINE, .most = 256, .pieces = 3};
    default:
        return (struct neb_stage_due){
            .kind = NEB_STAGE_ITEM_VALUES, .or_kind = NEB_STAGE_ITEM_END, .most = 64};
    }
}

static void use(uint8_t choice, const struct neb_stage_head *head, const uint8_t *bytes, size_t n)
{
    static float values[8 * WIDTH];
    struct neb_stage_row table[STAGES] = {0};
    struct neb_stage_sums total;
    const bool lines = choice & 0x80;
    if (choice % 5 < 2 && !head->bad) (void)neb__stage_run_decode(&runs[choice % 5], "b", bytes, n, values);
    if (choice % 5 != 2 || neb__stage_rows_decode("b", bytes, n, STAGES, lines, 1, STAGES, table) != NEB_OK)
        return;
    neb__stage_sums_total(table, STAGES, &total);
    if (total.norm2 < 0 || !(total.nonfinite >= 0)) abort();
}

/* The head of an item as it should be; its second byte says how many items follow. */
static void mend(const struct neb_stage_due *due, uint8_t *item)
{
    const struct neb_stage_item_head h = {
        {due->kind, item[5] & 1, due->number, due->check}, 1, false, false, item[6] % 4};
    neb__stage_head_write(&h, item);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    neb_log_set_level(NEB_LOG_NONE);
    if (!size || size > MOST) return 0;
    const int64_t held = neb__mem_held();
    const uint8_t choice = data[0];
    const struct neb_stage_due due = due_of(choice);
    struct neb_stage_inbox in = {0};
    neb__buf_init(&in.bytes, MOST * 4);
    struct neb_reader r = {data + 1, size - 1, false};
    for (neb_status status = NEB_OK; status == NEB_OK && r.left >= 2;) {
        const uint16_t word = neb__read16(&r);
        const size_t n = word & 0x7FF;
        const uint8_t *from = neb__read(&r, n), *bytes;
        uint8_t *item =
            from ? neb__malloc(n ? n : 1) : NULL; /* of its size, so that a byte read too far is seen */
        size_t length;
        if (!item) break;
        memcpy(item, from, n);
        if (word & 0x8000 && n >= NEB_STAGE_HEAD) mend(&due, item);
        status = neb__stage_inbox_add(&in, &due, "b", item, n, &bytes, &length);
        if (in.bytes.len > due.most) abort();
        if (status == NEB_OK && bytes && length > due.most) abort();
        if (status == NEB_OK && bytes) use(choice, &in.head, bytes, length);
        neb__free(item);
    }
    neb__buf_free(&in.bytes);
    if (neb__mem_held() != held) abort();
    return 0;
}
