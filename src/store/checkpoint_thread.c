/* checkpoint_thread.c: checkpoints written while training goes on.
 *
 * put() copies the sections into one block (kept and reused, so its size is that of the largest checkpoint)
 * and wakes the thread. One checkpoint is in flight at a time: a second put waits, because a queue would
 * only hold more memory while the disk is the bottleneck. A failed write is remembered in the report; the
 * files on disk stay as they are. */
#include "store/checkpoint.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct neb_ckpt_writer {
    char *dir;
    int keep;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, stop; /* busy: the fields below belong to the thread */
    struct neb_ckpt_id id;
    uint8_t *block;
    size_t block_cap;
    struct neb_ckpt_section *section;
    int sections, section_cap;
    struct neb_ckpt_report report;
};

static void write_one(struct neb_ckpt_writer *w)
{
    int64_t start = neb__now_ns();
    neb_status status = neb__ckpt_write(w->dir, &w->id, w->section, w->sections, w->keep);
    uint64_t bytes = 0;
    for (int i = 0; i < w->sections; i++) bytes += w->section[i].size;
    pthread_mutex_lock(&w->lock);
    struct neb_ckpt_report *r = &w->report;
    r->status = status;
    r->seconds = neb__seconds_since(start);
    r->bytes = bytes;
    if (status == NEB_OK) {
        r->written++;
        r->last_step = w->id.step;
        r->why[0] = 0;
    } else {
        r->failed++;
        snprintf(r->why, sizeof r->why, "%s", neb_last_error());
        neb__warn("the checkpoint of step %" PRId64 " was not written; training goes on", w->id.step);
    }
    pthread_mutex_unlock(&w->lock);
}

static void *run(void *arg)
{
    struct neb_ckpt_writer *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop || w->busy) {
        if (!w->busy) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        write_one(w);
        pthread_mutex_lock(&w->lock);
        w->busy = false;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Temporary files of a process that was killed while writing. */
static void sweep(const char *dir)
{
    DIR *d = opendir(dir);
    char path[PATH_MAX];
    for (struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (strncmp(e->d_name, "checkpoint-", 11) || n < 15 || strcmp(e->d_name + n - 4, ".tmp")) continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path) unlink(path);
    }
    if (d) closedir(d);
}

static void release(struct neb_ckpt_writer *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    for (int i = 0; i < w->section_cap; i++) neb__free((void *)(uintptr_t)w->section[i].name);
    neb__free(w->section);
    neb__free(w->block);
    neb__free(w->dir);
    neb__free(w);
}

neb_status neb__ckpt_writer_create(const char *dir, int keep, struct neb_ckpt_writer **out)
{
    NEB_TRY(neb__file_make_dir(dir, 0700));
    struct neb_ckpt_writer *w = NEB_NEW(struct neb_ckpt_writer);
    if (!w) return neb__fail(NEB_ERR_NOMEM, "no memory to write checkpoints");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->keep = keep;
    w->report.last_step = -1;
    w->dir = neb__strdup(dir);
    neb_status status = w->dir ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "no memory to write checkpoints");
    if (status == NEB_OK) sweep(dir);
    if (status == NEB_OK && pthread_create(&w->thread, NULL, run, w))
        status = neb__fail(NEB_ERR_IO, "cannot start the thread that writes checkpoints");
    if (status != NEB_OK) {
        release(w);
        return status;
    }
    *out = w;
    return NEB_OK;
}

/* Waits until the staging area belongs to the caller again. The lock is held on return. */
static void lock_idle(struct neb_ckpt_writer *w)
{
    pthread_mutex_lock(&w->lock);
    if (!w->busy) return;
    int64_t start = neb__now_ns();
    while (w->busy) pthread_cond_wait(&w->changed, &w->lock);
    w->report.waited += neb__seconds_since(start);
}

static neb_status reserve(struct neb_ckpt_writer *w, const struct neb_ckpt_section *list, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += (list[i].size + 63) & ~(size_t)63;
    if (bytes > w->block_cap) {
        neb__free(w->block);
        w->block_cap = 0;
        w->block = neb__aligned(bytes);
        if (!w->block) return neb__fail(NEB_ERR_NOMEM, "no memory to copy a checkpoint of %zu bytes", bytes);
        w->block_cap = bytes;
    }
    if (n > w->section_cap) {
        struct neb_ckpt_section *s = neb__realloc(w->section, (size_t)n * sizeof *s);
        if (!s) return neb__fail(NEB_ERR_NOMEM, "no memory for %d sections", n);
        w->section = s;
        for (; w->section_cap < n; w->section_cap++) {
            char *name = neb__malloc(NEB_CKPT_NAME);
            if (!name) return neb__fail(NEB_ERR_NOMEM, "no memory for %d sections", n);
            s[w->section_cap] = (struct neb_ckpt_section){.name = name};
        }
    }
    return NEB_OK;
}

static neb_status stage(struct neb_ckpt_writer *w, const struct neb_ckpt_section *list, int n)
{
    for (int i = 0; i < n; i++)
        if (strlen(list[i].name) >= NEB_CKPT_NAME)
            return neb__fail(NEB_ERR_INVALID, "section name '%.70s' is too long", list[i].name);
    NEB_TRY(reserve(w, list, n));
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        strcpy((char *)(uintptr_t)w->section[i].name, list[i].name);
        if (list[i].size) memcpy(w->block + at, list[i].data, list[i].size);
        w->section[i].data = w->block + at;
        w->section[i].size = list[i].size;
        at += (list[i].size + 63) & ~(size_t)63;
    }
    w->sections = n;
    return NEB_OK;
}

neb_status neb__ckpt_writer_put(struct neb_ckpt_writer *w, const struct neb_ckpt_id *id,
                                const struct neb_ckpt_section *list, int n)
{
    lock_idle(w);
    neb_status status = stage(w, list, n);
    if (status == NEB_OK) {
        w->id = *id;
        w->busy = true;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

void neb__ckpt_writer_report(struct neb_ckpt_writer *w, struct neb_ckpt_report *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->report;
    pthread_mutex_unlock(&w->lock);
}

neb_status neb__ckpt_writer_wait(struct neb_ckpt_writer *w)
{
    pthread_mutex_lock(&w->lock);
    while (w->busy) pthread_cond_wait(&w->changed, &w->lock);
    struct neb_ckpt_report r = w->report;
    pthread_mutex_unlock(&w->lock);
    return r.status == NEB_OK ? NEB_OK : neb__quiet(r.status, "%s", r.why);
}

neb_status neb__ckpt_writer_close(struct neb_ckpt_writer *w)
{
    if (!w) return NEB_OK;
    neb_status status = neb__ckpt_writer_wait(w);
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    release(w);
    return status;
}
