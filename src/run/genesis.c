/* genesis.c: the run's initial values, kept beside the ledger.
 *
 * Genesis and ledger make the outer state. A trainer that comes back has put its checkpoint into the
 * parameters, so the initial values can no longer be read there: `genesis-<cell>` keeps theta of every cell
 * (fp32), and `genesis`, written last, the hashes of the layout and of the values; `job` says which job
 * began. As long as there is neither a record nor a checkpoint they are written anew at every start, so that
 * a site that began with the wrong model can begin again. */
#include "run/session.h"
#include "run/job_facts.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { HEAD = 2 * NEB_HASH_SIZE, JOB_MAX = 1 << 12 };

static void name_of(uint32_t cell, char out[32])
{
    snprintf(out, 32, "genesis-%u", cell);
}

static neb_status keep_job(neb_session *s)
{
    struct neb_buf job;
    neb__buf_init(&job, JOB_MAX);
    neb_status status = neb__facts_identity(s, &job);
    if (status == NEB_OK) status = neb__blob_save(&s->disk, "job", job.data, job.len, true);
    neb__buf_free(&job);
    return status;
}

/* The values of a run that began with another job would be taken in place of this one's, without a word. */
static neb_status check_job(neb_session *s)
{
    struct neb_buf now, then;
    neb__buf_init(&now, JOB_MAX);
    neb__buf_init(&then, JOB_MAX + NEB_HASH_SIZE);
    neb_status status = neb__facts_identity(s, &now);
    neb_status found = neb__blob_load(&s->disk, "job", &then);
    if (status == NEB_OK && found == NEB_OK && now.len && then.len &&
        (now.len != then.len || memcmp(now.data, then.data, now.len)))
        status = neb__fail(
            NEB_ERR_CONFIG,
            "%s/run%s%s holds the run of another job (%.*s; this one: %.*s): %s, or move that folder away at "
            "every site",
            s->site->dir, *s->run ? "/" : "", s->run, (int)then.len, (const char *)then.data, (int)now.len,
            (const char *)now.data, *s->run ? "give this job another name" : "use another site folder");
    neb__buf_free(&now);
    neb__buf_free(&then);
    return status;
}

neb_status neb__genesis_keep(neb_session *s)
{
    for (uint32_t c = 0; c < s->mirror.outer->cells; c++) {
        char name[32];
        size_t first, n = neb__outer_cell(s->mirror.outer, c, &first);
        name_of(c, name);
        NEB_TRY(neb__blob_save(&s->disk, name, s->mirror.outer->theta + first, n * sizeof(float), true));
    }
    NEB_TRY(keep_job(s));
    uint8_t head[HEAD];
    memcpy(head, s->model[NEB_AGREED_LAYOUT].b, NEB_HASH_SIZE);
    memcpy(head + NEB_HASH_SIZE, s->model[NEB_AGREED_VALUES].b, NEB_HASH_SIZE);
    return neb__blob_save(&s->disk, "genesis", head, sizeof head, true);
}

static neb_status load_cell(neb_session *s, uint32_t cell, float *theta, size_t n)
{
    struct neb_buf b;
    char name[32];
    name_of(cell, name);
    neb__buf_init(&b, n * sizeof *theta + NEB_HASH_SIZE);
    neb_status status = neb__blob_load(&s->disk, name, &b);
    if (status == NEB_OK && b.len != n * sizeof *theta) status = NEB_ERR_CORRUPT;
    if (status == NEB_OK) memcpy(theta, b.data, b.len);
    neb__buf_free(&b);
    return status;
}

static neb_status load_head(neb_session *s, struct neb_hash *root)
{
    struct neb_buf b;
    neb__buf_init(&b, HEAD + NEB_HASH_SIZE);
    neb_status status = neb__blob_load(&s->disk, "genesis", &b);
    if (status == NEB_OK && b.len != HEAD) status = NEB_ERR_CORRUPT;
    if (status == NEB_OK && memcmp(b.data, s->model[NEB_AGREED_LAYOUT].b, NEB_HASH_SIZE))
        status =
            neb__fail(NEB_ERR_CONFIG,
                      "%s/run%s%s holds a run with other parameters (names or shapes): train the model that "
                      "it began with, or begin a new run %s",
                      s->site->dir, *s->run ? "/" : "", s->run,
                      *s->run ? "by giving the job another name" : "in another site folder");
    if (status == NEB_OK) status = check_job(s);
    if (status == NEB_OK) memcpy(root->b, b.data + NEB_HASH_SIZE, NEB_HASH_SIZE);
    neb__buf_free(&b);
    return status;
}

neb_status neb__genesis_damaged(const neb_session *s)
{
    return neb__fail(
        NEB_ERR_CORRUPT,
        "the initial values in %s/run%s%s are damaged: copy the genesis files of another site there",
        s->site->dir, *s->run ? "/" : "", s->run);
}

neb_status neb__genesis_load(neb_session *s, float *theta, struct neb_hash *root)
{
    neb_status status = load_head(s, root);
    bool begun = status == NEB_OK;
    for (size_t at = 0; status == NEB_OK && at < s->mirror.values; at += NEB_CELL) {
        size_t n = s->mirror.values - at < NEB_CELL ? s->mirror.values - at : NEB_CELL;
        status = load_cell(s, (uint32_t)(at / NEB_CELL), theta + at, n);
    }
    if (status == NEB_ERR_CORRUPT || status == NEB_ERR_NOSPACE || (begun && status == NEB_ERR_NOTFOUND))
        return neb__genesis_damaged(s);
    return status;
}
