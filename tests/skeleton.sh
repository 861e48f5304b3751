#!/bin/sh
# The skeleton of a device has memory and copies alone. The suite passes on the host's primitives, and a model trains with it to
# the CPU's loss.
set -eu
nebula=$1
plugins=$2
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; tail -n 20 log >&2; exit 1; }
export NEBULA_PLUGIN_PATH="$plugins"
for type in f32 bf16; do
    "$nebula" device test --device skeleton --dtype $type > log 2>&1 || fail "the suite in $type"
    grep -q " 0 failures, .* skipped" log || fail "the suite in $type"
    grep -q "device 'skeleton' lacks primitives; the host computes them, with copies in both directions: gemm " log ||
        fail "no warning about the host's primitives"
done
"$nebula" device info --device skeleton | grep -q "skeleton of a device" || fail "device info"
if "$nebula" device info --device skeleton:1 > log 2>&1; then fail "a second skeleton was opened"; fi
cp "$top/README.md" text
cat > job.yaml <<'YAML'
name: bones
task: causal
tokenizer: {type: bpe, vocab: 300, lines: 1000}
model: {family: gpt2, hidden: 16, layers: 1, heads: 2, dropout: 0.1}
train: {steps: 12, tokens: 64, max_len: 16, lr: 2e-3, log_every: 1, fallback: yes}
data:
  - file: text
YAML
# learned positions, and relative ones, whose queries, keys and values lie side by side in one matrix
for positions in learned relative; do
    for device in cpu skeleton; do
        "$nebula" train job.yaml out=$positions.$device train.device=$device model.positions=$positions > log 2>&1 ||
            fail "training on $device with $positions positions"
        sed -n 's|.*step 12/12 .*loss \([0-9.]*\).*|\1|p' log > $device.loss
        [ -s $device.loss ] || fail "no loss on $device"
    done
    awk 'NR == FNR { a = $1; next } { d = a - $1; if (d < 0) d = -d; if (d > 1e-3) exit 1 }' cpu.loss skeleton.loss ||
        fail "losses with $positions positions: $(cat cpu.loss skeleton.loss)"
done
