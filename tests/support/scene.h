/* scene.h: three sites, of which s0 and s1 are linked and stay so whatever others do to them; what they log is kept. */
#ifndef NEB_TEST_SCENE_H
#define NEB_TEST_SCENE_H

#include "sites.h"

#include <stdatomic.h>

extern void (*scene_tune)(
    struct neb_net_config *c); /* of s0 and s1, before they are set up; NULL: as it is */
extern struct sites scene_sites;
extern struct node scene_nodes[3];
extern atomic_int scene_ups[3]; /* links that came up, of each site */
extern atomic_int scene_forks;  /* reports that two rosters are signed for one epoch */
extern const struct neb_net_events scene_events;
extern char scene_journal[1 << 16]; /* what was logged since the last scene_assert_undisturbed() */

/* Of a group of tests. */
int scene_set_up(void **state);
int scene_tear_down(void **state);

bool scene_logged(const char *text); /* within two seconds */

/* The link between s0 and s1 never broke and still carries messages. */
void scene_assert_undisturbed(void);

/* A plain connection to a site. */
int scene_dial(int site);

/* Whether the other side closes it within the time that an impolite one gets. */
bool scene_closed(int fd, int seconds);

#endif
