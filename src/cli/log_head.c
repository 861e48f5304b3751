/* log_head.c: the end of a log, from the status that a site leaves in its folder. An epoch that is signed while a run is under way
 * names a record of it. One that names none belongs to the beginning, which may not change under a run. */
#include "cli/log_head.h"
#include "base/mem.h"
#include "watch/status.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void neb__log_head(const char *dir, struct neb_rekey_head *out)
{
    char path[PATH_MAX];
    struct neb_status_file *f = NEB_NEW(struct neb_status_file);
    *out = (struct neb_rekey_head){0};
    bool read = f && snprintf(path, sizeof path, "%s/run/status.json", dir) < (int)sizeof path &&
                !access(path, F_OK) && neb__status_file_read(path, f) == NEB_OK;
    bool known = read && f->log.record > 0 && strlen(f->log.hash) == 2 * NEB_HASH_SIZE;
    for (int i = 0; known && i < NEB_HASH_SIZE; i++)
        known = sscanf(f->log.hash + 2 * i, "%2hhx", &out->hash.b[i]) == 1;
    if (known) out->index = (uint64_t)f->log.record;
    neb__free(f);
}
