/* fuzz_catalogue.c: any bytes as a message catalogue. Every message becomes a tidy sentence and its normalised form, which
 * normalises to itself. */
#include "base/mem.h"
#include "text/catalogue.h"
#include "text/interface_text.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static neb_status use(void *arg, const char *english, const char *translation)
{
    char tidy[NEB_INTERFACE_TEXT], form[NEB_INTERFACE_FORM], again[NEB_INTERFACE_FORM];
    const char *const both[] = {english, translation};
    (void)arg;
    for (int i = 0; i < 2; i++) {
        if (!neb__interface_tidy(both[i], tidy)) continue;
        if (!*tidy || strchr(tidy, '\n') || strchr(tidy, '\t')) abort();
        if (neb__interface_normalise(tidy, form) != neb__interface_normalise(form, again)) abort();
    }
    return NEB_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    (void)neb__catalogue_read_bytes(data, size, use, NULL);
    if (neb__mem_held() != held) abort();
    return 0;
}
