/* orders.h: an order goes from an operator's command line to a running site as a file.
 *
 * The site's process looks into its folder run/orders every second. It removes an order that is carried out.
 * It renames an order that is not meant for this run to NAME.refused, and one that came too late to
 * NAME.late: that order may be signed again. */
#ifndef NEB_RUN_ORDERS_H
#define NEB_RUN_ORDERS_H

#include "base/buf.h"
#include "round/order.h"

/* An order, and the epoch of the links' roster that lets a new member in or shuts a removed one out. */
struct neb_order_file {
    struct neb_order order;
    const uint8_t *epoch; /* as neb__chain_extend() takes it; points into the file's bytes */
    size_t epoch_size;    /* 0: none */
};

enum { NEB_ORDER_FILE_MAX = 320 << 10 };

/* Writes the file whole or not at all; `path` gets its name. NEB_ERR_INVALID (the path is too long),
 * NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_NOMEM. */
neb_status neb__order_file_write(const char *site_folder, const struct neb_order_file *f, char *path,
                                 size_t size);
neb_status neb__order_file_save(const char *path, const struct neb_order_file *f); /* to this very file */
bool neb__order_file_read(const uint8_t *bytes, size_t n,
                          struct neb_order_file *out); /* false: not an order file */

#endif
