#!/bin/bash
# Four sites under `quorum: byzantine`, one of them hostile (tests/liar.c): the three honest ones commit in two phases, name the
# liar, bring a restarted site back while it lies, and end with one state.
set -eu
nebula=$1 liar=$2
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
cat "$top/LICENSE" > text
for s in a b c d; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a --quorum byzantine > /dev/null
for s in a b c d; do "$nebula" roster join roster $s > /dev/null; done
cat > job.yaml <<'YAML'
name: liars
task: causal
tokenizer: {type: bpe, vocab: 300, lines: 200}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 1000000, tokens: 64, max_len: 32, lr: 2e-3, log_every: 1000000, threads: 1, save_every: 1000000}
wan: {interval: 10, fragments: 1, tokens: 1000000000, round_seconds: 1}
sites:
  - {name: a}
  - {name: b}
  - {name: c}
  - {name: d}
data:
  - {file: text}
YAML
records() { n=$(sed -n 's/^  "record": \([0-9]*\),/\1/p' $1/run/status.json 2>/dev/null | head -1); echo ${n:-0}; }
reaches() { # SITE RECORD
    for i in $(seq 1800); do [ "$(records $1)" -lt $2 ] || return 0; sleep 0.1; done; return 1; }
begin() { "$nebula" train job.yaml --site $1 out=out-$1 >> $1.log 2>&1 & eval "pid_$1=$!"; }
named() { # waits until an honest site names the liar
    for i in $(seq 1800); do ! cat [abc].log | grep -q "site 'd' sends: it says what its site" || return 0; sleep 0.1; done
    return 1; }

begin a; begin b; begin c
for s in a b c; do reaches $s 2 || fail "no rounds were committed"; done
for how in leader lapse; do
    "$liar" d $how > liar.log 2>&1 & pid=$!
    [ $how != leader ] || named || fail "$how: nobody names the liar"
    if [ $how = lapse ]; then # without b there is no quorum: it has to come back beside the liar
        kill -9 $pid_b; wait $pid_b 2>/dev/null || true
        begin b
    fi
    now=$(records a)
    for s in a b c; do reaches $s $((now + 3)) || fail "$how: site $s commits no more"; done
    kill -9 $pid; wait $pid 2>/dev/null || true
    echo "$how: ok"
done
"$nebula" order a end --operator a --wait 60 > /dev/null || fail "the order end"
for s in a b c; do eval "wait \$pid_$s" || fail "site $s"; done
root() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' $1.log | tail -1; }
for s in b c; do [ -n "$(root a)" ] && [ "$(root a)" = "$(root $s)" ] || fail "the state roots differ: '$(root a)' '$(root $s)'"; done
echo "liars_byzantine: ok, state root $(root a)"
