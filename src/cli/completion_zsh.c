/* completion_zsh.c: completion for zsh, by its own _arguments and _describe. */
#include "cli/completion.h"

#include <string.h>

/* Inside '…' of the shell and […] of _arguments. */
static void put_quoted(const char *text, FILE *to)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", to);
        else if (strchr("[]", *text))
            fputc(*text == '[' ? '(' : ')', to);
        else
            fputc(*text, to);
    }
}

/* '--mode=[how the network is made]:mode:(auto namespaces)' */
static void put_option(const struct neb_opt *o, void *arg)
{
    FILE *to = arg;
    fputs(" \\\n            '--", to);
    neb__completion_option(o, to);
    fputs(o->type == NEB_OPT_BOOL ? "[" : "=[", to);
    put_quoted(o->help, to);
    fputs("]", to);
    if (o->choices) {
        fprintf(to, ":%s:(", o->name);
        for (const char *const *c = o->choices; *c; c++) fprintf(to, "%s%s", c == o->choices ? "" : " ", *c);
        fputs(")", to);
    } else if (o->type != NEB_OPT_BOOL) {
        fprintf(to, ":%s:_files", o->name);
    }
    fputs("'", to);
}

static void put_word(const char *brief, const char *full, const char *help, FILE *to)
{
    (void)help;
    fprintf(to, " %s %s", brief, full);
}

/* '(-h --help)'{-h,--help}'[explain it]' */
static void put_global(const char *brief, const char *full, const char *help, FILE *to)
{
    fprintf(to, "        '(%s %s)'{%s,%s}'[", brief, full, brief, full);
    put_quoted(help, to);
    fputs("]'\n", to);
}

static void put_list(const char *name, const struct neb_verb *parts, FILE *to)
{
    fprintf(to, "        local -a %s=(\n", name);
    for (const struct neb_verb *p = parts; p->name; p++) {
        fprintf(to, "            '%s:", p->name);
        put_quoted(p->help, to);
        fputs("'\n", to);
    }
    fputs("        )\n", to);
}

static const char *words_of(const struct neb_verb *v)
{
    return neb__verb_takes_keys(v) ? "'1:job file:_files' '*:key:_nebula_i_keys'" : "'*:file:_files'";
}

/* Each part has options of its own, and its name comes first. */
static void put_by_part(const struct neb_verb *parts, FILE *to)
{
    put_list("parts", parts, to);
    fputs("        if (( CURRENT == 2 )); then\n            _describe part parts\n            return\n       "
          " fi\n"
          "        shift words\n        (( CURRENT-- ))\n        case $words[1] in\n",
          to);
    for (const struct neb_verb *p = parts; p->name; p++) {
        fprintf(to, "        %s) _arguments $globals", p->name);
        neb__completion_options(p, put_option, to);
        fprintf(to, " %s ;;\n", words_of(p));
    }
    fputs("        esac ;;\n", to);
}

static void put_verb(const struct neb_verb *v, FILE *to)
{
    const struct neb_verb *parts = neb__verb_parts(v);
    fprintf(to, "    %s)\n", v->name);
    if (neb__completion_by_part(v)) {
        put_by_part(parts, to);
        return;
    }
    fputs("        _arguments $globals", to);
    neb__completion_options(v, put_option, to);
    if (parts) {
        for (int i = 0; i < v->part_at; i++) fprintf(to, " '%d:word:_files'", i + 1);
        fprintf(to, " '%d:part:(", v->part_at + 1);
        for (const struct neb_verb *p = parts; p->name; p++) fprintf(to, "%s ", p->name);
        fputs(")'", to);
    }
    fprintf(to, " %s ;;\n", words_of(v));
}

static void put_key(const char *section, const struct neb_opt *o, void *to)
{
    fprintf(to, "        %s%s%s=\n", section, *section ? "." : "", o->name);
}

void neb__completion_zsh(FILE *to)
{
    fputs("#compdef nebula-i\n# zsh completion for nebula-i, made by `nebula-i completion zsh`.\n\n"
          "_nebula_i_keys() {\n    local -a keys=(\n",
          to);
    neb__completion_keys(put_key, to);
    fputs("    )\n    compadd -S '' -- $keys\n}\n\n_nebula_i() {\n    local -a verbs=(\n        "
          "'help:explain a verb'\n",
          to);
    for (int i = 0; neb__verbs[i]; i++) {
        fprintf(to, "        '%s:", neb__verbs[i]->name);
        put_quoted(neb__verbs[i]->help, to);
        fputs("'\n", to);
    }
    fputs("    )\n    local -a globals=(\n", to);
    neb__completion_globals(false, put_global, to);
    fputs("    )\n    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        compadd --", to);
    neb__completion_globals(true, put_word, to);
    fputs("\n        return\n    fi\n"
          "    shift words\n    (( CURRENT-- ))\n    case $words[1] in\n"
          "    help | manual) (( CURRENT == 2 )) && _describe verb verbs ;;\n",
          to);
    for (int i = 0; neb__verbs[i]; i++) put_verb(neb__verbs[i], to);
    fputs("    esac\n}\n\n_nebula_i \"$@\"\n", to);
}
