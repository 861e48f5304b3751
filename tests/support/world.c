/* world.c: see world.h. */
#include "world.h"
#include "check.h"
#include "task/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 1 << 17 };
char world_dir[200];

void world_pairs(const char *name, int lines, unsigned seed)
{
    static const char *const words[][12] = {
        {"a", "red", "dog", "sees", "the", "green", "tree", "two", "men", "run", "here", "now"},
        {"ein", "roter", "hund", "sieht", "den", "grünen", "baum", "zwei", "leute", "rennen", "hier",
         "jetzt"}};
    char path[300];
    snprintf(path, sizeof path, "%s/%s", world_dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < lines; i++) {
        int n = 3 + (int)(seed >> 16) % 6;
        unsigned start = seed;
        for (int side = 0; side < 2; side++) {
            seed = start;
            for (int k = 0; k < n; k++) {
                seed = seed * 1103515245 + 12345;
                fprintf(f, "%s%s", k ? " " : "", words[side][(seed >> 16) % 12]);
            }
            fputs(side ? "\n" : "\t", f);
        }
        seed += 7;
    }
    fclose(f);
}

void world_path(const char *name, char path[300])
{
    snprintf(path, 300, "%s/%s", world_dir, name);
}

/* text: the job's own lines, on top of what all of these have. */
static void write_job(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "out: %s/out\n"
        "tokenizer: {vocab: 60}\n"
        "data:\n  - {file: %s/train.tsv, lang: en-de}\n  - {file: %s/valid.tsv, lang: en-de, use: valid}\n"
        "train: {steps: 100, tokens: 128, max_len: 32, lr: 1e-2, clip: 0, threads: 1, micro: 2}\n",
        world_dir, world_dir, world_dir);
    for (const char *c = text; *c; c++)
        if (*c == '@')
            fputs(world_dir, f);
        else
            fputc(*c, f);
    fclose(f);
}

static void open_job(struct world *w, const char *text, char **words, int n,
                     const struct neb_step_links *links)
{
    char path[300];
    world_path("job.yaml", path);
    write_job(path, text);
    assert_ok(neb__job_read(path, words, n, &w->job));
    assert_ok(neb__data_prepare(&w->job, &w->data));
    assert_ok(neb__work_open(&w->data, 0, 1, links, &w->work));
}

void world_open(struct world *w, const char *text, const struct neb_step_links *links)
{
    open_job(w, text, NULL, 0, links);
}

void world_open_words(struct world *w, const char *text, const char *words)
{
    world_open_linked(w, text, words, NULL);
}

void world_open_linked(struct world *w, const char *text, const char *words,
                       const struct neb_step_links *links)
{
    char copy[800], *list[16], *rest;
    int n = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_true(n < 16);
        list[n++] = word;
    }
    open_job(w, text, list, n, links);
}

void world_close(struct world *w)
{
    neb__work_close(w->work);
    neb__data_free(&w->data);
    neb__job_free(&w->job);
}

double world_step(struct world *w)
{
    struct neb_work_step out;
    assert_ok(neb__work_step(w->work, 1e-2f, &out));
    return out.loss;
}

/* The values of every parameter whose name starts with `prefix` (NULL: with none of the known ones). */
int64_t world_values(struct world *w, const char *prefix, float *out)
{
    neb_params *ps = neb__work_params(w->work);
    int64_t n = 0;
    for (int i = 0; i < neb_params_count(ps); i++) {
        const neb_param *p = neb_params_at(ps, i);
        bool of_generator = !strncmp(neb_param_name(p), "generator.", 10);
        if (prefix ? strncmp(neb_param_name(p), prefix, strlen(prefix)) != 0 : of_generator) continue;
        assert_true(n + neb_param_values(p) <= MAX_VALUES);
        assert_ok(neb_param_read(p, out + n));
        n += neb_param_values(p);
    }
    return n;
}

float *world_room(void)
{
    float *p = malloc(MAX_VALUES * sizeof *p);
    assert_non_null(p);
    return p;
}

void world_assert_same(struct world *w, const char *prefix, const float *want, int64_t n)
{
    float *got = world_room();
    assert_int_equal(world_values(w, prefix, got), n);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
    free(got);
}

void world_save(struct world *w, const char *name)
{
    struct neb_model_yaml f;
    char path[300];
    world_path(name, path);
    assert_ok(neb__model_yaml_init(&f));
    assert_ok(neb__folder_describe(&f, w->job.task, &w->data.models.model, &w->job.peft, &w->data.tok_cfg));
    assert_ok(neb__folder_write(&f, path, neb__work_model(w->work), w->data.tok_path));
    neb__model_yaml_free(&f);
}

int world_set_up(void **state)
{
    (void)state;
    check_make_dir(world_dir, sizeof world_dir);
    world_pairs("train.tsv", 400, 1);
    world_pairs("valid.tsv", 40, 77777);
    return 0;
}

int world_tear_down(void **state)
{
    (void)state;
    check_remove_dir(world_dir);
    return 0;
}
