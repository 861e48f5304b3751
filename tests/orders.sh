#!/bin/bash
# An operator gives orders to a run that is under way. A third site is admitted, starts, catches up and gets its vote. Another
# one is evicted and hears of it. Budget and bound go into the log. The run ends by order. Orders by a stranger and orders that
# make no sense are refused. At the end the remaining sites hold one state.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
pids=
trap 'release_ports; kill -9 $pids 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
cat "$top/LICENSE" "$top"/docs/*.md > text
port_a=$(free_port) port_c=$(free_port)
for s in a b c ops; do "$nebula" site init $s > /dev/null; done
"$nebula" roster add draft a 127.0.0.1:$port_a
"$nebula" roster add draft b 127.0.0.1:$(free_port)
"$nebula" roster seal draft roster --operator ops > /dev/null
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
cat > job.yaml <<'YAML'
name: orders
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 10000000, tokens: 256, max_len: 64, lr: 2e-3, log_every: 100000, threads: 1, save_every: 100000}
wan: {interval: 10, fragments: 1, rung: int8, tokens: 1000000000, round_seconds: 1}
data:
  - {file: text}
sites:
  - {name: a}
  - {name: b}
YAML
(cat job.yaml; echo "  - {name: c}") > job3.yaml
order() { "$nebula" order "$@" --operator ops --wait 60; }
field() { sed -n "s/^  \"$2\": \\([0-9]*\\),*/\\1/p" $1/run/status.json 2>/dev/null | tail -1; }
reaches() { # SITE FIELD VALUE SECONDS: waits until the field of the status has the value
    for i in $(seq $(($4 * 5))); do n=$(field $1 $2); [ "${n:-0}" -lt $3 ] || return 0; sleep 0.2; done; return 1; }
begin() { "$nebula" train $2 --site $1 out=out-$1 >> $1.log 2>&1 & eval "pid_$1=$!"; pids="$pids $!"; }

if order a end 2> early.log; then fail "an order was taken before the run began"; fi
begin a job.yaml; begin b job.yaml
reaches a record 3 240 || fail "no rounds were committed"
if "$nebula" order a end --operator b --wait 10 > stranger.log 2>&1; then fail "an order by a stranger was taken"; fi
grep -q "refused" stranger.log || fail "the stranger was not refused"
order a budget 50 || fail "the order budget"
order b bound 1000 || fail "the order bound"
if order b bound -1 2> bad.log; then fail "a negative bound was taken"; fi
grep -q "not a bound" bad.log || fail "no message about the bound"

order a admit c 127.0.0.1:$port_c || fail "the order admit"
"$nebula" roster join a/roster c > /dev/null
begin c job3.yaml
reaches c voters 14 240 || fail "c did not get its vote" # sites 1, 2 and 3
if order a evict nobody 2> nobody.log; then fail "an unknown site was evicted"; fi
kill -STOP $pid_b # the others drop it before it can hear of the order; the refusal of its next call shows it why
order a evict b || fail "the order evict"
kill -CONT $pid_b
for i in $(seq 1800); do kill -0 $pid_b 2>/dev/null || break; sleep 0.1; done
kill -0 $pid_b 2>/dev/null && fail "site b still runs after it was evicted"
grep -q "removed this site" b.log || fail "b did not hear that it was removed"
listed() { "$nebula" roster show c | grep -q "member.* b:"; }
for i in $(seq 1200); do listed || break; sleep 0.1; done # the new epoch reaches c over its link
listed && fail "b's key is still valid at c"
now=$(field a record)
reaches c record $((now + 3)) 240 || fail "a and c commit no rounds without b"
told() { LINES=60 COLUMNS=200 "$nebula" watch "$1" --text | grep -q "$2"; }
for i in $(seq 1200); do told out-c "evicted: the operator removed b" && break; sleep 0.1; done
told out-c "evicted: the operator removed b" || fail "the timeline of c does not tell that b was evicted"
told out-a "admitted: c is a member" || fail "the timeline of a does not tell that c was admitted"
order c end || fail "the order end"
for s in a c; do eval "wait \$pid_$s" || fail "site $s"; done
root() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' $1.log | tail -1; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root c)" ] || fail "the state roots differ: '$(root a)' '$(root c)'"

# Those orders were that run's. The next one begins with a roster sealed anew, and with the same keys.
grep -v "name: b" job3.yaml > job2.yaml
next() { timeout 400 "$nebula" train job2.yaml --site $1 name=next train.steps=20 out=next-$1; }
if next a > next.log 2>&1; then fail "a run began with a roster that orders of another one had changed"; fi
grep -q "orders have changed the roster of a in an earlier run.*--replace" next.log || fail "no message about the roster"
"$nebula" roster add again a 127.0.0.1:$port_a
"$nebula" roster add again c 127.0.0.1:$port_c
"$nebula" roster seal again fresh --operator ops > /dev/null 2>&1
if "$nebula" roster join fresh a 2> join.log; then fail "another roster was taken without a word"; fi
grep -q -- "--replace" join.log || fail "no message about the other roster"
for s in a c; do "$nebula" roster join fresh $s --replace; [ -s $s/roster.before ] || fail "$s did not keep its old roster"; done
next a > next-a.log 2>&1 & first=$!
next c > next-c.log 2>&1 & second=$!
pids="$pids $first $second"
wait $first || fail "the next run, site a"
wait $second || fail "the next run, site c"
cmp -s next-a/model.safetensors next-c/model.safetensors || fail "the next run gave two models"
[ "$("$nebula" site runs a | sort | tr '\n' ' ')" = "next orders " ] || fail "runs of a: $("$nebula" site runs a)"
echo "orders: ok, state root $(root a)"
