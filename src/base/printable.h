/* printable.h (internal): text from outside, made safe for a terminal. */
#ifndef NEB_BASE_PRINTABLE_H
#define NEB_BASE_PRINTABLE_H

/* Puts `?` in the place of every byte that could drive a terminal or mislead its reader: control characters
 * (of ASCII, and U+0080 to U+009F), characters that change the direction of writing or are invisible, and
 * bytes that are not UTF-8. */
void neb__text_clean(char *text);

#endif
