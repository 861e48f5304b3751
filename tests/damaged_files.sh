#!/bin/sh
# A job whose own files are spoiled: a metrics database that is none, a rotten checkpoint among those that are averaged. It
# goes on, and says what it does without. And a folder in which another process trains.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
holder=
trap 'kill -9 $holder 2> /dev/null || true; rm -rf "$dir"' EXIT
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
# One process a folder; one that was killed holds nothing.
"$nebula" train job.yaml out=o train.steps=1000000 train.save_every=50 > holder.log 2>&1 & holder=$!
for i in $(seq 200); do grep -q "step " holder.log && break; sleep 0.05; done
if "$nebula" train job.yaml out=o > second.log 2>&1; then fail "two processes in one folder"; fi
grep -q "another process trains in o (it holds o/lock): wait for it or stop it, or give this one another folder" second.log ||
    fail "the message about the folder"
kill -9 $holder
wait $holder 2> /dev/null || true
holder=
"$nebula" train job.yaml out=o train.steps=45 > third.log 2>&1 || fail "the folder of a killed process"
echo "spoiled files: ok"
