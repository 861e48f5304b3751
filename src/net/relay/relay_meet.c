/* relay_meet.c: strangers that meet: two guests who name the same id may exchange a few short messages.
 *
 * This is how two sites pair before there is a roster: the id comes from a code that their people told each other. The host
 * passes on what they say and understands none of it; whoever needs secrecy or authenticity makes it in the messages.
 *
 * Everything is bounded, since nobody has proved anything: the number of guests that wait or talk, the attempts from one
 * network, the messages and their size, the time. When all places are taken, the network with the most of them gives one up.
 *
 * An id brings two guests to a talk once. The talk begins when one of them says a second message: in a pairing the first is in the
 * open and says nothing of the words, the second proves them. From then on the id is remembered as over, so that a guess at a code costs
 * whoever guesses a meeting, and the rightful two notice. A guest that comes and says nothing, or goes, has used nothing up: the other
 * may come again, and a third may wait meanwhile. */
#include "net/relay/relay_host_internal.h"
#include "base/clock.h"
#include "base/log.h"

#include <string.h>

#define MET_TEXT "two have met under this code already; begin again with a new code"

static bool within_rate(struct neb_guest *g)
{
    bool tell, within = neb__relay_within_rate(g->host->meets, g->network,
                                               g->host->limits.meetings_per_minute, &tell);
    if (tell) neb__warn("%s makes too many attempts to meet: further ones are refused", g->remote);
    return within;
}

static bool is_over(const struct neb_relay_host *h, const struct neb_hash *id)
{
    int64_t now = neb__now_ns();
    for (int i = 0; i < NEB_MEETINGS_REMEMBERED; i++)
        if (h->over[i].at && (double)(now - h->over[i].at) * 1e-9 < h->limits.meeting_seconds &&
            neb__hash_equal(&h->over[i].id, id))
            return true;
    return false;
}

static void remember(struct neb_relay_host *h, const struct neb_hash *id)
{
    h->over[h->over_next] = (struct neb_meeting_over){*id, neb__now_ns()};
    h->over_next = (h->over_next + 1) % NEB_MEETINGS_REMEMBERED;
}

/* Those that wait under an id that is over now would wait in vain. */
static void end_id(struct neb_guest *g)
{
    struct neb_relay_host *h = g->host;
    struct neb_hash id = g->ask.run;
    remember(h, &id);
    for (struct neb_guest *o = h->guests, *next; o; o = next) {
        next = o->next;
        if (o->state != NEB_GUEST_MEETING || o->other || !neb__hash_equal(&o->ask.run, &id)) continue;
        neb__guest_refuse(o, NEB_RELAY_REFUSE_MET, MET_TEXT);
        next = h->guests; /* the list may have changed */
    }
}

static struct neb_guest *who_waits(struct neb_guest *g, int *present)
{
    struct neb_guest *found = NULL;
    *present = 0;
    for (struct neb_guest *o = g->host->guests; o; o = o->next) {
        if (o == g || o->state != NEB_GUEST_MEETING) continue;
        ++*present;
        if (!o->other && neb__hash_equal(&o->ask.run, &g->ask.run)) found = o;
    }
    return found;
}

static int present_from(const struct neb_relay_host *h, uint64_t network)
{
    int n = 0;
    for (const struct neb_guest *g = h->guests; g; g = g->next)
        n += g->state == NEB_GUEST_MEETING && g->network == network;
    return n;
}

/* All places are taken: of the network that has the most of them, the guest that has waited for longest goes. False: nobody has more than
 * the network of the newcomer. */
static bool make_place(struct neb_guest *newcomer)
{
    struct neb_relay_host *h = newcomer->host;
    struct neb_guest *drop = NULL;
    int most = present_from(h, newcomer->network) + 1;
    for (struct neb_guest *g = h->guests; g; g = g->next) {
        if (g->state != NEB_GUEST_MEETING || g->other) continue;
        int here = present_from(h, g->network);
        if (here > most || (drop && here == most && g->since < drop->since)) most = here, drop = g;
    }
    if (!drop) return false;
    neb__guest_refuse(drop, NEB_RELAY_REFUSE_MEETING,
                      "too many from this network wait to meet here; try again in a while");
    return true;
}

static void begin(struct neb_guest *first, struct neb_guest *second)
{
    static const uint8_t yes = 1, no = 0;
    first->other = second;
    second->other = first;
    first->since = second->since = neb__now_ns();
    neb__debug("%s and %s meet", first->remote, second->remote);
    if (neb__guest_say(first, NEB_RELAY_JOINED, &yes, 1) == NEB_OK)
        neb__guest_say(second, NEB_RELAY_JOINED, &no, 1);
}

void neb__meet_ask(struct neb_guest *g)
{
    struct neb_relay_host *h = g->host;
    int present;
    struct neb_guest *first = who_waits(g, &present);
    if (!h->limits.meetings)
        neb__guest_refuse(g, NEB_RELAY_REFUSE_MEETING,
                          "nobody can meet at this relay host: its operator does not allow it");
    else if (!within_rate(g))
        neb__guest_refuse(g, NEB_RELAY_REFUSE_MEETING,
                          "too many attempts to meet from this network; wait a minute and try again");
    else if (is_over(h, &g->ask.run))
        neb__guest_refuse(g, NEB_RELAY_REFUSE_MET, MET_TEXT);
    else if (!first && present >= h->limits.meetings && !make_place(g))
        neb__guest_refuse(g, NEB_RELAY_REFUSE_MEETING,
                          "too many wait to meet here just now; try again in a while");
    else {
        g->state = NEB_GUEST_MEETING;
        g->since = neb__now_ns();
        if (first) begin(first, g);
    }
}

void neb__meet_say(struct neb_guest *g, const uint8_t *p, size_t n)
{
    if (!g->other) {
        neb__guest_refuse(g, NEB_RELAY_REFUSE_PROTOCOL, "nobody is there yet to be spoken to");
        return;
    }
    if (++g->said > NEB_MEETING_MESSAGES) {
        neb__guest_refuse(g, NEB_RELAY_REFUSE_MEETING, "a meeting has at most %d messages of each side",
                          NEB_MEETING_MESSAGES);
        return;
    }
    if (g->said == 2 && !is_over(g->host, &g->ask.run)) end_id(g);
    neb__guest_say(g->other, NEB_RELAY_SAY, p, n);
}

void neb__meet_gone(struct neb_guest *g)
{
    struct neb_guest *other = g->other;
    g->other = NULL;
    if (!other) return;
    other->other = NULL;
    neb__guest_refuse(other, NEB_RELAY_REFUSE_GONE, "the other one has gone");
}
