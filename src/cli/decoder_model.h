/* decoder_model.h: what `generate` and `chat` share: a decoder on its device, text that appears as it is made, and Ctrl-C. */
#ifndef NEB_CLI_DECODER_MODEL_H
#define NEB_CLI_DECODER_MODEL_H

#include "base/opts.h"
#include "task/generate.h"

struct neb_decoder_options {
    char *device, *dtype;
    int64_t threads;
    bool stats;
    struct neb_generate_config how;
};
extern const struct neb_opt neb__decoder_options[]; /* without those of `how`: neb__generate_options */

struct neb_decoder_model {
    neb_device *device;
    struct neb_ready model;
    struct neb_generator *generator;
};
/* Owes a close. */
neb_status neb__decoder_model_open(const char *folder, const struct neb_decoder_options *o,
                                   struct neb_decoder_model *out);
void neb__decoder_model_close(struct neb_decoder_model *m);

/* Where the text goes. */
struct neb_decoder_output {
    bool scores;          /* a line a token instead of text */
    struct neb_buf *keep; /* gets the text, too; or NULL */
    int64_t tokens, began;
};
/* Begins with a fresh output. `write` is a neb_generate_fn: NEB_ERR_CANCELLED after Ctrl-C, NEB_ERR_IO.
 * `end` ends the line and tells the speed where the options ask for it. */
void neb__decoder_output_begin(struct neb_decoder_output *out);
neb_status neb__decoder_output_write(void *out, const char *text, size_t n, int32_t id, double logp);
neb_status neb__decoder_output_end(struct neb_decoder_output *out, const struct neb_decoder_options *o);

/* From now on Ctrl-C ends a text behind its next token; a second one ends the program. `asked` tells whether it came, and
 * `again` forgets it. */
void neb__interrupt_catch(void);
bool neb__interrupt_asked(void);
void neb__interrupt_again(void);

#endif
