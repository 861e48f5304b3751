/* buf.h: a growable byte buffer that has its maximum from birth. A successful init owes a neb__buf_free(). */
#ifndef NEB_BASE_BUF_H
#define NEB_BASE_BUF_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct neb_buf {
    uint8_t *data;
    size_t len;
    size_t cap; /* bytes allocated */
    size_t max; /* never more than this */
};

/* Allocates nothing. */
void neb__buf_init(struct neb_buf *b, size_t max);
void neb__buf_free(struct neb_buf *b);
void neb__buf_clear(struct neb_buf *b); /* len = 0, the memory is kept */

/* Makes room for n more bytes behind len. NEB_ERR_NOSPACE: max would be exceeded; NEB_ERR_NOMEM. On an error the
 * buffer is unchanged. */
neb_status neb__buf_reserve(struct neb_buf *b, size_t n);
neb_status neb__buf_append(struct neb_buf *b, const void *p, size_t n);
neb_status neb__buf_printf(struct neb_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
