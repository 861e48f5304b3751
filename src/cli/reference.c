/* reference.c: the tables of reference.h. */
#include "cli/reference.h"

#include <signal.h>
#include <stddef.h>

int neb__exit_of(neb_status status)
{
    switch (status) {
    case NEB_OK: return NEB_EXIT_DONE;
    case NEB_ERR_CONFIG: return NEB_EXIT_USAGE;
    case NEB_ERR_NET:
    case NEB_ERR_TIMEOUT:
    case NEB_ERR_PEER: return NEB_EXIT_UNANSWERED;
    case NEB_ERR_AUTH:
    case NEB_ERR_PROTOCOL:
    case NEB_ERR_VERSION: return NEB_EXIT_REFUSED;
    case NEB_ERR_CORRUPT: return NEB_EXIT_DAMAGED;
    case NEB_ERR_NOMEM:
    case NEB_ERR_NOSPACE: return NEB_EXIT_NO_ROOM;
    case NEB_ERR_NONFINITE: return NEB_EXIT_NOT_FINITE;
    case NEB_ERR_BUSY: return NEB_EXIT_IN_USE;
    case NEB_ERR_CANCELLED: return NEB_EXIT_SIGNAL + SIGINT;
    default: return NEB_EXIT_FAILED;
    }
}

const struct neb_reference_row neb__reference_options[] = {
    {"-h, --help", "list the verbs; behind a verb: explain it"},
    {"-V, --version", "print the version"},
    {"-q, --quiet", "no progress: only results, warnings and errors. It may stand anywhere before a `--`"},
    {"-v, --verbose", "every detail; anywhere, too"},
    {NULL, NULL},
};

const struct neb_reference_row neb__reference_exits[] = {
    {"0", "all is done"},
    {"1", "it failed; the message says why. Also: a check or a test that found something wrong"},
    {"2", "a wrong word, option or value, on the command line or in a job file: nothing was begun"},
    {"3",
     "another site, or another process of this one, did not answer in time; the same command may succeed "
     "later"},
    {"4", "a key, a roster, a version or another site's message was not accepted"},
    {"5", "a file is damaged"},
    {"6", "memory, disk or a quota is full"},
    {"7", "training stopped because losses were no longer finite; the last checkpoint is good"},
    {"8", "another process is at work in the same folder"},
    {"128 + N", "signal N ended it: 130 Ctrl-C, 143 SIGTERM, 129 a lost terminal. `train` has left a "
                "checkpoint, and the same command goes on from there"},
    {"others", "`wan run` and `lab` end with the status of the first site that failed"},
    {NULL, NULL},
};

const struct neb_reference_row neb__reference_environment[] = {
    {"NEBULA_LOG",
     "least severe messages that are shown: `debug` (as `-v`), `info` (default), `warn` (as `-q`), "
     "`error`, `none`"},
    {"NEBULA_ALERT, NEBULA_ALERT_SITE, NEBULA_ALERT_STATE, NEBULA_ALERT_TEXT, NEBULA_ALERT_JSON",
     "of the command of `watch --alert`: what is wrong, where, whether it begins or ends, in words, all as "
     "JSON"},
    {"NEBULA_WATCH_TOKEN", "the token of `nebula-i watch`, where other users cannot read it"},
    {"NEBULA_WATCH_ORDER_WORD",
     "the word for orders of `nebula-i watch --orders`, where other users cannot read it"},
    {"NEBULA_WATCH_ALERT", "the alert of `nebula-i watch`, where other users cannot read it"},
    {"NO_COLOR", "if it is set and not empty: no colours"},
    {"TERM, COLUMNS, LINES",
     "a terminal that is `dumb` gets no live line; its width and height, where the terminal does not say"},
    {"NEBULA_PLUGIN_PATH",
     "folders with device plug-ins `libnebula-i-NAME.so`, with colons between them; "
     "searched before the program's folder, `../lib` beside it, `../lib/nebula-i` and the system's"},
    {"NEBULA_CUDA_LIB", "folder with `libcublasLt.so.13`, if the loader does not find it"},
    {"CUDA_HOME", "where CUDA is installed; its `lib64` is searched for the same library"},
    {"VIRTUAL_ENV", "the active Python environment; CUDA's packages in it are searched last"},
    {"NEBULA_OPENCL_KERNELS",
     "`cpu` or `gpu`: which cut of the OpenCL kernels is used, instead of the one for the "
     "device's kind; for tests"},
    {"NEBULA_OPENCL_FP16",
     "`yes` or `no`: whether the OpenCL device multiplies in fp16 in runs in bf16; without it, where that is "
     "measured to be faster"},
    {"NEBULA_OPENCL_SUBGROUPS", "`yes` or `no`: whether work-items that share a row add up by subgroups; "
                                "without it, where a GPU has them"},
    {"XDG_CACHE_HOME, HOME",
     "where the OpenCL device keeps compiled kernels: `nebula-i/opencl` in the first, or in `.cache` of the "
     "second"},
    {"OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE, OMPI_COMM_WORLD_LOCAL_RANK, PMI_SIZE, SLURM_LOCALID, "
     "SLURM_STEP_NUM_TASKS, SLURM_JOB_ID",
     "set by mpirun and Slurm: whether this process is one of several of a site, and where they run"},
    {"NEBULA_NCCL_LIB", "folder with `libnccl.so.2`, if the loader does not find it; `none`: GPU ranks "
                        "exchange values through the "
                        "host's memory instead"},
    {"NCCL_MULTI_RANK_GPU_ENABLE", "`1`: with NCCL 2.30 or newer ranks may share a GPU, under MPS"},
    {"SLURM_NTASKS", "set by Slurm: its number of tasks, which must be the number of ranks"},
    {"NEBULA_GATEWAY",
     "set for the ranks of a site: the folder of the channel to the process that started them"},
    {"TMPDIR", "where that folder is made; `/tmp` if it is not set"},
    {"NEBULA_TEST_FLIP",
     "for tests, RANK:STEP:FILE: that rank's parameters are changed once after that step"},
    {"NEBULA_DATA",
     "`bench codec-training`, `bench replica-quality` and `bench unequal-sites`: folder with real text"},
    {"NEBULA_I_LIBRARY", "Python: the `libnebula-i.so` to load instead of the package's own"},
    {"NEBULA_JOB, NEBULA_SITE, NEBULA_SETTINGS", "of a script that is one site: the job file, the site's "
                                                 "name, and settings `section.key=value` of that site, "
                                                 "a line each; `lab JOB -- COMMAND` sets them"},
    {"NEBULA_OUT", "set there: the folder for what the script writes"},
    {"OMP_NUM_THREADS", "set there to the script's share of the cores, unless it is set already"},
    {"NEBULA_WAN_SITE, NEBULA_WAN_INDEX, NEBULA_WAN_SITES",
     "set for the commands of `wan run`: this site's name and number, and all names"},
    {"NEBULA_WAN_ADDR, NEBULA_WAN_ADDR_NAME",
     "set there: this site's address, and that of the site NAME (upper case)"},
    {"NEBULA_WAN_MODE", "set there: `namespaces`, `user` or `relay`"},
    {NULL, NULL},
};

/* OUT is a job's `out`. A site folder is what `nebula-i site init` makes. */
const struct neb_reference_row neb__reference_files[] = {
    {"OUT/model.yaml, OUT/model.safetensors", "the trained model: its options, its parameters by name"},
    {"OUT/tokenizer.model, OUT/vocab.txt, OUT/vocab.json, OUT/merges.txt",
     "its tokenizer, one of the three kinds"},
    {"OUT/generator/", "replaced-token detection: the generator, a model folder like OUT"},
    {"OUT/checkpoints/", "`checkpoint-STEP.neb`, from which the same command goes on"},
    {"OUT/metrics.sqlite, OUT/metrics.sqlite-*, OUT/events.out.tfevents.*",
     "every step's figures, for SQL and for TensorBoard"},
    {"OUT/status.json", "the state of all sites, as `nebula-i status` shows it"},
    {"OUT/ranks/", "a site of several processes: the output of process R in `R.log`"},
    {"OUT/plan", "what `nebula-i plan` or `parallel: auto` has foreseen for each layout"},
    {"OUT/report.html", "the run as a page; `nebula-i report` makes it"},
    {"OUT/data/", "the tokenizer and the tokenised text, unless the job names a `cache`; measured costs of "
                  "the planner (`plan.…`)"},
    {"OUT/lock", "keeps a second process out of the folder"},
    {"OUT/alive", "locked while the training lives, for `nebula-i watch` and `status`"},
    {"OUT/stream.run, OUT/lessons.cache, OUT/translations.cache",
     "`relay`, `tutor` and `pipeline`: the run that OUT belongs to; answers and translations of the teacher"},
    {"OUT/pipeline.done", "`pipeline`: this site has got and given everything"},
    {"OUT/NAME/", "`nebula-i lab`: what site NAME writes, its site folder `site` and its output `log`"},
    {"OUT/calm/, OUT/chaos/, OUT/chaos.html",
     "`nebula-i lab --chaos`: the run without faults, the one with them, and both in plots"},
    {"OUT/privacy", "the privacy account of a training without other sites"},
    {"SITE/site.key", "a site's secret key; it never leaves the folder"},
    {"SITE/site.key.next", "the key that the site has asked for (`site rekey`)"},
    {"SITE/site.id", "its public identity"},
    {"SITE/roster", "the run's members, signed"},
    {"SITE/watch.key, SITE/watch.crt, SITE/watch.sig",
     "`watch --tls`: key and certificate of the live page, and the site's signature of its fingerprint"},
    {"SITE/lock, SITE/incarnation",
     "keep two processes from being the same site; how often the site was started"},
    {"SITE/run/",
     "`status.json` and `orders/` of the site; in `NAME/` the ledger, updates, snapshots and the privacy "
     "account of the run NAME"},
    {NULL, NULL},
};
