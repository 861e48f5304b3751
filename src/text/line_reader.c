/* line_reader.c: reading text through zlib, liblzma or zstd, one line at a time.
 *
 * A source fills a fixed block of decoded bytes; the line reader walks that block and copies a line only when
 * it crosses a block's end. Concatenated members (as pigz and `cat a.gz b.gz` make) are read through to the
 * last. A compressed file that ends in the middle of a member counts as damaged. */
#include "text/line_reader.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <lzma.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { BLOCK = 1 << 18, LZMA_MEMORY = 256 << 20 };

struct neb_line_reader {
    int fd;
    char *path;
    /* compressed bytes */
    uint8_t *raw;
    size_t raw_at, raw_len;
    bool raw_end, member_done; /* no compressed bytes are left; the reader is between two members */
    neb_status (*fill)(struct neb_line_reader *l);
    z_stream z;
    lzma_stream x;
    ZSTD_DStream *zstd;
    /* decoded bytes */
    uint8_t *block;
    size_t at, len;
    bool end;
    /* the line that crosses blocks */
    struct neb_buf carry;
    bool skipping; /* the rest of a line that was cut */
    int64_t number, cut;
};

static neb_status damaged(const struct neb_line_reader *l, const char *why)
{
    return neb__fail(NEB_ERR_CORRUPT, "%s: the compressed data is damaged (%s)", l->path, why);
}

/* Reads compressed (or plain) bytes into `to`. */
static neb_status read_some(struct neb_line_reader *l, uint8_t *to, size_t cap, size_t *n)
{
    for (;;) {
        ssize_t r = read(l->fd, to, cap);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return neb__fail(NEB_ERR_IO, "cannot read %s: %s", l->path, strerror(errno));
        *n = (size_t)r;
        return NEB_OK;
    }
}

static neb_status want_raw(struct neb_line_reader *l)
{
    if (l->raw_at < l->raw_len || l->raw_end) return NEB_OK;
    l->raw_at = 0;
    NEB_TRY(read_some(l, l->raw, BLOCK, &l->raw_len));
    l->raw_end = !l->raw_len;
    return NEB_OK;
}

static neb_status fill_plain(struct neb_line_reader *l)
{
    if (l->raw_at < l->raw_len) { /* bytes that were read to recognise the format */
        memcpy(l->block, l->raw, l->len = l->raw_len);
        l->raw_at = l->raw_len;
        return NEB_OK;
    }
    NEB_TRY(read_some(l, l->block, BLOCK, &l->len));
    l->end = !l->len;
    return NEB_OK;
}

static neb_status fill_gz(struct neb_line_reader *l)
{
    while (!l->len && !l->end) {
        NEB_TRY(want_raw(l));
        if (l->raw_end) {
            if (!l->member_done) return damaged(l, "it ends early");
            l->end = true;
            break;
        }
        if (l->member_done && inflateReset(&l->z) != Z_OK) return damaged(l, "gzip state");
        l->member_done = false;
        l->z.next_in = l->raw + l->raw_at;
        l->z.avail_in = (uInt)(l->raw_len - l->raw_at);
        l->z.next_out = l->block;
        l->z.avail_out = BLOCK;
        int r = inflate(&l->z, Z_NO_FLUSH);
        l->raw_at = l->raw_len - l->z.avail_in;
        l->len = BLOCK - l->z.avail_out;
        l->member_done = r == Z_STREAM_END;
        if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR)
            return damaged(l, l->z.msg ? l->z.msg : "gzip");
    }
    return NEB_OK;
}

static neb_status fill_xz(struct neb_line_reader *l)
{
    while (!l->len && !l->end) {
        NEB_TRY(want_raw(l));
        l->x.next_in = l->raw + l->raw_at;
        l->x.avail_in = l->raw_len - l->raw_at;
        l->x.next_out = l->block;
        l->x.avail_out = BLOCK;
        lzma_ret r = lzma_code(&l->x, l->raw_end ? LZMA_FINISH : LZMA_RUN);
        l->raw_at = l->raw_len - l->x.avail_in;
        l->len = BLOCK - l->x.avail_out;
        l->end = r == LZMA_STREAM_END && !l->len;
        if (r == LZMA_MEMLIMIT_ERROR)
            return neb__fail(NEB_ERR_LIMIT, "%s needs more than %d MiB to decompress", l->path,
                             LZMA_MEMORY >> 20);
        if (r == LZMA_BUF_ERROR && l->raw_end) return damaged(l, "it ends early");
        if (r != LZMA_OK && r != LZMA_STREAM_END) return damaged(l, "xz");
    }
    return NEB_OK;
}

static neb_status fill_zstd(struct neb_line_reader *l)
{
    while (!l->len && !l->end) {
        NEB_TRY(want_raw(l));
        if (l->raw_end) {
            if (!l->member_done) return damaged(l, "it ends early");
            l->end = true;
            break;
        }
        ZSTD_inBuffer in = {l->raw, l->raw_len, l->raw_at};
        ZSTD_outBuffer out = {l->block, BLOCK, 0};
        size_t r = ZSTD_decompressStream(l->zstd, &out, &in);
        if (ZSTD_isError(r)) return damaged(l, ZSTD_getErrorName(r));
        l->raw_at = in.pos;
        l->len = out.pos;
        l->member_done = r == 0;
    }
    return NEB_OK;
}

static neb_status choose(struct neb_line_reader *l)
{
    NEB_TRY(want_raw(l));
    const uint8_t *p = l->raw;
    l->fill = fill_plain;
    if (l->raw_len >= 2 && p[0] == 0x1F && p[1] == 0x8B) {
        l->fill = fill_gz;
        if (inflateInit2(&l->z, 15 + 16) != Z_OK) return neb__fail(NEB_ERR_NOMEM, "out of memory for zlib");
    } else if (l->raw_len >= 6 && !memcmp(p, "\xFD\x37zXZ", 6)) {
        l->fill = fill_xz;
        if (lzma_stream_decoder(&l->x, LZMA_MEMORY, LZMA_CONCATENATED) != LZMA_OK)
            return neb__fail(NEB_ERR_NOMEM, "out of memory for liblzma");
    } else if (l->raw_len >= 4 && neb__get32(p) == ZSTD_MAGICNUMBER) {
        l->fill = fill_zstd;
        if (!(l->zstd = ZSTD_createDStream())) return neb__fail(NEB_ERR_NOMEM, "out of memory for zstd");
    }
    return NEB_OK;
}

neb_status neb__line_reader_open(const char *path, struct neb_line_reader **out)
{
    struct neb_line_reader *l = NEB_NEW(struct neb_line_reader);
    if (!l) return neb__fail(NEB_ERR_NOMEM, "not enough memory to read %s", path);
    neb_status status = NEB_ERR_NOMEM;
    neb__buf_init(&l->carry, NEB_MAX_LINE);
    l->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (l->fd < 0) {
        status = neb__fail(errno == ENOENT ? NEB_ERR_NOTFOUND : NEB_ERR_IO, "cannot open %s: %s", path,
                           strerror(errno));
        goto fail;
    }
    l->path = neb__strdup(path);
    l->raw = neb__malloc(BLOCK);
    l->block = neb__malloc(BLOCK);
    if (!l->path || !l->raw || !l->block) {
        neb__fail(status, "not enough memory to read %s", path);
        goto fail;
    }
    NEB_TRY_GOTO(status, choose(l), fail);
    *out = l;
    return NEB_OK;
fail:
    neb__line_reader_close(l);
    return status;
}

void neb__line_reader_close(struct neb_line_reader *l)
{
    if (!l) return;
    if (l->fill == fill_gz) inflateEnd(&l->z);
    lzma_end(&l->x);
    ZSTD_freeDStream(l->zstd);
    if (l->fd >= 0) close(l->fd);
    neb__buf_free(&l->carry);
    neb__free(l->raw);
    neb__free(l->block);
    neb__free(l->path);
    neb__free(l);
}

int64_t neb__line_reader_number(const struct neb_line_reader *l)
{
    return l->number;
}

int64_t neb__line_reader_cut(const struct neb_line_reader *l)
{
    return l->cut;
}

static neb_status give(struct neb_line_reader *l, const uint8_t *p, size_t len, const char **text, size_t *n)
{
    if (!l->number++ && len >= 3 && !memcmp(p, "\xEF\xBB\xBF", 3)) p += 3, len -= 3;
    if (len && p[len - 1] == '\r') len--;
    *text = (const char *)p;
    *n = len;
    return NEB_OK;
}

/* Takes `len` decoded bytes of an unfinished line; past the limit the rest of the line is skipped. */
static neb_status carry_on(struct neb_line_reader *l, const uint8_t *p, size_t len)
{
    if (l->skipping) return NEB_OK;
    size_t room = NEB_MAX_LINE - l->carry.len;
    if (len > room) {
        l->skipping = true;
        l->cut++;
        len = room;
    }
    return neb__buf_append(&l->carry, p, len);
}

neb_status neb__line_reader_next(struct neb_line_reader *l, const char **text, size_t *n)
{
    bool begun = false;
    neb__buf_clear(&l->carry);
    l->skipping = false;
    for (;;) {
        if (l->at == l->len) {
            l->at = l->len = 0;
            NEB_TRY(l->fill(l));
            if (l->end && !begun) return NEB_ERR_AGAIN;
            if (l->end) return give(l, l->carry.data, l->carry.len, text, n);
        }
        const uint8_t *p = l->block + l->at, *stop = memchr(p, '\n', l->len - l->at);
        size_t len = stop ? (size_t)(stop - p) : l->len - l->at;
        l->at += len + (stop != NULL);
        if (stop && !begun) return give(l, p, len, text, n);
        begun = true;
        NEB_TRY(carry_on(l, p, len));
        if (stop) return give(l, l->carry.data, l->carry.len, text, n);
    }
}
