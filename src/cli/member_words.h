/* member_words.h: a member of a roster from words of a command line or a draft. */
#ifndef NEB_CLI_MEMBER_WORDS_H
#define NEB_CLI_MEMBER_WORDS_H

#include "seal/roster.h"

/* IDENTITY, or the folder of a site: name and key. */
neb_status neb__member_identity(const char *text, struct neb_member *m);
/* One more HOST:PORT. */
neb_status neb__member_address(struct neb_member *m, const char *address);

#endif
