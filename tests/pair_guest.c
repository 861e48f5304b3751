/* pair_guest.c: somebody who comes to a relay host with the number of a code, for tests/pair_guests.sh. It is never installed.
 *
 *     pair_guest HOST:PORT CODE HOW      prints `met` when the other is there, the length and first letter of each message behind the
 *                                        other's hello, and ends when the other has gone
 *
 *     silent     says nothing
 *     hello      says its hello as a joiner, and nothing more
 *     leaves     goes at once
 *     version    says the hello of a version that is not there yet
 *     nonsense   says something that is no hello
 *     wrong      says its hello, then a proof of nothing */
#include "net/relay/meeting.h"
#include "seal/pairing.h"

#include <nebula/status.h>
#include <stdio.h>
#include <string.h>

enum { WAIT = 600 };

static neb_status open_meeting(const char *place, const struct neb_pair_code *code, struct neb_meeting **m)
{
    char host[NEB_ADDRESS_SIZE];
    uint8_t id[NEB_MEETING_ID_SIZE];
    struct neb_meeting_place at = {.host = host, .fd = -1};
    if (!neb__address_split(place, host, &at.port)) return neb__fail(NEB_ERR_INVALID, "HOST:PORT, please");
    NEB_TRY(neb__pair_code_place(code, id));
    return neb__meeting_open(&at, id, WAIT, m);
}

static neb_status say(struct neb_meeting *m, const struct neb_pair_code *code, const char *how)
{
    struct neb_pairing p;
    struct neb_public relay;
    uint8_t hello[NEB_PAIRING_HELLO];
    neb__meeting_key(m, &relay);
    NEB_TRY(neb__pairing_begin(&p, false, code, &relay, hello));
    if (!strcmp(how, "silent")) return NEB_OK;
    if (!strcmp(how, "version")) hello[0] = NEB_PAIRING_VERSION + 1;
    if (!strcmp(how, "nonsense")) hello[1] = '?';
    NEB_TRY(neb__meeting_send(m, hello, sizeof hello));
    if (strcmp(how, "wrong") != 0) return NEB_OK;
    uint8_t proof[NEB_PAIRING_PROOF] = {'p'};
    return neb__meeting_send(m, proof, sizeof proof);
}

/* Until the other has gone. */
static void hear(struct neb_meeting *m)
{
    uint8_t in[NEB_MEETING_MESSAGE_MAX];
    size_t n;
    for (int i = 0; neb__meeting_receive(m, WAIT, in, &n) == NEB_OK; i++)
        if (i) printf("%zu %c\n", n, in[0]);
}

int main(int argc, char **argv)
{
    struct neb_pair_code code;
    struct neb_meeting *m;
    if (argc != 4 || neb__pair_code_parse(argv[2], &code) != NEB_OK) return 2;
    if (open_meeting(argv[1], &code, &m) != NEB_OK) {
        fprintf(stderr, "pair_guest: %s\n", neb_last_error());
        return 1;
    }
    puts("met");
    fflush(stdout);
    if (strcmp(argv[3], "leaves") != 0 && say(m, &code, argv[3]) == NEB_OK) hear(m);
    fprintf(stderr, "pair_guest: %s\n", neb_last_error());
    neb__meeting_close(m);
    return 0;
}
