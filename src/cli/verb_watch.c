/* verb_watch.c: `nebula-i watch OUT`: a run while it lives, as a page in a browser, in a terminal, and as numbers for
 * other tools.
 *
 * It reads what the sites write, in a process of its own: nothing of the training waits for it, and it may come and go. */
#include "cli/verb.h"
#include "base/log.h"
#include "cli/watch_loop.h"
#include "seal/web_certificate.h"
#include "serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKEN_LEAST = 12, TOKEN_MOST = 200 };

static const struct neb_opt table[] = {
    NEB_OPT(struct neb_watch_options, port, NEB_OPT_INT, "8265", NULL, "of the page; 0: any that is free",
            NEB_OPT_RANGE(0, 65535)),
    NEB_OPT(struct neb_watch_options, host, NEB_OPT_TEXT, "127.0.0.1", NULL,
            "address to listen on; other machines can look at another one than this, and need a token"),
    NEB_OPT(
        struct neb_watch_options, token, NEB_OPT_TEXT, "", NULL,
        "a word that everybody must know who looks; also NEBULA_WATCH_TOKEN, which other users cannot see"),
    NEB_OPT(struct neb_watch_options, tls, NEB_OPT_TEXT, "", NULL,
            "a site's folder: TLS, with a key and certificate that are kept there"),
    NEB_OPT(struct neb_watch_options, text, NEB_OPT_BOOL, "no", NULL, "in this terminal instead; q ends it"),
    NEB_OPT(struct neb_watch_options, alert, NEB_OPT_TEXT, "", NULL,
            "a command, or an address that begins with http:// or https://, which is told of alerts; also "
            "NEBULA_WATCH_ALERT"),
    NEB_OPT(struct neb_watch_options, stalled, NEB_OPT_TIME, "10m", NULL,
            "without a commit is an alert; 0: it is not", NEB_OPT_RANGE(0, 1e7)),
    NEB_OPT(struct neb_watch_options, disk, NEB_OPT_BYTES, "1GiB", NULL, "less room at a site is an alert",
            NEB_OPT_RANGE(0, 1e18)),
    NEB_OPT(struct neb_watch_options, egress, NEB_OPT_REAL, "0.08", NULL,
            "price of a gigabyte that leaves a site, for the cost that is shown; 0: none",
            NEB_OPT_RANGE(0, 1000)),
    NEB_OPT(
        struct neb_watch_options, orders, NEB_OPT_TEXT, "", NULL,
        "a site's folder: the page also gives orders to the run, through this site; needs --operator and a "
        "word of its own"),
    NEB_OPT_AS(struct neb_watch_options, operator_, "operator", NEB_OPT_TEXT, "", NULL,
               "site folder of the run's operator, who signs orders"),
    NEB_OPT_AS(
        struct neb_watch_options, order_word, "order-word", NEB_OPT_TEXT, "", NULL,
        "a word that everybody must know who gives orders; also NEBULA_WATCH_ORDER_WORD, which other users "
        "cannot see"),
    NEB_OPT_END,
};

static bool is_plain(const char *token)
{
    for (; *token; token++)
        if (*token <= ' ' || *token > '~' || strchr("\";,\\", *token)) return false;
    return true;
}

/* *out NULL: there is none */
static neb_status find_word(const char *what, const char *option, const char *variable, const char **out)
{
    const char *word = option && *option ? option : getenv(variable);
    *out = word && *word ? word : NULL;
    if (!*out) return NEB_OK;
    size_t n = strlen(word);
    if (n < TOKEN_LEAST || n > TOKEN_MOST || !is_plain(word))
        return neb__fail(NEB_ERR_CONFIG,
                         "the %s must have %d to %d visible characters without quotes, ; , or \\; "
                         "`openssl rand -hex 16` makes one",
                         what, TOKEN_LEAST, TOKEN_MOST);
    return NEB_OK;
}

static neb_status find_orders(const struct neb_watch_options *o, struct neb_serve_config *c,
                              struct neb_watch_orders **out)
{
    if (!o->orders || !*o->orders) return NEB_OK;
    NEB_TRY(find_word("word for orders", o->order_word, "NEBULA_WATCH_ORDER_WORD", &c->order_word));
    if (!o->operator_ || !*o->operator_ || !c->order_word)
        return neb__fail(
            NEB_ERR_CONFIG,
            "--orders needs --operator DIR, whose key signs orders, and NEBULA_WATCH_ORDER_WORD or "
            "--order-word WORD, which whoever gives one must know");
    if (c->token && !strcmp(c->token, c->order_word))
        return neb__fail(NEB_ERR_CONFIG,
                         "the word for orders must not be the token: whoever may look could order");
    NEB_TRY(neb__watch_orders_open(o->orders, o->operator_, out));
    c->orders = neb__watch_orders_table(*out);
    return NEB_OK;
}

static void say_where(const struct neb_serve_config *c, int port, const char *fingerprint)
{
    bool v6 = strchr(c->host, ':');
    printf("watching %s: %s://%s%s%s:%d/\n", c->folder, c->certificate ? "https" : "http", v6 ? "[" : "",
           c->host, v6 ? "]" : "", port);
    if (c->certificate) printf("the certificate's SHA-256 fingerprint is %s\n", fingerprint);
    if (c->orders) printf("orders are taken from whoever knows the word for them\n");
    if (c->token && !c->certificate && !neb__serve_is_local(c->host))
        neb__warn("the token crosses the network unprotected: give --tls FOLDER of a site, or use ssh -L");
    fflush(stdout);
}

static neb_status serve(const struct neb_watch_options *o, const char *folder)
{
    struct neb_serve_config c = {
        .folder = folder, .host = o->host, .port = (int)o->port, .egress = o->egress};
    struct neb_buf certificate, key;
    char fingerprint[NEB_FINGERPRINT_SIZE] = "";
    struct neb_serve *s = NULL;
    struct neb_watch_orders *orders = NULL;
    NEB_TRY(find_word("token", o->token, "NEBULA_WATCH_TOKEN", &c.token));
    neb__buf_init(&certificate, 1 << 20);
    neb__buf_init(&key, 1 << 20);
    neb_status status = find_orders(o, &c, &orders);
    if (status == NEB_OK && o->tls && *o->tls) {
        status = neb__web_certificate(o->tls, &certificate, &key, fingerprint);
        c.certificate = (const char *)certificate.data;
        c.key = (const char *)key.data;
    }
    if (status == NEB_OK) status = neb__serve_start(&c, &s);
    if (status == NEB_OK) {
        say_where(&c, neb__serve_port(s), fingerprint);
        status = neb__watch_serve(s, o, orders);
    }
    neb__serve_stop(s);
    neb__watch_orders_close(orders);
    neb__buf_free(&certificate);
    neb__buf_free(&key);
    return status;
}

/* A run that has just been started may not have written anything yet; a wrong folder is told at once. */
static neb_status check_folder(const char *folder)
{
    if (!access(folder, R_OK | X_OK)) return NEB_OK;
    return neb__fail(NEB_ERR_NOTFOUND, "%s: no such folder; give the `out` of a job, or of nebula-i lab",
                     folder);
}

static neb_status run(struct neb_call *c)
{
    const struct neb_watch_options *o = c->options;
    const char *folder = c->n ? c->words[0] : "out";
    NEB_TRY(check_folder(folder));
    if (o->text) neb__watch_catch_signals();
    return o->text ? neb__watch_text(folder, o) : serve(o, folder);
}

const struct neb_verb neb__verb_watch = {
    .name = "watch",
    .args = "[OUT] [--port N] [--token T] [--text]",
    .help = "a run while it lives: a page, a terminal, numbers for other tools",
    .about =
        "OUT is the `out` of a job or of nebula-i lab (default: out). The page is for this machine alone\n"
        "unless --host says otherwise. /metrics is for Prometheus, /api/v1/status and /api/v1/history are\n"
        "JSON, /healthz says whether the server lives (docs/watch.md).",
    .options = {{table, 0}},
    .size = sizeof(struct neb_watch_options),
    .most = 1,
    .run = run,
};
