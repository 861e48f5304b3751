/* job.c: the job's tables, with what each value may be, and reading one. job_check.c looks whether the values fit together. */
#include "job/job.h"
#include "base/mem.h"
#include "job/model_yaml.h"

#include <math.h>
#include <string.h>

#define TOP(field, ...)   NEB_OPT(struct neb_job, field, __VA_ARGS__)
#define DATA(field, ...)  NEB_OPT(struct neb_job_data, field, __VA_ARGS__)
#define TOK(field, ...)   NEB_OPT(struct neb_job_tokenizer, field, __VA_ARGS__)
#define TRAIN(field, ...) NEB_OPT(struct neb_job_train, field, __VA_ARGS__)

static const struct neb_opt top_table[] = {
    TOP(name, NEB_OPT_TEXT, "job", NULL, "a name for folders and reports"),
    TOP(task, NEB_OPT_TEXT, "mlm", NULL, "what the model learns; the tasks are listed below"),
    TOP(strategy, NEB_OPT_TEXT, "auto", NULL,
        "how several sites share the work; auto follows their roles, and takes pipeline where a site's "
        "train.memory is less than the model needs",
        NEB_OPT_CHOICE("auto", "replica", "relay", "tutor", "pipeline")),
    TOP(out, NEB_OPT_TEXT, "out", NULL, "folder for everything that is written"),
    TOP(cache, NEB_OPT_TEXT, "", NULL, "folder for the tokenizer and tokenised text (OUT/data)"),
    TOP(seed, NEB_OPT_INT, "1", NULL, "of initial values, shuffling, masking and dropout"),
    NEB_OPT_END,
};

const struct neb_opt neb__job_data_options[] = {
    DATA(file, NEB_OPT_TEXT, "", NULL,
         "text, a sentence or paragraph a line; pairs: tab-separated; .gz .xz .zst; a pattern such as "
         "'news/*.txt' for several; or the folder of a token set"),
    DATA(second, NEB_OPT_TEXT, "", NULL, "pairs in two files: the second side"),
    DATA(lang, NEB_OPT_TEXT, "", NULL, "language (de), for pairs both (en-de)"),
    DATA(weight, NEB_OPT_REAL, "1", NULL, "multiplies the share of this corpus", NEB_OPT_ABOVE(0, HUGE_VAL)),
    DATA(use, NEB_OPT_TEXT, "train", NULL, "what it is for", NEB_OPT_CHOICE("train", "valid", "test")),
    DATA(flip, NEB_OPT_BOOL, "no", NULL, "pairs: translate from the second side to the first"),
    DATA(copies, NEB_OPT_INT, "1", NULL,
         "so many times; all but the first are cut into other pieces (tokenizer.dropout)",
         NEB_OPT_RANGE(1, 1000)),
    DATA(site, NEB_OPT_TEXT, "", NULL, "only this site has the corpus; without it: every site"),
    NEB_OPT_END,
};

static const struct neb_opt tokenizer_table[] = {
    TOK(file, NEB_OPT_TEXT, "", NULL,
        "an existing SentencePiece .model, WordPiece vocab.txt, or GPT-2's vocab.json (merges.txt beside "
        "it)"),
    TOK(numbering, NEB_OPT_TEXT, "", NULL,
        "ids of that .model; without it: as the model folder says that it belongs to, else plain",
        NEB_OPT_CHOICE("plain", "xlm-r", "t5")),
    TOK(frame, NEB_OPT_TEXT, "", NULL,
        "translate: special tokens around the texts; without it: as the folder says that the job starts or "
        "learns from",
        NEB_OPT_CHOICE("plain", "tags", "marian", "m2m100", "nllb", "nllb-tail", "mbart", "mbart50", "bart",
                       "t5")),
    TOK(own, NEB_OPT_BOOL, "no", NULL,
        "train one for this model, though it starts from a folder or has a teacher with a tokenizer"),
    TOK(type, NEB_OPT_TEXT, "unigram", NULL, "its kind, when trained", NEB_OPT_CHOICE("unigram", "bpe")),
    TOK(vocab, NEB_OPT_INT, "8000", "pieces", "when trained: how many"),
    TOK(lines, NEB_OPT_INT, "200000", "lines", "when trained: on how many lines of the data"),
    TOK(coverage, NEB_OPT_REAL, "0.9995", NULL,
        "when trained: share of the characters that get a piece; 1 where no script has thousands"),
    TOK(dropout, NEB_OPT_SHARE, "0.1", NULL, "bpe, data[].copies: share of merges left out"),
    TOK(cased, NEB_OPT_BOOL, "no", NULL,
        "WordPiece: keep upper case and accents, also where its model folder does not say so"),
    NEB_OPT_END,
};

const struct neb_opt neb__job_train_options[] = {
    TRAIN(steps, NEB_OPT_INT, "1000", "steps", "optimizer steps", NEB_OPT_RANGE(1, 1e12)),
    TRAIN(minutes, NEB_OPT_REAL, "0", "minutes",
          "stop after this time, whatever the steps; the schedule ends with it; 0: no limit",
          NEB_OPT_RANGE(0, 1e9)),
    TRAIN(tokens, NEB_OPT_INT, "4096", "tokens", "rows of a micro-batch (translation: of the source)",
          NEB_OPT_RANGE(16, 1 << 24)),
    TRAIN(micro, NEB_OPT_INT, "1", NULL, "micro-batches a step", NEB_OPT_RANGE(1, 1024)),
    TRAIN(max_len, NEB_OPT_INT, "128", "tokens", "longest sequence", NEB_OPT_RANGE(4, 1 << 16)),
    TRAIN(lr, NEB_OPT_REAL, "1e-3", NULL, "peak learning rate", NEB_OPT_RANGE(0, 10)),
    TRAIN(floor, NEB_OPT_REAL, "0", NULL, "learning rate at the end of linear, cosine and wsd",
          NEB_OPT_RANGE(0, 10)),
    TRAIN(schedule, NEB_OPT_TEXT, "cosine", NULL, "of the learning rate",
          NEB_OPT_CHOICE("constant", "linear", "cosine", "inverse-sqrt", "wsd")),
    TRAIN(warmup, NEB_OPT_INT, "-1", "steps", "linear warm-up; -1: a twentieth of the steps",
          NEB_OPT_RANGE(-1, 1e12)),
    TRAIN(decay_share, NEB_OPT_SHARE, "0.2", NULL, "wsd: last part of the steps"),
    TRAIN(weight_decay, NEB_OPT_REAL, "0.01", NULL, "decoupled, not on biases and norms",
          NEB_OPT_RANGE(0, 10)),
    TRAIN(clip, NEB_OPT_REAL, "1", NULL, "largest gradient norm; 0: no clipping", NEB_OPT_RANGE(0, 1e30)),
    TRAIN(optimizer, NEB_OPT_TEXT, "auto", NULL,
          "muon: the momentum of every matrix between hidden states is orthogonalised, and AdamW is for the "
          "rest; auto: adamw, for several sites with large batches muon",
          NEB_OPT_CHOICE("auto", "adamw", "muon")),
    TRAIN(muon_momentum, NEB_OPT_REAL, "0.95", NULL, "muon", NEB_OPT_RANGE(0, 0.999999)),
    TRAIN(muon_dtype, NEB_OPT_TEXT, "auto", NULL, "muon: type of its products; auto: dtype",
          NEB_OPT_CHOICE("auto", "f32", "bf16")),
    TRAIN(muon_also, NEB_OPT_TEXT, "", NULL,
          "muon: further matrices, such as *.lora.* or *.adapter.*; separated by commas"),
    TRAIN(beta1, NEB_OPT_REAL, "0.9", NULL, "AdamW", NEB_OPT_RANGE(0, 0.999999)),
    TRAIN(beta2, NEB_OPT_REAL, "auto", NULL, "AdamW; auto: 0.98, for several sites as their batches need",
          NEB_OPT_AUTO_OR(0, 0.9999999)),
    TRAIN(mask, NEB_OPT_SHARE, "0.15", NULL, "mlm, rtd: share of masked tokens", NEB_OPT_RANGE(0.01, 0.9)),
    TRAIN(temperature, NEB_OPT_REAL, "2", NULL,
          "language sampling: 1 follows the sizes, larger is more even; the inverse of data.temperature",
          NEB_OPT_RANGE(0.01, 1000)),
    TRAIN(rtd_weight, NEB_OPT_REAL, "50", NULL, "rtd: weight of the discriminator's loss",
          NEB_OPT_RANGE(0, 1e6)),
    TRAIN(
        rtd_embeddings, NEB_OPT_TEXT, "separate", NULL,
        "rtd: embeddings of the two; disentangled: the discriminator learns a difference to the generator's",
        NEB_OPT_CHOICE("separate", "shared", "disentangled")),
    TRAIN(average, NEB_OPT_INT, "0", NULL,
          "the final model is the mean of the last N checkpoints; not with strategy replica",
          NEB_OPT_RANGE(0, 100)),
    TRAIN(eval_every, NEB_OPT_INT, "0", "steps", "held-out loss this often; 0: at the end",
          NEB_OPT_RANGE(0, 1e12)),
    TRAIN(save_every, NEB_OPT_INT, "500", "steps", "checkpoint this often", NEB_OPT_RANGE(0, 1e12)),
    TRAIN(keep, NEB_OPT_INT, "2", NULL, "checkpoints kept", NEB_OPT_RANGE(1, 1000)),
    TRAIN(log_every, NEB_OPT_INT, "20", "steps", "a line this often when the output is not a terminal",
          NEB_OPT_RANGE(1, 1e9)),
    TRAIN(device, NEB_OPT_TEXT, "cpu", NULL,
          "cpu, auto (the GPU where there is one, else the CPU), or the name of a plug-in such as cuda or "
          "opencl; "
          "NAME:1 is the second device of that kind"),
    TRAIN(dtype, NEB_OPT_TEXT, "f32", NULL, "compute type; bf16 on a GPU", NEB_OPT_CHOICE("f32", "bf16")),
    TRAIN(threads, NEB_OPT_INT, "0", NULL, "CPU threads; 0: all cores", NEB_OPT_RANGE(0, 1024)),
    TRAIN(speed, NEB_OPT_REAL, "0", "tokens/s",
          "most tokens a second, for a machine that is shared, or a slow site in the laboratory; 0: no limit",
          NEB_OPT_RANGE(0, 1e12)),
    TRAIN(notice, NEB_OPT_TIME, "0", NULL,
          "time between the machine's notice (SIGTERM and others) and its end: a step or a checkpoint that "
          "will not fit is left out; 0: the present step and a checkpoint are always made",
          NEB_OPT_RANGE(0, 1e6)),
    TRAIN(memory, NEB_OPT_BYTES, "0", NULL,
          "most memory of the device that this training may take; 0: all that is free",
          NEB_OPT_RANGE(0, 1e15)),
    TRAIN(fallback, NEB_OPT_BOOL, "no", NULL, "compose ops the device lacks"),
    TRAIN(deterministic, NEB_OPT_BOOL, "no", NULL, "the same bits every time on a GPU, whatever it costs"),
    NEB_OPT_END,
};

#define INIT(field, help) NEB_OPT(struct neb_job_init, field, NEB_OPT_TEXT, "", NULL, help)
static const struct neb_opt init_table[] = {
    INIT(from, "folder of a trained or imported model to start from; it also brings tokenizer and sizes; of "
               "several: their mean"),
    INIT(match, "only these of its parameters, such as encoder.*; empty: all that both models have"),
    NEB_OPT_END,
};

#define DISTILL(field, ...) NEB_OPT(struct neb_job_distill, field, __VA_ARGS__)
static const struct neb_opt distill_table[] = {
    DISTILL(teacher, NEB_OPT_TEXT, "", NULL,
            "folder of a model for the same task: its likeliest tokens at each place are learned, too; of "
            "several: those of their mean"),
    DISTILL(weights, NEB_OPT_TEXT, "", NULL,
            "of several teachers, one number each: 2, 1; without it: all the same"),
    DISTILL(weight, NEB_OPT_SHARE, "0.5", NULL,
            "share of the teacher in the loss; the targets have the rest"),
    DISTILL(top_k, NEB_OPT_INT, "16", "tokens", "how many of the teacher's likeliest tokens",
            NEB_OPT_RANGE(1, 4096)),
    DISTILL(temperature, NEB_OPT_REAL, "1", NULL, "of both distributions; above 1: softer",
            NEB_OPT_ABOVE(0, 100)),
    DISTILL(prompt, NEB_OPT_TEXT, "", NULL,
            "task translate with a decoder as the teacher: what it reads before the translation, with "
            "{source} in it"),
    DISTILL(langs, NEB_OPT_TEXT, "", NULL,
            "names of the languages for a teacher with another tokenizer, where they differ: en=eng_Latn, "
            "de=deu_Latn"),
    DISTILL(sequence, NEB_OPT_TEXT, "", NULL,
            "strategy tutor, task translate: the student learns the teacher's translations in place of the "
            "text's own; beam5: "
            "found with five beams"),
    DISTILL(n, NEB_OPT_INT, "1", "translations",
            "sequence: how many of each sentence, the likeliest; every visit of a sentence takes one of them",
            NEB_OPT_RANGE(1, 64)),
    DISTILL(gold, NEB_OPT_SHARE, "0", NULL, "sequence: share of the visits with the text's own target"),
    DISTILL(
        on_policy, NEB_OPT_SHARE, "0", NULL,
        "strategy tutor: share of the batches whose targets are the student's own samples, which the teacher "
        "judges token by token"),
    DISTILL(
        lag, NEB_OPT_INT, "16", "steps",
        "on_policy: from a sample to the step that learns from it; the line and the teacher have that long",
        NEB_OPT_RANGE(1, 4096)),
    DISTILL(beta, NEB_OPT_SHARE, "0.5", NULL,
            "on_policy: of the divergence; 0: KL from the teacher, 1: KL from the student, between: "
            "Jensen-Shannon"),
    DISTILL(encoder, NEB_OPT_TEXT, "", NULL,
            "folder of an encoder: its hidden states are learned by this model's encoder"),
    DISTILL(width, NEB_OPT_INT, "0", NULL, "of its hidden states, where it lives on another site",
            NEB_OPT_RANGE(0, 1 << 20)),
    DISTILL(hidden_weight, NEB_OPT_REAL, "1", NULL, "of the hidden states' loss", NEB_OPT_ABOVE(0, 1e6)),
    DISTILL(hidden_loss, NEB_OPT_TEXT, "cosine", NULL, "of the hidden states",
            NEB_OPT_CHOICE("cosine", "mse")),
    NEB_OPT_END,
};

#define WAN(field, ...) NEB_OPT(struct neb_job_wan, field, __VA_ARGS__)
static const struct neb_opt wan_table[] = {
    WAN(interval, NEB_OPT_INT, "auto", "steps",
        "inner steps between two rounds of one part of the model; auto: 10 rounds, of 10 to 100 steps",
        NEB_OPT_AUTO_OR(1, 1 << 30)),
    WAN(fragments, NEB_OPT_INT, "8", NULL, "parts of the model, sent one after the other",
        NEB_OPT_RANGE(1, 256)),
    WAN(rung, NEB_OPT_TEXT, "auto", NULL,
        "how updates are coded: auto (rung and interval follow line and quality), or fp32, bf16, int8, int4, "
        "…"),
    WAN(prefer, NEB_OPT_TEXT, "cost", NULL,
        "auto: the cheapest rung that does no harm, or the best that fits the line",
        NEB_OPT_CHOICE("cost", "quality")),
    WAN(max_bytes_per_hour, NEB_OPT_BYTES, "0", NULL,
        "most that a site's updates may cost to send; 0: no limit"),
    WAN(outer_lr, NEB_OPT_REAL, "auto", NULL,
        "of the outer step; auto: 1 with 100 rounds or more of 50 steps, else 0.7", NEB_OPT_AUTO_OR(1e-6, 2)),
    WAN(outer_momentum, NEB_OPT_REAL, "0.6", NULL, "of the outer step (Nesterov)",
        NEB_OPT_RANGE(0, 0.999999)),
    WAN(tokens, NEB_OPT_REAL, "0", "tokens",
        "of all sites together that end the run; 0: when the first site has made train.steps",
        NEB_OPT_RANGE(0, 1e18)),
    WAN(merge_after, NEB_OPT_INT, "-1", "steps",
        "repeatable: merge a round exactly so many steps after its copy, and wait for it there; -1: when it "
        "comes",
        NEB_OPT_RANGE(-1, 1 << 30)),
    WAN(drift_steps, NEB_OPT_INT, "0", "steps", "without a round before a site waits; 0: 8 intervals or 2000",
        NEB_OPT_RANGE(0, 1e12)),
    WAN(wait, NEB_OPT_BOOL, "yes", NULL, "wait at that limit; no: go on, and enter discounted"),
    WAN(round_seconds, NEB_OPT_INT, "30", "s", "how long a round waits for slow sites",
        NEB_OPT_RANGE(1, 86400)),
    WAN(end, NEB_OPT_TEXT, "drop", NULL,
        "when the run ends: drop what one last update of each site leaves out, or keep sending until "
        "everything is in",
        NEB_OPT_CHOICE("drop", "keep")),
    WAN(end_seconds, NEB_OPT_INT, "0", "s",
        "drop: longest that the end may take; 0: as long as four rounds, at least 10 s",
        NEB_OPT_RANGE(0, 604800)),
    WAN(end_bytes, NEB_OPT_BYTES, "0", NULL,
        "drop: most that a site's last updates may cost to send; 0: as much as four rounds"),
    WAN(window, NEB_OPT_INT, "0", "batches",
        "relay, tutor: how far the sending site may be ahead; 0: as the line and the other site's pace need",
        NEB_OPT_RANGE(0, 2048)),
    WAN(snapshot, NEB_OPT_INT, "0", "batches",
        "relay, disentangled embeddings: how often the generator's cross; 0: 100, less often on a thin line",
        NEB_OPT_RANGE(0, HUGE_VAL)),
    WAN(bits, NEB_OPT_INT, "0", "bits",
        "tutor: of a logit (8 or 4) or of a hidden state's value (8, 4 or 2); pipeline: of a value between "
        "layers (32, 16, 8 or 4); 0: 8, fewer on a thin line",
        NEB_OPT_CHOICE("0", "2", "4", "8", "16", "32")),
    WAN(depth, NEB_OPT_INT, "0", "micro-batches",
        "pipeline: in flight at the first stage; 0: as the line and the stages' pace need",
        NEB_OPT_RANGE(0, 256)),
    WAN(journal, NEB_OPT_BYTES, "4GiB", NULL,
        "pipeline: most that a neighbour must keep for this site until its checkpoints cover it; earlier "
        "checkpoints hold it",
        NEB_OPT_RANGE(1 << 20, 4294967296.0)),
    WAN(gather, NEB_OPT_BOOL, "yes", NULL,
        "pipeline: the first site gets the whole model at the end; no: every site keeps its part, for "
        "nebula-i export --join"),
    WAN(cache, NEB_OPT_BYTES, "1GiB", NULL,
        "tutor: answers kept on the student's disk, so that none crosses twice; 0: no cache"),
    WAN(recorded, NEB_OPT_TEXT, "", NULL,
        "relay, tutor: a folder instead of the other site: what is sent is recorded there, or read from it"),
    WAN(ledger_quota, NEB_OPT_BYTES, "0", NULL,
        "most that stored updates may take on a site's disk; 0: no limit"),
    WAN(clip, NEB_OPT_REAL, "0", NULL, "privacy: norm to which an update of this site is cut; 0: none",
        NEB_OPT_RANGE(0, 1e30)),
    WAN(noise, NEB_OPT_REAL, "0", NULL, "privacy: deviation of the noise in each of its values; 0: none",
        NEB_OPT_RANGE(0, 1e30)),
    WAN(archive, NEB_OPT_BOOL, "no", NULL, "keep every update: nebula-i site replay can repeat the run"),
    WAN(influence, NEB_OPT_TEXT, "clip=2 steps=16", NULL,
        "nebula-i lab: the rule of the roster about one site's influence (roster seal --influence); off: "
        "none"),
    WAN(quorum, NEB_OPT_TEXT, "majority", NULL,
        "nebula-i lab: voters that decide (roster seal --quorum): majority, or byzantine with four sites or "
        "more"),
    WAN(max_rate, NEB_OPT_RATE, "0", NULL, "most that a link may send; 0: what the line gives",
        NEB_OPT_RANGE(0, 1e15)),
    NEB_OPT_END,
};

#define PARALLEL(field, ...) NEB_OPT(struct neb_job_parallel, field, __VA_ARGS__)
const struct neb_opt neb__job_parallel_options[] = {
    NEB_OPT_AS(
        struct neb_job_parallel, automatic, "auto", NEB_OPT_BOOL, "no", NULL,
        "the planner chooses the layout for this machine (the same as `parallel: auto`); see nebula-i plan"),
    PARALLEL(data, NEB_OPT_INT, "1", "ranks",
             "processes of this site that share out the micro-batches of a step and add up their gradients",
             NEB_OPT_RANGE(1, 1024)),
    PARALLEL(
        tensor, NEB_OPT_INT, "1", "ranks",
        "processes that share the matrices of each layer; a copy of the model has tensor * pipeline of them",
        NEB_OPT_RANGE(1, 64)),
    PARALLEL(pipeline, NEB_OPT_INT, "1", "ranks",
             "stages of consecutive layers, each at processes of its own", NEB_OPT_RANGE(1, 64)),
    PARALLEL(sequence, NEB_OPT_BOOL, "no", NULL,
             "tensor: also share the rows of norms and residuals, which saves memory"),
    PARALLEL(
        zero, NEB_OPT_INT, "0", NULL,
        "each of these processes holds a part, instead of all, of: 1 the optimizer's moments; 2 also the "
        "gradients; 3 also the parameters",
        NEB_OPT_RANGE(0, 3)),
    PARALLEL(
        offload, NEB_OPT_TEXT, "none", NULL,
        "state that is kept in the host's memory instead of the GPU's: moments of the optimizer; optimizer: "
        "also the fp32 parameters that train.dtype bf16 has beside its own",
        NEB_OPT_CHOICE("none", "moments", "optimizer")),
    PARALLEL(
        hosts, NEB_OPT_TEXT, "", NULL,
        "machines to start them on, as mpirun --host takes them (a:4,b:4); empty: this one, or those that "
        "Slurm gave"),
    PARALLEL(
        network, NEB_OPT_TEXT, "", NULL,
        "the networks that processes on several machines talk over, as Open MPI takes them: interfaces (ib0) "
        "or networks (10.1.0.0/16), with commas between; empty: any. On one machine they use none"),
    PARALLEL(launcher, NEB_OPT_TEXT, "auto", NULL,
             "mpirun, srun, or auto: srun in a Slurm allocation whose Slurm speaks PMIx, else mpirun",
             NEB_OPT_CHOICE("auto", "mpirun", "srun")),
    PARALLEL(bucket, NEB_OPT_BYTES, "0", NULL,
             "gradients that data ranks add up at once while they still compute, in bytes; 0: 8MiB on CPUs, "
             "32MiB on GPUs, and none beside the computing where ranks share a GPU",
             NEB_OPT_RANGE(0, 1e15)),
    PARALLEL(timeout, NEB_OPT_TIME, "25s", NULL,
             "a process that makes no progress for so long is named, and all are started again",
             NEB_OPT_RANGE(1, 86400)),
    PARALLEL(check_every, NEB_OPT_INT, "100", "steps",
             "how often processes that must hold equal parameters compare them, so that one that computes "
             "wrong is named; also before each checkpoint; 0: never",
             NEB_OPT_RANGE(0, 1e9)),
    NEB_OPT_END,
};

#define PRIVACY(field, ...) NEB_OPT(struct neb_job_privacy, field, __VA_ARGS__)
static const struct neb_opt privacy_table[] = {
    PRIVACY(
        unit, NEB_OPT_TEXT, "none", NULL,
        "what others must not be able to tell: whether one sample was trained on (noise in every step), or "
        "whether the whole site took part (noise on every update)",
        NEB_OPT_CHOICE("none", "site", "sample")),
    PRIVACY(epsilon, NEB_OPT_REAL, "8", NULL, "budget: nothing leaves the site beyond it; 0: only counted",
            NEB_OPT_RANGE(0, 1e6)),
    PRIVACY(delta, NEB_OPT_REAL, "1e-5", NULL,
            "the probability that epsilon does not hold; less than one in the number of samples",
            NEB_OPT_ABOVE(0, 0.5)),
    PRIVACY(clip, NEB_OPT_REAL, "1", NULL,
            "longest gradient of a sample, or longest delta of a sweep over the model",
            NEB_OPT_ABOVE(0, 1e30)),
    PRIVACY(noise, NEB_OPT_REAL, "0", NULL,
            "deviation of the noise in each value, as a multiple of clip; 0: as much as epsilon needs",
            NEB_OPT_ZERO_OR(0.01, 1e6)),
    PRIVACY(samples, NEB_OPT_INT, "64", NULL,
            "sample: how many a step takes on average; each is drawn by itself", NEB_OPT_RANGE(1, 1 << 24)),
    PRIVACY(aggregate, NEB_OPT_TEXT, "plain", NULL,
            "secure: members learn the sum of the updates and no single one; three sites that train or more",
            NEB_OPT_CHOICE("plain", "secure")),
    NEB_OPT_END,
};

#define WATCH(field, ...) NEB_OPT(struct neb_job_watch, field, __VA_ARGS__)
static const struct neb_opt watch_table[] = {
    WATCH(alert, NEB_OPT_TEXT, "", NULL,
          "a command, or an address that begins with http:// or https://: who is told of alerts (train "
          "--watch)"),
    WATCH(stalled, NEB_OPT_TIME, "10m", NULL, "without a commit is an alert; 0: it is not",
          NEB_OPT_RANGE(0, 1e7)),
    WATCH(disk, NEB_OPT_BYTES, "1GiB", NULL, "less room at a site is an alert", NEB_OPT_RANGE(0, 1e18)),
    WATCH(egress, NEB_OPT_REAL, "0.08", NULL, "price of a gigabyte that leaves a site, for the page; 0: none",
          NEB_OPT_RANGE(0, 1000)),
    WATCH(samples, NEB_OPT_BOOL, "yes", NULL,
          "a few outputs for held-out text are kept with every evaluation; they quote that text"),
    NEB_OPT_END,
};

static const char *const sections[] = {"model",    "generator", "peft",    "tokenizer", "train",
                                       "data",     "init",      "distill", "sites",     "wan",
                                       "parallel", "privacy",   "watch",   NULL};
static const char *const family_key[] = {"family", NULL};

/* Read before the other options, because it sets their defaults. */
static const struct neb_opt family_table[] = {
    {.name = "family",
     .type = NEB_OPT_TEXT,
     .fallback = "",
     .help = NEB_MODEL_FAMILIES ": sets the defaults below"},
    NEB_OPT_END,
};

const struct neb_job_section neb__job_sections[] = {
    {"", "(top level)", {top_table}},
    {"tokenizer", "tokenizer", {tokenizer_table}},
    {"data[]", "data[]", {neb__job_data_options}},
    {"train", "train", {neb__job_train_options}},
    {"model", "model", {family_table, neb__model_options}},
    {"generator", "generator (rtd)", {family_table, neb__model_options}},
    {"peft", "peft", {neb__peft_options}},
    {"init", "init", {init_table}},
    {"distill", "distill", {distill_table}},
    {"wan", "wan", {wan_table}},
    {"sites[]", "sites[]", {neb__job_site_options}},
    {"parallel", "parallel", {neb__job_parallel_options}},
    {"privacy", "privacy", {privacy_table}},
    {"watch", "watch", {watch_table}},
    {NULL, NULL, {NULL}},
};

static void list_tasks(FILE *to)
{
    fprintf(to, "\ntask\n");
    for (int i = 0; neb__objectives[i]; i++)
        if (neb__objectives[i]->steps)
            fprintf(to, "  %-22s %s\n", neb__objectives[i]->name, neb__objectives[i]->about);
}

static void section_help(const struct neb_job_section *s, FILE *to)
{
    fprintf(to, "\n%s\n", s->title);
    for (int i = 0; i < NEB_JOB_TABLES && s->table[i]; i++)
        for (const struct neb_opt *o = s->table[i]; o->name; o++) {
            fprintf(to, "  %-22s ", o->name);
            neb__opts_help_of(o, to);
        }
}

void neb__job_help(FILE *to)
{
    fprintf(to, "A job file is YAML; any key can also be given as section.key=value after it.\n");
    for (const struct neb_job_section *s = neb__job_sections; s->name; s++) {
        section_help(s, to);
        if (!*s->name) list_tasks(to);
    }
}

static neb_status check_family(const struct neb_job *j, const char *path, const char *family)
{
    char hint[NEB_HINT];
    if (!family || !*family || neb__model_family(family, hint)) return NEB_OK;
    return neb__doc_fail(&j->doc, path, "%s: '%.60s' is not one of %s%s", path, family, NEB_MODEL_FAMILIES,
                         hint);
}

/* The head is the task's, not the family's. */
static neb_status bind_model(struct neb_job *j, const char *section, const char *fallback_family,
                             const char *head, struct neb_model_config *m)
{
    char path[64];
    snprintf(path, sizeof path, "%s.family", section);
    const char *family = neb__doc_get(&j->doc, path);
    NEB_TRY(check_family(j, path, family));
    NEB_TRY(neb__model_config_init(family && *family ? family : fallback_family, m));
    NEB_TRY(neb__opts_set(neb__model_options, m, "head", head));
    return neb__doc_bind(&j->doc, section, neb__model_options, m, family_key);
}

/* A model that starts from another's parameters has its options, except those that the task decides. */
static neb_status inherit(const struct neb_model_yaml *f, struct neb_job *j)
{
    NEB_TRY(neb__doc_copy(neb__model_options, &f->model, &j->model));
    return neb__objective_adopt(j->objective, &j->model);
}

/* Without a family, the sizes come from the folder that the parameters come from. */
static neb_status bind_main_model(struct neb_job *j)
{
    const char *family = neb__doc_get(&j->doc, "model.family");
    if (!j->init.from || (family && *family))
        return bind_model(j, "model", j->objective->family, j->objective->head, &j->model);
    struct neb_model_yaml f;
    char first[NEB_MODEL_PATH + 1];
    neb__list_part(j->init.from, 0, first, sizeof first);
    NEB_TRY(neb__model_config_init(NULL, &j->model));
    NEB_TRY(neb__model_yaml_read(first, &f));
    neb_status status = inherit(&f, j);
    neb__model_yaml_free(&f);
    NEB_TRY(status);
    return neb__doc_bind(&j->doc, "model", neb__model_options, &j->model, family_key);
}

static neb_status find_objective(struct neb_job *j)
{
    char names[128];
    j->objective = neb__objective_named(j->task);
    if (j->objective && j->objective->steps) return NEB_OK;
    return neb__doc_fail(&j->doc, "task", "task: '%s' is not %s", j->task ? j->task : "",
                         neb__objective_list(NULL, names, sizeof names));
}

static neb_status bind_data(struct neb_job *j)
{
    int n = neb__doc_items(&j->doc, "data");
    if (n > NEB_JOB_DATA) return neb__doc_fail(&j->doc, "data", "data: at most %d corpora", NEB_JOB_DATA);
    for (int i = 0; i < n; i++) {
        char path[32];
        snprintf(path, sizeof path, "data[%d]", i);
        struct neb_job_data *d = &j->data[i];
        NEB_TRY(neb__opts_init(neb__job_data_options, d));
        j->n_data = i + 1;
        NEB_TRY(neb__doc_bind(&j->doc, path, neb__job_data_options, d, NULL));
        if (!d->file) return neb__doc_fail(&j->doc, path, "data: every corpus needs a file");
        bool pair = d->second || (d->lang && strchr(d->lang, '-'));
        if (j->objective->needs_pairs && !pair)
            return neb__doc_fail(&j->doc, path,
                                 "task %s needs pairs: lang: en-de, in one tab-separated file or in "
                                 "file and second",
                                 j->task);
    }
    return NEB_OK;
}

static neb_status bind(struct neb_job *j)
{
    NEB_TRY(neb__job_gather_data(j));
    NEB_TRY(neb__job_gather_parallel(j));
    for (int i = 0; sections[i]; i++)
        NEB_TRY(neb__doc_section(&j->doc, sections[i],
                                 !strcmp(sections[i], "data") || !strcmp(sections[i], "sites")));
    NEB_TRY(neb__doc_bind(&j->doc, "", top_table, j, sections));
    NEB_TRY(find_objective(j));
    NEB_TRY(neb__doc_bind(&j->doc, "init", init_table, &j->init, NULL));
    NEB_TRY(neb__doc_bind(&j->doc, "distill", distill_table, &j->distill, NULL));
    NEB_TRY(bind_main_model(j));
    NEB_TRY(bind_model(j, "generator", "bert", "tokens", &j->generator));
    NEB_TRY(neb__doc_bind(&j->doc, "peft", neb__peft_options, &j->peft, NULL));
    NEB_TRY(neb__doc_bind(&j->doc, "tokenizer", tokenizer_table, &j->tokenizer, NULL));
    NEB_TRY(neb__doc_bind(&j->doc, "train", neb__job_train_options, &j->train, NULL));
    NEB_TRY(neb__doc_bind(&j->doc, "wan", wan_table, &j->wan, NULL));
    NEB_TRY(neb__doc_bind(&j->doc, "parallel", neb__job_parallel_options, &j->parallel, NULL));
    NEB_TRY(neb__doc_bind(&j->doc, "privacy", privacy_table, &j->privacy, NULL));
    NEB_TRY(neb__doc_bind(&j->doc, "watch", watch_table, &j->watch, NULL));
    NEB_TRY(bind_data(j));
    NEB_TRY(neb__job_bind_sites(j));
    NEB_TRY(neb__job_settle(j));
    NEB_TRY(neb__job_check(j));
    NEB_TRY(neb__job_check_privacy(j));
    return neb__doc_all_used(&j->doc);
}

static neb_status defaults(struct neb_job *j)
{
    NEB_TRY(neb__opts_init(top_table, j));
    NEB_TRY(neb__opts_init(tokenizer_table, &j->tokenizer));
    NEB_TRY(neb__opts_init(neb__job_train_options, &j->train));
    NEB_TRY(neb__opts_init(wan_table, &j->wan));
    NEB_TRY(neb__opts_init(neb__job_parallel_options, &j->parallel));
    NEB_TRY(neb__opts_init(privacy_table, &j->privacy));
    NEB_TRY(neb__opts_init(watch_table, &j->watch));
    NEB_TRY(neb__opts_init(init_table, &j->init));
    NEB_TRY(neb__opts_init(distill_table, &j->distill));
    return neb__peft_config_init(&j->peft);
}

neb_status neb__job_read(const char *file, char *const *words, int n, struct neb_job *out)
{
    memset(out, 0, sizeof *out);
    out->at = -1;
    out->settings.rules = NEB_SETTINGS_NOW;
    neb_status status = neb__doc_read(file, &out->doc);
    for (int i = 0; status == NEB_OK && i < n; i++) status = neb__doc_override(&out->doc, words[i]);
    if (status == NEB_OK) status = defaults(out);
    if (status == NEB_OK) status = bind(out);
    if (status != NEB_OK) neb__job_free(out);
    return status;
}

void neb__job_free(struct neb_job *j)
{
    neb__opts_free(top_table, j);
    neb__opts_free(tokenizer_table, &j->tokenizer);
    neb__opts_free(neb__job_train_options, &j->train);
    neb__opts_free(wan_table, &j->wan);
    neb__opts_free(neb__job_parallel_options, &j->parallel);
    neb__opts_free(privacy_table, &j->privacy);
    neb__opts_free(watch_table, &j->watch);
    neb__opts_free(init_table, &j->init);
    neb__opts_free(distill_table, &j->distill);
    for (int i = 0; i < j->n_sites; i++) neb__opts_free(neb__job_site_options, &j->site[i]);
    neb__model_config_free(&j->model);
    neb__model_config_free(&j->generator);
    neb__peft_config_free(&j->peft);
    for (int i = 0; i < j->n_data; i++) neb__opts_free(neb__job_data_options, &j->data[i]);
    neb__doc_free(&j->doc);
    memset(j, 0, sizeof *j);
}
