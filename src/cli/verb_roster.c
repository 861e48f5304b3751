/* verb_roster.c: `nebula-i roster`: collects identities into a run's genesis, and changes the roster later.
 *
 * Before the run there is a draft, a text file that may be edited by hand: one member a line, `#` begins a comment,
 *
 *     IDENTITY [ADDRESS…] [votes=N] [witness] [learner] [observer]
 *
 * `seal` turns it into the genesis: from then on a file is a signed chain (seal/roster.h), and every change is an epoch
 * that the operator's key signs. */
#include "cli/member_words.h"
#include "cli/operator_words.h"
#include "cli/roster_change.h"
#include "cli/verb.h"
#include "run/influence.h"
#include "run/quorum_fact.h"
#include "run/settings_fact.h"
#include "base/file.h"
#include "base/printable.h"
#include "seal/rekey.h"
#include "seal/site.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct neb_opt table[] = {
    NEB_OPT_AS(struct neb_roster_options, operator_, "operator", NEB_OPT_TEXT, "", NULL,
               "site folder of the run's operator; of several with commas between (seal: or identities)"),
    NEB_OPT(struct neb_roster_options, threshold, NEB_OPT_INT, "0", NULL,
            "seal, operators: how many of several operators must sign; 0: more than half",
            NEB_OPT_RANGE(0, NEB_OPERATORS_MAX)),
    NEB_OPT(struct neb_roster_options, job, NEB_OPT_TEXT, "", NULL,
            "seal: the job file; its hash becomes a fact of the genesis"),
    NEB_OPT(struct neb_roster_options, influence, NEB_OPT_TEXT, NEB_INFLUENCE_DEFAULT, NULL,
            "seal: what one site can do to the model: clip=F bound=F combine=mean|trimmed|median liars=N "
            "weights=equal|auto|N; or off"),
    NEB_OPT(struct neb_roster_options, quorum, NEB_OPT_TEXT, "majority", NULL,
            "seal: voters that decide: majority, or byzantine (2f + 1 of 3f + 1, so f may lie)"),
    NEB_OPT(struct neb_roster_options, votes, NEB_OPT_INT, "1", NULL,
            "votes of the member; 2 for a survivor of two", NEB_OPT_RANGE(0, 2)),
    NEB_OPT(struct neb_roster_options, witness, NEB_OPT_BOOL, "no", NULL,
            "the member votes and stores, but does not train"),
    NEB_OPT(struct neb_roster_options, learner, NEB_OPT_BOOL, "no", NULL,
            "the member follows and has no vote yet"),
    NEB_OPT(struct neb_roster_options, observer, NEB_OPT_BOOL, "no", NULL,
            "the member follows the run and gets its model; it never votes or trains"),
    NEB_OPT(struct neb_roster_options, head, NEB_OPT_TEXT, "", NULL,
            "evict, admit, rekey: INDEX:HASH of the log's head; 0: no run has begun with this roster"),
    NEB_OPT(struct neb_roster_options, force, NEB_OPT_BOOL, "no", NULL,
            "evict: even when the others had no majority before"),
    NEB_OPT(struct neb_roster_options, replace, NEB_OPT_BOOL, "no", NULL,
            "join: in place of the roster that the folder has, which is kept as roster.before"),
    NEB_OPT_END,
};

static neb_status draft_word(struct neb_member *m, const char *word)
{
    if (!strcmp(word, "observer"))
        m->flags |= NEB_MEMBER_OBSERVES, m->votes = 0;
    else if (!strcmp(word, "witness"))
        m->flags |= NEB_MEMBER_WITNESS;
    else if (!strcmp(word, "learner"))
        m->flags |= NEB_MEMBER_LEARNER, m->votes = 0;
    else if (!strncmp(word, "votes=", 6) && word[6] >= '0' && word[6] <= '2' && !word[7])
        m->votes = (uint8_t)(word[6] - '0');
    else
        return neb__member_address(m, word);
    return NEB_OK;
}

static neb_status draft_line(char *line, struct neb_roster *r)
{
    char *save, *word = strtok_r(line, " \t", &save);
    if (!word) return NEB_OK;
    if (r->count >= NEB_MEMBERS_MAX)
        return neb__fail(NEB_ERR_INVALID, "more than %d members", NEB_MEMBERS_MAX);
    struct neb_member *m = &r->members[r->count];
    *m = (struct neb_member){.votes = 1};
    NEB_TRY(neb__member_identity(word, m));
    while ((word = strtok_r(NULL, " \t", &save))) NEB_TRY(draft_word(m, word));
    r->count++;
    return NEB_OK;
}

/* A comment begins with a `#` that stands before a word; the address of a relay host has one inside. */
static void cut_comment(char *line)
{
    line[strcspn(line, "\r")] = 0;
    for (char *p = line; (p = strchr(p, '#')); p++)
        if (p == line || p[-1] == ' ' || p[-1] == '\t') {
            *p = 0;
            return;
        }
}

static neb_status draft_read(const char *path, struct neb_roster *r)
{
    struct neb_buf b;
    neb__buf_init(&b, 1 << 20);
    neb_status status = neb__file_read(path, &b);
    if (status == NEB_OK) status = neb__buf_append(&b, "", 1);
    int number = 1;
    for (char *line = (char *)b.data; status == NEB_OK && line; number++) {
        char *end = strchr(line, '\n');
        if (end) *end++ = 0;
        cut_comment(line);
        status = draft_line(line, r);
        if (status != NEB_OK) fprintf(stderr, "this is in line %d of %s\n", number, path);
        line = end;
    }
    neb__buf_free(&b);
    return status;
}

static const char *role_word(const struct neb_member *m)
{
    if (m->flags & NEB_MEMBER_OBSERVER) return " observer";
    return m->flags & NEB_MEMBER_WITNESS ? " witness" : "";
}

static neb_status add(struct neb_call *c)
{
    const char *draft = c->words[0];
    struct neb_member m;
    char identity[NEB_IDENTITY_SIZE];
    NEB_TRY(neb__roster_member(c->options, c->n - 1, c->words + 1, &m));
    FILE *f = fopen(draft, "a");
    if (!f) return neb__fail(NEB_ERR_IO, "cannot write %s", draft);
    neb__identity_format(m.name, &m.key, identity);
    fprintf(f, "%s", identity);
    for (int i = 0; i < m.addresses; i++) fprintf(f, " %s", m.address[i]);
    if (m.votes != 1 && !(m.flags & (NEB_MEMBER_LEARNER | NEB_MEMBER_OBSERVER)))
        fprintf(f, " votes=%d", m.votes);
    fprintf(f, "%s%s\n", role_word(&m), m.flags & NEB_MEMBER_LEARNER ? " learner" : "");
    int bad = ferror(f);
    return fclose(f) || bad ? neb__fail(NEB_ERR_IO, "cannot write %s", draft) : NEB_OK;
}

static neb_status job_fact(const char *path, struct neb_fact *f)
{
    struct neb_buf b;
    struct neb_hash h;
    neb__buf_init(&b, 64 << 20);
    neb_status status = neb__file_read(path, &b);
    if (status == NEB_OK) status = neb__hash(b.data, b.len, &h);
    neb__buf_free(&b);
    if (status != NEB_OK) return status;
    *f = (struct neb_fact){.name = "job", .size = NEB_HASH_SIZE};
    memcpy(f->value, h.b, NEB_HASH_SIZE);
    return NEB_OK;
}

/* Sites that no other can dial have no line to each other. */
static void say_far(const struct neb_roster *r)
{
    const char *last = NULL;
    int n = 0;
    for (uint32_t i = 0; i < r->count; i++) n += !r->members[i].addresses;
    if (n < 2) return;
    fprintf(stderr, "without an address, so they reach each other through the others: ");
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->members[i].addresses) continue;
        fprintf(stderr, "%s%s", last ? ", " : "", r->members[i].name);
        last = r->members[i].name;
    }
    fprintf(stderr, "\n");
}

static neb_status seal(struct neb_call *c)
{
    static struct neb_member members[NEB_MEMBERS_MAX];
    const struct neb_roster_options *o = c->options;
    const char *draft = c->words[0], *file = c->words[1];
    struct neb_roster r = {members, 0};
    struct neb_fact fact[6];
    uint32_t facts = 0, train = 0, voters = 0;
    struct neb_public operator_key;
    struct neb_operators operators;
    struct neb_chain *chain = NULL;
    struct stat st;
    if (!o->operator_) return neb__fail(NEB_ERR_CONFIG, "nebula-i roster seal: --operator DIR is needed");
    if (!stat(file, &st)) return neb__fail(NEB_ERR_EXISTS, "%s exists already", file);
    NEB_TRY(draft_read(draft, &r));
    NEB_TRY(neb__roster_meets(&r));
    NEB_TRY(neb__operator_set(o->operator_, o->threshold, &operators));
    NEB_TRY(neb__operators_name(&operators, &operator_key));
    for (uint32_t i = 0; i < r.count; i++) train += !(members[i].flags & NEB_MEMBER_WITNESS);
    for (uint32_t i = 0; i < r.count; i++) voters += members[i].votes > 0;
    neb__fact_runs(&fact[facts++]);
    neb__settings_fact(&fact[facts++]);
    if (operators.count > 1) NEB_TRY(neb__fact_operators(&operators, &fact[facts++]));
    if (o->job) NEB_TRY(job_fact(o->job, &fact[facts++]));
    if (strcmp(o->influence, "off")) NEB_TRY(neb__influence_fact(o->influence, train, &fact[facts++]));
    NEB_TRY(neb__quorum_fact(o->quorum, voters, &fact[facts++]));
    NEB_TRY(neb__chain_create(&operator_key, fact, facts, &r, &chain));
    neb_status status = neb__chain_write(chain, file, 0644);
    if (status == NEB_OK) {
        neb__roster_print_hash("genesis", &chain->genesis_hash);
        fflush(stdout);
        fprintf(stderr,
                "every site takes a copy of this file into its folder DIR:\n  nebula-i roster join %s DIR\n",
                file);
        say_far(&r);
    }
    neb__chain_free(chain);
    return status;
}

/* Somebody else may have written the genesis. */
static void print_rule(const struct neb_fact *f)
{
    char text[NEB_INFLUENCE_TEXT];
    snprintf(text, sizeof text, "%.*s", (int)f->size, (const char *)f->value);
    neb__text_clean(text);
    printf("%-10s %s\n", f->name, text);
}

static void print_member(const char *label, const struct neb_member *m)
{
    char identity[NEB_IDENTITY_SIZE];
    neb__identity_format(m->name, &m->key, identity);
    printf("%s %s votes=%d%s%s", label, identity, m->votes, role_word(m),
           m->flags & NEB_MEMBER_LEARNER ? " learner" : "");
    for (int a = 0; a < m->addresses; a++) printf(" %s", m->address[a]);
    printf("\n");
}

static void print_operators(const struct neb_operators *set)
{
    if (set->count > 1) printf("%-10s %u of %u must sign\n", "operators", set->threshold, set->count);
    for (int i = 0; i < set->count; i++) {
        printf("%-10s ", "operator");
        for (int k = 0; k < NEB_PUBLIC_SIZE; k++) printf("%02x", set->key[i].b[k]);
        printf("\n");
    }
}

/* A draft is a text file; a sealed roster begins with bytes that no text has. */
static bool is_draft(const char *path)
{
    char head[512];
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(head, 1, sizeof head, f) : 0;
    bool text = n > 0;
    if (f) fclose(f);
    for (size_t i = 0; i < n; i++)
        text &= (unsigned char)head[i] >= ' ' || (head[i] && strchr("\n\t\r", head[i]));
    return text;
}

static neb_status show_draft(const char *path)
{
    static struct neb_member members[NEB_MEMBERS_MAX];
    struct neb_roster r = {members, 0};
    NEB_TRY(draft_read(path, &r));
    printf("a draft, not sealed yet\n");
    for (uint32_t i = 0; i < r.count; i++) print_member("member", &r.members[i]);
    printf("to seal it: nebula-i roster seal %s FILE --operator DIR\n", path);
    return NEB_OK;
}

static neb_status show(struct neb_call *call)
{
    char file[PATH_MAX];
    struct neb_chain *c;
    if (is_draft(call->words[0])) return show_draft(call->words[0]);
    NEB_TRY(neb__roster_open(call->words[0], file, &c));
    printf("run        ");
    for (int i = 0; i < NEB_RUN_ID_SIZE; i++) printf("%02x", c->run_id[i]);
    printf("\n");
    neb__roster_print_hash("genesis", &c->genesis_hash);
    printf("epoch      %" PRIu64 "\n", c->epoch);
    neb__roster_print_hash("head", &c->head);
    for (uint32_t i = 0; i < c->fact_count; i++)
        if (!strcmp(c->facts[i].name, NEB_INFLUENCE_FACT) || !strcmp(c->facts[i].name, NEB_QUORUM_FACT))
            print_rule(&c->facts[i]);
    print_operators(&c->operators);
    for (uint32_t i = 0; i < c->now.count; i++) {
        char label[24];
        snprintf(label, sizeof label, "member %-3u", c->now.members[i].id);
        print_member(label, &c->now.members[i]);
    }
    neb__chain_free(c);
    return NEB_OK;
}

/* The runs under the old roster stay in the folder; they go on if it is put back. */
static neb_status keep_before(const char *dir, const struct neb_chain *old)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/roster.before", dir) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    return neb__chain_write(old, path, 0600);
}

/* The site must not run while its key changes. */
static neb_status take_key(const char *dir, const struct neb_chain *c, bool *rekeyed)
{
    char path[PATH_MAX], next[PATH_MAX];
    int lock = -1;
    *rekeyed = false;
    if (snprintf(next, sizeof next, "%s/site.key.next", dir) >= (int)sizeof next ||
        snprintf(path, sizeof path, "%s/lock", dir) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    struct stat st;
    if (!stat(next, &st)) {
        neb_status status = neb__file_lock(path, NEB_LOCK_FILE, &lock);
        if (status == NEB_ERR_BUSY)
            return neb__fail(status, "the site in %s runs: stop it, so that it can take its new key", dir);
        NEB_TRY(status);
    }
    neb_status status = neb__rekey_take(dir, c, rekeyed);
    if (lock >= 0) close(lock);
    if (status == NEB_OK && *rekeyed) fprintf(stderr, "%s has its new key\n", dir);
    return status;
}

/* A site may take a longer chain of its own roster, and another roster only on demand. */
static neb_status join(struct neb_call *call)
{
    const char *file = call->words[0], *dir = call->words[1];
    const struct neb_roster_options *o = call->options;
    char name[NEB_NAME_SIZE], old_path[PATH_MAX];
    struct neb_public key;
    struct neb_chain *c = NULL, *old = NULL;
    struct stat st;
    neb_status status = neb__chain_read(file, &c);
    if (status == NEB_OK) status = neb__site_identity(dir, name, &key);
    if (status != NEB_OK) goto out;
    snprintf(old_path, sizeof old_path, "%s/roster", dir);
    if (!stat(old_path, &st)) {
        NEB_TRY_GOTO(status, neb__chain_read(old_path, &old), out);
        bool another = !neb__hash_equal(&old->genesis_hash, &c->genesis_hash);
        if (another && !o->replace) {
            status = neb__fail(NEB_ERR_EXISTS,
                               "%s takes part in another run already, with another roster; use another site "
                               "folder, or --replace to give up that roster and keep the key",
                               dir);
            goto out;
        }
        NEB_TRY_GOTO(
            status, another ? keep_before(dir, old) : neb__chain_extend(old, c->tail.data, c->tail.len), out);
        if (another) old->epoch = 0; /* it does not count below */
    }
    const struct neb_chain *newest = old && old->epoch > c->epoch ? old : c;
    bool rekeyed;
    NEB_TRY_GOTO(status, take_key(dir, newest, &rekeyed), out);
    if (rekeyed) NEB_TRY_GOTO(status, neb__site_identity(dir, name, &key), out);
    if (!neb__roster_by_key(&newest->now, &key))
        status =
            neb__fail(NEB_ERR_NOTFOUND,
                      "site '%s' is not in this roster (epoch %" PRIu64
                      "); the operator adds it: nebula-i roster admit %s IDENTITY --operator DIR, with what "
                      "nebula-i site show %s prints",
                      name, newest->epoch, file, dir);
    else
        status = neb__site_roster_save(dir, newest);
out:
    neb__chain_free(c);
    neb__chain_free(old);
    return status;
}

static const struct neb_verb parts[] = {
    {.name = "add",
     .args = "DRAFT IDENTITY|DIR [ADDRESS…]",
     .help = "one more member in a draft (a text file)",
     .least = 2,
     .most = NEB_ANY_NUMBER,
     .run = add},
    {.name = "seal",
     .args = "DRAFT FILE --operator WHO[,WHO…] [--threshold M] [--influence RULE] [--quorum RULE]",
     .help = "the draft becomes the run's genesis",
     .least = 2,
     .most = 2,
     .run = seal},
    {.name = "join",
     .args = "FILE DIR [--replace]",
     .help = "the site in DIR takes part in this run",
     .least = 2,
     .most = 2,
     .run = join},
    {.name = "show",
     .args = "FILE|DIR",
     .help = "members, votes, addresses, epoch, hashes",
     .least = 1,
     .most = 1,
     .run = show},
    {.name = "admit",
     .args = "FILE IDENTITY|DIR [ADDRESS…] --operator DIR",
     .help = "a new member, or its new key",
     .least = 2,
     .most = NEB_ANY_NUMBER,
     .run = neb__roster_admit},
    {.name = "rekey",
     .args = "FILE REQUEST --operator DIR",
     .help = "gives a member the new key that it asks for (nebula-i site rekey)",
     .least = 2,
     .most = 2,
     .run = neb__roster_rekey},
    {.name = "operators",
     .args = "FILE WHO[,WHO…] --operator DIR [--threshold M]",
     .help = "other operators, before a run begins; those before sign",
     .least = 2,
     .most = 2,
     .run = neb__roster_operators},
    {.name = "evict",
     .args = "FILE NAME --operator DIR",
     .help = "takes a member out; its key is worth nothing",
     .least = 2,
     .most = 2,
     .run = neb__roster_evict},
    {0},
};

const struct neb_verb neb__verb_roster = {
    .name = "roster",
    .args = "",
    .help = "collect a run's members, change them",
    .about = "An ADDRESS reads HOST:PORT; a site behind NAT needs none if all its peers have one. The "
             "operator is the\n"
             "holder of any site folder made with `nebula-i site init`; it signs changes and need not be a "
             "member.",
    .options = {{table, 0}},
    .size = sizeof(struct neb_roster_options),
    .parts = parts,
};
