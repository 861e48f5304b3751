/* score_encoder.c: see score_encoder.h. Sentences wait until there are enough for dense batches. Of several references the
 * best precision, the best recall and the best F1 count, as in the bert-score package. */
#include "cli/score_encoder.h"
#include "base/mem.h"
#include "task/estimator.h"
#include "task/match.h"

#include <stdio.h>

enum { WINDOW = 128 };

struct neb_score_encoder {
    struct neb_score_encoder_config c;
    neb_device *device;
    struct neb_ready model;
    bool ready;
    struct neb_matcher *matcher;
    struct neb_estimator *estimator;
    char **line;                    /* (WINDOW, lines): hyp, refs, source */
    struct neb_line_states *states; /* the same */
    int lines, n;
    struct neb_match sum;
    double to_ref, to_source, estimate;
    int64_t sentences;
};

static neb_status open_estimator(struct neb_score_encoder *s)
{
    const struct neb_arch *a = &s->model.model->arch;
    if (!s->c.estimator) return NEB_OK;
    if (!s->c.source || s->c.layer)
        return neb__fail(NEB_ERR_CONFIG, s->c.layer
                                             ? "--estimator reads all layers; leave out --layer"
                                             : "--estimator also reads the sources; name their file with "
                                               "--source");
    NEB_TRY(neb__estimator_open(s->c.estimator, a->layers, a->hidden, &s->estimator));
    return neb__matcher_mix(s->matcher, neb__estimator_mix(s->estimator));
}

static neb_status open_all(struct neb_score_encoder *s)
{
    struct neb_device_config config = {.threads = (int)s->c.threads};
    s->lines = 1 + s->c.refs + s->c.source;
    s->line = NEB_NEW_ARRAY(char *, (size_t)(WINDOW * s->lines));
    s->states = NEB_NEW_ARRAY(struct neb_line_states, (size_t)(WINDOW * s->lines));
    if (!s->line || !s->states) return neb__fail(NEB_ERR_NOMEM, "out of memory for sentences");
    NEB_TRY(neb_device_open(s->c.device, &config, &s->device));
    NEB_TRY(neb__ready_open_layers(s->c.folder, "none", s->c.layer, s->device, &s->model));
    s->ready = true;
    NEB_TRY(neb__matcher_open(&s->model, &s->matcher));
    return open_estimator(s);
}

neb_status neb__score_encoder_open(const struct neb_score_encoder_config *c, struct neb_score_encoder **out)
{
    struct neb_score_encoder *s = NEB_NEW(struct neb_score_encoder);
    if (!s) return neb__fail(NEB_ERR_NOMEM, "out of memory for a score");
    s->c = *c;
    neb_status status = open_all(s);
    if (status != NEB_OK) {
        neb__score_encoder_close(s);
        return status;
    }
    *out = s;
    return NEB_OK;
}

static void forget(struct neb_score_encoder *s)
{
    for (int i = 0; s->line && s->states && i < s->n * s->lines; i++) {
        neb__free(s->line[i]);
        neb__line_states_free(&s->states[i]);
        s->line[i] = NULL;
    }
    s->n = 0;
}

void neb__score_encoder_close(struct neb_score_encoder *s)
{
    if (!s) return;
    forget(s);
    neb__matcher_close(s->matcher);
    neb__estimator_close(s->estimator);
    if (s->ready) neb__ready_close(&s->model);
    neb_device_close(s->device);
    neb__free(s->line);
    neb__free(s->states);
    neb__free(s);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void add_sentence(struct neb_score_encoder *s, const struct neb_line_states *x)
{
    const int64_t width = neb__matcher_width(s->matcher), vector = neb__matcher_vector(s->matcher);
    struct neb_match best = neb__match_tokens(&x[0], &x[1], width);
    double to_ref = neb__match_sentences(&x[0], &x[1], vector);
    for (int r = 2; r <= s->c.refs; r++) {
        const struct neb_match m = neb__match_tokens(&x[0], &x[r], width);
        best.precision = larger(best.precision, m.precision);
        best.recall = larger(best.recall, m.recall);
        best.f1 = larger(best.f1, m.f1);
        to_ref = larger(to_ref, neb__match_sentences(&x[0], &x[r], vector));
    }
    s->sum.precision += best.precision;
    s->sum.recall += best.recall;
    s->sum.f1 += best.f1;
    s->to_ref += to_ref;
    if (s->estimator)
        s->estimate += neb__estimator_score(s->estimator, x[s->lines - 1].mixed, x[0].mixed, x[1].mixed);
    if (s->c.source) s->to_source += neb__match_sentences(&x[0], &x[s->lines - 1], vector);
    s->sentences++;
}

static neb_status score_window(struct neb_score_encoder *s)
{
    if (!s->n) return NEB_OK;
    neb_status status =
        neb__matcher_read(s->matcher, (const char *const *)s->line, s->n * s->lines, s->states);
    for (int i = 0; status == NEB_OK && i < s->n; i++) add_sentence(s, s->states + i * s->lines);
    forget(s);
    return status;
}

neb_status neb__score_encoder_add(struct neb_score_encoder *s, const char *hyp, char *const *ref,
                                  const char *source)
{
    char **to = s->line + s->n * s->lines;
    to[0] = neb__strdup(hyp);
    bool ok = to[0] != NULL;
    for (int r = 0; r < s->c.refs; r++) ok = (to[1 + r] = neb__strdup(ref[r])) != NULL && ok;
    if (s->c.source) ok = (to[s->lines - 1] = neb__strdup(source)) != NULL && ok;
    s->n++;
    if (!ok) return neb__fail(NEB_ERR_NOMEM, "out of memory for a sentence");
    return s->n == WINDOW ? score_window(s) : NEB_OK;
}

neb_status neb__score_encoder_say(struct neb_score_encoder *s)
{
    NEB_TRY(score_window(s));
    const double n = s->sentences ? (double)s->sentences : 1;
    printf("BERTScore P %.4f, R %.4f, F1 %.4f (%s, layer %" PRId64 ", no idf, not rescaled)\n",
           s->sum.precision / n, s->sum.recall / n, s->sum.f1 / n, s->c.folder, s->model.model->arch.layers);
    printf("cosine of sentence vectors: to the reference %.4f", s->to_ref / n);
    if (s->c.source) printf(", to the source %.4f", s->to_source / n);
    printf("\n");
    if (s->estimator)
        printf("COMET estimator %.4f (%s%s)\n", s->estimate / n, s->c.estimator,
               neb__estimator_wants_reference(s->estimator) ? ", the first reference"
                                                            : ", without references");
    return NEB_OK;
}
