/* line_reader.h: a text file line by line, whether plain or compressed (.gz, .xz, .zst, recognised by the
 * content, not by the name). A successful open owes a close. Memory is bounded for any file: a longer line is
 * cut at NEB_MAX_LINE, and the xz decoder may use 256 MiB at most. */
#ifndef NEB_TEXT_LINE_READER_H
#define NEB_TEXT_LINE_READER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { NEB_MAX_LINE = 1 << 20 };

struct neb_line_reader;

/* NEB_ERR_NOTFOUND, NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__line_reader_open(const char *path, struct neb_line_reader **out);
void neb__line_reader_close(struct neb_line_reader *l); /* NULL is fine */

/* The next line without its end (\n or \r\n), valid until the next call; a byte-order mark at the start is
 * dropped.
 *   NEB_OK            a line
 *   NEB_ERR_AGAIN     the end of the file (nothing is logged)
 *   NEB_ERR_CORRUPT   the compressed data is damaged or ends early
 *   NEB_ERR_IO */
neb_status neb__line_reader_next(struct neb_line_reader *l, const char **text, size_t *n);

int64_t neb__line_reader_number(const struct neb_line_reader *l); /* of the line given last; the first is 1 */
int64_t neb__line_reader_cut(const struct neb_line_reader *l);    /* lines that were too long */

#endif
