/* test_data.c: a job's text: which tokenizer it is cut with, what is made anew and what is taken as it lies there. */
#include "check.h"
#include "words.h"
#include "base/file.h"
#include "task/data.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char dir[200];

struct scene {
    struct neb_job job;
    struct neb_data data;
};

static const char *in(const char *name)
{
    static char path[8][300];
    static int at;
    at = (at + 1) % 8;
    snprintf(path[at], sizeof path[at], "%s/%s", dir, name);
    return path[at];
}

/* text: the job, in which @ stands for the folder. NEB_OK owes a close. */
static neb_status prepare(const char *text, struct scene *s)
{
    FILE *f = fopen(in("job.yaml"), "w");
    assert_non_null(f);
    for (const char *c = text; *c; c++)
        if (*c == '@')
            fputs(dir, f);
        else
            fputc(*c, f);
    fclose(f);
    assert_ok(neb__job_read(in("job.yaml"), NULL, 0, &s->job));
    neb_status st = neb__data_prepare(&s->job, &s->data);
    if (st != NEB_OK) neb__job_free(&s->job);
    return st;
}

static void close_scene(struct scene *s)
{
    neb__data_free(&s->data);
    neb__job_free(&s->job);
}

static void refused(const char *text, const char *says)
{
    struct scene s;
    check_log_quiet();
    assert_status(prepare(text, &s), NEB_ERR_CONFIG);
    check_log_restore();
    if (!strstr(neb_last_error(), says)) fail_msg("%s, expected: %s", neb_last_error(), says);
}

#define SMALL "train: {max_len: 32, tokens: 64, threads: 1}\n"

/* ---- copies ----------------------------------------------------------------------------------------------------- */

static void no_tokenizer_is_trained_that_copies_cannot_use(void **state)
{
    (void)state;
    refused("out: @/unigram\ntokenizer: {vocab: 60}\n" SMALL "data:\n  - {file: @/aa, copies: 2}\n",
            "needs tokenizer.type: bpe");
    assert_int_not_equal(access(in("unigram/data/tokenizer.model"), F_OK), 0);
    struct scene s;
    assert_ok(prepare("out: @/unigram\ntokenizer: {vocab: 60, type: bpe}\n" SMALL
                      "data:\n  - {file: @/aa, copies: 2}\n",
                      &s));
    close_scene(&s);
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    words_file(in("aa"), 0, -1, 200);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_tokenizer_is_trained_that_copies_cannot_use),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
