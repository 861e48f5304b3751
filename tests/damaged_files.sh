#!/bin/sh
# A job goes on when its own files are damaged, and says what it leaves out: a metrics file that is not a database, a rotten
# checkpoint among those that are averaged. A folder in which another process trains is refused.
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
"$nebula" train job.yaml out=o > first.log 2>&1 || fail "the first training"

# Training goes on without metrics.
rm -f o/metrics.sqlite*
echo "not a database, whatever its name says" > o/metrics.sqlite
"$nebula" train job.yaml out=o train.steps=40 > metrics.log 2>&1 || fail "a damaged metrics database stopped the training"
test "$(grep -c 'no metrics of this run are stored in o' metrics.log)" = 1 || fail "the metrics are not warned about exactly once"
grep -q "one: 40 steps" metrics.log || fail "the run did not reach its end"
rm -f o/metrics.sqlite*
# One rotten checkpoint does not keep a finished run from its model.
"$nebula" train job.yaml out=m train.average=3 > mean.log 2>&1 || fail "a training with averaging"
grep -q "averaged the last 3 checkpoints" mean.log || fail "three checkpoints were not averaged"
printf 'rot' | dd of=m/checkpoints/checkpoint-000000000015.neb bs=1 seek=5000 conv=notrunc 2> /dev/null
"$nebula" train job.yaml out=m train.average=3 > rotten.log 2>&1 || fail "a rotten checkpoint stopped a finished run"
grep -q "checkpoint of step 15 is left out of the average" rotten.log || fail "no warning about the rotten checkpoint"
grep -q "averaged the last 2 checkpoints" rotten.log || fail "the two good checkpoints were not averaged"
# One process at a time may use a folder. A killed process no longer holds it.
"$nebula" train job.yaml out=o train.steps=1000000 train.save_every=50 > holder.log 2>&1 & holder=$!
for i in $(seq 2400); do grep -q "step " holder.log && break; sleep 0.05; done
if "$nebula" train job.yaml out=o > second.log 2>&1; then fail "two processes trained in one folder"; fi
grep -q "another process trains in o (it holds o/lock): wait for it or stop it, or give this one another folder" second.log ||
    fail "the message about the busy folder is another one"
kill -9 $holder
wait $holder 2> /dev/null || true
holder=
"$nebula" train job.yaml out=o train.steps=45 > third.log 2>&1 || fail "the folder of a killed process cannot be used"
echo "damaged files: ok"
