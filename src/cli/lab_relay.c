/* lab_relay.c: `nebula-i lab --relay` runs `nebula-i relay` at one more site of the laboratory. Its key stays in its folder, so a run
 * that goes on finds the address that its roster has. It ends with the laboratory. */
#include "cli/lab_relay.h"
#include "seal/site.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

neb_status neb__lab_relay_init(struct neb_lab_relay *r, struct neb_lab *lab, int site, int port,
                               const char *out)
{
    char name[NEB_NAME_SIZE], identity[NEB_IDENTITY_SIZE], key_file[sizeof r->folder + 16];
    struct neb_public key;
    struct stat st;
    *r = (struct neb_lab_relay){.site = site, .handle = -1, .log = -1};
    snprintf(r->place, sizeof r->place, "%s:%d", neb__lab_address(lab, 0, site), port);
    if (snprintf(r->folder, sizeof r->folder, "%s/" NEB_LAB_RELAY_NAME, out) >= (int)sizeof r->folder)
        return neb__fail(NEB_ERR_INVALID, "the path of folder '%.80s…' is too long; choose a shorter one",
                         out);
    snprintf(key_file, sizeof key_file, "%s/site.key", r->folder);
    if (stat(key_file, &st)) NEB_TRY(neb__site_init(r->folder, "relay", identity));
    NEB_TRY(neb__site_identity(r->folder, name, &key));
    return neb__relay_address_format(r->place, &key, r->address);
}

neb_status neb__lab_relay_start(struct neb_lab_relay *r, struct neb_lab *lab)
{
    char log[sizeof r->folder + 8];
    const char *argv[] = {"/proc/self/exe", "relay", "--listen", r->place, "--folder", r->folder, NULL};
    snprintf(log, sizeof log, "%s/log", r->folder);
    r->log = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (r->log < 0) return neb__fail(NEB_ERR_IO, "cannot write %s", log);
    struct neb_lab_command command = {.argv = (char *const *)(uintptr_t)argv, .out = r->log, .err = r->log};
    return neb__lab_start(lab, r->site, &command, &r->handle);
}

void neb__lab_relay_end(struct neb_lab_relay *r, struct neb_lab *lab)
{
    int status;
    if (r->handle >= 0) {
        neb__lab_kill(lab, r->handle, SIGTERM);
        if (neb__lab_wait(lab, r->handle, 3, &status) != NEB_OK) neb__lab_kill(lab, r->handle, SIGKILL);
    }
    if (r->log >= 0) close(r->log);
}
