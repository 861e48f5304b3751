/* status_file.c: status.json, which has the same shape in a run's folder and in OUT.
 *
 *     {"version": 2, "written": unix seconds, "job": NAME, "strategy": NAME,
 *      "self": NAME of the site that writes,
 *      "site": {…}, "members": [{…}, …], "others": {NAME: {…}, …},
 *      "sites": [{every field of the table}, …],
 *      "log": {"run", "record", "hash", "epoch", "members", "voters", "trains", "heavy"}}
 *
 * `site`, `members` and `others` are keys of version 1 and stay for one release; `sites` holds all that they
 * say. A file of version 1 has no `self`. In a run's folder it has `site` and `others`, in OUT it has `sites`
 * with the older keys. */
#include "base/status.h"
#include "watch/status.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 2 };

/* ---- writing ------------------------------------------------------------------------------------------- */

static bool heard_of(const struct neb_site_status *st)
{
    return *st->session || *st->state;
}

/* Only the line of a site is known until the site has said something. */
static json_t *old_member(const struct neb_site_status *st, bool self)
{
    struct neb_site_status m = *st;
    if (!self && !st->up)
        snprintf(m.session, sizeof m.session, "away");
    else if (!heard_of(st))
        snprintf(m.session, sizeof m.session, "connected");
    if (!heard_of(st)) m.own_steps = m.record = -1;
    return neb__status_old_object(&m, NEB_STATUS_OLD_MEMBER);
}

static void add_sites(json_t *all, const struct neb_status_file *f)
{
    json_t *members = json_array(), *others = json_object(), *sites = json_array();
    if (f->self >= 0)
        json_object_set_new(all, "site", neb__status_old_object(&f->site[f->self], NEB_STATUS_OLD_SITE));
    for (int i = 0; i < f->n; i++) {
        const struct neb_site_status *st = &f->site[i];
        json_array_append_new(sites, neb__status_object(st, NEB_STATUS_OLD_OUT));
        if (st->member) json_array_append_new(members, old_member(st, i == f->self));
        if (i != f->self && heard_of(st))
            json_object_set_new(others, st->name, neb__status_old_object(st, NEB_STATUS_OLD_SITE));
    }
    json_object_set_new(all, "members", members);
    json_object_set_new(all, "others", others);
    json_object_set_new(all, "sites", sites);
}

static json_t *file_object(const struct neb_status_file *f)
{
    static const struct neb_site_status nobody;
    const struct neb_site_status *me = f->self >= 0 ? &f->site[f->self] : &nobody;
    const struct neb_status_log *l = &f->log;
    json_t *all = json_pack("{s:i, s:I, s:o, s:o, s:o}", "version", VERSION, "written",
                            (json_int_t)f->written, "job", neb__status_text_value(me->job), "strategy",
                            neb__status_text_value(me->strategy), "self", neb__status_text_value(me->name));
    if (!all) return NULL;
    add_sites(all, f);
    if (*l->hash)
        json_object_set_new(all, "log",
                            json_pack("{s:o, s:I, s:s, s:I, s:I, s:I, s:I, s:I}", "run",
                                      neb__status_text_value(l->run), "record", (json_int_t)l->record, "hash",
                                      l->hash, "epoch", (json_int_t)l->epoch, "members",
                                      (json_int_t)l->members, "voters", (json_int_t)l->voters, "trains",
                                      (json_int_t)l->trains, "heavy", (json_int_t)l->heavy));
    return all;
}

neb_status neb__status_file_write(const char *folder, const struct neb_status_file *f)
{
    char path[PATH_MAX], temporary[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/status.json", folder);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    json_t *all = file_object(f);
    if (!all) return neb__quiet(NEB_ERR_NOMEM, "out of memory for %s", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && !json_dumpfd(all, fd, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (fd >= 0 && close(fd)) ok = false;
    ok = ok && !rename(temporary, path);
    if (!ok) unlink(temporary);
    json_decref(all);
    return ok ? NEB_OK : neb__quiet(NEB_ERR_IO, "cannot write %s", path);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static void add_site(struct neb_status_file *f, const json_t *o, enum neb_status_keys old)
{
    if (f->n < NEB_STATUS_SITES)
        neb__status_get(o, old, NEB_STATUS_EITHER | NEB_STATUS_SEEN, &f->site[f->n++]);
}

/* In a file of version 1 the site that wrote it is known by its age alone: the words of the others took time to arrive. */
static int find_writer(const struct neb_status_file *f)
{
    for (int i = 0; i < f->n; i++)
        if (heard_of(&f->site[i]) && !(f->site[i].age > 0)) return i;
    return 0;
}

static void read_head(const json_t *all, struct neb_status_file *f)
{
    const char *job = json_string_value(json_object_get(all, "job")),
               *strategy = json_string_value(json_object_get(all, "strategy")),
               *self = json_string_value(json_object_get(all, "self"));
    char name[sizeof f->site[0].name] = "";
    f->written = (int64_t)json_number_value(json_object_get(all, "written"));
    if (self) neb__status_text(self, name, sizeof name); /* as the names of the sites */
    for (int i = 0; i < f->n; i++)
        if (self && !strcmp(f->site[i].name, name)) f->self = i;
    if (self || !f->n) return;
    f->self = find_writer(f); /* version 1 has job and strategy only at the top */
    struct neb_site_status *me = &f->site[f->self];
    if (job) neb__status_text(job, me->job, sizeof me->job);
    if (strategy) neb__status_text(strategy, me->strategy, sizeof me->strategy);
}

static void read_sites(const json_t *all, struct neb_status_file *f)
{
    json_t *sites = json_object_get(all, "sites"), *site = json_object_get(all, "site"), *o;
    const char *name;
    size_t i;
    if (sites) {
        json_array_foreach(sites, i, o) add_site(f, o, NEB_STATUS_OLD_OUT);
        return;
    }
    if (site) add_site(f, site, NEB_STATUS_OLD_SITE);
    json_object_foreach(json_object_get(all, "others"), name, o) add_site(f, o, NEB_STATUS_OLD_SITE);
}

static void read_log(const json_t *all, struct neb_status_log *out)
{
    const json_t *log = json_object_get(all, "log");
    const char *hash = json_string_value(json_object_get(log, "hash"));
    if (!hash || strlen(hash) + 1 != sizeof out->hash) return;
    snprintf(out->hash, sizeof out->hash, "%s", hash);
    const char *run = json_string_value(json_object_get(log, "run"));
    if (run && strlen(run) < sizeof out->run) snprintf(out->run, sizeof out->run, "%s", run);
    out->record = (int64_t)json_integer_value(json_object_get(log, "record"));
    out->epoch = (int64_t)json_integer_value(json_object_get(log, "epoch"));
    out->members = (int64_t)json_integer_value(json_object_get(log, "members"));
    out->voters = (int64_t)json_integer_value(json_object_get(log, "voters"));
    out->trains = (int64_t)json_integer_value(json_object_get(log, "trains"));
    out->heavy = (int64_t)json_integer_value(json_object_get(log, "heavy"));
}

neb_status neb__status_file_read(const char *path, struct neb_status_file *out)
{
    json_error_t e;
    if (access(path, R_OK))
        return neb__quiet(errno == ENOENT ? NEB_ERR_NOTFOUND : NEB_ERR_IO, "%s: %s", path, strerror(errno));
    json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!json_is_object(all)) {
        json_decref(all);
        return neb__fail(NEB_ERR_CORRUPT, "%s is not a status file: %s", path, e.text);
    }
    *out = (struct neb_status_file){.self = -1};
    read_sites(all, out);
    read_head(all, out);
    read_log(all, &out->log);
    json_decref(all);
    return NEB_OK;
}
