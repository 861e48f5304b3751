/* job_sites.c: the sites of a job: their roles, the strategy that follows from them, and each site's own
 * settings.
 *
 * A strategy is a set of roles. `auto` follows from the roles; a fixed strategy is checked against them. So
 * every site refuses a job whose sites, roles and task do not fit together when it reads it, and names the
 * line. */
#include "job/job.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct neb_opt neb__job_site_options[] = {
    NEB_OPT(struct neb_job_site, name, NEB_OPT_TEXT, "", NULL, "as given with --site"),
    NEB_OPT(
        struct neb_job_site, role, NEB_OPT_TEXT, "", NULL,
        "train, witness (votes, stores, makes no step) and observer (follows, gets the model) are of "
        "strategy "
        "replica, train also of pipeline, two of relay, two of tutor",
        NEB_OPT_CHOICE("train", "generator", "discriminator", "teacher", "student", "witness", "observer")),
    NEB_OPT(struct neb_job_site, folder, NEB_OPT_TEXT, "", NULL,
            "made by nebula-i site init, with the run's roster in it; empty: as the name"),
    NEB_OPT(struct neb_job_site, listen, NEB_OPT_TEXT, "", NULL,
            "HOST:PORT to listen on; empty: as the roster says"),
    NEB_OPT(
        struct neb_job_site, proxy, NEB_OPT_TEXT, "", NULL,
        "this site dials through http://HOST:PORT or socks5://HOST:PORT (USER:PASSWORD@ before HOST if need "
        "be); none: never; empty: as https_proxy, all_proxy and no_proxy say"),
    NEB_OPT(
        struct neb_job_site, dial, NEB_OPT_TEXT, "", NULL,
        "a command that dials for this site: its input and output carry the connection to host %h, port %p; "
        "such as ssh login -W %h:%p"),
    NEB_OPT(struct neb_job_site, layers, NEB_OPT_INT, "0", NULL,
            "strategy pipeline: how many layers of the model it has, behind those of the sites before it; 0: "
            "as the work divides",
            NEB_OPT_RANGE(0, 1e6)),
    NEB_OPT(struct neb_job_site, teacher, NEB_OPT_TEXT, "", NULL,
            "strategy tutor, a site with role teacher: its model folder, or several; empty: distill.teacher"),
    NEB_OPT(struct neb_job_site, weight, NEB_OPT_REAL, "1", NULL,
            "strategy tutor, a site with role teacher: of its answers among those of several such sites",
            NEB_OPT_ABOVE(0, 1e6)),
    NEB_OPT(
        struct neb_job_site, last_layers, NEB_OPT_INT, "0", NULL,
        "strategy pipeline, the first site: how many of the last layers it has, too, so that a tied token "
        "table is at one site; 0: none, or as the work divides",
        NEB_OPT_RANGE(0, 1e6)),
    NEB_OPT_END,
};
static const char *const own_sections[] = {"train", "parallel", NULL};

static const char *const strategies[] = {[NEB_STRATEGY_REPLICA] = "replica",
                                         [NEB_STRATEGY_RELAY] = "relay",
                                         [NEB_STRATEGY_TUTOR] = "tutor",
                                         [NEB_STRATEGY_PIPELINE] = "pipeline"};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

/* In the order of the option's choices. */
static const struct {
    const char *name;
    enum neb_strategy strategy;
} roles[] = {[NEB_ROLE_TRAIN] = {"train", NEB_STRATEGY_REPLICA},
             [NEB_ROLE_GENERATOR] = {"generator", NEB_STRATEGY_RELAY},
             [NEB_ROLE_DISCRIMINATOR] = {"discriminator", NEB_STRATEGY_RELAY},
             [NEB_ROLE_TEACHER] = {"teacher", NEB_STRATEGY_TUTOR},
             [NEB_ROLE_STUDENT] = {"student", NEB_STRATEGY_TUTOR},
             [NEB_ROLE_WITNESS] = {"witness", NEB_STRATEGY_REPLICA},
             [NEB_ROLE_OBSERVER] = {"observer", NEB_STRATEGY_REPLICA}};

const char *neb__strategy_name(enum neb_strategy s)
{
    return strategies[s];
}

const char *neb__role_name(enum neb_site_role r)
{
    return roles[r].name;
}

/* ---- binding ------------------------------------------------------------------------------------------- */

/* The sites of a replica run end with the same model, but a checkpoint holds the live parameters of one site. */
static neb_status check_average(struct neb_job *j, const char *section, const struct neb_job_train *t)
{
    char own[64];
    snprintf(own, sizeof own, "%s.average", section);
    const char *path = neb__doc_get(&j->doc, own) ? own : "train.average";
    if (t->average < 2) return NEB_OK;
    return neb__doc_fail(&j->doc, path,
                         "%s is %" PRId64
                         ": the mean of a site's own checkpoints would be another model at every site; "
                         "leave it out with strategy replica",
                         path, t->average);
}

/* The plug-ins here without the divergence of a student's own samples. Another device is asked when it is open
 * (task/distill.c). */
static neb_status check_judged(struct neb_job *j, const char *section, const struct neb_job_train *t)
{
    char own[64];
    if (!(j->distill.on_policy > 0) || (strcmp(t->device, "cuda") && strcmp(t->device, "opencl")))
        return NEB_OK;
    snprintf(own, sizeof own, "%s.device", section);
    const char *path = neb__doc_get(&j->doc, own) ? own : "train.device";
    return neb__doc_fail(
        &j->doc, path,
        "%s: device %s has no divergence for a student's own samples; train the student on the device "
        "cpu, or leave out distill.on_policy",
        path, t->device);
}

/* `sites[i].train` must fit like `train` itself: it is tried on a copy. */
static neb_status try_own_train(struct neb_job *j, const char *section, enum neb_site_role role)
{
    struct neb_job_train t;
    NEB_TRY(neb__opts_init(neb__job_train_options, &t));
    neb_status status = neb__doc_bind(&j->doc, "train", neb__job_train_options, &t, NULL);
    if (status == NEB_OK) status = neb__doc_bind(&j->doc, section, neb__job_train_options, &t, NULL);
    if (status == NEB_OK) status = neb__job_check_train(j, section, &t);
    if (status == NEB_OK && role == NEB_ROLE_STUDENT) status = check_judged(j, section, &t);
    const bool pipeline = !strcmp(j->strategy, strategies[NEB_STRATEGY_PIPELINE]);
    if (status == NEB_OK && roles[role].strategy == NEB_STRATEGY_REPLICA && !pipeline)
        status = check_average(j, section, &t);
    neb__opts_free(neb__job_train_options, &t);
    return status;
}

/* The same for `sites[i].parallel`. */
static neb_status try_own_parallel(struct neb_job *j, const char *section)
{
    struct neb_job_parallel p;
    NEB_TRY(neb__opts_init(neb__job_parallel_options, &p));
    neb_status status = neb__doc_bind(&j->doc, section, neb__job_parallel_options, &p, NULL);
    neb__opts_free(neb__job_parallel_options, &p);
    return status;
}

static neb_status bind_site(struct neb_job *j, int i)
{
    char path[32], own[48];
    snprintf(path, sizeof path, "sites[%d]", i);
    snprintf(own, sizeof own, "%s.train", path);
    NEB_TRY(neb__opts_init(neb__job_site_options, &j->site[i]));
    j->n_sites = i + 1;
    NEB_TRY(neb__doc_section(&j->doc, own, false));
    snprintf(own, sizeof own, "%s.parallel", path);
    NEB_TRY(neb__doc_section(&j->doc, own, false));
    NEB_TRY(try_own_parallel(j, own));
    snprintf(own, sizeof own, "%s.train", path);
    NEB_TRY(neb__doc_bind(&j->doc, path, neb__job_site_options, &j->site[i], own_sections));
    if (!j->site[i].name) return neb__doc_fail(&j->doc, path, "every site needs a name");
    for (int k = 0; k < i; k++)
        if (!strcmp(j->site[k].name, j->site[i].name))
            return neb__doc_fail(&j->doc, path, "two sites are named '%s'", j->site[i].name);
    int role = neb__opts_choice(neb__job_site_options, &j->site[i], "role");
    j->site[i].does = role < 0 ? NEB_ROLE_TRAIN : (enum neb_site_role)role;
    return try_own_train(j, own, j->site[i].does);
}

/* ---- do they fit together? ----------------------------------------------------------------------------- */

static int count(const struct neb_job *j, enum neb_site_role r)
{
    int n = 0;
    for (int i = 0; i < j->n_sites; i++) n += j->site[i].does == r;
    return n;
}

/* Every site of a pipeline trains its own layers. */
static bool belongs(enum neb_site_role role, enum neb_strategy s)
{
    if (s == NEB_STRATEGY_PIPELINE) return role == NEB_ROLE_TRAIN;
    return roles[role].strategy == s;
}

static neb_status settle_strategy(struct neb_job *j)
{
    int fixed = -1;
    for (int s = 0; s < STRATEGIES; s++)
        if (!strcmp(j->strategy, strategies[s])) fixed = s;
    j->plan = NEB_STRATEGY_REPLICA;
    if (fixed >= 0)
        j->plan = (enum neb_strategy)fixed;
    else if (j->n_sites)
        j->plan = roles[j->site[0].does].strategy;
    for (int i = 0; i < j->n_sites; i++) {
        const struct neb_job_site *s = &j->site[i];
        char path[32];
        snprintf(path, sizeof path, "sites[%d]", i);
        if (belongs(s->does, j->plan)) continue;
        if (fixed >= 0)
            return neb__doc_fail(
                &j->doc, path,
                "site '%s' has role %s, which does not belong to strategy %s; change one of the two", s->name,
                roles[s->does].name, strategies[j->plan]);
        return neb__doc_fail(&j->doc, path,
                             "site '%s' has role %s (strategy %s), but site '%s' has role %s (strategy %s); "
                             "give all sites roles of one strategy",
                             s->name, roles[s->does].name, strategies[roles[s->does].strategy],
                             j->site[0].name, roles[j->site[0].does].name, strategies[j->plan]);
    }
    return NEB_OK;
}

static neb_status check_replica(const struct neb_job *j)
{
    if (count(j, NEB_ROLE_TRAIN)) return NEB_OK;
    return neb__doc_fail(&j->doc, "sites", "every site is a witness or an observer: at least one must train");
}

static bool has_generator(const struct neb_objective *o)
{
    return o->generator != NULL;
}

static bool can_distil(const struct neb_objective *o)
{
    return o->distils;
}

static neb_status check_relay(const struct neb_job *j)
{
    int g = count(j, NEB_ROLE_GENERATOR), d = count(j, NEB_ROLE_DISCRIMINATOR);
    if (g != 1 || d != 1)
        return neb__doc_fail(
            &j->doc, "sites",
            "strategy relay needs one generator site and one discriminator site; the job has %d "
            "and %d",
            g, d);
    if (j->objective->generator) return NEB_OK;
    char names[128];
    return neb__doc_fail(&j->doc, "task",
                         "strategy relay puts a generator on one site and the model that learns from it on "
                         "the other: task must be %s, not %s",
                         neb__objective_list(has_generator, names, sizeof names), j->task);
}

static neb_status check_tutor(const struct neb_job *j)
{
    int t = count(j, NEB_ROLE_TEACHER), s = count(j, NEB_ROLE_STUDENT);
    if (t < 1 || t > 16 || s != 1)
        return neb__doc_fail(
            &j->doc, "sites",
            "strategy tutor needs one to 16 teacher sites and one student site; the job has %d and %d", t, s);
    const char *single = NULL;
    if (j->distill.encoder) single = "distill.encoder";
    if (j->distill.sequence) single = "distill.sequence";
    if (j->distill.on_policy > 0) single = "distill.on_policy";
    if (t > 1 && single)
        return neb__doc_fail(&j->doc, "sites",
                             "%s needs one teacher site; the job has %d: only likeliest tokens "
                             "(distill.teacher, sites[].teacher) "
                             "come from several",
                             single, t);
    if (j->objective->distils) return NEB_OK;
    char names[128];
    return neb__doc_fail(&j->doc, "task",
                         "strategy tutor distils token distributions: task must be %s, not %s",
                         neb__objective_list(can_distil, names, sizeof names), j->task);
}

/* Layers are given for all sites or for none. */
static neb_status check_layers(const struct neb_job *j)
{
    int given = 0;
    for (int i = 0; i < j->n_sites; i++) given += j->site[i].layers > 0;
    if (j->plan != NEB_STRATEGY_PIPELINE && given)
        return neb__doc_fail(&j->doc, "sites",
                             "sites[].layers are those of strategy pipeline; the job's strategy is %s: set "
                             "strategy: pipeline, or leave them out",
                             strategies[j->plan]);
    for (int i = 0; i < j->n_sites; i++)
        if (j->site[i].last_layers && (i || !given))
            return neb__doc_fail(
                &j->doc, "sites",
                "sites[].last_layers are those of the first site, beside sites[].layers of all "
                "sites; site '%s' has %" PRId64,
                j->site[i].name, j->site[i].last_layers);
    if (given && given < j->n_sites)
        return neb__doc_fail(&j->doc, "sites",
                             "%d of %d sites say how many layers they have (sites[].layers); give it for all "
                             "of them, or for none",
                             given, j->n_sites);
    return NEB_OK;
}

static neb_status check_pipeline(const struct neb_job *j)
{
    const struct neb_job_train *t = &j->train;
    if (j->n_sites < 2)
        return neb__doc_fail(&j->doc, "sites", "strategy pipeline needs at least two sites; the job has %d",
                             j->n_sites);
    if (!j->objective->stages || j->distill.teacher || j->distill.encoder)
        return neb__doc_fail(&j->doc, "strategy", "strategy pipeline: %s",
                             j->objective->stages
                                 ? "a student is trained as a whole; use strategy tutor or replica"
                                 : "the model of this task is not cut into stages; use strategy replica");
    if (j->model.positions && !strcmp(j->model.positions, "relative"))
        return neb__doc_fail(
            &j->doc, "strategy",
            "strategy pipeline: a model with positions: relative is not cut into stages, because its "
            "layers read one table of distances; use strategy replica");
    if (t->minutes > 0)
        return neb__doc_fail(&j->doc, "train.minutes",
                             "train.minutes: the sites of a pipeline have no common clock, and all of them "
                             "make the same steps; give train.steps");
    if (t->average > 1)
        return neb__doc_fail(&j->doc, "train.average",
                             "train.average is %" PRId64
                             ": the sites of a pipeline write their checkpoints at different steps; leave it "
                             "out",
                             t->average);
    if (strcmp(j->peft.frozen, "f32"))
        return neb__doc_fail(
            &j->doc, "peft.frozen",
            "peft.frozen is %s: the sites of a pipeline keep frozen weights as f32; leave it out",
            j->peft.frozen);
    if (j->wan.bits == 2)
        return neb__doc_fail(&j->doc, "wan.bits", "wan.bits: a value between layers has 32, 16, 8 or 4 bits");
    if (j->wan.recorded)
        return neb__doc_fail(&j->doc, "wan.recorded",
                             "wan.recorded: a stage of a pipeline gets and sends; no record takes the place "
                             "of its neighbours");
    return NEB_OK;
}

static neb_status check_data(const struct neb_job *j)
{
    for (int i = 0; i < j->n_data; i++) {
        bool known = !j->data[i].site;
        for (int s = 0; !known && s < j->n_sites; s++) known = !strcmp(j->data[i].site, j->site[s].name);
        char path[32];
        snprintf(path, sizeof path, "data[%d]", i);
        if (!known)
            return neb__doc_fail(&j->doc, path, "corpus %s: the job has no site '%s'", j->data[i].file,
                                 j->data[i].site);
    }
    return NEB_OK;
}

/* Keys without effect are not an error, since one file may serve one site and several; a warning names the first. */
static void warn_of_wan(const struct neb_job *j)
{
    for (int i = 0; i < j->doc.n; i++)
        if (!strncmp(j->doc.list[i].path, "wan.", 4)) {
            neb__warn("%s: '%s' has no effect: the job has no sites", j->doc.file, j->doc.list[i].path);
            return;
        }
}

neb_status neb__job_bind_sites(struct neb_job *j)
{
    int n = neb__doc_items(&j->doc, "sites");
    if (!n) warn_of_wan(j);
    if (n > NEB_JOB_SITES)
        return neb__doc_fail(&j->doc, "sites", "sites: at most %d are allowed", NEB_JOB_SITES);
    for (int i = 0; i < n; i++) NEB_TRY(bind_site(j, i));
    NEB_TRY(settle_strategy(j));
    if (n && j->plan == NEB_STRATEGY_REPLICA) NEB_TRY(check_replica(j));
    if (n && j->plan == NEB_STRATEGY_RELAY) NEB_TRY(check_relay(j));
    if (n && j->plan == NEB_STRATEGY_TUTOR) NEB_TRY(check_tutor(j));
    if (n && j->plan == NEB_STRATEGY_PIPELINE) NEB_TRY(check_pipeline(j));
    NEB_TRY(check_layers(j));
    if (n && j->plan != NEB_STRATEGY_PIPELINE && j->wan.bits > 8)
        return neb__doc_fail(&j->doc, "wan.bits",
                             "wan.bits: strategy %s has 8 or 4; 16 and 32 are those of strategy pipeline",
                             strategies[j->plan]);
    return check_data(j);
}

/* ---- one site --------------------------------------------------------------------------------------- */

bool neb__job_has(const struct neb_job *j, const struct neb_job_data *d)
{
    return !d->site || j->at < 0 || !strcmp(d->site, j->site[j->at].name);
}

void neb__job_share(const struct neb_job *j, int64_t *share, int64_t *shares)
{
    *share = 0;
    for (int i = 0; i < j->at; i++) *share += j->site[i].does == NEB_ROLE_TRAIN;
    *shares = count(j, NEB_ROLE_TRAIN);
    *share %= *shares; /* a witness behind the last site that trains */
}

bool neb__job_has_own_steps(const struct neb_job *j)
{
    for (int i = 0; i < j->doc.n; i++) {
        const char *path = j->doc.list[i].path, *rest = strchr(path, ']');
        if (!strncmp(path, "sites[", 6) && rest && !strcmp(rest, "].train.steps")) return true;
    }
    return false;
}

static neb_status find_site(const struct neb_job *j, const char *site, int *at)
{
    char names[256] = "";
    for (int i = 0; i < j->n_sites; i++) {
        size_t used = strlen(names);
        if (!strcmp(j->site[i].name, site)) {
            *at = i;
            return NEB_OK;
        }
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", j->site[i].name);
    }
    return neb__doc_fail(&j->doc, "sites", "the job has no site '%s'; its sites are: %s", site,
                         *names ? names : "none");
}

/* All corpora are at one site: the others have no text. */
static bool one_has_all(const struct neb_job *j)
{
    for (int i = 0; i < j->n_data; i++)
        if (!j->data[i].site || strcmp(j->data[i].site, j->data[0].site)) return false;
    return j->plan == NEB_STRATEGY_PIPELINE;
}

static neb_status check_tokenizer(const struct neb_job *j)
{
    for (int i = 0; i < j->n_data; i++)
        if (j->data[i].site && !j->tokenizer.file && !one_has_all(j))
            return neb__doc_fail(&j->doc, "tokenizer",
                                 "sites with corpora of their own need one tokenizer: make it once with "
                                 "`nebula-i corpus tokenizer`, bring it to every site and name it as "
                                 "tokenizer.file");
    return NEB_OK;
}

/* sites[].teacher takes the place of distill.teacher there. Elsewhere it only says that there is one. */
static neb_status settle_teacher(struct neb_job *j)
{
    const char *folders = j->site[j->at].teacher;
    for (int i = 0; !folders && !j->distill.teacher && i < j->n_sites; i++) folders = j->site[i].teacher;
    if (!folders) return NEB_OK;
    char *copy = neb__strdup(folders);
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for a job");
    neb__free(j->distill.teacher);
    j->distill.teacher = copy;
    return NEB_OK;
}

neb_status neb__job_at(struct neb_job *j, const char *site)
{
    int at = -1;
    NEB_TRY(find_site(j, site, &at));
    char own[40];
    NEB_TRY(neb__job_unsettle(j));
    snprintf(own, sizeof own, "sites[%d].train", at);
    NEB_TRY(neb__doc_bind(&j->doc, own, neb__job_train_options, &j->train, NULL));
    snprintf(own, sizeof own, "sites[%d].parallel", at);
    NEB_TRY(neb__doc_bind(&j->doc, own, neb__job_parallel_options, &j->parallel, NULL));
    j->at = at;
    NEB_TRY(settle_teacher(j));
    neb__job_prefer_own_layout(j);
    NEB_TRY(neb__job_settle_own(j));
    int mine = 0;
    for (int i = 0; i < j->n_data; i++)
        mine += neb__job_has(j, &j->data[i]) && !strcmp(j->data[i].use, "train");
    /* task/data.c knows which sites of a pipeline need the text: neither the first one nor, if it has the loss, the last one can
     * do without */
    if (!mine && j->plan == NEB_STRATEGY_PIPELINE && at) return NEB_OK;
    if (!mine)
        return neb__doc_fail(&j->doc, "data", "site '%s' has no corpus to train on (use: train)", site);
    return check_tokenizer(j);
}

void neb__job_alone(struct neb_job *j)
{
    int n = 0;
    for (int i = 0; i < j->n_data; i++) {
        if (neb__job_has(j, &j->data[i]))
            j->data[n++] = j->data[i];
        else
            neb__opts_free(neb__job_data_options, &j->data[i]);
    }
    j->n_data = n;
    j->at = -1;
}

/* ---- what all sites have in common --------------------------------------------------------------------- */

/* True: the value may differ from site to site. */
static bool is_local(const char *path)
{
    static const char *const keys[] = {
        "out",         "cache",           "train.threads",    "train.log_every",     "train.device",
        "train.dtype", "train.keep",      "train.save_every", "train.fallback",      "tokenizer.file",
        "init.from",   "distill.teacher", "distill.encoder",  "tokenizer.numbering", "train.muon_dtype",
        "train.speed", "train.notice"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(path, keys[i])) return true;
    if (!strncmp(path, "parallel.", 9) || !strncmp(path, "watch.", 6) || !strncmp(path, "privacy.", 8))
        return true;
    const char *rest = strchr(path, ']');
    if (!strncmp(path, "data[", 5) && rest) return !strcmp(rest, "].file") || !strcmp(rest, "].second");
    if (strncmp(path, "sites[", 6) || !rest) return false;
    return !strcmp(rest, "].folder") || !strcmp(rest, "].listen") || !strcmp(rest, "].proxy") ||
           !strcmp(rest, "].dial") || !strcmp(rest, "].teacher") || !strncmp(rest, "].train.", 8) ||
           !strncmp(rest, "].parallel.", 11);
}

static int by_path(const void *a, const void *b)
{
    const struct neb_doc_entry *const *x = a, *const *y = b;
    return strcmp((*x)->path, (*y)->path);
}

/* What the cut of a pipeline follows from (task/site_weights.h), so all sites must say the same of each of them. */
static bool makes_cut(const struct neb_job *j, const char *path)
{
    static const char *const keys[] = {"].train.memory", "].train.threads", "].train.speed",
                                       "].parallel.data", "].parallel.tensor"};
    const char *rest = strchr(path, ']');
    char automatic[64];
    if (j->plan != NEB_STRATEGY_PIPELINE || j->site[0].layers || strncmp(path, "sites[", 6) || !rest)
        return false;
    snprintf(automatic, sizeof automatic, "%.*s].parallel.auto", (int)(rest - path), path);
    for (int i = 0; !strncmp(rest, "].parallel.", 11) && i < j->doc.n; i++)
        if (!strcmp(j->doc.list[i].path, automatic)) return false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(rest, keys[i])) return true;
    return false;
}

neb_status neb__job_facts(const struct neb_job *j, struct neb_buf *out)
{
    const struct neb_doc_entry *list[4096];
    int n = 0;
    for (int i = 0; i < j->doc.n && n < 4096; i++)
        if (!is_local(j->doc.list[i].path) || makes_cut(j, j->doc.list[i].path)) list[n++] = &j->doc.list[i];
    qsort(list, (size_t)n, sizeof *list, by_path);
    for (int i = 0; i < n; i++) {
        NEB_TRY(neb__buf_append(out, list[i]->path, strlen(list[i]->path)));
        NEB_TRY(neb__buf_append(out, "=", 1));
        NEB_TRY(neb__buf_append(out, list[i]->value, strcspn(list[i]->value, "\n")));
        NEB_TRY(neb__buf_append(out, "\n", 1));
    }
    return NEB_OK;
}
