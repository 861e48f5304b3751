/* privacy.h (internal): what a session does so that its updates tell no more than the job allows (docs/privacy.md).
 *
 *     unit site     each update is clipped and gets noise here, and is charged when it is made
 *     unit sample   the training makes its steps with noise; here its account is stated in every update
 */
#ifndef NEB_RUN_PRIVACY_H
#define NEB_RUN_PRIVACY_H

#include "privacy/ledger.h"
#include "privacy/noise.h"

struct neb_session;
struct neb_update_header;

struct neb_session_privacy {
    struct neb_privacy_rule rule;      /* unit NONE: no account is kept */
    struct neb_privacy_ledger *ledger; /* from the start on, if there is a rule */
    struct neb_noise *noise;           /* unit site, or wan.noise */
    bool said;                         /* that the budget is spent */
    uint64_t looked;                   /* records that hold no own update unknown to the account */
};

/* Of a job with unit site: the noise that it names, or the least that keeps to its epsilon. NEB_ERR_CONFIG */
struct neb_job;
neb_status neb__session_site_rule(const struct neb_job *job, struct neb_privacy_rule *out);
/* Before the start. The step is that of a sweep over the model (site) or of a training step (sample). */
neb_status neb__session_set_privacy(struct neb_session *s, const struct neb_privacy_rule *rule);
/* Before the start: updates are masked, and only their sum is learned (secure.h). NEB_ERR_CONFIG says what does not fit. */
neb_status neb__session_set_secure(struct neb_session *s);
/* At the start, when the run's folder is open and the number of fragments known. */
neb_status neb__session_privacy_open(struct neb_session *s, const char *folder);
void neb__session_privacy_close(struct neb_session *s);
/* After the start: for the training that charges its steps. NULL: there is no rule. */
struct neb_privacy_ledger *neb__session_privacy_ledger(struct neb_session *s);

/* This site cuts or blurs what it sends, and drops the rest. */
bool neb__session_private(const struct neb_session *s);
/* Cuts and blurs z (n values of one fragment) as the rule or the site's settings say. NEB_ERR_IO…: nothing may be sent. */
neb_status neb__session_privatize(struct neb_session *s, float *z, size_t n);

/* Eights of bytes between header and code. */
uint8_t neb__session_privacy_before(const struct neb_session *s);
/* The update is about to be signed: it is charged, on disk, and `statement` says so.
 *   NEB_ERR_LIMIT: the budget is spent;  NEB_ERR_AGAIN: the log is not known yet;  NEB_ERR_IO… */
neb_status neb__session_privacy_release(struct neb_session *s, const struct neb_update_header *h,
                                        uint8_t *statement);
/* For the status. */
void neb__session_privacy_state(struct neb_session *s, struct neb_privacy_statement *out);

#endif
