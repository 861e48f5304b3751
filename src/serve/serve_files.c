/* serve_files.c: the page, its script and its style. The assembler puts the files of src/serve/page into the program as
 * they are; CMakeLists.txt says where they lie. */
#include "serve/serve_internal.h"

#include <string.h>

#define FILE_AS(symbol, path)                                      \
    __asm__(".pushsection .rodata\n"                               \
            ".hidden neb__serve_" #symbol "_begin\n"               \
            ".globl neb__serve_" #symbol "_begin\n"                \
            "neb__serve_" #symbol "_begin: .incbin \"" path "\"\n" \
            ".hidden neb__serve_" #symbol "_end\n"                 \
            ".globl neb__serve_" #symbol "_end\n"                  \
            "neb__serve_" #symbol "_end: .byte 0\n"                \
            ".popsection");                                        \
    extern const char neb__serve_##symbol##_begin[], neb__serve_##symbol##_end[]

FILE_AS(html, NEB_PAGE_FOLDER "/watch.html");
FILE_AS(script, NEB_PAGE_FOLDER "/watch.js");
FILE_AS(plots, NEB_PAGE_FOLDER "/plots.js");
FILE_AS(style, NEB_PAGE_FOLDER "/watch.css");

static const struct neb_serve_file files[] = {
    {"/", "text/html; charset=utf-8", neb__serve_html_begin, neb__serve_html_end},
    {"/watch.js", "text/javascript; charset=utf-8", neb__serve_script_begin, neb__serve_script_end},
    {"/plots.js", "text/javascript; charset=utf-8", neb__serve_plots_begin, neb__serve_plots_end},
    {"/watch.css", "text/css; charset=utf-8", neb__serve_style_begin, neb__serve_style_end},
};

const struct neb_serve_file *neb__serve_file(const char *path)
{
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!strcmp(files[i].path, path)) return &files[i];
    return NULL;
}
