/* fuzz_status.c: any bytes as what a peer says of itself: as a status, or (first byte `n`) as the note of the version before.
 * What is kept has no control characters and becomes a message that is understood again. */
#include "watch/status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_text(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 32 || *c == 127 || (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct neb_site_status st = {.age = 7}, again = {0};
    if (!size) return 0;
    enum neb_status_keys kind = data[0] == 'n' ? NEB_STATUS_OLD_OUT : NEB_STATUS_OLD_SITE;
    if (!neb__status_hear(data + 1, size - 1, kind, &st)) return 0;
    const char *texts[] = {st.name, st.job,  st.strategy, st.role, st.state,  st.session,
                           st.note, st.root, st.rung,     st.pace, st.reason, NULL};
    for (int i = 0; texts[i]; i++) check_text(texts[i]);
    if (st.age != 7 || st.step < 0 || st.until < 0 || !isfinite(st.loss)) abort();
    char *text = neb__status_message(&st);
    if (!text || strlen(text) > NEB_STATUS_BYTES) abort();
    if (!neb__status_hear(text, strlen(text), NEB_STATUS_OLD_SITE, &again)) abort();
    if (strcmp(st.reason, again.reason) || st.record != again.record || st.leader != again.leader) abort();
    free(text);
    return 0;
}
