/* web_certificate.h: the certificate with which a site shows its live page to browsers.
 *
 * A site's own key is Ed25519, which browsers do not take in certificates. So the site's folder gets a second
 * key (P-256) and a certificate for it, made once: watch.key (0600) and watch.crt. The site's key signs the
 * certificate's fingerprint, in watch.sig, so a member can check whose page it is. */
#ifndef NEB_SEAL_WEB_CERTIFICATE_H
#define NEB_SEAL_WEB_CERTIFICATE_H

#include "base/buf.h"

enum { NEB_FINGERPRINT_SIZE = 96 };

/* Reads both as PEM, ended by 0, and makes them if they are not there. `fingerprint`: SHA-256, as browsers show it.
 *   NEB_ERR_NOTFOUND, NEB_ERR_AUTH, NEB_ERR_CORRUPT (no site, or its key), NEB_ERR_IO, NEB_ERR_NOMEM */
neb_status neb__web_certificate(const char *site_folder, struct neb_buf *certificate, struct neb_buf *key,
                                char fingerprint[NEB_FINGERPRINT_SIZE]);

#endif
