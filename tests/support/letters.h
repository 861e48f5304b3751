/* letters.h: two sites that send each other numbered messages, whose size and content the number determines. Each must come once,
 * in order and unaltered, whatever happens to the line. */
#ifndef NEB_TEST_LETTERS_H
#define NEB_TEST_LETTERS_H

#include "sites.h"

extern struct node letters_node[2]; /* members 1 and 2 */

/* Opens both nodes; they beat fast, so that losses are noticed soon. listen: of the second one, or NULL. Owes a close. */
void letters_open(const struct sites *s, const char *listen);
void letters_close(void); /* asserts that nothing wrong has come */

int letters_events(void);          /* how often a link came up or went down, at both */
void letters_feed(void);           /* keeps a few messages queued at both */
void letters_await(unsigned more); /* until so many more have come at both */
void letters_path(bool relayed);   /* until the link goes through a relay host, or directly, at both */
unsigned long long letters_got(void);

#endif
