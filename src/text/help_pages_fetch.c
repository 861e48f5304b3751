/* help_pages_fetch.c: gets the help pages of a language from its package. */
#include "text/help_pages.h"
#include "text/debian_package.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* en is en-us in the package's name and en-US in its folders; zh is zh-cn and zh-CN. */
static void names(const char *lang, char package[64], char folder[32])
{
    const char *full = lang;
    if (!strcmp(lang, "en")) full = "en-us";
    if (!strcmp(lang, "zh")) full = "zh-cn";
    snprintf(package, 64, "libreoffice-help-%.31s", full);
    snprintf(folder, 32, "%s", full);
    char *dash = strchr(folder, '-');
    for (char *c = dash; c && *c; c++) *c = (char)toupper((unsigned char)*c);
}

neb_status neb__help_pages(const char *packages, const char *lang, char *out)
{
    char package[64], folder[32];
    struct stat st;
    names(lang, package, folder);
    NEB_TRY(neb__debian_package(packages, package));
    if (snprintf(out, PATH_MAX, "%s/%s/usr/share/libreoffice/help/%s/text", packages, package, folder) >=
        PATH_MAX)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", packages);
    return !stat(out, &st) && S_ISDIR(st.st_mode)
               ? NEB_OK
               : neb__fail(NEB_ERR_CORRUPT, "%s/%s holds no help pages", packages, package);
}
