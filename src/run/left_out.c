/* left_out.c: what an update did not say, kept on disk beside it.
 *
 * A site that is killed between two checkpoints comes back with its newest updates: their code is what the
 * delta was, and the residual r, what the code left out, would be lost with the live model. So r goes to disk
 * when the update is made, coded in 4 bits a value: an eighth of its size, with an error of about a tenth. It
 * is written over the file of the fragment without a sync: it may be torn or lost in a crash (the checksum
 * tells: a quick one, taken while a cell is in the cache, since nobody but this site's own disk has had it),
 * and is used only under the number of the update it belongs to. A residual of zeros, as that of the exact
 * rung, needs no file.
 *
 *     residual-<first cell>: u64 k, u32 CRC-32C of the rest, then the code of each cell (codec.h), whose
 *     length follows from its values */
#include "run/session.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

enum { HEAD = 12 };

static const struct neb_rung *rung(void)
{
    return neb__rung_by_name("int4");
}

void neb__left_out_begin(struct neb_left_out *l, uint64_t k)
{
    uint8_t head[HEAD] = {0};
    neb__put64(head, k);
    neb__buf_clear(&l->coded);
    l->crc = 0;
    (void)neb__buf_append(&l->coded, head, sizeof head);
}

void neb__left_out_add(struct neb_left_out *l, const float *r, size_t n)
{
    struct neb_codec_input in = {.z = r, .n = n};
    size_t at = l->coded.len;
    if (!at) return;
    if (neb__codec_encode(rung(), &in, NULL, NULL, &l->coded) != NEB_OK) {
        neb__buf_clear(&l->coded); /* none is better than one with a gap */
        return;
    }
    l->crc = neb__crc32c(l->crc, l->coded.data + at, l->coded.len - at);
}

void neb__left_out_end(struct neb_left_out *l, struct neb_disk *disk, uint32_t c0)
{
    char name[32];
    snprintf(name, sizeof name, "residual-%u", c0);
    if (l->coded.len <= HEAD) return;
    neb__put32(l->coded.data + 8, l->crc);
    (void)neb__disk_overwrite(disk, name, l->coded.data, l->coded.len);
}

void neb__left_out_restore(neb_session *s, uint32_t c0, uint32_t c1, uint64_t k, float *out)
{
    struct neb_buf b;
    char name[32];
    size_t first, n = neb__mirror_range(&s->mirror, c0, c1, &first), at = HEAD;
    snprintf(name, sizeof name, "residual-%u", c0);
    neb__buf_init(&b, 2 * n + 4096 * (size_t)(c1 - c0));
    bool ok = neb__disk_load(&s->disk, name, &b) == NEB_OK && b.len >= HEAD && neb__get64(b.data) == k &&
              neb__get32(b.data + 8) == neb__crc32c(0, b.data + HEAD, b.len - HEAD);
    for (uint32_t c = c0; ok && c < c1; c++) {
        size_t cell, values = neb__outer_cell(s->mirror.outer, c, &cell),
                     size = neb__codec_bound(rung(), values);
        ok = b.len - at >= size &&
             neb__codec_decode(b.data + at, size, NULL, values, out + (cell - first)) == NEB_OK;
        at += size;
    }
    if (!ok) memset(out, 0, n * sizeof *out);
    neb__buf_free(&b);
}
