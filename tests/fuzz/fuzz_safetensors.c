/* fuzz_safetensors.c: any bytes as a safetensors file. What is accepted must be readable to its last element. */
#include "base/mem.h"
#include "store/safetensors.h"

#include <nebula/log.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_st *st;
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    if (neb__st_open_bytes(data, size, &st) == NEB_OK) {
        uint64_t total = 0;
        for (int i = 0; i < neb__st_count(st); i++) {
            const struct neb_st_tensor *t = neb__st_at(st, i);
            float *out = malloc(4 * t->size + 4);
            if (out) neb__st_to_f32(t, out);
            free(out);
            total += t->size;
            if (!neb__st_find(st, t->name)) abort();
        }
        if (total > size) abort();
        neb__st_meta(st, "format");
        neb__st_close(st);
    }
    if (neb__mem_held() != held) abort();
    return 0;
}
