/* test_muon_resume.c: going on from a checkpoint of Muon: the same bits; refused where other matrices would be Muon's, also by a
 * checkpoint without their names; another muon_momentum does no harm. */
#include "check.h"
#include "base/mem.h"
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

/* The same checkpoint without the names of matrices. */
static void forget_names(const char *from, const char *to)
{
    static const char *const names[] = {"progress", "params", "m", "v", "data", "optimizer"};
    enum { SECTIONS = sizeof names / sizeof *names };
    struct neb_ckpt_section list[SECTIONS];
    struct neb_ckpt *c;
    struct neb_ckpt_writer *writer;
    struct neb_ckpt_id id = {.step = STEPS};
    struct world w;
    char path[300];
    world_open_words(&w, WORLD_TRANSLATOR, muon);
    assert_ok(neb__work_identity(w.work, &id.model));
    world_close(&w);
    folder_of(from, path);
    assert_ok(neb__ckpt_open_latest(path, &id.model, &c));
    for (int i = 0; i < SECTIONS; i++) {
        list[i].name = names[i];
        assert_ok(neb__ckpt_get(c, names[i], &list[i].data, &list[i].size));
    }
    folder_of(to, path);
    assert_ok(neb__ckpt_writer_create(path, 1, &writer));
    assert_ok(neb__ckpt_writer_put(writer, &id, list, SECTIONS));
    assert_ok(neb__ckpt_writer_close(writer));
    neb__ckpt_close(c);
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
    forget_names("some", "some.old");
    forget_names("all", "all.old");
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
        cmocka_unit_test(other_matrices_are_refused),
        cmocka_unit_test(another_momentum_does_no_harm),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
