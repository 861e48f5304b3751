/* sequencer.c: a teacher's translations, for distillation by sequences (Kim and Rush 2016).
 *
 * A decoder answers behind the prompt that it also reads for its likeliest tokens (prompted.h), whatever the languages are.
 * The translator of a pair of languages is made when the pair first comes and stays. A model that needs no languages gets
 * none. */
#include "task/sequencer.h"
#include "base/mem.h"
#include "task/prompted.h"
#include "task/translate.h"

#include <stdio.h>
#include <string.h>

enum { PAIRS = 64, BATCH = 32 };

struct pair {
    int32_t from, to;
    char name[2][NEB_LANG_SIZE];
    struct neb_translator *translator;
};

struct neb_sequencer {
    const struct neb_data *data;
    struct neb_ready model;
    struct pair pair[PAIRS];
    int pairs;
    struct neb_prompted *decoder; /* in place of the pairs */
};

static neb_status refuse(const struct neb_sequencer *s, const char *why)
{
    return neb__doc_fail(&s->data->job->doc, "distill.sequence",
                         "distill.sequence: the model in %s does not translate: %s", s->model.folder.path,
                         why);
}

static neb_status open_decoder(struct neb_sequencer *s)
{
    const struct neb_job *j = s->data->job;
    const struct neb_prompted_config c = {.prompt = j->distill.prompt,
                                          .beams = (int32_t)neb__job_beams(j),
                                          .results = (int32_t)j->distill.n,
                                          .max_new = (int32_t)(2 * j->train.max_len)};
    if (!c.prompt || !strstr(c.prompt, "{source}"))
        return neb__doc_fail(&j->doc, "distill.prompt",
                             "distill.prompt: the teacher in %s is a decoder; say what it reads before a "
                             "translation, with {source} for the source",
                             s->model.folder.path);
    return neb__prompted_open(&s->model, &c, &s->decoder);
}

static neb_status open_model(struct neb_sequencer *s)
{
    if (!s->model.tok) return refuse(s, "it has no tokenizer");
    switch (s->model.model->arch.kind) {
    case NEB_ENCODER_DECODER: return NEB_OK; /* its translators are opened when they are needed */
    case NEB_DECODER: return open_decoder(s);
    default: return refuse(s, "it is neither an encoder-decoder nor a decoder");
    }
}

neb_status neb__sequencer_open(neb_device *device, const struct neb_data *data, struct neb_sequencer **out)
{
    struct neb_sequencer *s = NEB_NEW(struct neb_sequencer);
    char folder[NEB_MODEL_PATH + 1];
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a teacher");
    s->data = data;
    neb__list_part(data->job->distill.teacher, 0, folder, sizeof folder);
    neb_status status = neb__ready_open(folder, NULL, device, &s->model);
    if (status == NEB_OK) status = open_model(s);
    if (status != NEB_OK) {
        neb__sequencer_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

void neb__sequencer_close(struct neb_sequencer *s)
{
    if (!s) return;
    for (int i = 0; i < s->pairs; i++) neb__translator_close(s->pair[i].translator);
    neb__prompted_close(s->decoder);
    neb__ready_close(&s->model);
    neb__free(s);
}

static neb_status find_pair(struct neb_sequencer *s, int32_t from, int32_t to, struct neb_translator **out)
{
    const struct neb_job *j = s->data->job;
    for (int i = 0; i < s->pairs; i++)
        if (s->pair[i].from == from && s->pair[i].to == to) {
            *out = s->pair[i].translator;
            return NEB_OK;
        }
    if (s->pairs == PAIRS)
        return neb__fail(NEB_ERR_CONFIG, "a teacher translates between at most %d pairs of languages", PAIRS);
    struct pair *p = &s->pair[s->pairs];
    *p = (struct pair){.from = from, .to = to};
    neb__data_teachers_lang(s->data, from, p->name[0]);
    neb__data_teachers_lang(s->data, to, p->name[1]);
    struct neb_translate_config c = {.beams = neb__job_beams(j),
                                     .batch = BATCH,
                                     .max_len = 2 * j->train.max_len,
                                     .length_penalty = 1,
                                     .from = p->name[0],
                                     .to = p->name[1],
                                     .results = j->distill.n};
    NEB_TRY(neb__translator_open(&s->model, &c, &p->translator));
    s->pairs++;
    *out = p->translator;
    return NEB_OK;
}

neb_status neb__sequencer_translate(struct neb_sequencer *s, int32_t from, int32_t to,
                                    const char *const *lines, int n, char **out)
{
    struct neb_translator *t = NULL;
    if (s->decoder) return neb__prompted_answer(s->decoder, lines, n, out);
    NEB_TRY(find_pair(s, from, to, &t));
    return neb__translator_translate(t, lines, n, out);
}
