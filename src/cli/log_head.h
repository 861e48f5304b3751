/* log_head.h: where the log of the run in a site's folder ends. */
#ifndef NEB_CLI_LOG_HEAD_H
#define NEB_CLI_LOG_HEAD_H

#include "seal/rekey.h"

/* As the site last wrote it. index 0: the site has been in no run. */
void neb__log_head(const char *dir, struct neb_rekey_head *out);

#endif
