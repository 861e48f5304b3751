/* site_status.c: how a site is: for the caller, for `nebula-i status` at this site, and for the other sites.
 *
 * Every two seconds the driver's thread writes FOLDER/run/status.json, whole, by renaming; it is not synced, since it is of
 * no use after a crash. Every two seconds the site's own part goes to the peers, and what they sent stands in the same
 * file, so that the run can be seen from any site:
 *
 *     {"version": 1, "written": unix seconds, "site": {…}, "members": [{…}, …], "others": {"NAME": {…, "age": s}, …},
 *      "log": {"record", "hash", "epoch", "members", "voters", "trains", "heavy"}}
 *
 * `site` and each of `others` hold the same keys (own_status() below). What peers say is shown, never acted upon; it is
 * parsed and written anew, and one that is too long or no object is dropped. */
#include "run/session.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STATUS_MAX = 16 << 10 };
static const int64_t write_every = 2000000000, say_every = 2000000000;

static const char *const traffic_names[NEB_TRAFFICS] = {"control", "updates", "recovery", "status"};

/* ---- for the caller -------------------------------------------------------------------------------------------- */

static const char *state_of(const neb_session *s)
{
    if (s->halted) return "halted";
    if (s->ended) return "ended";
    if (!s->driver_runs || !s->status.view) return "starting";
    if (!s->status.caught_up) return "catching up";
    return s->paused ? (s->ending ? "ending" : "waiting") : "training";
}

void neb_session_get_status(neb_session *s, struct neb_session_status *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->status;
    out->paused = s->paused;
    out->ended = s->ended;
    out->halted = s->halted;
    out->peers = out->peers_up = 0;
    for (int i = 0; i < NEB_SITES_MAX; i++) out->peers_up += s->lines.line[i].up;
    out->peers = (int64_t)__builtin_popcountll(s->members.members) - 1;
    snprintf(out->note, sizeof out->note, "%.150s", s->why);
    snprintf(out->state, sizeof out->state, "%s", state_of(s));
    pthread_mutex_unlock(&s->lock);
}

static void say_number(const json_t *said, const char *key, int64_t *out)
{
    const json_t *v = said ? json_object_get(said, key) : NULL;
    *out = json_is_integer(v) ? (int64_t)json_integer_value(v) : -1;
}

/* The lock is held. */
static void one_member(neb_session *s, uint16_t id, struct neb_session_member *out)
{
    *out = (struct neb_session_member){.id = id,
                                       .self = id == s->self,
                                       .votes = s->members.voters & neb__bit(id),
                                       .trains = s->members.trains & neb__bit(id),
                                       .leads = id == s->leader};
    snprintf(out->name, sizeof out->name, "%s", s->names[id]);
    if (out->self) {
        out->up = true;
        out->steps = s->status.steps;
        out->applied = s->status.applied;
        snprintf(out->state, sizeof out->state, "%s", state_of(s));
        return;
    }
    const struct neb_line *l = &s->lines.line[id];
    out->up = l->up;
    out->rtt = l->rtt;
    out->goodput = s->lines.goodput[id] > 0 ? 8 * s->lines.goodput[id] : l->goodput_out;
    json_t *said = s->said[id] ? json_loads(s->said[id], 0, NULL) : NULL;
    const char *state = said ? json_string_value(json_object_get(said, "state")) : NULL;
    say_number(said, "step", &out->steps);
    say_number(said, "record", &out->applied);
    snprintf(out->state, sizeof out->state, "%.15s", !l->up ? "away" : state ? state : "connected");
    json_decref(said);
}

int neb_session_members(neb_session *s, struct neb_session_member *out, int max)
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    for (uint16_t i = 0; i < NEB_SITES_MAX && n < max; i++)
        if (s->members.members & neb__bit(i)) one_member(s, i, &out[n++]);
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* ---- as JSON --------------------------------------------------------------------------------------------------- */

static double rounded(double x, double unit)
{
    return isfinite(x) ? round(x / unit) * unit : 0;
}

static json_t *traffic(const int64_t *bytes)
{
    json_t *o = json_object();
    for (int i = 0; i < NEB_TRAFFICS; i++)
        json_object_set_new(o, traffic_names[i], json_integer((json_int_t)bytes[i]));
    return o;
}

static json_t *own_status(neb_session *s)
{
    struct neb_session_status st;
    struct neb_hash root;
    char hex[2 * NEB_HASH_SIZE + 1];
    neb_session_get_status(s, &st);
    memcpy(root.b, st.root, sizeof root.b);
    neb__hash_hex(&root, hex);
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:I, s:b, s:s, s:I, s:s, s:f, s:f, s:o, "
        "s:o, "
        "s:I, s:I, s:{s:f, s:f, s:f, s:f}, s:{s:f, s:f, s:f}, s:s}",
        "name", s->site->name, "state", st.state, "step", (json_int_t)st.steps, "own_tokens",
        (json_int_t)st.own_tokens, "tokens", (json_int_t)st.tokens, "record", (json_int_t)st.applied,
        "committed", (json_int_t)st.commits, "view", (json_int_t)st.view, "epoch", (json_int_t)st.epoch,
        "leader", (int)st.leader, "root", hex, "root_record", (json_int_t)st.root_at, "disk_full",
        (int)st.disk_full, "rung", st.rung[0] ? st.rung : "none", "interval", (json_int_t)st.interval,
        "reason", st.reason, "ceiling", rounded(st.ceiling, 1), "parcel_bytes", rounded(st.update_bytes, 1),
        "bytes_out", traffic(st.out), "bytes_in", traffic(st.in), "parcels", (json_int_t)st.updates, "stored",
        (json_int_t)st.stored, "seconds", "compute", rounded(st.compute_s, 0.001), "merge",
        rounded(st.merge_s, 0.001), "wait", rounded(st.wait_s, 0.001), "recover",
        rounded(st.recover_s, 0.001), "beside", "encode", rounded(st.encode_s, 0.001), "apply",
        rounded(st.apply_s, 0.001), "busy", rounded(st.busy_s, 0.001), "note", st.note);
}

static json_t *member_list(neb_session *s)
{
    struct neb_session_member *m = NEB_NEW_ARRAY(struct neb_session_member, NEB_SITES_MAX);
    json_t *list = json_array();
    int n = m ? neb_session_members(s, m, NEB_SITES_MAX) : 0;
    for (int i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:I, s:s, s:b, s:b, s:b, s:b, s:I, s:I, s:f, s:f}", "name", m[i].name,
                            "id", (json_int_t)m[i].id, "state", m[i].state, "up", (int)m[i].up, "votes",
                            (int)m[i].votes, "trains", (int)m[i].trains, "leads", (int)m[i].leads, "step",
                            (json_int_t)m[i].steps, "record", (json_int_t)m[i].applied, "rtt_ms",
                            rounded(m[i].rtt * 1e3, 0.01), "goodput_bps", rounded(m[i].goodput, 1)));
    neb__free(m);
    return list;
}

static json_t *what_others_say(neb_session *s)
{
    json_t *all = json_object();
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        json_t *said = s->said[i] ? json_loads(s->said[i], 0, NULL) : NULL;
        if (said) {
            json_object_set_new(said, "age", json_real(rounded(neb__seconds_since(s->heard[i]), 0.1)));
            char name[NEB_NAME_SIZE];
            neb__session_name(s, (uint16_t)i, name);
            json_object_set(all, name, said);
        }
        json_decref(said);
    }
    return all;
}

/* ---- the file and the peers ------------------------------------------------------------------------------------- */

/* Where the log ends, for orders: they name it. */
static json_t *log_end(neb_session *s)
{
    struct neb_round_status st;
    char hex[2 * NEB_HASH_SIZE + 1];
    neb__round_status(s->core, &st);
    neb__hash_hex(&st.commit_hash, hex);
    return json_pack("{s:I, s:s, s:I, s:I, s:I, s:I, s:I}", "record", (json_int_t)st.commit, "hash", hex,
                     "epoch", (json_int_t)st.roster.epoch, "members", (json_int_t)st.roster.members, "voters",
                     (json_int_t)st.roster.voters, "trains", (json_int_t)st.roster.trains, "heavy",
                     (json_int_t)st.roster.heavy);
}

static void write_file(neb_session *s, json_t *own, bool last)
{
    char path[600], tmp[620];
    if (last && strcmp(json_string_value(json_object_get(own, "state")), "ended"))
        json_object_set_new(own, "state", json_string("stopped"));
    json_t *all = json_pack("{s:i, s:I, s:O, s:o, s:o}", "version", 1, "written", (json_int_t)time(NULL),
                            "site", own, "members", member_list(s), "others", what_others_say(s));
    if (all) json_object_set_new(all, "log", log_end(s));
    snprintf(path, sizeof path, "%s/run/status.json", s->site->dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (!all || json_dump_file(all, tmp, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) || rename(tmp, path)) {
        unlink(tmp);
        neb__debug("status.json was not written");
    }
    json_decref(all);
}

static void say(neb_session *s, json_t *own)
{
    char *text = json_dumps(own, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) return;
    size_t n = strlen(text);
    for (uint16_t i = 0; n <= STATUS_MAX && i < NEB_SITES_MAX; i++) {
        pthread_mutex_lock(&s->lock);
        bool up = s->lines.line[i].up;
        pthread_mutex_unlock(&s->lock);
        if (up) neb__session_send(s, i, NEB_CONTROL, NEB_MSG_STATUS, text, n);
    }
    free(text);
}

void neb__session_tell(neb_session *s, bool last)
{
    int64_t now = neb__now_ns();
    if (!s->core) return; /* streams alone: there is no run folder */
    bool file = last || now - s->status_at >= write_every, peers = !last && now - s->say_at >= say_every;
    if (!file && !peers) return;
    json_t *own = own_status(s);
    if (!own) return;
    if (peers) say(s, own), s->say_at = now;
    if (file) write_file(s, own, last), s->status_at = now;
    json_decref(own);
}

void neb__session_status_heard(neb_session *s, uint16_t peer, const uint8_t *bytes, size_t n)
{
    if (peer >= NEB_SITES_MAX || n > STATUS_MAX) return;
    json_t *said = json_loadb((const char *)bytes, n, JSON_REJECT_DUPLICATES, NULL);
    char *text = json_is_object(said) ? json_dumps(said, JSON_COMPACT) : NULL;
    char *copy = text ? neb__strdup(text) : NULL;
    free(text);
    json_decref(said);
    if (!copy) return;
    pthread_mutex_lock(&s->lock);
    neb__free(s->said[peer]);
    s->said[peer] = copy;
    s->heard[peer] = neb__now_ns();
    pthread_mutex_unlock(&s->lock);
}
