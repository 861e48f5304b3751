#!/bin/bash
# A site of several processes: data-parallel ranks with whole and with shared optimizer state. The same bits either way, after
# a rank was killed, after one hung, and whatever layout wrote the checkpoint. Layouts that do not fit are refused.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v mpirun > /dev/null || [ ! -e "$(dirname "$nebula")/libnebula-i-mpi.so" ]; then
    echo "ranks: skipped, there is no Open MPI (apt install libopenmpi-dev openmpi-bin, then build again)"
    exit 0
fi
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log */ranks/*.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: ranks
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 2, heads: 2, dropout: 0.1}
train: {steps: 600, tokens: 128, micro: 4, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 600, threads: 1, save_every: 50}
data:
  - {file: text}
YAML
train() { "$nebula" train job.yaml out=$1 "${@:2}" > $1.log 2>&1; }
same() { cmp -s $1/model.safetensors $2/model.safetensors || fail "the models of $1 and $2 differ"; }
loss() { grep -ao "step 600/600  loss [0-9.]*" $1.log | tail -1; }

# ---- layouts: equal bits, or the same loss where sums have another order
train one; train two parallel.data=2; train zero parallel.data=2 parallel.zero=1; train sums parallel.data=2 parallel.zero=2
same two zero
[ "$(loss two)" = "$(loss sums)" ] || fail "data: $(loss two), zero 2: $(loss sums)"
train each parallel.data=4; train each2 parallel.data=4 parallel.zero=2 # one micro-batch a rank
same each each2
train each3 parallel.data=4 parallel.zero=3
same each each3
train host parallel.offload=optimizer; same one host
train host4 parallel.data=4 parallel.zero=2 parallel.offload=moments; same each host4
[ -n "$(loss one)" ] && [ "$(loss one)" = "$(loss two)" ] || fail "one process: $(loss one), two: $(loss two)"
train there parallel.data=2 parallel.zero=1 train.steps=300 train.schedule=constant
cp -r there back
train there parallel.data=4 parallel.zero=2 train.steps=400 train.schedule=constant # another layout goes on …
cp -r there way
train there parallel.data=4 parallel.zero=3 train.steps=450 train.schedule=constant
train way parallel.data=4 train.steps=450 train.schedule=constant # the same without a change
same way there
train back train.steps=301 train.schedule=constant                                    # also one process
grep -q "going on from step 300" back.log || fail "one process did not go on from the checkpoint of two"

# ---- ranks that share the layers: the model of one process, whatever layout held it; and the same loss
short="train.steps=100 train.schedule=constant"
train whole $short; cp -r whole shared
train shared $short parallel.tensor=2 # nothing is left to do: loaded, shared out, collected, written
same whole shared
train shared train.steps=160 train.schedule=constant parallel.data=2 parallel.tensor=2 # another layout goes on …
train whole train.steps=160 train.schedule=constant
last() { grep -ao "step 160/160  loss [0-9.]*" $1.log | tail -1; }
[ -n "$(last whole)" ] && [ "$(last whole)" = "$(last shared)" ] || fail "one process: $(last whole), shared: $(last shared)"
train shared train.steps=161 train.schedule=constant # … and one process after it
grep -q "going on from step 160" shared.log || fail "one process did not go on from the checkpoint of a shared model"

# ---- Muon: whole matrices under every layout, and checkpoints that only Muon goes on from
muon="$short train.optimizer=muon"
hundred() { grep -ao "step 100/100  loss [0-9.]*" $1.log | tail -1; }
train malone $muon; train mdata parallel.data=2 $muon; train mzero parallel.data=2 parallel.zero=1 $muon
same mdata mzero
train mcut parallel.tensor=2 parallel.data=2 parallel.zero=1 $muon; train mstages parallel.pipeline=2 $muon
for layout in mdata mcut mstages; do
    [ -n "$(hundred malone)" ] && [ "$(hundred malone)" = "$(hundred $layout)" ] || fail "Muon, one process: $(hundred malone), $layout: $(hundred $layout)"
done
train mcut train.steps=101 train.optimizer=muon train.schedule=constant
grep -q "going on from step 100" mcut.log || fail "one process did not go on from Muon's checkpoint of a shared model"
if train mzero $short train.steps=101; then fail "AdamW went on from Muon's checkpoint"; fi
grep -aq "was written with train.optimizer: muon, and the job says adamw" mzero.log || fail "no message about the optimizer"

# ---- ranks that are lost
here() { for p; do [ "$(readlink /proc/$p/cwd)" != "$dir" ] || echo $p; done; } # of these processes, those of this test
ranks_of() { here $(pgrep -f "^$nebula train job.yaml .*out=$1 ") | grep -v "^$2$" || true; } # OUT LAUNCHER
hurt() { # SIGNAL OUT LAUNCHER: the last rank gets the signal once a checkpoint is there
    until [ -n "$(ls $2/checkpoints/*.neb 2> /dev/null)" ]; do kill -0 $3 2> /dev/null || fail "$2 ended early"; sleep 0.1; done
    kill -$1 $(ranks_of $2 $3 | tail -1)
}
long="train.micro=2" # one micro-batch a rank
train calm parallel.data=2 parallel.zero=1 $long
for way in KILL:30s STOP:3s; do
    zero=1; [ $way = STOP:3s ] || zero=3
    "$nebula" train job.yaml out=hurt parallel.data=2 parallel.zero=$zero parallel.timeout=${way#*:} $long > hurt.log 2>&1 & pid=$!
    started="$started $pid"
    hurt ${way%:*} hurt $pid
    wait $pid || fail "the training did not survive SIG${way%:*}"
    grep -aq "a rank was lost" hurt.log || fail "nobody noticed SIG${way%:*}"
    [ $way != STOP:3s ] || grep -aq "rank 1 of 2 has made no progress for 3 s" hurt.log || fail "the stuck rank was not named"
    same calm hurt
    rm -r hurt
done
"$nebula" train job.yaml out=stop parallel.data=2 train.steps=1000000 > stop.log 2>&1 & pid=$!
started="$started $pid"
until [ -n "$(ls stop/checkpoints/*.neb 2> /dev/null)" ]; do sleep 0.1; done
kill -TERM $pid
code=0; wait $pid || code=$?
[ $code = 143 ] && grep -aq "stopped at step" stop.log || fail "SIGTERM did not stop all ranks with a checkpoint (exit status $code)"

# ---- a rank whose memory changes is named, and the training goes on from the checkpoint before it
touch flip
NEBULA_TEST_FLIP=2:120:$dir/flip train wrong parallel.data=3 parallel.check_every=40 || fail "the training did not survive a wrong value"
[ ! -e flip ] && grep -aq "differ after step 120: rank 2 computed wrong" wrong.log || fail "rank 2 was not named"
train right parallel.data=3
same wrong right

# ---- ranks with another job or another program
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cp "$nebula" other; echo >> other
one="-n 1 --oversubscribe $nebula train job.yaml out=bad parallel.data=2"
export NEBULA_PLUGIN_PATH=$(dirname "$nebula")
if mpirun $one : $one train.lr=1e-4 > bad.log 2>&1; then fail "ranks with different jobs began"; fi
grep -aq "the ranks have different jobs: look at ranks 0, 1" bad.log || fail "no message about different jobs"
if mpirun $one : -n 1 ./other train job.yaml out=bad parallel.data=2 > bad.log 2>&1; then fail "ranks of different programs began"; fi
grep -aq "the ranks run different programs" bad.log || fail "no message about different programs"

# ---- layouts that do not fit
refused() { if train bad "${@:2}"; then fail "began with ${*:2}"; fi; grep -aq "$1" bad.log || fail "no '$1' with ${*:2}"; }
refused "8, but a step has 4 micro-batches" parallel.data=8
refused "there is one process" parallel.zero=1
refused "Muon needs whole matrices of its momentum" train.optimizer=muon parallel.offload=moments
refused "parallel.tensor is 1" parallel.sequence=yes
refused "use zero 0 or 1" parallel.data=2 parallel.tensor=2 parallel.zero=2 parallel.sequence=yes
refused "not kept on the host, too" parallel.data=2 parallel.zero=3 parallel.offload=optimizer train.dtype=bf16
refused "parallel.tensor is 4, but model.heads is 2, which 4 processes cannot share" parallel.tensor=4
refused "make train.micro a multiple of 3" parallel.data=3 parallel.zero=2
refused "from 0 to 3" parallel.data=2 parallel.zero=7
if SLURM_JOB_ID=1 SLURM_NTASKS=3 train bad parallel.data=2; then fail "began with another number of ranks than Slurm's"; fi
grep -aq "has 3 tasks, but the job's layout has 2 ranks" bad.log || fail "no message about Slurm's number"
if mpirun --oversubscribe -n 3 "$nebula" train job.yaml out=bad parallel.data=2 > bad.log 2>&1
then fail "three processes began where the job asks for two"; fi
grep -aq "3 processes were started, but parallel.data is 2, tensor 1 and pipeline 1: start 2" bad.log || fail "no message about three processes"

echo "ranks: ok"
