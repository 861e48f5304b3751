/* crc32c.c: CRC-32C, reflected polynomial 0x82F63B78, by the CPU's instruction where it has one (SSE 4.2), else by
 * eight tables of 256 entries (slicing by eight; Kounavis and Berry 2005). The tables are made on first use. */
#include "base/crc32c.h"
#include "base/bytes.h"

#include <pthread.h>

static uint32_t tables[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
        tables[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            tables[t][i] = tables[t - 1][i] >> 8 ^ tables[0][tables[t - 1][i] & 255];
}

uint32_t neb__crc32c_portable(uint32_t crc, const void *data, size_t n)
{
    pthread_once(&once, make_tables);
    const uint8_t *p = data;
    crc = ~crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t a = crc ^ neb__get32(p), b = neb__get32(p + 4);
        crc = tables[7][a & 255] ^ tables[6][a >> 8 & 255] ^ tables[5][a >> 16 & 255] ^ tables[4][a >> 24] ^
              tables[3][b & 255] ^ tables[2][b >> 8 & 255] ^ tables[1][b >> 16 & 255] ^ tables[0][b >> 24];
    }
    for (; n; n--) crc = crc >> 8 ^ tables[0][(crc ^ *p++) & 255];
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t c = ~crc;
    for (; n >= 8; n -= 8, p += 8) c = __builtin_ia32_crc32di(c, neb__get64(p));
    for (; n; n--) c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
    return ~(uint32_t)c;
}

uint32_t neb__crc32c(uint32_t crc, const void *p, size_t n)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, p, n) : neb__crc32c_portable(crc, p, n);
}
#else
uint32_t neb__crc32c(uint32_t crc, const void *p, size_t n)
{
    return neb__crc32c_portable(crc, p, n);
}
#endif
