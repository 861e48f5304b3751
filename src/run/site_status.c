/* site_status.c: the status of this site and of its peers.
 *
 * The session knows the rounds; the training loop, through its meter, knows its loss and speed. Together they
 * are this site's status (watch/status.h). Every two seconds the driver's thread tells it to the peers and
 * writes FOLDER/run/status.json, whole, by renaming. The file is not synced, since it is of no use after a
 * crash. Without rounds (relay, tutor) there is no run folder. The status then goes to the peers whenever the
 * loop says something, since the feeding site goes by it. A peer that comes up is told at once.
 *
 * The statuses of peers are kept as numbers and cleaned texts. They are shown; only split_rate.c acts on
 * them, as on any measurement. A site of the version before sends two kinds of messages, a status and a note:
 * both are read. It understands our status by the older keys in it. Without rounds it reads only notes, so
 * the three numbers of a fed site go out as a note, too. */
#include "run/site_status.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "run/job_facts.h"
#include "run/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int64_t write_every = 2000000000, say_every = 2000000000, far_every = 8000000000;

/* The times and `file` are the driver's. The rest is under the session's lock. */
struct neb_status_board {
    int64_t write_at, say_at, far_at; /* ns: when it was last done */
    struct neb_status_file *file;     /* to be written */
    struct neb_status_log log;
    struct neb_site_status loop; /* the training loop's part */
    bool told;                   /* the loop has said something */
    struct neb_site_status *heard[NEB_SITES_MAX];
    int64_t heard_at[NEB_SITES_MAX]; /* ns */
};

/* The lock is held. NULL: out of memory. */
static struct neb_status_board *board_of(neb_session *s)
{
    if (!s->board) s->board = NEB_NEW(struct neb_status_board);
    return s->board;
}

void neb__session_status_free(neb_session *s)
{
    struct neb_status_board *b = s->board;
    for (int i = 0; b && i < NEB_SITES_MAX; i++) neb__free(b->heard[i]);
    if (b) neb__free(b->file);
    neb__free(b);
    s->board = NULL;
}

/* ---- for the caller ------------------------------------------------------------------------------------ */

static const char *state_of(const neb_session *s)
{
    if (s->halted) return "halted";
    if (s->ended) return "ended";
    if (!s->driver.runs || !s->status.view) return "starting";
    if (!s->status.caught_up) return "catching up";
    if (!s->paused) return "training";
    return s->ending ? "ending" : "waiting";
}

void neb_session_get_status(neb_session *s, struct neb_session_status *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->status;
    out->paused = s->paused;
    out->ended = s->ended;
    out->halted = s->halted;
    out->finished = s->finished;
    out->peers_up = neb__lines_up(&s->lines) + (int64_t)__builtin_popcountll(neb__members_far(&s->members));
    out->peers = (int64_t)__builtin_popcountll(neb__members_roster(&s->members, NULL).members) - 1;
    snprintf(out->note, sizeof out->note, "%.150s", s->why);
    neb__waiting_status(s, out);
    snprintf(out->state, sizeof out->state, "%s", state_of(s));
    pthread_mutex_unlock(&s->lock);
}

/* The lock is held. */
static const struct neb_site_status *said_by(const neb_session *s, uint16_t id)
{
    return s->board ? s->board->heard[id] : NULL;
}

static double goodput_to(neb_session *s, uint16_t id, const struct neb_line *line)
{
    double measured = neb__lines_goodput(&s->lines, id);
    return measured > 0 ? 8 * measured : line->goodput_out;
}

/* The lock is held. */
static void one_member(neb_session *s, uint16_t id, struct neb_session_member *out)
{
    uint16_t leader;
    const struct neb_members roster = neb__members_roster(&s->members, &leader);
    *out = (struct neb_session_member){.id = id,
                                       .self = id == s->self,
                                       .votes = roster.voters & neb__bit(id),
                                       .trains = roster.trains & neb__bit(id),
                                       .leads = id == leader};
    neb__members_name(&s->members, id, out->name);
    if (out->self) {
        out->up = true;
        out->steps = s->status.steps;
        out->applied = s->status.applied;
        snprintf(out->state, sizeof out->state, "%s", state_of(s));
        return;
    }
    const struct neb_site_status *said = said_by(s, id);
    const char *state = said ? said->session : "connected";
    const struct neb_line line = neb__lines_get(&s->lines, id);
    out->up = line.up || (neb__members_far(&s->members) & neb__bit(id));
    out->rtt = line.rtt;
    out->goodput = goodput_to(s, id, &line);
    out->steps = said ? said->own_steps : -1;
    out->applied = said ? said->record : -1;
    snprintf(out->state, sizeof out->state, "%s", out->up ? state : "away");
}

int neb_session_members(neb_session *s, struct neb_session_member *out, int max)
{
    int n = 0;
    pthread_mutex_lock(&s->lock);
    uint64_t members = neb__members_roster(&s->members, NULL).members;
    for (uint16_t i = 0; i < NEB_SITES_MAX && n < max; i++)
        if (members & neb__bit(i)) one_member(s, i, &out[n++]);
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* ---- all that is known of the sites -------------------------------------------------------------------- */

/* The rounds, if there are any, know best how updates are sent. */
static void add_loop(const neb_session *s, const struct neb_site_status *loop, struct neb_site_status *out)
{
    struct neb_site_status session = *out;
    neb__status_copy(out, loop, NEB_STATUS_LOOP);
    if (!s->core || !session.interval) return;
    memcpy(out->rung, session.rung, sizeof out->rung);
    memcpy(out->reason, session.reason, sizeof out->reason);
    out->interval = session.interval;
    neb__status_set_pace(out);
}

void neb__session_own_status(neb_session *s, struct neb_site_status *out)
{
    struct neb_session_status st;
    *out = (struct neb_site_status){0};
    neb_session_get_status(s, &st);
    neb__status_from_session(&st, out);
    neb__status_set_pace(out);
    snprintf(out->name, sizeof out->name, "%s", s->site->name);
    out->token_target = (int64_t)s->config.token_target;
    out->refused = (int64_t)neb__session_refusals(s, out->refused_of, sizeof out->refused_of);
    out->scaled = (int64_t)neb__session_scaled_text(s, out->scaled_of, sizeof out->scaled_of);
    struct neb_privacy_statement spent;
    neb__session_privacy_state(s, &spent);
    out->epsilon_spent = spent.epsilon;
    out->epsilon_limit = spent.limit;
    out->epsilon_delta = spent.delta;
    pthread_mutex_lock(&s->lock);
    out->greetings_dropped = s->greetings_dropped;
    if (s->board && s->board->told) add_loop(s, &s->board->loop, out);
    pthread_mutex_unlock(&s->lock);
}

/* The lock is held. */
static void see_site(neb_session *s, uint16_t id, const struct neb_site_status *own,
                     struct neb_site_status *out)
{
    const struct neb_site_status *said = id == s->self ? own : said_by(s, id);
    *out = said ? *said : (struct neb_site_status){0};
    uint16_t leader;
    const struct neb_members roster = neb__members_roster(&s->members, &leader);
    const struct neb_line line = neb__lines_get(&s->lines, id);
    neb__members_name(&s->members, id, out->name);
    out->id = id;
    out->member = roster.members & neb__bit(id);
    out->votes = roster.voters & neb__bit(id);
    out->trains = roster.trains & neb__bit(id);
    out->leads = id == leader;
    uint16_t via = neb__members_via(&s->members, id);
    out->up = id == s->self || line.up || via != NEB_NO_SITE;
    out->via[0] = 0;
    out->relayed = false;
    if (id == s->self) return;
    if (via != NEB_NO_SITE) neb__members_name(&s->members, via, out->via);
    out->relayed = line.up && line.relayed;
    out->rtt_ms = 1e3 * line.rtt;
    out->goodput_bps = goodput_to(s, id, &line);
    out->goodput_in_bps = line.goodput_in;
    out->line_loss = line.loss;
    out->line_sent = (int64_t)line.bytes_out;
    out->line_received = (int64_t)line.bytes_in;
    out->silent_s = line.up ? line.silent : 0;
    out->age = said ? neb__seconds_since(s->board->heard_at[id]) : 0;
}

/* All sites, as this one sees them. */
static void look(neb_session *s, const struct neb_site_status *own, struct neb_status_file *out)
{
    out->written = (int64_t)time(NULL);
    out->n = 0;
    out->self = -1;
    pthread_mutex_lock(&s->lock);
    uint64_t sites = neb__members_present(&s->members) | neb__members_roster(&s->members, NULL).members |
                     neb__bit(s->self);
    for (uint16_t i = 0; i < NEB_SITES_MAX && out->n < NEB_STATUS_SITES; i++) {
        if (!(sites & neb__bit(i))) continue;
        if (i == s->self) out->self = out->n;
        see_site(s, i, own, &out->site[out->n++]);
    }
    if (s->board) out->log = s->board->log;
    pthread_mutex_unlock(&s->lock);
}

bool neb__session_heard(neb_session *s, const char *name, struct neb_site_status *out)
{
    uint16_t id = neb__members_find(&s->members, s->self, name);
    if (id == NEB_NO_SITE) return false;
    pthread_mutex_lock(&s->lock);
    bool found = said_by(s, id) != NULL;
    if (found) see_site(s, id, NULL, out);
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* A site that catches up has walked over records whose cells it still fetches. */
static bool has_all(const struct neb_site_status *said, int64_t record)
{
    bool behind = !strcmp(said->session, "starting") || !strcmp(said->session, "catching up");
    return said->record >= record && !behind;
}

bool neb__session_peer_lacks_end(neb_session *s)
{
    bool lacks = false;
    pthread_mutex_lock(&s->lock);
    uint64_t links = neb__members_reached(&s->members) & neb__members_roster(&s->members, NULL).members;
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        if (i == s->self || !(links & neb__bit(i))) continue;
        const struct neb_site_status *said = said_by(s, i);
        lacks |= !said || (!said->halted && !said->ended && !has_all(said, s->status.applied));
    }
    pthread_mutex_unlock(&s->lock);
    return lacks;
}

/* ---- the peers ----------------------------------------------------------------------------------------- */

struct audience {
    uint64_t linked, far; /* far: through members; the driver alone may tell these */
};

static void send_to(neb_session *s, struct audience to, uint32_t kind, const char *text)
{
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        if (to.linked & neb__bit(i)) neb__session_send(s, i, NEB_CONTROL, kind, text, strlen(text));
        if (to.far & neb__bit(i)) neb__session_reach(s, i, kind, text, strlen(text));
    }
}

/* A loss tells of the samples of its steps, and no noise protects it. The number of steps without one tells, too, and so does the length of
 * work that was dropped. */
static struct neb_site_status for_others(const neb_session *s, const struct neb_site_status *own)
{
    struct neb_site_status told = *own;
    if (s->privacy.rule.unit != NEB_PRIVACY_NONE) told.loss = 0, told.nonfinite = 0, told.dropped = 0;
    return told;
}

static void say(neb_session *s, struct audience to, const struct neb_site_status *own)
{
    const struct neb_site_status told = for_others(s, own);
    char *text = to.linked | to.far ? neb__status_message(&told) : NULL, note[120];
    if (text && strlen(text) <= NEB_STATUS_BYTES) send_to(s, to, NEB_MSG_STATUS, text);
    free(text);
    if (s->core || !own->until) return;
    snprintf(note, sizeof note, "{\"until\":%lld,\"takes\":%.6g,\"starved\":%.6g}", (long long)own->until,
             own->takes, own->starved);
    send_to(s, to, NEB_MSG_NOTE, note); /* for a site of the version before */
}

void neb__session_tell_peer(neb_session *s, uint16_t peer)
{
    struct neb_site_status own;
    neb__session_own_status(s, &own);
    say(s, (struct audience){.far = neb__bit(peer)}, &own); /* over its link, if it has one */
}

void neb__session_status_heard(neb_session *s, uint16_t peer, uint32_t kind, const uint8_t *bytes, size_t n)
{
    struct neb_site_status said = {0};
    if (peer >= NEB_SITES_MAX) return;
    pthread_mutex_lock(&s->lock);
    struct neb_status_board *b = board_of(s);
    if (b && b->heard[peer]) said = *b->heard[peer];
    pthread_mutex_unlock(&s->lock);
    /* the driver alone writes `heard` */
    if (!b ||
        !neb__status_hear(bytes, n, kind == NEB_MSG_NOTE ? NEB_STATUS_OLD_OUT : NEB_STATUS_OLD_SITE, &said))
        return;
    pthread_mutex_lock(&s->lock);
    if (!b->heard[peer]) b->heard[peer] = NEB_NEW(struct neb_site_status);
    if (b->heard[peer]) *b->heard[peer] = said;
    b->heard_at[peer] = neb__now_ns();
    pthread_mutex_unlock(&s->lock);
}

uint64_t neb__session_finished_peers(neb_session *s)
{
    uint64_t peers = 0;
    pthread_mutex_lock(&s->lock);
    for (uint16_t i = 0; s->board && i < NEB_SITES_MAX; i++)
        if (s->board->heard[i] && s->board->heard[i]->finished) peers |= neb__bit(i);
    pthread_mutex_unlock(&s->lock);
    return peers;
}

int64_t neb__session_steps_of(neb_session *s, uint16_t id)
{
    pthread_mutex_lock(&s->lock);
    const struct neb_site_status *said = said_by(s, id);
    int64_t steps = said ? said->own_steps : -1;
    pthread_mutex_unlock(&s->lock);
    return steps;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

/* On the driver's thread. */
static void note_log_end(neb_session *s, struct neb_status_board *b)
{
    struct neb_round_status st;
    struct neb_status_log end;
    neb__round_status(s->core, &st);
    end = (struct neb_status_log){.record = (int64_t)st.commit,
                                  .epoch = (int64_t)st.roster.epoch,
                                  .members = (int64_t)st.roster.members,
                                  .voters = (int64_t)st.roster.voters,
                                  .trains = (int64_t)st.roster.trains,
                                  .heavy = (int64_t)st.roster.heavy};
    neb__hash_hex(&st.commit_hash, end.hash);
    snprintf(end.run, sizeof end.run, "%s", s->run);
    pthread_mutex_lock(&s->lock);
    b->log = end;
    pthread_mutex_unlock(&s->lock);
}

static void write_file(neb_session *s, struct neb_status_board *b, struct neb_site_status *own, bool last)
{
    char folder[600];
    if (last && strcmp(own->session, "ended")) {
        snprintf(own->session, sizeof own->session, "stopped");
        if (strcmp(own->state, "done")) snprintf(own->state, sizeof own->state, "stopped");
    }
    if (!b->file) b->file = NEB_NEW(struct neb_status_file);
    if (!b->file) return;
    note_log_end(s, b);
    look(s, own, b->file);
    snprintf(folder, sizeof folder, "%s/run", s->site->dir);
    if (neb__status_file_write(folder, b->file) != NEB_OK) neb__debug("%s", neb_last_error());
}

void neb__session_tell_soon(neb_session *s)
{
    if (s->board) s->board->say_at = s->board->write_at = s->board->far_at = 0;
}

void neb__session_tell(neb_session *s, bool last)
{
    int64_t now = neb__now_ns();
    struct neb_site_status own;
    if (!s->core) return; /* streams alone: there is no run folder */
    pthread_mutex_lock(&s->lock);
    struct neb_status_board *b = board_of(s);
    pthread_mutex_unlock(&s->lock);
    if (!b) return;
    bool file = last || now - b->write_at >= write_every, peers = !last && now - b->say_at >= say_every;
    if (!file && !peers) return;
    neb__session_own_status(s, &own);
    bool far = peers && now - b->far_at >= far_every;
    struct audience all = {neb__members_links(&s->members), far ? neb__members_far(&s->members) : 0};
    if (peers) say(s, all, &own), b->say_at = now;
    if (far) b->far_at = now;
    if (file) write_file(s, b, &own, last), b->write_at = now;
}

/* ---- for the meter ------------------------------------------------------------------------------------- */

static void meter_tell(neb_session *s, const struct neb_site_status *loop)
{
    struct neb_site_status own;
    pthread_mutex_lock(&s->lock);
    struct neb_status_board *b = board_of(s);
    bool news = b && strcmp(b->loop.state, loop->state);
    if (b) b->loop = *loop, b->told = true;
    pthread_mutex_unlock(&s->lock);
    if (!b || (s->core && !news)) return; /* rounds: the driver tells the rest in its turn */
    neb__session_own_status(s, &own);
    say(s, (struct audience){.linked = neb__members_links(&s->members)}, &own);
}

static void meter_look(neb_session *s, struct neb_status_file *out)
{
    struct neb_site_status own;
    neb__session_own_status(s, &own);
    look(s, &own, out);
}

static uint64_t meter_lost(neb_session *s)
{
    uint64_t all = neb__members_present(&s->members) | neb__members_roster(&s->members, NULL).members,
             lost = 0;
    for (uint16_t i = 0; i < NEB_SITES_MAX; i++) {
        if (i == s->self || !(all & neb__bit(i))) continue;
        const struct neb_line line = neb__lines_get(&s->lines, i);
        if (!line.up || line.silent > NEB_STATUS_SILENT_S) lost |= neb__bit(i);
    }
    return lost;
}

const struct neb_meter_run neb__session_meter = {meter_tell, meter_look, meter_lost, neb__news_read};
