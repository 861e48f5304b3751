/* unnamed.h (internal): updates of other sites on disk that no record names yet. The driver's alone. */
#ifndef NEB_RUN_UNNAMED_H
#define NEB_RUN_UNNAMED_H

#include "run/session.h"

/* Notes an update of another site that was stored. NEB_ERR_NOMEM */
neb_status neb__unnamed_add(neb_session *s, const struct neb_update_header *h, const struct neb_hash *hash);
/* Whether the author of this update may have one more. Forgets first what a record names by now, and removes
 * what none can name any more. */
bool neb__unnamed_has_room(neb_session *s, const struct neb_update_header *h);
/* Its base lies so far ahead of the log that no record can name it soon. */
bool neb__unnamed_is_ahead(const neb_session *s, const struct neb_update_header *h);
void neb__unnamed_free(neb_session *s);

#endif
