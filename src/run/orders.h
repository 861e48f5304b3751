/* orders.h: how an order gets from an operator's command line into a running site: as a file in the folder
 * run/orders of a site, which its process looks into every second. One that is carried out is removed; one
 * that is not meant for this run becomes NAME.refused, one that came too late NAME.late: it may be signed
 * again. */
#ifndef NEB_RUN_ORDERS_H
#define NEB_RUN_ORDERS_H

#include "base/buf.h"
#include "round/order.h"

/* An order, and with it the epoch of the links' roster that a new member needs, or that shuts a removed one
 * out. */
struct neb_order_file {
    struct neb_order order;
    const uint8_t *epoch; /* as neb__chain_extend() takes it; points into the file's bytes */
    size_t epoch_size;    /* 0: none */
};

enum { NEB_ORDER_FILE_MAX = 320 << 10 };

/* Whole or not at all; `path` gets its name. NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_NOMEM. */
neb_status neb__order_file_write(const char *site_folder, const struct neb_order_file *f, char *path,
                                 size_t size);
bool neb__order_file_read(const uint8_t *bytes, size_t n,
                          struct neb_order_file *out); /* false: no such file */

#endif
