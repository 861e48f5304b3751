/* test_muon_resume.c: going on from a checkpoint of Muon: the same bits, also from one as they were before; a matrix takes one
 * moment, in memory and on disk; refused where other matrices would be Muon's, also by a
 * checkpoint without their names; another muon_momentum does no harm. */
#include "check.h"
#include "base/mem.h"
#include "tensor/params.h"
#include "train/resume.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12 };

static const char muon[] = "train.optimizer=muon";

static void folder_of(const char *name, char path[300])
{
    world_path(name, path);
}

static void save_here(struct world *w, const char *name)
{
    struct neb_ckpt_writer *writer;
    struct neb_progress p = {.step = STEPS};
    char path[300];
    folder_of(name, path);
    assert_ok(neb__ckpt_writer_create(path, 1, &writer));
    assert_ok(neb__resume_save(w->work, NULL, writer, &p, NULL, NULL));
    assert_ok(neb__ckpt_writer_close(writer));
}

static void train_and_save(const char *words, const char *name)
{
    struct world w;
    world_open_words(&w, WORLD_TRANSLATOR, words);
    for (int i = 0; i < STEPS; i++) (void)world_step(&w);
    save_here(&w, name);
    world_close(&w);
}

/* The same checkpoint as it was before it named matrices: second moments of all of them. */
static void forget_names(const char *words, const char *from, const char *to)
{
    static const char *const names[] = {"progress", "params", "m", "v", "data", "optimizer"};
    enum { SECTIONS = sizeof names / sizeof *names };
    struct neb_ckpt_section list[SECTIONS];
    struct neb_ckpt *c;
    struct neb_ckpt_writer *writer;
    struct neb_ckpt_id id = {.step = STEPS};
    struct world w;
    char path[300];
    world_open_words(&w, WORLD_TRANSLATOR, words);
    assert_ok(neb__work_identity(w.work, &id.model));
    folder_of(from, path);
    assert_ok(neb__ckpt_open_latest(path, &id.model, &c));
    for (int i = 0; i < SECTIONS; i++) {
        list[i].name = names[i];
        assert_ok(neb__ckpt_get(c, names[i], &list[i].data, &list[i].size));
    }
    float *second = neb__malloc(list[2].size);
    assert_non_null(second);
    assert_true(list[3].size < list[2].size);
    neb__work_unpack_second(w.work, list[3].data, second);
    world_close(&w);
    list[3] = (struct neb_ckpt_section){"v", second, list[2].size};
    folder_of(to, path);
    assert_ok(neb__ckpt_writer_create(path, 1, &writer));
    assert_ok(neb__ckpt_writer_put(writer, &id, list, SECTIONS));
    assert_ok(neb__ckpt_writer_close(writer));
    neb__ckpt_close(c);
    neb__free(second);
}

/* Returns the largest of the next losses. */
static double go_on(const char *words, const char *name, neb_status want)
{
    struct world w;
    struct neb_progress p;
    char path[300];
    double most = 0;
    folder_of(name, path);
    world_open_words(&w, WORLD_TRANSLATOR, words);
    if (want != NEB_OK) check_log_quiet();
    assert_status(neb__resume_load(w.work, NULL, path, &p), want);
    if (want != NEB_OK) check_log_restore();
    for (int i = 0; want == NEB_OK && i < STEPS; i++) {
        double loss = world_step(&w);
        most = loss > most ? loss : most;
    }
    world_close(&w);
    return most;
}

static void other_matrices_are_refused(void **state)
{
    (void)state;
    static const char all[] = "train.optimizer=muon train.muon_also=*",
                      one[] = "train.optimizer=muon train.muon_also=*attention*";
    train_and_save(muon, "some");
    train_and_save(all, "all");
    forget_names(muon, "some", "some.old");
    forget_names(all, "all", "all.old");
    static const char *const some_have[] = {"some", "some.old"}, *const all_have[] = {"all", "all.old"};
    for (int i = 0; i < 2; i++) {
        (void)go_on(all, some_have[i], NEB_ERR_CONFIG);
        (void)go_on(muon, all_have[i], NEB_ERR_CONFIG);
        (void)go_on("train.optimizer=adamw", some_have[i], NEB_ERR_CONFIG);
        assert_true(go_on(muon, some_have[i], NEB_OK) < 6);
        assert_true(go_on(all, all_have[i], NEB_OK) < 6);
        assert_true(go_on(one, some_have[i], NEB_OK) < 6); /* other words for the same matrices */
    }
}

/* Bits of the parameters `more` steps behind a stop. */
static void bits_after(const char *words, const char *name, int more, struct neb_hash *out)
{
    struct world w;
    struct neb_progress p;
    char path[300];
    float *values = world_room();
    folder_of(name, path);
    world_open_words(&w, WORLD_TRANSLATOR, words);
    if (*name) assert_ok(neb__resume_load(w.work, NULL, path, &p));
    for (int i = 0; i < more; i++) (void)world_step(&w);
    assert_ok(neb__hash(values, (size_t)world_values(&w, "", values) * sizeof *values, out));
    world_close(&w);
    free(values);
}

static void going_on_changes_no_bit(void **state)
{
    (void)state;
    static const char *const words[] = {"train.optimizer=muon", "train.optimizer=muon train.muon_also=*"};
    for (int i = 0; i < 2; i++) {
        struct neb_hash straight, stopped, older;
        train_and_save(words[i], "stop");
        forget_names(words[i], "stop", "stop.old");
        bits_after(words[i], "", STEPS + 3, &straight);
        bits_after(words[i], "stop", 3, &stopped);
        bits_after(words[i], "stop.old", 3, &older);
        assert_true(neb__hash_equal(&straight, &stopped) && neb__hash_equal(&straight, &older));
    }
}

static int64_t state_of(const char *words)
{
    struct world w;
    struct neb_work_memory m;
    world_open_words(&w, WORLD_TRANSLATOR, words);
    neb__work_memory(w.work, &m);
    world_close(&w);
    return m.state;
}

static void matrices_have_one_moment(void **state)
{
    (void)state;
    int64_t matrices = 0;
    struct world w;
    world_open_words(&w, WORLD_TRANSLATOR, "train.optimizer=muon model.layers=6");
    neb_params *ps = neb__work_params(w.work);
    for (int i = 0; i < neb_params_count(ps); i++)
        if (neb_params_at(ps, i)->taken_as_matrix) matrices += neb_param_values(neb_params_at(ps, i));
    world_close(&w);
    assert_true(matrices > 0);
    /* Muon has room for a few matrices of its own */
    const int64_t adamw = state_of("train.optimizer=adamw model.layers=6");
    const int64_t less = adamw - state_of("train.optimizer=muon model.layers=6");
    if (less < 2 * matrices) fail_msg("%d values in matrices, %d bytes saved", (int)matrices, (int)less);
}

static void another_momentum_does_no_harm(void **state)
{
    (void)state;
    static const char *const momentum[] = {"0", "0.5", "0.95", "0.999"};
    char words[2][100];
    for (int i = 0; i < 4; i++) {
        snprintf(words[0], sizeof words[0], "%s train.muon_momentum=%s", muon, momentum[i]);
        train_and_save(words[0], "momentum");
        double usual = go_on(words[0], "momentum", NEB_OK);
        for (int k = 0; k < 4; k++) {
            snprintf(words[1], sizeof words[1], "%s train.muon_momentum=%s", muon, momentum[k]);
            double most = go_on(words[1], "momentum", NEB_OK);
            if (!(most < usual + 1))
                fail_msg("momentum %s, then %s: loss %.3f; without a change %.3f", momentum[i], momentum[k],
                         most, usual);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(going_on_changes_no_bit),
        cmocka_unit_test(matrices_have_one_moment),
        cmocka_unit_test(other_matrices_are_refused),
        cmocka_unit_test(another_momentum_does_no_harm),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
