/* mutant.h: deliberate bugs, to prove that the tests see them. In a normal build NEB_MUTANT(x) is the constant 0 and
 * nothing remains of it; the test build of the simulator (NEB_MUTANTS defined) selects one by name at run time.
 * docs/mutations.md tells what each one breaks. */
#ifndef NEB_BASE_MUTANT_H
#define NEB_BASE_MUTANT_H

#define NEB_MUTANT_LIST(X)                                                                             \
    X(skip_fsync, "the ledger is acknowledged without an fsync")                                       \
    X(ignore_quorum, "the leader commits on its own acknowledgement")                                  \
    X(apply_twice, "a record is applied again to a cell that already has it")                          \
    X(subtract_captured, "a merge subtracts the captured instead of the decoded delta")                \
    X(stale_residual, "after a crash a residual is used without its tag")                              \
    X(vote_after_rollback, "a site that forgot its promises votes again at once")                      \
    X(trust_empty_disk, "a disk that lost everything counts as one of a first start")                  \
    X(lose_mark, "the acked mark is not looked at after a restart")                                    \
    X(have_before_durable, "HAVE is sent for an update that is not on disk yet")                       \
    X(keep_expired, "the leader names updates that are too old")                                       \
    X(view_not_durable, "a site votes for a view before the view is on disk")                          \
    X(sum_arrival_order, "updates are summed in the order of arrival")                                 \
    X(no_settle, "a site that was away adds its whole old delta, undiscounted and unlogged")           \
    X(reuse_sequence, "a restarted site counts its updates from the beginning")                        \
    X(count_from_one, "a site that trusts its disk numbers its updates as its last life may have")     \
    X(wait_for_silent, "an update is awaited from a site that says nothing, as long as it is linked")  \
    X(void_in_silence, "a voter is not told of the newer lapse that makes its vote void")              \
    X(roster_any_time, "a roster change does not wait for the records before it")                      \
    X(trust_any_cell, "a fetched cell is installed without a quorum's state root")                     \
    X(ask_cells_again, "cells that are on their way are asked for again and again")                    \
    X(trust_orders, "an order's signature is not checked")                                             \
    X(promote_observers, "an observer that has caught up gets a vote")                                 \
    X(repeat_orders, "an order holds whatever was ordered after it was signed")                        \
    X(force_any_head, "a forced eviction may name another history than the site's own")                \
    X(views_over_force, "an old roster's log of a high view beats one with a forced roster")           \
    X(end_at_once, "the leader leaves before the others have the end")                                 \
    X(trust_updates, "an update is taken for whose it says it is")                                     \
    X(ignore_bound, "the norm bound is not enforced")                                                  \
    X(stale_leaf, "a cell that a record changed keeps its old hash")                                   \
    X(no_relay, "a member passes nothing on")                                                          \
    X(trust_relays, "the signature of a relayed message is not checked")                               \
    X(relay_again, "a relayed message is taken every time it comes")                                   \
    X(forget_lives, "numbers of relayed messages go on when their author starts again")                \
    X(older_states, "an older link state replaces a newer one")                                        \
    X(trust_one_end, "a link counts if one of its ends says so")                                       \
    X(no_detour, "a path over which nothing is confirmed is never left")                               \
    X(middle_goes, "a site through which others reach each other leaves at the end with them waiting") \
    X(wait_once, "the time to wait at the end is not for those who come back later")                   \
    X(cells_in_vain, "cells are asked for again and again though too few can sign their roots")        \
    X(demand_proof, "an empty disk counts as new unless somebody proves that it was lost")             \
    X(no_errands, "a member fetches nothing that only a neighbour needs")

/* From this one on the bugs need lines that stay cut. */
#define NEB_MUTANT_FIRST_ROUTE NEB_MUTANT_no_relay

/* Those that only a liar can use. */
#define NEB_LIAR_MUTANT_LIST(X)                                                              \
    X(trust_records, "a record counts without its leader's signature")                       \
    X(trust_acks, "an acknowledgement's signature is not checked")                           \
    X(trust_votes, "a vote's signature is not checked")                                      \
    X(trust_claims, "a vote's forced roster is not looked for in its log")                   \
    X(trust_leaders, "a leader need not show its votes")                                     \
    X(trust_lapses, "a lapse counts without its site's word")                                \
    X(trust_certificates, "a certificate's signatures are not checked")                      \
    X(count_void, "acknowledgements of an older lapse count in a certificate")               \
    X(sign_anything, "a voter does not check what it signs")                                 \
    X(keep_idle, "a leader that commits nothing stays")                                      \
    X(judge_briefly, "a leader that commits nothing is forgiven soon")                       \
    X(convict_nobody, "statements that contradict each other convict nobody")                \
    X(forget_early, "a candidate gives up its log before it can lead")                       \
    X(believe_anybody, "a first start waits because one member says that the disk was lost") \
    X(go_in_silence, "a site leaves the end of the run on the leader's word alone")          \
    X(go_with_the_leader, "who has everything at the end of the run goes when the leader is gone")

/* Those of secure sums. */
#define NEB_SECURE_MUTANT_LIST(X)                                                                         \
    X(low_threshold, "a secure sum may have any number of updates")                                       \
    X(any_seeds, "the seeds of a result are not compared with the hashes of its OPEN")                    \
    X(reveal_early, "shares are revealed before SURVIVORS is certified")                                  \
    X(reveal_both, "a site reveals the shares of both seeds of a contributor")                            \
    X(mask_again, "a site makes two updates for one attempt")                                             \
    X(sum_of_nothing, "an update without a step in it counts in a secure sum")                            \
    X(final_over_open, "a run may end behind an OPEN that is not committed yet")                          \
    X(ask_before_looking, "the updates of SURVIVORS are asked for, not looked for on the own disk")       \
    X(keep_open, "an update that no record may name any more stays open after a start")                   \
    X(ask_the_gone, "cells are asked of sites that have left, before one that had none at first")         \
    X(ask_below, "a candidate asks for a view that a site which was judged cannot join")                  \
    X(ask_leader_only, "records that a leader keeps back are not asked of a site that looks for another " \
                       "one")                                                                             \
    X(void_for_ever, "a leader may end one secure sum after the other without a result")                  \
    X(close_orders, "a forced roster commits the change before it, and is refused once there is a newer " \
                    "one")
#define NEB_MUTANT_FIRST_SECURE NEB_MUTANT_low_threshold

enum neb_mutant {
    NEB_MUTANT_none,
#define NEB__X(name, what) NEB_MUTANT_##name,
    NEB_MUTANT_LIST(NEB__X) NEB_LIAR_MUTANT_LIST(NEB__X) NEB_SECURE_MUTANT_LIST(NEB__X)
#undef NEB__X
};

#ifdef NEB_MUTANTS
extern enum neb_mutant neb__mutant;
#define NEB_MUTANT(name) (neb__mutant == NEB_MUTANT_##name)
#else
#define NEB_MUTANT(name) 0
#endif

#endif
