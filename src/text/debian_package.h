/* debian_package.h: the files of one Debian package, fetched by apt-get and unpacked.
 *
 * A package file is unpacked only if its SHA-256 is the one in apt's index, whose signature apt has checked. So a
 * file that lies in the folder already is used if it is the right one, and fetched anew if it is not. */
#ifndef NEB_TEXT_DEBIAN_PACKAGE_H
#define NEB_TEXT_DEBIAN_PACKAGE_H

#include "base/status.h"

/* Makes `folder`/`name`, the package unpacked, unless it is there. A machine whose apt has no index, or an old one,
 * gets an index in `folder`/apt; this needs no root.
 *   NEB_ERR_CONFIG: no apt-get or dpkg-deb, or the package cannot be fetched (the message says what to do)
 *   NEB_ERR_CORRUPT: the fetched file is not the one of the index, or does not unpack
 *   NEB_ERR_IO, NEB_ERR_NOMEM, NEB_ERR_INVALID (path too long) */
neb_status neb__debian_package(const char *folder, const char *name);

/* What `apt-get download --print-uris` says of a package file. */
struct neb_package_file {
    char name[256];
    char sha256[65];
};

/* Reads the first line of that kind in `text`. NEB_ERR_CORRUPT: there is none, or its file name is not plain. */
neb_status neb__package_line(const char *text, struct neb_package_file *out);

#endif
