/* buf.c: the capped byte buffer. It grows by doubling up to `max`; printf keeps a terminating zero that is not
 * counted in len. */
#include "base/buf.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void neb__buf_init(struct neb_buf *b, size_t max)
{
    *b = (struct neb_buf){.max = max};
}

void neb__buf_free(struct neb_buf *b)
{
    neb__free(b->data);
    *b = (struct neb_buf){.max = b->max};
}

void neb__buf_clear(struct neb_buf *b)
{
    b->len = 0;
}

neb_status neb__buf_reserve(struct neb_buf *b, size_t n)
{
    if (n > b->max - b->len)
        return neb__quiet(NEB_ERR_NOSPACE, "buffer full: %zu of at most %zu bytes held, %zu more asked for",
                          b->len, b->max, n);
    if (b->cap - b->len >= n) return NEB_OK;
    size_t cap = b->cap ? b->cap : 256;
    while (cap - b->len < n) cap = cap > b->max / 2 ? b->max : cap * 2;
    uint8_t *p = neb__realloc(b->data, cap);
    if (!p) return neb__quiet(NEB_ERR_NOMEM, "out of memory for a buffer of %zu bytes", cap);
    b->data = p;
    b->cap = cap;
    return NEB_OK;
}

neb_status neb__buf_append(struct neb_buf *b, const void *p, size_t n)
{
    NEB_TRY(neb__buf_reserve(b, n));
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    return NEB_OK;
}

neb_status neb__buf_printf(struct neb_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    neb_status status = n < 0 ? NEB_ERR_INVALID : neb__buf_reserve(b, (size_t)n + 1);
    if (status == NEB_OK) {
        vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return status;
}
