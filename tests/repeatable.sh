#!/bin/sh
# With wan.merge_after a run on two sites has the same result at any speed: on a fast line, and on a slow one beside busy
# processes that stop and go. Without it, the same two lines give two models.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
busy=
trap 'kill $busy 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; cat log >&2; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: repeatable
task: causal
cache: data
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 80, tokens: 64, max_len: 32, lr: 2e-3, log_every: 1000, save_every: 0, threads: 1}
wan: {interval: 8, merge_after: 5, fragments: 1, rung: int4, round_seconds: 600}
sites: [{name: a}, {name: b}]
data: [{file: text}]
YAML
for bad in wan.merge_after=8 wan.fragments=2 wan.rung=auto wan.tokens=1000 train.minutes=1 train.steps=81; do
    if "$nebula" lab job.yaml "$bad" > log 2>&1; then fail "$bad was accepted beside wan.merge_after"; fi
    grep -q "wan.merge_after" log || fail "no message about $bad"
done
"$nebula" lab job.yaml out=fast --wan 1gbit,2ms > log 2>&1 || fail "the run on the fast line failed"
cmp -s fast/a/model.safetensors fast/b/model.safetensors || fail "the models of the two sites differ"
for i in 1 2 3; do
    sh -c 'while :; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.05; done' &
    busy="$busy $!"
done
"$nebula" lab job.yaml out=slow --wan 5mbit,60ms > log 2>&1 || fail "the run on the slow line failed"
cmp -s fast/a/model.safetensors slow/a/model.safetensors || fail "the slow line gives another model"
"$nebula" lab job.yaml out=free --wan 5mbit,60ms wan.merge_after=-1 > log 2>&1 || fail "the run without a fixed pace failed"
if cmp -s fast/a/model.safetensors free/a/model.safetensors; then fail "the test cannot tell two models apart"; fi
echo "repeatable: ok"
