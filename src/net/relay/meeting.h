/* meeting.h: two strangers talk for a moment at a relay host, because both know the same id.
 *
 * This is the meeting point for pairing: before there is a roster neither knows the other's key. Both derive an id of 32
 * bytes from what their people told each other (a code), and open a meeting with it. The relay host brings the two together
 * and passes on what they send. It reads all of it, and may alter it, so the messages must protect themselves: a
 * password-authenticated exchange first, everything later under its key.
 *
 *     struct neb_meeting *m;
 *     struct neb_meeting_place at = {.host = "relay.example", .port = 7500};       // .key: pins the relay host's key
 *     NEB_TRY(neb__meeting_open(&at, id, 600, &m));         // waits until the other one is there, here up to 600 s
 *     bool first = neb__meeting_is_first(m);                // one of the two gets true: who waited
 *     neb__meeting_key(m, &relay_key);                      // the relay host's key, as it proved it; bind it into the exchange
 *     NEB_TRY(neb__meeting_send(m, bytes, n));              // 1 to 4096 bytes, at most 16 messages of each side
 *     NEB_TRY(neb__meeting_receive(m, 30, buf, &n));        // buf: NEB_MEETING_MESSAGE_MAX bytes; waits up to 30 s
 *     neb__meeting_close(m);
 *
 * All calls block, on the calling thread. The id brings two guests to a talk once: when one of them has said a second message, others
 * are refused for ten minutes ("two have met under this code already"), so whoever tries a code spoils that meeting and shows. The relay host limits attempts
 * (12 a minute from one network), guests that wait (64), and the whole meeting (10 minutes). Each connection uses a key made for it
 * alone, so the relay host does not learn which site meets. */
#ifndef NEB_NET_RELAY_MEETING_H
#define NEB_NET_RELAY_MEETING_H

#include "seal/key.h"

struct neb_meeting;

enum { NEB_MEETING_ID_SIZE = 32, NEB_MEETING_MESSAGE_MAX = 4096 };

struct neb_meeting_place {
    const char *host;
    uint16_t port;
    const struct neb_public *key; /* NULL: any key; neb__meeting_key() tells which it was */
    /* A connected socket to use instead of dialling (through a proxy, say); 0 or less: dial. Taken over, even on failure. */
    int fd;
};

/* A successful open owes a close.
 *   NEB_ERR_NET       the relay host cannot be reached        NEB_ERR_AUTH     it has another key, or refuses
 *   NEB_ERR_TIMEOUT   nobody else came within `seconds`       NEB_ERR_AGAIN    refused for now: too many attempts or guests
 *   NEB_ERR_EXISTS    two have met under this id already      NEB_ERR_PROTOCOL, NEB_ERR_NOMEM
 * neb_last_error() words it for people (not logged). */
neb_status neb__meeting_open(const struct neb_meeting_place *at, const uint8_t id[NEB_MEETING_ID_SIZE],
                             double seconds, struct neb_meeting **out);
bool neb__meeting_is_first(const struct neb_meeting *m);
void neb__meeting_key(const struct neb_meeting *m, struct neb_public *out);

/* NEB_ERR_PEER: the other one is gone, or the relay host ended the meeting; NEB_ERR_LIMIT: too long, or too many. */
neb_status neb__meeting_send(struct neb_meeting *m, const void *p, size_t n);
/* NEB_ERR_TIMEOUT; NEB_ERR_PEER; NEB_ERR_PROTOCOL. */
neb_status neb__meeting_receive(struct neb_meeting *m, double seconds, uint8_t out[NEB_MEETING_MESSAGE_MAX],
                                size_t *n);
void neb__meeting_close(struct neb_meeting *m); /* NULL is fine */

#endif
