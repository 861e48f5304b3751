/* hf_peft.h: shared by the ways of an adapter in and out. */
#ifndef NEB_TASK_HF_PEFT_H
#define NEB_TASK_HF_PEFT_H

#include "task/hf.h"

enum { NEB_HF_NAME = 256 };

/* What stands before their names. */
#define NEB_HF_ADAPTER_LEAD "base_model.model."

/* What a method adds to a matrix, as bits. */
enum neb_hf_added {
    NEB_HF_LORA_A = 1,
    NEB_HF_LORA_B = 2,
    NEB_HF_LORA_M = 4, /* DoRA's lengths */
    NEB_HF_IA3_IN = 8,
    NEB_HF_IA3_OUT = 16,
};

struct neb_hf_matrix {
    char ours[NEB_HF_NAME], theirs[NEB_HF_NAME]; /* without .weight, and without .lora.a and the like */
    char fused[NEB_HF_NAME];                     /* ours: the weight that it is a part of, or itself */
    int64_t first, rows, cols;                   /* rows of that weight */
};

struct neb_hf_matrices {
    struct neb_hf_matrix *list;
    int n, room;
};

/* All matrices of the layers. Owes a free, also after an error. */
neb_status neb__hf_matrices_list(const struct neb_model_yaml *f, enum neb_hf_kind kind,
                                 struct neb_hf_matrices *out);
void neb__hf_matrices_free(struct neb_hf_matrices *m);

const char *neb__hf_last_word(const char *name); /* q_proj of a.b.q_proj */

/* ---- hf_peft_ranks.c: ranks and alphas of single matrices ----------------------------------------------------------- */

enum { NEB_HF_MAX_RANK = 4096 };

struct neb_hf_ranks {
    int64_t rank; /* where no pattern says another */
    double alpha;
    bool rslora;
    struct json_t *ranks, *alphas; /* patterns; NULL: none */
};

/* Owes a free, also after an error. NEB_ERR_UNSUPPORTED, NEB_ERR_CORRUPT */
neb_status neb__hf_ranks_read(const struct json_t *j, struct neb_hf_ranks *r);
void neb__hf_ranks_free(struct neb_hf_ranks *r);
/* The rank of the matrix with their name `theirs`, and what the product of its pair is multiplied by. */
int64_t neb__hf_ranks_of(const struct neb_hf_ranks *r, const char *theirs);
double neb__hf_ranks_scale(const struct neb_hf_ranks *r, const char *theirs);
/* Gives the first or the second matrix of a pair this rank, its values `times` as much. *owned: of a tensor that had to be changed. */
neb_status neb__hf_ranks_widen(struct neb_st_tensor *t, bool second, int64_t rank, double times,
                               float **owned);

/* ---- hf_peft_saved.c: modules that are saved whole ------------------------------------------------------------------ */

/* Whether a name of theirs belongs to one of the modules of this list. */
bool neb__hf_saved_names(const struct json_t *list, const char *theirs);
/* Their name of a parameter of a head, and the other way; false, NULL: it is not a module of its own there. */
bool neb__hf_saved_theirs(enum neb_hf_kind kind, const char *ours, char out[NEB_HF_NAME]);
const char *neb__hf_saved_ours(enum neb_hf_kind kind, const char *theirs);
/* Whether peft.train chooses this parameter, or another one of its module. */
bool neb__hf_saved_chosen(enum neb_hf_kind kind, const struct neb_peft *p, const char *ours);
/* The module of a tensor of theirs. */
void neb__hf_saved_module(const char *theirs, char out[NEB_HF_NAME]);

/* ---- hf_prefix.c ------------------------------------------------------------------------------------------------ */

/* NEB_ERR_UNSUPPORTED: a prefix of such a model computes something else there. */
neb_status neb__hf_prefix_check(const struct neb_arch *a, const char *path);
/* Ours: the keys (part 0) or the values of a layer, (tokens, kv). */
void neb__hf_prefix_name(int64_t layer, int part, char out[NEB_HF_NAME]);
/* Their table as our tensors, (layers, 2, tokens, kv), or ours as their table, (tokens, layers, 2, kv). Owes a neb__free().
 * NEB_ERR_SHAPE, NEB_ERR_CORRUPT, NEB_ERR_NOMEM */
neb_status neb__hf_prefix_in(const struct neb_arch *a, int64_t layers, int64_t tokens,
                             const struct neb_st_tensor *t, float **out);
neb_status neb__hf_prefix_out(const struct neb_arch *a, int64_t layers, int64_t tokens,
                              const struct neb_st *st, float **out);

#endif
