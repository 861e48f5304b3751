/* config.c: a laboratory's description as a struct: its defaults and the limits of its fields. */
#include "net/lab/lab.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static void give_name(struct neb_lab_site *s, int i, const char *name)
{
    if (name)
        snprintf(s->name, sizeof s->name, "%s", name);
    else if (i < 26)
        snprintf(s->name, sizeof s->name, "%c", 'a' + i);
    else
        snprintf(s->name, sizeof s->name, "s%d", i);
}

neb_status neb__lab_config_init(int sites, const char *const *names, const struct neb_lab_line *line,
                                struct neb_lab_config *out)
{
    if (sites < 2 || sites > NEB_LAB_SITES)
        return neb__fail(NEB_ERR_CONFIG, "a laboratory has 2 to %d sites, not %d", NEB_LAB_SITES, sites);
    struct neb_lab_config c = {
        .sites = sites, .mtu = 1500, .seed = 1, .memory = INT64_C(256) << 20, .offload = true};
    c.site = NEB_NEW_ARRAY(struct neb_lab_site, (size_t)sites);
    c.line = NEB_NEW_ARRAY(struct neb_lab_line, (size_t)sites * (size_t)sites);
    if (!c.site || !c.line) {
        neb__lab_config_free(&c);
        return neb__fail(NEB_ERR_NOMEM, "out of memory for %d sites", sites);
    }
    for (int i = 0; i < sites; i++) {
        give_name(&c.site[i], i, names ? names[i] : NULL);
        for (int j = 0; j < sites; j++)
            if (i != j) c.line[i * sites + j] = *line;
    }
    *out = c;
    return NEB_OK;
}

void neb__lab_config_free(struct neb_lab_config *cfg)
{
    for (int i = 0; cfg->site && i < cfg->sites; i++) neb__free(cfg->site[i].command);
    neb__free(cfg->site);
    neb__free(cfg->line);
    neb__free(cfg->event);
    *cfg = (struct neb_lab_config){0};
}

const char *neb__lab_mode_name(enum neb_lab_mode mode)
{
    static const char *const names[] = {"auto", "namespaces", "user", "relay"};
    return names[mode];
}

neb_status neb__lab_mode_parse(const char *text, enum neb_lab_mode *out)
{
    for (enum neb_lab_mode m = NEB_LAB_AUTO; m <= NEB_LAB_RELAY; m++)
        if (!strcmp(text, neb__lab_mode_name(m))) {
            *out = m;
            return NEB_OK;
        }
    return neb__fail(NEB_ERR_CONFIG, "mode: '%s' is not auto, namespaces, user or relay", text);
}

/* ---- limits -------------------------------------------------------------------------------------------- */

static bool within(double x, double low, double high)
{
    return x >= low && x <= high; /* a NaN gives false */
}

neb_status neb__lab_line_check(const struct neb_lab_line *l, const char *from, const char *to)
{
    neb_status status = neb__opts_check(neb__lab_line_options, l);
    if (status != NEB_OK) neb__error_prefix("line %s to %s", from, to);
    return status;
}

static neb_status check_site(const struct neb_lab_config *cfg, int i)
{
    const struct neb_lab_site *s = &cfg->site[i];
    if (!s->name[0]) return neb__fail(NEB_ERR_CONFIG, "site %d has no name", i + 1);
    for (const char *c = s->name; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-_.", *c))
            return neb__fail(NEB_ERR_CONFIG, "site '%s': a name has letters, digits, - _ and . only",
                             s->name);
    for (int j = 0; j < i; j++)
        if (!strcmp(cfg->site[j].name, s->name))
            return neb__fail(NEB_ERR_CONFIG, "two sites are named '%s'", s->name);
    if ((s->up != 0 && !within(s->up, 1e3, 1e12)) || (s->down != 0 && !within(s->down, 1e3, 1e12)) ||
        s->up_queue < 0 || s->down_queue < 0)
        return neb__fail(NEB_ERR_CONFIG, "site '%s': up and down must be 0 (no limit) or 1kbit to 1000gbit",
                         s->name);
    return NEB_OK;
}

static neb_status check_event(const struct neb_lab_config *cfg, int i)
{
    const struct neb_lab_event *e = &cfg->event[i];
    char where[32];
    snprintf(where, sizeof where, "(event %d)", i + 1);
    if (!within(e->at, 0, 1e8) || !within(e->lasts, 0, 1e8) || !within(e->every, 0, 1e8))
        return neb__fail(NEB_ERR_CONFIG, "event %d: times must not be negative", i + 1);
    if (e->every > 0 && !(e->lasts > 0 && e->lasts <= e->every && e->every >= 1e-3))
        return neb__fail(NEB_ERR_CONFIG,
                         "event %d: `every` must be at least 1 ms and needs a `for` that is not longer",
                         i + 1);
    if (e->from >= cfg->sites || e->to >= cfg->sites || !e->set)
        return neb__fail(NEB_ERR_CONFIG, "event %d: %s", i + 1,
                         e->set ? "no such site"
                                : "it changes nothing; set rate, rtt, delay, jitter, loss or down");
    return neb__lab_line_check(&e->line, "of the schedule", where);
}

neb_status neb__lab_config_check(const struct neb_lab_config *cfg)
{
    int n = cfg->sites;
    if (n < 2 || n > NEB_LAB_SITES)
        return neb__fail(NEB_ERR_CONFIG, "a laboratory has 2 to %d sites, not %d", NEB_LAB_SITES, n);
    for (int i = 0; i < n; i++) NEB_TRY(check_site(cfg, i));
    for (int i = 0; i < n * n; i++)
        if (i / n != i % n)
            NEB_TRY(neb__lab_line_check(&cfg->line[i], cfg->site[i / n].name, cfg->site[i % n].name));
    for (int i = 0; i < cfg->events; i++) NEB_TRY(check_event(cfg, i));
    if (cfg->mtu < 576 || cfg->mtu > 65535)
        return neb__fail(NEB_ERR_CONFIG, "mtu must be 576 to 65535, not %d", cfg->mtu);
    if (cfg->overhead < 0 || cfg->overhead > 1000)
        return neb__fail(NEB_ERR_CONFIG, "overhead must be 0 to 1000 bytes, not %d", cfg->overhead);
    if (cfg->memory < 1 << 20) return neb__fail(NEB_ERR_CONFIG, "memory must be at least 1 MiB");
    if (cfg->ports < 0 || cfg->ports > NEB_LAB_PORTS)
        return neb__fail(NEB_ERR_CONFIG, "ports: at most %d are allowed", NEB_LAB_PORTS);
    return NEB_OK;
}
