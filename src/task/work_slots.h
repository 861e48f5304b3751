/* work_slots.h: what the two kinds of stages share: work_stages.c (the others are at ranks of this site) and work_site.c (at
 * other sites). */
#ifndef NEB_TASK_WORK_SLOTS_H
#define NEB_TASK_WORK_SLOTS_H

#include "optim/pipeline.h"
#include "task/work_internal.h"

struct neb_work_stages {
    struct neb_pipeline *pipeline;   /* ranks */
    struct neb_site_stage *site;     /* sites; one of the two is NULL */
    struct neb_model_input **inputs; /* (slots) */
    int slots;
    struct neb_model_input_limits limits;
    struct neb_group *holders; /* stages with the token table, as long as they are several; or NULL */
    bool evaluates;            /* all visits of a run read the first input */
};

/* From now on the inputs of this slot are used, and these ports. */
void neb__work_enter_slot(void *work, int slot, const struct neb_stage_ports *at);

#endif
