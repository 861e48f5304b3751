/* meter.h: measures what a site does, once a second: for the metrics database, OUT/status.json, the other
 * sites and the display. One meter serves every strategy.
 *
 * Every second between begin and the last sample is compute, encode, wait or recover. The last three are
 * measured and the first is the rest, so the four always add up.
 *
 * A line that is lost or falls silent makes the next sample come at once: who watches must see it soon. */
#ifndef NEB_WATCH_METER_H
#define NEB_WATCH_METER_H

#include "store/metrics.h"
#include "job/job.h"
#include "watch/status.h"

enum neb_time { NEB_TIME_COMPUTE, NEB_TIME_ENCODE, NEB_TIME_WAIT, NEB_TIME_RECOVER, NEB_TIMES };
extern const char *const neb__time_names[NEB_TIMES];

/* Kinds of traffic: the session's, and behind them the stream of relay and tutor. */
enum { NEB_METER_STREAM = NEB_TRAFFICS, NEB_METER_KINDS };
extern const char *const neb__kind_names[NEB_METER_KINDS];

/* How a site of a split job uses its line. A value that the site does not know is "" or 0. */
struct neb_meter_split {
    char rung[40]; /* the sending site: how items are coded */
    char why[200]; /* the sending site: why rung and window are what they are */
    int64_t window;
    double takes, starved; /* the receiving site: items/s while it does not wait, share of its time waiting */
    uint64_t until;        /* the receiving site: the last item that it wants */
    double out, in;        /* bytes of other streams than the meter's own, sent and received */
};

/* How a meter reaches the other sites;
 * src/run has the only one, so that this folder need not know sessions. */
struct neb_meter_run {
    /* Takes what the loop says of this site: the fields of NEB_STATUS_LOOP. */
    void (*tell)(neb_session *s, const struct neb_site_status *loop);
    /* Gives all sites as this one knows them, itself among them. */
    void (*look)(neb_session *s, struct neb_status_file *out);
    /* Gives a bit for each site whose line is down or silent. */
    uint64_t (*lost)(neb_session *s);
    /* Calls fn for what happened in the run behind the first *after, and moves *after. */
    void (*news)(neb_session *s, uint64_t *after, void (*fn)(void *arg, const char *kind, const char *text),
                 void *arg);
};

struct neb_meter {
    const struct neb_job *job;
    struct neb_metrics *metrics;
    neb_session *session; /* NULL: alone */
    const struct neb_meter_run *run;
    neb_stream *stream; /* of this site's part of a split job, or NULL */
    const struct neb_meter_split *split;
    bool produces;
    int alive;         /* a lock on OUT/alive, which ends with the process; -1: none */
    int64_t trainable; /* values of the model; 0: not known */
    int64_t start_ns, sample_ns;
    double time[NEB_TIMES];
    double before[NEB_TIMES], bytes_before[2],
        kind_before[NEB_METER_KINDS]; /* earlier starts, from the database */
    double waited;                    /* besides the waiting that the session and the data count themselves */
    double rate, link_out, link_in;   /* of the last sample: tokens/s, bits/s */
    struct neb_session_status last;
    double bytes[2]; /* out, in, of this process, at the last sample */
    int64_t last_tokens;
    int peers;
    uint64_t lost;   /* as neb_meter_run.lost() said at the last sample */
    int64_t lost_ns; /* when it was asked */
    uint64_t up, silent,
        relayed; /* bits of the sites whose lines are up; that do not answer heartbeats; through a relay host */
    int64_t refused; /* as the last event said */
    uint64_t news;   /* of the session, as far as they are events */
    char leader[64]; /* the site that leads, as the last event said */
    bool waiting;
    double waiting_since;     /* seconds waited when it began */
    char pace[80], line[256]; /* pace: as in the status */
};

/* The values that the loop knows. */
struct neb_meter_point {
    int64_t step, tokens;
    double loss, data_wait; /* data_wait: seconds spent waiting for data so far */
    double seconds;         /* trained so far */
    int nonfinite;          /* steps in a row whose loss was not finite */
};

/* `run` reaches `session`. It is not used if that is NULL. */
void neb__meter_begin(struct neb_meter *m, const struct neb_job *job, struct neb_metrics *metrics,
                      neb_session *session, const struct neb_meter_run *run, int64_t tokens);
/* From now on the stream's bytes count, too (NULL: those that `split` counts). The stream and `split` must outlive the last sample. */
void neb__meter_stream(struct neb_meter *m, neb_stream *stream, const struct neb_meter_split *split,
                       bool produces);
/* The device and the size of what is trained, for the status. */
void neb__meter_model(struct neb_meter *m, int64_t trainable);
/* Gives the lock back. The meter may not have begun. */
void neb__meter_end(struct neb_meter *m);
void neb__meter_add(struct neb_meter *m, enum neb_time kind, double seconds);
/* Does nothing until a second has passed since the last one, unless `now`. state: "training", "done" … */
void neb__meter_sample(struct neb_meter *m, const struct neb_meter_point *p, const char *state, bool now);
void neb__meter_event(struct neb_meter *m, int64_t step, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* "0.3 Mbit/s out, 0.2 in  int4 every 20 steps  compute 97 % encode 1 % wait 2 % recover 0 %",
 * of the last sample. */
const char *neb__meter_line(const struct neb_meter *m);

#endif
