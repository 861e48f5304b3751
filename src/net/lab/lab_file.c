/* lab_file.c: reads a laboratory from a YAML file.
 *
 * libcyaml reads every value as text; then the tables that read the command line parse it. So units and
 * messages are the same in both. The keys:
 *
 *     seed mtu overhead memory mode offload ports
 *     sites:     name up down up_queue down_queue command
 *     line:      the defaults of every line: rate rtt delay jitter loss burst_loss burst_length reorder
 *                reorder_delay corrupt queue burst down
 *     lines:     between | from to, and the keys of `line`
 *     schedule:  at for every, between | from to | site, rate rtt delay jitter loss down
 *
 * A file is at most 1 MiB and has no aliases, so its expansion is bounded too.
 */
#include "net/lab/lab.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/opts.h"

#include <cyaml/cyaml.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PLAIN_KEYS(X)  X(rate) X(rtt) X(delay) X(jitter) X(loss)
#define CHANCE_KEYS(X) X(burst_loss) X(burst_length) X(reorder) X(reorder_delay) X(corrupt)
#define LINE_KEYS(X)   PLAIN_KEYS(X) CHANCE_KEYS(X) X(queue) X(burst) X(down)
#define WHERE_KEYS(X)  X(from) X(to) X(site) X(at) X(lasts) X(every)

/* One mapping about lines: the default, an exception, or an event. */
struct entry {
#define NEB__X(key) char *key;
    LINE_KEYS(NEB__X)
    WHERE_KEYS(NEB__X)
#undef NEB__X
    char **between;
    unsigned between_count;
};

static const char *const line_keys[] = {
#define NEB__X(key) #key,
    LINE_KEYS(NEB__X)
#undef NEB__X
};
enum { KEYS = sizeof line_keys / sizeof *line_keys };

struct site {
    char *name, *up, *down, *up_queue, *down_queue, *command;
};

struct file {
    char *seed, *mtu, *overhead, *memory, *mode, *offload;
    char **ports;
    unsigned ports_count;
    struct site *sites;
    unsigned sites_count;
    struct entry *line, *lines, *schedule;
    unsigned lines_count, schedule_count;
};

/* ---- the schema ---------------------------------------------------------------------------------------- */

#define TEXT(type, key, name) \
    CYAML_FIELD_STRING_PTR(name, CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, type, key, 0, CYAML_UNLIMITED)

static const cyaml_schema_value_t text_value = {
    CYAML_VALUE_STRING(CYAML_FLAG_POINTER, char *, 0, CYAML_UNLIMITED),
};

#define NEB__X(key) TEXT(struct entry, key, #key),
static const cyaml_schema_field_t line_fields[] = {LINE_KEYS(NEB__X) CYAML_FIELD_END};

static const cyaml_schema_field_t exception_fields[] = {
    LINE_KEYS(NEB__X) TEXT(struct entry, from, "from"), TEXT(struct entry, to, "to"),
    CYAML_FIELD_SEQUENCE("between", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct entry, between,
                         &text_value, 2, 2),
    CYAML_FIELD_END};

static const cyaml_schema_field_t event_fields[] = {
    LINE_KEYS(NEB__X) TEXT(struct entry, from, "from"),
    TEXT(struct entry, to, "to"),
    TEXT(struct entry, site, "site"),
    TEXT(struct entry, at, "at"),
    TEXT(struct entry, lasts, "for"),
    TEXT(struct entry, every, "every"),
    CYAML_FIELD_SEQUENCE("between", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct entry, between,
                         &text_value, 2, 2),
    CYAML_FIELD_END};
#undef NEB__X

static const cyaml_schema_field_t site_fields[] = {
    CYAML_FIELD_STRING_PTR("name", CYAML_FLAG_POINTER, struct site, name, 1, NEB_LAB_NAME - 1),
    TEXT(struct site, up, "up"),
    TEXT(struct site, down, "down"),
    TEXT(struct site, up_queue, "up_queue"),
    TEXT(struct site, down_queue, "down_queue"),
    TEXT(struct site, command, "command"),
    CYAML_FIELD_END};

static const cyaml_schema_value_t site_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct site, site_fields)};
static const cyaml_schema_value_t exception_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct entry, exception_fields)};
static const cyaml_schema_value_t event_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_DEFAULT, struct entry, event_fields)};

static const cyaml_schema_field_t file_fields[] = {
    TEXT(struct file, seed, "seed"),
    TEXT(struct file, mtu, "mtu"),
    TEXT(struct file, overhead, "overhead"),
    TEXT(struct file, memory, "memory"),
    TEXT(struct file, mode, "mode"),
    TEXT(struct file, offload, "offload"),
    CYAML_FIELD_SEQUENCE("ports", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct file, ports, &text_value,
                         0, NEB_LAB_PORTS),
    CYAML_FIELD_SEQUENCE("sites", CYAML_FLAG_POINTER, struct file, sites, &site_value, 2, NEB_LAB_SITES),
    CYAML_FIELD_MAPPING_PTR("line", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct file, line, line_fields),
    CYAML_FIELD_SEQUENCE("lines", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct file, lines,
                         &exception_value, 0, NEB_LAB_SITES *NEB_LAB_SITES),
    CYAML_FIELD_SEQUENCE("schedule", CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL, struct file, schedule,
                         &event_value, 0, 10000),
    CYAML_FIELD_END};

static const cyaml_schema_value_t file_value = {
    CYAML_VALUE_MAPPING(CYAML_FLAG_POINTER, struct file, file_fields)};

/* ---- reading ------------------------------------------------------------------------------------------- */

static void *yaml_memory(void *ctx, void *p, size_t n)
{
    (void)ctx;
    if (n) return neb__realloc(p, n);
    neb__free(p);
    return NULL;
}

/* The library explains an error in several lines. The first says what is wrong and where. */
static void yaml_log(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    char *first = ctx;
    if (level < CYAML_LOG_ERROR || first[0]) return;
    vsnprintf(first, 256, fmt, args);
    first[strcspn(first, "\n")] = 0;
}

struct number {
    int64_t seed, mtu, overhead, memory, port;
    double up, down;
    int64_t up_queue, down_queue;
    bool offload;
    double at, lasts, every;
};

static const struct neb_opt numbers[] = {
    NEB_OPT(struct number, seed, NEB_OPT_INT, "1", NULL, ""),
    NEB_OPT(struct number, mtu, NEB_OPT_INT, "1500", NULL, "", NEB_OPT_RANGE(576, 65535)),
    NEB_OPT(struct number, overhead, NEB_OPT_INT, "0", NULL, "", NEB_OPT_RANGE(0, 1000)),
    NEB_OPT(struct number, memory, NEB_OPT_BYTES, "256MiB", NULL, "", NEB_OPT_RANGE(1 << 20, HUGE_VAL)),
    NEB_OPT(struct number, port, NEB_OPT_INT, "7000", NULL, "", NEB_OPT_RANGE(1, 65535)),
    NEB_OPT(struct number, up, NEB_OPT_RATE, "0", NULL, "", NEB_OPT_ZERO_OR(1e3, 1e12)),
    NEB_OPT(struct number, down, NEB_OPT_RATE, "0", NULL, "", NEB_OPT_ZERO_OR(1e3, 1e12)),
    NEB_OPT(struct number, up_queue, NEB_OPT_BYTES, "0", NULL, ""),
    NEB_OPT(struct number, down_queue, NEB_OPT_BYTES, "0", NULL, ""),
    NEB_OPT(struct number, offload, NEB_OPT_BOOL, "yes", NULL, ""),
    NEB_OPT(struct number, at, NEB_OPT_TIME, "0", NULL, "", NEB_OPT_RANGE(0, 1e8)),
    NEB_OPT(struct number, lasts, NEB_OPT_TIME, "0", NULL, "", NEB_OPT_RANGE(0, 1e8)),
    NEB_OPT(struct number, every, NEB_OPT_TIME, "0", NULL, "", NEB_OPT_RANGE(0, 1e8)),
    NEB_OPT_END,
};

/* Sets a value if the file has it; otherwise the default stays. */
static neb_status set(struct number *n, const char *name, const char *value)
{
    return value ? neb__opts_set(numbers, n, name, value) : NEB_OK;
}

static neb_status apply_line(const struct entry *e, struct neb_lab_line *line)
{
    char *const *values = &e->rate; /* the fields of LINE_KEYS are consecutive */
    if (e->rtt && e->delay) return neb__fail(NEB_ERR_CONFIG, "a line has an rtt or a delay, not both");
    for (int i = 0; i < KEYS; i++)
        if (values[i]) NEB_TRY(neb__lab_line_set(line, line_keys[i], values[i]));
    return NEB_OK;
}

static neb_status find(const struct neb_lab_config *cfg, const char *name, int *out)
{
    if (!name) return NEB_OK;
    *out = neb__lab_config_site(cfg, name);
    return *out >= 0 ? NEB_OK : neb__fail(NEB_ERR_CONFIG, "no site '%s'", name);
}

/* Finds the lines that an entry names by `between`, by `from` and `to`, or by `site`. */
static neb_status where(const struct neb_lab_config *cfg, const struct entry *e, int *from, int *to,
                        bool *both)
{
    *from = *to = -1;
    *both = e->between || e->site;
    if ((e->between != NULL) + (e->site != NULL) + (e->from || e->to) > 1)
        return neb__fail(NEB_ERR_CONFIG,
                         "an entry must have only one of `between`, `site`, and `from` with `to`");
    if (e->between) {
        NEB_TRY(find(cfg, e->between[0], from));
        return find(cfg, e->between[1], to);
    }
    NEB_TRY(find(cfg, e->site ? e->site : e->from, from));
    return find(cfg, e->to, to);
}

static neb_status apply_exception(struct neb_lab_config *cfg, const struct entry *e)
{
    int from, to;
    bool both;
    NEB_TRY(where(cfg, e, &from, &to, &both));
    if (from < 0 && to < 0)
        return neb__fail(NEB_ERR_CONFIG, "an entry of `lines` needs `between`, `from` or `to`");
    for (int i = 0; i < cfg->sites; i++)
        for (int j = 0; j < cfg->sites; j++) {
            bool there = (from < 0 || from == i) && (to < 0 || to == j);
            bool back = both && (from < 0 || from == j) && (to < 0 || to == i);
            if (i != j && (there || back)) NEB_TRY(apply_line(e, &cfg->line[i * cfg->sites + j]));
        }
    return NEB_OK;
}

static neb_status apply_event(struct neb_lab_config *cfg, const struct entry *entry)
{
    struct neb_lab_event e = {0};
    struct number n = {0};
    char *const *values = &entry->rate;
    if (!entry->at) return neb__fail(NEB_ERR_CONFIG, "an event needs `at`");
    NEB_TRY(set(&n, "at", entry->at));
    NEB_TRY(set(&n, "lasts", entry->lasts));
    NEB_TRY(set(&n, "every", entry->every));
    NEB_TRY(where(cfg, entry, &e.from, &e.to, &e.both));
    for (int i = 0; i < KEYS; i++)
        if (values[i]) NEB_TRY(neb__lab_event_set(&e, line_keys[i], values[i]));
    e.at = n.at, e.lasts = n.lasts, e.every = n.every;
    return neb__lab_event_add(cfg, &e);
}

static neb_status apply_site(const struct site *from, struct neb_lab_site *to)
{
    struct number n = {0};
    NEB_TRY(set(&n, "up", from->up));
    NEB_TRY(set(&n, "down", from->down));
    NEB_TRY(set(&n, "up_queue", from->up_queue));
    NEB_TRY(set(&n, "down_queue", from->down_queue));
    to->up = n.up, to->down = n.down, to->up_queue = n.up_queue, to->down_queue = n.down_queue;
    if (from->command && !(to->command = neb__strdup(from->command)))
        return neb__fail(NEB_ERR_NOMEM, "out of memory for a command");
    return NEB_OK;
}

static neb_status apply_numbers(const struct file *f, struct neb_lab_config *cfg)
{
    struct number n = {
        .seed = 1, .mtu = cfg->mtu, .overhead = 0, .memory = cfg->memory, .offload = cfg->offload};
    NEB_TRY(set(&n, "seed", f->seed));
    NEB_TRY(set(&n, "mtu", f->mtu));
    NEB_TRY(set(&n, "overhead", f->overhead));
    NEB_TRY(set(&n, "memory", f->memory));
    NEB_TRY(set(&n, "offload", f->offload));
    cfg->seed = (uint64_t)n.seed, cfg->mtu = (int)n.mtu, cfg->overhead = (int)n.overhead;
    cfg->memory = n.memory, cfg->offload = n.offload;
    for (unsigned i = 0; i < f->ports_count; i++) {
        NEB_TRY(set(&n, "port", f->ports[i]));
        cfg->port[cfg->ports++] = (uint16_t)n.port;
    }
    return f->mode ? neb__lab_mode_parse(f->mode, &cfg->mode) : NEB_OK;
}

static neb_status apply(const struct file *f, struct neb_lab_config *cfg)
{
    NEB_TRY(apply_numbers(f, cfg));
    for (unsigned i = 0; i < f->sites_count; i++) NEB_TRY(apply_site(&f->sites[i], &cfg->site[i]));
    for (unsigned i = 0; i < f->lines_count; i++) NEB_TRY(apply_exception(cfg, &f->lines[i]));
    for (unsigned i = 0; i < f->schedule_count; i++) NEB_TRY(apply_event(cfg, &f->schedule[i]));
    return neb__lab_config_check(cfg);
}

static neb_status convert(const struct file *f, struct neb_lab_config *out)
{
    const char *names[NEB_LAB_SITES];
    struct neb_lab_line line = {0};
    for (unsigned i = 0; i < f->sites_count; i++) names[i] = f->sites[i].name;
    if (f->line) NEB_TRY(apply_line(f->line, &line));
    NEB_TRY(neb__lab_config_init((int)f->sites_count, names, &line, out));
    neb_status status = apply(f, out);
    if (status != NEB_OK) neb__lab_config_free(out);
    return status;
}

neb_status neb__lab_config_parse(const char *name, const void *text, size_t n, struct neb_lab_config *out)
{
    char why[256] = "";
    const cyaml_config_t cfg = {.log_fn = yaml_log,
                                .log_ctx = why,
                                .log_level = CYAML_LOG_ERROR,
                                .mem_fn = yaml_memory,
                                .flags = CYAML_CFG_NO_ALIAS};
    struct file *f = NULL;
    neb_status status = NEB_OK;
    cyaml_err_t e = n ? cyaml_load_data(text, n, &cfg, &file_value, (cyaml_data_t **)&f, NULL) : CYAML_OK;
    if (e == CYAML_ERR_OOM)
        status = neb__fail(NEB_ERR_NOMEM, "out of memory for %s", name);
    else if (e != CYAML_OK)
        status = neb__fail(NEB_ERR_CONFIG, "%s: %s", name, why[0] ? why : cyaml_strerror(e));
    else if (!f)
        status = neb__fail(NEB_ERR_CONFIG, "%s: the file is empty", name);
    if (status == NEB_OK && (status = convert(f, out)) != NEB_OK) neb__error_prefix("%s", name);
    cyaml_free(&cfg, &file_value, f, 0);
    return status;
}

neb_status neb__lab_config_load(const char *path, struct neb_lab_config *out)
{
    struct neb_buf text;
    neb__buf_init(&text, 1 << 20);
    neb_status status = neb__file_read(path, &text);
    if (status == NEB_OK) status = neb__lab_config_parse(path, text.data, text.len, out);
    neb__buf_free(&text);
    return status;
}
