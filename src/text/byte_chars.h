/* byte_chars.h: bytes as printable characters: 33 to 126, 161 to 172 and 174 to 255 stand for themselves, the
 * others, in order, are U+0100 and on. */
#ifndef NEB_TEXT_BYTE_CHARS_H
#define NEB_TEXT_BYTE_CHARS_H

#include "base/buf.h"

int32_t neb__byte_char(int byte);

/* Appends the characters of the bytes (UTF-8). */
neb_status neb__byte_chars_encode(const char *text, size_t n, struct neb_buf *out);
/* Appends a piece's bytes. A piece with characters that stand for no byte is appended as it is written. */
neb_status neb__byte_chars_decode(const char *piece, size_t n, struct neb_buf *out);

/* Appends the bytes as text; those that are not UTF-8 become U+FFFD. */
neb_status neb__utf8_repair(const uint8_t *p, size_t n, struct neb_buf *out);

#endif
