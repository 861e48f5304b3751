/* sim_mutants.c: the simulator built with deliberate bugs (base/mutant.h). `sim_mutants` runs them all:
 * each must be caught within 10,000 seeds, and without any mutant nothing may be caught. `sim_mutants
 * NAME` shows how one is caught. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mutant.h"
#include "sim/sim.h"

#include <stdio.h>
#include <string.h>

enum neb_mutant neb__mutant;

static const char *const name[] = {"none",
#define NEB__X(id, what) #id,
                                   NEB_MUTANT_LIST(NEB__X) NEB_LIAR_MUTANT_LIST(NEB__X)
                                       NEB_SECURE_MUTANT_LIST(NEB__X)
#undef NEB__X
};
enum {
    MUTANTS = sizeof name / sizeof *name,
#define NEB__X(id, what) +1
    WITHOUT_LIARS = 1 NEB_MUTANT_LIST(NEB__X), /* those behind need a liar among the sites */
#undef NEB__X
};

/* Bugs that take many seeds to find. They run by name only. */
static bool is_rare(const char *mutant)
{
    static const char *const rare[] = {
        "trust_acks",         "count_void",       "no_errands",      "convict_nobody", "trust_records",
        "count_from_one",     "wait_for_silent",  "void_in_silence", "no_detour",      "wait_once",
        "ask_the_gone",       "views_over_force", "close_orders",    "trust_claims",   "forget_early",
        "go_with_the_leader", "ask_leader_only",  "ask_below",       "go_in_silence",  "keep_open",
        "ask_before_looking"};
    for (size_t i = 0; i < sizeof rare / sizeof *rare; i++)
        if (!strcmp(rare[i], mutant)) return true;
    return false;
}

/* A seed that is known to catch a bug that takes many to find; 0: none. It is tried first. */
static int known_seed(const char *mutant)
{
    static const struct {
        const char *name;
        int seed;
    } known[] = {{"judge_briefly", 5068},
                 {"cells_in_vain", 7065297},
                 {"final_over_open", 4676},
                 {"believe_anybody", 9022085},
                 {"demand_proof", 71095102}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, mutant)) return known[i].seed;
    return 0;
}

/* Those of secure sums that only a liar can use, too. */
static bool needs_liar(int mutant)
{
    return mutant == (int)NEB_MUTANT_any_seeds || mutant == (int)NEB_MUTANT_final_over_open ||
           mutant == (int)NEB_MUTANT_keep_open || mutant == (int)NEB_MUTANT_ask_below ||
           mutant == (int)NEB_MUTANT_ask_leader_only || mutant == (int)NEB_MUTANT_void_for_ever;
}

static bool caught(int mutant, int seed, struct neb_sim_result *r)
{
    bool secure = mutant >= (int)NEB_MUTANT_FIRST_SECURE;
    bool lies = mutant >= WITHOUT_LIARS && (!secure || needs_liar(mutant));
    struct neb_sim_fault o = {.seed = (uint64_t)seed,
                              .liars = lies,
                              .byzantine = mutant == (int)NEB_MUTANT_forget_early,
                              .secure = secure,
                              .observer = mutant == (int)NEB_MUTANT_promote_observers,
                              .lasting_cuts = !lies && !secure && mutant >= (int)NEB_MUTANT_FIRST_ROUTE};
    if (neb__sim_fault(&o, r) != NEB_OK) return true;
    o.lasting_cuts = true;
    if (!mutant && neb__sim_fault(&o, r) != NEB_OK) return true;
    o.lasting_cuts = false, o.secure = true;
    return !mutant && neb__sim_fault(&o, r) != NEB_OK;
}

static int first_caught(int mutant, int seeds, struct neb_sim_result *r)
{
    int known = known_seed(name[mutant]);
    neb__mutant = (enum neb_mutant)mutant;
    if (known && caught(mutant, known, r)) return known;
    for (int seed = 1; seed <= seeds; seed++)
        if (caught(mutant, seed, r)) return seed;
    return 0;
}

int main(int argc, char **argv)
{
    int bad = 0, found = 0;
    struct neb_sim_result r;
    neb_log_set_level(NEB_LOG_NONE);
    for (int m = 0; m < MUTANTS; m++) {
        if (argc > 1 && strcmp(argv[1], name[m])) continue;
        if (argc == 1 && is_rare(name[m])) continue;
        found = 1;
        int64_t start = neb__now_ns();
        int seed = first_caught(m, m ? 10000 : 300, &r);
        bad += m ? !seed : seed != 0;
        printf("%-20s %s %5d in %5.1f s  %s\n", name[m], seed ? "caught by seed" : "not caught", seed,
               neb__seconds_since(start), seed ? r.violation : "");
        fflush(stdout);
    }
    if (!found) fprintf(stderr, "no mutant of that name\n");
    return bad || !found;
}
