/* rollcall.c: which rank is stuck, where the ranks are on several machines.
 *
 * Nobody sees the other machines' beats. So a rank that has waited for most of its time asks all ranks of the site, and each answers
 * wherever it shows a beat: while it waits for others, and between two calls of its device. A rank that has not answered when the time
 * is over is stuck or gone, and the one that asked names it. Ranks that only wait for that one have answered.
 *
 * A message is one number: twice the number of the question, plus one in an answer. The messages go through a group of their own, so
 * that they meet no other message between two ranks. A receive from every rank is always under way; it ends with the process. */
#include "group/group_internal.h"
#include "base/mem.h"

#include <stdio.h>

#define LOOK_EVERY_NS INT64_C(20000000)

struct message {
    int64_t word;
    void *request; /* NULL: none is under way */
};

struct neb_roll {
    struct neb_roll *next; /* of those that are closed */
    const struct neb_group_engine *engine;
    void *ctx;
    int rank, size;
    int64_t looked, question;
    struct member {
        struct message heard, asked, answered;
        bool here; /* has answered the present question */
    } member[NEB_GROUP_RANKS];
};

static void listen_to(struct neb_roll *roll, int rank)
{
    struct message *m = &roll->member[rank].heard;
    if (roll->engine->receive(roll->ctx, &m->word, sizeof m->word, rank, &m->request) != NEB_OK)
        m->request = NULL;
}

/* Whether the message is over; one that failed is. */
static bool over(struct neb_roll *roll, struct message *m, bool *arrived)
{
    int done = 0;
    *arrived = false;
    if (!m->request) return true;
    neb_status status = roll->engine->test(roll->ctx, m->request, &done);
    *arrived = status == NEB_OK && done;
    if (status != NEB_OK || done) m->request = NULL;
    return !m->request;
}

/* A rank that takes nothing gets no second message. */
static void tell(struct neb_roll *roll, int rank, struct message *m, int64_t word)
{
    bool arrived;
    if (!over(roll, m, &arrived)) return;
    m->word = word;
    if (roll->engine->send(roll->ctx, &m->word, sizeof m->word, rank, &m->request) != NEB_OK)
        m->request = NULL;
}

neb_status neb__roll_open(struct neb_group *g)
{
    struct neb_group_place place;
    struct neb_roll *roll = NEB_NEW(struct neb_roll);
    if (!roll) return neb__fail(NEB_ERR_NOMEM, "out of memory for a group of ranks");
    neb_status status = g->engine->split(g->ctx, 0, &roll->ctx, &place);
    if (status != NEB_OK) {
        neb__free(roll);
        return status;
    }
    roll->engine = g->engine;
    roll->rank = place.rank;
    roll->size = place.size;
    g->roll = roll;
    for (int r = 0; r < roll->size; r++)
        if (r != roll->rank) listen_to(roll, r);
    return NEB_OK;
}

/* The engine may still write where a receive is under way, so the struct stays. */
void neb__roll_close(struct neb_roll *roll)
{
    static struct neb_roll *closed;
    if (!roll) return;
    roll->engine->close(roll->ctx);
    roll->next = closed;
    closed = roll;
}

static void hear(struct neb_roll *roll, int rank)
{
    struct member *m = &roll->member[rank];
    bool arrived;
    if (!m->heard.request || !over(roll, &m->heard, &arrived) || !arrived) return;
    const int64_t word = m->heard.word;
    if (word & 1)
        m->here = m->here || word / 2 == roll->question;
    else
        tell(roll, rank, &m->answered, word + 1);
    listen_to(roll, rank);
}

void neb__roll_beat(struct neb_roll *roll)
{
    const int64_t now = neb__group_clock();
    if (!roll || now - roll->looked < LOOK_EVERY_NS) return;
    roll->looked = now;
    for (int r = 0; r < roll->size; r++)
        if (r != roll->rank) hear(roll, r);
}

void neb__roll_ask(struct neb_roll *roll)
{
    if (!roll) return;
    roll->question++;
    for (int r = 0; r < roll->size; r++) {
        roll->member[r].here = r == roll->rank;
        if (r != roll->rank) tell(roll, r, &roll->member[r].asked, 2 * roll->question);
    }
}

int neb__roll_missing(const struct neb_roll *roll, char *names, size_t size)
{
    int missing = 0;
    size_t n = 0;
    *names = 0;
    for (int r = 0; roll && r < roll->size; r++) {
        if (roll->member[r].here) continue;
        if (n < size) n += (size_t)snprintf(names + n, size - n, missing ? ", %d" : "%d", r);
        missing++;
    }
    return missing;
}
