/* news.h (internal): what happened in the run, in words: who was left out of a round, named, scaled, removed. The meter puts it
 * into the site's timeline; a reader that is slow loses the oldest. */
#ifndef NEB_RUN_NEWS_H
#define NEB_RUN_NEWS_H

#include "round/round.h"

#include <nebula/nebula.h>
#include <pthread.h>

enum { NEB_NEWS = 128, NEB_NEWS_KIND = 16, NEB_NEWS_TEXT = 240 };

struct neb_news {
    pthread_mutex_t lock; /* a leaf; over the list */
    uint64_t n;           /* how many there were */
    struct {
        char kind[NEB_NEWS_KIND], text[NEB_NEWS_TEXT];
    } item[NEB_NEWS];
    /* the driver's alone */
    uint64_t record; /* the last one that was looked at */
    bool begun;
    uint64_t missed[NEB_SITES_MAX]; /* rounds without the site */
};

void neb__news_init(struct neb_news *n);
void neb__news_free(struct neb_news *n);
/* On any thread. The text may name a site; it is cleaned where it is shown. */
void neb__news_add(neb_session *s, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* On the driver's thread: what the records say that were committed since the last call. Those from before this process were
 * told by the one before it. */
void neb__news_follow(neb_session *s, const struct neb_round_status *st);
/* Calls fn for those behind the first *after, and moves *after. */
void neb__news_read(neb_session *s, uint64_t *after,
                    void (*fn)(void *arg, const char *kind, const char *text), void *arg);

#endif
