/* pair_exchange.c: the messages of a pairing over a meeting.
 *
 *     creator                    joiner
 *     hello                ⇄     hello                  in the open; seal/pairing.h
 *                          ←     proof                  this is the joiner's one guess
 *     proof, or no         →                            judged: a wrong proof gets none in return
 *     C card               ⇄     C card                 sealed, like all that follows
 *     R roster, in pieces  →
 *                          ←     D genesis hash         the roster is on the joiner's disk
 *     X text               ⇄     X text                 instead of any of them: why this site does not go on
 *
 * The creator has the roster on its disk before it sends it. So a pairing that breaks off can be made again with a new code:
 * the same site gets the same roster. A meeting passes on 16 messages of 4 KiB each way, which limits the roster. */
#include "cli/pair_exchange.h"
#include "base/bytes.h"
#include "base/printable.h"

#include <stdio.h>
#include <string.h>

enum {
    TEXT_MAX = NEB_MEETING_MESSAGE_MAX - NEB_PAIRING_OVERHEAD,
    PIECE = TEXT_MAX - 9, /* behind type, whole length and offset */
    PIECES_MAX = 12,
    REASON_MAX = 200
};
/* For one message: the other's program answers by itself, without its person. Before the proof somebody else may have come, who says
 * nothing; the rightful one waits behind it. */
static const double answer_s = 30, prove_s = 15;

/* The joiner's side: its proof is its guess, so it proves first. */
static neb_status prove_first(struct neb_pair_talk *t, const uint8_t proof[NEB_PAIRING_PROOF])
{
    uint8_t in[NEB_MEETING_MESSAGE_MAX];
    size_t n;
    t->guessed = true;
    NEB_TRY(neb__meeting_send(t->meeting, proof, NEB_PAIRING_PROOF));
    NEB_TRY(neb__meeting_receive(t->meeting, prove_s, in, &n));
    return neb__pairing_proof(&t->pairing, in, n);
}

/* The creator's side. Whoever proves nothing learns that, and gets no proof. */
static neb_status judge_first(struct neb_pair_talk *t, const uint8_t proof[NEB_PAIRING_PROOF])
{
    static const uint8_t no = NEB_PAIRING_NO;
    uint8_t in[NEB_MEETING_MESSAGE_MAX];
    char why[REASON_MAX];
    size_t n;
    NEB_TRY(neb__meeting_receive(t->meeting, prove_s, in, &n));
    t->guessed = true;
    neb_status status = neb__pairing_proof(&t->pairing, in, n);
    if (status == NEB_OK) return neb__meeting_send(t->meeting, proof, NEB_PAIRING_PROOF);
    snprintf(why, sizeof why, "%s", neb_last_error());
    (void)neb__meeting_send(t->meeting, &no, 1); /* if it is still there */
    return neb__quiet(status, "%s", why);
}

neb_status neb__pair_prove(struct neb_pair_talk *t, bool creator, const struct neb_pair_code *code)
{
    uint8_t hello[NEB_PAIRING_HELLO], proof[NEB_PAIRING_PROOF], in[NEB_MEETING_MESSAGE_MAX];
    struct neb_public relay;
    size_t n;
    neb__meeting_key(t->meeting, &relay);
    NEB_TRY(neb__pairing_begin(&t->pairing, creator, code, &relay, hello));
    t->guessed = false;
    NEB_TRY(neb__meeting_send(t->meeting, hello, sizeof hello));
    NEB_TRY(neb__meeting_receive(t->meeting, prove_s, in, &n));
    NEB_TRY(neb__pairing_hello(&t->pairing, in, n, proof));
    return creator ? judge_first(t, proof) : prove_first(t, proof);
}

/* ---- sealed -------------------------------------------------------------------------------------------- */

static neb_status say(struct neb_pair_talk *t, char type, const void *body, size_t n)
{
    uint8_t text[TEXT_MAX], out[NEB_MEETING_MESSAGE_MAX];
    if (n >= sizeof text) return neb__fail(NEB_ERR_LIMIT, "a message of a pairing is too long");
    text[0] = (uint8_t)type;
    memcpy(text + 1, body, n);
    NEB_TRY(neb__pairing_seal(&t->pairing, text, n + 1, out));
    return neb__meeting_send(t->meeting, out, n + 1 + NEB_PAIRING_OVERHEAD);
}

static neb_status refused(const uint8_t *p, size_t n)
{
    char why[REASON_MAX + 1];
    snprintf(why, sizeof why, "%.*s", (int)(n < REASON_MAX ? n : REASON_MAX), (const char *)p);
    neb__text_clean(why);
    return neb__quiet(NEB_ERR_CANCELLED, "the other site does not go on: %s", why);
}

/* `out` gets the body; *n: its length. */
static neb_status hear(struct neb_pair_talk *t, char type, uint8_t out[TEXT_MAX], size_t *n)
{
    uint8_t in[NEB_MEETING_MESSAGE_MAX], text[NEB_MEETING_MESSAGE_MAX];
    size_t got;
    NEB_TRY(neb__meeting_receive(t->meeting, answer_s, in, &got));
    NEB_TRY(neb__pairing_open(&t->pairing, in, got, text));
    got -= NEB_PAIRING_OVERHEAD;
    if (!got) return neb__quiet(NEB_ERR_PROTOCOL, "the other site sent an empty message");
    if (text[0] == 'X') return refused(text + 1, got - 1);
    if (text[0] != (uint8_t)type)
        return neb__quiet(NEB_ERR_PROTOCOL, "the other site sent a message that does not belong here");
    *n = got - 1;
    memcpy(out, text + 1, *n);
    return NEB_OK;
}

void neb__pair_refuse(struct neb_pair_talk *t, const char *why)
{
    size_t n = strlen(why);
    if (t->pairing.proved) (void)say(t, 'X', why, n < REASON_MAX ? n : REASON_MAX);
}

neb_status neb__pair_cards(struct neb_pair_talk *t, const struct neb_key *key)
{
    struct neb_buf card;
    uint8_t in[TEXT_MAX];
    size_t n;
    neb__buf_init(&card, NEB_PAIRING_CARD_MAX);
    neb_status status = neb__pair_card_make(&t->pairing, &t->self, key, &card);
    if (status == NEB_OK) status = say(t, 'C', card.data, card.len);
    neb__buf_free(&card);
    NEB_TRY(status);
    NEB_TRY(hear(t, 'C', in, &n));
    NEB_TRY(neb__pair_card_read(&t->pairing, in, n, &t->other));
    if (!strcmp(t->other.name, t->self.name))
        return neb__quiet(NEB_ERR_INVALID, "both sites are named '%s': give one of them another name",
                          t->self.name);
    if (neb__public_equal(&t->other.key, &t->self.key))
        return neb__quiet(NEB_ERR_INVALID, "both sites have the same key: one folder is a copy of the other");
    return NEB_OK;
}

/* ---- the roster ---------------------------------------------------------------------------------------- */

static neb_status send_pieces(struct neb_pair_talk *t, const struct neb_buf *b)
{
    uint8_t piece[8 + PIECE];
    if (b->len > (size_t)PIECES_MAX * PIECE)
        return neb__quiet(NEB_ERR_LIMIT,
                          "the roster is too long for a pairing (%zu bytes, at most %d): add the site with "
                          "`nebula-i roster admit`",
                          b->len, PIECES_MAX * PIECE);
    for (size_t at = 0; at < b->len; at += PIECE) {
        size_t n = b->len - at < PIECE ? b->len - at : PIECE;
        neb__put32(piece, (uint32_t)b->len);
        neb__put32(piece + 4, (uint32_t)at);
        memcpy(piece + 8, b->data + at, n);
        NEB_TRY(say(t, 'R', piece, 8 + n));
    }
    return NEB_OK;
}

neb_status neb__pair_send_roster(struct neb_pair_talk *t, const struct neb_chain *chain)
{
    struct neb_buf b;
    uint8_t in[TEXT_MAX];
    size_t n = 0;
    neb__buf_init(&b, 1 << 24);
    neb_status status = neb__chain_encode(chain, &b);
    if (status == NEB_OK) status = send_pieces(t, &b);
    neb__buf_free(&b);
    NEB_TRY(status);
    NEB_TRY(hear(t, 'D', in, &n));
    if (n != NEB_HASH_SIZE || memcmp(in, chain->genesis_hash.b, n))
        return neb__quiet(NEB_ERR_PROTOCOL, "the other site has taken another roster");
    return NEB_OK;
}

neb_status neb__pair_receive_roster(struct neb_pair_talk *t, struct neb_chain **out)
{
    struct neb_buf b;
    uint8_t in[TEXT_MAX];
    size_t n = 0, whole = 1;
    neb__buf_init(&b, (size_t)PIECES_MAX * PIECE);
    neb_status status = NEB_OK;
    while (status == NEB_OK && b.len < whole) {
        status = hear(t, 'R', in, &n);
        if (status != NEB_OK) break;
        bool fits = n > 8 && neb__get32(in + 4) == b.len && (!b.len || neb__get32(in) == whole);
        whole = fits ? neb__get32(in) : 0;
        if (!fits || whole > b.max || b.len + n - 8 > whole)
            status = neb__quiet(NEB_ERR_PROTOCOL, "the roster that the other site sends is malformed");
        else
            status = neb__buf_append(&b, in + 8, n - 8);
    }
    if (status == NEB_OK) status = neb__chain_decode(b.data, b.len, out);
    neb__buf_free(&b);
    return status;
}

neb_status neb__pair_confirm(struct neb_pair_talk *t, const struct neb_chain *chain)
{
    return say(t, 'D', chain->genesis_hash.b, NEB_HASH_SIZE);
}
