/* verb.c: what all verbs have in common: help, options, the number of words, the exit status.
 *
 * A verb's struct says what it takes, so wrong input is answered here, in one way: a line that says what is wrong, the
 * usage behind it, exit status 2. */
#include "cli/verb.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "cli/reference.h"

#include <string.h>

enum { WIDEST = 44, TABLES = NEB_VERB_TABLES };

const struct neb_verb *neb__verb_parts(const struct neb_verb *v)
{
    return v->describe ? v->describe() : v->parts;
}

bool neb__verb_takes_keys(const struct neb_verb *v)
{
    return strstr(v->args, "section.key=value") != NULL;
}

/* ---- help ------------------------------------------------------------------------------------------------------ */

/* Columns of a text in UTF-8 without wide characters. */
static int columns(const char *text)
{
    int n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

static int part_width(const struct neb_verb *part)
{
    return columns(part->name) + (*part->args ? 1 : 0) + columns(part->args);
}

/* The column at which the parts' help begins, relative to their names: behind the widest that leaves room for it. */
static int help_column(const struct neb_verb *v)
{
    int widest = 0;
    for (const struct neb_verb *p = v->parts; p->name; p++) {
        int width = part_width(p);
        if (width > widest && width <= WIDEST) widest = width;
    }
    return widest + 3;
}

/* "usage: nebula-i roster join FILE DIR     the site in DIR takes part in this run" */
static void print_part(const struct neb_verb *v, const struct neb_verb *part, const char *lead, int column,
                       FILE *to)
{
    int gap = column - part_width(part);
    fprintf(to, "%s nebula-i %s %s%s%s%s%s", lead, v->name, v->args, *v->args ? " " : "", part->name,
            *part->args ? " " : "", part->args);
    if (column) fprintf(to, "%*s%s", gap < 3 ? 3 : gap, "", part->help);
    fputc('\n', to);
}

static void print_usage(const struct neb_verb *v, const struct neb_verb *part, FILE *to)
{
    if (part)
        print_part(v, part, "usage:", 0, to);
    else if (v->parts)
        for (const struct neb_verb *p = v->parts; p->name; p++)
            print_part(v, p, p == v->parts ? "usage:" : "      ", help_column(v), to);
    else
        fprintf(to, "usage: nebula-i %s%s%s\n", v->name, *v->args ? " " : "", v->args);
}

static void print_options(const struct neb_verb *v, FILE *to)
{
    for (int i = 0; i < TABLES && v->options[i].table; i++) neb__opts_help(v->options[i].table, to);
    fprintf(to, "  %-22s show this\n", "-h, --help");
}

/* `part`: which of its parts; NULL: the verb itself. */
static void print_help(const struct neb_verb *v, const struct neb_verb *part, FILE *to)
{
    bool own = part && !v->size; /* a part with options of its own */
    const char *about = own ? part->about : v->about;
    print_usage(v, part, to);
    if (part) fprintf(to, "\n%s\n", part->help);
    if (about) fprintf(to, "\n%s\n", about);
    fputc('\n', to);
    print_options(own ? part : v, to);
    if (v->more) v->more(to);
}

/* ---- wrong words ------------------------------------------------------------------------------------------------- */

static int wrong(const struct neb_verb *v, const struct neb_verb *part)
{
    print_usage(v, part, stderr);
    fprintf(stderr, "nebula-i %s%s%s --help tells more\n", v->name, part ? " " : "", part ? part->name : "");
    return NEB_EXIT_USAGE;
}

static int wrong_number(const struct neb_verb *v, const struct neb_verb *part, const struct neb_call *c)
{
    const struct neb_verb *which = part ? part : v;
    fprintf(stderr, "nebula-i %s%s%s: ", v->name, part ? " " : "", part ? part->name : "");
    if (c->n < which->least)
        fprintf(stderr, "%s\n", which->missing ? which->missing : "a word is missing");
    else
        fprintf(stderr, "'%s' is one word too many\n", c->words[which->most]);
    return wrong(v, part);
}

static int part_missing(const struct neb_verb *v)
{
    fprintf(stderr, "nebula-i %s: a word is missing\n", v->name);
    return wrong(v, NULL);
}

static const struct neb_verb *find_part(const struct neb_verb *v, const char *name)
{
    for (const struct neb_verb *p = v->parts; p && p->name; p++)
        if (!strcmp(p->name, name)) return p;
    return NULL;
}

static int no_such_part(const struct neb_verb *v, const char *name)
{
    struct neb_nearest n = {.word = name, .within = 3};
    char hint[NEB_HINT];
    for (const struct neb_verb *p = v->parts; p->name; p++) neb__nearest_try(&n, p->name);
    neb__nearest_hint(&n, hint);
    fprintf(stderr, "nebula-i %s: no '%s'%s\n", v->name, name, hint);
    return wrong(v, NULL);
}

/* ---- calling ----------------------------------------------------------------------------------------------------- */

static int exit_status(neb_status status, const struct neb_call *c)
{
    return c->code ? c->code : neb__exit_of(status);
}

static int call(const struct neb_verb *v, const struct neb_verb *part, struct neb_call *c)
{
    if (!part && v->parts) {
        if (c->n <= v->part_at) return part_missing(v);
        char **name = c->words + v->part_at;
        part = find_part(v, *name);
        if (!part) return no_such_part(v, *name);
        memmove(name, name + 1,
                (size_t)(c->n - v->part_at) * sizeof *name); /* the rest are the part's words */
        c->n--;
    }
    const struct neb_verb *which = part ? part : v;
    if (c->n < which->least || (which->most >= 0 && c->n > which->most)) return wrong_number(v, part, c);
    c->tag = which->tag;
    return exit_status(which->run(c), c);
}

/* part: one with options of its own, or NULL. */
static int parse_and_call(const struct neb_verb *v, const struct neb_verb *part, int argc, char **argv,
                          char **command)
{
    const struct neb_verb *with = part ? part : v;
    struct neb_opt_set sets[TABLES + 1] = {{NULL, NULL}};
    char *object = neb__calloc(with->size + 1, 1);
    struct neb_call c = {.options = object, .words = argv, .command = command};
    neb_status status = object ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the options");
    for (int i = 0; status == NEB_OK && i < TABLES && with->options[i].table; i++) {
        void *obj = object + with->options[i].offset;
        status = neb__opts_init(with->options[i].table, obj);
        if (status == NEB_OK) sets[i] = (struct neb_opt_set){with->options[i].table, obj};
    }
    if (status == NEB_OK) status = neb__opts_args_of(sets, argc, argv, &c.n);
    if (status == NEB_OK && c.n < argc) argv[c.n] = NULL;
    int code = status == NEB_OK ? call(v, part, &c) : exit_status(status, &c);
    for (int i = 0; sets[i].table; i++) neb__opts_free(sets[i].table, sets[i].obj);
    neb__free(object);
    return code;
}

static int run_raw(const struct neb_verb *v, int argc, char **argv)
{
    struct neb_call c = {.words = argv, .n = argc};
    return exit_status(v->run(&c), &c);
}

int neb__verb_run(const struct neb_verb *v, int argc, char **argv)
{
    if (v->raw) return run_raw(v, argc, argv);
    const struct neb_verb *part = argc ? find_part(v, argv[0]) : NULL;
    int ours = 0; /* behind `--` stands somebody else's --help */
    for (; ours < argc && strcmp(argv[ours], "--"); ours++)
        if (!strcmp(argv[ours], "--help") || !strcmp(argv[ours], "-h")) {
            print_help(v, part, stdout);
            return 0;
        }
    if (v->parts && !v->size) { /* a part has its own options: its name comes first */
        if (!argc) return part_missing(v);
        return part ? parse_and_call(v, part, argc - 1, argv + 1, NULL) : no_such_part(v, argv[0]);
    }
    if (!v->command || ours == argc) return parse_and_call(v, NULL, argc, argv, NULL);
    argv[ours] = NULL;
    return parse_and_call(v, NULL, ours, argv, argv + ours + 1);
}
