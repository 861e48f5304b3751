/* nebula.h: a training loop of any framework becomes a member of a run on several sites.
 *
 *     neb_session *s;
 *     neb_session_open("site-folder", &config, &s);
 *     for each trainable parameter: neb_session_register(s, &param);     fp32, the values stay yours
 *     neb_session_start(s);                                            links, ledger, catching up
 *     for (;;) {
 *         … one optimizer step …
 *         neb_step(s, tokens, &changed);     merges what the others did into your parameters
 *     }
 *     neb_session_close(s);
 *
 * Between two calls of neb_step() the parameters are yours alone. neb_step() takes microseconds unless a
 * round is due. It never waits for the network, except at the drift limit and at the end of the run.
 *
 * All sites register the same parameters, in any order, with the same initial values. Any difference is found
 * and named before the first round. One thread calls these functions.
 *
 * Sites with different roles (one produces what the other consumes) use streams instead, described at the end
 * of this file. A session without parameters takes part in no rounds: it has links, and streams over them;
 * its neb_step() counts, and tells what does not fit.
 */
#ifndef NEBULA_NEBULA_H
#define NEBULA_NEBULA_H

#include <nebula/engine.h>
#include <nebula/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct neb_session neb_session;

struct neb_session_config {
    int64_t interval;      /* H: inner steps between two rounds of one part of the model */
    int64_t fragments;     /* the model is sent in this many parts, one after the other; 0: chosen */
    int64_t drift_steps;   /* inner steps without a round before neb_step() waits; 0: 8 intervals or 2000 */
    bool drift_wait;       /* false: go on past the limit; the late work counts less when merged */
    uint64_t token_target; /* tokens of all sites together that end the run; 0: no end */
    float outer_lr, outer_momentum; /* 0.7, 0.6 */
    const char *rung; /* "auto": rung and interval follow line and quality; or a name: fp32, int8, int4… */
    const char *prefer;        /* "cost": the cheapest that does no harm; "quality": the best that fits */
    double max_bytes_per_hour; /* the most that sending updates may take, all peers together; 0: no limit */
    const char *listen;        /* HOST:PORT; NULL: as the roster says */
    int64_t round_ms;          /* how long a round waits for slow members; 0: 30 s */
    double max_rate;           /* bits per second a link may send; 0: no limit */
    double ledger_quota;       /* bytes that stored updates may take on disk; 0: no limit */
    /* For privacy: every update of this site is cut to the norm `clip` and gets noise of deviation `noise` in
     * each value before it is coded; 0: off. The part that is cut off and the part that the code leaves out
     * are then dropped, not sent later. */
    double clip, noise;
    bool archive; /* keep every update for ever, so that the run can be replayed from its beginning */
    /* How the run ends. "drop" (or NULL): each site sends one last update of every part, and what that leaves
     * out is dropped; so the end takes at most `end_seconds` (0: four rounds, at least 10 s) and `end_bytes`
     * of this site (0: four rounds). "keep": the end lasts until everything is in, to the bit. */
    const char *end;
    double end_seconds, end_bytes;
    const char *
        name; /* of the run, at most 63 bytes: a folder can hold several, one after another; NULL: it holds one */
    /* Every round is merged exactly so many inner steps after its copy was taken, and the loop waits for it there:
     * the run has the same result at any speed. Needs a fixed rung, one fragment and fewer steps than `interval`.
     * -1: a round is merged as soon as it is there. */
    int64_t merge_after;
    /* How this site dials, where it cannot do so itself. proxy: http://HOST:PORT or socks5://HOST:PORT, with
     * USER:PASSWORD@ before HOST if need be; "none": none; NULL: as https_proxy, all_proxy and no_proxy say. dial: a
     * command whose standard input and output carry the connection, such as "ssh login -W %h:%p"; NULL: none. */
    const char *proxy, *dial;
};

/* interval 100, drift as above, auto, cost, 0.7, 0.6, drop, merge_after -1. */
NEB_API struct neb_session_config neb_session_defaults(void);

/* folder: made by `nebula-i site init`; it holds the run's roster.
 *   NEB_ERR_NOTFOUND, NEB_ERR_BUSY (another process runs this site), NEB_ERR_AUTH, NEB_ERR_CONFIG,
 *   NEB_ERR_NOMEM */
NEB_API neb_status neb_session_open(const char *folder, const struct neb_session_config *c,
                                    neb_session **out);

/* The same from a job file, for a training loop of one's own. Its `sites:` and `wan:` are used; its settings
 * for the native trainer are only checked, so native and foreign sites can share one file. words:
 * `section.key=value`, ended by NULL, or NULL. job or site NULL: as NEBULA_JOB and NEBULA_SITE say, which
 * `nebula-i lab JOB -- COMMAND` sets. If `site` is that of NEBULA_SITE, the lines of NEBULA_SETTINGS are words,
 * too, and come last.
 *   NEB_ERR_CONFIG with file and line; also a job whose sites are not those of the folder's roster */
NEB_API neb_status neb_session_open_job(const char *job, const char *site, const char *const *words,
                                        neb_session **out);

struct neb_session_param {
    const char *name;
    int ndim;
    int64_t shape[4];     /* global */
    int64_t first, count; /* local range in values of the flattened parameter; count 0: all */
    float *values;        /* local values; host memory, or the device's; NULL with read and write */
    neb_device *device;   /* NULL: host */
    /* For values that only the caller can reach (another framework's device, another type): these copy the n
     * fp32 values from `first` on out of the parameter, and into it. They run in the caller's thread, inside
     * neb_session_start(), neb_step() and neb_session_save(), and must not call these functions themselves.
     * An error they return is returned by that call. A write that fails must have changed nothing: the next
     * neb_step() tries it again. */
    neb_status (*read)(void *arg, int64_t first, int64_t n, float *out);
    neb_status (*write)(void *arg, int64_t first, int64_t n, const float *in);
    void *arg;
};

/* NEB_ERR_STATE: after start; NEB_ERR_EXISTS: the name is taken; NEB_ERR_UNSUPPORTED: a partial range (one
 * process per site); NEB_ERR_SHAPE, NEB_ERR_NOMEM */
NEB_API neb_status neb_session_register(neb_session *s, const struct neb_session_param *p);

/* For bindings to other languages: register read = neb_values_read, write = neb_values_write and arg = a struct
 * neb_values that outlives the session. The binding may change it between two calls. */
struct neb_values {
    float *at; /* where the values lie now, in the host's memory; NULL: `read` and `write` copy them */
    /* *status is an error until they set it, so code that was interrupted before its first line has failed. */
    void (*read)(void *arg, int64_t first, int64_t n, float *out, neb_status *status);
    void (*write)(void *arg, int64_t first, int64_t n, const float *in, neb_status *status);
    void *arg;
};
NEB_API neb_status neb_values_read(void *values, int64_t first, int64_t n, float *out);
NEB_API neb_status neb_values_write(void *values, int64_t first, int64_t n, const float *in);

/* Restores the state that neb_session_save() made, from the caller's checkpoint. Call it between the last
 * register and start. The parameters then need not hold the checkpoint's values: start sets them.
 * NEB_ERR_CORRUPT; NEB_ERR_CONFIG: the state of another model. */
NEB_API neb_status neb_session_load(neb_session *s, const void *bytes, size_t n);

/* Connects, replays the ledger and sets the parameters to this site's state. At a site's very first start the
 * parameters hold the initial values, the same at all sites; later they may hold anything. wait_s: how long
 * to wait for a quorum before going on alone; 0: not at all.
 *   NEB_ERR_CONFIG    a peer trains another model (the message names the peer and the difference), or the
 *                     site's folder holds a run of another model
 *   NEB_ERR_RANGE     an initial value is not finite
 *   NEB_ERR_CORRUPT, NEB_ERR_IO, NEB_ERR_NET, NEB_ERR_NOMEM
 *   NEB_ERR_UNSUPPORTED  this machine's arithmetic */
NEB_API neb_status neb_session_start(neb_session *s, double wait_s);

/* Call it after every optimizer step. *changed: the parameters were changed (a round was merged).
 *   NEB_ERR_CANCELLED   the run has ended; the parameters hold its result
 *   NEB_ERR_NONFINITE   a parameter is NaN or infinite: nothing of it was sent
 *   NEB_ERR_IO, NEB_ERR_NOSPACE, NEB_ERR_STATE   this site cannot go on committing; training may */
NEB_API neb_status neb_step(neb_session *s, int64_t tokens, bool *changed);

/* The same for callers that must not block long (an interpreter that handles signals). It returns
 * NEB_ERR_AGAIN after wait_s seconds of waiting. Then call neb_step_within(s, NEB_NO_STEP, …) until it
 * returns another status: it merges and waits, and counts no step. */
enum { NEB_NO_STEP = -1 };
NEB_API neb_status neb_step_within(neb_session *s, int64_t tokens, double wait_s, bool *changed);

/* The same in two halves, for callers to whom it is work to say where the parameters are. This one counts the step and
 * touches no parameter. *due false: the step is complete. Else go on with neb_step_within(s, NEB_NO_STEP, …), which also
 * tells what went wrong.
 *   NEB_ERR_STATE (not started, or the outer state is shown) */
NEB_API neb_status neb_step_counted(neb_session *s, int64_t tokens, bool *due);

/* Writes the session's part of a checkpoint to `out`. With out NULL it sets *n to the room that may be
 * needed; otherwise to the bytes written. */
NEB_API neb_status neb_session_save(neb_session *s, void *out, size_t *n);

enum neb_traffic {
    NEB_TRAFFIC_CONTROL,  /* the protocol's own messages */
    NEB_TRAFFIC_UPDATES,  /* coded updates */
    NEB_TRAFFIC_RECOVERY, /* cells and updates for a site that catches up */
    NEB_TRAFFIC_STATUS,
    NEB_TRAFFICS
};

struct neb_session_status {
    int64_t steps, commits, merges, rejected, epoch, view, peers_up, peers;
    int64_t applied; /* index of the newest record that is applied */
    int64_t tokens;  /* of all sites together, committed */
    int64_t own_tokens;
    bool leader, paused, ended, halted, caught_up;
    bool disk_full;   /* commits wait for room; training goes on */
    uint8_t root[32]; /* state root after record `root_at` */
    int64_t root_at;  /* newest record with a root: every few records and the last; 0: no root yet */
    int64_t bytes_out, bytes_in;
    union { /* updates sent; `parcels` is its older name */
        int64_t updates, parcels;
    };
    int64_t out[NEB_TRAFFICS], in[NEB_TRAFFICS]; /* the same by kind */
    int64_t stored;                              /* bytes of updates on disk */
    /* The training loop's time by use: outside neb_step(); copying and merging in it; waiting in it for the
     * others; starting and catching up. Their sum is the time since neb_session_start(). */
    double compute_s, merge_s, wait_s, recover_s;
    /* Beside it, the time of the session's own thread: coding, applying, and all its work, including waits
     * for the disk. */
    double encode_s, apply_s, busy_s;
    /* Processor time that the run takes from the training: in neb_step(), in the session's own thread, in the
     * links' threads. */
    double merge_cpu_s, driver_cpu_s, links_cpu_s;
    /* The newest decision of the rate controller. */
    char rung[16];
    int64_t interval, decisions;
    double ceiling; /* bytes; below 0: the line is not measured yet */
    union {         /* of the newest update; `parcel_bytes` is its older name */
        double update_bytes, parcel_bytes;
    };
    char reason[200];
    char state[16]; /* starting, catching up, training, waiting, ending, ended, halted */
    char note[280]; /* why the site halted, or for whom and for what it waits */
    /* While it waits: for which sites, for how long by now, how much has to come or to leave, and how long
     * that takes. bytes_left, seconds_left below 0: not known. waiting_s 0: it does not wait. */
    char waiting_for[96];
    double waiting_s, seconds_left;
    int64_t bytes_left;
    /* The end of the run, with end "drop": the share of this site's last work, as a norm, that was dropped. */
    double dropped;
    bool finished; /* neb_session_finish() was called */
};
NEB_API void neb_session_get_status(neb_session *s, struct neb_session_status *out);

/* The status and the members as one JSON object, ended by 0, for languages that should not depend on the
 * layout of the struct. *n: room in `out`; set to the length. NEB_ERR_NOSPACE: *n is the room needed;
 * NEB_ERR_NOMEM */
NEB_API neb_status neb_session_status_json(neb_session *s, char *out, size_t *n);

struct neb_session_member {
    char name[64];
    int64_t id, steps, applied; /* steps and record as the member last reported; -1: not reported yet */
    bool self, up, votes, trains, leads;
    double rtt, goodput; /* seconds; bits per second of updates towards it, 0: not measured yet */
    char state[16];      /* as in the status, or "away" */
};
/* The members of the run as this site sees them, at most `max`; returns how many. */
NEB_API int neb_session_members(neb_session *s, struct neb_session_member *out, int max);

/* Makes the parameters hold the outer state instead of this site's live values, and back. All sites share the
 * outer state, and it is exported in the end. Meant for evaluation: no optimizer step and no neb_step() may
 * come in between.
 *   NEB_ERR_STATE (not started, or asked twice), NEB_ERR_NOMEM */
NEB_API neb_status neb_session_show_outer(neb_session *s, bool outer);
/* Tells the rate controller the held-out loss of the outer state, so it can notice that its settings do
 * harm. */
NEB_API void neb_session_loss(neb_session *s, double loss);

/* For a member that votes and stores but does not train: neb_step() without a step. Returns after `seconds`,
 * or when the run ends (NEB_ERR_CANCELLED). */
NEB_API neb_status neb_session_attend(neb_session *s, double seconds);

/* For a run that ends by steps: says that this site makes no more of them. Go on with
 * neb_step_within(s, NEB_NO_STEP, …) until it returns NEB_ERR_CANCELLED. The run ends at its token target, if it
 * has one, or when every site that trains and is in reach has said this; a site that is away holds the end for
 * half a minute. By then the work of all is committed.
 *   NEB_ERR_STATE (not started), NEB_ERR_NOMEM */
NEB_API neb_status neb_session_finish(neb_session *s);

/* Asks for the end of the run: everything is committed, then neb_step() returns NEB_ERR_CANCELLED at all
 * sites. */
NEB_API neb_status neb_session_leave(neb_session *s);
/* Leaves at once, joins the session's threads, releases. NULL is fine. A program that exits without it does no
 * harm: exit() leaves the run and stops the threads of every open session. `read` and `write` must not call
 * exit(). In a child of fork() it does nothing, since the session belongs to the parent. */
NEB_API void neb_session_close(neb_session *s);

/* ---- streams: numbered items from one site to another, each exactly once
 * ---------------------------------------------
 *
 *     producer                                            consumer
 *     neb_stream_open(s, {site, 1, produce, mark}, &out)  neb_stream_open(s, {site, 1, mark}, &in)
 *     neb_stream_put(out, ++item, bytes, n, -1)           neb_stream_get(in, -1, &bytes, &n, &item)
 *     neb_stream_sync(out, -1); save a checkpoint         save a checkpoint; neb_stream_retain(in, item)
 *     neb_stream_drain(out, -1)                           neb_stream_finish(in, 10)
 *
 * Items are numbered 1, 2, 3… Each side opens with the mark of its own checkpoint: how many items it covers.
 * Even if processes are killed, links cut or sites restarted in between, the consumer gets mark + 1, mark +
 * 2… once each. A producer that went back to its checkpoint puts items that are already in its journal again;
 * the journal keeps the old bytes. The producer runs ahead of the consumer by its credit at most; then put
 * waits. */
typedef struct neb_stream neb_stream;

struct neb_stream_config {
    const char *site;   /* the other end, by its name in the roster; NULL: a folder, see `folder` */
    const char *folder; /* with site NULL: a journal here is appended to or read, without any link */
    uint32_t number;    /* of this stream between the two sites: 1 to 65535, the same at both ends */
    bool produce;       /* this end puts; else it gets */
    uint64_t mark;      /* items that this side's checkpoint covers */
    int64_t items;      /* producer: credit; consumer: most items waiting here. 0: 64 */
    size_t bytes;       /* consumer: most bytes on their way, and most waiting here. 0: 16 MiB */
};

/* After neb_session_start(); s may be NULL for a folder. A successful open owes a close, before the
 * session's.
 *   NEB_ERR_NOTFOUND  no such site
 *   NEB_ERR_EXISTS    open already
 *   NEB_ERR_STATE     the session has not started
 *   NEB_ERR_CORRUPT   the journal is damaged, or holds fewer items than the mark says
 *   NEB_ERR_INVALID, NEB_ERR_IO, NEB_ERR_NOMEM */
NEB_API neb_status neb_stream_open(neb_session *s, const struct neb_stream_config *c, neb_stream **out);

/* Copies the bytes. wait_s: how long to wait for credit; negative: without limit.
 *   NEB_OK             put, or there already
 *   NEB_ERR_TIMEOUT    no credit in that time; nothing was put
 *   NEB_ERR_CANCELLED  the consumer has finished: no more is wanted
 *   NEB_ERR_INVALID    not the next number
 *   NEB_ERR_LIMIT      more than 16 MiB
 *   NEB_ERR_NOSPACE, NEB_ERR_IO  the journal cannot be written
 *   NEB_ERR_CORRUPT    the two ends' checkpoints do not fit together; the log says why */
NEB_API neb_status neb_stream_put(neb_stream *st, uint64_t item, const void *bytes, size_t n, double wait_s);

/* Producer: waits until all items put are on this site's disk. Call it before saving a checkpoint that covers
 * them. NEB_ERR_TIMEOUT, NEB_ERR_IO */
NEB_API neb_status neb_stream_sync(neb_stream *st, double wait_s);

/* Producer, at its end: waits until a checkpoint of the consumer covers everything, or the consumer has
 * finished. The consumer's next get then returns NEB_ERR_CANCELLED. NEB_ERR_TIMEOUT */
NEB_API neb_status neb_stream_drain(neb_stream *st, double wait_s);

/* The next item; the bytes are valid until the next call for this stream.
 *   NEB_ERR_TIMEOUT    no item in that time
 *   NEB_ERR_CANCELLED  the producer has ended the stream
 *   NEB_ERR_CORRUPT    the producer no longer has the items this site needs, or the folder's journal is
 *                      damaged */
NEB_API neb_status neb_stream_get(neb_stream *st, double wait_s, const void **bytes, size_t *n,
                                  uint64_t *item);

/* Consumer: says that a checkpoint on disk covers every item up to this one, so the producer may delete them.
 * NEB_ERR_INVALID: the item was not got */
NEB_API neb_status neb_stream_retain(neb_stream *st, uint64_t item);

/* Consumer, at its end, after retaining everything it got: tells the producer that it wants no more items and
 * waits for the confirmation. NEB_ERR_TIMEOUT: the producer may not know. */
NEB_API neb_status neb_stream_finish(neb_stream *st, double wait_s);

struct neb_stream_status {
    uint64_t last;     /* the newest item put, or got */
    uint64_t received; /* the newest item that has reached the consumer */
    uint64_t retained; /* the newest item that a checkpoint of the consumer covers */
    uint64_t bytes;    /* of the items put or got by this process */
    double wait_s;     /* spent waiting: for credit, or for items */
    bool linked;       /* the other site is connected */
};
NEB_API void neb_stream_get_status(neb_stream *st, struct neb_stream_status *out);
NEB_API void neb_stream_close(neb_stream *st); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
