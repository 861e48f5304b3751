/* verb_demo.c: `nebula-i demo FILE…`: a small language model learns the given texts on this machine, and then writes.
 *
 * On a terminal one line is kept up to date; into a pipe or file go plain lines, one every few seconds. */
#include "cli/verb.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "task/byte_lm.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TEXT = 1 << 28 };

static volatile sig_atomic_t stop;

static void on_interrupt(int number)
{
    (void)number;
    stop = 1;
}

struct display {
    bool terminal;
    int64_t last_ns;
};

static bool show(void *arg, const struct neb_byte_lm_progress *p)
{
    struct display *d = arg;
    bool last = p->step == p->steps || stop;
    if (p->step == 1) printf("%.1f million parameters\n", (double)p->parameters / 1e6);
    if (!last && p->step != 1 && neb__seconds_since(d->last_ns) < (d->terminal ? 0.1 : 5)) return true;
    d->last_ns = neb__now_ns();
    printf("%sstep %*d of %d   %.3f bits a byte   %5.1f kB/s   %d:%02d left%s", d->terminal ? "\r" : "", 4,
           (int)p->step, (int)p->steps, p->bits, p->bytes_per_second / 1e3, (int)p->seconds_left / 60,
           (int)p->seconds_left % 60, d->terminal && !last ? "  " : "\n");
    fflush(stdout);
    return !stop;
}

static void print_sample(const char *s)
{
    printf("\n    ");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\n')
            printf("\n    ");
        else
            putchar(c < 32 ? '.' : c);
    }
    printf("\n\n");
}

static neb_status learn(const struct neb_byte_lm_config *config, int files, char **names)
{
    struct neb_buf text;
    struct neb_byte_lm_result r;
    struct display d = {.terminal = isatty(STDOUT_FILENO)};
    neb__buf_init(&text, MAX_TEXT);
    neb_status s = NEB_OK;
    for (int i = 0; i < files && s == NEB_OK; i++) s = neb__file_read(names[i], &text);
    if (s == NEB_OK) {
        printf("learning %.0f kB of text from %d file%s\n", (double)text.len / 1e3, files,
               files == 1 ? "" : "s");
        s = neb__byte_lm_train(config, text.data, text.len, show, &d, &r);
    }
    neb__buf_free(&text);
    if (s != NEB_OK) return s;
    printf("held-out text: %.2f bits a byte untrained, %.2f from byte counts alone, %.2f now, after %.0f s\n",
           r.before, r.unigram, r.after, r.seconds);
    printf("what the model writes:\n");
    print_sample(r.sample);
    neb__free(r.sample);
    return NEB_OK;
}

static int run(int argc, char **argv)
{
    struct neb_byte_lm_config config;
    int files = 0;
    if (neb__opts_init(neb__byte_lm_options, &config) != NEB_OK) return 1;
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--help")) {
            printf("usage: nebula-i demo FILE… [options]\n\nA small language model learns the texts, and "
                   "writes.\n\n");
            neb__opts_help(neb__byte_lm_options, stdout);
            neb__opts_free(neb__byte_lm_options, &config);
            return 0;
        }
    neb_status s = neb__opts_env(neb__byte_lm_options, &config, "NEBULA_DEMO");
    if (s == NEB_OK) s = neb__opts_args(neb__byte_lm_options, &config, argc, argv, &files);
    int code = 2;
    if (s == NEB_OK && !files) fprintf(stderr, "nebula-i demo: name at least one text file\n");
    if (s == NEB_OK && files) {
        signal(SIGINT, on_interrupt);
        code = learn(&config, files, argv) == NEB_OK ? 0 : 1;
    }
    neb__opts_free(neb__byte_lm_options, &config);
    return code;
}

const struct neb_verb neb__verb_demo = {"demo", "FILE… [options]",
                                        "a small language model learns texts on this machine", run};
