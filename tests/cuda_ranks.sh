#!/bin/bash
# Ranks that compute on GPUs: every layout learns what one process learns, in f32 and bf16; a layout repeats itself; checkpoints
# go from one layout to another; a rank that is killed comes back, one that is stopped is named. tests/cuda_ranks.sh NEBULA [PART…]
# Ranks share the machine's GPUs. Several ranks on one GPU need MPS and NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1; without NCCL
# (NEBULA_NCCL_LIB=none) they exchange values through the host.
set -eu
nebula=$(realpath "$1")
shift
parts=${*:-layouts bf16 staged lost}
top=$(cd "$(dirname "$0")/.." && pwd)
line=$("$nebula" device list | grep '^cuda' || echo "not usable: not built")
case $line in
*"not usable"*)
    echo "cuda_ranks: skipped, there is no GPU ($line)"
    exit 0
    ;;
esac
command -v mpirun > /dev/null || { echo "cuda_ranks: skipped, there is no mpirun"; exit 0; }
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
cat "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: ranks
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 1000, lines: 2000}
model: {family: gpt2, hidden: 128, layers: 4, heads: 4, dropout: 0.1, attention_dropout: 0.1}
train: {steps: 60, tokens: 1024, micro: 4, max_len: 128, lr: 1e-3, clip: 0.5, log_every: 60, save_every: 20, device: cuda,
        deterministic: yes}
data:
  - {file: text}
YAML
bad=0
train() { # NAME WORD…
    if ! "$nebula" train job.yaml out=$1 "${@:2}" > $1.log 2>&1; then
        echo "$1: failed: $(grep -a . $1.log | tail -n 3 | tr '\n' ' ')"
        for f in $1/ranks/*.log; do [ ! -f $f ] || tail -n 3 $f; done
        bad=1
    fi
}
loss() { grep -ao "step 60/60  loss [0-9.]*" $1.log | tail -1 | awk '{print $NF}'; }
near() { # NAME OTHER MOST: the losses
    awk -v n=$1 -v a="$(loss $1)" -v b="$(loss $2)" -v most=$3 'BEGIN {
        d = (a - b) / b; if (d < 0) d = -d; good = a != "" && b != "" && d < most
        printf "%-12s loss %s, %s: %s (%.2g)\n", n, a, b, good ? "ok" : "DIFFERENT", d; exit !good }' || bad=1
}
layouts="data2:parallel.data=2 zero1:parallel.data=2:parallel.zero=1 zero2:parallel.data=2:parallel.zero=2
zero3:parallel.data=2:parallel.zero=3 tensor2:parallel.tensor=2 rows2:parallel.tensor=2:parallel.sequence=yes
pipe2:parallel.pipeline=2 host2:parallel.data=2:parallel.zero=1:parallel.offload=moments"
if [[ $parts = *layouts* ]]; then
    train one
    for l in $layouts; do
        name=${l%%:*}
        train $name $(echo ${l#*:} | tr : ' ')
        near $name one 2e-3
    done
    train again parallel.data=2 parallel.zero=2
    cmp zero2/model.safetensors again/model.safetensors && echo "zero2 repeats itself" || bad=1
    for zero in 0 1; do # a sum of two has one order, so many small buckets beside the backward pass give the bits of one
        train one_bucket$zero parallel.data=2 parallel.zero=$zero parallel.bucket=1GiB
        train buckets$zero parallel.data=2 parallel.zero=$zero parallel.bucket=256KiB
        cmp one_bucket$zero/model.safetensors buckets$zero/model.safetensors && echo "zero $zero: buckets have the same bits" || bad=1
    done
    train more parallel.data=2 parallel.zero=1 train.steps=30 train.schedule=constant # another layout goes on
    train more parallel.tensor=2 train.steps=60 train.schedule=constant
    train less train.steps=30 train.schedule=constant
    train less train.steps=60 train.schedule=constant
    near more less 2e-3
fi
if [[ $parts = *bf16* ]]; then
    train half train.dtype=bf16
    for l in $layouts; do
        name=half_${l%%:*}
        train $name train.dtype=bf16 $(echo ${l#*:} | tr : ' ')
        near $name half 1e-2
    done
fi
if [[ $parts = *staged* ]]; then
    export NEBULA_NCCL_LIB_BEFORE=${NEBULA_NCCL_LIB:-}
    export NEBULA_NCCL_LIB=none
    [ -f one.log ] || train one
    for l in data2:parallel.data=2 zero2:parallel.data=2:parallel.zero=2 tensor2:parallel.tensor=2 pipe2:parallel.pipeline=2; do
        name=staged_${l%%:*}
        train $name $(echo ${l#*:} | tr : ' ')
        near $name one 2e-3
        grep -q "through the host's memory" $name.log || { echo "$name does not say that it goes through the host"; bad=1; }
    done
    export NEBULA_NCCL_LIB=$NEBULA_NCCL_LIB_BEFORE
    [ -n "$NEBULA_NCCL_LIB" ] || unset NEBULA_NCCL_LIB
fi
if [[ $parts = *lost* ]]; then
    for case in KILL:data STOP:data STOP:pipeline; do
        signal=${case%:*} layout=${case#*:} name=lost_${case%:*}_${case#*:}
        "$nebula" train job.yaml out=$name parallel.$layout=2 train.steps=100000 parallel.timeout=5s > $name.log 2>&1 &
        started=$!
        until ls $name/checkpoints/*.neb > /dev/null 2>&1 || ! kill -0 $started 2> /dev/null; do sleep 0.1; done
        ranks=$(for p in $(pgrep -f "train job.yaml out=$name"); do
            tr '\0' '\n' < /proc/$p/environ 2> /dev/null | grep -q '^OMPI_COMM_WORLD_RANK=1$' && echo $p || true; done)
        at=$(date +%s.%N)
        kill -$signal $ranks || true
        until grep -aq "the ranks are back" $name.log || ! kill -0 $started 2> /dev/null; do
            sleep 0.1
            awk -v a=$at -v b=$(date +%s.%N) 'BEGIN {exit b - a < 60}' && break
        done
        awk -v s=$name -v a=$at -v b=$(date +%s.%N) 'BEGIN {printf "%s: the ranks were back after %.1f s\n", s, b - a}'
        grep -aE "rank [0-9] of 2" $name.log | head -n 2 || true
        if ! grep -aq "the ranks are back" $name.log; then
            tail -n 8 $name.log $name/ranks/*.log
            bad=1
        fi
        kill -TERM $started 2> /dev/null || true
        wait $started 2> /dev/null || true
    done
fi
[ $bad = 0 ] && echo "cuda_ranks: ok" || { echo "cuda_ranks: FAILED, see above" >&2; exit 1; }
