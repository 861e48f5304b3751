/* inversion_plot.h (of bench inversion): its figures as a picture. */
#ifndef NEB_BENCH_INVERSION_PLOT_H
#define NEB_BENCH_INVERSION_PLOT_H

#include "base/status.h"

struct neb_inversion_bar {
    const char *arm, *what;
    double value, chance; /* % */
};
/* Writes an SVG file. NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__inversion_plot(const char *path, const struct neb_inversion_bar *bar, int bars,
                               double epsilon);

#endif
