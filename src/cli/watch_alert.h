/* watch_alert.h (internal): tells somebody of an alert: a command, or a web address. */
#ifndef NEB_CLI_WATCH_ALERT_H
#define NEB_CLI_WATCH_ALERT_H

#include "watch/alerts.h"

/* `to` that begins with http:// or https:// gets the alert as JSON by POST; anything else is a shell command, which finds it
 * in NEBULA_ALERT (its kind), NEBULA_ALERT_SITE, NEBULA_ALERT_STATE (begins or ends), NEBULA_ALERT_TEXT and, whole, in
 * NEBULA_ALERT_JSON. Returns at once; a failure is a warning. */
void neb__watch_alert(const char *to, const char *job, const struct neb_alert *alert, bool begins);

#endif
