/* gate_journal.c: one file of entries, and the places in it where checkpoints were ordered: see gate_journal.h. */
#include "train/gate_journal.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COPY = 1 << 20 };

neb_status neb__gate_journal_open(struct neb_gate_journal *j, const char *out)
{
    char path[PATH_MAX];
    *j = (struct neb_gate_journal){.fd = -1};
    if (snprintf(path, sizeof path, "%s/ranks", out) >= (int)sizeof path - 16)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", out);
    NEB_TRY(neb__file_make_dir(path, 0700));
    snprintf(path + strlen(path), 16, "/journal");
    j->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (j->fd < 0) return neb__fail(NEB_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    unlink(path); /* it ends with this process */
    return NEB_OK;
}

void neb__gate_journal_close(struct neb_gate_journal *j)
{
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static bool put(struct neb_gate_journal *j, const void *bytes, size_t n)
{
    const char *p = bytes;
    while (n) {
        ssize_t done = pwrite(j->fd, p, n, (off_t)j->end);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        p += done, n -= (size_t)done, j->end += done;
    }
    return true;
}

static void append(struct neb_gate_journal *j, const struct neb_gate_entry *e, const float *values)
{
    int64_t before = j->end;
    if (j->broken != NEB_OK) return;
    if (put(j, e, sizeof *e) && put(j, values, values ? e->n * sizeof *values : 0)) return;
    neb__warn(
        "the journal of the ranks cannot be written (%s): a rank that is lost before the next checkpoint "
        "ends this start",
        strerror(errno));
    j->end = before;
    j->broken = NEB_ERR_IO;
}

void neb__gate_journal_step(struct neb_gate_journal *j, const struct neb_gate_entry *step)
{
    struct neb_gate_entry e = *step;
    e.type = NEB_GATE_JOURNAL_STEP;
    e.first = e.n = 0;
    append(j, &e, NULL);
}

void neb__gate_journal_values(struct neb_gate_journal *j, const float *values, size_t first, size_t n)
{
    append(j, &(struct neb_gate_entry){.type = NEB_GATE_JOURNAL_VALUES, .first = first, .n = n},
           values + first);
}

void neb__gate_journal_mark(struct neb_gate_journal *j, int64_t step)
{
    if (j->marks && j->mark[j->marks - 1].step == step) j->marks--;
    if (j->marks == NEB_GATE_JOURNAL_MARKS) /* the first one stays: it is on disk */
        memmove(&j->mark[1], &j->mark[2], sizeof j->mark[0] * (size_t)(--j->marks - 1));
    if (j->broken != NEB_OK) { /* a checkpoint that comes now is a new beginning */
        j->marks = 0;
        j->end = 0;
        j->broken = NEB_OK;
    }
    j->mark[j->marks].step = step;
    j->mark[j->marks++].at = j->end;
}

bool neb__gate_journal_marked(const struct neb_gate_journal *j, int64_t step)
{
    for (int i = 0; i < j->marks; i++)
        if (j->mark[i].step == step) return true;
    return false;
}

/* Moves everything behind `from` to the beginning. */
static bool move_down(struct neb_gate_journal *j, int64_t from)
{
    char *bytes = neb__malloc(COPY);
    int64_t at = from;
    ssize_t n = 0;
    while (bytes && at < j->end && (n = pread(j->fd, bytes, COPY, (off_t)at)) > 0) {
        if (pwrite(j->fd, bytes, (size_t)n, (off_t)(at - from)) != n) break;
        at += n;
    }
    neb__free(bytes);
    return at == j->end && !ftruncate(j->fd, (off_t)(j->end - from));
}

void neb__gate_journal_durable(struct neb_gate_journal *j, int64_t step)
{
    int i = 0;
    while (i < j->marks && j->mark[i].step != step) i++;
    if (!i || i == j->marks) return;
    int64_t from = j->mark[i].at;
    j->marks -= i;
    memmove(&j->mark[0], &j->mark[i], sizeof j->mark[0] * (size_t)j->marks);
    if (!from) return;
    if (!move_down(j, from)) {
        j->broken = NEB_ERR_IO; /* half of it may be moved */
        neb__warn("the journal of the ranks cannot be written: %s", strerror(errno));
    }
    j->end -= from;
    for (i = 0; i < j->marks; i++) j->mark[i].at -= from;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

neb_status neb__gate_journal_seek(struct neb_gate_journal *j, int64_t step)
{
    for (int i = 0; i < j->marks && j->broken == NEB_OK; i++)
        if (j->mark[i].step == step) {
            j->at = j->mark[i].at;
            return NEB_OK;
        }
    return neb__fail(NEB_ERR_STATE,
                     "what came after the checkpoint of step %" PRId64
                     " cannot be repeated: start the site again, it goes on from there",
                     step);
}

static neb_status get(struct neb_gate_journal *j, void *bytes, size_t n)
{
    char *p = bytes;
    while (n) {
        ssize_t got = pread(j->fd, p, n, (off_t)j->at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return neb__fail(NEB_ERR_IO, "the journal of the ranks cannot be read");
        p += got, n -= (size_t)got, j->at += got;
    }
    return NEB_OK;
}

neb_status neb__gate_journal_next(struct neb_gate_journal *j, float *values, size_t room,
                                  struct neb_gate_entry *out, bool *more)
{
    *more = j->at < j->end;
    if (!*more) return NEB_OK;
    NEB_TRY(get(j, out, sizeof *out));
    if (out->type != NEB_GATE_JOURNAL_VALUES) return NEB_OK;
    if (out->first > room || out->n > room - out->first)
        return neb__fail(NEB_ERR_CORRUPT, "the journal of the ranks is damaged");
    return get(j, values + out->first, out->n * sizeof *values);
}
