/* letters.c: see letters.h. */
#include "letters.h"
#include "check.h"

#include <stdatomic.h>
#include <string.h>

struct node letters_node[2];
static atomic_int ups[2], downs[2];
static atomic_ullong got[2], wrong[2], sent[2], ended[2];

static void on_up(void *arg, uint16_t peer, uint64_t incarnation)
{
    (void)peer, (void)incarnation;
    ups[(intptr_t)arg]++;
}

static void on_down(void *arg, uint16_t peer, neb_status why)
{
    (void)peer, (void)why;
    downs[(intptr_t)arg]++;
}

/* Message n is of a size and content that n determines; every one comes once, in order. */
static size_t size_of(uint64_t n)
{
    return 8 + (n * 7919) % 100000 + (n % 16 == 0 ? 1000000 : 0);
}

static uint8_t byte_of(uint64_t n, size_t i)
{
    return (uint8_t)((n * 31 + i) * 2654435761u >> 24);
}

static neb_status on_message(void *arg, struct neb_message *m)
{
    intptr_t me = (intptr_t)arg;
    uint64_t n = got[me] + 1;
    bool ok = m->size == size_of(n) && m->kind == (uint32_t)(n & 0xffff);
    for (size_t i = 0; ok && i < m->size; i += 97) ok = m->data[i] == byte_of(n, i);
    if (!ok) wrong[me]++;
    got[me] = n;
    return NEB_OK;
}

static const struct neb_net_events events = {.peer_up = on_up, .peer_down = on_down, .message = on_message};

static void on_sent(void *arg, neb_status s)
{
    intptr_t me = (intptr_t)arg;
    if (s == NEB_OK) ended[me]++;
}

/* On the node's thread: keeps a few messages queued. */
static void feed(void *arg)
{
    intptr_t me = (intptr_t)arg;
    while (sent[me] < ended[me] + 8) {
        uint64_t n = sent[me] + 1;
        size_t size = size_of(n);
        uint8_t *bytes = malloc(size);
        for (size_t i = 0; i < size; i++) bytes[i] = byte_of(n, i);
        neb_status status = neb__net_send_copy(letters_node[me].net, (uint16_t)(me == 0 ? 2 : 1), NEB_ROUND,
                                               (uint32_t)(n & 0xffff), bytes, size, on_sent, arg);
        free(bytes);
        if (status != NEB_OK) return;
        sent[me] = n;
    }
}

void letters_feed(void)
{
    for (intptr_t i = 0; i < 2; i++) node_call(&letters_node[i], feed, (void *)i);
}

static bool is_relayed[2];

static void look(void *arg)
{
    intptr_t me = (intptr_t)arg;
    struct neb_line line;
    assert_ok(neb__net_line(letters_node[me].net, (uint16_t)(me == 0 ? 2 : 1), &line));
    is_relayed[me] = line.up && line.relayed;
    if (!line.up) is_relayed[me] = false;
}

static bool both_up(void)
{
    return ups[0] > downs[0] && ups[1] > downs[1];
}

/* Waits, feeding, until the link goes the way that is asked for at both ends. */
void letters_path(bool relayed)
{
    for (int i = 0; i < 6000; i++) {
        for (intptr_t k = 0; k < 2; k++) node_call(&letters_node[k], look, (void *)k);
        if (both_up() && is_relayed[0] == relayed && is_relayed[1] == relayed) return;
        letters_feed();
        sleep_ms(10);
    }
    fail_msg("the link does not go %s", relayed ? "through the relay host" : "directly");
}

void letters_await(unsigned more)
{
    uint64_t goal[2] = {got[0] + more, got[1] + more};
    for (int i = 0; i < 6000; i++) {
        if (got[0] >= goal[0] && got[1] >= goal[1]) return;
        letters_feed();
        sleep_ms(10);
    }
    fail_msg("messages do not arrive");
}

static void tune(struct neb_net_config *c)
{
    c->heartbeat = 0.1;
    c->dead_after = 0.8;
    c->dial_max = 0.3;
}

void letters_open(const struct sites *s, const char *listen)
{
    for (intptr_t i = 0; i < 2; i++) {
        struct neb_net_config c = NEB_NET_CONFIG;
        ups[i] = downs[i] = 0;
        got[i] = wrong[i] = sent[i] = ended[i] = 0;
        assert_ok(neb__site_open(s->path[i], &letters_node[i].site));
        c.site = letters_node[i].site, c.events = &events, c.arg = (void *)i;
        if (i == 1) c.listen = listen;
        tune(&c);
        assert_ok(neb__net_open(&c, &letters_node[i].net));
        assert_ok(neb__net_start(letters_node[i].net));
    }
}

void letters_close(void)
{
    for (int i = 0; i < 2; i++) node_close(&letters_node[i]);
    assert_int_equal(wrong[0] + wrong[1], 0);
}

int letters_events(void)
{
    return ups[0] + ups[1] + downs[0] + downs[1];
}

unsigned long long letters_got(void)
{
    return got[0] + got[1];
}
