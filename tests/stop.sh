#!/bin/bash
# A run that does not end as planned still leaves what it can. Four cases: the disk has no room for the last checkpoint; the
# tokenised text is shortened while it is mapped; a notice is too short for a step; the laboratory gets a signal, and its sites
# hear of it late.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty
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
"$nebula" train one.yaml out=whole > whole.log 2>&1 || fail "an undisturbed run"
# A checkpoint is three times as large as the model. The limit lets files of up to twice the model's size through.
blocks=$(($(wc -c < whole/model.safetensors) / 1024 * 2)) # bash counts in KiB
if (trap '' XFSZ; ulimit -f $blocks; exec "$nebula" train one.yaml out=full) > full.log 2>&1; then fail "a run without room for its checkpoint says that all is well"; fi
grep -q "the model is in full, its last checkpoint is not" full.log || fail "no message about the missing checkpoint"
cmp -s whole/model.safetensors full/model.safetensors || fail "the model was not written without its checkpoint"
# If the last checkpoint is already there, a second start needs no room for it.
(trap '' XFSZ; ulimit -f $blocks; exec "$nebula" train one.yaml out=whole) > again.log 2>&1 || fail "a finished run cannot be started again"


# ---- text that is shortened while it is in use ----
waits() { # FILE TEXT: until a line of the file has the text
    for i in $(seq 1800); do if grep -q "$2" $1; then return; fi; sleep 0.1; done
    fail "$1 never says '$2'"
}
"$nebula" train one.yaml out=cut cache=cut.data train.log_every=20 train.steps=2000 train.speed=4000 > cut.log 2>&1 & pid=$!
waits cut.log "step 40/"
tok=$(echo cut.data/*/*.tok)
cp $tok kept
truncate -s 200 $tok
wait $pid && fail "a training whose text was cut off under it says that all is well"
grep -q "$tok was shortened while it was in use, to 200 bytes" cut.log || fail "no message names the file"
at=$(sed -n 's/^stopped at step \([0-9]*\): text cannot be read.*/\1/p' cut.log)
[ "${at:-0}" -ge 40 ] && [ "$(ls cut/checkpoints | grep -c '^checkpoint-')" = 1 ] || fail "no checkpoint at its last step"
if "$nebula" train one.yaml out=cut cache=cut.data > again.log 2>&1; then fail "text that is too short was read"; fi
cat kept > $tok
steps=$((at + 4))
"$nebula" train one.yaml out=cut cache=cut.data train.steps=$steps train.schedule=constant > on.log 2>&1 || fail "the training does not go on"
grep -q "going on from step $at" on.log || fail "the training does not go on from step $at"

# ---- a notice with a deadline ----
long="train.micro=500 train.tokens=256 train.steps=2 train.log_every=1"
"$nebula" train one.yaml out=calm $long train.notice=100s > calm.log 2>&1 || fail "a run with a notice that never comes"
notice() { # NAME TIME: a notice in the second step, which takes much longer than it allows
    "$nebula" train one.yaml out=$1 $long train.notice=$2 > $1.log 2>&1 & pid=$!
    waits $1.log "step 1/2"
    sleep 0.3
    kill -TERM $pid
    wait $pid && fail "$1: a training that was stopped reported success"
    if grep -q "step 2/2" $1.log; then fail "$1: the step was made all the same"; fi
}
notice soon 1s
grep -q "stopped at step 1; the same command goes on" soon.log || fail "no checkpoint of the step before"
"$nebula" train one.yaml out=soon $long > soon.on.log 2>&1 || fail "a training does not go on after its notice"
grep -q "going on from step 1" soon.on.log || fail "the step that was given up counts"
cmp -s calm/model.safetensors soon/model.safetensors || fail "a step that was given up has changed the model"
notice now 1ms
grep -q "stopped after step 1 without a checkpoint.* goes on from step 0" now.log || fail "a checkpoint was begun too late"

# ---- signals ----
[ -x "$(command -v pgrep)" ] || { echo "stop: skipped the signals: pgrep is missing"; exit 0; }
cat one.yaml - > two.yaml <<'YAML'
wan: {interval: 10, fragments: 1, rung: int4, round_seconds: 1}
sites: [{name: a}, {name: b}]
YAML
site() { pgrep -f -- "--site $1 .*out=$dir/$2/$1"; }
begin() { # NAME: a lab that trains
    "$nebula" lab two.yaml out=$dir/$1 train.steps=1000000 train.log_every=20 model.hidden=32 > $1.log 2>&1 & lab=$!
    waits $1.log "^a | one  step 40/"
    waits $1.log "^b | one  step 40/"
}
begin term
kill -STOP $(site a term) # as if its step took very long
kill -TERM $lab
waits term.log "^b | stopped at step"
sleep 6
kill -CONT $(site a term) || fail "a site was killed in its step"
wait $lab && fail "a laboratory that was stopped reported success"
grep -q "^a | stopped at step" term.log || fail "a site did not stop by itself"
[ "$(ls term/a/checkpoints term/b/checkpoints | grep -c '^checkpoint-')" = 2 ] || fail "a site left no checkpoint"
begin hangup
kill -HUP $lab
wait $lab && fail "a laboratory that lost its terminal reported success"
[ "$(grep -c "^[ab] | stopped at step" hangup.log)" = 2 ] || fail "SIGHUP: a site did not stop by itself"
begin hurry
kill -STOP $(site a hurry)
kill -TERM $lab
waits hurry.log "^b | stopped at step"
kill -TERM $lab # the second signal: the laboratory no longer waits for site a
wait $lab && fail "a laboratory that was stopped twice reported success"
! grep -q "^a | stopped at step" hurry.log || fail "a site that stood still was not killed"
(trap '' HUP; exec "$nebula" train one.yaml out=ignored train.steps=1000000 train.log_every=20) > ignored.log 2>&1 & one=$!
waits ignored.log "step 40/"
kill -HUP $one
sleep 1
kill -TERM $one || fail "SIGHUP ended a run that ignores it"
wait $one && fail "a run that was stopped reported success"
grep -q "stopped at step" ignored.log || fail "the run does not say at which step it stopped"
"$nebula" train one.yaml out=gone train.steps=1000000 train.log_every=20 > gone.log 2>&1 & one=$!
waits gone.log "step 40/"
kill -HUP $one
wait $one && fail "a run that lost its terminal reported success"
grep -q "stopped at step" gone.log || fail "SIGHUP left no checkpoint"
# A scheduler's notice: the signals of batch systems, and one that comes several times at once.
n=0
for signals in "USR2" "XCPU" "TERM TERM TERM" "HUP TERM USR1"; do
    n=$((n + 1))
    "$nebula" train one.yaml out=notice$n train.steps=1000000 train.log_every=20 > notice$n.log 2>&1 & one=$!
    waits notice$n.log "step 40/"
    for signal in $signals; do kill -$signal $one 2> /dev/null || true; done
    status=0
    wait $one || status=$?
    [ $status -gt 128 ] || fail "$signals: a run that was stopped reported success"
    grep -q "stopped at step" notice$n.log || fail "$signals left no checkpoint"
done
# At a soft limit of processor time the kernel repeats SIGXCPU, here five seconds later in the same long step.
"$nebula" train one.yaml out=limit train.steps=1000000 train.log_every=1 train.tokens=32768 > limit.log 2>&1 & one=$!
waits limit.log "step 2/"
kill -XCPU $one
sleep 0.2
kill -STOP $one
sleep 5
kill -XCPU $one 2> /dev/null || true
kill -CONT $one 2> /dev/null || true
wait $one && fail "SIGXCPU: a run that was stopped reported success"
grep -q "stopped at step" limit.log || fail "a second SIGXCPU left no checkpoint"
echo "stop: ok"
