/* fuzz_job.c: any text as a job file (first byte even) or as the model.yaml of a model's folder (odd). What is accepted has
 * facts that can be compared with another site's; what is refused leaves nothing behind. */
#include "base/mem.h"
#include "task/folder.h"
#include "job/job.h"
#include "run/job_facts.h"

#include <fcntl.h>
#include <nebula/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[64], path[96];

static void tidy(void)
{
    unlink(path);
    rmdir(dir);
}

static void put(const uint8_t *data, size_t size)
{
    if (!*dir) {
        snprintf(dir, sizeof dir, "/dev/shm/nebula-fuzz-job-%ld", (long)getpid());
        snprintf(path, sizeof path, "%s/model.yaml", dir);
        if (mkdir(dir, 0700)) abort();
        atexit(tidy);
    }
    int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
}

static void job(void)
{
    static struct neb_job j;
    struct neb_buf facts;
    char why[600];
    if (neb__job_read(path, NULL, 0, &j) != NEB_OK) return;
    neb__buf_init(&facts, NEB_FACTS_TEXT_MAX);
    if (neb__job_facts(&j, &facts) == NEB_OK &&
        neb__facts_differ((char *)facts.data, facts.len, (char *)facts.data, facts.len, "b", why, sizeof why))
        abort();
    if (j.n_sites) neb__job_at(&j, j.site[j.n_sites - 1].name);
    neb__buf_free(&facts);
    neb__job_free(&j);
}

static void folder(void)
{
    struct neb_model_yaml f;
    if (neb__model_yaml_read(dir, &f) != NEB_OK) return;
    if (f.tokenizer && strchr(f.tokenizer, '/')) abort(); /* nothing outside the folder is opened */
    neb__model_yaml_free(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t held = neb__mem_held();
    neb_log_set_level(NEB_LOG_NONE);
    if (!size || size > 16384) return 0;
    put(data + 1, size - 1);
    if (data[0] & 1)
        folder();
    else
        job();
    if (neb__mem_held() != held) abort();
    return 0;
}
