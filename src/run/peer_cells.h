/* peer_cells.h (internal): cells of the outer state that go to a site that lacks them, and come to this one.
 * All of it is the driver's alone. */
#ifndef NEB_RUN_PEER_CELLS_H
#define NEB_RUN_PEER_CELLS_H

#include "run/session.h"

/* A cell that came, until the core says whether it is installed. */
struct neb_fetched_cell {
    uint64_t
        asked; /* bits of the sites that were asked for it and have not given one since; a late one is welcome */
    uint64_t version, index;
    float *theta, *m; /* one block */
    struct neb_norms norms;
};

neb_status neb__fetched_open(neb_session *s, size_t cells);
void neb__fetched_close(neb_session *s, size_t cells);

void neb__session_serve_cell(neb_session *s, uint16_t peer, uint32_t cell);
void neb__session_ask_cell(neb_session *s, uint16_t peer, uint32_t cell);
void neb__session_cell(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n);
void neb__session_install(neb_session *s, const struct neb_action *a);

#endif
