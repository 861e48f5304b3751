/* verb_order.c: `nebula-i order`: what an operator demands of a run that is under way (give_order.h). */
#include "cli/verb.h"
#include "base/clock.h"
#include "cli/give_order.h"
#include "cli/reference.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

struct options {
    char *operator_, *to;
    double wait;
    int64_t threshold;
    bool witness, observer;
};

static const struct neb_opt table[] = {
    NEB_OPT_AS(struct options, operator_, "operator", NEB_OPT_TEXT, "", NULL,
               "site folder of the run's operator; of several with commas between"),
    NEB_OPT(struct options, to, NEB_OPT_TEXT, "", NULL,
            "file for the other operators, where several must sign"),
    NEB_OPT(struct options, threshold, NEB_OPT_INT, "0", NULL,
            "operators: how many of them must sign; 0: more than half", NEB_OPT_RANGE(0, NEB_OPERATORS_MAX)),
    NEB_OPT(struct options, wait, NEB_OPT_REAL, "20", "seconds", "how long to wait until it is carried out"),
    NEB_OPT(struct options, witness, NEB_OPT_BOOL, "no", NULL,
            "admit: it votes and stores, but does not train"),
    NEB_OPT(struct options, observer, NEB_OPT_BOOL, "no", NULL,
            "admit: it follows the run and gets its model, and never votes or trains"),
    NEB_OPT_END,
};

static enum neb_order_fate await(const char *path, int64_t start, double seconds)
{
    enum neb_order_fate fate;
    while ((fate = neb__order_fate(path)) == NEB_FATE_WAITING && neb__seconds_since(start) < seconds)
        usleep(100000);
    return fate;
}

static void say(struct neb_call *c, enum neb_order_fate fate, const char *path)
{
    static const int exits[] = {[NEB_FATE_REFUSED] = NEB_EXIT_REFUSED,
                                [NEB_FATE_LATE] = NEB_EXIT_UNANSWERED,
                                [NEB_FATE_WAITING] = NEB_EXIT_UNANSWERED};
    c->code = exits[fate];
    switch (fate) {
    case NEB_FATE_DONE: printf("carried out\n"); break;
    case NEB_FATE_REFUSED: fprintf(stderr, "refused; the site's log says why (%s.refused)\n", path); break;
    case NEB_FATE_LATE: fprintf(stderr, "other orders came first; give it again\n"); break;
    case NEB_FATE_WAITING:
        fprintf(stderr,
                "not carried out yet: it lies in %s until the site's process takes it and a majority of the "
                "votes agrees\n",
                path);
    }
}

static void ask_for_more(const char *folder, const char *path, unsigned missing)
{
    printf("signed; %u more operator%s must sign it:\n", missing, missing > 1 ? "s" : "");
    printf("  nebula-i order %s sign %s --operator DIR\n", folder, path);
}

/* Signed again when the log went on meanwhile: the demand does not depend on the log. */
static neb_status run(struct neb_call *c)
{
    const struct options *o = c->options;
    char path[PATH_MAX];
    int64_t start = neb__now_ns();
    const struct neb_demand d = {.op = (uint8_t)c->tag,
                                 .witness = o->witness,
                                 .observer = o->observer,
                                 .threshold = o->threshold,
                                 .to = o->to,
                                 .n = c->n - 1,
                                 .words = c->words + 1};
    enum neb_order_fate fate = NEB_FATE_LATE;
    unsigned missing = 0;
    while (fate == NEB_FATE_LATE && neb__seconds_since(start) <= o->wait) {
        NEB_TRY(neb__order_give(c->words[0], o->operator_, &d, path, sizeof path, &missing));
        if (missing) {
            ask_for_more(c->words[0], path, missing);
            return NEB_OK;
        }
        fate = await(path, start, o->wait);
        if (fate == NEB_FATE_LATE) sleep(1);
    }
    say(c, fate, path);
    return NEB_OK;
}

static neb_status sign(struct neb_call *c)
{
    const struct options *o = c->options;
    char path[PATH_MAX];
    unsigned missing = 0;
    NEB_TRY(neb__order_cosign(c->words[0], o->operator_, c->words[1], path, sizeof path, &missing));
    if (missing)
        ask_for_more(c->words[0], path, missing);
    else
        say(c, await(path, neb__now_ns(), o->wait), path);
    return NEB_OK;
}

/* Words are counted with FOLDER. */
#define ORDER(name_, op_, least_, most_, args_, help_)                                                      \
    {                                                                                                       \
        .name = name_, .args = args_, .help = help_, .least = least_, .most = most_, .tag = op_, .run = run \
    }

static const struct neb_verb parts[] = {
    ORDER("admit", NEB_OP_ADMIT, 2, NEB_ANY_NUMBER, "IDENTITY|DIR [ADDRESS…]",
          "a new member; it votes once it has caught up"),
    ORDER("evict", NEB_OP_EVICT, 2, 2, "NAME", "takes a member out; its key is worth nothing from then on"),
    ORDER("leave", NEB_OP_LEAVE, 1, 1, "", "this site leaves for good (needs no operator)"),
    ORDER("survivor", NEB_OP_SURVIVOR, 2, 2, "NAME|none",
          "of two sites, the one that may go on alone: it has two votes"),
    ORDER("budget", NEB_OP_BUDGET, 2, 2, "PERCENT", "share of the lines that rounds may use"),
    ORDER("bound", NEB_OP_BOUND, 2, 2, "NORM|none", "an update whose norm is greater is rejected"),
    ORDER("end", NEB_OP_END, 1, 1, "", "the run ends now; every site keeps the common model"),
    ORDER("force", NEB_OP_FORCE, 2, NEB_ANY_NUMBER, "NAME…",
          "goes on with these sites alone, though they are no majority"),
    ORDER("adopt", NEB_OP_ADOPT, 2, NEB_ANY_NUMBER, "NAME…",
          "of two histories the one of FOLDER counts, with these sites"),
    ORDER("rekey", NEB_OP_REKEY, 2, 2, "REQUEST",
          "gives a member the new key that it asks for (nebula-i site rekey); its updates are counted anew"),
    ORDER("operators", NEB_OP_OPERATORS, 2, 2, "WHO[,WHO…] [--threshold M]",
          "other operators from now on: folders or identities; the old ones sign"),
    {.name = "sign",
     .args = "FILE",
     .help = "one more operator signs an order; it is given once enough have",
     .least = 2,
     .most = 2,
     .run = sign},
    {0},
};

const struct neb_verb neb__verb_order = {
    .name = "order",
    .args = "FOLDER",
    .help = "demand something of a run that is under way",
    .about =
        "FOLDER is that of any site of the run. The operator, --operator DIR, signs every order but "
        "`leave`.\n"
        "Where several operators must agree, the first writes the order with --to FILE; the others `sign` "
        "FILE.\n"
        "`force` is for a run that lost its majority: the other sites are gone for good and must not "
        "come back.\n"
        "Only two different `force` can make two histories; `adopt` says which one counts.",
    .options = {{table, 0}},
    .size = sizeof(struct options),
    .parts = parts,
    .part_at = 1,
};
