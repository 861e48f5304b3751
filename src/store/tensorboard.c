/* tensorboard.c: TensorBoard's event file: records of protocol-buffer messages.
 *
 *     record: u64 length | u32 masked CRC-32C of the length | bytes | u32 masked CRC-32C of the bytes
 *     Event: 1 wall_time double | 2 step int64 | 3 file_version string | 5 summary | 7 session_log
 *     Summary: repeated 1 Value;  Value: 1 tag string | 2 simple_value float
 *     SessionLog: 1 status (1 = START)
 *
 * The few fields needed are written by hand: a varint, a length-delimited field and two fixed-size ones.
 * Records that a flush cannot write are dropped, and the file is cut back to its last whole record, so that
 * it can be continued there when there is room again. */
#include "store/tensorboard.h"
#include "base/buf.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HELD = 1 << 20, FLUSH_AT = 1 << 15, MAX_TAG = 4096 };

struct neb_tensorboard {
    int fd;
    uint64_t written; /* whole records in the file */
    char path[PATH_MAX];
    struct neb_buf held;
};

struct message {
    uint8_t b[MAX_TAG + 256];
    size_t n;
};

static void put_varint(struct message *m, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) m->b[m->n++] = (uint8_t)(v | 0x80);
    m->b[m->n++] = (uint8_t)v;
}

static void put_key(struct message *m, int field, int wire)
{
    put_varint(m, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_double(struct message *m, int field, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, 1);
    neb__put64(m->b + m->n, bits);
    m->n += 8;
}

static void put_float(struct message *m, int field, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, 5);
    neb__put32(m->b + m->n, bits);
    m->n += 4;
}

static void put_bytes(struct message *m, int field, const void *p, size_t n)
{
    put_key(m, field, 2);
    put_varint(m, n);
    memcpy(m->b + m->n, p, n);
    m->n += n;
}

static neb_status put_record(struct neb_tensorboard *e, const struct message *m)
{
    uint8_t head[12], tail[4];
    neb__put64(head, m->n);
    neb__put32(head + 8, neb__crc32c_masked(head, 8));
    neb__put32(tail, neb__crc32c_masked(m->b, m->n));
    NEB_TRY(neb__buf_reserve(&e->held, sizeof head + m->n + sizeof tail));
    neb__buf_append(&e->held, head, sizeof head);
    neb__buf_append(&e->held, m->b, m->n);
    return neb__buf_append(&e->held, tail, sizeof tail);
}

static neb_status put_start(struct neb_tensorboard *e, int64_t resumed_at)
{
    static const char version[] = "brain.Event:2";
    struct message m = {.n = 0};
    put_double(&m, 1, (double)time(NULL));
    put_bytes(&m, 3, version, sizeof version - 1);
    NEB_TRY(put_record(e, &m));
    if (resumed_at < 0) return NEB_OK;
    m.n = 0;
    put_double(&m, 1, (double)time(NULL));
    put_key(&m, 2, 0);
    put_varint(&m, (uint64_t)resumed_at + 1); /* TensorBoard hides this step and all behind it */
    put_bytes(&m, 7, "\x08\x01", 2);
    return put_record(e, &m);
}

neb_status neb__tensorboard_open(const char *dir, int64_t resumed_at, struct neb_tensorboard **out)
{
    NEB_TRY(neb__file_make_dir(dir, 0700));
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    struct neb_tensorboard *e = NEB_NEW(struct neb_tensorboard);
    if (!e) return neb__fail(NEB_ERR_NOMEM, "no memory for an event file");
    neb__buf_init(&e->held, MAX_HELD);
    neb_status status = NEB_OK;
    e->fd = -1;
    for (int i = 0; e->fd < 0 && status == NEB_OK;
         i++) { /* several files of one second get different names */
        if (snprintf(e->path, sizeof e->path, "%s/events.out.tfevents.%lld.%s.%ld.%d", dir,
                     (long long)time(NULL), host, (long)getpid(), i) >= (int)sizeof e->path)
            status = neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
        else if ((e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0 &&
                 errno != EEXIST)
            status = neb__quiet(NEB_ERR_IO, "cannot create %s: %s", e->path, strerror(errno));
    }
    if (status == NEB_OK) status = put_start(e, resumed_at);
    if (status == NEB_OK) status = neb__tensorboard_flush(e);
    if (status != NEB_OK) {
        neb__buf_clear(&e->held);
        neb__tensorboard_close(e);
        return status;
    }
    *out = e;
    return NEB_OK;
}

neb_status neb__tensorboard_scalar(struct neb_tensorboard *e, int64_t step, double wall_time, const char *tag,
                                   double value)
{
    size_t n = strlen(tag);
    if (n > MAX_TAG) return neb__fail(NEB_ERR_INVALID, "a metric's name of %zu bytes is too long", n);
    struct message inner = {.n = 0}, summary = {.n = 0}, event = {.n = 0};
    put_bytes(&inner, 1, tag, n);
    put_float(&inner, 2, (float)value);
    put_bytes(&summary, 1, inner.b, inner.n);
    put_double(&event, 1, wall_time);
    put_key(&event, 2, 0);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.b, summary.n);
    NEB_TRY(put_record(e, &event));
    return e->held.len >= FLUSH_AT ? neb__tensorboard_flush(e) : NEB_OK;
}

neb_status neb__tensorboard_flush(struct neb_tensorboard *e)
{
    size_t at = 0;
    while (at < e->held.len) {
        ssize_t k = pwrite(e->fd, e->held.data + at, e->held.len - at, (off_t)(e->written + at));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break;
        at += (size_t)k;
    }
    int error = errno;
    bool whole = at == e->held.len;
    neb__buf_clear(&e->held);
    if (whole) {
        e->written += at;
        return NEB_OK;
    }
    if (ftruncate(e->fd, (off_t)e->written)) error = errno;
    return neb__quiet(error == ENOSPC || error == EDQUOT || error == EFBIG ? NEB_ERR_NOSPACE : NEB_ERR_IO,
                      "cannot write %s: %s", e->path, strerror(error));
}

neb_status neb__tensorboard_close(struct neb_tensorboard *e)
{
    if (!e) return NEB_OK;
    neb_status status = e->fd >= 0 ? neb__tensorboard_flush(e) : NEB_OK;
    if (e->fd >= 0) close(e->fd);
    neb__buf_free(&e->held);
    neb__free(e);
    return status;
}
