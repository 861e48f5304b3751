/* way.c: what the user says about dialling: a proxy, a command, and the environment's usual variables.
 *
 * The settings come from this machine alone: the job file, the command line, the environment. A roster names hosts, and
 * those are hostile here: a command is cut into words before a host is put into one, no shell sees them, and a host with
 * any other character than a name or an address needs is refused.
 *
 * The environment is read as curl reads it: https_proxy, then all_proxy, small letters first. no_proxy spares hosts, and
 * so does this machine itself (localhost and its addresses). A proxy that the job names is used for every host. */
#include "net/way.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a command ----------------------------------------------------------------------------------------- */

static neb_status not_a_command(const char *why)
{
    return neb__fail(NEB_ERR_CONFIG,
                     "the command that dials is not valid: %s (an example: ssh login -W %%h:%%p)", why);
}

static bool put(struct neb_command *c, char x)
{
    if (c->len >= sizeof c->text) return false;
    c->text[c->len++] = x;
    return true;
}

static bool end_word(struct neb_command *c)
{
    return c->n++ < NEB_COMMAND_WORDS && put(c, 0);
}

/* Returns the end of one word. *open: a quote is open at the end of the text. */
static const char *cut_word(const char *at, struct neb_command *c, bool *open, bool *fits)
{
    char quote = 0;
    for (; *at && (quote || !strchr(" \t\n", *at)); at++) {
        if (quote ? *at == quote : *at == '\'' || *at == '"')
            quote = quote ? 0 : *at;
        else if (*at == '\\' && quote != '\'' && at[1])
            *fits &= put(c, *++at);
        else
            *fits &= put(c, *at);
    }
    *open = quote != 0;
    *fits &= end_word(c);
    return at;
}

static bool percents_are_known(const struct neb_command *c)
{
    for (size_t i = 0; i < c->len; i++)
        if (c->text[i] == '%' && (i + 1 >= c->len || !c->text[++i] || !strchr("hp%", c->text[i])))
            return false;
    return true;
}

neb_status neb__command_split(const char *text, struct neb_command *out)
{
    struct neb_command c = {0};
    bool open = false, fits = true;
    while (fits && !open) {
        text += strspn(text, " \t\n");
        if (!*text) break;
        text = cut_word(text, &c, &open, &fits);
    }
    if (open) return not_a_command("a quotation mark is not closed");
    if (!fits) return not_a_command("it is too long");
    if (!c.n || !*c.text) return not_a_command("it is empty");
    if (!percents_are_known(&c)) return not_a_command("%h, %p and %% are known, no other %");
    *out = c;
    return NEB_OK;
}

static bool put_text(struct neb_command *c, const char *text)
{
    while (*text)
        if (!put(c, *text++)) return false;
    return true;
}

static bool fill_one(struct neb_command *c, const char *from, const char *host, const char *port)
{
    bool brackets = *from == 'h' && strchr(host, ':') && !strncmp(from, "h:%p", 4);
    if (*from == 'p') return put_text(c, port);
    if (*from == '%') return put(c, '%');
    return (!brackets || put(c, '[')) && put_text(c, host) && (!brackets || put(c, ']'));
}

neb_status neb__command_fill(const struct neb_command *c, const char *host, uint16_t port,
                             struct neb_command *out)
{
    char digits[8];
    bool fits = true;
    *out = (struct neb_command){.n = c->n};
    if (!neb__host_is_plain(host))
        return neb__quiet(NEB_ERR_INVALID, "its address in the roster cannot be given to a command");
    snprintf(digits, sizeof digits, "%u", port);
    for (size_t i = 0; i < c->len && fits; i++)
        fits = c->text[i] == '%' ? fill_one(out, &c->text[++i], host, digits) : put(out, c->text[i]);
    return fits ? NEB_OK : neb__quiet(NEB_ERR_INVALID, "the command that dials gets too long");
}

void neb__command_words(struct neb_command *c, char *argv[NEB_COMMAND_WORDS + 1])
{
    char *at = c->text;
    for (int i = 0; i < c->n; i++) {
        argv[i] = at;
        at += strlen(at) + 1;
    }
    argv[c->n] = NULL;
}

/* ---- proxy and environment ----------------------------------------------------------------------------- */

static const char *variable(const char *const names[], const char **which)
{
    for (int i = 0; names[i]; i++) {
        const char *value = getenv(names[i]);
        *which = names[i];
        if (value && *value) return value;
    }
    return NULL;
}

static neb_status take_environment(struct neb_way *w)
{
    static const char *const proxies[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", NULL};
    static const char *const spared[] = {"no_proxy", "NO_PROXY", NULL};
    static const char here[] = "localhost,127.0.0.0/8,::1";
    const char *which, *text = variable(proxies, &w->origin), *more = variable(spared, &which);
    if (!text) return NEB_OK;
    neb_status status = neb__proxy_parse(text, &w->proxy);
    if (status != NEB_OK)
        return neb__fail(status, "the variable %s: %s; 'sites[].proxy: none' does without it", w->origin,
                         neb_last_error());
    size_t n = sizeof here + 1 + (more ? strlen(more) : 0);
    w->spared = neb__malloc(n);
    if (!w->spared) return neb__fail(NEB_ERR_NOMEM, "out of memory for a proxy");
    snprintf(w->spared, n, "%s,%s", here, more ? more : "");
    w->by_environment = true;
    return NEB_OK;
}

neb_status neb__way_init(struct neb_way *w, const char *proxy, const char *command, bool environment)
{
    *w = (struct neb_way){.origin = "sites[].proxy"};
    bool dials = command && *command && strcmp(command, "none"), named = proxy && *proxy;
    bool none = named && !strcmp(proxy, "none");
    if (dials && named && !none)
        return neb__fail(NEB_ERR_CONFIG,
                         "a site dials through a proxy or by a command, not both: leave out sites[].proxy or "
                         "sites[].dial");
    if (dials) return neb__command_split(command, &w->command);
    if (named) return none ? NEB_OK : neb__proxy_parse(proxy, &w->proxy);
    return environment ? take_environment(w) : NEB_OK;
}

void neb__way_free(struct neb_way *w)
{
    neb__free(w->spared);
    memset(w, 0, sizeof *w); /* the password, too */
}

bool neb__way_uses_proxy(const struct neb_way *w, const char *host)
{
    return w->proxy.kind != NEB_PROXY_NONE && !neb__proxy_spares(w->spared, host);
}
