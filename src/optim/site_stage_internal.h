/* site_stage_internal.h: what site_stage.c (one copy of the stage) and stage_ranks.c (several ranks) share. */
#ifndef NEB_OPTIM_SITE_STAGE_INTERNAL_H
#define NEB_OPTIM_SITE_STAGE_INTERNAL_H

#include "optim/site_stage.h"
#include "tensor/slot.h"

struct neb_stage_slot {
    struct neb_stage_ports ports;
    neb_buffer buffer[4]; /* in, in_grad, out, out_grad */
    struct neb_stage_message before, behind;
};

struct neb_site_stage {
    struct neb_site_stage_config c;
    neb_device *dev;
    neb_tape *tape;
    struct neb_stage_slot *slot; /* (depth / copies, and one more for a second visit) */
    char *memory;                /* of their buffers */
    float *host;                 /* staging; NULL: none is needed */
    uint16_t *halves;            /* the same of a device that computes in BF16 */
    bool direct;                 /* the buffers are floats on the host */
    int depth;                   /* micro-batches in flight, of all copies */
    int copies, copy;            /* of the stage at this site, and which one this rank has */
    bool told;                   /* the step failed at the first rank of the site, and all ranks know it */
    uint32_t evaluated;          /* runs of the present evaluation */
    struct neb_site_stage_times times;
};

/* site_stage.c */

size_t neb__stage_values(const struct neb_stage_message *m);
/* Where a message of this buffer lies as floats: the buffer itself, or the staging memory. */
float *neb__stage_host(const struct neb_site_stage *s, const neb_buffer *b);
neb_status neb__stage_upload(struct neb_site_stage *s, const float *from, size_t n, const neb_buffer *to);
neb_status neb__stage_download(struct neb_site_stage *s, const neb_buffer *from, size_t n, float *to);
neb_status neb__stage_describe(struct neb_site_stage *s, void *run_arg, enum neb_stage_run run,
                               uint32_t number, struct neb_stage_message *before,
                               struct neb_stage_message *behind);
/* Loads a micro-batch into its slot; computes it. n: micro-batches of the step. */
neb_status neb__stage_begin(struct neb_site_stage *s, const struct neb_micro *u, int micro);
neb_status neb__stage_forward(struct neb_site_stage *s, const struct neb_micro *u, int micro, int n);
neb_status neb__stage_backward(struct neb_site_stage *s, int micro);
struct neb_stage_slot *neb__stage_slot_of(const struct neb_site_stage *s, int micro);
/* Waits until a backward or a forward has its input. */
neb_status neb__stage_next_turn(struct neb_site_stage *s, int gone, int back, int n, bool *backward_now);

/* stage_ranks.c */

/* This rank talks to the neighbours for the ranks that share its layers. */
bool neb__stage_leads(const struct neb_site_stage *s);
/* It begins, or has ended, a wait for another site: the other ranks are patient meanwhile. */
void neb__stage_patience(const struct neb_site_stage *s, bool on);
/* The status of the first of the ranks that share the layers, at each of them. */
neb_status neb__stage_first(struct neb_site_stage *s, neb_status status);
/* A step of several copies. */
neb_status neb__stage_rounds(struct neb_site_stage *s, const struct neb_micro *micros, int n);
/* All stages' numbers, by way of the first rank of the site. */
neb_status neb__stage_add_up_all(struct neb_site_stage *s, struct neb_stage_sums *v);

#endif
