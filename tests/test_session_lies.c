/* test_session_lies.c: members that are broken or lie, met by whole sessions: an update that does not decode, a cell without
 * a proof, a newcomer with another model. The others go on. */
#include "check.h"
#include "sites.h"
#include "base/bytes.h"
#include "base/mem.h"
#include "run/peer_cells.h"

#include <math.h>
#include <nebula/nebula.h>
#include <string.h>

enum { VALUES = 300000, SITES = 3 };

struct member {
    neb_session *s;
    float *x;
};

static void begin(struct member *m, const char *folder)
{
    struct neb_session_config c = neb_session_defaults();
    c.interval = 5;
    c.fragments = 2;
    c.round_ms = 500;
    c.rung = "int8";
    assert_ok(neb_session_open(folder, &c, &m->s));
    struct neb_session_param p = {.name = "p", .ndim = 1, .shape = {VALUES}, .values = m->x};
    assert_ok(neb_session_register(m->s, &p));
    assert_ok(neb_session_start(m->s, 0));
}

static void end(struct member *m)
{
    neb_session_close(m->s);
    neb__free(m->x);
}

static struct neb_session_status status(const struct member *m)
{
    struct neb_session_status st;
    neb_session_get_status(m->s, &st);
    return st;
}

/* Steps of all until the first has applied so many records, or somebody stops. */
static void walk(struct member *m, int n, int64_t records)
{
    for (int i = 0; i < 3000 && status(&m[0]).applied < records; i++) {
        for (int k = 0; k < n; k++) {
            bool changed;
            for (int v = i % 7; v < VALUES; v += 7) m[k].x[v] += 0.01f * ((float)k - m[k].x[v]);
            neb_status st = neb_step_within(m[k].s, 64, 0.01, &changed);
            if (st != NEB_OK && st != NEB_ERR_AGAIN) return;
        }
        sleep_ms(5);
    }
}

/* Signed, of the right length, for a record that may come: one of its values is not a number. */
static void send_undecodable(neb_session *s, uint16_t to)
{
    size_t first, n = neb__mirror_range(&s->mirror, 0, 1, &first), size = neb__codec_bound(s->exact, n);
    uint8_t *b = neb__calloc(1, NEB_UPDATE_HEADER_SIZE + size), *code = b + NEB_UPDATE_HEADER_SIZE;
    pthread_mutex_lock(&s->busy);
    memcpy(code, "NC\1", 3);
    code[3] = s->exact->id;
    neb__put32(code + 4, (uint32_t)n);
    neb__put32(code + 8, (uint32_t)(size - NEB_CODEC_HEADER));
    neb__put32(code + 12, (uint32_t)(size - NEB_CODEC_HEADER));
    neb__put32(code + NEB_CODEC_HEADER, 0x7fc00000);
    struct neb_update_header h = {.site = s->self,
                                  .c1 = 1,
                                  .k = s->updates.last_k + 1000,
                                  .b = neb__round_version(s->core, 0),
                                  .tau = 10,
                                  .weight = 64,
                                  .tokens = 640,
                                  .rung = s->exact->id,
                                  .length = (uint32_t)size};
    struct neb_codec_info info;
    assert_ok(neb__codec_peek(code, size, &info));
    const struct neb_seal seal = neb__session_seal(s);
    assert_ok(neb__update_header_sign(&h, code, &s->genesis, &seal));
    neb__update_header_put(&h, b);
    neb__session_send(s, to, NEB_ROUND, NEB_MSG_UPDATE, b, NEB_UPDATE_HEADER_SIZE + size);
    pthread_mutex_unlock(&s->busy);
    neb__free(b);
}

static void an_update_that_does_not_decode_is_not_taken(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[SITES];
    sites_make(&sites, SITES, NULL);
    for (int i = 0; i < SITES; i++) {
        m[i].x = neb__calloc(VALUES, sizeof(float));
        begin(&m[i], sites.path[i]);
    }
    walk(m, SITES, 4);
    check_log_quiet();
    for (int i = 0; i < 5; i++) {
        for (int to = 0; to < 2; to++) send_undecodable(m[2].s, m[to].s->self);
        walk(m, 2, status(&m[0]).applied + 2);
    }
    check_log_restore();
    for (int i = 0; i < SITES; i++) {
        if (status(&m[i]).halted) fail_msg("site %d stopped: %s", i, status(&m[i]).note);
        assert_true(status(&m[i]).applied >= 10);
        end(&m[i]);
    }
    sites_free(&sites);
}

/* An update that no record can name any more does not stay for ever. */
static void late_updates_are_removed(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[2];
    sites_make(&sites, 2, NULL);
    for (int i = 0; i < 2; i++) {
        m[i].x = neb__calloc(VALUES, sizeof(float));
        begin(&m[i], sites.path[i]);
    }
    walk(m, 2, 12);
    neb_session *from = m[1].s, *to = m[0].s;
    uint8_t code[4096], whole[NEB_UPDATE_HEADER_SIZE + sizeof code];
    struct neb_buf b;
    struct neb_hash hash;
    size_t first, n = neb__mirror_range(&from->mirror, 0, 1, &first);
    float *z = neb__calloc(n, sizeof *z);
    neb__buf_init(&b, 1 << 22);
    assert_ok(neb__codec_encode(neb__rung_by_name("sparse2.k256"), &(struct neb_codec_input){.z = z, .n = n},
                                NULL, NULL, &b));
    assert_true(b.len <= sizeof code);
    memcpy(code, b.data, b.len);
    struct neb_update_header h = {.site = from->self,
                                  .c1 = 1,
                                  .k = 1,
                                  .tau = 1,
                                  .weight = 1,
                                  .tokens = 1,
                                  .cls = NEB_SPARSE,
                                  .rung = neb__rung_by_name("sparse2.k256")->id,
                                  .length = (uint32_t)b.len};
    const struct neb_seal seal = neb__session_seal(from);
    assert_ok(neb__update_header_sign(&h, code, &from->genesis, &seal));
    neb__update_header_put(&h, whole);
    memcpy(whole + NEB_UPDATE_HEADER_SIZE, code, b.len);
    assert_ok(neb__hash(whole, NEB_UPDATE_HEADER_SIZE + b.len, &hash));
    pthread_mutex_lock(&to->busy);
    neb__session_update(to, from->self, whole, NEB_UPDATE_HEADER_SIZE + b.len);
    assert_true(neb__update_exists(&to->updates.files, &hash));
    uint64_t bytes = to->updates.files.bytes;
    to->updates.keep.orphans_at = (uint64_t)-64; /* due */
    neb__session_sweep(to);
    assert_false(neb__update_exists(&to->updates.files, &hash));
    assert_true(to->updates.files.bytes + NEB_UPDATE_HEADER_SIZE + b.len <= bytes);
    for (uint64_t i = to->updates.keep.swept + 1; i <= 12;
         i++) { /* those that a record names are not among them */
        const struct neb_record *rec = neb__round_record(to->core, i);
        for (uint32_t k = 0; rec && rec->type == NEB_RECORD_ROUND && k < rec->updates; k++)
            assert_true(neb__update_exists(&to->updates.files, &rec->update[k].hash));
    }
    pthread_mutex_unlock(&to->busy);
    walk(m, 2, 16);
    assert_true(status(&m[0]).applied >= 16 && !status(&m[0]).halted);
    neb__buf_free(&b);
    neb__free(z);
    for (int i = 0; i < 2; i++) end(&m[i]);
    sites_free(&sites);
}

static void a_cell_without_a_proof_takes_no_place(void **state)
{
    (void)state;
    struct sites sites;
    struct member m = {.x = neb__calloc(VALUES, sizeof(float))};
    sites_make(&sites, 2, NULL);
    begin(&m, sites.path[0]);
    neb_session *s = m.s;
    size_t first, n = neb__mirror_range(&s->mirror, 0, 1, &first), size = 28 + 8 * n;
    uint8_t *b = neb__malloc(size);
    memset(b, 0x41, size);
    neb__put32(b, 0);
    neb__put64(b + 4, 7);
    neb__put64(b + 12, 9);
    neb__put32(b + 20, (uint32_t)n);
    neb__put32(b + 24, 0);
    pthread_mutex_lock(&s->busy);
    float *good = neb__calloc(2 * n, sizeof *good);
    s->fetched[0] = (struct neb_fetched_cell){
        .asked = neb__bit(2), .version = 7, .index = 9, .theta = good, .m = good + n};
    neb__session_cell(s, 2, b, size);
    assert_ptr_equal(s->fetched[0].theta, good);
    assert_true(good[5] == 0 && good[n + 5] == 0);
    pthread_mutex_unlock(&s->busy);
    neb__free(b);
    end(&m);
    sites_free(&sites);
}

static void a_newcomer_with_another_model_stops_alone(void **state)
{
    (void)state;
    struct sites sites;
    struct member m[SITES];
    sites_make(&sites, SITES, NULL);
    for (int i = 0; i < SITES; i++) m[i].x = neb__calloc(VALUES, sizeof(float));
    for (int i = 0; i < 2; i++) begin(&m[i], sites.path[i]);
    walk(m, 2, 4);
    m[2].x[5] = 1;
    check_log_quiet();
    begin(&m[2], sites.path[2]);
    for (int i = 0; i < 4000 && !status(&m[2]).halted; i++) sleep_ms(25);
    assert_true(status(&m[2]).halted);
    assert_non_null(strstr(status(&m[2]).note, "initial values"));
    walk(m, 2, status(&m[0]).applied + 4);
    check_log_restore();
    for (int i = 0; i < 2; i++)
        if (status(&m[i]).halted) fail_msg("site %d stopped: %s", i, status(&m[i]).note);
    assert_true(status(&m[0]).applied >= 8);
    for (int i = 0; i < SITES; i++) end(&m[i]);
    sites_free(&sites);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_that_does_not_decode_is_not_taken),
        cmocka_unit_test(late_updates_are_removed),
        cmocka_unit_test(a_cell_without_a_proof_takes_no_place),
        cmocka_unit_test(a_newcomer_with_another_model_stops_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
