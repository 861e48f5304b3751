/* orders.c: an operator's orders reach the round core, and the links' roster follows.
 *
 *     file   "NEBORD1" 0, u32 length of the epoch, epoch, order (round/order.c)
 *
 * The chain of epochs (seal/roster.h) says which sites may connect; the log says which ones vote and train.
 * The two change one after the other. The key of a new member first enters the chain, so that it can connect,
 * fetch and catch up; then the log names it. A removed member first hears from the log that it is out; then
 * its key becomes worthless. The order goes to the core again every second until the log has it, since the
 * leader may change meanwhile. Nothing here is trusted: the core checks the order's signature, the links
 * check that of the epoch. */
#include "run/orders.h"
#include "run/session.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char magic[8] = "NEBORD1", ending[] = ".order";
enum { HEAD = sizeof magic + 4, FILES_MAX = 32, TELL_S = 3 };

/* ---- the file ------------------------------------------------------------------------------------------ */

neb_status neb__order_file_save(const char *path, const struct neb_order_file *f)
{
    uint8_t head[HEAD], order[NEB_ORDER_MAX];
    struct neb_buf b;
    memcpy(head, magic, sizeof magic);
    neb__put32(head + sizeof magic, (uint32_t)f->epoch_size);
    neb__buf_init(&b, NEB_ORDER_FILE_MAX);
    neb_status status = neb__buf_append(&b, head, sizeof head);
    if (status == NEB_OK && f->epoch_size) status = neb__buf_append(&b, f->epoch, f->epoch_size);
    if (status == NEB_OK) status = neb__buf_append(&b, order, neb__order_put(&f->order, order));
    if (status == NEB_OK) status = neb__file_replace(path, b.data, b.len, 0600);
    neb__buf_free(&b);
    return status;
}

neb_status neb__order_file_write(const char *folder, const struct neb_order_file *f, char *path, size_t size)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (snprintf(path, size, "%s/run/orders", folder) >= (int)size - 40)
        return neb__fail(NEB_ERR_INVALID, "the path of folder '%.80s…' is too long", folder);
    NEB_TRY(neb__file_make_dir(path, 0700));
    snprintf(path, size, "%s/run/orders/%lld%03ld%s", folder, (long long)now.tv_sec, now.tv_nsec / 1000000,
             ending);
    return neb__order_file_save(path, f);
}

bool neb__order_file_read(const uint8_t *bytes, size_t n, struct neb_order_file *out)
{
    struct neb_reader in = {bytes, n, false};
    const uint8_t *head = neb__read(&in, HEAD);
    if (!head || memcmp(head, magic, sizeof magic)) return false;
    out->epoch_size = neb__get32(head + sizeof magic);
    out->epoch = neb__read(&in, out->epoch_size);
    return out->epoch && neb__order_get(&in, &out->order) && !in.left;
}

/* ---- the links' roster --------------------------------------------------------------------------------- */

struct extension {
    neb_session *s;
    size_t size;
    uint8_t epoch[];
};

static void extend_on_loop(void *arg)
{
    struct extension *e = arg;
    if (neb__net_extend_roster(e->s->net, e->epoch, e->size) != NEB_OK)
        neb__warn("the roster of an order was refused: %s", neb_last_error());
    neb__free(e);
}

static void extend(neb_session *s, const struct neb_order_file *f)
{
    struct extension *e = f->epoch_size ? neb__malloc(sizeof *e + f->epoch_size) : NULL;
    if (!e) return;
    e->s = s;
    e->size = f->epoch_size;
    memcpy(e->epoch, f->epoch, f->epoch_size);
    if (neb__net_post(s->net, extend_on_loop, e) != NEB_OK) neb__free(e);
}

/* ---- what has become of an order ----------------------------------------------------------------------- */

enum fate { OPEN, UNDER_WAY, DONE, TOO_LATE };

static enum fate fate_of(const neb_session *s, const struct neb_order *o)
{
    struct neb_round_status st;
    bool at_once = o->op == NEB_OP_FORCE || o->op == NEB_OP_ADOPT, others = false;
    neb__round_status(s->core, &st);
    for (uint64_t i = o->index + 1; i <= st.head; i++) {
        const struct neb_record *rec = neb__round_record(s->core, i);
        if (!rec || !rec->ordered) continue;
        if (neb__order_same(rec->order, o)) return i <= st.commit ? DONE : UNDER_WAY;
        others |= i <= st.commit;
    }
    if (at_once) return st.roster.epoch < o->epoch ? OPEN : TOO_LATE;
    return others || st.roster.epoch != o->epoch ? TOO_LATE : OPEN;
}

/* A removed site hears of it from the log; some seconds later its key becomes worthless. */
static bool told(neb_session *s)
{
    int64_t now = neb__now_ns();
    if (!s->driver.removed_at) s->driver.removed_at = now;
    if (now - s->driver.removed_at < (int64_t)TELL_S * 1000000000) return false;
    s->driver.removed_at = 0;
    return true;
}

static void refuse(const char *path, const char *as, const char *why)
{
    char to[PATH_MAX + 16];
    snprintf(to, sizeof to, "%s.%s", path, as);
    neb__warn("%s: %s", path, why);
    if (rename(path, to)) unlink(path);
}

/* A key that is new, a member's or the operators', must be known before the log names it. */
static bool epoch_first(const struct neb_order *o)
{
    return o->op == NEB_OP_ADMIT || o->op == NEB_OP_OPERATORS || o->op == NEB_OP_REKEY;
}

static bool genuine(neb_session *s, const struct neb_order *o, enum fate fate)
{
    const struct neb_seal seal = neb__session_seal(s);
    bool any =
        fate == DONE || o->op == NEB_OP_OPERATORS; /* the core and the chain have checked it, or will */
    return neb__order_genuine(o, &s->genesis, &seal, any ? 0 : NEB_OPERATORS_NEWEST);
}

static void one_order(neb_session *s, const char *path)
{
    struct neb_buf b;
    struct neb_order_file f;
    neb__buf_init(&b, NEB_ORDER_FILE_MAX);
    if (neb__file_read(path, &b) != NEB_OK || !neb__order_file_read(b.data, b.len, &f)) {
        refuse(path, "refused", "not an order file; `nebula-i order` writes one");
        neb__buf_free(&b);
        return;
    }
    enum fate fate = fate_of(s, &f.order);
    if (!genuine(s, &f.order, fate)) {
        refuse(
            path, "refused",
            "the order is for another run, or this run's operator did not sign it (of several: not enough of "
            "them)");
    } else if (fate == TOO_LATE) {
        refuse(
            path, "late",
            "the order came too late: the log or the roster has changed since it was signed; give it again");
    } else if (fate == DONE && f.epoch_size && !epoch_first(&f.order) && !told(s)) {
        /* the next look or the one after it */
    } else if (fate == DONE) {
        if (!epoch_first(&f.order)) extend(s, &f);
        unlink(path);
        neb__info("order %s is carried out", path);
    } else if (fate == OPEN) {
        if (epoch_first(&f.order)) extend(s, &f);
        if (f.order.op == NEB_OP_LEAVE && f.order.site == s->self) s->driver.leaves = true;
        neb__session_feed(s, &(struct neb_event){.type = NEB_EV_OPERATOR, .order = &f.order});
    }
    neb__buf_free(&b);
}

void neb__session_orders(neb_session *s)
{
    char dir[PATH_MAX], path[PATH_MAX];
    struct dirent *d;
    int64_t now = neb__now_ns();
    if (!s->core || now < s->driver.orders_at) return;
    s->driver.orders_at = now + 1000000000;
    snprintf(dir, sizeof dir, "%s/run/orders", s->site->dir);
    DIR *list = opendir(dir);
    for (int n = 0; list && n < FILES_MAX && !s->halted && (d = readdir(list));) {
        size_t length = strlen(d->d_name), end = sizeof ending - 1;
        if (length <= end || strcmp(d->d_name + length - end, ending)) continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, d->d_name) >= (int)sizeof path) continue;
        one_order(s, path);
        n++;
    }
    if (list) closedir(list);
}
