/* stage_message.h: what a message between two stages looks like, and what the next one may be. Pure: it knows no stream.
 *
 * The bytes are a peer's. A stage says what is due before it takes the first item (struct neb_stage_due), so an item of another
 * kind, of another run, or one byte more than the message may have is refused before it is stored. */
#ifndef NEB_SPLIT_STAGE_MESSAGE_H
#define NEB_SPLIT_STAGE_MESSAGE_H

#include "base/buf.h"
#include "task/work.h"

enum { NEB_STAGE_HEAD = 16, NEB_STAGE_PIECE = 8 << 20, NEB_STAGE_PIECES = 1024 };

enum neb_stage_kind {
    NEB_STAGE_ITEM_RUN = 1, /* hidden states or gradients of a step */
    NEB_STAGE_ITEM_EVAL,    /* hidden states of held-out text */
    NEB_STAGE_ITEM_SUMS,
    NEB_STAGE_ITEM_SPREAD,
    NEB_STAGE_ITEM_VALUES, /* of parameters */
    NEB_STAGE_ITEM_END,
    NEB_STAGE_ITEM_OUTLINE, /* of the batches of a step, or of held-out text: text/batch_outline.h */
    NEB_STAGE_ITEM_WANTED   /* a bit for each parameter that the first site wants at the end */
};

/* What stands before the bytes of a message. */
struct neb_stage_head {
    enum neb_stage_kind kind;
    bool bad;               /* a value was not finite, and no bytes follow */
    uint32_t number, check; /* as in struct neb_stage_message; else 0 */
};

/* The head of one item: that of its message, the run, and how many items of the message follow. */
struct neb_stage_item_head {
    struct neb_stage_head message;
    uint32_t run;
    bool outlined;
    bool
        third; /* of the third version: rows of sums have line_s, and the first site may say what it wants at the end */
    uint16_t follow;
};
void neb__stage_head_write(const struct neb_stage_item_head *h, uint8_t out[NEB_STAGE_HEAD]);
/* False: fewer bytes than a head has. */
bool neb__stage_head_read(const uint8_t *item, size_t n, struct neb_stage_item_head *out);

/* Items of a message of that many bytes. */
size_t neb__stage_pieces(size_t bytes);

/* What the next message of a stream must be. */
struct neb_stage_due {
    enum neb_stage_kind kind, or_kind; /* or_kind: it may be this one instead; 0: it may not */
    size_t most;                       /* bytes */
    size_t pieces;                     /* items; 0: no more than `most` bytes need */
    uint32_t number, check;
};
struct neb_stage_due neb__stage_due_run(const struct neb_stage_message *m);

/* Puts a message together. Zeroed, with `bytes` initialised, it is ready for the first one; a whole message makes it ready for the
 * next. */
struct neb_stage_inbox {
    struct neb_buf bytes;
    struct neb_stage_head head;
    uint16_t left; /* items that follow */
    bool begun;
};
/* Adds an item (its head and all). from: the site's name, for messages. *bytes NULL: more items follow; else the whole message, good
 * until the next call or as long as the item.
 *   NEB_ERR_CONFIG   the sites have drawn different batches, or have different jobs
 *   NEB_ERR_CORRUPT  not what is due, or too long */
neb_status neb__stage_inbox_add(struct neb_stage_inbox *in, const struct neb_stage_due *due, const char *from,
                                const uint8_t *item, size_t size, const uint8_t **bytes, size_t *n);

/* ---- runs ------------------------------------------------------------------------------------------------- */

enum neb_stage_kind neb__stage_kind_of(const struct neb_stage_message *m);
/* Bytes of its items with the head of one. */
double neb__stage_run_size(const struct neb_stage_message *m, int bits);
neb_status neb__stage_run_encode(const struct neb_stage_message *m, const float *values, int bits,
                                 struct neb_buf *out);
/* NEB_ERR_CORRUPT */
neb_status neb__stage_run_decode(const struct neb_stage_message *m, const char *from, const uint8_t *bytes,
                                 size_t n, float *values);

/* ---- parameters at the end ---------------------------------------------------------------------------------- */

enum {
    NEB_STAGE_VALUES_HEAD = 16,
    NEB_STAGE_CHUNK = 1 << 20
}; /* bytes before the values; values of a message at most */

/* n bytes of a message with values, or of the end of them. NEB_ERR_CORRUPT: no value, a part of one, too many; an end with bytes */
neb_status neb__stage_check_values(const char *from, bool end, size_t n);

/* ---- sums ------------------------------------------------------------------------------------------------- */

/* What a stage says at the end of a step: its numbers and, where several lines follow each other, how long a micro-batch is on the line
 * behind it, there and back. */
struct neb_stage_row {
    struct neb_stage_sums sums;
    double line_s; /* 0: not known, or there is none */
};

/* Bytes of a table of so many rows; lines: with line_s. */
size_t neb__stage_rows_size(int stages, bool lines);
void neb__stage_rows_encode(const struct neb_stage_row *table, int stages, bool lines, uint8_t *out);
/* The rows of the stages [from, to), out of a table of all `stages`. Losses may be anything: what is not finite makes all
 * stages skip the step. A count, a square or the flag that is negative, or a flag or count that is no number, would be added up
 * unnoticed: NEB_ERR_CORRUPT. A time that cannot be counts as not known. */
neb_status neb__stage_rows_decode(const char *site, const uint8_t *bytes, size_t n, int stages, bool lines,
                                  int from, int to, struct neb_stage_row *table);
/* Added up in the order of the stages. */
void neb__stage_sums_total(const struct neb_stage_row *table, int stages, struct neb_stage_sums *out);

#endif
