/* status.c: a site's status as JSON: see status.h.
 *
 * Everything here walks the table of fields. An object of this version has every key of the table. For one
 * release it also has the keys that the version before had in that place. An older key that has a meaning of
 * its own in the table is not written: in a message of the version before, `state` was the session's and
 * `step` began at 0 with every start. An object without `session` is of the version before, and is read by
 * the older keys alone.
 *
 * An older key may be a path: `a.b` is a key of an object within the object, `a[2]` a place in an array. */
#include "watch/status.h"
#include "base/buf.h"
#include "base/printable.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum field_type { FIELD_TEXT, FIELD_INT, FIELD_REAL, FIELD_BOOL };

struct field {
    const char *name;
    enum field_type type;
    size_t offset;
    int size; /* FIELD_TEXT: bytes with the 0; FIELD_REAL: decimals */
    const char *unit;
    unsigned by; /* enum neb_status_by */
    const char *old[NEB_STATUS_OLD], *help;
};

#define OLD(site, out, api, member) \
    {                               \
        site, out, api, member      \
    }
#define AT(name) offsetof(struct neb_site_status, name)
#define TEXT(name, size, unit, by, old, help) \
    {#name, FIELD_TEXT, AT(name), size, unit, NEB_STATUS_##by, old, help},
#define INT(name, unit, by, old, help) {#name, FIELD_INT, AT(name), 0, unit, NEB_STATUS_##by, old, help},
#define REAL(name, decimals, unit, by, old, help) \
    {#name, FIELD_REAL, AT(name), decimals, unit, NEB_STATUS_##by, old, help},
#define BOOL(name, by, old, help) {#name, FIELD_BOOL, AT(name), 0, "", NEB_STATUS_##by, old, help},
static const struct field fields[] = {NEB_STATUS_FIELDS(TEXT, INT, REAL, BOOL)};
enum { FIELDS = sizeof fields / sizeof *fields };
static const struct field *const fields_end = fields + FIELDS;

/* ---- the struct ---------------------------------------------------------------------------------------- */

static size_t bytes_of(const struct field *f)
{
    switch (f->type) {
    case FIELD_TEXT: return (size_t)f->size;
    case FIELD_INT: return sizeof(int64_t);
    case FIELD_REAL: return sizeof(double);
    default: return sizeof(bool);
    }
}

void neb__status_copy(struct neb_site_status *to, const struct neb_site_status *from, unsigned by)
{
    for (const struct field *f = fields; f < fields_end; f++)
        if (f->by & by) memcpy((char *)to + f->offset, (const char *)from + f->offset, bytes_of(f));
}

static void set_root(const uint8_t root[32], char out[65])
{
    for (int i = 0; i < 32; i++) snprintf(out + 2 * i, 3, "%02x", root[i]);
}

void neb__status_from_session(const struct neb_session_status *s, struct neb_site_status *out)
{
    snprintf(out->session, sizeof out->session, "%s", s->state);
    snprintf(out->state, sizeof out->state, "%s", s->state);
    snprintf(out->note, sizeof out->note, "%s", s->note);
    snprintf(out->rung, sizeof out->rung, "%s", s->rung[0] ? s->rung : "none");
    snprintf(out->reason, sizeof out->reason, "%s", s->reason);
    set_root(s->root, out->root);
    out->step = out->own_steps = s->steps;
    out->trained_tokens = out->own_tokens = s->own_tokens;
    out->run_tokens = s->tokens;
    out->record = s->applied;
    out->committed = s->commits;
    out->root_record = s->root_at;
    out->merges = s->merges;
    out->rejected = s->rejected;
    out->view = s->view;
    out->epoch = s->epoch;
    out->peers_up = s->peers_up;
    out->peers = s->peers;
    snprintf(out->waiting_for, sizeof out->waiting_for, "%s", s->waiting_for);
    out->waiting_s = s->waiting_s;
    out->bytes_left = (double)s->bytes_left;
    out->seconds_left = s->seconds_left;
    out->dropped = s->dropped;
    out->leader = s->leader;
    out->paused = s->paused;
    out->ended = s->ended;
    out->halted = s->halted;
    out->finished = s->finished;
    out->disk_full = s->disk_full;
    out->interval = s->interval;
    out->ceiling = s->ceiling;
    out->update_bytes = s->update_bytes;
    out->updates = s->updates;
    out->stored = s->stored;
    out->sent = s->bytes_out;
    out->sent_control = s->out[NEB_TRAFFIC_CONTROL];
    out->sent_updates = s->out[NEB_TRAFFIC_UPDATES];
    out->sent_recovery = s->out[NEB_TRAFFIC_RECOVERY];
    out->sent_status = s->out[NEB_TRAFFIC_STATUS];
    out->received = s->bytes_in;
    out->received_control = s->in[NEB_TRAFFIC_CONTROL];
    out->received_updates = s->in[NEB_TRAFFIC_UPDATES];
    out->received_recovery = s->in[NEB_TRAFFIC_RECOVERY];
    out->received_status = s->in[NEB_TRAFFIC_STATUS];
    out->compute_s = s->compute_s;
    out->merge_s = s->merge_s;
    out->wait_s = s->wait_s;
    out->recover_s = s->recover_s;
    out->encode_s = s->encode_s;
    out->apply_s = s->apply_s;
    out->busy_s = s->busy_s;
    out->merge_cpu_s = s->merge_cpu_s;
    out->driver_cpu_s = s->driver_cpu_s;
    out->links_cpu_s = s->links_cpu_s;
}

const char *neb__status_state(const struct neb_site_status *st)
{
    return *st->state ? st->state : st->session;
}

void neb__status_set_pace(struct neb_site_status *st)
{
    size_t size = sizeof st->pace;
    if (!*st->rung)
        *st->pace = 0; /* a receiving site: the sending one shows its pace */
    else if (st->window)
        snprintf(st->pace, size, "%s, %lld ahead", st->rung, (long long)st->window);
    else if (st->interval)
        snprintf(st->pace, size, "%s every %lld steps", st->rung, (long long)st->interval);
    else
        snprintf(st->pace, size, "%s", st->rung);
}

/* ---- to JSON ------------------------------------------------------------------------------------------- */

json_t *neb__status_text_value(const char *text)
{
    json_t *v = json_string(text);
    char ascii[256];
    if (v) return v;
    snprintf(ascii, sizeof ascii, "%s", text);
    for (char *c = ascii; *c; c++)
        if (*c & 0x80) *c = '?';
    return json_string(ascii);
}

static json_t *value_of(const struct neb_site_status *st, const struct field *f)
{
    const void *at = (const char *)st + f->offset;
    if (f->type == FIELD_TEXT) return neb__status_text_value(at);
    if (f->type == FIELD_INT) return json_integer((json_int_t) * (const int64_t *)at);
    if (f->type == FIELD_BOOL) return json_boolean(*(const bool *)at);
    double unit = pow(10, f->size), x = round(*(const double *)at * unit) / unit;
    return json_real(isfinite(x) ? x : 0);
}

/* Returns the length of the first key of a path. */
static size_t first_key(const char *path)
{
    return strcspn(path, ".[");
}

static bool in_table(const char *path)
{
    size_t n = first_key(path);
    for (const struct field *f = fields; f < fields_end; f++)
        if (strlen(f->name) == n && !memcmp(f->name, path, n)) return true;
    return false;
}

/* The places of an array are set in their order. */
static int put_at(json_t *o, const char *path, json_t *v)
{
    size_t n = first_key(path);
    char key[64];
    if (!path[n]) return json_object_set_new(o, path, v);
    snprintf(key, sizeof key, "%.*s", (int)n, path);
    json_t *in = json_object_get(o, key);
    if (!in) {
        in = path[n] == '[' ? json_array() : json_object();
        if (json_object_set_new(o, key, in)) in = NULL;
    }
    if (path[n] == '[') return json_array_append_new(in, v);
    return json_object_set_new(in, path + n + 1, v);
}

json_t *neb__status_old_object(const struct neb_site_status *st, enum neb_status_keys old)
{
    json_t *o = json_object();
    bool ok = o != NULL;
    for (const struct field *f = fields; ok && f < fields_end; f++)
        if (*f->old[old]) ok = !put_at(o, f->old[old], value_of(st, f));
    if (ok) return o;
    json_decref(o);
    return NULL;
}

static json_t *object_of(const struct neb_site_status *st, enum neb_status_keys old, unsigned by)
{
    json_t *o = json_object();
    bool ok = o != NULL;
    for (const struct field *f = fields; ok && f < fields_end; f++)
        if (f->by & by) ok = !json_object_set_new(o, f->name, value_of(st, f));
    for (const struct field *f = fields; ok && f < fields_end; f++)
        if ((f->by & by) && *f->old[old] && !in_table(f->old[old]))
            ok = !put_at(o, f->old[old], value_of(st, f));
    if (ok) return o;
    json_decref(o);
    return NULL;
}

json_t *neb__status_object(const struct neb_site_status *st, enum neb_status_keys old)
{
    bool alone = old == NEB_STATUS_OLD_API; /* seen keys describe a site in a list of sites */
    return object_of(st, old, alone ? NEB_STATUS_EITHER : NEB_STATUS_EITHER | NEB_STATUS_SEEN);
}

char *neb__status_message(const struct neb_site_status *st)
{
    json_t *o = object_of(st, NEB_STATUS_OLD_SITE, NEB_STATUS_EITHER);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    return text;
}

/* ---- from JSON ----------------------------------------------------------------------------------------- */

void neb__status_clean(char *text)
{
    neb__text_clean(text);
}

void neb__status_text(const char *text, char *out, size_t size)
{
    size_t n = strlen(text);
    if (n >= size)
        for (n = size - 1; n && (text[n] & 0xc0) == 0x80;) n--; /* whole characters */
    memcpy(out, text, n);
    out[n] = 0;
    neb__text_clean(out);
}

/* A value of another type leaves the field as it is. */
static void keep(struct neb_site_status *st, const struct field *f, const json_t *v)
{
    void *at = (char *)st + f->offset;
    if (f->type == FIELD_TEXT && json_is_string(v))
        neb__status_text(json_string_value(v), at, (size_t)f->size);
    if (f->type == FIELD_BOOL && json_is_boolean(v)) *(bool *)at = json_is_true(v);
    if (f->type == FIELD_REAL && json_is_number(v)) *(double *)at = json_number_value(v);
    if (f->type == FIELD_INT && json_is_integer(v)) {
        int64_t x = (int64_t)json_integer_value(v);
        *(int64_t *)at = x > 0 ? x : 0; /* all of them count something */
    }
}

static const json_t *find_at(const json_t *o, const char *path)
{
    size_t n = first_key(path);
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)n, path);
    const json_t *in = json_object_get(o, key);
    if (!path[n]) return in;
    if (path[n] == '[') return json_array_get(in, (size_t)atoi(path + n + 1));
    return json_object_get(in, path + n + 1);
}

void neb__status_get(const json_t *o, enum neb_status_keys old, unsigned by, struct neb_site_status *st)
{
    bool new = json_object_get(o, "session") != NULL;
    for (const struct field *f = fields; f < fields_end; f++) {
        const char *key = new ? f->name : f->old[old];
        if ((f->by & by) && *key) keep(st, f, find_at(o, key));
    }
}

bool neb__status_hear(const void *bytes, size_t n, enum neb_status_keys kind, struct neb_site_status *st)
{
    if (n > NEB_STATUS_BYTES) return false;
    json_t *o = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, NULL);
    bool ok = json_is_object(o);
    if (ok) neb__status_get(o, kind, NEB_STATUS_EITHER, st);
    json_decref(o);
    return ok;
}

/* ---- for the documentation ----------------------------------------------------------------------------- */

static const char *said_by(unsigned by)
{
    switch (by) {
    case NEB_STATUS_SESSION: return "session";
    case NEB_STATUS_LOOP: return "loop";
    case NEB_STATUS_EITHER: return "either";
    default: return "seen";
    }
}

neb_status neb__status_fields_table(struct neb_buf *out)
{
    static const char *const where[NEB_STATUS_OLD] = {"site.", "sites[].", "", "members[]."};
    NEB_TRY(neb__buf_printf(out, "| key | unit | said by | meaning | older keys |\n|---|---|---|---|---|\n"));
    for (const struct field *f = fields; f < fields_end; f++) {
        NEB_TRY(neb__buf_printf(out, "| `%s` | %s | %s | %s |", f->name, f->unit, said_by(f->by), f->help));
        for (int k = 0; k < NEB_STATUS_OLD; k++)
            if (*f->old[k] && strcmp(f->old[k], f->name))
                NEB_TRY(neb__buf_printf(out, " `%s%s`", where[k], f->old[k]));
        NEB_TRY(neb__buf_printf(out, " |\n"));
    }
    return NEB_OK;
}
