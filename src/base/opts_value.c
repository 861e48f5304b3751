/* opts_value.c: one value of an option: read from text, compared with its choices or its range, and the words for these. */
#include "base/opts_value.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct suffix {
    const char *text;
    double factor;
};

static const struct suffix byte_suffixes[] = {
    {"", 1},         {"b", 1},    {"k", 1e3},       {"kb", 1e3},     {"kib", 1024},
    {"m", 1e6},      {"mb", 1e6}, {"mib", 1048576}, {"g", 1e9},      {"gb", 1e9},
    {"gib", 0x1p30}, {"t", 1e12}, {"tb", 1e12},     {"tib", 0x1p40}, {NULL, 0}};
static const struct suffix time_suffixes[] = {{"", 1},   {"s", 1},    {"ms", 1e-3}, {"us", 1e-6},
                                              {"m", 60}, {"min", 60}, {"h", 3600},  {NULL, 0}};
static const struct suffix rate_suffixes[] = {{"", 1},       {"bit", 1},    {"kbit", 1e3},
                                              {"mbit", 1e6}, {"gbit", 1e9}, {NULL, 0}};
static const struct suffix share_suffixes[] = {{"", 1}, {"%", 1e-2}, {NULL, 0}};
static const struct suffix no_suffixes[] = {{"", 1}, {NULL, 0}};

static bool parse_number(const char *s, const struct suffix *suffixes, double *out)
{
    char *end;
    errno = 0;
    double x = strtod(s, &end);
    if (end == s || errno == ERANGE || !isfinite(x)) return false;
    while (*end == ' ') end++;
    for (; suffixes->text; suffixes++)
        if (!strcasecmp(end, suffixes->text)) {
            *out = x * suffixes->factor;
            return isfinite(*out);
        }
    return false;
}

static bool parse_bool(const char *s, bool *out)
{
    static const char *const words[] = {"no", "yes", "false", "true", "0", "1", "off", "on"};
    for (int i = 0; i < 8; i++)
        if (!strcasecmp(s, words[i])) {
            *out = i & 1;
            return true;
        }
    return false;
}

static bool parse_int(const char *s, int64_t *out)
{
    char *end;
    errno = 0;
    long long x = strtoll(s, &end, 10);
    if (end == s || *end || errno == ERANGE) return false;
    *out = x;
    return true;
}

static bool parse_bytes(const char *s, int64_t *out)
{
    double x;
    if (!parse_number(s, byte_suffixes, &x) || x < 0 || x > 0x1p62) return false;
    *out = (int64_t)x;
    return true;
}

static bool parse_share(const char *s, double *out)
{
    double x;
    if (!parse_number(s, share_suffixes, &x) || x < 0 || x > 1) return false;
    *out = x;
    return true;
}

bool neb__opt_is_whole(const struct neb_opt *o)
{
    return o->type == NEB_OPT_INT || o->type == NEB_OPT_BYTES;
}

static bool is_auto(const struct neb_opt *o, const union neb_opt_value *v)
{
    if (!o->range || !o->range->or_auto) return false;
    return neb__opt_is_whole(o) ? v->whole == NEB_OPT_AUTO : v->real == (double)NEB_OPT_AUTO;
}

static bool parse_auto(const struct neb_opt *o, const char *text, union neb_opt_value *out)
{
    if (!o->range || !o->range->or_auto || strcmp(text, "auto")) return false;
    if (neb__opt_is_whole(o))
        out->whole = NEB_OPT_AUTO;
    else
        out->real = NEB_OPT_AUTO;
    return true;
}

static bool parse_value(const struct neb_opt *o, const char *text, union neb_opt_value *out)
{
    switch (o->type) {
    case NEB_OPT_BOOL: return parse_bool(text, &out->truth);
    case NEB_OPT_INT: return parse_int(text, &out->whole);
    case NEB_OPT_REAL: return parse_number(text, no_suffixes, &out->real);
    case NEB_OPT_BYTES: return parse_bytes(text, &out->whole);
    case NEB_OPT_TIME: return parse_number(text, time_suffixes, &out->real);
    case NEB_OPT_RATE: return parse_number(text, rate_suffixes, &out->real);
    case NEB_OPT_SHARE: return parse_share(text, &out->real);
    case NEB_OPT_TEXT:
    case NEB_OPT_NONE: break;
    }
    return false;
}

/* The number that stands for `auto` is not a way to write it. */
bool neb__opt_parse(const struct neb_opt *o, const char *text, union neb_opt_value *out)
{
    if (parse_auto(o, text, out)) return true;
    return parse_value(o, text, out) && !is_auto(o, out);
}

void neb__opt_load(const struct neb_opt *o, const void *field, union neb_opt_value *out)
{
    *out = (union neb_opt_value){.whole = 0};
    if (o->type == NEB_OPT_BOOL)
        out->truth = *(const bool *)field;
    else if (neb__opt_is_whole(o))
        out->whole = *(const int64_t *)field;
    else
        out->real = *(const double *)field;
}

void neb__opt_store(const struct neb_opt *o, const union neb_opt_value *v, void *field)
{
    if (o->type == NEB_OPT_BOOL)
        *(bool *)field = v->truth;
    else if (neb__opt_is_whole(o))
        *(int64_t *)field = v->whole;
    else
        *(double *)field = v->real;
}

/* ---- choices and ranges ---------------------------------------------------------------------------------------- */

int neb__opt_word_at(const struct neb_opt *o, const char *word)
{
    for (int i = 0; word && o->choices && o->choices[i]; i++)
        if (!strcmp(o->choices[i], word)) return i;
    return -1;
}

int neb__opt_number_at(const struct neb_opt *o, int64_t x)
{
    for (int i = 0; o->choices && o->choices[i]; i++)
        if (strtoll(o->choices[i], NULL, 10) == x) return i;
    return -1;
}

bool neb__opt_word_fits(const struct neb_opt *o, const char *word)
{
    return !o->choices || neb__opt_word_at(o, word) >= 0;
}

/* False for a NaN. */
bool neb__opt_number_fits(const struct neb_opt *o, const union neb_opt_value *v)
{
    const struct neb_opt_range *r = o->range;
    if (o->choices) return neb__opt_number_at(o, v->whole) >= 0;
    if (o->type == NEB_OPT_BOOL) return true;
    double x = neb__opt_is_whole(o) ? (double)v->whole : v->real;
    if (!r && o->type == NEB_OPT_SHARE) return x >= 0 && x <= 1;
    if (!r) return isfinite(x) && (x >= 0 || o->type != NEB_OPT_BYTES);
    if (r->or_zero && x == 0) return true;
    if (is_auto(o, v)) return true;
    bool low = r->low_open ? x > r->low : x >= r->low, high = r->high_open ? x < r->high : x <= r->high;
    return low && high;
}

/* The largest unit that leaves a whole number. */
static void write_with_unit(double x, const struct suffix *units, char *out, size_t size)
{
    while (units[1].text && fmod(x, units->factor) != 0) units++;
    snprintf(out, size, "%.15g%s", x / units->factor, units->text);
}

/* 1e12, not 1000000000000 or 1e+12; 16777216 in full. */
static void write_plain(double x, char *out, size_t size)
{
    char *plus;
    snprintf(out, size, "%.0e", x);
    if (fabs(x) < 1e6 || strtod(out, NULL) != x) snprintf(out, size, "%.10g", x);
    if (!(plus = strstr(out, "e+"))) return;
    const char *digits = plus + 2;
    while (*digits == '0') digits++;
    memmove(plus + 1, digits, strlen(digits) + 1);
}

static void write_bound(const struct neb_opt *o, double x, char *out, size_t size)
{
    static const struct suffix sizes[] = {
        {"GiB", 0x1p30}, {"MiB", 1048576}, {"KiB", 1024}, {" bytes", 1}, {NULL, 0}};
    static const struct suffix rates[] = {{"gbit", 1e9}, {"mbit", 1e6}, {"kbit", 1e3}, {"bit", 1}, {NULL, 0}};
    if (o->type == NEB_OPT_BYTES && x > 0)
        write_with_unit(x, sizes, out, size);
    else if (o->type == NEB_OPT_RATE && x > 0)
        write_with_unit(x, rates, out, size);
    else
        write_plain(x, out, size);
    if (o->type == NEB_OPT_TIME) snprintf(out + strlen(out), size - strlen(out), " s");
}

/* "from 1 to 8", "above 0 and at most 1", "at least 1" */
void neb__opt_write_range(const struct neb_opt *o, char *out, size_t size)
{
    const struct neb_opt_range *r = o->range;
    char low[40], high[40];
    write_bound(o, r->low, low, sizeof low);
    write_bound(o, r->high, high, sizeof high);
    if (isinf(r->high))
        snprintf(out, size, "%s %s", r->low_open ? "above" : "at least", low);
    else if (r->low_open)
        snprintf(out, size, "above %s and %s %s", low, r->high_open ? "below" : "at most", high);
    else if (r->high_open)
        snprintf(out, size, "at least %s and below %s", low, high);
    else
        snprintf(out, size, "from %s to %s", low, high);
}

/* "a, b or c" */
void neb__opt_write_choices(const struct neb_opt *o, char *out, size_t size)
{
    size_t at = 0;
    for (int i = 0; o->choices[i] && at < size; i++) {
        const char *between = o->choices[i + 1] ? ", " : " or ";
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? between : "", o->choices[i]);
    }
}

static const char *const any_value[] = {
    [NEB_OPT_BOOL] = "yes or no",
    [NEB_OPT_INT] = "a whole number",
    [NEB_OPT_REAL] = "a finite number",
    [NEB_OPT_TEXT] = "a text",
    [NEB_OPT_BYTES] = "a size such as 64k, 16MiB or 1.5G",
    [NEB_OPT_TIME] = "a time such as 250ms, 5s, 2m or 1h",
    [NEB_OPT_RATE] = "a rate such as 500kbit, 10mbit or 1gbit",
    [NEB_OPT_SHARE] = "a share from 0 to 1, such as 0.001 or 0.1%",
};
static const char *const noun[] = {
    [NEB_OPT_INT] = "a whole number", [NEB_OPT_REAL] = "a number", [NEB_OPT_BYTES] = "a size",
    [NEB_OPT_TIME] = "a time",        [NEB_OPT_RATE] = "a rate",   [NEB_OPT_SHARE] = "a share",
};

const char *neb__opt_or(const struct neb_opt *o)
{
    if (o->range->or_auto) return ", or auto";
    return o->range->or_zero ? ", or 0" : "";
}

void neb__opt_write_allowed(const struct neb_opt *o, char out[NEB_OPT_WHY])
{
    char range[120];
    if (o->choices) {
        neb__opt_write_choices(o, out, NEB_OPT_WHY);
    } else if (o->range) {
        neb__opt_write_range(o, range, sizeof range);
        snprintf(out, NEB_OPT_WHY, "%s %s%s", noun[o->type], range, neb__opt_or(o));
    } else {
        snprintf(out, NEB_OPT_WHY, "%s", any_value[o->type]);
    }
}
