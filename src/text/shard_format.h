/* shard_format.h: the bytes of a set of shards, version 1. All numbers little-endian.
 *
 *   DIR/set.neb      magic "NEBSET\r\n", u32 version, u32 shards, u64 generation,
 *                    u32 CRC-32C of the 24 bytes before
 *   DIR/GENERATION-NUMBER.tok (16 and 5 hexadecimal digits), one per shard:
 *       0  magic "NEBTOK\r\n"           40  u64 length of the file
 *       8  u32 version                  48  language of side 0, 16 bytes, zero-filled
 *      12  u16 sides (1, 2)             64  language of side 1
 *      14  u16 bytes per token (2, 4)   80  SHA-256 of the tokenizer's file
 *      16  u32 vocabulary              112  u32 CRC-32C of the tokens
 *      20  u32 number of this shard    116  u32 CRC-32C of the index
 *      24  u64 samples                 120  u32 zero
 *      32  u64 tokens                  124  u32 CRC-32C of the 124 bytes before
 *     128  tokens: sample after sample, its sides one after the other; zero-filled to a multiple of 4 bytes
 *          index: u32 (samples * sides + 1), the start of each text, counted in tokens; the last is `tokens`
 */
#ifndef NEB_TEXT_SHARD_FORMAT_H
#define NEB_TEXT_SHARD_FORMAT_H

#include "text/shard.h"

enum {
    NEB_SET_VERSION = 1,
    NEB_SET_BYTES = 28,
    NEB_SHARD_HEAD = 128,
    NEB_SHARD_MAX_TOKENS = 1 << 30,
    NEB_SHARD_MAX_TEXTS = 1 << 26,
    NEB_SET_MAX_SHARDS = 1 << 16,
};
#define NEB_SET_MAGIC   "NEBSET\r\n"
#define NEB_SHARD_MAGIC "NEBTOK\r\n"

struct neb_shard_head {
    struct neb_set_info info;
    int width;
    uint32_t number, crc_tokens, crc_index;
    uint64_t samples, tokens, length;
};

/* The index starts here. */
static inline uint64_t neb__shard_index_at(const struct neb_shard_head *h)
{
    return NEB_SHARD_HEAD + (h->tokens * (uint64_t)h->width + 3) / 4 * 4;
}

void neb__shard_head_put(const struct neb_shard_head *h, uint8_t out[NEB_SHARD_HEAD]);

/* Checks magic, version, checksum, every bound, and that the parts fill `file_length` exactly.
 *   NEB_ERR_CORRUPT, NEB_ERR_VERSION: not logged; the caller names the file */
neb_status neb__shard_head_get(const uint8_t *p, uint64_t file_length, struct neb_shard_head *out);

/* DIR/GENERATION-NUMBER.tok into `out` (PATH_MAX bytes). NEB_ERR_INVALID: too long. */
neb_status neb__shard_path(const char *dir, uint64_t generation, uint32_t number, char *out);

/* NEB_ERR_NOTFOUND: there is no set (not logged). */
neb_status neb__set_read(const char *dir, uint64_t *generation, uint32_t *shards);
neb_status neb__set_write(const char *dir, uint64_t generation, uint32_t shards);

#endif
