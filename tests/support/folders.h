/* folders.h: model folders in tests: those that tools/hf_parity.py recorded, and others beside them. */
#ifndef NEB_TEST_FOLDERS_H
#define NEB_TEST_FOLDERS_H

#include "vectors.h"
#include "base/buf.h"
#include "task/hf.h"
#include "task/line_batches.h"

/* Set-up and tear-down of a group of tests that write folders. */
int folder_set_up(void **state);
int folder_tear_down(void **state);

/* The path of `name` among the folders that this program writes. Four of them last at a time. */
const char *folder_in(const char *name);
/* The recorded model, until the next call. */
const char *folder_recorded(const char *name);

void folder_read(const char *path, struct neb_buf *out);
void folder_put(const char *folder, const char *name, const char *text);
/* One file of a recorded model into a folder. */
void folder_copy(const char *kind, const char *name, const char *folder);

/* The recorded config.json into a folder, with `key` set to what the JSON text `value` says. NULL: without the key. */
void folder_config(const char *kind, const char *folder, const char *key, const char *value);

/* A tensor beside the recorded ones (in one file): a copy of another one, of which one bit may differ. copy_of NULL: `name` is left
 * out. */
struct folder_edit {
    const char *name, *copy_of;
    bool changed;
};
void folder_tensors(const char *kind, const char *folder, const struct folder_edit *edits, int n);

/* The logits of sequence `i` are those that were recorded. */
void folder_compare(struct neb_ready *m, const char *kind, const struct vectors *v, int i);

/* Puts the model's logits for what `feed` has on the tape: for neb_tape_run(). */
struct folder_run {
    struct neb_ready *m;
    struct neb_model_input *feed;
    neb_buffer *out;
};
void folder_run(neb_tape *t, void *arg);

#endif
