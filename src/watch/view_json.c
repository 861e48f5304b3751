/* view_json.c: a view as JSON (docs/watch.md lists the keys). The sites have every key of docs/status.md, and
 * more that are worked out: health, shown, silent, here, root_differs, privacy where there is a budget.
 *
 * The lines of a full view grow with the square of the sites. Beyond LINES_SHOWN only those are told that have
 * news: the leader's, and those that are down or do not answer. */
#include "watch/view.h"

#include <jansson.h>
#include <math.h>

enum { LINES_SHOWN = 512 };

static bool is_told(const struct neb_view *v, const struct neb_view_line *l)
{
    return v->n_lines <= LINES_SHOWN || v->site[l->from].st.leader || !l->up ||
           l->silent_s > NEB_STATUS_SILENT_S;
}

static json_t *number(double x)
{
    return json_real(isfinite(x) ? x : 0);
}

static json_t *privacy_object(const struct neb_site_status *s)
{
    return json_pack("{s:o, s:o, s:o}", "epsilon_spent", number(s->epsilon_spent), "epsilon_limit",
                     number(s->epsilon_limit), "delta", number(s->epsilon_delta));
}

static json_t *site_object(const struct neb_view_site *s)
{
    json_t *o = neb__status_object(&s->st, NEB_STATUS_OLD_OUT);
    if (!o) return NULL;
    json_object_set_new(o, "health", json_string(neb__health_name(s->health)));
    json_object_set_new(o, "shown", neb__status_text_value(s->shown));
    json_object_set_new(o, "silent", number(round(10 * s->silent) / 10));
    json_object_set_new(o, "here", json_boolean(*s->folder));
    json_object_set_new(o, "root_differs", json_boolean(s->root_differs));
    if (s->st.epsilon_spent > 0 || s->st.epsilon_limit > 0)
        json_object_set_new(o, "privacy", privacy_object(&s->st));
    return o;
}

static json_t *line_object(const struct neb_view *v, const struct neb_view_line *l)
{
    return json_pack("{s:o, s:o, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:o}", "from",
                     neb__status_text_value(v->site[l->from].st.name), "to",
                     neb__status_text_value(v->site[l->to].st.name), "up", l->up, "relayed", l->relayed,
                     "rtt_ms", number(l->rtt_ms), "goodput_bps", number(l->goodput_bps), "goodput_in_bps",
                     number(l->goodput_in_bps), "loss", number(l->loss), "silent_s", number(l->silent_s),
                     "out_bps", number(round(l->out_bps)), "in_bps", number(round(l->in_bps)), "sent",
                     (json_int_t)l->sent, "received", (json_int_t)l->received, "via",
                     neb__status_text_value(l->via));
}

static json_t *run_object(const struct neb_view *v)
{
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:b, s:i, s:b, s:o, s:o}", "tokens",
                     (json_int_t)v->tokens, "target", (json_int_t)v->target, "tokens_per_second",
                     number(v->tokens_per_second), "loss", number(v->loss), "seconds_left",
                     number(v->seconds_left), "progress", number(v->progress), "record",
                     (json_int_t)v->record, "roots_agree", v->roots_agree, "roots", v->roots, "ended",
                     v->ended, "sent", number(v->sent), "fp32", number(v->fp32));
}

json_t *neb__view_json(const struct neb_view *v)
{
    json_t *sites = json_array(), *lines = json_array();
    for (int i = 0; i < v->n; i++) json_array_append_new(sites, site_object(&v->site[i]));
    for (int i = 0; i < v->n_lines; i++)
        if (is_told(v, &v->line[i])) json_array_append_new(lines, line_object(v, &v->line[i]));
    json_t *all = json_pack("{s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "version", 2, "written",
                            (json_int_t)v->written, "job", neb__status_text_value(v->job), "strategy",
                            neb__status_text_value(v->strategy), "self", neb__status_text_value(v->self),
                            "run", run_object(v), "sites", sites, "lines", lines);
    if (all && *v->log.hash)
        json_object_set_new(all, "log",
                            json_pack("{s:o, s:I, s:s, s:I}", "run", neb__status_text_value(v->log.run),
                                      "record", (json_int_t)v->log.record, "hash", v->log.hash, "epoch",
                                      (json_int_t)v->log.epoch));
    return all;
}
