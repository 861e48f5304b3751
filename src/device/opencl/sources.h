/* sources.h: the text of kernels/NAME.cl, in the order of enum neb_ocl_module; common.cl is the last. The build puts
 * it into a C file (cmake/opencl_sources.cmake). */
#ifndef NEB_OCL_SOURCES_H
#define NEB_OCL_SOURCES_H

#include <stddef.h>

struct neb_ocl_source {
    const char *name, *text;
    size_t size;
};
extern const struct neb_ocl_source neb__ocl_sources[];

#endif
