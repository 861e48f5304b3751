#!/bin/sh
# A job whose own files are spoiled: a metrics database that is none, a rotten checkpoint among those that are averaged. It
# goes on, and says what it does without.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: one
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 20, tokens: 256, max_len: 64, lr: 2e-3, log_every: 20, threads: 1, save_every: 5, keep: 4}
data:
  - {file: text}
YAML
"$nebula" train job.yaml out=o > first.log 2>&1 || fail "train"

# Metrics are no reason to stop.
rm -f o/metrics.sqlite*
echo "this is no database, whatever its name says" > o/metrics.sqlite
"$nebula" train job.yaml out=o train.steps=40 > metrics.log 2>&1 || fail "a damaged metrics database stops training"
test "$(grep -c 'no metrics of this run are stored in o' metrics.log)" = 1 || fail "one warning about the metrics"
grep -q "one: 40 steps" metrics.log || fail "the run did not come to its end"
rm -f o/metrics.sqlite*
# One rotten checkpoint does not keep a finished run from its model.
"$nebula" train job.yaml out=m train.average=3 > mean.log 2>&1 || fail "average"
grep -q "averaged the last 3 checkpoints" mean.log || fail "three checkpoints"
printf 'rot' | dd of=m/checkpoints/checkpoint-000000000015.neb bs=1 seek=5000 conv=notrunc 2> /dev/null
"$nebula" train job.yaml out=m train.average=3 > rotten.log 2>&1 || fail "a rotten checkpoint stops a finished run"
grep -q "checkpoint of step 15 is left out of the average" rotten.log || fail "the warning about the checkpoint"
grep -q "averaged the last 2 checkpoints" rotten.log || fail "the two others"
echo "spoiled files: ok"
