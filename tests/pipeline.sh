#!/bin/bash
# A model in stages at several ranks of a site. It learns the same bits as in one process, with dropout and clipping, with
# steps that are skipped, after a rank was killed, and when the number of stages changes between two starts. Copies of a
# pipeline, with whole and with shared optimizer state and with shared layers, agree with one process to 1e-5. Two sites end with one state root. Layouts that
# do not fit are refused.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
if ! command -v mpirun > /dev/null || [ ! -e "$(dirname "$nebula")/libnebula-i-mpi.so" ]; then
    echo "pipeline: skipped, there is no Open MPI (apt install libopenmpi-dev openmpi-bin, then build again)"
    exit 0
fi
dir=$(mktemp -d)
started=
trap 'release_ports; kill $started 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log */ranks/*.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md > text
tail -c 8000 text > valid
cat > job.yaml <<'YAML'
name: pipeline
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 3, heads: 2, dropout: 0.1, tied: no}
train: {steps: 60, tokens: 128, micro: 4, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 60, threads: 1, save_every: 30,
        schedule: constant, warmup: 0}
data:
  - {file: text}
  - {file: valid, use: valid}
YAML
train() { "$nebula" train job.yaml out=$1 "${@:2}" > $1.log 2>&1 || fail "$1 ended with $?"; }
same() { cmp -s $1/model.safetensors $2/model.safetensors || fail "the models of $1 and $2 differ"; }
found() { grep -ao "held out at step 60: loss [0-9.]*" $1.log | tail -1; }
equal() { [ -n "$(found $1)" ] && [ "$(found $1)" = "$(found $2)" ] || fail "$1: $(found $1), $2: $(found $2)"; }

values() { # OUT: all values of its model, one a line
    od -An -v -t f4 -w4 -j $((8 + $(od -An -t u8 -N 8 $1/model.safetensors))) $1/model.safetensors
}
near() { # to 1e-5 of the norm
    paste <(values $1) <(values $2) | awk '{ d += ($1 - $2) ^ 2; x += $1 ^ 2 } END { exit !(NR > 1000 && x > 0 && sqrt(d / x) < 1e-5) }' ||
        fail "the models of $1 and $2 differ by more than 1e-5"
}

# ---- the same bits, and from one layout to another
train one
train two parallel.pipeline=2; same one two; equal one two
train there parallel.pipeline=3 train.steps=20; train there train.steps=40; train there parallel.pipeline=3; same one there

# ---- steps that are not finite are skipped at every stage
wild="train.lr=10 train.weight_decay=10 train.steps=16"
train wild $wild; train wilder $wild parallel.pipeline=2; same wild wilder
grep -aq "is not finite" wilder.log || fail "no step was skipped"

# ---- a tied table, two copies of the pipeline
train tied model.tied=yes
train four model.tied=yes parallel.pipeline=2 parallel.data=2; equal tied four
train zero model.tied=yes parallel.pipeline=2 parallel.data=2 parallel.zero=1; same four zero

# ---- two copies of two stages of two ranks each
eight="parallel.data=2 parallel.pipeline=2 parallel.tensor=2 train.steps=100"
slow="model.tied=yes train.lr=5e-4" # a fast rate multiplies the differences of the last bits
if ! "$nebula" train job.yaml out=eight $slow $eight > eight.log 2>&1; then # a program whose ranks share no layers has no eight
    grep -aq "not shared among processes yet" eight.log || fail "eight ranks"
else
    train hundred $slow train.steps=100; near hundred eight
    cp -r eight on
    train eight $slow parallel.pipeline=3 train.steps=110; train on $slow train.steps=110; near eight on
fi

# ---- a rank that is lost
train calm parallel.pipeline=2 train.steps=800
here() { for p; do [ "$(readlink /proc/$p/cwd)" != "$dir" ] || echo $p; done; } # of these processes, those of this test
hurt() { # STAGE: kills it once a checkpoint is there; false: the training was over by then
    "$nebula" train job.yaml out=hurt parallel.pipeline=2 train.steps=800 > hurt.log 2>&1 & pid=$!
    started="$started $pid"
    until [ -n "$(ls hurt/checkpoints/*.neb 2> /dev/null)" ]; do kill -0 $pid 2> /dev/null || fail "hurt ended early"; sleep 0.05; done
    kill -KILL $(here $(pgrep -f "^$nebula train job.yaml .*out=hurt ") | grep -v "^$pid$" | sed -n $(($1 + 1))p) 2> /dev/null
}
for rank in 0 1; do
    until hurt $rank; do wait $pid; rm -r hurt; done
    wait $pid || fail "the training did not survive the loss of a stage"
    grep -aq "a rank was lost" hurt.log || fail "nobody noticed the loss of a stage"
    same calm hurt
    rm -r hurt
done

# ---- layouts that do not fit
refused() { if "$nebula" train job.yaml out=bad "${@:2}" > bad.log 2>&1; then fail "began with ${*:2}"; fi
            grep -aq "$1" bad.log || fail "no '$1' with ${*:2}"; }
refused "4, but the model has 3 layers" parallel.pipeline=4
refused "gets 2 micro-batches a step" parallel.pipeline=3 parallel.data=2
refused "parallel.zero 2" parallel.pipeline=2 parallel.data=2 parallel.zero=2
refused "two models" parallel.pipeline=2 task=rtd model.family=electra

# ---- the benchmark's figures, on a model that is too small for them
"$nebula" bench parallel --out bench --hidden 32 --layers 2 --heads 2 --vocab 300 --tokens 256 --micro 4 --turns 1 --json > bench.json 2> bench.log ||
    fail "bench parallel"
for figure in ratio.data2 ratio.tensor2 ratio.pipeline2 bubble.pipeline2; do grep -q "\"$figure\"" bench.json || fail "no figure $figure"; done

# ---- two sites, one of them in stages
for s in a b; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
cat >> job.yaml <<'YAML'
wan: {interval: 20, fragments: 2, tokens: 120000, round_seconds: 5}
sites:
  - {name: a, parallel: {pipeline: 2}}
  - {name: b}
YAML
for s in a b; do
    "$nebula" train job.yaml out=out-$s --site $s train.steps=100000 > $s.log 2>&1 & eval "pid_$s=$!"
    started="$started $!"
done
for s in a b; do eval "wait \$pid_$s" || fail "site $s"; done
root() { grep -ao "state root [0-9a-f]*" $1.log | tail -1; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] || fail "the state roots differ: '$(root a)' '$(root b)'"
same out-a out-b
echo "pipeline: ok, $(root a)"
