#!/bin/bash
# What offload costs and saves on a GPU: bench/offload.sh NEBULA [STEPS [time | large]]
#   1. the same model with and without parallel.offload, 8 micro-batches a step: step time, loss, and whether the bits are equal
#   2. a model that does not fit train.memory: 24GiB is refused without offload and trains with it
# Prints one line for each figure and fails when a bar is missed: at most 1.15 times the step time.
set -eu
nebula=$(realpath "$1")
steps=${2:-20}
part=${3:-all}
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
"$nebula" device list | grep '^cuda' | grep -vq 'not usable' || { echo "offload: skipped, there is no CUDA device"; exit 0; }
cat "$top"/docs/*.md "$top"/src/*/*.c > text
cat > job.yaml <<'YAML'
name: offload
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 8000, lines: 20000}
model: {family: gpt2, hidden: 1024, layers: 24, heads: 16, max_positions: 1024}
train: {tokens: 16384, micro: 8, max_len: 1024, lr: 2e-4, device: cuda, dtype: bf16, deterministic: yes, log_every: 10, save_every: 0}
data:
  - {file: text}
YAML
train() { "$nebula" train job.yaml out=$1 "${@:2}" > $1.log 2>&1; }
rate() { tr '\r' '\n' < $1.log | grep -ao '[0-9.]* tokens/s' | tail -1 | cut -d' ' -f1; }
loss() { tr '\r' '\n' < $1.log | grep -ao 'loss [0-9.]*' | tail -1; }
bad=0
if [ $part != large ]; then
    train warm train.steps=5 || { tail -5 warm.log; exit 1; } # tokenises
    for turn in 1 2; do
        for way in none moments optimizer; do
            rm -rf $way
            train $way train.steps=$steps parallel.offload=$way || { echo "$way:"; tail -5 $way.log; exit 1; }
            eval "rate_$way=$(rate $way)"
            echo "turn $turn  $way  $(rate $way) tokens/s  $(loss $way)"
        done
        for way in moments optimizer; do
            of=rate_$way
            ratio=$(awk "BEGIN {print $rate_none / ${!of}}")
            same=no; cmp -s none/model.safetensors $way/model.safetensors && same=yes
            echo "turn $turn  step time with offload: $way over none: $ratio (bar 1.15)  equal bits: $same  steps $steps"
            if awk "BEGIN {exit !($ratio > 1.15)}"; then bad=1; fi
        done
    done
fi
[ $part != time ] || exit $bad
big="model.hidden=2048 model.layers=30 model.heads=16 train.tokens=4096 train.memory=24GiB train.steps=5 model.recompute=yes"
if train big $big; then echo "a model of 1.5 billion parameters fitted 24 GiB without offload"; bad=1; fi
grep -ao 'the model is too large.*' big.log | head -1
rm -rf big
if train big $big parallel.offload=optimizer; then echo "1.5 billion parameters within train.memory 24GiB: $(loss big)  $(rate big) tokens/s"; else tail -5 big.log; bad=1; fi
exit $bad
