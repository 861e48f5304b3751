/* crc32c.h: CRC-32C (Castagnoli), the checksum of stored files. It finds torn writes and flipped bits, but no attacker. */
#ifndef NEB_BASE_CRC32C_H
#define NEB_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) over n bytes: crc32c(crc32c(0, a), b) is that of a and b together. */
uint32_t neb__crc32c(uint32_t crc, const void *p, size_t n);

/* The portable form, which the other one is tested against. */
uint32_t neb__crc32c_portable(uint32_t crc, const void *p, size_t n);

/* As TensorFlow's record files want it: a checksum of bytes that hold checksums. */
static inline uint32_t neb__crc32c_masked(const void *p, size_t n)
{
    uint32_t c = neb__crc32c(0, p, n);
    return (c >> 15 | c << 17) + 0xA282EAD8u;
}

#endif
