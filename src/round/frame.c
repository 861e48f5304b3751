/* frame.c: the bytes of the protocol's messages.
 *
 * Every frame starts with the same header, from which a receiver learns the sender's epoch, view, commit
 * index and lapse without looking further: u8 type, u8 format, u16 from, u32 epoch, u64 roster id, u64 view,
 * u64 commit, u32 lapse. Then come the fields of its type, in the order in which `fields` names them.
 * Encoding and decoding walk the same description, so they cannot drift apart. */
#include "round/frame.h"

enum { FORMAT = 3 };

/* n: number, N: nonce, o: normal, h: head, s: start, a: applied, H: hash, R: root, p: phase, f: flags,
 * O: order, l: lapses, i: items with holders, t: trusted roots, c: signatures of them, S: signature,
 * b: records, C: certificate, P: prepare certificate, A: statements, T: signed words for lapses */
static const char *fields(uint8_t type)
{
    switch (type) {
    case NEB_ROUND_FRAME_HELLO: return "NpnohsS";
    case NEB_ROUND_FRAME_HELLO_OK: return "NpfohHnSlT";
    case NEB_ROUND_FRAME_ASK: return "n";
    case NEB_ROUND_FRAME_ASK_OK: return "n";
    case NEB_ROUND_FRAME_ELECT: return "n";
    case NEB_ROUND_FRAME_VOTE: return "nohHlTACP";
    case NEB_ROUND_FRAME_PING: return "ohsHafitclTnCPA";
    case NEB_ROUND_FRAME_REPORT: return "ohHasRSflTiCA";
    case NEB_ROUND_FRAME_GETLOG: return "n";
    case NEB_ROUND_FRAME_LOG: return "nohsHCAb";
    case NEB_ROUND_FRAME_REQUEST: return "O";
    case NEB_ROUND_FRAME_GOODBYE: return "";
    case NEB_ROUND_FRAME_FORCE: return "O";
    case NEB_ROUND_FRAME_GUILT: return "AP";
    default: return NULL;
    }
}

static uint64_t *number_of(struct neb_round_frame *f, char c)
{
    switch (c) {
    case 'n': return &f->number;
    case 'N': return &f->nonce;
    case 'o': return &f->normal;
    case 'h': return &f->head;
    case 's': return &f->start;
    case 'a': return &f->applied;
    default: return NULL;
    }
}

static neb_status put64(struct neb_buf *out, uint64_t v)
{
    uint8_t b[8];
    neb__put64(b, v);
    return neb__buf_append(out, b, 8);
}

static neb_status put16(struct neb_buf *out, uint16_t v)
{
    uint8_t b[2];
    neb__put16(b, v);
    return neb__buf_append(out, b, 2);
}

static neb_status put_lapses(const struct neb_round_frame *f, struct neb_buf *out)
{
    uint16_t n = 0;
    for (int i = 0; i < NEB_SITES_MAX; i++) n += f->lapses[i] != 0;
    NEB_TRY(put16(out, n));
    for (int i = 0; i < NEB_SITES_MAX; i++) {
        if (!f->lapses[i]) continue;
        uint8_t b[5] = {(uint8_t)i};
        neb__put32(b + 1, f->lapses[i]);
        NEB_TRY(neb__buf_append(out, b, 5));
    }
    return NEB_OK;
}

static neb_status put_order(const struct neb_order *o, struct neb_buf *out)
{
    uint8_t b[NEB_ORDER_MAX];
    return neb__buf_append(out, b, neb__order_put(o, b));
}

static neb_status put_words(const struct neb_round_frame *f, struct neb_buf *out)
{
    NEB_TRY(put16(out, f->words));
    for (int i = 0; i < f->words; i++) {
        uint8_t b[5] = {f->word[i].site};
        neb__put32(b + 1, f->word[i].lapse);
        NEB_TRY(neb__buf_append(out, b, sizeof b));
        NEB_TRY(neb__buf_append(out, f->word[i].signature, NEB_SEAL_SIZE));
    }
    return NEB_OK;
}

static neb_status put_said(const struct neb_round_frame *f, struct neb_buf *out)
{
    NEB_TRY(put16(out, f->saids));
    for (int i = 0; i < f->saids; i++) NEB_TRY(neb__said_put(&f->said[i], out));
    return NEB_OK;
}

static neb_status put_field(const struct neb_round_frame *f, char c, struct neb_buf *out)
{
    switch (c) {
    case 'H': return neb__buf_append(out, f->hash.b, NEB_HASH_SIZE);
    case 'R': return neb__buf_append(out, f->root.b, NEB_HASH_SIZE);
    case 'p': return neb__buf_append(out, &f->phase, 1);
    case 'f': return neb__buf_append(out, &f->flags, 1);
    case 'O': return put_order(&f->order, out);
    case 'l': return put_lapses(f, out);
    case 'T': return put_words(f, out);
    case 'A': return put_said(f, out);
    case 'C': return neb__certificate_put(&f->proof, out);
    case 'P': return neb__certificate_put(&f->prepared, out);
    case 'i':
        NEB_TRY(put16(out, f->items));
        for (int i = 0; i < f->items; i++) {
            NEB_TRY(neb__buf_append(out, f->item[i].hash.b, NEB_HASH_SIZE));
            NEB_TRY(put64(out, f->item[i].holders));
        }
        return NEB_OK;
    case 't':
        NEB_TRY(put16(out, f->roots));
        for (int i = 0; i < f->roots; i++) {
            NEB_TRY(put64(out, f->trusted[i].index));
            NEB_TRY(neb__buf_append(out, f->trusted[i].root.b, NEB_HASH_SIZE));
            NEB_TRY(put64(out, f->trusted[i].consent));
        }
        return NEB_OK;
    case 'c':
        NEB_TRY(put16(out, f->certs));
        for (int i = 0; i < f->certs; i++) {
            NEB_TRY(neb__buf_append(out, &f->cert[i].root, 1));
            NEB_TRY(put16(out, f->cert[i].site));
            NEB_TRY(neb__buf_append(out, f->cert[i].signature, NEB_SEAL_SIZE));
        }
        return NEB_OK;
    case 'S': return neb__buf_append(out, f->signature, NEB_SEAL_SIZE);
    case 'b': NEB_TRY(put16(out, f->records)); return neb__buf_append(out, f->blob, f->blob_length);
    default: return put64(out, *number_of((struct neb_round_frame *)f, c));
    }
}

neb_status neb__round_frame_encode(const struct neb_round_frame *f, struct neb_buf *out)
{
    uint8_t b[36];
    b[0] = f->type;
    b[1] = FORMAT;
    neb__put16(b + 2, f->from);
    neb__put32(b + 4, f->epoch);
    neb__put64(b + 8, f->roster_id);
    neb__put64(b + 16, f->view);
    neb__put64(b + 24, f->commit);
    neb__put32(b + 32, f->lapse);
    NEB_TRY(neb__buf_append(out, b, sizeof b));
    for (const char *c = fields(f->type); *c; c++) NEB_TRY(put_field(f, *c, out));
    return NEB_OK;
}

static void get_hash(struct neb_reader *in, struct neb_hash *h)
{
    const uint8_t *p = neb__read(in, NEB_HASH_SIZE);
    if (p) memcpy(h->b, p, NEB_HASH_SIZE);
}

static void get_signature(struct neb_reader *in, uint8_t out[NEB_SEAL_SIZE])
{
    const uint8_t *p = neb__read(in, NEB_SEAL_SIZE);
    if (p) memcpy(out, p, NEB_SEAL_SIZE);
}

static bool get_list(struct neb_reader *in, char c, struct neb_round_frame *f)
{
    uint16_t n = neb__read16(in);
    if (c == 'T') {
        if (n > NEB_SITES_MAX) return false;
        for (f->words = 0; f->words < n && !in->bad; f->words++) {
            struct neb_round_frame_word *w = &f->word[f->words];
            w->site = neb__read8(in);
            w->lapse = neb__read32(in);
            get_signature(in, w->signature);
            if (w->site >= NEB_SITES_MAX) return false;
        }
    } else if (c == 'A') {
        if (n > NEB_ROUND_FRAME_SAID) return false;
        for (f->saids = 0; f->saids < n; f->saids++)
            if (!neb__said_get(in, &f->said[f->saids])) return false;
    } else if (c == 'l') {
        int last = -1;
        for (int i = 0; i < n && !in->bad; i++) {
            uint8_t site = neb__read8(in);
            uint32_t lapse = neb__read32(in);
            if (site >= NEB_SITES_MAX || site <= last || !lapse) return false;
            f->lapses[last = site] = lapse;
        }
    } else if (c == 'i') {
        if (n > NEB_ROUND_FRAME_LIST) return false;
        for (f->items = 0; f->items < n && !in->bad; f->items++) {
            get_hash(in, &f->item[f->items].hash);
            f->item[f->items].holders = neb__read64(in);
        }
    } else if (c == 'c') {
        if (n > NEB_ROUND_FRAME_CERTS) return false;
        for (f->certs = 0; f->certs < n && !in->bad; f->certs++) {
            struct neb_round_frame_cert *t = &f->cert[f->certs];
            t->root = neb__read8(in);
            t->site = neb__read16(in);
            get_signature(in, t->signature);
            if (t->root >= f->roots || t->site >= NEB_SITES_MAX) return false;
        }
    } else {
        if (n > sizeof f->trusted / sizeof *f->trusted) return false;
        for (f->roots = 0; f->roots < n && !in->bad; f->roots++) {
            f->trusted[f->roots].index = neb__read64(in);
            get_hash(in, &f->trusted[f->roots].root);
            f->trusted[f->roots].consent = neb__read64(in);
        }
    }
    return !in->bad;
}

static bool get_field(struct neb_reader *in, char c, struct neb_round_frame *f)
{
    switch (c) {
    case 'H': get_hash(in, &f->hash); return true;
    case 'R': get_hash(in, &f->root); return true;
    case 'p': f->phase = neb__read8(in); return true;
    case 'f': f->flags = neb__read8(in); return true;
    case 'O': return neb__order_get(in, &f->order);
    case 'S': get_signature(in, f->signature); return true;
    case 'l':
    case 'T':
    case 'A':
    case 'i':
    case 'c':
    case 't': return get_list(in, c, f);
    case 'C': return neb__certificate_get(in, &f->proof);
    case 'P': return neb__certificate_get(in, &f->prepared);
    case 'b':
        f->records = neb__read16(in);
        f->blob_length = in->left;
        f->blob = neb__read(in, in->left);
        return true;
    default: *number_of(f, c) = neb__read64(in); return true;
    }
}

neb_status neb__round_frame_decode(const uint8_t *bytes, size_t n, struct neb_round_frame_item *items,
                                   struct neb_round_frame_cert *certs, struct neb_round_frame *out)
{
    struct neb_reader in = {bytes, n, false};
    memset(out, 0, sizeof *out);
    out->item = items;
    out->cert = certs;
    out->type = neb__read8(&in);
    uint8_t format = neb__read8(&in);
    out->from = neb__read16(&in);
    out->epoch = neb__read32(&in);
    out->roster_id = neb__read64(&in);
    out->view = neb__read64(&in);
    out->commit = neb__read64(&in);
    out->lapse = neb__read32(&in);
    const char *c = fields(out->type);
    bool ok = c && format == FORMAT && out->from < NEB_SITES_MAX && !in.bad;
    for (; ok && *c; c++) ok = get_field(&in, *c, out) && !in.bad;
    if (!ok || in.left)
        return neb__quiet(NEB_ERR_PROTOCOL, "not a frame of the round protocol: %zu bytes", n);
    return NEB_OK;
}
