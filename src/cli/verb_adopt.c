/* verb_adopt.c: `nebula-i adopt`: a site takes over a roster by hand.
 *
 * Epochs travel by themselves: any peer sends one to a site that missed it. Two cases need a hand. A site whose peers have
 * all changed keys or addresses is given a newer file. And when two rosters are signed for one epoch (a fork), peers of
 * different branches refuse each other until the operator has chosen: every site of the other branch then adopts the file
 * of the chosen one. That drops epochs, so it needs --force, says which, and keeps the old file as `roster.dropped`. */
#include "cli/verb.h"
#include "base/file.h"
#include "seal/site.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct options {
    bool force;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, force, NEB_OPT_BOOL, "no", NULL,
            "drop the site's own epochs where the file has others, or take a roster without this site"),
    NEB_OPT_END,
};

/* The last epoch up to which both are the same. */
static uint64_t common(const struct neb_chain *a, const struct neb_chain *b)
{
    uint64_t least = a->epoch < b->epoch ? a->epoch : b->epoch;
    for (uint64_t k = 0; k < least; k++) {
        const uint8_t *p, *q;
        size_t n, m;
        neb__chain_tail(a, k, 1, &p, &n);
        neb__chain_tail(b, k, 1, &q, &m);
        if (n != m || memcmp(p, q, n)) return k;
    }
    return least;
}

static neb_status choose_branch(const struct options *o, const char *dir, const struct neb_chain *mine,
                                const struct neb_chain *file)
{
    char path[PATH_MAX];
    uint64_t same = common(mine, file);
    if (!o->force)
        return neb__fail(
            NEB_ERR_EXISTS,
            "the two differ from epoch %" PRIu64 " on: this site holds up to %" PRIu64
            ", the file up to %" PRIu64
            ". If the operator has chosen the file, use --force on every site that holds the other",
            same + 1, mine->epoch, file->epoch);
    if (snprintf(path, sizeof path, "%s/roster.dropped", dir) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "the path of '%s' is too long", dir);
    NEB_TRY(neb__chain_write(mine, path, 0600));
    printf("dropped    epochs %" PRIu64 " to %" PRIu64 " (kept in %s)\n", same + 1, mine->epoch, path);
    return NEB_OK;
}

/* `mine` becomes what the site will hold, unless that is `file` itself. */
static neb_status decide(const struct options *o, const struct neb_site *site, struct neb_chain *mine,
                         const struct neb_chain *file, const struct neb_chain **out)
{
    if (!neb__hash_equal(&mine->genesis_hash, &file->genesis_hash))
        return neb__fail(NEB_ERR_INVALID, "the file is of another run; use one site folder for each run");
    neb_status status = neb__chain_extend(mine, file->tail.data, file->tail.len);
    *out = status == NEB_ERR_EXISTS ? file : mine;
    if (status == NEB_ERR_EXISTS) status = choose_branch(o, site->dir, mine, file);
    NEB_TRY(status);
    if (!neb__roster_by_key(&(*out)->now, &site->public) && !o->force)
        return neb__fail(NEB_ERR_AUTH, "%s is not a member in epoch %" PRIu64 ": it could talk to nobody",
                         site->name, (*out)->epoch);
    return NEB_OK;
}

static neb_status adopt(const struct options *o, const char *path, const char *dir)
{
    struct neb_chain *file = NULL, *mine = NULL;
    const struct neb_chain *chosen = NULL;
    struct neb_site *site = NULL;
    char hex[2 * NEB_HASH_SIZE + 1];
    neb_status status = neb__chain_read(path, &file);
    if (status == NEB_OK)
        status = neb__site_open(dir, &site); /* its lock: nobody else changes the roster meanwhile */
    if (status == NEB_OK) status = neb__site_roster_load(dir, &mine);
    if (status == NEB_OK) status = decide(o, site, mine, file, &chosen);
    if (status == NEB_OK) status = neb__site_roster_save(dir, chosen);
    if (status == NEB_OK) {
        for (int i = 0; i < NEB_HASH_SIZE; i++) snprintf(hex + 2 * i, 3, "%02x", chosen->head.b[i]);
        printf("epoch      %" PRIu64 "\nhead       %s\n", chosen->epoch, hex);
    }
    neb__site_close(site);
    neb__chain_free(mine);
    neb__chain_free(file);
    return status;
}

static neb_status run(struct neb_call *c)
{
    return adopt(c->options, c->words[0], c->words[1]);
}

const struct neb_verb neb__verb_adopt = {
    .name = "adopt",
    .args = "FILE DIR [--force]",
    .help = "a site takes over a roster by hand",
    .about = "The site in DIR, which must not be running, takes over the roster in FILE. All sites of a run "
             "must end\n"
             "up with the same one: compare the last line, which names it.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .least = 2,
    .most = 2,
    .run = run,
};
