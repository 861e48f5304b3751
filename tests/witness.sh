#!/bin/bash
# Two sites train, a witness only votes and stores, and an observer only follows. When one of the two is killed, the other and the witness are still a
# quorum, so it goes on committing. A site that is asked to stop (SIGTERM) makes a checkpoint, leaves and comes back. At the end
# all four hold one state, and the observer has the model; it never had a vote.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
cat "$top/LICENSE" "$top"/docs/*.md > text
for s in a b w o; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.0.0.1:$(free_port) $(case $s in w) echo --witness;; o) echo --observer;; esac)
done
"$nebula" roster seal draft roster --operator a > /dev/null
"$nebula" roster show roster | grep -q "o:.* votes=0 observer" || fail "roster show does not tell of the observer"
if "$nebula" roster add draft o --observer --witness 2> /dev/null; then fail "an observer that votes was taken"; fi
for s in a b w o; do "$nebula" roster join roster $s > /dev/null; done
cat > job.yaml <<'YAML'
name: witness
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: 100000, tokens: 256, max_len: 64, lr: 2e-3, log_every: 100000, threads: 1, save_every: 50}
wan: {interval: 10, fragments: 1, tokens: 1000000000, round_seconds: 1}
sites:
  - {name: a}
  - {name: b}
  - {name: w}
  - {name: o, role: observer}
data:
  - {file: text}
YAML
field() { sed -n "s/^  \"$2\": \\([0-9]*\\),/\\1/p" $1/run/status.json 2>/dev/null | head -1; }
voters() { sed -n 's/.*"voters": \([0-9]*\).*/\1/p' $1/run/status.json | head -1; }
records() { n=$(field $1 record); echo ${n:-0}; }
reaches() { # SITE RECORD SECONDS
    for i in $(seq $(($3 * 5))); do [ "$(records $1)" -lt $2 ] || return 0; sleep 0.2; done; return 1; }
begin() { "$nebula" train job.yaml --site $1 out=out-$1 >> $1.log 2>&1 & eval "pid_$1=$!"; }
if "$nebula" train job.yaml --site a out=x 'sites[3].role=train' > role.log 2>&1; then fail "an observer may train"; fi
grep -q "do not agree on whether site 'o' is an observer" role.log || fail "no word about the observer's role"
begin a; begin w; begin b; begin o
reaches a 3 240 || fail "no rounds were committed"
kill -9 $pid_b
wait $pid_b 2>/dev/null || true
now=$(records a)
reaches a $((now + 3)) 240 || fail "a commits no rounds without b"
begin b
reaches b $((now + 4)) 240 || fail "b did not come back"
kill -TERM $pid_b
wait $pid_b 2>/dev/null || true
grep -q "goes on from there" b.log || fail "b made no checkpoint when it was asked to stop"
begin b
reaches b $(($(records a) + 3)) 240 || fail "b did not come back after its checkpoint"
"$nebula" order w end --operator a --wait 60 > /dev/null || fail "the order end"
grep -q '"observer"' o/run/status.json || fail "the status does not tell of the observer"
[ "$(voters o)" = 14 ] || fail "the voters are $(voters o), not the sites 1, 2 and 3"
for s in a b w o; do eval "wait \$pid_$s" || fail "site $s"; done
grep -q "this site is an observer" o.log || fail "o does not say that it is an observer"
[ "$(field o step)" = 0 ] || fail "the observer made steps"
cmp -s out-a/model.safetensors out-o/model.safetensors || fail "the observer does not have the model"
grep -q "this site is a witness" w.log || fail "w does not say that it is a witness"
[ "$(field w step)" = 0 ] || fail "the witness made steps"
root() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' $1.log | tail -1; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] && [ "$(root a)" = "$(root w)" ] && [ "$(root a)" = "$(root o)" ] || fail "the state roots differ: '$(root a)' '$(root b)' '$(root w)'"
echo "witness: ok, state root $(root a)"
