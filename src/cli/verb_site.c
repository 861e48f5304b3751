/* verb_site.c: `nebula-i site`: makes and shows the folder that makes a process a site; repeats the run in it. */
#include "cli/log_head.h"
#include "cli/verb.h"
#include "seal/rekey.h"
#include "seal/site.h"
#include "run/replay.h"
#include "run/run_folder.h"
#include "watch/status.h"

#include <math.h>
#include <stdio.h>

struct options {
    char *dir, *run;
    int64_t to;
};

static const struct neb_opt table[] = {
    NEB_OPT(struct options, dir, NEB_OPT_TEXT, "", NULL, "the site's folder (default: its name)"),
    NEB_OPT(struct options, run, NEB_OPT_TEXT, "", NULL, "replay: which run (default: the last one)"),
    NEB_OPT(struct options, to, NEB_OPT_INT, "0", NULL, "replay: the last record; 0: all",
            NEB_OPT_RANGE(0, HUGE_VAL)),
    NEB_OPT_END,
};

static neb_status init(struct neb_call *c)
{
    const struct options *o = c->options;
    const char *name = c->words[0];
    char identity[NEB_IDENTITY_SIZE];
    NEB_TRY(neb__site_init(o->dir ? o->dir : name, name, identity));
    printf("%s\n", identity);
    fflush(stdout);
    fprintf(stderr,
            "the folder %s holds the key. Whoever collects the roster adds the identity, with the site's "
            "address:\n"
            "  nebula-i roster add draft %s HOST:PORT\n",
            o->dir ? o->dir : name, identity);
    return NEB_OK;
}

static neb_status rekey(struct neb_call *c)
{
    struct neb_buf request;
    struct neb_rekey_head head;
    neb__log_head(c->words[0], &head);
    neb__buf_init(&request, 4096);
    neb_status status = neb__rekey_request(c->words[0], &head, &request);
    if (status == NEB_OK) {
        fwrite(request.data, 1, request.len, stdout);
        fflush(stdout);
        fprintf(stderr,
                "give this line to the operator, who signs the change; then the site takes it while it is "
                "stopped:\n"
                "  nebula-i roster rekey ROSTER REQUEST --operator DIR\n"
                "  nebula-i roster join ROSTER %s\n",
                c->words[0]);
    }
    neb__buf_free(&request);
    return status;
}

static neb_status show(struct neb_call *c)
{
    char name[NEB_NAME_SIZE], identity[NEB_IDENTITY_SIZE];
    struct neb_public key;
    NEB_TRY(neb__site_identity(c->words[0], name, &key));
    neb__identity_format(name, &key, identity);
    printf("%s\n", identity);
    return NEB_OK;
}

/* The root is that of `nebula-i train` and of the status when a site stood at the same record. */
static neb_status replay(struct neb_call *c)
{
    const struct options *o = c->options;
    struct neb_replay r;
    char hex[2 * NEB_HASH_SIZE + 1];
    NEB_TRY(neb__run_replay(c->words[0], o->run, (uint64_t)o->to, &r));
    neb__hash_hex(&r.root, hex);
    printf("record %" PRIu64 ", state root %s (%zu values, %" PRIu64 " rounds, %" PRIu64 " updates, %" PRIu64
           " tokens)\n",
           r.records, hex, r.values, r.rounds, r.updates, r.tokens);
    for (int i = 0; i < NEB_SITES_MAX; i++)
        if (r.steps[i]) printf("member %d: %" PRIu64 " steps\n", i, r.steps[i]);
    return NEB_OK;
}

static void print_run(void *arg, const char *folder, const char *name)
{
    char shown[NEB_RUN_NAME_SIZE];
    (void)arg, (void)folder;
    neb__status_text(name, shown, sizeof shown);
    printf("%s\n", shown);
}

static neb_status runs(struct neb_call *c)
{
    char name[NEB_NAME_SIZE];
    struct neb_public key;
    NEB_TRY(neb__site_identity(c->words[0], name, &key));
    neb__run_folder_each(c->words[0], print_run, NULL);
    return NEB_OK;
}

static const struct neb_verb parts[] = {
    {.name = "init",
     .args = "NAME [--dir DIR]",
     .help = "makes the folder with a new key; prints the identity",
     .least = 1,
     .most = 1,
     .run = init},
    {.name = "show", .args = "DIR", .help = "prints the identity", .least = 1, .most = 1, .run = show},
    {.name = "rekey",
     .args = "DIR",
     .help = "makes a new key and a request for it, signed by the old and the new one",
     .least = 1,
     .most = 1,
     .run = rekey},
    {.name = "runs",
     .args = "DIR",
     .help = "lists the runs in the folder",
     .least = 1,
     .most = 1,
     .run = runs},
    {.name = "replay",
     .args = "DIR [--run NAME] [--to N]",
     .help = "repeats the run from its beginning; prints the state root",
     .least = 1,
     .most = 1,
     .run = replay},
    {0},
};

const struct neb_verb neb__verb_site = {
    .name = "site",
    .args = "",
    .help = "make or show a site's key and identity; repeat its run",
    .about = "The identity is public: give it to whoever collects the run's roster. The key in DIR/site.key "
             "never\n"
             "leaves the folder.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .parts = parts,
};
