/* test_status.c: the status of a site. A message comes back as it was, files and messages of the version
 * before are read, the older keys are written, hostile bytes do nothing, and docs/status.md has the table. */
#include "base/buf.h"
#include "base/file.h"
#include "check.h"
#include "watch/status.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static struct neb_site_status some_status(void)
{
    struct neb_site_status st = {.name = "tokyo",
                                 .job = "two",
                                 .strategy = "replica",
                                 .role = "train",
                                 .state = "waiting",
                                 .session = "training",
                                 .step = 1200,
                                 .own_steps = 200,
                                 .trained_tokens = 5000,
                                 .own_tokens = 900,
                                 .run_tokens = 12000,
                                 .loss = 3.25,
                                 .record = 17,
                                 .leader = true,
                                 .rung = "int4",
                                 .interval = 20,
                                 .reason = "it fits",
                                 .updates = 9,
                                 .sent_updates = 123456,
                                 .compute_s = 12.5,
                                 .share_wait = 2.5,
                                 .until = 400,
                                 .takes = 12.5,
                                 .starved = 0.25};
    neb__status_set_pace(&st);
    return st;
}

static void a_message_comes_back(void **state)
{
    (void)state;
    struct neb_site_status st = some_status(), got = {.age = 3, .up = true};
    char *text = neb__status_message(&st);
    assert_non_null(text);
    assert_true(strlen(text) < 3000);
    assert_true(neb__status_hear(text, strlen(text), NEB_STATUS_OLD_SITE, &got));
    assert_true(got.age == 3 && got.up); /* seen from here, not said */
    got.age = 0;
    got.up = false;
    assert_memory_equal(&got, &st, sizeof st);
    assert_string_equal(got.pace, "int4 every 20 steps");
    free(text);
}

/* A site of the version before finds its keys in our message. */
static void the_older_keys_are_there(void **state)
{
    (void)state;
    struct neb_site_status st = some_status();
    json_t *o = neb__status_object(&st, NEB_STATUS_OLD_SITE);
    assert_int_equal(json_integer_value(json_object_get(o, "tokens")), 12000);
    assert_int_equal(json_integer_value(json_object_get(o, "parcels")), 9);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "bytes_out"), "updates")), 123456);
    assert_true(json_real_value(json_object_get(json_object_get(o, "seconds"), "compute")) == 12.5);
    json_decref(o);
    o = neb__status_object(&st, NEB_STATUS_OLD_OUT);
    assert_string_equal(json_string_value(json_object_get(o, "site")), "tokyo");
    assert_int_equal(json_integer_value(json_object_get(o, "tokens")), 5000);
    assert_true(json_real_value(json_array_get(json_object_get(o, "time"), 2)) == 2.5);
    assert_string_equal(json_string_value(json_object_get(o, "state")), "waiting");
    json_decref(o);
    o = neb__status_object(&st, NEB_STATUS_OLD_API);
    assert_int_equal(json_integer_value(json_object_get(o, "steps")), 200);
    assert_int_equal(json_integer_value(json_object_get(o, "applied")), 17);
    assert_null(json_object_get(o, "up")); /* nobody sees it there */
    assert_null(json_object_get(o, "trains"));
    json_decref(o);
}

static void older_messages_are_read(void **state)
{
    (void)state;
    static const char status[] = "{\"name\":\"b\",\"state\":\"ending\",\"step\":261,\"own_tokens\":64487,"
                                 "\"tokens\":115550,\"record\":18,\"rung\":\"int2e\",\"interval\":10,"
                                 "\"parcels\":18,\"bytes_out\":{\"updates\":791391},"
                                 "\"seconds\":{\"compute\":2.06}}",
                      note[] = "{\"role\":\"train\",\"state\":\"training\",\"step\":283,\"steps\":1000,"
                               "\"tokens\":69849,\"loss\":5.5,\"rung\":\"int2e every 10 steps\","
                               "\"time\":[66,1,33,0],\"until\":400,\"takes\":2,\"starved\":0.5}";
    struct neb_site_status st = {0};
    assert_true(neb__status_hear(status, sizeof status - 1, NEB_STATUS_OLD_SITE, &st));
    assert_string_equal(neb__status_state(&st), "ending"); /* the loop has said nothing yet */
    assert_true(neb__status_hear(note, sizeof note - 1, NEB_STATUS_OLD_OUT, &st));
    assert_string_equal(neb__status_state(&st), "training");
    assert_string_equal(st.session, "ending");
    assert_string_equal(st.rung, "int2e");
    assert_string_equal(st.pace, "int2e every 10 steps");
    assert_true(st.own_steps == 261 && st.step == 283 && st.steps_planned == 1000);
    assert_true(st.run_tokens == 115550 && st.own_tokens == 64487 && st.trained_tokens == 69849);
    assert_true(st.updates == 18 && st.sent_updates == 791391 && st.compute_s == 2.06);
    assert_true(st.share_compute == 66 && st.share_wait == 33 && st.loss == 5.5);
    assert_true(st.until == 400 && st.takes == 2 && st.starved == 0.5);
}

/* Texts lose their control characters and keep to their room.
 * A value of another type leaves its field as it is. */
static void hostile_bytes_do_nothing(void **state)
{
    (void)state;
    struct neb_site_status st = some_status();
    static const char bad[] = "{\"session\":\"\\u001b[2J\\u009b1m\\u007f\",\"step\":-7,\"loss\":\"x\","
                              "\"record\":\"5\",\"leader\":1,\"rung\":{\"a\":1},\"reason\":null}";
    assert_true(neb__status_hear(bad, sizeof bad - 1, NEB_STATUS_OLD_SITE, &st));
    assert_string_equal(st.session, "?[2J??1m?");
    assert_true(st.step == 0 && st.loss == 3.25 && st.record == 17 && st.leader);
    assert_string_equal(st.rung, "int4");
    assert_string_equal(st.reason, "it fits");

    char wide[700] = "{\"session\":\"\",\"reason\":\"x";
    for (int i = 0; i < 150; i++) strcat(wide, "\xc3\xa9");
    strcat(wide, "\"}");
    assert_true(neb__status_hear(wide, strlen(wide), NEB_STATUS_OLD_SITE, &st));
    assert_int_equal(strlen(st.reason), sizeof st.reason - 1); /* whole characters: 1 + 2 * 99 */
    assert_int_equal((unsigned char)st.reason[198], 0xa9);

    struct neb_site_status before = st;
    static const char *const none[] = {"", "[]", "7", "{", "{\"step\":1,\"step\":2}", "{\"loss\":1e999}"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_false(neb__status_hear(none[i], strlen(none[i]), NEB_STATUS_OLD_SITE, &st));
    char *large = calloc(1, NEB_STATUS_BYTES + 2);
    assert_non_null(large);
    memset(large, ' ', NEB_STATUS_BYTES + 1);
    memcpy(large, "{}", 2);
    assert_false(neb__status_hear(large, NEB_STATUS_BYTES + 1, NEB_STATUS_OLD_SITE, &st));
    free(large);
    assert_memory_equal(&before, &st, sizeof st);
}

static void a_text_that_is_not_utf8_is_written(void **state)
{
    (void)state;
    struct neb_site_status st = {.note = "caf\xc3", .session = "halted"}, got = {0};
    char *text = neb__status_message(&st);
    assert_non_null(text);
    assert_true(neb__status_hear(text, strlen(text), NEB_STATUS_OLD_SITE, &got));
    assert_string_equal(got.note, "caf?");
    free(text);
}

static void a_file_comes_back(void **state)
{
    (void)state;
    struct neb_status_file *f = calloc(2, sizeof *f), *got = f + 1;
    char dir[200], path[240];
    assert_non_null(f);
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/status.json", dir);
    assert_status(neb__status_file_read(path, got), NEB_ERR_NOTFOUND);
    *f = (struct neb_status_file){.written = 1700000000, .n = 3, .self = 1};
    f->log = (struct neb_status_log){.record = 5, .members = 6, .heavy = 65535};
    memset(f->log.hash, 'a', 64);
    snprintf(f->site[0].name, sizeof f->site[0].name, "paris"); /* this site has said nothing */
    f->site[1] = f->site[2] = some_status();
    f->site[1].member = f->site[1].up = f->site[2].member = true;
    snprintf(f->site[2].name, sizeof f->site[2].name, "rome");
    f->site[2].age = 2.5;
    assert_ok(neb__status_file_write(dir, f));
    assert_ok(neb__status_file_read(path, got));
    assert_memory_equal(f, got, sizeof *f);

    json_t *all = json_load_file(path, 0, NULL), *members = json_object_get(all, "members");
    assert_int_equal(json_integer_value(json_object_get(all, "version")), 2);
    assert_string_equal(json_string_value(json_object_get(all, "job")), "two");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(all, "site"), "step")), 200);
    assert_int_equal(json_object_size(json_object_get(all, "others")), 1);
    assert_int_equal(json_array_size(members), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(members, 1), "state")), "away");
    json_decref(all);
    check_remove_dir(dir);
    free(f);
}

/* Written by version 0.1.0 before there was one status. */
static void older_files_are_read(void **state)
{
    (void)state;
    struct neb_status_file *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_ok(neb__status_file_read(NEB_TEST_DATA "/status/run-1.json", f));
    assert_true(f->n == 2 && f->self == 0 && f->log.record == 25 && f->log.voters == 6);
    assert_string_equal(f->site[0].name, "a");
    assert_string_equal(neb__status_state(&f->site[0]), "ended");
    assert_string_equal(f->site[1].name, "b");
    assert_true(f->site[1].own_steps == 261 && f->site[1].run_tokens == 115550 && f->site[1].age == 1.5);
    assert_ok(neb__status_file_read(NEB_TEST_DATA "/status/out-1.json", f));
    assert_true(f->n == 2 && f->self == 0 && f->site[1].step == 283 && f->site[0].trained_tokens == 93890);
    assert_string_equal(f->site[0].job, "two");
    assert_string_equal(f->site[1].name, "b");
    assert_string_equal(f->site[1].pace, "int2e every 10 steps");
    free(f);
}

/* A site that was not heard of may come before the one that wrote the file. */
static void the_writer_of_an_older_file_is_found(void **state)
{
    (void)state;
    static const char text[] = "{\"job\":\"two\",\"strategy\":\"relay\",\"written\":1,\"sites\":["
                               "{\"site\":\"a\",\"age\":0.0},"
                               "{\"site\":\"b\",\"role\":\"train\",\"state\":\"done\",\"age\":2.5},"
                               "{\"site\":\"c\",\"role\":\"train\",\"state\":\"done\",\"age\":0.0}]}";
    struct neb_status_file *f = calloc(1, sizeof *f);
    char dir[200], path[240];
    assert_non_null(f);
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/status.json", dir);
    assert_ok(neb__file_replace(path, text, sizeof text - 1, 0644));
    assert_ok(neb__status_file_read(path, f));
    assert_int_equal(f->self, 2);
    assert_string_equal(f->site[2].job, "two");
    assert_string_equal(f->site[2].strategy, "relay");
    check_remove_dir(dir);
    free(f);
}

/* A job's name is any text. Alone, it stands for the site's, too. */
static void any_name_is_written_and_found(void **state)
{
    (void)state;
    struct neb_status_file *f = calloc(2, sizeof *f), *got = f + 1;
    char dir[200], path[240];
    assert_non_null(f);
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/status.json", dir);
    static const char *const names[] = {"caf\xc3", "two\tlines\n", "caf\xc3\xa9", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *f = (struct neb_status_file){.n = 1, .site[0] = {.state = "training", .role = "alone"}};
        snprintf(f->site[0].job, sizeof f->site[0].job, "%s", names[i]);
        snprintf(f->site[0].name, sizeof f->site[0].name, "%s", names[i]);
        assert_ok(neb__status_file_write(dir, f));
        assert_ok(neb__status_file_read(path, got));
        assert_int_equal(got->self, 0);
    }
    check_remove_dir(dir);
    free(f);
}

static void the_manual_has_the_table(void **state)
{
    (void)state;
    struct neb_buf table, page;
    neb__buf_init(&table, 1 << 20);
    neb__buf_init(&page, 1 << 20);
    assert_ok(neb__status_fields_table(&table));
    assert_ok(neb__buf_append(&table, "", 1));
    assert_ok(neb__file_read(NEB_TEST_DATA "/../../docs/status.md", &page));
    assert_ok(neb__buf_append(&page, "", 1));
    if (!strstr((char *)page.data, (char *)table.data))
        fail_msg("docs/status.md does not hold what `nebula-i status --fields` prints");
    neb__buf_free(&table);
    neb__buf_free(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_comes_back),
        cmocka_unit_test(the_older_keys_are_there),
        cmocka_unit_test(older_messages_are_read),
        cmocka_unit_test(hostile_bytes_do_nothing),
        cmocka_unit_test(a_text_that_is_not_utf8_is_written),
        cmocka_unit_test(a_file_comes_back),
        cmocka_unit_test(older_files_are_read),
        cmocka_unit_test(the_writer_of_an_older_file_is_found),
        cmocka_unit_test(any_name_is_written_and_found),
        cmocka_unit_test(the_manual_has_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
