/* world.h: a job over pairs of made-up sentences in two languages, opened for steps. */
#ifndef NEB_TEST_WORLD_H
#define NEB_TEST_WORLD_H

#include "task/work.h"

struct world {
    struct neb_job job;
    struct neb_data data;
    struct neb_work *work;
};

#define WORLD_ENCODER \
    "task: mlm\nmodel: {family: bert, hidden: 32, layers: 2, heads: 2, ffn: 32, max_positions: 32}\n"
#define WORLD_TRANSLATOR "task: translate\nmodel: {hidden: 32, layers: 1, heads: 2, ffn: 32}\n"
#define WORLD_STUDENT    "task: translate\nmodel: {hidden: 16, layers: 1, heads: 2, ffn: 32}\n"

extern char world_dir[200]; /* where everything lies */

/* Of a group of tests: makes the folder and the text, removes them. */
int world_set_up(void **state);
int world_tear_down(void **state);
void world_pairs(const char *name, int lines, unsigned seed);

/* text: the job's own lines, on top of what all of these have; @ stands for world_dir. The file is world_dir/job.yaml. */
void world_open(struct world *w, const char *text, const struct neb_step_links *links);
/* The same with "section.key=value", separated by blanks, that win over the file. */
void world_open_words(struct world *w, const char *text, const char *words);
void world_open_linked(struct world *w, const char *text, const char *words,
                       const struct neb_step_links *links);
void world_close(struct world *w);
double world_step(struct world *w);                 /* the loss */
void world_save(struct world *w, const char *name); /* the model, as a folder in world_dir */
void world_path(const char *name, char path[300]);  /* of what lies there */

/* The values of every parameter whose name starts with `prefix` (NULL: with none of the known ones): how many, into a room of
 * world_room(), which owes a free(). */
float *world_room(void);
int64_t world_values(struct world *w, const char *prefix, float *out);
void world_assert_same(struct world *w, const char *prefix, const float *want, int64_t n);

#endif
