/* status.h: the status of a site: one table of fields.
 *
 * The table makes the struct, the JSON of a site, the message to the peers, the objects of status.json and
 * the table of docs/status.md (`nebula-i status --fields`). A new field is one line here, and one line where
 * its value is set.
 *
 * The session (the rounds) or the training loop (the meter) says a field of its own site. A field may also be
 * seen from another site (its line, its place in the run). Each field may have older names: keys of the
 * version before, which are written and read for one release. There are four of them, for these places:
 *
 *     1  `site` and `others` in FOLDER/run/status.json, and the message between sites
 *     2  `sites` in OUT/status.json, and the note between sites
 *     3  neb_session_status_json()
 *     4  `members` in FOLDER/run/status.json */
#ifndef NEB_WATCH_STATUS_H
#define NEB_WATCH_STATUS_H

#include <nebula/nebula.h>

/* TEXT(name, bytes with the 0, unit, said by, older names, meaning), INT(name, …), REAL(name,
 * decimals, …), BOOL(name, …) */
/* clang-format off */
#define NEB_STATUS_FIELDS(TEXT, INT, REAL, BOOL)                                                                            \
    TEXT(name, 64, "", SESSION, OLD("name", "site", "site", "name"), "the site's name in the roster")                       \
    TEXT(job, 64, "", LOOP, OLD("", "", "", ""), "the name of the job that it runs")                                        \
    TEXT(strategy, 16, "", LOOP, OLD("", "", "", ""), "`replica`, `relay`, `tutor`, `pipeline`")                                        \
    TEXT(role, 16, "", LOOP, OLD("", "role", "", ""), "what the site does in the job; `alone` without other sites")         \
    TEXT(state, 16, "", LOOP, OLD("", "state", "", ""),                                                                     \
         "what the training loop does: training, teaching, waiting, evaluating, witness, observer, done, stopped; "                   \
         "if the loop is silent, `session`")                                                                           \
    TEXT(session, 16, "", SESSION, OLD("state", "", "state", "state"),                                                      \
         "how the rounds are: starting, catching up, training, waiting, ending, ended, halted, stopped")                    \
    TEXT(note, 280, "", SESSION, OLD("note", "", "note", ""), "why the site halted, or what it waits for")                  \
    TEXT(waiting_for, 96, "", SESSION, OLD("", "", "", ""), "sites that it waits for; empty: it does not wait")              \
    REAL(waiting_s, 1, "s", SESSION, OLD("", "", "", ""), "since it waits; 0: it does not")                                 \
    REAL(bytes_left, 0, "bytes", SESSION, OLD("", "", "", ""), "to come or to leave until it goes on; below 0: not known")  \
    REAL(seconds_left, 1, "s", SESSION, OLD("", "", "", ""), "until it goes on, as estimated; below 0: not known")          \
    REAL(dropped, 4, "", SESSION, OLD("", "", "", ""), "share of its last work, as a norm, that the end of the run dropped") \
    INT(step, "steps", LOOP, OLD("", "step", "", ""), "made since the training began")                                      \
    INT(steps_planned, "steps", LOOP, OLD("", "steps", "", ""), "of the job")                                               \
    INT(own_steps, "steps", SESSION, OLD("step", "", "steps", "step"), "made since the process started")                    \
    INT(trained_tokens, "tokens", LOOP, OLD("", "tokens", "", ""), "of this site since the training began")                 \
    INT(own_tokens, "tokens", SESSION, OLD("own_tokens", "", "own_tokens", ""), "of this site since the process started")   \
    INT(run_tokens, "tokens", SESSION, OLD("tokens", "", "tokens", ""), "of all sites together, committed")                 \
    INT(token_target, "tokens", SESSION, OLD("", "", "token_target", ""), "that end the run; 0: none")                      \
    REAL(loss, 6, "", LOOP, OLD("", "loss", "", ""), "of the training, smoothed")                                           \
    REAL(tokens_per_second, 1, "tokens/s", LOOP, OLD("", "tokens_per_second", "", ""), "in the last second")                \
    INT(record, "", SESSION, OLD("record", "", "applied", "record"), "index of the newest record that is applied")          \
    INT(committed, "", SESSION, OLD("committed", "", "commits", ""), "index of the newest record that is committed")        \
    TEXT(root, 65, "", SESSION, OLD("root", "", "root", ""), "hash of the outer state after record `root_record`")          \
    INT(root_record, "", SESSION, OLD("root_record", "", "root_at", ""), "the newest record whose root was made; 0: none")  \
    INT(merges, "", SESSION, OLD("", "", "merges", ""), "records merged into the live parameters")                          \
    INT(rejected, "", SESSION, OLD("", "", "rejected", ""), "updates that came too late and were dropped")                  \
    INT(view, "", SESSION, OLD("view", "", "view", ""), "of the leader's term; 0: no leader yet")                           \
    INT(epoch, "", SESSION, OLD("epoch", "", "epoch", ""), "of the members")                                                \
    BOOL(leader, SESSION, OLD("leader", "", "leader", ""), "the site leads the rounds")                                     \
    BOOL(paused, SESSION, OLD("", "", "paused", ""), "it waits for the other sites at its drift limit")                     \
    BOOL(ended, SESSION, OLD("", "", "ended", ""), "the run has ended")                                                     \
    BOOL(finished, SESSION, OLD("", "", "", ""), "it has made its steps; the run ends when the others have, too")           \
    BOOL(halted, SESSION, OLD("", "", "halted", ""), "the site cannot go on; `note` says why")                              \
    BOOL(disk_full, SESSION, OLD("disk_full", "", "disk_full", ""), "commits wait for room; training goes on")              \
    TEXT(rung, 48, "", EITHER, OLD("rung", "", "rung", ""), "how updates or items are coded; `none`: not chosen yet")       \
    INT(interval, "steps", EITHER, OLD("interval", "", "interval", ""), "between two updates (H)")                          \
    INT(window, "batches", LOOP, OLD("", "", "", ""), "that the sending site may be ahead")                                 \
    TEXT(pace, 80, "", EITHER, OLD("", "rung", "", ""), "rung with interval or window, to be shown")                        \
    TEXT(reason, 200, "", EITHER, OLD("reason", "", "reason", ""), "why rung, interval or window are what they are")        \
    REAL(ceiling, 0, "bytes", SESSION, OLD("ceiling", "", "", ""), "the line's budget for an update; below 0: not measured")\
    REAL(update_bytes, 0, "bytes", SESSION, OLD("parcel_bytes", "", "", ""), "of the newest update")                        \
    INT(updates, "", SESSION, OLD("parcels", "", "parcels", ""), "sent")                                                    \
    INT(stored, "bytes", SESSION, OLD("stored", "", "", ""), "of updates on disk")                                          \
    INT(sent, "bytes", SESSION, OLD("", "", "bytes_out", ""), "of the session, since the process started")                  \
    INT(sent_control, "bytes", SESSION, OLD("bytes_out.control", "", "", ""), "messages of the protocol")                   \
    INT(sent_updates, "bytes", SESSION, OLD("bytes_out.updates", "", "", ""), "coded updates")                              \
    INT(sent_recovery, "bytes", SESSION, OLD("bytes_out.recovery", "", "", ""), "for a site that catches up")               \
    INT(sent_status, "bytes", SESSION, OLD("bytes_out.status", "", "", ""), "this status")                                  \
    INT(received, "bytes", SESSION, OLD("", "", "bytes_in", ""), "as `sent`")                                               \
    INT(received_control, "bytes", SESSION, OLD("bytes_in.control", "", "", ""), "")                                        \
    INT(received_updates, "bytes", SESSION, OLD("bytes_in.updates", "", "", ""), "")                                        \
    INT(received_recovery, "bytes", SESSION, OLD("bytes_in.recovery", "", "", ""), "")                                      \
    INT(received_status, "bytes", SESSION, OLD("bytes_in.status", "", "", ""), "")                                          \
    REAL(link_out, 0, "bit/s", LOOP, OLD("", "link_out", "", ""), "sent in the last second, streams included")              \
    REAL(link_in, 0, "bit/s", LOOP, OLD("", "link_in", "", ""), "received in the last second")                              \
    REAL(compute_s, 6, "s", SESSION, OLD("seconds.compute", "", "compute_s", ""), "outside `neb_step()`: the training")     \
    REAL(merge_s, 6, "s", SESSION, OLD("seconds.merge", "", "merge_s", ""),                                                 \
         "in `neb_step()`: copies for captures, merging what the others did")                                               \
    REAL(wait_s, 6, "s", SESSION, OLD("seconds.wait", "", "wait_s", ""),                                                    \
         "in `neb_step()`: at the drift limit, and at the end until everything is in")                                      \
    REAL(recover_s, 6, "s", SESSION, OLD("seconds.recover", "", "recover_s", ""), "starting, and catching up")              \
    REAL(encode_s, 6, "s", SESSION, OLD("beside.encode", "", "encode_s", ""), "coding, beside the training")                \
    REAL(apply_s, 6, "s", SESSION, OLD("beside.apply", "", "apply_s", ""), "applying records, beside the training")         \
    REAL(busy_s, 6, "s", SESSION, OLD("beside.busy", "", "", ""),                                                           \
         "all that the session's own thread had to do, waiting for the disk included")                                      \
    REAL(merge_cpu_s, 6, "s", SESSION, OLD("", "", "merge_cpu_s", ""), "processor time of `neb_step()`")                    \
    REAL(driver_cpu_s, 6, "s", SESSION, OLD("", "", "driver_cpu_s", ""), "processor time of the session's own thread")      \
    REAL(links_cpu_s, 6, "s", SESSION, OLD("", "", "links_cpu_s", ""), "processor time of the links' thread")               \
    REAL(share_compute, 1, "%", LOOP, OLD("", "time[0]", "", ""), "of the loop's time: training, evaluating, checkpoints")  \
    REAL(share_encode, 1, "%", LOOP, OLD("", "time[1]", "", ""), "copies for the exchange, merging")                        \
    REAL(share_wait, 1, "%", LOOP, OLD("", "time[2]", "", ""), "for other sites, credit, data")                             \
    REAL(share_recover, 1, "%", LOOP, OLD("", "time[3]", "", ""), "coming back")                                            \
    INT(until, "items", LOOP, OLD("", "until", "", ""), "a receiving site: the last item that it wants")                    \
    REAL(takes, 3, "items/s", LOOP, OLD("", "takes", "", ""), "a receiving site: taken while it does not wait")             \
    REAL(starved, 4, "", LOOP, OLD("", "starved", "", ""), "a receiving site: share of its time waiting for items")         \
    TEXT(hardware, 48, "", LOOP, OLD("", "", "", ""), "the device that it trains on")                                       \
    INT(ranks, "processes", LOOP, OLD("", "", "", ""), "that train together at this site")                                  \
    INT(trainable, "values", LOOP, OLD("", "", "", ""), "of the model that are trained; 0: not known")                      \
    REAL(trained_s, 1, "s", LOOP, OLD("", "", "", ""), "of training so far")                                                \
    REAL(planned_s, 1, "s", LOOP, OLD("", "", "", ""), "of training that end the job (`train.minutes`); 0: no limit")       \
    INT(nonfinite, "steps", LOOP, OLD("", "", "", ""), "in a row, up to now, whose loss was not finite")                    \
    REAL(disk_free, 0, "bytes", LOOP, OLD("", "", "", ""), "of room where it writes; 0: not known")                         \
    INT(peers_up, "", SESSION, OLD("", "", "peers_up", ""), "other sites that it is connected to")                          \
    INT(peers, "", SESSION, OLD("", "", "peers", ""), "other members")                                                      \
    INT(refused, "", SESSION, OLD("", "", "", ""), "messages and requests of other sites that a quota refused")             \
    TEXT(refused_of, 160, "", SESSION, OLD("", "", "", ""), "whose they were, and of what kind (docs/trust.md)")            \
    INT(greetings_dropped, "", SESSION, OLD("", "", "", ""), "connections closed because too many waited to be greeted")    \
    INT(scaled, "", SESSION, OLD("", "", "", ""), "updates that entered shorter than they came, by the rule of influence")  \
    TEXT(scaled_of, 120, "", SESSION, OLD("", "", "", ""), "whose they were (docs/trust.md)")                               \
    REAL(epsilon_spent, 4, "", SESSION, OLD("", "", "", ""), "of its privacy budget so far; 0: the site has none")             \
    REAL(epsilon_limit, 4, "", SESSION, OLD("", "", "", ""), "its privacy budget; 0: no limit")                                \
    REAL(epsilon_delta, 12, "", SESSION, OLD("", "", "", ""), "the delta for which the epsilons hold")                         \
    INT(id, "", SEEN, OLD("", "", "", "id"), "of the site in the roster")                                                   \
    BOOL(member, SEEN, OLD("", "", "", ""), "the log counts it among the members")                                          \
    BOOL(up, SEEN, OLD("", "", "", "up"), "this site is connected to it, or reaches it through another member")             \
    TEXT(via, 64, "", SEEN, OLD("", "", "", ""), "the member through which this site reaches it; empty: a direct line, or none") \
    BOOL(relayed, SEEN, OLD("", "", "", ""), "the line to it goes through a relay host (docs/relay.md)")                                 \
    BOOL(votes, SEEN, OLD("", "", "", "votes"), "it votes")                                                                 \
    BOOL(trains, SEEN, OLD("", "", "", "trains"), "it trains; a witness or observer does not")                                        \
    BOOL(leads, SEEN, OLD("", "", "", "leads"), "this site takes it for the leader")                                        \
    REAL(rtt_ms, 2, "ms", SEEN, OLD("", "", "", "rtt_ms"), "round trip to it")                                              \
    REAL(goodput_bps, 0, "bit/s", SEEN, OLD("", "", "", "goodput_bps"), "of updates towards it; 0: not measured yet")       \
    REAL(goodput_in_bps, 0, "bit/s", SEEN, OLD("", "", "", ""), "from it, as it measures; 0: not measured yet")             \
    REAL(line_loss, 5, "", SEEN, OLD("", "", "", ""), "recent share of bytes towards it that TCP sent again")               \
    INT(line_sent, "bytes", SEEN, OLD("", "", "", ""), "of payload that it has acknowledged")                               \
    INT(line_received, "bytes", SEEN, OLD("", "", "", ""), "of payload that came from it")                                  \
    REAL(silent_s, 1, "s", SEEN, OLD("", "", "", ""), "since it last answered a heartbeat; 0 for this site, and while it is not connected")\
    REAL(age, 1, "s", SEEN, OLD("age", "age", "", ""), "since it said so; 0 for this site")
/* clang-format on */

struct neb_site_status {
#define NEB__TEXT(name, size, unit, by, old, help)     char name[size];
#define NEB__INT(name, unit, by, old, help)            int64_t name;
#define NEB__REAL(name, decimals, unit, by, old, help) double name;
#define NEB__BOOL(name, by, old, help)                 bool name;
    NEB_STATUS_FIELDS(NEB__TEXT, NEB__INT, NEB__REAL, NEB__BOOL)
#undef NEB__TEXT
#undef NEB__INT
#undef NEB__REAL
#undef NEB__BOOL
};

enum neb_status_by {
    NEB_STATUS_SESSION = 1,
    NEB_STATUS_LOOP = 2,
    NEB_STATUS_EITHER = 3,
    NEB_STATUS_SEEN = 4
};

/* The place whose older keys an object has besides those of the table (a note: instead of them). */
enum neb_status_keys {
    NEB_STATUS_OLD_SITE,
    NEB_STATUS_OLD_OUT,
    NEB_STATUS_OLD_API,
    NEB_STATUS_OLD_MEMBER,
    NEB_STATUS_OLD
};

enum {
    NEB_STATUS_BYTES = 16 << 10,
    NEB_STATUS_SITES = 64,
    NEB_STATUS_SILENT_S = 2 /* a line without an answer for longer than this is silent */
};

/* Sets the fields that a session knows, the name and the target excepted. */
void neb__status_from_session(const struct neb_session_status *s, struct neb_site_status *out);

/* Copies every field that one of `by` says (bits of enum neb_status_by). */
void neb__status_copy(struct neb_site_status *to, const struct neb_site_status *from, unsigned by);

/* Sets pace from rung, interval and window: "int4 every 20 steps", "top 16, 8 bits, 34 ahead";
 * "" without a rung. */
void neb__status_set_pace(struct neb_site_status *st);

/* The state to show: the loop's, or the session's if the loop has said nothing. */
const char *neb__status_state(const struct neb_site_status *st);

/* Make a text from outside safe to show on a terminal (base/printable.h). The second copies it, cut to its room. */
void neb__status_clean(char *text);
void neb__status_text(const char *text, char *out, size_t size);

/* ---- JSON ---------------------------------------------------------------------------------------------- */

struct json_t;

/* Returns a new object with every key of the table, and with those older keys of `old` that have no other meaning now.
 * The status of a site alone (NEB_STATUS_OLD_API) leaves out the keys that are seen. NULL: out of memory. */
struct json_t *neb__status_object(const struct neb_site_status *st, enum neb_status_keys old);
/* Returns a new text. JSON is UTF-8: a text that was cut within a character, or never was UTF-8, is written as ASCII. */
struct json_t *neb__status_text_value(const char *text);
/* Returns a new object with the older keys alone. */
struct json_t *neb__status_old_object(const struct neb_site_status *st, enum neb_status_keys old);

/* Sets the fields that one of `by` says from an object of this version, or from one of the version before
 * with the keys `old`. The object may hold anything: a key of another type is ignored, and a field without a
 * key stays as it is. */
void neb__status_get(const struct json_t *o, enum neb_status_keys old, unsigned by,
                     struct neb_site_status *st);

/* Takes what a peer says of itself. NEB_STATUS_OLD_SITE: a status; NEB_STATUS_OLD_OUT: the note of the
 * version before. The bytes may be anything. False: they are not an object, or too long. Fields that are seen
 * from here stay as they are. */
bool neb__status_hear(const void *bytes, size_t n, enum neb_status_keys kind, struct neb_site_status *st);

/* Returns the text of a message, which owes a free(). NULL: out of memory. */
char *neb__status_message(const struct neb_site_status *st);

/* ---- status.json --------------------------------------------------------------------------------------- */

/* The end of the log. An order names it. */
struct neb_status_log {
    int64_t record, epoch, members, voters, trains, heavy;
    char hash[65]; /* "": there is no log */
    char run[64];  /* its name; "": a run without one */
};

struct neb_status_file {
    int64_t written; /* unix seconds */
    int n, self;     /* self: place of the site that writes; -1: not among them */
    struct neb_status_log log;
    struct neb_site_status site[NEB_STATUS_SITES]; /* in the order of their ids */
};

/* Replaces FOLDER/status.json by renaming, so a reader sees the old one or the new one. It is not synced,
 * since the next one comes in a moment. NEB_ERR_IO, NEB_ERR_NOMEM (quiet) */
neb_status neb__status_file_write(const char *folder, const struct neb_status_file *f);

/* Also reads files of the version before. NEB_ERR_CORRUPT names the place; NEB_ERR_NOTFOUND, NEB_ERR_IO */
neb_status neb__status_file_read(const char *path, struct neb_status_file *out);

/* Appends the fields as a table in markdown. NEB_ERR_NOMEM */
struct neb_buf;
neb_status neb__status_fields_table(struct neb_buf *out);

#endif
