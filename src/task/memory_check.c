/* memory_check.c: see memory_check.h.
 *
 * A trained parameter takes 16 bytes: its value, its gradient and AdamW's two moments, all in fp32 (a matrix of Muon's 12). A frozen one takes 4,
 * or what its code takes (peft.frozen). Computing in bf16 takes a copy of 2 bytes more. Ranks may share some of it out, and some may be in the host's memory.
 * Activations come on top, so a job that passes may still be too large; a job that is refused here cannot run. */
#include "task/memory_check.h"
#include "nn/model.h"
#include "task/settle.h"
#include "tensor/narrow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double gib = 0x1p30;

struct need {
    double trained, frozen; /* bytes of a parameter */
};

static struct need need_of(const struct neb_job *job, bool on_host)
{
    const struct neb_job_parallel *p = &job->parallel;
    const bool bf16 = !strcmp(job->train.dtype, "bf16"), all = !strcmp(p->offload, "optimizer");
    double ranks = (double)p->data, copy = bf16 ? 2 : 0, value = 4, gradient = 4, moments = 8;
    if (p->zero > 0) moments /= ranks;
    if (p->zero > 1) gradient /= ranks;
    if (p->zero > 2 || (p->zero > 0 && bf16 && !all)) value /= ranks;
    if (p->zero > 2) copy /= ranks;
    if (!on_host && strcmp(p->offload, "none")) moments = 0;
    if (!on_host && all && bf16) value = 0;
    return (struct need){copy + value + gradient + moments, copy + value};
}

/* ---- the memory that is there ------------------------------------------------------------------------------------ */

/* The sum of MemAvailable and SwapFree; 0: not known. */
static double system_available(void)
{
    char line[256];
    double sum = 0, kib;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lf", &kib) == 1 || sscanf(line, "SwapFree: %lf", &kib) == 1)
            sum += 1024 * kib;
    if (f) fclose(f);
    return sum;
}

/* What a container leaves to this process; infinite: no limit is known. */
static double container_limit(void)
{
    double limit = HUGE_VAL;
    FILE *f = fopen("/sys/fs/cgroup/memory.max", "re");
    if (f && fscanf(f, "%lf", &limit) != 1) limit = HUGE_VAL; /* "max" */
    if (f) fclose(f);
    return limit;
}

double neb__memory_of_host(void)
{
    double there = system_available();
    return there > 0 ? fmin(there, container_limit()) : HUGE_VAL;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static void count_text(double n, char out[32])
{
    static const char *const units[] = {"", " thousand", " million", " billion", " trillion"};
    int u = 0;
    while (n >= 999.5 && u < 4) n /= 1000, u++;
    snprintf(out, 32, n < 99.5 && u ? "%.1f%s" : "%.0f%s", n, units[u]);
}

static bool on_one_machine(const struct neb_job *j)
{
    return !j->parallel.hosts && !getenv("SLURM_JOB_ID");
}

/* The ranks that share the model are on several machines, so this one need not hold all of it. */
static bool over_machines(const struct neb_job *j)
{
    return j->parallel.pipeline * j->parallel.tensor > 1 && !on_one_machine(j);
}

/* Of this rank's part, which is the whole model where no ranks share it. */
static double count_values(const neb_params *ps, bool trained)
{
    double n = 0;
    for (int i = 0; i < ps->count; i++)
        if (ps->list[i]->trainable || !trained) n += (double)neb__param_slab_values(ps->list[i]);
    return n;
}

/* Matrices of Muon's have one moment. */
static double count_matrices(const struct neb_job *job, const neb_params *ps)
{
    double n = 0;
    const bool muon = !strcmp(job->train.optimizer, "muon");
    for (int i = 0; muon && i < ps->count; i++)
        if (ps->list[i]->trainable && ps->list[i]->hidden) n += (double)neb__param_slab_values(ps->list[i]);
    return n;
}

static double count_narrow(const neb_params *ps, bool bytes)
{
    double n = 0;
    for (int i = 0; i < ps->count; i++) {
        const neb_param *p = ps->list[i];
        if (!p->narrow) continue;
        n += bytes ? (double)neb__narrow_bytes(p->narrow, p->shape[0], p->shape[1]) : (double)p->values;
    }
    return n;
}

/* copies: of the model, in the same memory. */
static neb_status compare(const struct neb_job *job, const neb_params *ps, double there, double copies,
                          bool on_host)
{
    char all[32], fits[32];
    const char *where = on_host ? "this machine" : "the device", *more = "";
    struct need bytes = need_of(job, on_host);
    bytes.trained *= copies, bytes.frozen *= copies;
    if (!on_host && strcmp(job->parallel.offload, "optimizer"))
        more = ", keep the optimizer's state in the host's memory (parallel: {offload: optimizer})";
    double trained = count_values(ps, true), values = count_values(ps, false);
    double need =
        bytes.trained * trained + bytes.frozen * (values - trained) + copies * count_narrow(ps, true);
    const double ranks = job->parallel.zero > 0 ? (double)job->parallel.data : 1;
    need -= 4 * copies / ranks * count_matrices(job, ps);
    if (need <= there) return NEB_OK;
    count_text(values + count_narrow(ps, false), all);
    count_text(there / bytes.trained, fits);
    return neb__doc_fail(
        &job->doc, "model",
        "the model is too large: %s parameters need %.1f GiB to be trained, and %s has %.1f GiB free, "
        "enough for %s; make model.hidden (%" PRId64 ") or model.layers (%" PRId64
        ") smaller%s, or train a part of it (peft: {method: lora})",
        all, need / gib, where, there / gib, fits, job->model.hidden, job->model.layers, more);
}

/* The state that is kept in the host's memory, pinned, beside a device. */
static neb_status compare_offload(const struct neb_job *job, const neb_params *ps)
{
    const struct neb_job_parallel *p = &job->parallel;
    const bool bf16 = !strcmp(job->train.dtype, "bf16"), all = !strcmp(p->offload, "optimizer");
    if (!strcmp(p->offload, "none")) return NEB_OK;
    double moments = p->zero > 0 ? 8 / (double)p->data : 8;
    double trained = count_values(ps, true), values = count_values(ps, false), there = neb__memory_of_host();
    double need = moments * trained + (all && bf16 ? 4 * values : 0);
    if (need <= there) return NEB_OK;
    return neb__doc_fail(
        &job->doc, "parallel",
        "parallel.offload: %s keeps %.1f GiB of the optimizer's state in this machine's memory, "
        "which has %.1f GiB free; use offload: %s, parallel.zero with more processes, or train a "
        "part of the model (peft: {method: lora})",
        p->offload, need / gib, there / gib, all && bf16 ? "moments" : "none");
}

/* Other ranks of this machine may have taken their part already. neb__memory_foresee() has counted all of them. */
neb_status neb__memory_check(const struct neb_job *job, const neb_params *ps, neb_device *device,
                             bool on_host)
{
    struct neb_device_info info;
    if (on_host) return compare(job, ps, neb__memory_of_host(), 1, true);
    NEB_TRY(compare_offload(job, ps));
    neb_device_get_info(device, &info);
    if (info.memory_total <= 0) return NEB_OK;
    return compare(job, ps, (double)(info.memory_total - info.memory_used), 1, false);
}

/* This site trains the job's model: not its generator, and it does not teach. */
static bool trains_model(const struct neb_job *j)
{
    if (j->at < 0) return true;
    if (j->plan == NEB_STRATEGY_PIPELINE) return false; /* neb__memory_check() looks at its stage */
    enum neb_site_role role = j->site[j->at].does;
    return role != NEB_ROLE_GENERATOR && role != NEB_ROLE_TEACHER;
}

/* there: bytes of what the model is to be held in. *fits: false where memory is all that is wrong. */
static neb_status foresee(const struct neb_job *job, double there, double copies, bool on_host, bool *fits)
{
    struct neb_settled_models models;
    neb_params *ps;
    struct neb_model *m = NULL;
    bool trains_tokenizer = !job->tokenizer.file && !job->init.from && !job->distill.teacher;
    neb__settle_models(job, trains_tokenizer ? job->tokenizer.vocab : 1, &models);
    models.model.embedding_delta = false; /* its table is the generator's, which is not made here */
    NEB_TRY(neb_params_create(&ps));
    neb_status status = neb__model_create(&models.model, &job->peft, "", NULL, ps, &m);
    if (status == NEB_OK) {
        status = compare(job, ps, there, copies, on_host);
        *fits = status == NEB_OK;
    }
    neb__model_destroy(m);
    neb_params_destroy(ps);
    return status;
}

static neb_status foresee_on_host(const struct neb_job *job, bool *fits)
{
    if (!trains_model(job) || over_machines(job)) return NEB_OK;
    const double copies = on_one_machine(job) ? (double)job->parallel.data : 1;
    return foresee(job, neb__memory_of_host(), copies, true, fits);
}

static neb_status foresee_on_device(const struct neb_job *job, bool *fits)
{
    const struct neb_device_config c = {.compute = NEB_F32, .threads = 1};
    struct neb_device_info info;
    neb_device *device;
    if (job->parallel.pipeline * job->parallel.tensor > 1)
        return NEB_OK; /* a device has a part of the model */
    if (neb_device_open(job->train.device, &c, &device) != NEB_OK) return NEB_OK;
    neb_device_get_info(device, &info);
    neb_device_close(device);
    return info.memory_total > 0 ? foresee(job, (double)info.memory_total, 1, false, fits) : NEB_OK;
}

neb_status neb__memory_foresee(const struct neb_job *job)
{
    bool fits;
    return strcmp(job->train.device, "cpu") ? NEB_OK : foresee_on_host(job, &fits);
}

neb_status neb__memory_foresee_here(const struct neb_job *job, bool *fits)
{
    bool enough = true;
    neb_status status =
        strcmp(job->train.device, "cpu") ? foresee_on_device(job, &enough) : foresee_on_host(job, &enough);
    if (status != NEB_OK && enough) return status;
    *fits = enough;
    return NEB_OK;
}
