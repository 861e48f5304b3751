/* stream.h (internal): one end of a stream, seen from a training loop.
 *
 * The links' streams (net/net.h) live on the links' thread; a training loop calls from its own. Between the
 * two stands this struct, under its lock: a producer's items wait in `head` until the links' thread has
 * written them to the journal; a consumer's wait there until the loop gets them. */
#ifndef NEB_RUN_STREAM_H
#define NEB_RUN_STREAM_H

#include "run/session.h"
#include "net/journal.h"

struct neb_entry {
    struct neb_entry *next;
    uint64_t item;
    size_t size;
    uint8_t data[];
};

struct neb_stream {
    struct neb_stream_config
        config; /* with the defaults filled in; the texts are not owned and not used after open */
    neb_session *session;
    neb_stream *next; /* of the session's */
    uint16_t peer;
    char name[40];                /* of the other site, for messages */
    struct neb_journal *journal;  /* a folder instead of a site: the loop's thread alone */
    struct neb_net_stream *links; /* the links' thread alone; NULL: ended, or a folder */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct neb_entry *head, **tail;
    size_t waiting_bytes;
    int64_t waiting;
    bool posted; /* producer: the links' thread is on its way to fetch what waits */
    bool held;   /* consumer: an item was turned away, the links wait to be resumed */
    bool ended;
    neb_status why;            /* the reason of the end */
    char note[256];            /* the session's reason, if the session ended it */
    bool told;                 /* finish: the other end knows, or cannot be told */
    struct neb_notice *notice; /* finish: asked to be told; the links' thread alone */
    uint64_t last, received, retained, durable, bytes;
    uint64_t limit; /* producer: the last item that is wanted, as far as this end knows */
    double wait_s;
    int waits;                 /* enum neb_wait_beside: what the loop waits for here; 0: nothing */
    int64_t waited_at;         /* ns: when it last did */
    struct neb_entry *current; /* consumer: the item that get() handed out last */
    struct neb_buf read;       /* the same of a folder; producer: an item of its journal */
    uint64_t asked;            /* of a call on the links' thread: an item, or bytes */
};

/* As neb_stream_open(). A consumer leaves the items behind `retained`, which is at most the mark, in the producer's journal: an older
 * checkpoint may need them. */
neb_status neb__stream_open_keeping(neb_session *s, const struct neb_stream_config *c, uint64_t retained,
                                    neb_stream **out);

/* Runs fn(st) on the links' thread and waits for it. NEB_ERR_STATE: the links are closing. */
neb_status neb__stream_call(neb_stream *st, neb_status (*fn)(neb_stream *st));

/* Waits on `changed` with the lock held, at most until `until_ns` (negative: for ever). False: too late.
 * `what`: enum neb_wait_beside, for the session's note. */
bool neb__stream_wait(neb_stream *st, int what, int64_t until_ns);
/* What was waited for is there. The lock is held. */
void neb__stream_goes_on(neb_stream *st);
int64_t neb__stream_until(double wait_s);

/* Waits until n items can be put, or got, without waiting. NEB_ERR_TIMEOUT; NEB_ERR_CANCELLED and others as
 * put and get. */
neb_status neb__stream_ready(neb_stream *st, int64_t n, double wait_s);

/* Sets the credit of the producer, the room of the consumer. */
void neb__stream_window(neb_stream *st, int64_t items);
/* Producer: neb__stream_ready() stops at this item, since no more are wanted so far. */
void neb__stream_limit(neb_stream *st, uint64_t item);

/* Producer: the journal may hold that many bytes until the consumer's checkpoints cover them; 4 GiB in any case. */
neb_status neb__stream_allow(neb_stream *st, uint64_t bytes);
/* Producer: an item that was put before this process began; good until the next call. NEB_ERR_NOTFOUND: the journal does not
 * hold it */
neb_status neb__stream_recall(neb_stream *st, uint64_t item, const uint8_t **bytes, size_t *n);

/* Says why the stream is over; gives that status. The lock is held. */
neb_status neb__stream_over(neb_stream *st);

void neb__stream_forget_notice(neb_stream *st);

extern const struct neb_net_stream_producer neb__stream_producer;
extern const struct neb_net_stream_consumer neb__stream_consumer;

#endif
