/* new_files.h: files that `nebula-i new` starts from, part of the program: the job files of src/cli/new, a script, and text. */
#ifndef NEB_CLI_NEW_FILES_H
#define NEB_CLI_NEW_FILES_H

struct neb_new_file {
    const char
        *name; /* "causal.yaml", …, "train.py", "manual.md": the pages of docs/, one behind the other */
    const char *bytes, *end;
};

const struct neb_new_file *neb__new_file(const char *name); /* NULL: there is none of this name */

#endif
