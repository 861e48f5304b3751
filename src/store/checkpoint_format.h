/* checkpoint_format.h: the bytes of a checkpoint, version 1. Little-endian.
 *
 *     0  magic "NEBCKPT\n"            32  SHA-256 of the model's names and shapes
 *     8  u32 version                  64  u32 CRC-32C of the table
 *    12  u32 sections                 68  u32 CRC-32C of the 68 bytes before
 *    16  u64 step                     72  zero to 128
 *    24  u64 length of the file
 *   128  table, 96 bytes a section: name (64, zero-filled), u64 offset, u64 size, u32 CRC-32C, zero
 *        sections, each at a multiple of 64 bytes, zero between them; the file ends with the last one
 */
#ifndef NEB_STORE_CHECKPOINT_FORMAT_H
#define NEB_STORE_CHECKPOINT_FORMAT_H

enum { NEB_CKPT_VERSION = 1, NEB_CKPT_HEAD = 128, NEB_CKPT_ENTRY = 96, NEB_CKPT_ALIGN = 64 };
#define NEB_CKPT_MAGIC "NEBCKPT\n"

#endif
