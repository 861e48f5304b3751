/* completion.c: completion for bash, and what the three shells' scripts share. completion_zsh.c and completion_fish.c have
 * the other two.
 *
 * A script is made from the verbs' tables and holds them as shell words, so completing needs no call of the program. */
#include "cli/completion.h"
#include "cli/reference.h"
#include "job/job.h"

#include <string.h>

bool neb__completion_by_part(const struct neb_verb *v)
{
    return v->describe || (v->parts && !v->size);
}

/* A row's name reads "-h, --help". The version is asked for before a verb alone. */
void neb__completion_globals(bool first,
                             void (*each)(const char *brief, const char *full, const char *help, FILE *to),
                             FILE *to)
{
    for (const struct neb_reference_row *r = neb__reference_options; r->name; r++) {
        char brief[3] = {r->name[0], r->name[1], 0};
        const char *full = strstr(r->name, "--");
        if (full && (first || strcmp(brief, "-V"))) each(brief, full, r->text, to);
    }
}

void neb__completion_option(const struct neb_opt *o, FILE *to)
{
    for (const char *c = o->name; *c; c++) fputc(*c == '_' ? '-' : *c, to);
}

void neb__completion_options(const struct neb_verb *v, void (*each)(const struct neb_opt *o, void *arg),
                             void *arg)
{
    for (int i = 0; i < NEB_VERB_TABLES && v->options[i].table; i++)
        for (const struct neb_opt *o = v->options[i].table; o->name; o++) each(o, arg);
}

void neb__completion_keys(void (*each)(const char *section, const struct neb_opt *o, void *arg), void *arg)
{
    for (const struct neb_job_section *s = neb__job_sections; s->name; s++) {
        if (strchr(s->name, '[')) continue;
        for (int i = 0; i < NEB_JOB_TABLES && s->table[i]; i++)
            for (const struct neb_opt *o = s->table[i]; o->name; o++) each(s->name, o, arg);
    }
}

/* ---- bash -------------------------------------------------------------------------------------------------------- */

static void put_global(const char *brief, const char *full, const char *help, FILE *to)
{
    (void)help;
    fprintf(to, "%s %s ", brief, full);
}

static void put_flag(const struct neb_opt *o, void *to)
{
    if (o->type != NEB_OPT_BOOL) return;
    fputs("--", to);
    neb__completion_option(o, to);
    fputs(" --no-", to);
    neb__completion_option(o, to);
    fputc(' ', to);
}

static void put_valued(const struct neb_opt *o, void *to)
{
    if (o->type == NEB_OPT_BOOL) return;
    fputs("--", to);
    neb__completion_option(o, to);
    fputc(' ', to);
}

static void put_lists(const struct neb_verb *v, FILE *to)
{
    fputs(" valued=\"", to);
    neb__completion_options(v, put_valued, to);
    fputs("\" flags=\"", to);
    neb__completion_options(v, put_flag, to);
    fputs("\"", to);
    if (neb__verb_takes_keys(v)) fputs(" keys=1", to);
}

static void put_verb(const struct neb_verb *v, FILE *to)
{
    const struct neb_verb *parts = neb__verb_parts(v);
    fprintf(to, "    %s)", v->name);
    if (parts) {
        fputs(" parts=\"", to);
        for (const struct neb_verb *p = parts; p->name; p++) fprintf(to, "%s ", p->name);
        fprintf(to, "\" at=%d", v->part_at);
    }
    bool keys = neb__verb_takes_keys(v);
    for (const struct neb_verb *p = parts; p && p->name; p++) keys |= neb__verb_takes_keys(p);
    if (!neb__completion_by_part(v)) put_lists(v, to);
    if (keys && parts) fputs(" keys=1", to);
    fputs(" ;;\n", to);
}

static void put_part(const struct neb_verb *v, const struct neb_verb *p, FILE *to)
{
    fprintf(to, "    '%s %s') of=\"%s %s\"", v->name, p->name, v->name, p->name);
    put_lists(p, to);
    fputs(" ;;\n", to);
}

struct owner {
    FILE *to;
    const char *verb, *part; /* part NULL: the verb's own options */
};

static void put_words(const char *const *words, FILE *to)
{
    for (; *words; words++) fprintf(to, "%s ", *words);
}

static void put_choices(const struct neb_opt *o, void *arg)
{
    const struct owner *w = arg;
    if (!o->choices) return;
    fprintf(w->to, "    '%s%s%s --", w->verb, w->part ? " " : "", w->part ? w->part : "");
    neb__completion_option(o, w->to);
    fputs("') choices=\"", w->to);
    put_words(o->choices, w->to);
    fputs("\" ;;\n", w->to);
}

static void put_key(const char *section, const struct neb_opt *o, void *to)
{
    fprintf(to, "%s%s%s= ", section, *section ? "." : "", o->name);
}

static void put_key_choices(const char *section, const struct neb_opt *o, void *to)
{
    static const char *const truth[] = {"yes", "no", NULL};
    const char *const *words = o->type == NEB_OPT_BOOL ? truth : o->choices;
    if (!words) return;
    fprintf(to, "    %s%s%s) choices=\"", section, *section ? "." : "", o->name);
    put_words(words, to);
    fputs("\" ;;\n", to);
}

static void put_all_choices(FILE *to)
{
    for (int i = 0; neb__verbs[i]; i++) {
        const struct neb_verb *v = neb__verbs[i], *parts = neb__verb_parts(v);
        struct owner w = {.to = to, .verb = v->name};
        neb__completion_options(v, put_choices, &w);
        for (const struct neb_verb *p = parts; p && p->name; p++) {
            w.part = p->name;
            neb__completion_options(p, put_choices, &w);
        }
    }
}

static const char bash_begin[] = "# bash completion for nebula-i, made by `nebula-i completion bash`.\n"
                                 "_nebula_i() {\n"
                                 "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
                                 "verb=${COMP_WORDS[1]} of=${COMP_WORDS[1]}\n"
                                 "    local verbs parts= at=0 valued= flags= keys= choices= option= word i\n"
                                 "    local -a plain=()\n"
                                 "    COMPREPLY=()\n";

static const char bash_words[] = "    if ((COMP_CWORD == 1)); then\n"
                                 "        COMPREPLY=($(compgen -W \"help $verbs $first\" -- \"$cur\"))\n"
                                 "        return\n"
                                 "    fi\n"
                                 "    case $verb in\n"
                                 "    help | manual) parts=\"$verbs job\" ;;\n"
                                 "    esac\n";

/* bash takes `=` for a word of its own: --mode=user is three words. */
static const char bash_place[] = "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
                                 "        word=${COMP_WORDS[i]}\n"
                                 "        [[ $word == -- ]] && return\n"
                                 "        if [[ ${COMP_WORDS[i+1]} == = ]]; then\n"
                                 "            ((i + 2 >= COMP_CWORD)) && option=$word\n"
                                 "            ((i += 2))\n"
                                 "        elif [[ \" $valued \" == *\" $word \"* ]]; then\n"
                                 "            ((i + 1 == COMP_CWORD)) && option=$word\n"
                                 "            ((i++))\n"
                                 "        elif [[ $word != -* ]]; then\n"
                                 "            plain+=(\"$word\")\n"
                                 "        fi\n"
                                 "    done\n"
                                 "    [[ $cur == = ]] && cur=\n";

static const char bash_end[] =
    "    if [[ -n $option ]]; then\n"
    "        [[ -z $choices ]] || COMPREPLY=($(compgen -W \"$choices\" -- \"$cur\"))\n"
    "        [[ -n $choices ]] || COMPREPLY=($(compgen -f -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    if [[ $cur == -* ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$valued $flags $globals\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    if [[ -n $parts ]] && ((${#plain[@]} <= at)); then\n"
    "        ((${#plain[@]} < at)) || COMPREPLY=($(compgen -W \"$parts\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    [[ -z $keys ]] || ((${#plain[@]} == 0)) || COMPREPLY=($(compgen -W \"$jobkeys\" -- \"$cur\"))\n"
    "    if ((${#COMPREPLY[@]})); then compopt -o nospace 2>/dev/null; else COMPREPLY=($(compgen -f -- "
    "\"$cur\")); fi\n"
    "}\n"
    "complete -o filenames -o bashdefault -o default -F _nebula_i nebula-i\n";

void neb__completion_bash(FILE *to)
{
    fputs(bash_begin, to);
    fputs("    verbs=\"", to);
    for (int i = 0; neb__verbs[i]; i++) fprintf(to, "%s ", neb__verbs[i]->name);
    fputs("\"\n    local first=\"", to);
    neb__completion_globals(true, put_global, to);
    fputs("\"\n    local globals=\"", to);
    neb__completion_globals(false, put_global, to);
    fputs("\"\n    local jobkeys=\"", to);
    neb__completion_keys(put_key, to);
    fputs("\"\n", to);
    fputs(bash_words, to);
    fputs("    case $verb in\n", to);
    for (int i = 0; neb__verbs[i]; i++) put_verb(neb__verbs[i], to);
    fputs("    esac\n    case \"$verb ${COMP_WORDS[2]}\" in\n", to);
    for (int i = 0; neb__verbs[i]; i++)
        for (const struct neb_verb *p = neb__verb_parts(neb__verbs[i]); p && p->name; p++)
            if (neb__completion_by_part(neb__verbs[i])) put_part(neb__verbs[i], p, to);
    fputs("    esac\n", to);
    fputs(bash_place, to);
    fputs("    case \"$of $option\" in\n", to);
    put_all_choices(to);
    fputs("    esac\n    case $option in\n", to);
    neb__completion_keys(put_key_choices, to);
    fputs("    esac\n", to);
    fputs(bash_end, to);
}
