/* test_job.c: job files are read as they say, and every mistake is answered with file,
 * line and what to do. */
#include "check.h"
#include "base/mem.h"
#include "job/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[200], path[256];

static neb_status read_job(const char *text, char *const *words, int n, struct neb_job *j)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return neb__job_read(path, words, n, j);
}

static const char good[] = "name: tiny\n"
                           "task: translate   # a comment\n"
                           "model:\n"
                           "  family: marian\n"
                           "  hidden: 128\n"
                           "train: {steps: 20, lr: 5e-3}\n"
                           "data:\n"
                           "  - file: a.tsv\n"
                           "    lang: en-de\n"
                           "  - {file: b.en, second: b.de, lang: en-de, use: valid}\n"
                           "peft:\n"
                           "  method: [lora, bias]\n";

static void a_job_is_read(void **state)
{
    (void)state;
    struct neb_job j;
    char *words[] = {(char *)"train.steps=7", (char *)"model.heads=2"};
    assert_ok(read_job(good, words, 2, &j));
    assert_string_equal(j.objective->name, "translate");
    assert_true(j.train.steps == 7 && j.train.lr == 5e-3 && j.train.micro == 1);
    assert_true(j.model.hidden == 128 && j.model.heads == 2);
    assert_string_equal(j.model.activation, "silu"); /* of the family */
    assert_string_equal(j.peft.method, "lora,bias");
    assert_int_equal(j.n_data, 2);
    assert_string_equal(j.data[1].second, "b.de");
    neb__job_free(&j);
}

/* An empty key has its default, in the file and on the command line. */
static void an_empty_value_is_the_default(void **state)
{
    (void)state;
    struct neb_job j;
    char *words[] = {(char *)"train.device=", (char *)"model.family=", (char *)"task=", (char *)"cache="};
    assert_ok(read_job("out:\nname: ''\ntrain:\n  dtype:\npeft: {method: }\nwan: {rung: }\n"
                       "sites: [{name: a}]\n",
                       words, 4, &j));
    assert_string_equal(j.out, "out");
    assert_string_equal(j.name, "job");
    assert_string_equal(j.task, "mlm");
    assert_string_equal(j.train.device, "cpu");
    assert_string_equal(j.train.dtype, "f32");
    assert_string_equal(j.wan.rung, "auto");
    assert_null(j.cache);
    neb__job_free(&j);
    assert_ok(read_job("task: causal\nmodel: {kind: }\nsites: [{name: a, train: {device: }}]\n"
                       "train: {device: cuda}\ndata: [{file: x}]\n",
                       NULL, 0, &j));
    assert_string_equal(j.model.kind, "decoder"); /* the family's */
    assert_ok(neb__job_at(&j, "a"));
    assert_string_equal(j.train.device, "cuda");
    neb__job_free(&j);
}

static void a_section_may_be_empty(void **state)
{
    (void)state;
    struct neb_job j;
    assert_ok(
        read_job("wan:\n  # interval: 10\ntrain: {}\nmodel:\ndata:\ngenerator:\npeft:\ninit:\ndistill:\n"
                 "tokenizer:\nsites:\n  - name: a\n    train:\n",
                 NULL, 0, &j));
    assert_int_equal(j.n_sites, 1);
    assert_int_equal(j.wan.interval, 100);
    neb__job_free(&j);
}

static void wrong_jobs_say_where_and_what(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"task: mlm\nmodle:\n  hidden: 3\n", ":3: unknown key 'modle.hidden'; did you mean 'model'?"},
        {"task: mlm\nmodel:\n  hiden: 3\n", ":3: unknown key 'model.hiden'; did you mean 'hidden'?"},
        {"task: mlm\ntrain:\n  steps: many\n", ":3: train.steps: 'many' is not a whole number"},
        {"tokenizer:\n  numbering: odd\n", ":2: tokenizer.numbering: 'odd' is not plain, xlm-r or t5"},
        {"tokenizer:\n  numbering: xlm-r\n", ":2: tokenizer.numbering is that of tokenizer.file"},
        {"task: fly\n", ":1: task: 'fly' is not mlm, causal, rtd or translate"},
        {"task: class\n", ":1: task: 'class' is not mlm"}, /* an objective, but not a job's */
        {"train:\n  steps: 0\n", ":2: train.steps: '0' is not a whole number from 1 to 1e12"},
        {"task: translate\ndata:\n  - file: x.txt\n", ":3: task translate needs pairs"},
        {"data:\n  - lang: en\n", "every corpus needs a file"},
        {"a: b: c\n", ":1: "},
        {"name: a\nname: b\n", ":2: the key 'name' stands already in line 1; a key may stand only once"},
        {"model: {hidden: 8}\ntask: mlm\nmodel: {heads: 2}\n",
         ":3: the key 'model' stands already in line 1"},
        {"model:\n\thidden: 8\n", ":2: a tab is in front of this line"},
        {"model:\n  hidden: 8\n  layers: [1\n", ":3: a '[' is not closed"},
        {"model: {family: gtp2}\n", ":1: model.family: 'gtp2' is not one of bert"},
        {"model:\n  hidden: 10\n  heads: 3\n", ":3: model.heads: 3 does not divide hidden (10)"},
        {"task: rtd\ngenerator:\n  kv_heads: 3\n", ":3: generator.kv_heads: 3 does not divide heads (4)"},
        {"name: &x a\ntask: *x\n", "anchors are not allowed"},
        {"[[[[[[[[[[[[1]]]]]]]]]]]]\n", "nested more than 8 deep"},
        {"just words\n", "'key: value' lines"},
        {"task: causal\nmodel:\n  family: gpt2\n  head: none\n", ":4: task causal needs model.head: tokens"},
        {"task: causal\nmodel: {kind: encoder}\n", ":2: task causal needs a model of kind decoder"},
        {"task: rtd\ngenerator: {family: gpt2}\n", ":2: task rtd needs a generator of kind encoder"},
        {"train:\n  max_len: 9000\n", "exceeds train.tokens"},
        {"train:\n  save_every: -5\n", ":2: train.save_every: '-5' is not a whole number from 0 to 1e12"},
        {"train: {minutes: -1}\n", ":1: train.minutes: '-1' is not a number from 0 to 1e9"},
        {"train: {beta2: 1}\n", ":1: train.beta2: '1' is not a number from 0 to 0.9999999, or auto"},
        {"train: {optimizer: adam}\n", ":1: train.optimizer: 'adam' is not auto, adamw or muon"},
        {"train: {muon_also: x}\n",
         ":1: train.muon_also names matrices for Muon, but train.optimizer is adamw"},
        {"data:\n  temperature: 2\n", ":2: data.temperature: '2' is not a number from 0.001 to 1"},
        {"data:\n  temperature: 1e-4\n", ":2: data.temperature: '1e-4' is not a number from 0.001 to 1"},
        {"train: {temperature: 2}\ndata: {temperature: 0.5}\n", ":2: data.temperature and train.temperature"},
        {"train: {clip: -1}\n", ":1: train.clip: '-1' is not a number from 0"},
        {"train: {lr: 1e-3, floor: 1}\n", ":1: train.floor is 1; it must not exceed the lr, 0.001"},
        {"train: {lr: nan}\n", ":1: train.lr: 'nan' is not a number from 0 to 10"},
        {"train: {lr: inf}\n", ":1: train.lr: 'inf' is not a number from 0 to 10"},
        {"train:\n  steps: 10\n  warmup: 11\n", ":3: train.warmup is 11; it must not exceed the 10 steps"},
        {"train: {mask: 95%}\n", ":1: train.mask: '95%' is not a share from 0.01 to 0.9"},
        {"train: {dtype: f16}\n", ":1: train.dtype: 'f16' is not f32 or bf16"},
        {"distill:\n  temperature: 0\n",
         ":2: distill.temperature: '0' is not a number above 0 and at most 100"},
        {"data:\n  - {file: x, weight: 0}\n", ":2: data[0].weight: '0' is not a number above 0"},
        {"data:\n  - {file: x, use: fun}\n", ":2: data[0].use: 'fun' is not train, valid or test"},
        {"model:\n  heads: 0\n", ":2: model.heads: '0' is not a whole number from 1 to 4096"},
        {"model: {norm: batch}\n", ":1: model.norm: 'batch' is not layer or rms"},
        {"sites:\n  - name: a\n    train:\n      lr: 99\n",
         ":4: sites[0].train.lr: '99' is not a number from 0 to 10"},
        {"train: {schedule: cosinus}\n", ":1: train.schedule: 'cosinus' is not constant, linear, cosine"},
        {"train: {schedule: inverse-sqrt, warmup: 0}\n", ":1: train.schedule: inverse-sqrt needs"},
        {"peft:\n  method: [lora, magic]\n", "peft.method: 'magic' is not full"},
        {"peft: {method: [full, lora]}\n", "full and frozen stand alone"},
        {"peft: {method: lora, lora_rank: 0}\n",
         ":1: peft.lora_rank: '0' is not a whole number from 1 to 4096"},
        {"wan: {fragments: -3}\n", ":1: wan.fragments: '-3' is not a whole number from"},
        {"wan: {tokens: -5}\n", ":1: wan.tokens: '-5' is not a number from"},
        {"wan: {round_seconds: -1}\n", ":1: wan.round_seconds: '-1' is not a whole number from"},
        {"wan: {drift_steps: -7}\n", ":1: wan.drift_steps: '-7' is not a whole number from"},
        {"wan: {interval: 0}\n", ":1: wan.interval: '0' is not a whole number from"},
        {"wan: {window: 4000}\n", ":1: wan.window: '4000' is not a whole number from 0 to 2048"},
        {"wan: {bits: 3}\n", ":1: wan.bits: '3' is not 0, 2, 4, 8, 16 or 32"},
        {"wan: {bits: 2}\ndistill: {teacher: t}\n", ":1: wan.bits: 8 or 4"},
        {"wan: {max_rate: -1}\n", ":1: wan.max_rate: '-1' is not a rate from 0 to"},
        {"wan: {prefer: speed}\n", ":1: wan.prefer: 'speed' is not cost or quality"},
        {"task: causal\nsites:\n  - {name: a, role: teacher}\n  - {name: b, role: student}\n"
         "  - {name: c, role: student}\n",
         ":3: strategy tutor needs one to 16 teacher sites and one student site; the job has 1 and 2"},
        {"task: causal\ndistill: {encoder: e}\nsites:\n  - {name: a, role: teacher}\n  - {name: b, role: "
         "teacher}\n"
         "  - {name: c, role: student}\n",
         ":4: distill.encoder needs one teacher site; the job has 2"},
        {"task: translate\ndistill: {teacher: t, sequence: greedy}\n",
         ":2: distill.sequence: 'greedy' is not beam1"},
        {"task: causal\ndistill: {teacher: t, sequence: beam2}\n",
         ":2: distill.sequence: task must be translate"},
        {"task: translate\ndistill: {teacher: t, sequence: beam2, n: 3}\n",
         ":2: distill.n is 3; beam2 finds at most 2"},
        {"task: rtd\nprivacy: {unit: sample}\nsites:\n  - {name: a, role: generator}\n"
         "  - {name: b, role: discriminator}\n",
         ":2: privacy: strategy relay sends tokens"},
        {"task: causal\nprivacy: {unit: site}\nsites:\n  - {name: a, role: teacher}\n"
         "  - {name: b, role: student}\n",
         ":2: privacy: strategy tutor sends tokens"},
        {"task: mlm\nsites: [a, b]\n",
         ":2: sites: a list of sections, each `- key: value …`, is needed here, not 'a,b'"},
        {"data: text\n", ":1: data: a list of sections"},
        {"data: {file: text}\n", ":1: data: a list of sections"},
        {"wan: fast\n", ":1: wan: a section of `key: value` lines is needed here, not 'fast'"},
        {"train: [{steps: 1}]\n", ":1: train: a section"},
        {"sites: [{name: a, train: quick}]\n", ":1: sites[0].train: a section"},
        {"strategy: swarm\n", ":1: strategy: 'swarm' is not auto, replica, relay, tutor or pipeline"},
        {"sites:\n  - {name: a, role: boss}\n", ":2: sites[0].role: 'boss' is not train, generator, "
                                                "discriminator, teacher, student, witness or observer"},
        {"sites:\n  - {name: a}\n  - {name: a}\n", ":3: two sites are named 'a'"},
        {"sites:\n  - {name: a}\n  - {name: b, role: student}\n", ":3: site 'b' has role student"},
        {"strategy: replica\nsites:\n  - {name: a, role: teacher}\n", "does not belong to strategy replica"},
        {"train: {average: 5}\nsites:\n  - {name: a}\n  - {name: b}\n", ":1: train.average is 5"},
        {"sites:\n  - {name: a}\n  - name: b\n    train: {average: 2}\n", ":4: sites[1].train.average is 2"},
        {"task: rtd\nsites:\n  - {name: a, role: generator}\n", "the job has 1 and 0"},
        {"sites:\n  - {name: a, role: generator}\n  - {name: b, role: discriminator}\n", "task must be rtd"},
        {"sites:\n  - {name: a, role: student}\n  - {name: b, role: student}\n", "the job has 0 and 2"},
        {"task: rtd\nsites:\n  - {name: a, role: student}\n  - {name: b, role: teacher}\n",
         "task must be mlm, causal or translate, not rtd"},
        {"sites:\n  - {name: a, train: {steps: 0}}\n",
         ":2: sites[0].train.steps: '0' is not a whole number from 1 to 1e12"},
        {"sites:\n  - {name: a, trian: {steps: 1}}\n", "did you mean 'train'?"},
        {"strategy: pipeline\nmodel: {family: t5}\ntask: translate\nsites:\n  - {name: a}\n  - {name: b}\n",
         ":1: strategy pipeline: a model with positions: relative"},
        {"sites:\n  - {name: a}\ndata:\n  - {file: x, site: c}\n", ":4: corpus x: the job has no site 'c'"},
    };
    check_log_quiet();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct neb_job j;
        int64_t held = neb__mem_held();
        assert_status(read_job(wrong[i].text, NULL, 0, &j), NEB_ERR_CONFIG);
        if (!strstr(neb_last_error(), wrong[i].says))
            fail_msg("%s, expected: %s", neb_last_error(), wrong[i].says);
        assert_int_equal(neb__mem_held(), held);
    }
    struct neb_job j;
    assert_status(neb__job_read("/nonexistent.yaml", NULL, 0, &j), NEB_ERR_NOTFOUND);
    char *words[] = {(char *)"train.stepz=7"};
    assert_status(read_job(good, words, 1, &j), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "unknown key 'train.stepz'; did you mean 'steps'?"));
    check_log_restore();
}

/* A section with corpora is the list of them; the temperature is an exponent there. */
static void data_may_be_a_section(void **state)
{
    (void)state;
    struct neb_job j;
    assert_ok(read_job(
        "data:\n  temperature: 0.5\n  corpora:\n    - {file: a, lang: en}\n    - {file: b, lang: de, use: "
        "valid}\n",
        NULL, 0, &j));
    assert_true(j.n_data == 2 && j.train.temperature > 1.9999 && j.train.temperature < 2.0001);
    assert_string_equal(j.data[1].file, "b");
    assert_string_equal(j.data[1].use, "valid");
    neb__job_free(&j);
    char *words[] = {(char *)"data.temperature=1"};
    assert_ok(read_job("data: [{file: a}]\n", words, 1, &j));
    assert_true(j.n_data == 1 && j.train.temperature > 0.9999 && j.train.temperature < 1.0001);
    neb__job_free(&j);
}

/* Every task with every family: a model that fits is taken, with the head that the task needs; any other is
 * refused, and the message names the line. */
static void task_and_model_must_fit(void **state)
{
    (void)state;
    static const struct {
        const char *task, *head, *families[4], *needs;
    } tasks[] = {
        {"mlm", "tokens", {"bert", "xlm-r", "electra"}, "kind encoder (family bert, xlm-r, electra)"},
        {"causal", "tokens", {"gpt2", "llama"}, "kind decoder (family gpt2, llama)"},
        {"rtd", "rtd", {"bert", "xlm-r", "electra"}, "kind encoder (family"},
        {"translate", "tokens", {"transformer", "marian", "bart"}, "kind encoder-decoder (family"},
    };
    static const char *const families[] = {"bert",  "xlm-r",       "electra", "gpt2",
                                           "llama", "transformer", "marian",  "bart"};
    check_log_quiet();
    for (size_t t = 0; t < 4; t++)
        for (size_t f = 0; f < 8; f++) {
            char text[100];
            struct neb_job j;
            bool fits = false;
            for (int i = 0; i < 4 && tasks[t].families[i]; i++)
                fits |= !strcmp(tasks[t].families[i], families[f]);
            snprintf(text, sizeof text, "task: %s\nmodel:\n  family: %s\n", tasks[t].task, families[f]);
            neb_status status = read_job(text, NULL, 0, &j);
            if (status != (fits ? NEB_OK : NEB_ERR_CONFIG))
                fail_msg("%s with %s", tasks[t].task, families[f]);
            if (!fits && (!strstr(neb_last_error(), tasks[t].needs) || !strstr(neb_last_error(), ":3: ")))
                fail_msg("%s with %s: %s", tasks[t].task, families[f], neb_last_error());
            if (!fits) continue;
            assert_string_equal(j.model.head, tasks[t].head);
            neb__job_free(&j);
        }
    check_log_restore();
}

/* Every row of the table is complete, a model of its default family fits it,
 * and no other row has its name. */
static void rows_of_objectives_are_whole(void **state)
{
    (void)state;
    for (int i = 0; neb__objectives[i]; i++) {
        const struct neb_objective *o = neb__objectives[i];
        assert_true(o->name && o->about && o->kind && o->head && o->families && o->sides >= 1);
        assert_ptr_equal(neb__objective_named(o->name), o);
        assert_non_null(neb__objective_of_model(o->kind, o->head));
        if (!o->steps) continue;
        assert_true(o->set_batches && o->describe && strstr(o->families, o->family));
        struct neb_model_config m;
        assert_ok(neb__model_config_init(o->family, &m));
        assert_string_equal(m.kind, o->kind);
        neb__model_config_free(&m);
    }
    assert_null(neb__objective_named("fly"));
    assert_null(neb__objective_of_model("decoder", "class"));
    char few[12];
    assert_string_equal(neb__objective_list(NULL, few, sizeof few), "mlm, causal");
}

static const char sited[] = "train: {tokens: 512, threads: 4}\n"
                            "tokenizer: {file: t.model}\n"
                            "sites:\n"
                            "  - {name: paris, folder: here}\n"
                            "  - {name: tokyo, train: {tokens: 2048, device: cuda}}\n"
                            "data:\n"
                            "  - {file: all.txt}\n"
                            "  - {file: fr.txt, site: paris}\n";

/* A site may have settings of its own. The facts leave out only settings that may differ between sites. */
static void a_site_has_its_own(void **state)
{
    (void)state;
    struct neb_job j, k;
    struct neb_buf a, b;
    char *words[] = {(char *)"out=x", (char *)"train.threads=1", (char *)"sites[1].folder=y"},
         *other[] = {(char *)"train.lr=0.5"};
    neb__buf_init(&a, 1 << 16);
    neb__buf_init(&b, 1 << 16);
    assert_ok(read_job(sited, NULL, 0, &j));
    assert_int_equal(j.plan, NEB_STRATEGY_REPLICA);
    assert_true(j.at == -1 && neb__job_has(&j, &j.data[1]));
    assert_ok(neb__job_at(&j, "tokyo"));
    assert_true(j.at == 1 && j.train.tokens == 2048 && j.train.threads == 4);
    assert_string_equal(j.train.device, "cuda");
    assert_true(neb__job_has(&j, &j.data[0]) && !neb__job_has(&j, &j.data[1]));
    check_log_quiet();
    assert_status(neb__job_at(&j, "rome"), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "no site 'rome'; its sites are: paris, tokyo"));
    check_log_restore();
    assert_ok(neb__job_facts(&j, &a));
    assert_ok(read_job(sited, words, 3, &k));
    assert_ok(neb__job_facts(&k, &b));
    assert_true(a.len == b.len && !memcmp(a.data, b.data, a.len));
    neb__job_free(&k);
    neb__buf_clear(&b);
    assert_ok(read_job(sited, other, 1, &k));
    assert_ok(neb__job_facts(&k, &b));
    assert_false(a.len == b.len && !memcmp(a.data, b.data, a.len));
    neb__job_free(&k);
    int corpora = j.n_data;
    neb__job_alone(&j);
    assert_true(j.at == -1 && j.n_data == corpora - 1 && j.train.tokens == 2048);
    assert_string_equal(j.train.device, "cuda");
    neb__job_free(&j);
    neb__buf_free(&a);
    neb__buf_free(&b);
}

/* Which site of a pipeline really can do without is known where the model is cut (test_data). */
static void a_site_of_a_pipeline_may_have_no_text(void **state)
{
    (void)state;
    static const char at_first[] = "strategy: pipeline\nmodel: {family: gpt2, layers: 6}\ntask: causal\n"
                                   "sites: [{name: a}, {name: b}]\ndata: [{file: x, site: a}]\n",
                      nowhere[] =
                          "strategy: pipeline\ntask: causal\nsites: [{name: a}, {name: b}, {name: c}]\n",
                      replica[] = "task: causal\nsites: [{name: a}, {name: b}]\ndata: [{file: x, site: a}]\n";
    struct neb_job j;
    for (int i = 0; i < 2; i++) {
        assert_ok(read_job(at_first, NULL, 0, &j));
        assert_ok(
            neb__job_at(&j, i ? "b" : "a")); /* nor does the one that has all of it need tokenizer.file */
        neb__job_free(&j);
    }
    assert_ok(read_job(nowhere, NULL, 0, &j));
    assert_ok(neb__job_at(&j, "b"));
    check_log_quiet();
    assert_status(neb__job_at(&j, "a"), NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "site 'a' has no corpus to train on"));
    neb__job_free(&j);
    assert_ok(read_job(replica, NULL, 0, &j));
    assert_status(neb__job_at(&j, "b"), NEB_ERR_CONFIG);
    neb__job_free(&j);
    check_log_restore();
}

static void a_witness_takes_no_share_of_the_text(void **state)
{
    (void)state;
    static const char text[] = "sites: [{name: a}, {name: w, role: witness}, {name: b}]\ndata: [{file: x}]\n";
    static const struct {
        const char *site;
        int64_t share;
    } cases[] = {{"a", 0}, {"b", 1}};
    struct neb_job j;
    int64_t share, shares;
    for (int i = 0; i < 2; i++) {
        assert_ok(read_job(text, NULL, 0, &j));
        assert_ok(neb__job_at(&j, cases[i].site));
        neb__job_share(&j, &share, &shares);
        assert_true(share == cases[i].share && shares == 2);
        neb__job_free(&j);
    }
    check_log_quiet();
    assert_status(read_job("sites: [{name: w, role: witness}]\ndata: [{file: x}]\n", NULL, 0, &j),
                  NEB_ERR_CONFIG);
    assert_non_null(strstr(neb_last_error(), "at least one must train"));
    check_log_restore();
}

/* A program that `nebula-i lab` started: its variables complete the job of its own site. */
static void the_environment_completes_a_job(void **state)
{
    (void)state;
    char *words[] = {(char *)"sites[0].folder=mine", (char *)"seed=3"};
    const char *file = NULL, *site = NULL;
    struct neb_job j;
    assert_ok(read_job("sites: [{name: a}, {name: b}]\n", NULL, 0, &j));
    neb__job_free(&j);
    check_log_quiet();
    assert_status(neb__job_names(&file, &site), NEB_ERR_CONFIG);
    check_log_restore();
    setenv("NEBULA_JOB", path, 1);
    setenv("NEBULA_SITE", "a", 1);
    setenv("NEBULA_SETTINGS", "sites[0].folder=theirs\nout=there\n", 1);
    assert_ok(neb__job_names(&file, &site));
    assert_string_equal(file, path);
    assert_string_equal(site, "a");
    assert_ok(neb__job_read_as(file, site, words, 2, &j));
    assert_string_equal(j.site[0].folder, "theirs");
    assert_true(j.seed == 3 && !strcmp(j.out, "there"));
    neb__job_free(&j);
    assert_ok(neb__job_read_as(file, "b", words, 2, &j)); /* another site's settings are not this one's */
    assert_string_equal(j.site[0].folder, "mine");
    assert_string_equal(j.out, "out");
    neb__job_free(&j);
    unsetenv("NEBULA_JOB");
    unsetenv("NEBULA_SITE");
    unsetenv("NEBULA_SETTINGS");
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct neb_job j;
    int64_t held = neb__mem_held();
    neb_status status = NEB_ERR_NOMEM;
    check_log_quiet();
    for (int64_t i = 1; status != NEB_OK; i++) {
        neb__mem_fail_at(i);
        status = read_job(sited, NULL, 0, &j);
        neb__mem_fail_at(0);
        if (status == NEB_OK) break;
        assert_int_equal(status, NEB_ERR_NOMEM);
        assert_int_equal(neb__mem_held(), held);
    }
    check_log_restore();
    neb__job_free(&j);
    assert_int_equal(neb__mem_held(), held);
}

static int set_up(void **state)
{
    (void)state;
    check_make_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/job.yaml", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    check_remove_dir(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_is_read),
        cmocka_unit_test(an_empty_value_is_the_default),
        cmocka_unit_test(a_section_may_be_empty),
        cmocka_unit_test(wrong_jobs_say_where_and_what),
        cmocka_unit_test(data_may_be_a_section),
        cmocka_unit_test(task_and_model_must_fit),
        cmocka_unit_test(rows_of_objectives_are_whole),
        cmocka_unit_test(a_site_has_its_own),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_site_of_a_pipeline_may_have_no_text),
        cmocka_unit_test(a_witness_takes_no_share_of_the_text),
        cmocka_unit_test(the_environment_completes_a_job),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
