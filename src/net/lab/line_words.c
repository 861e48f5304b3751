/* line_words.c: parses lines and schedules as a person types them, in a file or on a command line.
 *
 *     line       100mbit,50ms,0.1%                      rate, round-trip time, loss
 *     schedule   10s+5s down; 20s a>b rate=10mbit       AT[+FOR][/EVERY] [lines] changes …
 */
#include "net/lab/lab.h"
#include "base/mem.h"
#include "base/opts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct neb_opt neb__lab_line_options[] = {
    NEB_OPT(struct neb_lab_line, rate, NEB_OPT_RATE, "0", NULL, "0: unlimited", NEB_OPT_ZERO_OR(1e3, 1e12)),
    NEB_OPT(struct neb_lab_line, delay, NEB_OPT_TIME, "0", NULL, "one way", NEB_OPT_RANGE(0, 60)),
    NEB_OPT(struct neb_lab_line, jitter, NEB_OPT_TIME, "0", NULL, "deviation of the delay",
            NEB_OPT_RANGE(0, 60)),
    NEB_OPT(struct neb_lab_line, loss, NEB_OPT_SHARE, "0", NULL, "each packet by itself"),
    NEB_OPT(struct neb_lab_line, burst_loss, NEB_OPT_SHARE, "0", NULL, "share lost in bursts"),
    NEB_OPT(struct neb_lab_line, burst_length, NEB_OPT_REAL, "0", "packets", "mean length of a burst",
            NEB_OPT_ZERO_OR(1, 1e6)),
    NEB_OPT(struct neb_lab_line, reorder, NEB_OPT_SHARE, "0", NULL, "share held back"),
    NEB_OPT(struct neb_lab_line, reorder_delay, NEB_OPT_TIME, "0", NULL, "for how long",
            NEB_OPT_RANGE(0, 60)),
    NEB_OPT(struct neb_lab_line, corrupt, NEB_OPT_SHARE, "0", NULL, "share with a bit flipped"),
    NEB_OPT(struct neb_lab_line, queue, NEB_OPT_BYTES, "0", NULL, "0: one round trip",
            NEB_OPT_ZERO_OR(1500, HUGE_VAL)),
    NEB_OPT(struct neb_lab_line, burst, NEB_OPT_BYTES, "0", NULL, "token bucket"),
    NEB_OPT(struct neb_lab_line, down, NEB_OPT_BOOL, "no", NULL, "nothing gets through"),
    NEB_OPT_END,
};

/* Half of it each way, so twice the range of a delay. */
static const struct neb_opt round_trip[] = {
    NEB_OPT_VALUE("rtt", NEB_OPT_TIME, "0", NULL, "there and back", NEB_OPT_RANGE(0, 120)),
    NEB_OPT_END,
};

neb_status neb__lab_line_set(struct neb_lab_line *line, const char *key, const char *value)
{
    double rtt;
    if (strcmp(key, "rtt")) return neb__opts_set(neb__lab_line_options, line, key, value);
    NEB_TRY(neb__opts_set(round_trip, &rtt, key, value));
    line->delay = rtt / 2;
    return NEB_OK;
}

neb_status neb__lab_line_parse(const char *text, struct neb_lab_line *out)
{
    static const char *const keys[] = {"rate", "rtt", "loss"};
    struct neb_lab_line line = {0};
    char copy[128], *rest = copy, *part;
    if (strlen(text) >= sizeof copy)
        return neb__fail(NEB_ERR_CONFIG, "'%.32s…' is too long for a line", text);
    snprintf(copy, sizeof copy, "%s", text);
    for (int i = 0; (part = strsep(&rest, ",")); i++) {
        if (i == 3)
            return neb__fail(NEB_ERR_CONFIG, "'%s' has more parts than rate, round-trip time and loss", text);
        NEB_TRY(neb__lab_line_set(&line, keys[i], part));
    }
    *out = line;
    return NEB_OK;
}

int neb__lab_config_site(const struct neb_lab_config *cfg, const char *name)
{
    for (int i = 0; i < cfg->sites; i++)
        if (!strcmp(cfg->site[i].name, name)) return i;
    return -1;
}

neb_status neb__lab_event_set(struct neb_lab_event *e, const char *key, const char *value)
{
    static const char *const keys[] = {"rate", "delay", "jitter", "loss", "down"};
    const char *field = strcmp(key, "rtt") ? key : "delay";
    for (uint32_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(field, keys[i])) {
            NEB_TRY(neb__lab_line_set(&e->line, key, value));
            e->set |= 1u << i;
            return NEB_OK;
        }
    return neb__fail(NEB_ERR_CONFIG,
                     "a schedule can change rate, delay, rtt, jitter, loss and down, not '%s'", key);
}

neb_status neb__lab_event_add(struct neb_lab_config *cfg, const struct neb_lab_event *e)
{
    if (cfg->events >= 10000) return neb__fail(NEB_ERR_LIMIT, "a schedule has at most 10000 events");
    struct neb_lab_event *grown = neb__realloc(cfg->event, (size_t)(cfg->events + 1) * sizeof *grown);
    if (!grown) return neb__fail(NEB_ERR_NOMEM, "out of memory for a schedule");
    cfg->event = grown;
    cfg->event[cfg->events++] = *e;
    return NEB_OK;
}

/* ---- a schedule in one line ---------------------------------------------------------------------------- */

struct times {
    double at, lasts, every;
};

static const struct neb_opt time_fields[] = {
    NEB_OPT(struct times, at, NEB_OPT_TIME, "0", NULL, "", NEB_OPT_RANGE(0, 1e8)),
    NEB_OPT(struct times, lasts, NEB_OPT_TIME, "0", NULL, "", NEB_OPT_RANGE(0, 1e8)),
    NEB_OPT(struct times, every, NEB_OPT_TIME, "0", NULL, "", NEB_OPT_RANGE(0, 1e8)),
    NEB_OPT_END,
};

/* AT[+FOR][/EVERY] */
static neb_status parse_times(char *word, struct neb_lab_event *e)
{
    struct times t = {0};
    char *every = strchr(word, '/'), *lasts;
    if (every) *every++ = 0;
    if ((lasts = strchr(word, '+'))) *lasts++ = 0;
    NEB_TRY(neb__opts_set(time_fields, &t, "at", word));
    if (lasts) NEB_TRY(neb__opts_set(time_fields, &t, "lasts", lasts));
    if (every) NEB_TRY(neb__opts_set(time_fields, &t, "every", every));
    e->at = t.at, e->lasts = t.lasts, e->every = t.every;
    return NEB_OK;
}

static neb_status find_site(const struct neb_lab_config *cfg, const char *name, int *out)
{
    *out = neb__lab_config_site(cfg, name);
    return *out >= 0 ? NEB_OK : neb__fail(NEB_ERR_CONFIG, "schedule: no site '%s'", name);
}

/* a>b, a<>b or a */
static neb_status parse_where(const struct neb_lab_config *cfg, char *word, struct neb_lab_event *e)
{
    char *arrow = strchr(word, '>');
    e->both = !arrow;
    if (!arrow) return find_site(cfg, word, &e->from);
    *arrow = 0;
    if (arrow > word && arrow[-1] == '<') arrow[-1] = 0, e->both = true;
    NEB_TRY(find_site(cfg, word, &e->from));
    return find_site(cfg, arrow + 1, &e->to);
}

static neb_status parse_event(struct neb_lab_config *cfg, char *text)
{
    struct neb_lab_event e = {.from = -1, .to = -1};
    char *save = NULL, *word = strtok_r(text, " ", &save);
    if (!word) return NEB_OK;
    NEB_TRY(parse_times(word, &e));
    while ((word = strtok_r(NULL, " ", &save))) {
        char *value = strchr(word, '=');
        if (value) *value++ = 0;
        if (value)
            NEB_TRY(neb__lab_event_set(&e, word, value));
        else if (!strcmp(word, "down"))
            NEB_TRY(neb__lab_event_set(&e, "down", "yes"));
        else if (!strcmp(word, "up"))
            NEB_TRY(neb__lab_event_set(&e, "down", "no"));
        else
            NEB_TRY(parse_where(cfg, word, &e));
    }
    return neb__lab_event_add(cfg, &e);
}

neb_status neb__lab_schedule_parse(const char *text, struct neb_lab_config *cfg)
{
    char *copy = neb__strdup(text), *rest = copy, *part;
    if (!copy) return neb__fail(NEB_ERR_NOMEM, "out of memory for a schedule");
    neb_status status = NEB_OK;
    while (status == NEB_OK && (part = strsep(&rest, ";"))) status = parse_event(cfg, part);
    neb__free(copy);
    return status;
}
