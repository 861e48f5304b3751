#!/bin/sh
# A site of a twentieth of the other's speed sends its updates after fewer steps, so that rounds come at the fast site's pace. Its learning
# rate ends with the run, and the run ends with the steps of the fast site. train.speed gives the speeds; a busy machine brings
# them nearer to each other.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; tail -n 40 log >&2; exit 1; }

cat "$top/LICENSE" "$top"/docs/[a-m]*.md > text
cat > job.yaml <<'YAML'
name: unequal
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 600, tokens: 64, max_len: 32, lr: 2e-3, warmup: 10, schedule: linear, log_every: 1, save_every: 100000, speed: 3000}
wan: {interval: 20, fragments: 1, rung: int4, round_seconds: 60}
sites:
  - name: fast
  - name: slow
    train: {speed: 150}
data:
  - file: text
YAML
"$nebula" lab job.yaml > log 2>&1 || fail "the run failed"
root() { sed -n "s/^$1 .*state root \([0-9a-f]*\),.*/\1/p" log; }
[ -n "$(root fast)" ] && [ "$(root fast)" = "$(root slow)" ] || fail "state roots: '$(root fast)' and '$(root slow)'"
steps() { sed -n "s|^$1 .* step \([0-9]*\)/600.*|\1|p" log | tail -n 1; }
[ "$(steps fast)" = 600 ] && [ "$(steps slow)" -lt 300 ] || fail "steps: fast $(steps fast), slow $(steps slow)"
grep -q "^slow .* this site makes 0\.[0-9]* of the steps of the fastest one" log || fail "the slow site does not see that it is slow"
! grep -q "^fast .* of the steps of the fastest one" log || fail "the fast site takes itself for slow"
last=$(grep "^slow .* step " log | tail -n 1)
echo "$last" | grep -qE "int4 every ([1-9]|1[0-2]) steps" || fail "the slow site still sends every 20 steps: $last"
echo "$last" | sed -n 's/.* lr \([0-9.e+-]*\) .*/\1/p' | awk '{ ok = $1 < 1e-3 } END { exit !ok }' || fail "the slow site's learning rate: $last"
[ "$(grep -c "^fast .* every 20 steps" log)" -gt 0 ] || fail "the fast site's interval has changed"
counts="$(steps slow) steps beside $(steps fast)"

# Where a site has steps of its own, each goes by its own: the slow one is at step 20 of its 60 when the fast one is beyond 60.
sed -e 's/steps: 600/steps: 300/' -e 's/{speed: 150}/{speed: 600, steps: 60}/' job.yaml > own.yaml
"$nebula" lab own.yaml out=own > log 2>&1 || fail "the run with own steps failed"
rate() { sed -n "s|^slow .* step $1/60 .* lr \([0-9.e+-]*\) .*|\1|p" log; }
echo "$(rate 40)" | awk '{ ok = $1 > 4e-4 } END { exit !ok }' || fail "the learning rate at step 40 of 60 is '$(rate 40)'"

# A batch of eight times the other's counts four times as much, and the site is told; a rule that trusts it lets it count as it is.
sed -e 's/steps: 600/steps: 200/' -e 's/{speed: 150}/{tokens: 512, speed: 24000}/' job.yaml > batches.yaml
"$nebula" lab batches.yaml out=batches > log 2>&1 || fail "the run with unequal batches failed"
grep -q "^slow .*has [45][0-9]* tokens a step and counts as [12][0-9]*," log || fail "the site with the large batch is not told what it counts as"
! grep -q "^fast .*and counts as" log || fail "the site with the small batch counts less"
"$nebula" lab batches.yaml out=trusted "wan.influence=clip=2 steps=16 weights=512" > log 2>&1 || fail "the run with trusted batches failed"
! grep -q "and counts as" log || fail "a trusted batch counts less"
echo "unequal sites: ok, $counts"
