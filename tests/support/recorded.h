/* recorded.h: bytes that an earlier version wrote, one sample a line of a text file: its name and its bytes in hexadecimal.
 *
 *     recorded_open(path);                       every sample of the file is to come
 *     recorded_is(name, bytes, n);               fails unless the file has these bytes under this name
 *     recorded_close();                          fails unless every sample came
 *
 * recorded_write() in the place of open makes such a file instead: with the version whose bytes are to be kept. */
#ifndef RECORDED_H
#define RECORDED_H

#include <stddef.h>
#include <stdint.h>

void recorded_open(const char *path);
void recorded_write(void); /* to the standard output */
void recorded_is(const char *name, const uint8_t *bytes, size_t n);
void recorded_close(void);

#endif
