#!/bin/sh
# What a run leaves behind that comes to its end in another way than it should: no room for the last checkpoint; a signal to
# the laboratory, whose sites take their time to hear of it.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

cat "$top"/docs/[a-f]*.md > text
cat > one.yaml <<'YAML'
name: one
task: causal
cache: data
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 128, layers: 2, heads: 2}
train: {steps: 6, tokens: 128, max_len: 32, lr: 2e-3, log_every: 1000, save_every: 100000, threads: 1}
data: [{file: text}]
YAML
"$nebula" train one.yaml out=whole > whole.log 2>&1 || fail "a plain run"
# A checkpoint is three times the model: files of up to twice the model's size are let through.
blocks=$(($(wc -c < whole/model.safetensors) / 512 * 2))
if (trap '' XFSZ; ulimit -f $blocks; exec "$nebula" train one.yaml out=full) > full.log 2>&1; then fail "no room, and no word"; fi
grep -q "the model is in full, its last checkpoint is not" full.log || fail "the message about the checkpoint"
cmp -s whole/model.safetensors full/model.safetensors || fail "the model was not written without its checkpoint"
# Where the last checkpoint is there already, a second start needs no room for it.
(trap '' XFSZ; ulimit -f $blocks; exec "$nebula" train one.yaml out=whole) > again.log 2>&1 || fail "a finished run, once more"

# ---- signals ----
[ -x "$(command -v pgrep)" ] || { echo "stop: no pgrep to find the sites"; exit 0; }
cat one.yaml - > two.yaml <<'YAML'
wan: {interval: 10, fragments: 1, rung: int4, round_seconds: 1}
sites: [{name: a}, {name: b}]
YAML
waits() { # until a line of FILE says WHAT
    for i in $(seq 300); do if grep -q "$2" $1; then return; fi; sleep 0.1; done
    fail "$1 never says '$2'"
}
site() { pgrep -f -- "--site $1 .*out=$dir/$2/$1"; }
begin() { # NAME: a lab that trains
    "$nebula" lab two.yaml out=$dir/$1 train.steps=1000000 train.log_every=20 model.hidden=32 > $1.log 2>&1 & lab=$!
    waits $1.log "^a | one  step 40/"
    waits $1.log "^b | one  step 40/"
}
begin term
kill -STOP $(site a term) # in a step that takes longer than any patience
kill -TERM $lab
waits term.log "^b | stopped at step"
sleep 6
kill -CONT $(site a term) || fail "a site was ended in its step"
wait $lab && fail "a laboratory that was stopped says that all is well"
grep -q "^a | stopped at step" term.log || fail "a site did not stop by itself"
[ "$(ls term/a/checkpoints term/b/checkpoints | grep -c '^checkpoint-')" = 2 ] || fail "a site left no checkpoint"
begin hangup
kill -HUP $lab
wait $lab && fail "a laboratory that lost its terminal says that all is well"
[ "$(grep -c "^[ab] | stopped at step" hangup.log)" = 2 ] || fail "SIGHUP: a site did not stop by itself"
begin hurry
kill -STOP $(site a hurry)
kill -TERM $lab
waits hurry.log "^b | stopped at step"
kill -TERM $lab # a second one: nobody waits for site a any more
wait $lab && fail "a laboratory that was stopped twice says that all is well"
! grep -q "^a | stopped at step" hurry.log || fail "a site that stood still was not ended"
(trap '' HUP; exec "$nebula" train one.yaml out=ignored train.steps=1000000 train.log_every=20) > ignored.log 2>&1 & one=$!
waits ignored.log "step 40/"
kill -HUP $one
sleep 1
kill -TERM $one || fail "SIGHUP ended a run that ignores it"
wait $one && fail "a run that was stopped says that all is well"
grep -q "stopped at step" ignored.log || fail "no word of the stop"
"$nebula" train one.yaml out=gone train.steps=1000000 train.log_every=20 > gone.log 2>&1 & one=$!
waits gone.log "step 40/"
kill -HUP $one
wait $one && fail "a run that lost its terminal says that all is well"
grep -q "stopped at step" gone.log || fail "SIGHUP leaves no checkpoint"
echo "stop: ok"
