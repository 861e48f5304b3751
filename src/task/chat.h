/* chat.h: a conversation with a decoder: the model's own template turns the messages into a text with special tokens. */
#ifndef NEB_TASK_CHAT_H
#define NEB_TASK_CHAT_H

#include "base/buf.h"
#include "text/tokenizer.h"

struct neb_chat;

/* folder: a model folder. choice: `auto` (the folder's template: chat_template.jinja, or tokenizer_config.json), the name
 * of a template that is known here, or a file. `tok` stays the caller's. Owes a close.
 *   NEB_ERR_NOTFOUND: the folder has no template, or there is no such name or file
 *   NEB_ERR_UNSUPPORTED, NEB_ERR_CORRUPT: the template uses something that is not known here, with the line */
neb_status neb__chat_open(const char *folder, const char *choice, const struct neb_tok *tok,
                          struct neb_chat **out);
void neb__chat_close(struct neb_chat *c); /* NULL is fine */

/* Adds a message: system, user or assistant. Special tokens that a message contains are text. */
neb_status neb__chat_add(struct neb_chat *c, const char *role, const char *text, size_t n);
int neb__chat_count(const struct neb_chat *c);
void neb__chat_cut(struct neb_chat *c, int count); /* only the first messages stay */

/* The tokens (int32_t) of the conversation and of the beginning of the next answer, appended.
 *   NEB_ERR_INVALID: the template refuses this order of messages … */
neb_status neb__chat_tokens(struct neb_chat *c, struct neb_buf *ids);

/* What ends an answer: a token (-1: none), or a text (NULL: none). Both are found in the template. */
int32_t neb__chat_end_token(const struct neb_chat *c);
const char *neb__chat_end_text(const struct neb_chat *c);

#endif
