/* roster_change.c: a sealed roster gets another epoch: a member comes, goes or has a new key, or there are other operators.
 *
 * The operators sign, as many as must agree. An epoch names the end of the log of a run that is under way. One that names none
 * changes the members with which a run begins, and is refused where a run is known to have begun. */
#include "cli/roster_change.h"
#include "base/file.h"
#include "cli/log_head.h"
#include "cli/member_words.h"
#include "cli/operator_words.h"
#include "seal/rekey.h"
#include "seal/site.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

neb_status neb__roster_member(const struct neb_roster_options *o, int argc, char **argv, struct neb_member *m)
{
    *m = (struct neb_member){0};
    NEB_TRY(neb__member_identity(argv[0], m));
    if (o->observer && (o->witness || o->learner))
        return neb__fail(NEB_ERR_CONFIG,
                         "an observer neither votes nor trains: leave out --witness, --learner");
    m->votes = o->learner || o->observer ? 0 : (uint8_t)o->votes;
    m->flags = (uint8_t)((o->witness ? NEB_MEMBER_WITNESS : 0) | (o->learner ? NEB_MEMBER_LEARNER : 0) |
                         (o->observer ? NEB_MEMBER_OBSERVES : 0));
    for (int i = 1; i < argc; i++) NEB_TRY(neb__member_address(m, argv[i]));
    return NEB_OK;
}

/* FILE, or the folder of a site that has joined. */
neb_status neb__roster_open(const char *path, char file[PATH_MAX], struct neb_chain **out)
{
    struct stat st;
    bool dir = !stat(path, &st) && S_ISDIR(st.st_mode);
    if (snprintf(file, PATH_MAX, dir ? "%s/roster" : "%s", path) >= PATH_MAX)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", path);
    return dir ? neb__site_roster_load(path, out) : neb__chain_read(path, out);
}

void neb__roster_print_hash(const char *label, const struct neb_hash *h)
{
    char hex[2 * NEB_HASH_SIZE + 1];
    neb__hash_hex(h, hex);
    printf("%-10s %s\n", label, hex);
}

static neb_status parse_head(const char *text, uint64_t *index, struct neb_hash *hash)
{
    char hex[65];
    *index = 0;
    memset(hash, 0, sizeof *hash);
    if (!text || !strcmp(text, "0")) return NEB_OK;
    if (sscanf(text, "%" SCNu64 ":%64[0-9a-f]", index, hex) != 2 || strlen(hex) != 64)
        return neb__fail(NEB_ERR_INVALID, "--head reads INDEX:64-HEX-DIGITS, or 0");
    for (int i = 0; i < NEB_HASH_SIZE; i++) sscanf(hex + 2 * i, "%2hhx", &hash->b[i]);
    return NEB_OK;
}

/* Whether the folder takes part with this roster, and where its run stands. */
static bool under_way(const char *dir, const struct neb_chain *c, struct neb_rekey_head *head)
{
    char path[PATH_MAX];
    struct neb_chain *own = NULL;
    neb__log_head(dir, head);
    if (!head->index || snprintf(path, sizeof path, "%s/roster", dir) >= (int)sizeof path ||
        access(path, F_OK) || neb__chain_read(path, &own) != NEB_OK)
        return false;
    bool same = neb__hash_equal(&own->genesis_hash, &c->genesis_hash);
    neb__chain_free(own);
    return same;
}

static void note_named(void *arg, uint64_t epoch, uint64_t head, const struct neb_roster *r)
{
    bool *named = arg;
    (void)epoch, (void)r;
    *named |= head != 0;
}

/* An epoch without a record of the log changes the members with which a run begins. Sites of a run under way that get
 * such a one do not start any more. */
static neb_status may_begin_with(const struct neb_roster_options *o, const char *path,
                                 const struct neb_chain *c)
{
    struct neb_rekey_head head;
    char hex[2 * NEB_HASH_SIZE + 1];
    bool named = false;
    if (o->head) return NEB_OK;
    NEB_TRY(neb__chain_walk(c, note_named, &named));
    if (named) return NEB_OK; /* the beginning is over for everybody who has the chain */
    if (under_way(path, c, &head) || under_way(o->operator_, c, &head)) {
        neb__hash_hex(&head.hash, hex);
        return neb__fail(NEB_ERR_STATE,
                         "a run with this roster has begun, and stands at record %" PRIu64
                         ": change its members with `nebula-i order FOLDER admit|evict`; or sign the epoch "
                         "with --head %" PRIu64 ":%s (--head 0: that run was with another roster)",
                         head.index, head.index, hex);
    }
    fprintf(
        stderr,
        "if a run with this roster has begun, its sites do not start with this epoch: name the end of its "
        "log with --head, or change its members with `nebula-i order FOLDER admit|evict`\n");
    return NEB_OK;
}

/* Adds the epoch to the chain in `file`. */
static neb_status take_epoch(struct neb_chain *c, const char *file, const struct neb_buf *epoch)
{
    neb_status status = neb__chain_extend(c, epoch->data, epoch->len);
    if (status == NEB_ERR_AUTH && c->operators.threshold > 1)
        return neb__fail(
            status,
            "%u of %u operators must sign a roster: --operator DIR,DIR with the folders of %u; or "
            "change a run that is under way with `nebula-i order FOLDER … --to FILE`, which they "
            "sign one after the other",
            c->operators.threshold, c->operators.count, c->operators.threshold);
    if (status != NEB_OK) return neb__fail(status, "the new epoch is not valid: %s", neb_last_error());
    NEB_TRY(neb__chain_write(c, file, 0644));
    printf("epoch      %" PRIu64 "\n", c->epoch);
    neb__roster_print_hash("head", &c->head);
    return NEB_OK;
}

/* Signs `next` as the successor of the chain in `file` and writes it back. path: that file, or the folder that it is in.
 * said: the log's head, where --head does not say it; or NULL. */
static neb_status new_epoch(const struct neb_roster_options *o, const char *path, const char *file,
                            struct neb_chain *c, const struct neb_roster *next, enum neb_epoch_kind kind,
                            const struct neb_rekey_head *said)
{
    struct neb_operator_keys keys;
    struct neb_buf b;
    struct neb_hash head;
    uint64_t index;
    if (!o->operator_)
        return neb__fail(NEB_ERR_INVALID, "--operator DIR is needed: the operator signs the change");
    NEB_TRY(parse_head(o->head, &index, &head));
    if (!said || !said->index) NEB_TRY(may_begin_with(o, path, c)); /* a liar may have asked */
    if (!o->head && said) index = said->index, head = said->hash;
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX + 4);
    neb_status status = neb__operator_keys(o->operator_, &keys);
    if (status == NEB_OK)
        status = neb__chain_propose(c, kind, index, &head, next, (const struct neb_key *const *)keys.key,
                                    keys.n, &b);
    if (status == NEB_OK) status = take_epoch(c, file, &b);
    neb__buf_free(&b);
    neb__operator_keys_free(&keys);
    return status;
}

/* Before a run begins: the epoch names no record. Later the log must know, too. */
static neb_status new_operators(const struct neb_roster_options *o, const char *path, const char *file,
                                struct neb_chain *c, const struct neb_operators *set)
{
    struct neb_operator_keys keys;
    struct neb_buf b;
    struct neb_rekey_head head;
    const struct neb_hash none = {{0}};
    bool named = false;
    if (!o->operator_)
        return neb__fail(NEB_ERR_INVALID, "--operator DIR is needed: the operators before sign the change");
    NEB_TRY(neb__chain_walk(c, note_named, &named));
    if (named || under_way(path, c, &head))
        return neb__fail(NEB_ERR_STATE,
                         "a run with this roster has begun, and its log must know its operators: "
                         "nebula-i order FOLDER operators WHO,… --operator DIR");
    neb__buf_init(&b, NEB_EPOCH_BYTES_MAX + 4);
    neb_status status = neb__operator_keys(o->operator_, &keys);
    if (status == NEB_OK)
        status = neb__chain_propose_operators(c, set, 0, &none, (const struct neb_key *const *)keys.key,
                                              keys.n, &b);
    if (status == NEB_OK) status = take_epoch(c, file, &b);
    neb__buf_free(&b);
    neb__operator_keys_free(&keys);
    return status;
}

neb_status neb__roster_operators(struct neb_call *call)
{
    const struct neb_roster_options *o = call->options;
    char file[PATH_MAX];
    struct neb_chain *c;
    struct neb_operators set;
    NEB_TRY(neb__operator_set(call->words[1], o->threshold, &set));
    NEB_TRY(neb__roster_open(call->words[0], file, &c));
    neb_status status = new_operators(o, call->words[0], file, c, &set);
    neb__chain_free(c);
    return status;
}

neb_status neb__roster_evict(struct neb_call *call)
{
    const struct neb_roster_options *o = call->options;
    const char *path = call->words[0], *name = call->words[1];
    char file[PATH_MAX];
    struct neb_chain *c;
    struct neb_roster next = {0};
    NEB_TRY(neb__roster_open(path, file, &c));
    const struct neb_member *m = neb__roster_by_name(&c->now, name);
    neb_status status =
        m ? neb__roster_copy(&c->now, &next) : neb__fail(NEB_ERR_NOTFOUND, "no member '%s'", name);
    if (status == NEB_OK) {
        uint32_t votes = neb__roster_votes(&c->now), gone = m->votes, at = (uint32_t)(m - c->now.members);
        if (2 * (votes - gone) <= votes && gone && !o->force)
            status = neb__fail(
                NEB_ERR_INVALID,
                "without %s only %u of %u votes remain, no majority: make sure that it cannot still commit "
                "with others, then use --force",
                name, votes - gone, votes);
        memmove(&next.members[at], &next.members[at + 1], (next.count - at - 1) * sizeof *next.members);
        next.count--;
    }
    if (status == NEB_OK && neb__roster_meets(&next) != NEB_OK)
        fprintf(stderr, "warning: %s\n", neb_last_error()); /* its removal may matter more */
    if (status == NEB_OK) status = new_epoch(o, path, file, c, &next, NEB_EPOCH_EVICT, NULL);
    neb__roster_free(&next);
    neb__chain_free(c);
    return status;
}

neb_status neb__roster_rekey(struct neb_call *call)
{
    const struct neb_roster_options *o = call->options;
    char file[PATH_MAX];
    struct neb_chain *c;
    struct neb_roster next = {0};
    struct neb_buf text;
    struct neb_rekey_head head;
    NEB_TRY(neb__roster_open(call->words[0], file, &c));
    neb__buf_init(&text, 4096);
    neb_status status = neb__file_read(call->words[1], &text);
    if (status == NEB_OK) status = neb__rekey_check((const char *)text.data, text.len, c, &next, &head);
    if (status == NEB_OK) status = new_epoch(o, call->words[0], file, c, &next, NEB_EPOCH_CHANGE, &head);
    neb__roster_free(&next);
    neb__buf_free(&text);
    neb__chain_free(c);
    return status;
}

neb_status neb__roster_admit(struct neb_call *call)
{
    const struct neb_roster_options *o = call->options;
    char file[PATH_MAX];
    struct neb_chain *c;
    struct neb_roster next = {0};
    struct neb_member m;
    NEB_TRY(neb__roster_member(o, call->n - 1, call->words + 1, &m));
    NEB_TRY(neb__roster_open(call->words[0], file, &c));
    neb_status status = neb__roster_copy(&c->now, &next);
    if (status == NEB_OK) {
        uint32_t at = 0;
        while (at < next.count && strcmp(next.members[at].name, m.name)) at++;
        if (at < next.count) m.id = next.members[at].id; /* the same site with another key or address */
        next.members[at] = m;                            /* a copy has room for one more */
        if (at == next.count) next.count++;
        status = neb__roster_meets(&next);
        if (status == NEB_OK) status = new_epoch(o, call->words[0], file, c, &next, NEB_EPOCH_CHANGE, NULL);
    }
    neb__roster_free(&next);
    neb__chain_free(c);
    return status;
}
