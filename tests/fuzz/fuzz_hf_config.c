/* fuzz_hf_config.c: any bytes as a config.json. What is accepted must be a model that can be written out and read again. */
#include "base/mem.h"
#include "task/hf.h"

#include <nebula/log.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t held = neb__mem_held();
    struct neb_model_yaml f;
    struct neb_hf_config c, again;
    struct neb_model_config m;
    neb_log_set_level(NEB_LOG_NONE);
    if (neb__model_yaml_init(&f) != NEB_OK) abort();
    if (neb__hf_config_read((const char *)data, size, &f.model, &c) == NEB_OK) {
        struct neb_buf out;
        neb__buf_init(&out, 1 << 20);
        if (neb__hf_config_write(&f, c.kind, NULL, NULL, NEB_ST_F32, &out) == NEB_OK) {
            if (neb__model_config_init(NULL, &m) != NEB_OK) abort();
            if (neb__hf_config_read((const char *)out.data, out.len, &m, &again) != NEB_OK) abort();
            if (again.kind != c.kind || m.hidden != f.model.hidden || m.layers != f.model.layers) abort();
            neb__model_config_free(&m);
        }
        neb__buf_free(&out);
    }
    neb__model_yaml_free(&f);
    if (neb__mem_held() != held) abort();
    return 0;
}
