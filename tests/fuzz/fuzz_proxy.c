/* fuzz_proxy.c: what a proxy answers, in pieces; and what a user writes about dialling. */
#include "net/way.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The first byte says in which pieces the answer comes. */
static void answer(const char *proxy, const uint8_t *data, size_t size)
{
    struct neb_proxy p;
    struct neb_proxy_talk t;
    size_t step = size ? 1 + data[0] % 64 : 1, at = 1, used;
    neb_status status = NEB_ERR_AGAIN;
    if (neb__proxy_parse(proxy, &p) != NEB_OK || neb__proxy_ask(&t, &p, "b.example", 7100) != NEB_OK) abort();
    while (status == NEB_ERR_AGAIN && at < size) {
        size_t n = size - at < step ? size - at : step;
        t.out_len = 0;
        used = SIZE_MAX;
        status = neb__proxy_take(&t, data + at, n, &used);
        if (status == NEB_OK || status == NEB_ERR_AGAIN) {
            if (used > n || !used || t.out_len > sizeof t.out) abort();
            at += used;
        }
    }
    if (at > size + 64 || (status == NEB_ERR_AGAIN && size > 2 * NEB_PROXY_REPLY_MAX)) abort();
}

static void words(const char *text)
{
    struct neb_proxy p;
    struct neb_command c, filled;
    char *argv[NEB_COMMAND_WORDS + 1];
    if (neb__proxy_parse(text, &p) == NEB_OK && (!p.port || !neb__host_is_plain(p.host))) abort();
    neb__proxy_spares(text, "10.1.2.3");
    neb__proxy_spares(text, "a.example");
    if (neb__command_split(text, &c) != NEB_OK) return;
    if (neb__command_fill(&c, "fd00::1", 65535, &filled) != NEB_OK) return;
    neb__command_words(&filled, argv);
    for (int i = 0; i < c.n; i++)
        if (!memchr(argv[i], 0, (size_t)(filled.text + sizeof filled.text - argv[i]))) abort();
    if (argv[c.n]) abort();
    neb__command_fill(&c, text, 1, &filled);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[4096];
    neb_log_set_level(NEB_LOG_NONE);
    if (!size) return 0;
    switch (data[0] & 3) {
    case 0: answer("http://gate:1", data + 1, size - 1); break;
    case 1: answer("socks5://gate:1", data + 1, size - 1); break;
    case 2: answer("socks5://me:word@gate:1", data + 1, size - 1); break;
    case 3:
        if (size > sizeof text) break;
        memcpy(text, data + 1, size - 1);
        text[size - 1] = 0;
        words(text);
        break;
    }
    return 0;
}
