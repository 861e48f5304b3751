/* crowd.c: several cores of the round protocol, driven by hand together, with lines that can be cut. */
#include "crowd.h"
#include "check.h"

void crowd_start_by(struct crowd *c, int sites, struct neb_members roster, enum neb_quorum_rule rule)
{
    *c = (struct crowd){.sites = sites};
    for (int i = 0; i < sites; i++) {
        solo_create_by(&c->s[i], (unsigned)i, roster, rule);
        c->s[i].other = &c->s[i];
        c->s[i].applies = true;
    }
    for (int i = 0; i < sites; i++)
        for (int k = 0; k < i; k++) crowd_line(c, i, k, true);
    crowd_run(c, 10000, NULL);
}

void crowd_start(struct crowd *c, int sites, struct neb_members roster)
{
    crowd_start_by(c, sites, roster, NEB_QUORUM_MAJORITY);
}

void crowd_stop(struct crowd *c)
{
    for (int i = 0; i < c->sites; i++) solo_stop(&c->s[i]);
}

void crowd_line(struct crowd *c, int a, int b, bool up)
{
    c->up[a][b] = c->up[b][a] = up;
    enum neb_event_type what = up ? NEB_EV_PEER_UP : NEB_EV_PEER_DOWN;
    solo_event(&c->s[a], (struct neb_event){.type = what, .site = (uint16_t)b});
    solo_event(&c->s[b], (struct neb_event){.type = what, .site = (uint16_t)a});
}

void crowd_split(struct crowd *c, uint64_t side, bool up)
{
    for (int i = 0; i < c->sites; i++)
        for (int k = 0; k < i; k++)
            if ((side >> i & 1) != (side >> k & 1)) crowd_line(c, i, k, up);
}

bool crowd_run(struct crowd *c, int64_t ms, bool (*until)(const struct crowd *c))
{
    for (int64_t end = c->s[0].now + ms; c->s[0].now < end;) {
        for (int i = 0; i < c->sites; i++) solo_run(&c->s[i], 100);
        for (int i = 0; i < c->sites; i++) {
            struct solo *to[NEB_SITES_MAX] = {NULL};
            for (int k = 0; k < c->sites; k++) to[k] = c->up[i][k] ? &c->s[k] : NULL;
            deliver_to(&c->s[i], to);
            if (until && until(c)) return true;
        }
    }
    return false;
}

unsigned crowd_leader(const struct crowd *c, int of)
{
    return solo_status(&c->s[of]).leader;
}

void crowd_order(struct crowd *c, unsigned leader, struct neb_order o)
{
    o = solo_order(&c->s[leader], o, NEB_BY_OPERATOR);
    solo_event(&c->s[leader], (struct neb_event){.type = NEB_EV_OPERATOR, .order = &o});
    solo_event(&c->s[leader], (struct neb_event){.type = NEB_EV_TICK});
}

void crowd_budget(struct crowd *c, unsigned leader, uint64_t permille)
{
    crowd_order(c, leader, (struct neb_order){.op = NEB_OP_BUDGET, .value = permille});
}
