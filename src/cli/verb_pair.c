/* verb_pair.c: `nebula-i pair`: two sites get a common roster with a code that one tells the other, over a relay host.
 *
 * The site that is run without a code makes one, shows it and waits; it is the run's operator. The other is run with the code.
 * A code is good for one guess. If that fails, a new one is made, and after a few of them the command ends: whoever guesses gets that many
 * guesses of 2^33 before a person looks. Somebody who comes and says nothing, or nonsense, has made no guess: the site meets again with the
 * same code, as long as it waits. */
#include "cli/member_words.h"
#include "cli/pair_exchange.h"
#include "cli/pair_roster.h"
#include "cli/verb.h"
#include "base/clock.h"
#include "base/file.h"
#include "net/proxy_dial.h"
#include "seal/site.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ATTEMPTS = 5 };
static const double proxy_s = 15, busy_s = 10, again_s = 0.2;

struct options {
    char *relay, *proxy;
    double wait;
    int64_t sites;
    bool witness, replace;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, relay, NEB_OPT_TEXT, "", NULL,
            "HOST:PORT of a relay host (nebula-i relay), or its whole address relay://HOST:PORT#KEY; the "
            "same at both sites"),
    NEB_OPT(struct options, wait, NEB_OPT_TIME, "10m", NULL, "for the other site", NEB_OPT_RANGE(1, 86400)),
    NEB_OPT(struct options, sites, NEB_OPT_INT, "1", NULL,
            "how many sites to pair with, one after the other, each with a code of its own",
            NEB_OPT_RANGE(1, 64)),
    NEB_OPT(struct options, witness, NEB_OPT_BOOL, "no", NULL,
            "this site votes and stores, but does not train"),
    NEB_OPT(struct options, replace, NEB_OPT_BOOL, "no", NULL,
            "with a code: in place of the roster that the folder has, which is kept as roster.before"),
    NEB_OPT(struct options, proxy, NEB_OPT_TEXT, "", NULL,
            "reach the relay host through http://HOST:PORT or socks5://HOST:PORT; none: never; empty: as "
            "https_proxy, all_proxy and "
            "no_proxy say"),
    NEB_OPT_END,
};

struct pair {
    const struct options *o;
    const char *dir;
    struct neb_key *key;
    struct neb_member self; /* with the addresses that were given */
    char host[NEB_ADDRESS_SIZE], place[NEB_ADDRESS_SIZE];
    uint16_t port;
    bool pinned;
    struct neb_public relay_key;
    struct neb_way way;
    int64_t until;
};

/* ---- before ---------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* A folder that is missing is made, with a key and the folder's name. */
static neb_status open_folder(struct pair *p)
{
    char path[PATH_MAX], identity[NEB_IDENTITY_SIZE];
    if (snprintf(path, sizeof path, "%s/site.key", p->dir) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", p->dir);
    if (access(path, F_OK)) {
        NEB_TRY(neb__site_init(p->dir, last_part(p->dir), identity));
        fprintf(stderr, "made the folder %s with a new key: %s\n", p->dir, identity);
    }
    NEB_TRY(neb__site_identity(p->dir, p->self.name, &p->self.key));
    return neb__site_key(p->dir, &p->key);
}

static neb_status find_relay(struct pair *p)
{
    struct neb_relay_address a;
    const char *text = p->o->relay;
    if (!text)
        return neb__fail(
            NEB_ERR_CONFIG,
            "nebula-i pair: --relay HOST:PORT is needed: a machine that both sites reach, on which "
            "'nebula-i relay' runs");
    p->pinned = neb__address_relay(text, &a);
    if (p->pinned) {
        memcpy(p->host, a.host, sizeof p->host);
        p->port = a.port;
        p->relay_key = a.key;
    } else if (!neb__address_split(text, p->host, &p->port)) {
        return neb__fail(NEB_ERR_INVALID, "--relay '%s' reads HOST:PORT or relay://HOST:PORT#KEY", text);
    }
    snprintf(p->place, sizeof p->place, strchr(p->host, ':') ? "[%.100s]:%u" : "%.100s:%u", p->host, p->port);
    return NEB_OK;
}

static void rest(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static double left(const struct pair *p)
{
    return (double)(p->until - neb__now_ns()) * 1e-9;
}

/* Comes back when the other one is there. A relay host that is busy is asked again. */
static neb_status meet(struct pair *p, const struct neb_pair_code *code, struct neb_meeting **out)
{
    struct neb_meeting_place at = {.host = p->host, .port = p->port, .key = p->pinned ? &p->relay_key : NULL};
    uint8_t id[32];
    neb_status status = NEB_ERR_AGAIN;
    NEB_TRY(neb__pair_code_place(code, id));
    while (status == NEB_ERR_AGAIN) {
        if (left(p) <= 0)
            return neb__quiet(NEB_ERR_TIMEOUT, "nobody came with this code within %.0f s", p->o->wait);
        at.fd = -1;
        if (neb__way_uses_proxy(&p->way, p->host))
            NEB_TRY(neb__proxy_dial(&p->way.proxy, p->host, p->port, proxy_s, &at.fd));
        status = neb__meeting_open(&at, id, left(p), out);
        if (status == NEB_ERR_AGAIN) rest(left(p) < busy_s ? 1 : busy_s);
    }
    return status;
}

/* The relay host is an address of both, the last one, so that they find each other there. */
static neb_status add_relay(const struct pair *p, struct neb_meeting *m, struct neb_member *member)
{
    struct neb_public key;
    char address[NEB_ADDRESS_SIZE];
    neb__meeting_key(m, &key);
    NEB_TRY(neb__relay_address_format(p->place, &key, address));
    return neb__member_address(member, address);
}

/* ---- the two sides --------------------------------------------------------------------------------------- */

static void say_done(const struct pair *p, const struct neb_pair_talk *t, const struct neb_chain *c)
{
    char hex[2 * NEB_HASH_SIZE + 1];
    neb__hash_hex(&c->genesis_hash, hex);
    printf("paired     %s\ngenesis    %s\n", t->other.name, hex);
    fflush(stdout);
    fprintf(
        stderr,
        "%s has a roster of %u sites (nebula-i roster show %s). With all of them under `sites` of the job:\n"
        "  nebula-i train job.yaml --site %s%s%s\n",
        p->dir, c->now.count, p->dir, p->self.name, strcmp(p->dir, p->self.name) ? " sites[…].folder=" : "",
        strcmp(p->dir, p->self.name) ? p->dir : "");
}

/* Everything behind the proof. What goes wrong here is told to the other site. */
static neb_status make_roster(struct pair *p, struct neb_pair_talk *t)
{
    struct neb_chain *c = NULL;
    NEB_TRY(neb__pair_cards(t, p->key));
    neb_status status = neb__pair_roster_make(p->dir, &t->self, &t->other, &c);
    if (status == NEB_OK) status = neb__pair_send_roster(t, c);
    if (status == NEB_OK) say_done(p, t, c);
    neb__chain_free(c);
    return status;
}

static neb_status take_roster(struct pair *p, struct neb_pair_talk *t)
{
    struct neb_chain *c = NULL;
    NEB_TRY(neb__pair_cards(t, p->key));
    NEB_TRY(neb__pair_receive_roster(t, &c));
    neb_status status = neb__pair_roster_take(p->dir, &t->self, &t->other, c, p->o->replace);
    if (status == NEB_OK) status = neb__pair_confirm(t, c);
    if (status == NEB_OK) say_done(p, t, c);
    neb__chain_free(c);
    return status;
}

/* *guessed: the code has been tried, and is worth nothing any more. */
static neb_status talk(struct pair *p, struct neb_meeting *m, bool creator, const struct neb_pair_code *code,
                       bool *guessed)
{
    struct neb_pair_talk t = {.meeting = m, .self = p->self};
    neb_status status = add_relay(p, m, &t.self);
    if (status == NEB_OK) status = neb__pair_prove(&t, creator, code);
    if (status == NEB_OK) {
        status = creator ? make_roster(p, &t) : take_roster(p, &t);
        if (status != NEB_OK) {
            neb_status why = status;
            if (why != NEB_ERR_CANCELLED) neb__pair_refuse(&t, neb_last_error());
            status = neb__quiet(NEB_ERR_CANCELLED, "%s", neb_last_error()); /* the code was right: no guess */
        }
    }
    neb__pairing_wipe(&t.pairing);
    *guessed = t.guessed;
    return status;
}

/* Who has come has made no guess. */
static bool was_no_guess(neb_status s)
{
    return s == NEB_ERR_TIMEOUT || s == NEB_ERR_PEER || s == NEB_ERR_PROTOCOL || s == NEB_ERR_AUTH;
}

/* Meets until somebody has made a guess, or the time is over. */
static neb_status use_code(struct pair *p, bool creator, const struct neb_pair_code *code, bool *guessed)
{
    struct neb_meeting *m;
    neb_status status;
    bool told = false, told_version = false;
    *guessed = false;
    for (;;) {
        NEB_TRY(meet(p, code, &m));
        status = talk(p, m, creator, code, guessed);
        neb__meeting_close(m);
        /* Another version proves nothing of whoever speaks it: at the site that waits it is told, and the site goes on waiting. */
        bool again = was_no_guess(status) || (creator && status == NEB_ERR_VERSION);
        if (status == NEB_OK || *guessed || !again) return status;
        if (!(status == NEB_ERR_VERSION ? told_version : told))
            fprintf(stderr,
                    "somebody came with the number of this code, and made no guess (%s): the code "
                    "is good still, waiting for the other site\n",
                    neb_last_error());
        told = true;
        told_version |= status == NEB_ERR_VERSION;
        rest(again_s);
    }
}

/* One code, one guess. */
static neb_status try_code(struct pair *p)
{
    struct neb_pair_code code;
    char text[NEB_PAIR_CODE_SIZE];
    bool guessed;
    NEB_TRY(neb__pair_code_make(&code));
    neb__pair_code_format(&code, text);
    printf("%s\n", text);
    fflush(stdout);
    fprintf(stderr, "at the other site, within %.0f s: nebula-i pair NAME %s --relay %s\n", left(p), text,
            p->o->relay);
    neb_status status = use_code(p, true, &code, &guessed);
    return guessed && status == NEB_ERR_TIMEOUT ? NEB_ERR_PEER : status;
}

/* What another code may help against: a wrong one was tried, somebody left or sent nonsense, the number is taken. */
static bool may_try_again(neb_status s)
{
    return s == NEB_ERR_AUTH || s == NEB_ERR_PEER || s == NEB_ERR_PROTOCOL || s == NEB_ERR_STATE ||
           s == NEB_ERR_EXISTS;
}

static neb_status create(struct pair *p)
{
    for (int64_t site = 0; site < p->o->sites; site++) {
        neb_status status = NEB_ERR_AUTH;
        for (int i = 0; i < ATTEMPTS && status != NEB_OK; i++) {
            NEB_TRY(neb__pair_roster_may(p->dir, &p->self));
            p->until = neb__now_ns() + (int64_t)(p->o->wait * 1e9);
            status = try_code(p);
            if (status != NEB_OK && !may_try_again(status)) return neb__fail(status, "%s", neb_last_error());
            if (status != NEB_OK) fprintf(stderr, "this code is void: %s\n", neb_last_error());
        }
        if (status != NEB_OK)
            return neb__fail(
                NEB_ERR_AUTH,
                "%d codes in a row failed: somebody may be guessing, or in between; ask the other site, then "
                "begin again, perhaps at another relay host",
                ATTEMPTS);
    }
    return NEB_OK;
}

static neb_status join(struct pair *p, const struct neb_pair_code *code)
{
    bool guessed;
    p->until = neb__now_ns() + (int64_t)(p->o->wait * 1e9);
    neb_status status = use_code(p, false, code, &guessed);
    if (status == NEB_OK) return NEB_OK;
    if (guessed && (status == NEB_ERR_AUTH || status == NEB_ERR_PEER || status == NEB_ERR_TIMEOUT))
        return neb__fail(status, "%s. The code is void now: take the new one that the other site shows",
                         neb_last_error());
    return neb__fail(status, "%s", neb_last_error());
}

/* ---- the verb -------------------------------------------------------------------------------------------- */

/* NAME|DIR [CODE] [ADDRESS…]: an address has a colon. */
static neb_status read_words(struct neb_call *c, struct pair *p, const char **code)
{
    p->dir = c->words[0];
    for (int i = 1; i < c->n; i++) {
        if (strchr(c->words[i], ':'))
            NEB_TRY(neb__member_address(&p->self, c->words[i]));
        else if (*code)
            return neb__fail(NEB_ERR_INVALID, "'%s': a second code; an address reads HOST:PORT", c->words[i]);
        else
            *code = c->words[i];
    }
    if (p->self.addresses >= NEB_ADDRESSES_MAX)
        return neb__fail(NEB_ERR_INVALID, "at most %d addresses: the relay host is one more",
                         NEB_ADDRESSES_MAX - 1);
    return NEB_OK;
}

static neb_status lock_folder(const char *dir, int *lock)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/lock", dir) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    neb_status status = neb__file_lock(path, NEB_LOCK_FILE, lock);
    if (status == NEB_ERR_BUSY)
        return neb__fail(status, "the site in %s runs, or is being paired: stop that first", dir);
    return status;
}

static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    struct pair p = {.o = o, .self = {.votes = 1, .flags = o->witness ? NEB_MEMBER_WITNESS : 0}};
    struct neb_pair_code code;
    const char *text = NULL;
    int lock = -1;
    neb_status status = read_words(c, &p, &text);
    if (status == NEB_OK && text) status = neb__pair_code_parse(text, &code);
    if (status == NEB_OK) status = find_relay(&p);
    if (status == NEB_OK) status = neb__way_init(&p.way, o->proxy, NULL, true);
    if (status == NEB_OK) status = open_folder(&p);
    if (status == NEB_OK) status = lock_folder(p.dir, &lock);
    if (status == NEB_OK && !text && (status = neb__pair_roster_may(p.dir, &p.self)) != NEB_OK)
        status = neb__fail(status, "%s", neb_last_error());
    if (status == NEB_OK) status = text ? join(&p, &code) : create(&p);
    if (lock >= 0) close(lock);
    neb__key_free(p.key);
    neb__way_free(&p.way);
    return status;
}

const struct neb_verb neb__verb_pair = {
    .name = "pair",
    .args = "NAME|DIR [CODE] [ADDRESS…] --relay HOST:PORT",
    .help = "a common roster for two sites, with a code that one tells the other",
    .about = "Without a CODE this site makes one, prints it and waits: tell it to the other site, which is "
             "run with it. This site is the\n"
             "operator then. A folder that is missing is made (nebula-i site init). An ADDRESS (HOST:PORT) "
             "is one at which others can dial\n"
             "this site; without any it is reached through the relay host. For more sites, repeat it at the "
             "operator's site.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 1,
    .most = NEB_ANY_NUMBER,
    .missing = "give the name or folder of this site",
    .run = run,
};
