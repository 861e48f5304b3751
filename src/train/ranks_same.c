/* ranks_same.c: what must be equal at all ranks of a site: the program, the job, and the parameters of replicas.
 *
 * Each rank makes a checksum, every rank sees all of them, and the ranks that differ from most are named. All
 * ranks come to the same result, so all of them stop. With two ranks nobody can tell which one is wrong, and
 * both are named. A value is compared as a double, which holds 32 bits exactly. */
#include "train/train_internal.h"
#include "base/crc32c.h"
#include "base/log.h"
#include "base/mem.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_AT_ONCE = 1 << 16, NAMED = 8 };

/* ---- comparing --------------------------------------------------------------------------------------------- */

static int times(const double *v, int n, double value)
{
    int k = 0;
    for (int i = 0; i < n; i++) k += v[i] == value;
    return k;
}

/* Writes "rank 3" or "ranks 1, 5" for those whose value is not the one of more than half; all, if there is none. Place i of
 * the group is rank first + i * apart of the site. */
static void name_odd(const double *v, int n, int first, int apart, char *out, size_t size)
{
    double most = v[0];
    for (int i = 1; i < n; i++)
        if (times(v, n, v[i]) > times(v, n, most)) most = v[i];
    bool known = 2 * times(v, n, most) > n;
    int odd = known ? n - times(v, n, most) : n, said = 0;
    size_t at = (size_t)snprintf(out, size, odd == 1 ? "rank" : "ranks");
    for (int i = 0; i < n && said < NAMED; i++)
        if (!known || v[i] != most)
            at += (size_t)snprintf(out + at, size - at, "%s %d", said++ ? "," : "", first + i * apart);
    if (said < odd) snprintf(out + at, size - at, " and %d more", odd - said);
}

/* *equal: `sum` is the same at all copies of the model; else `names` says where it is not. */
static neb_status compare(const struct neb_layout *l, uint32_t sum, bool *equal, char *names, size_t size)
{
    struct neb_group *g = l->data;
    int apart = neb__group_size(l->model), first = neb__group_rank(l->model);
    double v[NEB_GROUP_RANKS] = {0};
    int64_t edge[NEB_GROUP_RANKS + 1];
    int n = neb__group_size(g);
    *equal = true;
    if (n < 2) return NEB_OK;
    for (int r = 0; r <= n; r++) edge[r] = r;
    v[neb__group_rank(g)] = (double)sum;
    NEB_TRY(neb__group_gather_doubles(g, v, edge));
    *equal = times(v, n, v[0]) == n;
    if (!*equal) name_odd(v, n, first, apart, names, size);
    return NEB_OK;
}

/* ---- program and job --------------------------------------------------------------------------------------- */

static uint32_t program_sum(void)
{
    uint8_t bytes[READ_AT_ONCE];
    uint32_t sum = neb__crc32c(0, NEB_VERSION, strlen(NEB_VERSION));
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;
    while (fd >= 0 && (n = read(fd, bytes, sizeof bytes)) > 0) sum = neb__crc32c(sum, bytes, (size_t)n);
    if (fd >= 0) close(fd);
    return sum;
}

static uint32_t job_sum(const struct neb_job *job)
{
    uint32_t sum = 0;
    for (int i = 0; i < job->doc.n; i++) {
        const struct neb_doc_entry *e = &job->doc.list[i];
        sum = neb__crc32c(sum, e->path, strlen(e->path) + 1);
        sum = neb__crc32c(sum, e->value, strlen(e->value) + 1);
    }
    return sum;
}

struct neb_ranks_sums neb__ranks_sums(const struct neb_job *job)
{
    return (struct neb_ranks_sums){program_sum(), job_sum(job)};
}

neb_status neb__ranks_same(const struct neb_job *job, struct neb_group *ranks)
{
    const struct neb_layout all = {.world = ranks, .data = ranks};
    const struct neb_ranks_sums own = neb__ranks_sums(job);
    char names[160];
    bool equal;
    NEB_TRY(compare(&all, own.program, &equal, names, sizeof names));
    if (!equal)
        return neb__fail(NEB_ERR_VERSION,
                         "the ranks run different programs (this one is nebula-i %s): look at %s; every "
                         "machine must have the same build",
                         NEB_VERSION, names);
    NEB_TRY(compare(&all, own.job, &equal, names, sizeof names));
    if (!equal)
        return neb__fail(NEB_ERR_CONFIG,
                         "the ranks have different jobs: look at %s; %s and the words behind it must be the "
                         "same everywhere",
                         names, job->doc.file);
    return NEB_OK;
}

/* ---- replicas ---------------------------------------------------------------------------------------------- */

/* For tests: NEBULA_TEST_FLIP=RANK:STEP:FILE changes one parameter of that rank after that step, if the file is there and can
 * be removed: so it happens once, however often the ranks are started. */
static neb_status flip_if_asked(struct neb_trainer *t)
{
    float first;
    const char *text = getenv("NEBULA_TEST_FLIP");
    char file[PATH_MAX];
    int rank;
    long step;
    if (!text || sscanf(text, "%d:%ld:%4095s", &rank, &step, file) != 3) return NEB_OK;
    if (rank != neb__group_rank(t->ranks) || step != t->made || unlink(file)) return NEB_OK;
    NEB_TRY(neb__work_values(t->work, 0, &first, 1));
    first += 1e-3f;
    return neb__work_put_values(t->work, 0, &first, 1);
}

/* The slab may be in the memory of a device: it comes in pieces. */
static neb_status slab_sum(struct neb_trainer *t, uint32_t *out)
{
    enum { PIECE = 1 << 20 };
    int64_t n;
    (void)neb_params_slab(neb__work_params(t->work), &n);
    float *piece = NEB_NEW_ARRAY(float, PIECE);
    neb_status status = piece ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for a checksum");
    *out = 0;
    for (int64_t at = 0; status == NEB_OK && at < n; at += PIECE) {
        int64_t m = n - at < PIECE ? n - at : PIECE;
        status = neb__work_values(t->work, at, piece, m);
        if (status == NEB_OK) *out = neb__crc32c(*out, piece, (size_t)m * sizeof *piece);
    }
    neb__free(piece);
    return status;
}

/* The ranks with the same part of the model compare; then all ranks agree. */
static neb_status check(struct neb_trainer *t)
{
    char names[160];
    bool equal;
    uint32_t sum = 0;
    NEB_TRY(neb__group_agree(t->ranks, slab_sum(t, &sum))); /* the next operations are of other groups */
    NEB_TRY(compare(&t->layout, sum, &equal, names, sizeof names));
    if (equal) return NEB_OK;
    return neb__fail(NEB_ERR_PEER,
                     "the parameters of the ranks differ after step %" PRId64
                     ": %s computed wrong, or its memory is bad",
                     t->made, names);
}

neb_status neb__ranks_check(struct neb_trainer *t, bool now)
{
    const struct neb_job_parallel *p = &t->job->parallel;
    if (p->data < 2 || !p->check_every || neb__work_shares_masters(t->work)) return NEB_OK;
    NEB_TRY(flip_if_asked(t));
    if (!now && t->made % p->check_every) return NEB_OK;
    neb_status status = neb__group_agree(t->ranks, check(t));
    if (status == NEB_ERR_PEER) neb__group_break(t->ranks);
    return status;
}
