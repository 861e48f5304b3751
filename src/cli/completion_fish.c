/* completion_fish.c: completion for fish: one `complete` a word, with the place where it may stand. */
#include "cli/completion.h"

static void put_quoted(const char *text, FILE *to)
{
    for (fputc('\'', to); *text; text++) {
        if (*text == '\'' || *text == '\\') fputc('\\', to);
        fputc(*text, to);
    }
    fputc('\'', to);
}

struct owner {
    FILE *to;
    const char *verb, *part; /* part NULL: the verb's own options */
};

static void put_place(const struct owner *w)
{
    fprintf(w->to, "complete -c nebula-i -n '__nebula_i_is %s%s%s'", w->verb, w->part ? " " : "",
            w->part ? w->part : "");
}

static void put_option(const struct neb_opt *o, void *arg)
{
    const struct owner *w = arg;
    put_place(w);
    fputs(" -l ", w->to);
    neb__completion_option(o, w->to);
    if (o->choices) {
        fputs(" -x -a '", w->to);
        for (const char *const *c = o->choices; *c; c++) fprintf(w->to, "%s ", *c);
        fputs("'", w->to);
    } else if (o->type != NEB_OPT_BOOL) {
        fputs(" -r", w->to);
    }
    fputs(" -d ", w->to);
    put_quoted(o->help, w->to);
    fputc('\n', w->to);
}

static void put_word(const char *condition, const char *word, const char *help, FILE *to)
{
    fprintf(to, "complete -c nebula-i -n '%s' -f -a %s -d ", condition, word);
    put_quoted(help, to);
    fputc('\n', to);
}

static void put_verb(const struct neb_verb *v, FILE *to)
{
    char condition[96];
    struct owner w = {.to = to, .verb = v->name};
    put_word("__nebula_i_words 1", v->name, v->help, to);
    neb__completion_options(v, put_option, &w);
    for (const struct neb_verb *p = neb__verb_parts(v); p && p->name; p++) {
        snprintf(condition, sizeof condition, "__nebula_i_is %s; and __nebula_i_words %d", v->name,
                 v->part_at + 2);
        put_word(condition, p->name, p->help, to);
        w.part = p->name;
        neb__completion_options(p, put_option, &w);
        if (neb__verb_takes_keys(p))
            fprintf(to, "complete -c nebula-i -n '__nebula_i_is %s %s' -a '$__nebula_i_keys'\n", v->name,
                    p->name);
    }
    if (neb__verb_takes_keys(v))
        fprintf(to, "complete -c nebula-i -n '__nebula_i_is %s' -a '$__nebula_i_keys'\n", v->name);
}

static void put_key(const char *section, const struct neb_opt *o, void *to)
{
    fprintf(to, " %s%s%s=", section, *section ? "." : "", o->name);
}

static void put_global(const char *brief, const char *full, const char *help, FILE *to)
{
    fprintf(to, "complete -c nebula-i -s %s -l %s -d ", brief + 1, full + 2);
    put_quoted(help, to);
    fputc('\n', to);
}

static const char functions[] =
    "# fish completion for nebula-i, made by `nebula-i completion fish`.\n"
    "function __nebula_i_is # VERB [PART]: the command line has them\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -ge 2; or return 1\n"
    "    test \"$words[2]\" = \"$argv[1]\"; or return 1\n"
    "    test (count $argv) -lt 2; or contains -- $argv[2] $words[3..-1]\n"
    "end\n"
    "function __nebula_i_words # N: so many words stand before the one to complete, options apart\n"
    "    test (count (string match -v -- '-*' (commandline -opc))) -eq $argv[1]\n"
    "end\n";

void neb__completion_fish(FILE *to)
{
    fputs(functions, to);
    fputs("set -g __nebula_i_keys", to);
    neb__completion_keys(put_key, to);
    fputc('\n', to);
    neb__completion_globals(false, put_global, to);
    fputs("complete -c nebula-i -n '__nebula_i_words 1' -s V -l version -d 'print the version'\n", to);
    put_word("__nebula_i_words 1", "help", "explain a verb", to);
    for (int i = 0; neb__verbs[i]; i++)
        put_word("__nebula_i_is help; or __nebula_i_is manual", neb__verbs[i]->name, neb__verbs[i]->help, to);
    for (int i = 0; neb__verbs[i]; i++) put_verb(neb__verbs[i], to);
}
