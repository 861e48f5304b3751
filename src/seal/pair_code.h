/* pair_code.h: the code by which two sites are paired: 4821-canal-violet-piano.
 *
 * The number says where the two meet; a relay host sees it. The three words are the secret: 33 random bits, of which an
 * attacker tries one for each attempt (cpace.h). So the number never depends on the words. */
#ifndef NEB_SEAL_PAIR_CODE_H
#define NEB_SEAL_PAIR_CODE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    NEB_PAIR_WORDS = 2048,
    NEB_PAIR_NUMBERS = 9000, /* 1000 to 9999 */
    NEB_PAIR_CODE_SIZE = 32, /* a code with its terminating 0 */
};

extern const char neb__pair_words[]; /* with a blank behind each */

struct neb_pair_code {
    unsigned number;
    uint16_t word[3];
};

/* NEB_ERR_INTERNAL: no randomness. */
neb_status neb__pair_code_make(struct neb_pair_code *out);
void neb__pair_code_format(const struct neb_pair_code *c, char out[NEB_PAIR_CODE_SIZE]);
/* Takes capital letters, and blanks for dashes. NEB_ERR_INVALID: the message names the word that is not in the list, and
 * the one that may be meant. */
neb_status neb__pair_code_parse(const char *text, struct neb_pair_code *out);
/* The words alone, as the exchange takes them. Returns the length. */
size_t neb__pair_code_secret(const struct neb_pair_code *c, char out[NEB_PAIR_CODE_SIZE]);
/* Where two with this number meet. */
neb_status neb__pair_code_place(const struct neb_pair_code *c, uint8_t out[32]);

#endif
