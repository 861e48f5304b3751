/* hf_tokenizer.h: what the files hf_tokenizer*.c share: what tokenizer_config.json of a Hugging Face folder says. */
#ifndef NEB_TASK_HF_TOKENIZER_H
#define NEB_TASK_HF_TOKENIZER_H

#include "base/status.h"

#include <stdbool.h>

/* Zeros if there is no such file. */
struct neb_hf_tokenizer_config {
    bool cased, legacy, separate;
    int starts;       /* add_bos_token: 1, 0; -1: not said */
    double sentinels; /* T5's, behind the pieces of spiece.model; -1: not said */
    char class[64], languages[16];
};

/* NEB_ERR_CORRUPT: the file is damaged */
neb_status neb__hf_tokenizer_config_read(const char *from, struct neb_hf_tokenizer_config *out);

/* Whether the text is cut here as the class and the options of tokenizer_config.json want it, when `file` of the folder is the
 * tokenizer. NEB_ERR_UNSUPPORTED names what is not known; NEB_ERR_CORRUPT */
neb_status neb__hf_tokenizer_config_check(const char *from, const char *file);

#endif
