/* liar.c: a hostile member for tests/liars.sh. It joins a run with a valid key and sends lies of one kind. It is never
 * installed.
 *
 *     liar FOLDER HOW      until it is killed
 *
 *     names      reports that hold 256 updates which do not exist, without pause
 *     cells      asks for the first cell 2,100 times, and takes no answer in
 *     ahead      updates of its own with base 2^30: each update that it hears, signed anew
 *     updates    updates of its own with the right base, a hundred for each that it hears
 *     poison     the first update of each record that it hears, times -30, as its own
 *     thousand   the same, times 1000
 *     mirror     the same, times -1
 *     noise      noise of that update's length times 10
 *     weight     the same update with weight 2^32 - 1
 *     tokens     the same update with 2^50 tokens
 *     deaf       takes nothing in, so that everything sent to it waits at its sender
 *     flood      messages of another version, without pause
 *     model      says at once that it trains another model
 *     end        records that end the run, with a certificate that only the liar signed
 *     history    a committed record behind another predecessor, likewise
 *     lapse      reports and pings with lapse 65,535 for everybody else
 *     roster     reports and goodbyes that name another roster of the same epoch
 *     leader     pings of a leader that nobody voted for, in higher and higher views
 *     strangers  no link: 500 connections a second to every member, from many networks
 *
 * It needs no parameters of the model: what it must know of the run it reads in the frames and updates of the others. */
#include "base/bytes.h"
#include "base/mem.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "net/net.h"
#include "round/frame.h"
#include "run/session.h"
#include "seal/site.h"

#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PEERS = 64, QUESTIONS = 2100, COPIES = 100, FRAGMENTS = 4096, HASHES = 1024 };

struct liar {
    struct neb_net *net;
    struct neb_site *site;
    struct neb_hash genesis;
    const char *how;
    uint64_t k;
    bool up[PEERS];
    uint64_t next[FRAGMENTS]; /* by first cell: the base of the next update to make */
    struct neb_rng rng;
    struct neb_round_frame heard; /* the leader's last ping: epoch, roster, view, commit; type 0: none yet */
    struct neb_hash hash[HASHES]; /* of record i, at i % HASHES */
};

static bool lies(const struct liar *l, const char *how)
{
    return !strcmp(l->how, how);
}

static void tell(struct liar *l, uint16_t peer, enum neb_priority priority, uint32_t kind, const void *p,
                 size_t n)
{
    (void)neb__net_send_copy(l->net, peer, priority, kind, p, n, NULL, NULL);
}

static neb_status sign(void *arg, const char *purpose, const void *p, size_t n, uint8_t out[NEB_SEAL_SIZE])
{
    const struct liar *l = arg;
    struct neb_signature signature;
    NEB_TRY(neb__key_sign(l->site->key, purpose, p, n, &signature));
    memcpy(out, signature.b, NEB_SEAL_SIZE);
    return NEB_OK;
}

/* The leader's ping tells epoch, roster and view. */
static void answer_ping(struct liar *l, uint16_t peer, const uint8_t *bytes, size_t n)
{
    static struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
    static struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];
    struct neb_round_frame heard, f = {.type = NEB_ROUND_FRAME_REPORT};
    struct neb_buf b;
    if (neb__round_frame_decode(bytes, n, items, certs, &heard) != NEB_OK ||
        heard.type != NEB_ROUND_FRAME_PING)
        return;
    f.from = neb__net_self(l->net);
    f.epoch = heard.epoch;
    f.roster_id = heard.roster_id;
    f.view = heard.view;
    f.items = NEB_ROUND_FRAME_LIST;
    f.item = items;
    for (int k = 0; k < 10; k++) {
        for (int i = 0; i < NEB_ROUND_FRAME_LIST; i++) {
            for (int j = 0; j < NEB_HASH_SIZE; j++) items[i].hash.b[j] = (uint8_t)neb__rng_next(&l->rng);
            items[i].holders = neb__bit(f.from);
        }
        neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
        if (neb__round_frame_encode(&f, &b) == NEB_OK)
            tell(l, peer, NEB_CONTROL, NEB_MSG_FRAME, b.data, b.len);
        neb__buf_free(&b);
    }
}

static void say(struct liar *l, const struct neb_round_frame *f)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_ROUND_FRAME_MAX);
    if (neb__round_frame_encode(f, &b) == NEB_OK)
        for (uint16_t p = 0; p < PEERS; p++)
            if (l->up[p]) tell(l, p, NEB_CONTROL, NEB_MSG_FRAME, b.data, b.len);
    neb__buf_free(&b);
}

/* A frame with the header that an honest site would send now. */
static struct neb_round_frame plain(const struct liar *l, uint8_t type)
{
    return (struct neb_round_frame){.type = type,
                                    .from = neb__net_self(l->net),
                                    .epoch = l->heard.epoch,
                                    .roster_id = l->heard.roster_id,
                                    .view = l->heard.view,
                                    .normal = l->heard.view,
                                    .commit = l->heard.commit};
}

static bool add_record(struct liar *l, uint8_t type, uint64_t index, struct neb_hash *prev,
                       struct neb_buf *blob)
{
    struct neb_record rec = {
        .type = type, .epoch = l->heard.epoch, .view = l->heard.view, .index = index, .prev = *prev};
    struct neb_buf b;
    uint8_t length[4];
    neb__buf_init(&b, NEB_RECORD_MAX);
    bool ok = neb__record_encode(&rec, &b) == NEB_OK && neb__hash(b.data, b.len, prev) == NEB_OK;
    neb__put32(length, (uint32_t)b.len);
    ok = ok && neb__buf_append(blob, length, 4) == NEB_OK && neb__buf_append(blob, b.data, b.len) == NEB_OK;
    neb__buf_free(&b);
    return ok;
}

/* Records that nobody else has, said to be committed. The certificate has the liar's signature, and for the other name a
 * copy of it. */
static void forge_records(struct liar *l)
{
    const struct neb_seal seal = {.arg = l, .sign = sign, .verify = NULL};
    struct neb_round_frame f = plain(l, NEB_ROUND_FRAME_LOG);
    struct neb_hash h = l->hash[f.commit % HASHES];
    struct neb_buf blob;
    bool end = lies(l, "end");
    neb__buf_init(&blob, 1 << 16);
    if (!end) memset(&h, 1, sizeof h);
    f.number = l->heard.commit + 1;
    bool ok = add_record(l, NEB_RECORD_END, f.number, &h, &blob);
    if (end) ok = ok && add_record(l, NEB_RECORD_FINAL, f.number + 1, &h, &blob);
    f.records = end ? 2 : 1;
    f.commit = f.number + f.records - 1u;
    f.blob = blob.data;
    f.blob_length = blob.len;
    struct neb_said s = {.kind = NEB_SAID_HOLDS,
                         .site = (uint8_t)f.from,
                         .epoch = f.epoch,
                         .view = f.view,
                         .normal = f.view,
                         .index = f.commit,
                         .hash = h};
    if (ok && neb__said_sign(&s, &l->genesis, &seal) == NEB_OK) {
        for (uint8_t i = 0; i < 3; i++) s.site = i, (void)neb__certificate_add(&f.proof, &s);
        say(l, &f);
        f.proof.n = 0;
        say(l, &f);
    }
    neb__buf_free(&blob);
}

static void forge_lapses(struct liar *l)
{
    static const uint8_t types[] = {NEB_ROUND_FRAME_REPORT, NEB_ROUND_FRAME_PING};
    for (int t = 0; t < 2; t++) {
        struct neb_round_frame f = plain(l, types[t]);
        for (uint8_t i = 0; i < 3; i++) {
            if (i == f.from) continue;
            f.lapses[i] = 0xffff;
            f.word[f.words++] = (struct neb_round_frame_word){.site = i, .lapse = 0xffff, .signature = {1}};
        }
        say(l, &f);
    }
}

static void forge_roster(struct liar *l)
{
    struct neb_round_frame f = plain(l, NEB_ROUND_FRAME_REPORT);
    f.roster_id ^= 1;
    say(l, &f);
    f.type = NEB_ROUND_FRAME_GOODBYE;
    say(l, &f);
}

static void forge_leader(struct liar *l)
{
    struct neb_round_frame f = plain(l, NEB_ROUND_FRAME_PING);
    const struct neb_seal seal = {.arg = l, .sign = sign, .verify = NULL};
    f.view = f.normal = (f.view / 64 + 1) * 64 + f.from;
    f.flags = NEB_FLAG_PROOF;
    f.start = l->heard.commit;
    f.hash = l->hash[f.start % HASHES];
    f.saids = 2;
    f.said[0] = (struct neb_said){.kind = NEB_SAID_STARTS,
                                  .site = (uint8_t)f.from,
                                  .epoch = f.epoch,
                                  .view = f.view,
                                  .normal = f.view,
                                  .index = f.start,
                                  .hash = f.hash};
    f.said[1] = f.said[0];
    f.said[1].kind = NEB_SAID_VOTES;
    for (int i = 0; i < 2; i++)
        if (neb__said_sign(&f.said[i], &l->genesis, &seal) != NEB_OK) return;
    say(l, &f);
    f.saids = 0;
    say(l, &f);
}

static void forge(struct liar *l)
{
    if (!l->heard.type) return;
    if (lies(l, "end") || lies(l, "history")) forge_records(l);
    if (lies(l, "lapse")) forge_lapses(l);
    if (lies(l, "roster")) forge_roster(l);
    if (lies(l, "leader")) forge_leader(l);
}

/* Pings tell epoch, roster, view and commit; logs the hashes of the records. */
static void hear_frame(struct liar *l, const uint8_t *bytes, size_t n)
{
    static struct neb_round_frame_item items[NEB_ROUND_FRAME_LIST];
    static struct neb_round_frame_cert certs[NEB_ROUND_FRAME_CERTS];
    struct neb_round_frame f;
    if (neb__round_frame_decode(bytes, n, items, certs, &f) != NEB_OK) return;
    if (f.type == NEB_ROUND_FRAME_PING) {
        l->heard = f;
        forge(l);
    }
    if (f.type != NEB_ROUND_FRAME_LOG) return;
    struct neb_reader in = {f.blob, f.blob_length, false};
    for (uint64_t i = 0; i < f.records; i++) {
        uint32_t length = neb__read32(&in);
        const uint8_t *p = neb__read(&in, length);
        if (!p || neb__hash(p, length, &l->hash[(f.number + i) % HASHES]) != NEB_OK) return;
    }
}

/* Another site's update, as one of this site. */
static void sign_anew(struct liar *l, uint16_t peer, const struct neb_message *m)
{
    struct neb_update_header h;
    if (neb__update_header_get(m->data, m->size, &h) != NEB_OK) return;
    uint8_t *copy = neb__malloc(m->size);
    for (int i = 0; copy && i < COPIES; i++) {
        memcpy(copy, m->data, m->size);
        h.site = neb__net_self(l->net);
        h.k = ++l->k;
        if (lies(l, "ahead")) h.b = (uint64_t)1 << 30;
        const struct neb_seal seal = {.arg = l, .sign = sign, .verify = NULL};
        if (neb__update_header_sign(&h, copy + NEB_UPDATE_HEADER_SIZE, &l->genesis, &seal) != NEB_OK) break;
        neb__update_header_put(&h, copy);
        tell(l, peer, NEB_ROUND, NEB_MSG_UPDATE, copy, m->size);
    }
    neb__free(copy);
}

/* Other values for an update. Gives their code, behind a header's room. */
static bool recode(struct liar *l, const struct neb_update_header *h, const struct neb_message *m,
                   struct neb_buf *out)
{
    struct neb_codec_info info;
    const uint8_t *code = m->data + NEB_UPDATE_HEADER_SIZE;
    if (neb__codec_peek(code, h->length, &info) != NEB_OK) return false;
    float *z = neb__calloc(info.n, sizeof *z);
    if (!z || neb__codec_decode(code, h->length, NULL, info.n, z) != NEB_OK) return false;
    double sum = 0;
    for (size_t i = 0; i < info.n; i++) sum += (double)z[i] * z[i];
    float size = 10 * (float)sqrt(3 * sum / (double)info.n);
    for (size_t i = 0; i < info.n; i++) {
        if (lies(l, "poison")) z[i] *= -30;
        if (lies(l, "thousand")) z[i] *= 1000;
        if (lies(l, "mirror")) z[i] *= -1;
        if (lies(l, "noise")) z[i] = size * (float)((double)(neb__rng_next(&l->rng) >> 11) * 0x1p-52 - 1);
    }
    bool ok = neb__buf_reserve(out, NEB_UPDATE_HEADER_SIZE) == NEB_OK;
    out->len = NEB_UPDATE_HEADER_SIZE;
    ok = ok && neb__codec_encode(neb__rung_by_id(h->rung), &(struct neb_codec_input){.z = z, .n = info.n},
                                 NULL, NULL, out) == NEB_OK;
    neb__free(z);
    return ok;
}

/* One update for every version of a fragment, made of the first that another site sends, to everybody. */
static void contribute(struct liar *l, const struct neb_message *m)
{
    struct neb_update_header h;
    struct neb_buf b;
    if (neb__update_header_get(m->data, m->size, &h) != NEB_OK || h.c0 >= FRAGMENTS) return;
    if (h.site == neb__net_self(l->net) || h.b < l->next[h.c0]) return;
    l->next[h.c0] = h.b + 1;
    neb__buf_init(&b, (size_t)1 << 31);
    if (recode(l, &h, m, &b)) {
        const struct neb_seal seal = {.arg = l, .sign = sign, .verify = NULL};
        h.site = neb__net_self(l->net);
        h.k = ++l->k;
        h.length = (uint32_t)(b.len - NEB_UPDATE_HEADER_SIZE);
        if (lies(l, "weight")) h.weight = UINT32_MAX;
        if (lies(l, "tokens")) h.tokens = (uint64_t)1 << 50;
        if (neb__update_header_sign(&h, b.data + NEB_UPDATE_HEADER_SIZE, &l->genesis, &seal) == NEB_OK) {
            neb__update_header_put(&h, b.data);
            for (uint16_t p = 0; p < PEERS; p++)
                if (l->up[p]) tell(l, p, NEB_ROUND, NEB_MSG_UPDATE, b.data, b.len);
        }
    }
    neb__buf_free(&b);
}

static bool contributes(const struct liar *l)
{
    static const char *const how[] = {"poison", "thousand", "mirror", "noise", "weight", "tokens"};
    for (size_t i = 0; i < sizeof how / sizeof *how; i++)
        if (lies(l, how[i])) return true;
    return false;
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    struct liar *l = arg;
    if (lies(l, "deaf") || (lies(l, "cells") && m->kind == NEB_MSG_CELL)) return NEB_ERR_AGAIN;
    if (m->kind == NEB_MSG_FRAME) hear_frame(l, m->data, m->size);
    if (lies(l, "names") && m->kind == NEB_MSG_FRAME) answer_ping(l, m->peer, m->data, m->size);
    if ((lies(l, "ahead") || lies(l, "updates")) && m->kind == NEB_MSG_UPDATE) sign_anew(l, m->peer, m);
    if (contributes(l) && m->kind == NEB_MSG_UPDATE) contribute(l, m);
    return NEB_OK;
}

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    struct liar *l = arg;
    uint8_t cell[4] = {0};
    (void)incarnation;
    if (peer < PEERS) l->up[peer] = true;
    if (lies(l, "model")) tell(l, peer, NEB_CONTROL, NEB_MSG_MODEL, "another model", 13);
    for (int i = 0; lies(l, "cells") && i < QUESTIONS; i++)
        tell(l, peer, NEB_CONTROL, NEB_MSG_GET_CELL, cell, sizeof cell);
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    struct liar *l = arg;
    (void)why;
    if (peer < PEERS) l->up[peer] = false;
}

/* Link states and relayed messages in another member's name, to each neighbour, with signatures that do not hold. */
static void make_up_relays(struct liar *l, uint16_t peer)
{
    uint16_t other = 0, self = neb__net_self(l->net);
    for (uint16_t p = 1; p < PEERS; p++)
        if (l->up[p] && p != peer) other = p;
    if (!other || !l->up[peer]) return;
    for (uint64_t i = 0; i < 50; i++) {
        uint8_t state[NEB_LINK_STATE_SIZE] = {0}, b[NEB_RELAY_HEAD + 2 + 8 + NEB_SEAL_SIZE] = {1, 2};
        neb__put16(state, other);
        neb__put64(state + 2, 1000 + ++l->k);
        tell(l, peer, NEB_CONTROL, NEB_MSG_LINK_STATES, state, sizeof state);
        neb__put16(b + 2, other);
        neb__put64(b + 4, 1000);
        neb__put64(b + 12, l->k);
        neb__put32(b + 36, NEB_MSG_FRAME);
        b[NEB_RELAY_HEAD] = (uint8_t)self;
        b[NEB_RELAY_HEAD + 1] = (uint8_t)peer;
        tell(l, peer, NEB_CONTROL, NEB_MSG_RELAYED, b, sizeof b);
    }
}

static void on_timer(void *arg)
{
    struct liar *l = arg;
    static uint8_t junk[1000];
    for (uint16_t p = 0; lies(l, "relays") && p < PEERS; p++) make_up_relays(l, p);
    forge(l);
    for (uint16_t p = 0; lies(l, "flood") && p < PEERS; p++)
        for (int i = 0; l->up[p] && i < 1000; i++) tell(l, p, NEB_CONTROL, 9999, junk, sizeof junk);
}

/* Each connection comes from another network of 127.0.0.0/8, and stays open for a while. */
static void be_strangers(struct liar *l)
{
    enum { OPEN = 800 };
    static int fd[OPEN];
    const struct neb_chain *chain = neb__net_roster(l->net);
    for (unsigned n = 0;; n++) {
        for (uint32_t i = 0; i < chain->now.count; i++) {
            const struct neb_member *m = &chain->now.members[i];
            char host[NEB_ADDRESS_SIZE];
            uint16_t port;
            struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
            if (m->id == neb__net_self(l->net) || !neb__address_split(m->address[0], host, &port)) continue;
            int *at = &fd[(n * chain->now.count + i) % OPEN];
            if (*at > 0) close(*at);
            *at = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
            from.sin_addr.s_addr = htonl(127u << 24 | (1 + n / 250 % 200) << 16 | n % 250 << 8 | 1);
            to.sin_port = htons(port);
            inet_pton(AF_INET, host, &to.sin_addr);
            if (*at < 0 || bind(*at, (struct sockaddr *)&from, sizeof from)) continue;
            (void)connect(*at, (struct sockaddr *)&to, sizeof to);
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

int main(int argc, char **argv)
{
    static const struct neb_net_events events = {
        .peer_up = on_up, .peer_down = on_down, .message = on_message};
    static struct liar l;
    l.how = argc > 2 ? argv[2] : "";
    struct neb_net_config cfg = NEB_NET_CONFIG;
    struct neb_net_timer *timer;
    if (argc != 3 || neb__site_open(argv[1], &l.site) != NEB_OK) return 2;
    cfg.site = l.site;
    cfg.events = &events;
    cfg.arg = &l;
    l.k = (uint64_t)l.site->incarnation << 40;
    l.rng = (struct neb_rng){l.site->boot};
    if (neb__net_open(&cfg, &l.net) != NEB_OK) return 1;
    /* tests/liars.sh names its job "liars", and a run's genesis follows from its name */
    if (neb__chain_run_genesis(neb__net_roster(l.net), "liars", &l.genesis) != NEB_OK) return 1;
    if (lies(&l, "strangers")) be_strangers(&l);
    if (neb__net_timer_start(l.net, 0.05, 0.05, on_timer, &l, &timer) != NEB_OK) return 1;
    return neb__net_run(l.net) != NEB_OK;
}
