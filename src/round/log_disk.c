/* log_disk.c: the log on disk, and the promises made from it.
 *
 * The log in memory runs ahead of the disk. Records up to `disk_head` are on disk as they are in memory, and
 * `durable` is the content of the acked mark. A promise (an acknowledgement, a vote) is only ever made from
 * these two. At most one write is under way. It carries everything that differs, records first and then the
 * mark; when it is done, the next one starts if anything differs again. */
#include "round/core.h"
#include "base/mutant.h"

/* A mark is in every batch of the ledger, so it names only the sites that have a lapse: u8 how many, then u8 site, u32 lapse of
 * each. The first mark of a folder, and marks of older programs (format 1), have the lapses of all 64. */
enum { MARK_ALL = 1, MARK_SOME = 2 };

static neb_status mark_encode(const struct neb_core_promise *p, uint32_t format, struct neb_buf *b)
{
    uint8_t h[40], some[1 + 5 * NEB_SITES_MAX] = {0};
    size_t n = 1;
    neb__put32(h, format);
    neb__put32(h + 4, p->incarnation);
    neb__put64(h + 8, p->view);
    neb__put64(h + 16, p->normal);
    neb__put64(h + 24, p->head);
    neb__put64(h + 32, p->commit);
    NEB_TRY(neb__buf_append(b, h, sizeof h));
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        if (!p->lapse[i]) continue;
        some[0]++;
        some[n] = (uint8_t)i;
        neb__put32(some + n + 1, p->lapse[i]);
        n += 5;
    }
    if (format == MARK_SOME) return neb__buf_append(b, some, n);
    uint8_t lapses[4 * NEB_SITES_MAX];
    for (int i = 0; i < NEB_SITES_MAX; i++) neb__put32(lapses + 4 * i, p->lapse[i]);
    return neb__buf_append(b, lapses, sizeof lapses);
}

static bool mark_decode(const uint8_t *bytes, size_t n, struct neb_core_promise *p)
{
    struct neb_reader in = {bytes, n, false};
    uint32_t format = neb__read32(&in);
    bool ok = format == MARK_ALL || format == MARK_SOME;
    p->incarnation = neb__read32(&in);
    p->view = neb__read64(&in);
    p->normal = neb__read64(&in);
    p->head = neb__read64(&in);
    p->commit = neb__read64(&in);
    memset(p->lapse, 0, sizeof p->lapse);
    for (int i = 0; format == MARK_ALL && i < NEB_SITES_MAX; i++) p->lapse[i] = neb__read32(&in);
    for (int left = format == MARK_SOME ? neb__read8(&in) : 0; left > 0 && !in.bad; left--) {
        uint8_t site = neb__read8(&in);
        uint32_t lapse = neb__read32(&in);
        if (site < NEB_SITES_MAX) p->lapse[site] = lapse;
        ok = ok && site < NEB_SITES_MAX;
    }
    return ok && !in.bad && !in.left && p->normal <= p->view;
}

neb_status neb__round_first_mark(struct neb_buf *out)
{
    struct neb_core_promise p;
    memset(&p, 0, sizeof p);
    return mark_encode(&p, MARK_ALL, out);
}

/* An empty disk stays empty until the greeting is over. If records that a peer sends meanwhile were written
 * to it, a lost disk would look like one that was never lost. */
static bool stays_empty(const struct neb_round *r)
{
    return r->empty && r->state == NEB_ROUND_BOOT;
}

static void promise_now(const struct neb_round *r, struct neb_core_promise *p)
{
    bool none = stays_empty(r);
    p->view = none ? 0 : r->view;
    p->normal = none ? 0 : r->normal;
    p->head = none ? 0 : r->head;
    p->commit = none ? 0 : r->commit;
    p->incarnation = r->incarnation;
    memcpy(p->lapse, r->lapse, sizeof p->lapse);
}

static bool differs(const struct neb_round *r)
{
    const struct neb_core_promise *d = &r->durable;
    if (d->incarnation != r->incarnation || memcmp(d->lapse, r->lapse, sizeof d->lapse)) return true;
    if (stays_empty(r)) return false;
    if (r->ended && d->commit < r->final_index) return true; /* the proof of the end, for a later start */
    if (r->prepared.n &&
        (r->prepared.view != r->prepared_durable.view || r->prepared.index != r->prepared_durable.index))
        return true; /* this site may not speak of it before it is on disk */
    return r->disk_head < r->head || d->head != r->head || r->durable_epoch != r->roster.epoch ||
           d->view != r->view || d->normal != r->normal;
}

static void extras_free(struct neb_round *r)
{
    for (size_t i = 0; i < r->extras; i++) neb__free(r->extra[i].bytes);
    neb__free(r->extra);
    r->extra = NULL;
    r->extras = 0;
}

static void extra_add(struct neb_round *r, uint8_t kind, uint64_t index, struct neb_buf *b)
{
    struct neb_round_extra *e = neb__realloc(r->extra, (r->extras + 1) * sizeof *e);
    if (!e) {
        r->failed = NEB_ERR_NOMEM;
        neb__buf_free(b);
        return;
    }
    r->extra = e;
    r->extra[r->extras++] = (struct neb_round_extra){kind, index, b->data, b->len};
}

static void extra_certificate(struct neb_round *r, uint8_t kind, const struct neb_certificate *c)
{
    struct neb_buf b;
    neb__buf_init(&b, NEB_CERTIFICATE_MAX);
    if (neb__certificate_put(c, &b) != NEB_OK) r->failed = NEB_ERR_NOMEM;
    extra_add(r, kind, c->index, &b);
}

static void extra_statements(struct neb_round *r, uint8_t kind, const struct neb_said *said, uint32_t unsaved)
{
    for (; unsaved; unsaved &= unsaved - 1) {
        const struct neb_said *s = &said[__builtin_ctz(unsaved)];
        struct neb_buf b;
        neb__buf_init(&b, 512);
        if (neb__said_put(s, &b) != NEB_OK) r->failed = NEB_ERR_NOMEM;
        extra_add(r, kind, s->index, &b);
    }
}

/* Certificates, statements and words that are to be in the ledger and are not; and the autograph of the newest view, which is
 * with every write. */
static void gather_extras(struct neb_round *r, uint64_t head)
{
    extras_free(r);
    for (r->kept_writing = r->kept_saved; r->kept_writing < r->kepts; r->kept_writing++) {
        const struct neb_certificate *c = &r->kept[r->kept_writing];
        if (c->index > head) break;
        extra_certificate(r, NEB_EXTRA_CERTIFICATE, c);
    }
    r->prepared_writing = r->prepared;
    const struct neb_certificate *p = &r->prepared, *d = &r->prepared_durable;
    if (p->n && (p->view != d->view || p->index != d->index)) extra_certificate(r, NEB_EXTRA_PREPARED, p);
    extra_statements(r, NEB_EXTRA_AUTOGRAPH, r->autograph, r->autograph_unsaved);
    if (r->autographs)
        extra_statements(r, NEB_EXTRA_NOTE, r->autograph, (uint32_t)1 << (r->autographs - 1) % AUTOGRAPHS);
    extra_statements(r, NEB_EXTRA_VOTE, r->heard_vote, r->vote_unsaved);
    r->autograph_writing = r->autograph_unsaved;
    r->vote_writing = r->vote_unsaved;
    r->autograph_unsaved = r->vote_unsaved = 0;
    for (unsigned i = 0; i < NEB_SITES_MAX; i++) {
        uint8_t w[4 + NEB_SEAL_SIZE];
        struct neb_buf b;
        if (!(r->lapse_unsaved & neb__bit(i))) continue;
        neb__put32(w, r->word[i].lapse);
        memcpy(w + 4, r->word[i].signature, NEB_SEAL_SIZE);
        neb__buf_init(&b, sizeof w);
        if (neb__buf_append(&b, w, sizeof w) != NEB_OK) r->failed = NEB_ERR_NOMEM;
        extra_add(r, NEB_EXTRA_LAPSE, i, &b);
    }
    r->lapse_writing = r->lapse_unsaved;
    r->lapse_unsaved = 0;
    memcpy(r->word_writing, r->word, sizeof r->word);
}

const struct neb_round_extra *neb__round_extras(const struct neb_round *r, size_t *count)
{
    *count = r->extras;
    return r->extra;
}

void neb__log_write(struct neb_round *r)
{
    /* A mark written before the others have told what was lost would make this disk look undamaged. */
    if (r->state == NEB_ROUND_BOOT && (r->damaged || r->forgot)) return;
    if (r->write_busy || r->state == NEB_ROUND_HALTED || r->now < r->write_retry || !differs(r)) return;
    promise_now(r, &r->writing);
    r->writing_epoch = stays_empty(r) ? r->durable_epoch : r->roster.epoch;
    struct neb_buf b;
    neb__buf_init(&b, NEB_MARK_MAX);
    struct neb_action *a = neb__core_act(r, NEB_ACT_WRITE);
    if (mark_encode(&r->writing, MARK_SOME, &b) != NEB_OK) r->failed = NEB_ERR_NOMEM;
    a->id = ++r->write_id;
    a->index = r->disk_head + 1;
    a->count = stays_empty(r) ? 0 : r->head - r->disk_head;
    a->bytes = b.data;
    a->length = b.len;
    gather_extras(r, stays_empty(r) ? 0 : r->head);
    r->write_busy = true;
    r->cut_low = r->head;
}

void neb__log_written(struct neb_round *r, uint64_t id, neb_status status)
{
    if (!r->write_busy || id != r->write_id) return;
    r->write_busy = false;
    if (status != NEB_OK) {
        r->lapse_unsaved |= r->lapse_writing;
        r->autograph_unsaved |= r->autograph_writing;
        r->vote_unsaved |= r->vote_writing;
    }
    if (status == NEB_ERR_NOSPACE) {
        neb__core_note(
            r, "the disk is full: this site confirms no update until there is room; training goes on");
        r->write_retry = r->now + 1000;
        return;
    }
    if (status != NEB_OK) {
        neb__core_halt(
            r, "writing the ledger failed: this site stops voting; restart it to verify what is on disk");
        return;
    }
    r->durable = r->writing;
    r->durable_epoch = r->writing_epoch; /* after a restart the site must know that a change is committed */
    r->disk_head = r->writing.head < r->cut_low ? r->writing.head : r->cut_low;
    r->kept_saved = r->kept_writing;
    r->prepared_durable = r->prepared_writing;
    memcpy(r->word_durable, r->word_writing, sizeof r->word);
    neb__view_durable(r);
}

bool neb__log_acked(const struct neb_round *r, struct neb_core_promise *out)
{
    *out = r->durable;
    if (NEB_MUTANT(view_not_durable)) promise_now(r, out);
    if (NEB_MUTANT(view_not_durable)) return true;
    out->head = r->disk_head;
    return r->durable.view == r->view && r->durable.normal == r->normal && r->durable.head >= r->disk_head &&
           r->durable.incarnation == r->incarnation &&
           r->durable.lapse[r->self] ==
               r->lapse[r->self]; /* else its word would show that it forgot, after a crash */
}

/* Versions of applied cells, and of the site's own merged state, prove commits that the mark, written
 * lazily, may not know of yet. */
static uint64_t commit_shown(const struct neb_round *r, const struct neb_round_boot *boot)
{
    uint64_t commit = 0;
    for (uint64_t i = 0; i < r->head; i++) {
        const struct neb_record *rec = r->log[i].record;
        if (rec->type != NEB_RECORD_ROUND) continue;
        for (uint32_t c = rec->c0; c < rec->c1; c++)
            if (boot->applied[c] > rec->v || boot->merged[c] > rec->v) commit = rec->index;
    }
    return commit;
}

/* A certificate from this site's own disk. It counts if its record is in the log. */
static void boot_certificate(struct neb_round *r, uint8_t kind, const uint8_t *bytes, size_t n)
{
    struct neb_reader in = {bytes, n, false};
    struct neb_certificate c;
    if (!neb__certificate_get(&in, &c) || in.left || !c.n) return;
    if (kind == NEB_EXTRA_PREPARED) {
        r->prepared = r->prepared_durable = c;
        return;
    }
    if (c.index > r->head || c.kind != neb__cert_kind(r) ||
        !neb__hash_equal(neb__log_hash(r, c.index), &c.hash))
        return;
    bool newer = !r->newest.n || c.index > r->newest.index;
    if (newer) r->newest = c;
    if (kind && newer && neb__cert_store(r, &c)) r->kept_saved = r->kepts;
}

static void boot_statement(struct neb_round *r, uint8_t kind, const uint8_t *bytes, size_t n)
{
    struct neb_reader in = {bytes, n, false};
    struct neb_said s;
    if (!neb__said_get(&in, &s) || in.left) return;
    if (kind != NEB_EXTRA_VOTE)
        neb__autograph_keep(r, &s);
    else
        neb__guilt_vote(r, &s, false);
}

static void boot_extras(struct neb_round *r, const struct neb_round_boot *boot)
{
    for (size_t i = 0; i < boot->extras; i++) {
        const struct neb_round_extra *e = &boot->extra[i];
        if (e->kind == NEB_EXTRA_LAPSE && e->index < NEB_SITES_MAX && e->length == 4 + NEB_SEAL_SIZE) {
            struct neb_round_frame_word *w = &r->word[e->index];
            *w = (struct neb_round_frame_word){.site = (uint8_t)e->index, .lapse = neb__get32(e->bytes)};
            memcpy(w->signature, e->bytes + 4, NEB_SEAL_SIZE);
            r->word_durable[e->index] = *w;
        } else if (e->kind == NEB_EXTRA_AUTOGRAPH || e->kind == NEB_EXTRA_VOTE || e->kind == NEB_EXTRA_NOTE)
            boot_statement(r, e->kind, e->bytes, e->length);
        else if (e->kind != NEB_EXTRA_LAPSE)
            boot_certificate(r, e->kind, e->bytes, e->length);
    }
    if (boot->certificate) boot_certificate(r, 0, boot->certificate, boot->certificate_length);
    if (r->damaged)
        r->prepared.n = r->prepared_durable.n = 0; /* its record may be lost with the disk's end */
    neb__prepared_forget(r);                       /* another record had taken its place before this start */
}

neb_status neb__log_boot(struct neb_round *r, const struct neb_round_boot *boot)
{
    struct neb_core_promise p;
    memset(&p, 0, sizeof p);
    if (!boot->mark || !mark_decode(boot->mark, boot->mark_length, &p)) {
        memset(&p, 0, sizeof p);
        r->damaged = true;
    }
    if (boot->damaged) r->damaged = true;
    for (uint64_t i = 0; i < boot->records; i++)
        if (!neb__log_append(r, boot->record[i], boot->record_length[i])) {
            r->damaged = true;
            break;
        }
    if (r->failed != NEB_OK) return neb__fail(NEB_ERR_NOMEM, "out of memory for the ledger");
    if (r->head < p.head) r->damaged = true;
    neb__log_cut(r, r->head < p.head ? r->head : p.head);
    if (NEB_MUTANT(lose_mark) || NEB_MUTANT(vote_after_rollback)) r->damaged = false;
    if (NEB_MUTANT(lose_mark)) p.view = p.normal = 0;
    if (r->damaged) {
        /* Records before a gap may have been replaced behind it: only commits that the records prove
         * count. */
        neb__log_cut(r, r->commit);
        p.normal = 0;
        p.commit = r->commit;
    }
    r->empty = !p.view && !r->head;
    r->view = p.view;
    r->normal = p.normal;
    memcpy(r->lapse, p.lapse, sizeof r->lapse);
    r->disk_head = r->head;
    r->boot_view = r->view, r->boot_normal = r->normal, r->boot_head = r->head;
    r->durable = p;
    r->durable.head = r->head;
    r->incarnation = p.incarnation + 1;
    uint64_t shown = r->damaged ? 0 : commit_shown(r, boot);
    neb__log_commit_to(r, p.commit > shown ? p.commit : shown);
    r->durable_epoch = r->roster.epoch;
    boot_extras(r, boot);
    if (r->newest.n && r->newest.index > r->commit && !r->damaged) neb__log_commit_to(r, r->newest.index);
    neb__cert_found(r);
    r->booted = true;
    return r->failed == NEB_OK ? NEB_OK : neb__fail(NEB_ERR_NOMEM, "out of memory for the ledger");
}
