#!/bin/bash
# Two of three operators must agree. One alone orders nothing; the second completes the first one's file and sees what it says. They
# admit a key and hand over to one other operator while the run goes on; from then on the old keys order nothing, and an audit follows
# the whole history. A site gets a new key by order and goes on under it. What was signed by too few, twice or for another run is refused.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
pids=
trap 'release_ports; kill -9 $pids 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
refused() { # TEXT COMMAND…: the command fails and says so
    text=$1; shift
    if "$@" > refused.log 2>&1; then fail "not refused: $*"; fi
    grep -q -- "$text" refused.log || fail "no word of '$text': $*"; }
head -c 60000 "$top/docs/rounds.md" > text
for s in a b c one two three four; do "$nebula" site init $s > /dev/null 2>&1; done
"$nebula" roster add draft a 127.0.0.1:$(free_port)
"$nebula" roster add draft b 127.0.0.1:$(free_port)
refused "cannot agree" "$nebula" roster seal draft roster --operator one,two --threshold 3
refused "given twice" "$nebula" roster seal draft roster --operator one,two,one --threshold 2
"$nebula" roster seal draft roster --operator "one,$("$nebula" site show two),three" --threshold 2 > /dev/null 2>&1
"$nebula" roster show roster | grep -q "2 of 3 must sign" || fail "roster show does not tell of the operators"
refused "2 of 3 operators must sign" "$nebula" roster admit roster c --operator one
"$nebula" roster admit roster c --learner --operator one,three > /dev/null 2>&1 || fail "two operators cannot admit"
"$nebula" roster evict roster c --operator two,three > /dev/null 2>&1 || fail "two operators cannot evict"
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
cat > job.yaml <<'YAML'
name: operators
task: causal
tokenizer: {type: bpe, vocab: 300, lines: 500}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 10000000, tokens: 128, max_len: 32, lr: 2e-3, log_every: 100000, threads: 1, save_every: 100000}
wan: {interval: 10, fragments: 1, rung: int8, tokens: 1000000000, round_seconds: 1, end_seconds: 2, archive: yes}
data:
  - {file: text}
sites:
  - {name: a}
  - {name: b}
YAML
field() { sed -n "s/^  \"$2\": \\([0-9]*\\),*/\\1/p" $1/run/status.json 2>/dev/null | tail -1; }
reaches() { for i in $(seq $(($4 * 5))); do n=$(field $1 $2); [ "${n:-0}" -lt $3 ] || return 0; sleep 0.2; done; return 1; }
for s in a b; do "$nebula" train job.yaml --site $s out=out-$s >> $s.log 2>&1 & eval "pid_$s=$!"; pids="$pids $!"; done
reaches a record 3 240 || fail "no rounds were committed"

refused "2 of 3 operators must sign" "$nebula" order a budget 50 --operator one
refused "not a key of the run's 3 operators" "$nebula" order a budget 50 --operator four --to half
"$nebula" order a budget 50 --operator one --to half > first.log || fail "the first signature"
grep -q "1 more operator must sign" first.log || fail "nobody was asked for the second signature"
refused "signed already" "$nebula" order a sign half --operator one
refused "not a key of the run's 3 operators" "$nebula" order a sign half --operator four
# What a signature would cover is shown first: who goes on with which votes, who comes as what.
"$nebula" order a force a b --operator one --to forced > /dev/null || fail "force, the first"
"$nebula" order a sign forced --operator four > forced.log 2>&1 && fail "a stranger signed"
[ "$(grep -c "votes 1, trains" forced.log)" = 2 ] || fail "the votes of a forced roster were not shown"
"$nebula" order a admit "$("$nebula" site show four)" --observer --operator one --to comes > /dev/null || fail "admit, the first"
"$nebula" order a sign comes --operator four > comes.log 2>&1 && fail "a stranger signed"
grep -q "an observer, votes 0, addresses none" comes.log || fail "what a new member is was not shown"
mkdir -p a/run/orders
cp half a/run/orders/1.order # one signature, put there by hand
for i in $(seq 1200); do [ -f a/run/orders/1.order.refused ] && break; sleep 0.1; done
[ -f a/run/orders/1.order.refused ] || fail "an order with one of two signatures was not refused"
"$nebula" order b sign half --operator three --wait 60 > second.log 2>&1 || fail "the second signature"
grep -q "order      budget behind record" second.log && grep -q "50.0 %" second.log || fail "what is signed was not shown"
grep -q "carried out" second.log || fail "the order was not carried out"
reaches a record $(($(field b record) + 20)) 240 || fail "the run does not go on" # a's status shows the order's record now

# One other operator from now on, named by its identity; two of the old ones sign, one after the other.
"$nebula" order a operators "$("$nebula" site show four)" --operator two --to hand > /dev/null || fail "operators, the first"
"$nebula" order a sign hand --operator one --wait 60 > hand.log 2>&1 || fail "operators, the second"
grep -q "1 of these operators must sign from then on" hand.log || fail "the new operator was not shown"
for s in a b; do
    for i in $(seq 1200); do "$nebula" roster show $s | grep -q "must sign" || break; sleep 0.1; done
    "$nebula" roster show $s | grep -q "must sign" && fail "$s still has the old operators"
done
refused "nothing to sign" "$nebula" order a sign half --operator one
refused "refused" "$nebula" order a budget 60 --operator one --wait 30
"$nebula" order b budget 70 --operator four --wait 60 > /dev/null || fail "the new operator's order"

# b's key may be known to somebody else: it gets a new one, stops, takes it and goes on. The old one is worth nothing.
"$nebula" site rekey b > request 2> /dev/null
reaches a record $(($(field b record) + 20)) 240 || fail "the run does not go on"
old=$("$nebula" site show b)
"$nebula" order a rekey request --operator four --wait 1 > /dev/null 2>&1 || true # of two sites both must agree: b is cut off
kill -TERM $pid_b
wait $pid_b 2> /dev/null || true
for i in $(seq 1200); do "$nebula" roster show a | grep -q "$old" || break; sleep 0.1; done
"$nebula" roster join a/roster b > /dev/null 2>&1 || fail "b cannot take its new key"
[ "$old" != "$("$nebula" site show b)" ] || fail "b has its old key"
"$nebula" train job.yaml --site b out=out-b >> b.log 2>&1 & pid_b=$!
pids="$pids $pid_b"
now=$(field a record)
reaches b record $((now + 10)) 240 || fail "b does not go on with its new key"
for i in $(seq 1200); do ls a/run/orders/*.order > /dev/null 2>&1 || break; sleep 0.1; done
grep -q "order a/run/orders/.* is carried out" a.log && ! ls a/run/orders/*.order > /dev/null 2>&1 || fail "the order rekey"
refused "must know its operators" "$nebula" roster operators a/roster one --operator four
"$nebula" order a end --operator four --wait 60 > /dev/null || fail "the order end"
for s in a b; do eval "wait \$pid_$s" || fail "site $s"; done
root() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' $1.log | tail -1; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] || fail "the state roots differ: '$(root a)' '$(root b)'"
"$nebula" audit a > audit.log || fail "the audit of a"
cp b/roster late.roster
refused "operators that it names" "$nebula" audit a --roster roster # the roster of the beginning lacks the new operator
"$nebula" audit b --roster late.roster > /dev/null || fail "the audit of b with the roster alone"
"$nebula" site replay a > replay.log || fail "the replay of a"
grep -q "member 2: [1-9]" replay.log || fail "no steps of b are in"
echo "operators: ok, state root $(root a)"
