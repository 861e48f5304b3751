#!/bin/bash
# Frozen weights in few bits, in a job: LoRA learns over them, a stopped training goes on to the same bits, its folder
# generates and goes out, other frozen weights than the checkpoint's are refused, and the sites of a run agree on them.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

cat "$top"/docs/[a-f]*.md > text
cat > base.yaml <<'YAML'
name: base
task: causal
cache: data
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2}
train: {steps: 30, tokens: 256, max_len: 32, lr: 3e-3, log_every: 10, threads: 1}
data: [{file: text}]
YAML
"$nebula" train base.yaml out=base > base.log 2>&1 || fail "no base"
sed 's/^model:.*/init: {from: base}\npeft: {method: lora, lora_rank: 4, frozen: nf4}/; s/^name: .*/name: tuned/' base.yaml > tune.yaml
"$nebula" train tune.yaml out=whole > whole.log 2>&1 || fail "LoRA does not train over nf4"
"$nebula" train tune.yaml out=int8 peft.frozen=int8 > int8.log 2>&1 || fail "LoRA does not train over int8"
last() { awk '/loss/ { for (i = 1; i < NF; i++) if ($i == "loss") x = $(i + 1) } END { print x }' "$1"; }
awk -v a="$(last base.log)" -v b="$(last whole.log)" -v c="$(last int8.log)" 'BEGIN { exit !(b < a + 0.3 && c < a + 0.3 && b > 0 && c > 0) }' ||
    fail "the loss went from $(last base.log) to $(last whole.log) and $(last int8.log)"
# a checkpoint holds the trained part and what is not coded: far less than the model's values
[ "$(cat whole/checkpoints/checkpoint-* | wc -c)" -lt "$(($(cat base/checkpoints/checkpoint-* | wc -c) / 2))" ] || fail "a checkpoint is not smaller"
"$nebula" train tune.yaml out=parts train.steps=15 train.schedule=constant > parts.log 2>&1 || fail "15 steps"
"$nebula" train tune.yaml out=parts train.steps=30 train.schedule=constant > parts2.log 2>&1 || fail "a training does not go on"
"$nebula" train tune.yaml out=once train.steps=30 train.schedule=constant > once.log 2>&1 || fail "30 steps at once"
cmp -s parts/model.safetensors once/model.safetensors || fail "going on from a checkpoint gives other bits"
"$nebula" generate whole "The device" --max-new 8 --temperature 0 > a.txt || fail "no text"
"$nebula" export whole out > /dev/null && "$nebula" import out again > /dev/null 2>&1 || fail "it does not go out and in"
cp whole/tokenizer.model again && sed -i "/^tokenizer:/d" again/model.yaml && grep "^tokenizer:" whole/model.yaml >> again/model.yaml # a Llama has another kind
"$nebula" generate again "The device" --max-new 8 --temperature 0 > b.txt || fail "no text after export"
cmp -s a.txt b.txt || fail "the merged export generates otherwise: $(cat a.txt b.txt)"
"$nebula" train base.yaml out=other seed=7 > other.log 2>&1 || fail "no other base"
if "$nebula" train tune.yaml out=parts train.steps=40 train.schedule=constant init.from=other > refused.log 2>&1; then
    fail "a checkpoint was taken for other frozen weights"
fi
cat tune.yaml - > two.yaml <<'YAML'
wan: {interval: 5, fragments: 1, rung: int8}
sites: [{name: a}, {name: b}]
YAML
"$nebula" lab two.yaml out=$dir/run train.steps=20 > lab.log 2>&1 || fail "two sites do not train over nf4"
cmp -s run/a/model.safetensors run/b/model.safetensors || fail "the sites' models differ"
echo "frozen: ok"
