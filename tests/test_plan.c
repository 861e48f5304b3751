/* test_plan.c: the planner. Memory by rehearsal against the allocator of a real training, rank by rank; a model that would never
 * fit; turns of a pipeline; what crosses the line; the order of layouts. */
#include "check.h"
#include "forked.h"
#include "codec/stream.h"
#include "plan/hardware.h"
#include "plan/line.h"
#include "plan/measure.h"
#include "plan/privacy.h"
#include "plan/record.h"
#include "plan/strategy.h"
#include "plan/trained_layers.h"
#include "world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define ENCODER \
    "task: mlm\nmodel: {family: bert, hidden: 64, layers: 3, heads: 4, ffn: 128, max_positions: 32}\n"
#define TRANSLATOR "task: translate\nmodel: {hidden: 32, layers: 2, decoder_layers: 1, heads: 2, ffn: 64}\n"

enum { RANKS = 2, STEPS = 12 }; /* as many as a rehearsal of two micro-batches makes */

/* ---- memory --------------------------------------------------------------------------------------------------- */

struct trial {
    struct neb_planner_layout layout;
    struct neb_planner_job copy;
    int64_t state[RANKS], runs[RANKS];
};

static neb_status train_for_real(struct trial *x, struct neb_layout *layout, int rank)
{
    struct neb_work *work;
    struct neb_work_step step;
    struct neb_work_memory m;
    NEB_TRY(neb__work_open_ranks(&x->copy.data, 0, 1, NULL, layout, &work));
    for (int i = 0; i < STEPS; i++) NEB_TRY(neb__work_step(work, 1e-4f, &step));
    neb__work_memory(work, &m);
    x->state[rank] = m.state;
    x->runs[rank] = m.runs;
    neb__work_close(work);
    return NEB_OK;
}

static int at_rank(struct neb_group *g, void *arg)
{
    struct trial *x = arg;
    struct neb_layout l = {.world = g};
    if (x->layout.tensor > 1)
        l.tensor = l.model = g;
    else
        l.data = g;
    return train_for_real(x, &l, neb__group_rank(g)) != NEB_OK;
}

static void compare_memory(const char *job, const char *words, struct neb_planner_layout layout)
{
    struct world w;
    struct trial *x = forked_memory(sizeof *x);
    layout.threads = 1;
    world_open_words(&w, job, words);
    x->layout = layout;
    x->copy.data.job = &x->copy.job;
    neb__planner_job(&w.data, &layout, &x->copy);
    if (neb__planner_ranks(&layout) == 1)
        assert_ok(train_for_real(x, NULL, 0));
    else
        assert_int_equal(forked_ranks(RANKS, 20, at_rank, x), 0);
    for (int r = 0; r < neb__planner_ranks(&layout); r++) {
        struct neb_rehearsal seen;
        const struct neb_layout_place place = {.data = layout.data > 1 ? r : 0,
                                               .tensor = layout.tensor > 1 ? r : 0};
        assert_ok(neb__planner_rehearse(&w.data, &layout, &place, &seen));
        assert_int_equal(seen.state, x->state[r]);
        assert_int_equal(seen.runs, x->runs[r]);
        assert_true(seen.runs > 0);
    }
    world_close(&w);
    forked_free(x, sizeof *x);
}

static void a_rehearsal_takes_what_a_training_takes(void **state)
{
    (void)state;
    const struct neb_planner_layout one = {.data = 1, .tensor = 1, .pipeline = 1},
                                    data = {2, 1, 1, 0, false, 0, 0};
    compare_memory(ENCODER, "", one);
    compare_memory(ENCODER, "train.dtype=bf16", one);
    compare_memory(ENCODER, "model.recompute=yes", one);
    compare_memory(TRANSLATOR, "train.optimizer=muon", one);
    for (int zero = 0; zero <= 3; zero++) {
        struct neb_planner_layout l = data;
        l.zero = zero;
        compare_memory(ENCODER, "", l);
        compare_memory(TRANSLATOR, "train.dtype=bf16", l);
    }
    struct neb_planner_layout tensor = {1, 2, 1, 0, false, 0, 0};
    compare_memory(ENCODER, "", tensor);
    tensor.sequence = true;
    compare_memory(TRANSLATOR, "", tensor);
    struct neb_planner_layout away = one;
    away.offload = NEB_OFFLOAD_MOMENTS;
    compare_memory(ENCODER, "", away);
}

static long resident_kib(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

static void a_model_that_never_fits_is_rehearsed(void **state)
{
    (void)state;
    struct world w;
    struct neb_rehearsal all, part;
    const struct neb_planner_layout one = {.data = 1, .tensor = 1, .pipeline = 1, .threads = 1},
                                    shared = {
                                        .data = 64, .tensor = 1, .pipeline = 1, .zero = 3, .threads = 1};
    world_open_words(&w, ENCODER, "train.micro=64");
    const long before = resident_kib();
    struct neb_data large = w.data;
    large.models.model.hidden = 8192, large.models.model.heads = 64, large.models.model.ffn = 32768;
    large.models.model.layers = 48;
    assert_ok(neb__planner_rehearse(&large, &one, &(struct neb_layout_place){0}, &all));
    assert_true(all.values > 38e9 && all.values < 39e9);
    assert_true((double)all.state >= 16 * (double)all.values);
    assert_ok(neb__planner_rehearse(&large, &shared, &(struct neb_layout_place){0}, &part));
    assert_true((double)part.state < 1.03 * 16 * (double)all.values / 64);
    assert_true(part.data.bytes[NEB_TRAFFIC_GATHER] >
                2 * 4.0 * (double)all.values * 0.9); /* forward and backward */
    /* a state on the host goes through the device in each step, and none of it is there */
    struct neb_planner_layout away = one;
    large.models.model.hidden = 4096, large.models.model.ffn = 16384, large.models.model.layers = 2;
    for (away.offload = NEB_OFFLOAD_MOMENTS; away.offload <= NEB_OFFLOAD_OPTIMIZER; away.offload++) {
        assert_ok(neb__planner_rehearse(&large, &away, &(struct neb_layout_place){0}, &part));
        assert_true(part.offloaded >= 8 * (double)part.values && part.values > 400e6);
    }
    assert_true(resident_kib() - before < 512 << 10);
    world_close(&w);
}

/* ---- time ----------------------------------------------------------------------------------------------------- */

static void turns_of_equal_stages_idle_as_the_formula_says(void **state)
{
    (void)state;
    const double forward[] = {1, 1, 1, 1}, backward[] = {2, 2, 2, 2};
    double seconds, idle;
    for (int m = 4; m <= 16; m *= 2) {
        assert_ok(neb__planner_turns(forward, backward, 4, m, 0, &seconds, &idle));
        assert_true(fabs(seconds - 3.0 * (m + 3)) < 1e-9);
        assert_true(fabs(idle - 3.0 / (m + 3)) < 1e-9);
    }
    const double slow[] = {1, 2}, slow_back[] = {2, 4};
    assert_ok(neb__planner_turns(slow, slow_back, 2, 8, 0, &seconds, &idle));
    assert_true(fabs(seconds - (1 + 8 * 6 + 2)) < 1e-9); /* the slow stage never waits */
}

static void costs_go_through_text(void **state)
{
    (void)state;
    struct neb_planner_costs c = {.device = "a device", .bus = 1e-10}, back;
    struct neb_layer_cost l = {2, 1, 4, {0.5, 0.25}, 0.125, 1e-9};
    struct neb_group_cost g = {
        .size = 4, .stride = 2, .beside = true, .call = {1, 2, 3, 4}, .byte = {5, 6, 7, 8}};
    struct neb_buf text;
    neb__costs_add_layer(&c, &l);
    neb__costs_add_group(&c, &g);
    neb__costs_add_group(&c, &g);
    g.stride = 8, g.call[0] = 100;
    neb__costs_add_group(&c, &g);
    neb__buf_init(&text, 4096);
    assert_ok(neb__costs_write(&c, &text));
    assert_ok(neb__buf_append(&text, "", 1));
    assert_ok(neb__costs_read((const char *)text.data, &back));
    assert_int_equal(back.groups, 2);
    assert_true(back.group[0].beside);
    assert_true(neb__costs_layer(&back, 2, 1, 4)->layer[1] == 0.25 && !neb__costs_layer(&back, 2, 1, 2));
    const struct neb_rank_traffic t = {.calls = {1, 0, 0, 0}, .bytes = {10, 0, 0, 0}};
    assert_null(neb__costs_group(&back, 4, 1));
    assert_true(neb__costs_exchange(neb__costs_group(&back, 4, 2), &t) == 51);
    assert_true(neb__costs_exchange(neb__costs_group(&back, 4, 7), &t) == 51);
    assert_true(neb__costs_exchange(neb__costs_group(&back, 4, 8), &t) == 150);
    neb__buf_free(&text);
    const char *const bad[] = {"layer 1 1",
                               "layer 1 1 1 : -1 0 0 0",
                               "group 1 1 0 : 0 0 0 0 0 0 0 0",
                               "group 2 0 1 : 0 0 0 0 0 0 0 0",
                               "bus nan",
                               "what"};
    for (int i = 0; i < 6; i++) assert_status(neb__costs_read(bad[i], &back), NEB_ERR_CORRUPT);
}

/* Two machines of eight: eight ranks that are next to each other are on one of them; with tensor 2 the copies of a model are on both. */
static void ranks_apart_use_the_network(void **state)
{
    (void)state;
    struct world w;
    struct neb_planner_place place;
    struct neb_planner_costs c;
    world_open_words(&w, ENCODER, "train.micro=16");
    assert_ok(neb__hardware_scale("16xh200", &w.data, &place, &c));
    const double near = neb__costs_group(&c, 8, 1)->byte[NEB_TRAFFIC_SUM],
                 far = neb__costs_group(&c, 8, 2)->byte[NEB_TRAFFIC_SUM];
    assert_true(far > 5 * near);
    assert_true(neb__costs_group(&c, 2, 4)->byte[0] == neb__costs_group(&c, 2, 1)->byte[0]);
    assert_true(neb__costs_group(&c, 2, 8)->byte[0] > neb__costs_group(&c, 2, 4)->byte[0]);
    assert_true(neb__costs_group(&c, 16, 1)->byte[0] > far);
    world_close(&w);
}

/* A frozen body with one trained layer, named by its number: it is measured with that layer alone, and frozen ones take less. */
static void layers_by_number(void **state)
{
    (void)state;
    struct world w;
    struct neb_layer_cost cost;
    char list[NEB_PATTERNS];
    double share[3];
    assert_true(neb__patterns_of_any_layer("head*,encoder.layers.2*,decoder.layers.[01].ffn.*", true, list));
    assert_string_equal(list, "head*,encoder.layers.*,decoder.layers.*.ffn.*");
    assert_true(neb__patterns_of_any_layer("encoder.layers.0.*,*norm*", false, list));
    assert_string_equal(list, "*norm*");
    assert_false(neb__patterns_of_any_layer("head*,*.layers.*.ffn.*", true, list));
    world_open_words(&w, ENCODER, "train.micro=4 peft.method=frozen peft.train=encoder.layers.1*");
    assert_ok(neb__planner_measure_layers(&w.data, NULL, 1, 1, &cost));
    assert_true(cost.layer[0] > 0);
    assert_ok(neb__trained_layers(&w.data, share, 3));
    assert_true(fabs(share[0] - 1.0 / 3) < 1e-9 && share[1] == 1 && fabs(share[2] - 2.0 / 3) < 1e-9);
    world_close(&w);
    world_open_words(&w, ENCODER, "train.micro=4 peft.method=lora");
    assert_ok(neb__trained_layers(&w.data, share, 3));
    assert_true(share[0] == 1 && share[2] == 1);
    world_close(&w);
}

/* ---- layouts -------------------------------------------------------------------------------------------------- */

static struct neb_planner_costs made_up(void)
{
    struct neb_planner_costs c = {.device = "made up"};
    struct neb_layer_cost one = {1, 1, 1, {0.06, 0}, 0.02, 1e-9}, half = {1, 1, 2, {0.1, 0}, 0.035, 2e-9},
                          split = {2, 1, 2, {0.08, 0}, 0.03, 2e-9};
    struct neb_group_cost g = {
        .size = 2, .stride = 1, .call = {1e-5, 1e-5, 1e-5, 1e-5}, .byte = {1e-9, 5e-10, 5e-10, 0}};
    neb__costs_add_layer(&c, &one);
    neb__costs_add_layer(&c, &half);
    neb__costs_add_layer(&c, &split);
    neb__costs_add_group(&c, &g);
    return c;
}

static const struct neb_planner_row *row_of(const struct neb_planned *p, struct neb_planner_layout l)
{
    for (int i = 0; i < p->rows; i++) {
        const struct neb_planner_layout *x = &p->row[i].layout;
        if (x->data == l.data && x->tensor == l.tensor && x->pipeline == l.pipeline && x->zero == l.zero &&
            x->sequence == l.sequence && x->offload == l.offload)
            return &p->row[i];
    }
    fail_msg("no row for %d %d %d %d", l.data, l.tensor, l.pipeline, l.zero);
    return NULL;
}

static void the_fastest_that_fits_comes_first(void **state)
{
    (void)state;
    struct world w;
    struct neb_planned p;
    const struct neb_planner_costs costs = made_up();
    world_open_words(&w, ENCODER, "train.micro=4");
    struct neb_planner_order o = {
        .data = &w.data,
        .costs = &costs,
        .place = {.slots = 2, .near = 2, .host = true, .machine = HUGE_VAL, .device = HUGE_VAL}};
    assert_ok(neb__planner_make(&o, &p));
    assert_int_equal(
        p.fit,
        8); /* one process; data 2 with four kinds of zero; tensor 2 with and without sequence; pipeline 2 */
    for (int i = 1; i < p.fit; i++) assert_true(p.row[i - 1].step_s <= p.row[i].step_s);
    const struct neb_planner_row *data = row_of(&p, (struct neb_planner_layout){2, 1, 1, 0, false, 0, 0});
    /* 2 micro-batches of 3 layers and ends, the update, a sum of all gradients */
    assert_true(data->step_s > 2 * (3 * 0.1 + 0.035) && data->step_s < 2 * (3 * 0.1 + 0.035) * 1.05);
    const struct neb_planner_row *pipe = row_of(&p, (struct neb_planner_layout){1, 1, 2, 0, false, 0, 0});
    assert_true(pipe->idle > 0.1 && pipe->step_s > 4 * 0.1);
    const double needs = row_of(&p, (struct neb_planner_layout){1, 1, 1, 0, false, 0, 0})->memory;
    neb__planner_free(&p);
    o.place.cap = needs - 1; /* all but those that need less fall out */
    assert_ok(neb__planner_make(&o, &p));
    const struct neb_planner_row *one = row_of(&p, (struct neb_planner_layout){1, 1, 1, 0, false, 0, 0});
    assert_false(one->fits);
    assert_non_null(strstr(one->why, "train.memory"));
    assert_true(row_of(&p, (struct neb_planner_layout){1, 2, 1, 0, false, 0, 0})->fits);
    neb__planner_free(&p);
    world_close(&w);
}

static void stated_hardware_is_marked(void **state)
{
    (void)state;
    struct world w;
    struct neb_planned p;
    struct neb_planner_costs costs;
    struct neb_planner_order o = {.costs = &costs};
    world_open_words(&w, ENCODER, "train.micro=16");
    o.data = &w.data;
    check_log_quiet();
    assert_status(neb__hardware_scale("16xabacus", &w.data, &o.place, &costs), NEB_ERR_CONFIG);
    assert_status(neb__hardware_scale("h200", &w.data, &o.place, &costs), NEB_ERR_CONFIG);
    assert_status(neb__hardware_scale("100000xh200", &w.data, &o.place, &costs), NEB_ERR_CONFIG);
    check_log_restore();
    assert_ok(neb__hardware_scale("16xh200", &w.data, &o.place, &costs));
    assert_true(costs.stated && strstr(costs.device, "stated"));
    assert_ok(neb__planner_make(&o, &p));
    assert_true(p.fit > 0);
    for (int i = 0; i < p.fit; i++) assert_int_equal(neb__planner_ranks(&p.row[i].layout), 16);
    neb__planner_free(&p);
    world_close(&w);
}

/* ---- the line ------------------------------------------------------------------------------------------------- */

#define SITES "sites: [{name: a}, {name: b}, {name: c}]\n"

static void a_fixed_rung_sends_what_its_size_says(void **state)
{
    (void)state;
    struct world w;
    struct neb_wan_forecast f;
    const struct neb_wan_line line = {1e9, 0.01};
    world_open_words(&w, ENCODER SITES, "wan.rung=int8 wan.interval=20 wan.fragments=1");
    assert_ok(neb__wan_replica(&w.job, &line, 1e6, 0.5, 2000, &f));
    assert_int_equal(f.sites, 3);
    assert_string_equal(f.rung, "int8");
    const double want = 101 * 1e6 * 1.0 * 2; /* rounds and the end, values, about a byte each, two peers */
    assert_true(f.bytes > 0.98 * want && f.bytes < 1.1 * want);
    world_close(&w);
}

static void a_thin_line_gets_a_cheaper_rung(void **state)
{
    (void)state;
    struct world w;
    struct neb_wan_forecast wide, thin;
    world_open_words(&w, ENCODER SITES, "wan.prefer=quality wan.interval=20");
    assert_ok(neb__wan_replica(&w.job, &(struct neb_wan_line){1e10, 0.01}, 1e8, 0.5, 2000, &wide));
    assert_ok(neb__wan_replica(&w.job, &(struct neb_wan_line){1e8, 0.05}, 1e8, 0.5, 2000, &thin));
    assert_true(thin.bytes < wide.bytes / 4);
    world_close(&w);
}

static void a_line_carries_the_tokens_of_the_formula(void **state)
{
    (void)state;
    struct neb_job j = {.model = {.hidden = 4096}};
    struct neb_wan_pipeline p;
    neb__wan_pipeline(&j, &(struct neb_wan_line){1e8, 0.05}, 2, 1e6, 4, &p);
    assert_true(fabs(p.line_tokens_s - 0.92e8 / (4096 * 4.125)) < 1); /* 5.4 k */
    assert_true(p.tokens_s == p.line_tokens_s && p.replica_tokens_s == 2e6);
}

static void lines_are_read(void **state)
{
    (void)state;
    struct neb_wan_line l;
    assert_ok(neb__wan_line_read("100mbit,50ms", &l));
    assert_true(l.rate == 1e8 && fabs(l.rtt - 0.05) < 1e-12);
    check_log_quiet();
    const char *const bad[] = {"", ",", "fast", "100mbit,soon", "-3mbit,1ms"};
    for (int i = 0; i < 5; i++) assert_status(neb__wan_line_read(bad[i], &l), NEB_ERR_CONFIG);
    check_log_restore();
}

static void unit_site_with_few_sites_is_unusable(void **state)
{
    (void)state;
    struct world w;
    struct neb_planner_privacy p;
    world_open_words(&w, ENCODER SITES,
                     "wan.rung=int8 privacy.unit=site privacy.epsilon=8 privacy.delta=1e-5");
    assert_ok(neb__planner_privacy(&w.data, 1e6, &p));
    assert_true(p.asked && p.site && !p.usable);
    assert_true(p.ratio > 100 && p.epsilon <= 8 && p.epsilon > 7.5);
    assert_ok(neb__planner_privacy(&w.data, 1, &p));
    assert_true(p.ratio < 3);
    world_close(&w);
}

/* ---- a pipeline between sites ------------------------------------------------------------------------------- */

#define STAGED                                                                                             \
    "task: mlm\nmodel: {family: bert, hidden: 32, layers: 4, heads: 2, ffn: 64, max_positions: 32, tied: " \
    "no}\n"                                                                                                \
    "strategy: pipeline\nsites: [{name: a}, {name: b}]\n"

static void turns_over_a_line_wait_for_it(void **state)
{
    (void)state;
    double s;
    struct neb_line_visit v[3] = {{1, 2, 0, 0, false}, {1, 2, 0, 0, true}, {1, 2, 0, 0, true}};
    struct neb_line_turns t[2] = {{8, 1, 0}, {1, 1, 0}};
    assert_ok(neb__planner_line_turns(v, t, 2, false, 8, 0, &s));
    assert_true(fabs(s - (8 * 3 + 3)) < 1e-9); /* 1F1B of two equal stages */
    t[0].depth = 1;
    assert_ok(neb__planner_line_turns(v, t, 2, false, 8, 5, &s));
    assert_true(fabs(s - 8 * (1 + 5 + 3 + 5 + 2)) < 1e-9); /* one by one: each waits for its round trip */
    t[0].depth = 2;
    assert_ok(neb__planner_line_turns(v, t, 2, false, 8, 5, &s));
    assert_true(s > 4 * 16 && s < 5 * 16 + 8);
    t[0].depth = 8, v[0].ahead = v[1].back = 10; /* the line is the slowest part */
    assert_ok(neb__planner_line_turns(v, t, 2, false, 8, 0, &s));
    assert_true(fabs(s - (1 + 8 * 10 + 3 + 10 + 2)) < 1e-9);
    v[0].ahead = v[1].back = 0, t[1].end = 7;
    assert_ok(neb__planner_line_turns(v, t, 2, false, 8, 0, &s));
    assert_true(s > 8 * 3 + 7 - 1e-9);
    t[1].end = 0, t[1].depth = 8; /* a ring: the first site makes two visits */
    assert_ok(neb__planner_line_turns(v, t, 2, true, 8, 0, &s));
    assert_true(s >= 8 * 6 - 1e-9 && s < 8 * 6 + 12);
}

static void a_stage_says_what_it_sends(void **state)
{
    (void)state;
    struct world w;
    struct neb_planner_cut cut;
    struct neb_planner_stage_seen first, deep, last;
    const struct neb_planner_layout one = {.data = 1, .tensor = 1, .pipeline = 1, .threads = 1},
                                    copies = {.data = 2, .tensor = 1, .pipeline = 1, .zero = 1, .threads = 1};
    char text[64];
    world_open_words(&w, STAGED, "train.micro=4");
    assert_ok(neb__planner_cut(&w.data, &cut));
    neb__planner_cut_text(&cut, text, sizeof text);
    assert_string_equal(text, "2 + 2");
    assert_ok(neb__planner_rehearse_stage(&w.data, &cut, 0, &one, 1, false, &first));
    assert_ok(neb__planner_rehearse_stage(&w.data, &cut, 0, &one, 4, false, &deep));
    assert_ok(neb__planner_rehearse_stage(&w.data, &cut, 1, &one, 1, false, &last));
    assert_int_equal(first.rank.state, deep.rank.state);
    assert_true(deep.rank.runs > 3 * first.rank.runs && !first.returns && last.returns);
    for (int k = 0; k < NEB_STAGE_BITS; k++) { /* four messages, and a table of sums */
        const double rows = first.rows,
                     frame = (double)neb__activations_size(1000, 32, neb__stage_bits[k]) / 1000;
        assert_true(first.sent[k].back == 0 && last.sent[k].ahead == 0);
        assert_true(first.sent[k].ahead > 4 * rows * frame * 0.9 &&
                    first.sent[k].ahead < 4 * rows * frame + 1000);
        assert_true(fabs(last.sent[k].back / first.sent[k].ahead - 1) < 1e-9);
    }
    const double parameters = first.parameters + last.parameters; /* each of them is at one site */
    assert_true(parameters > 4.0 * (double)first.rank.values &&
                parameters < 4.0 * (double)first.rank.values + 4000);
    assert_ok(neb__planner_rehearse_stage(&w.data, &cut, 1, &copies, 1, false,
                                          &deep)); /* each copy has a half of the moments */
    assert_true(deep.rank.state < last.rank.state);
    assert_true(fabs(deep.sent[2].back / last.sent[2].back - 1) < 1e-9);
    world_close(&w);
}

static void cut_with(const char *words, const char *want)
{
    struct world w;
    struct neb_planner_cut cut;
    char text[64];
    world_open_words(&w, STAGED, words);
    assert_ok(neb__planner_cut(&w.data, &cut));
    neb__planner_cut_text(&cut, text, sizeof text);
    assert_string_equal(text, want);
    world_close(&w);
}

static void the_cut_knows_what_sites_have(void **state)
{
    (void)state;
    cut_with("sites[0].train.memory=100MiB", "2 + 2"); /* there is room */
    cut_with("sites[0].train.threads=6 sites[1].train.threads=2", "3 + 1");
    cut_with("sites[0].train.threads=2", "2 + 2"); /* nobody knows how fast the other one is */
    cut_with("sites[0].train.speed=100 sites[1].train.speed=300", "1 + 3");
    cut_with("sites[0].train.threads=1 sites[1].train.threads=1 sites[1].parallel.data=3", "1 + 3");
    cut_with("train.tokens=2048 sites[1].train.memory=6MiB", "3 + 1");
    cut_with("train.tokens=2048 sites[0].train.memory=6MiB", "1 + 3");
    cut_with("train.tokens=2048 model.tied=yes model.layers=8 sites[0].train.memory=1GiB", "2 + 4 + 2");
    cut_with("train.tokens=2048 model.tied=yes model.layers=8 sites[1].train.memory=12MiB", "3 + 2 + 3");
}

static void pipelines_are_rows_of_the_plan(void **state)
{
    (void)state;
    struct world w;
    struct neb_planned p;
    const struct neb_planner_costs costs = made_up();
    struct neb_planner_order o = {
        .data = &w.data,
        .costs = &costs,
        .place = {.slots = 2, .near = 2, .host = true, .machine = 1e12, .device = HUGE_VAL},
        .line = {1e8, 0.05},
        .price = 1e-9};
    world_open_words(&w, STAGED, "train.micro=4 sites[1].train.memory=100MiB");
    assert_ok(neb__planner_make(&o, &p));
    assert_int_equal(p.fit, 2);
    assert_true(p.values > 0 && p.tokens > 0);
    assert_true(p.row[0].line && p.row[0].line->bits == 8 &&
                p.row[1].line->bits == 4); /* the line carries 8 */
    assert_true(p.row[0].line->site[0].depth > 1 && p.row[0].line->site[1].depth == 1);
    assert_true(p.row[0].wan.bytes > 1.5 * p.row[1].wan.bytes && p.row[0].step_s > 0.05);
    assert_true(fabs(p.row[0].cost_all - 1e-9 * p.row[0].line->all_bytes) < 1e-9);
    neb__planner_free(&p);
    world_close(&w);
    world_open_words(&w, STAGED, "train.micro=4 sites[1].train.memory=64KiB wan.bits=8");
    assert_ok(neb__planner_make(&o, &p));
    assert_true(!p.fit && p.rows == 1 && strstr(p.row[0].why, "site b: its stage needs"));
    neb__planner_free(&p);
    world_close(&w);
    const struct neb_planner_costs none = {0};
    o.costs = &none; /* it is rejected, and does not say that it could be taken */
    world_open_words(&w, STAGED, "train.micro=4 wan.bits=8");
    assert_ok(neb__planner_make(&o, &p));
    assert_true(!p.fit && p.rows == 1 && !p.row[0].fits && strstr(p.row[0].why, "was not measured"));
    neb__planner_free(&p);
    world_close(&w);
    o.costs = &costs;
    world_open_words(&w, STAGED, "sites[0].layers=3 sites[1].layers=3");
    assert_ok(neb__planner_make(&o, &p));
    assert_true(!p.fit && p.rows == 1 && strstr(p.row[0].why, "6 layers together") && p.values > 0);
    neb__planner_free(&p);
    world_close(&w);
}

/* A made-up layer of 0.06 s and ends of 0.02 s, in four micro-batches; the cut is 2 + 2. */
static struct neb_planner_row line_row(const char *words)
{
    struct world w;
    struct neb_planned p;
    const struct neb_planner_costs costs = made_up();
    struct neb_planner_order o = {
        .data = &w.data,
        .costs = &costs,
        .place = {.slots = 1, .near = 1, .host = true, .machine = 1e12, .device = HUGE_VAL},
        .line = {1e9, 0}};
    world_open_words(&w, STAGED, words);
    assert_ok(neb__planner_make(&o, &p));
    assert_int_equal(p.rows, 1);
    const struct neb_planner_row row = p.row[0];
    neb__planner_free(&p);
    world_close(&w);
    return row;
}

/* Layers before the first trained one have no backward, and their stage waits for none. */
static void frozen_layers_take_less_of_a_pipeline(void **state)
{
    (void)state;
#define FIXED "train.micro=4 wan.bits=8 train.threads=1 "
    const double layer = 0.06, head = 0.02;
    const struct neb_planner_row all = line_row(FIXED),
                                 last = line_row(FIXED "peft.freeze=*embed*,*layers.[012]*");
    assert_true(all.compute_s > 4 * 2 * layer && all.compute_s < 4 * (2 * layer + head));
    assert_true(last.compute_s > 4 * layer * 4 / 3 && last.compute_s < 4 * (layer * 4 / 3 + head));
    /* the first stage's forward is in front, and the last one's turns follow one another */
    assert_true(last.step_s >= last.compute_s && last.step_s < last.compute_s + layer);
    assert_true(last.step_s < 0.8 * all.step_s);
    /* a first stage that only runs forwards is the slow one: its backward does not count */
    const struct neb_planner_row slow = line_row(FIXED "peft.freeze=*embed*,*layers.[012]* sites[0].layers=3 "
                                                       "sites[1].layers=1");
    assert_true(slow.compute_s > 4 * layer && slow.compute_s < 4 * (layer + head));
    /* a body that no pattern names by number was measured frozen: its time is that of a forward */
    const struct neb_planner_row body = line_row(FIXED "peft.method=frozen peft.train=head*");
    assert_true(body.compute_s > 4 * 2 * layer && body.step_s >= body.compute_s);
#undef FIXED
}

static void every_site_chooses_the_same_strategy(void **state)
{
    (void)state;
    struct world w;
    struct neb_planner_strategy a, b;
    world_open_words(&w, ENCODER "sites: [{name: a}, {name: b, parallel: {tensor: 2}}]\n",
                     "sites[0].train.memory=64KiB sites[1].train.memory=64KiB");
    assert_ok(neb__job_at(&w.job, "a"));
    assert_ok(neb__planner_strategy(&w.data, &a));
    assert_ok(neb__job_at(&w.job, "b"));
    assert_ok(neb__planner_strategy(&w.data, &b));
    assert_true(a.needs == b.needs && a.room == b.room && a.site == b.site && !a.fits);
    world_close(&w);
}

/* Layouts that are refused for something else than memory say nothing about it. */
static void a_refused_model_has_no_verdict(void **state)
{
    (void)state;
    struct world w;
    struct neb_planner_strategy s;
    const struct neb_planner_place place = {
        .slots = 1, .near = 1, .host = true, .machine = 1e12, .device = HUGE_VAL};
    world_open_words(&w, STAGED, "");
    assert_ok(neb__planner_strategy_here(&w.data, &place, NULL, &s));
    assert_true(s.known && s.fits && s.needs > 0 && s.room == 1e12);
    w.job.parallel.tensor = 3; /* of two heads */
    assert_ok(neb__planner_strategy_here(&w.data, &place, NULL, &s));
    assert_true(!s.known && isfinite(s.needs));
    world_close(&w);
}

/* ---- foreseen and measured ------------------------------------------------------------------------------------ */

static void what_was_foreseen_is_found_again(void **state)
{
    (void)state;
    struct neb_planner_row rows[] = {
        {.layout = {2, 1, 1, 1, false, 0, 1}, .fits = true, .step_s = 0.5, .first = 1 << 20},
        {.layout = {1, 1, 1, 0, false, 0, 2}, .fits = true, .step_s = 0.75, .first = 1 << 21}};
    struct neb_planned p = {.row = rows, .rows = 2, .fit = 2};
    struct neb_planner_figures f;
    char out[300], text[400];
    world_path("kept", out);
    assert_status(neb__planner_recorded(out, &rows[0].layout, 0, &f), NEB_ERR_NOTFOUND);
    assert_ok(neb__planner_record(out, &p));
    assert_ok(neb__planner_recorded(out, &rows[1].layout, 0, &f));
    assert_true(f.step_s == 0.75 && f.memory == 1 << 21);
    assert_status(neb__planner_recorded(out, &(struct neb_planner_layout){4, 1, 1, 0, false, 0, 0}, 0, &f),
                  NEB_ERR_NOTFOUND);
    neb__planner_compare(&f, &(struct neb_planner_figures){1.5, 1 << 21, -1}, text, sizeof text);
    assert_non_null(strstr(text, "(-50.0 %)"));
    assert_non_null(strstr(text, "(+0.0 %)"));
    assert_null(strstr(text, "WAN"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rehearsal_takes_what_a_training_takes),
        cmocka_unit_test(a_model_that_never_fits_is_rehearsed),
        cmocka_unit_test(turns_of_equal_stages_idle_as_the_formula_says),
        cmocka_unit_test(costs_go_through_text),
        cmocka_unit_test(layers_by_number),
        cmocka_unit_test(ranks_apart_use_the_network),
        cmocka_unit_test(the_fastest_that_fits_comes_first),
        cmocka_unit_test(stated_hardware_is_marked),
        cmocka_unit_test(a_fixed_rung_sends_what_its_size_says),
        cmocka_unit_test(a_thin_line_gets_a_cheaper_rung),
        cmocka_unit_test(a_line_carries_the_tokens_of_the_formula),
        cmocka_unit_test(lines_are_read),
        cmocka_unit_test(unit_site_with_few_sites_is_unusable),
        cmocka_unit_test(turns_over_a_line_wait_for_it),
        cmocka_unit_test(a_stage_says_what_it_sends),
        cmocka_unit_test(the_cut_knows_what_sites_have),
        cmocka_unit_test(pipelines_are_rows_of_the_plan),
        cmocka_unit_test(frozen_layers_take_less_of_a_pipeline),
        cmocka_unit_test(every_site_chooses_the_same_strategy),
        cmocka_unit_test(a_refused_model_has_no_verdict),
        cmocka_unit_test(what_was_foreseen_is_found_again),
    };
    return cmocka_run_group_tests(tests, world_set_up, world_tear_down);
}
