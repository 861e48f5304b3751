/* inversion_plot.c: a bar for each arm of bench inversion, and a mark where chance alone would end. */
#include "inversion_plot.h"
#include "base/buf.h"
#include "base/file.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

enum { LEFT = 250, WIDE = 330, TOP = 48, ROW = 44, BAR = 28 };

static neb_status put(struct neb_buf *b, const char *format, ...)
{
    char line[600];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0 || n >= (int)sizeof line)
        return neb__fail(NEB_ERR_INTERNAL, "a line of the picture is too long");
    return neb__buf_append(b, line, (size_t)n);
}

static double at(double percent)
{
    return LEFT + WIDE * percent / 100;
}

static neb_status put_bar(struct neb_buf *b, const struct neb_inversion_bar *bar, int row)
{
    const int y = TOP + ROW * row;
    const bool near = bar->value < bar->chance + 2;
    NEB_TRY(put(b, "  <rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", LEFT, y,
                at(bar->value) - LEFT, BAR, near ? "#3a6fb5" : "#b5483a"));
    NEB_TRY(put(b, "  <text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 10, y + 12, bar->arm));
    NEB_TRY(put(b, "  <text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#555\" font-size=\"12\">%s</text>\n",
                LEFT - 10, y + 27, bar->what));
    NEB_TRY(
        put(b, "  <text x=\"%d\" y=\"%d\" fill=\"white\">%.1f %%</text>\n", LEFT + 8, y + 19, bar->value));
    return put(b,
               "  <line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"black\" stroke-width=\"2\"/>\n",
               at(bar->chance), y - 4, at(bar->chance), y + BAR + 4);
}

static neb_status put_all(struct neb_buf *b, const struct neb_inversion_bar *bar, int bars, double epsilon)
{
    const int bottom = TOP + ROW * bars, high = bottom + 44;
    NEB_TRY(
        put(b,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"620\" height=\"%d\" viewBox=\"0 0 620 %d\" "
            "font-family=\"sans-serif\" font-size=\"13\">\n",
            high, high));
    NEB_TRY(put(b, "  <!-- made by nebula-i bench inversion --plot (docs/privacy.md, An attack) -->\n"));
    NEB_TRY(put(b, "  <rect width=\"620\" height=\"%d\" fill=\"white\"/>\n", high));
    NEB_TRY(put(b,
                "  <text x=\"16\" y=\"26\" font-size=\"14\">What an attacker reads from updates of one step "
                "(unit: sample with ε = %g); black: chance</text>\n",
                epsilon));
    for (int percent = 0; percent <= 100; percent += 25)
        NEB_TRY(put(b,
                    "  <line x1=\"%.0f\" y1=\"%d\" x2=\"%.0f\" y2=\"%d\" stroke=\"#ccc\"/><text x=\"%.0f\" "
                    "y=\"%d\" text-anchor=\"middle\" fill=\"#555\">%d %%</text>\n",
                    at(percent), TOP - 8, at(percent), bottom, at(percent), bottom + 20, percent));
    for (int i = 0; i < bars; i++) NEB_TRY(put_bar(b, &bar[i], i));
    return put(b, "</svg>\n");
}

neb_status neb__inversion_plot(const char *path, const struct neb_inversion_bar *bar, int bars,
                               double epsilon)
{
    struct neb_buf b;
    neb__buf_init(&b, 64 << 10);
    neb_status status = put_all(&b, bar, bars, epsilon);
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, 0644);
    neb__buf_free(&b);
    return status;
}
