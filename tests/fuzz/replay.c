/* replay.c: runs a fuzz target over the files of a folder: the corpus as an ordinary test, with any compiler. */
#include "base/file.h"

#include <dirent.h>
#include <nebula/log.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    int files = 0;
    neb_log_set_level(NEB_LOG_NONE);
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        for (struct dirent *e; d && (e = readdir(d));) {
            char path[4096];
            struct neb_buf b;
            if (e->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            neb__buf_init(&b, 64 << 20);
            if (neb__file_read(path, &b) != NEB_OK) return 1;
            LLVMFuzzerTestOneInput(b.data, b.len);
            neb__buf_free(&b);
            files++;
        }
        if (d) closedir(d);
    }
    printf("%d inputs\n", files);
    return files ? 0 : 1;
}
