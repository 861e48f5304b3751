#!/bin/bash
# witness_relay.sh NEBULA-I: a witness that is also the relay host, in one process. Sites a and b have no address: they vote with the
# witness over links of their own, and meet through it. All three end with one state. As root with ip the sites are behind NAT
# (relay_nat.sh has the same with a relay host of its own); here nobody has their addresses, which is the same to the program.
set -eu
nebula=$(realpath "$1")
. "$(dirname "$0")/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 15 "$f" >&2; done; exit 1; }
until_true() { local n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 1500 ] || fail "waited in vain for: $1"; sleep 0.1; done; }
for i in $(seq 400); do echo "the witness of line $i saw the relay of word $((i * 7 % 31)) pass by number $((i % 13))"; done > text
port=$(free_port)
for s in a b w; do "$nebula" site init $s > /dev/null; done
relay=$("$nebula" relay --print --folder w-relay --address 127.0.0.1:$port)
case $relay in "relay://127.0.0.1:$port#"*) ;; *) fail "relay --print says '$relay'" ;; esac
[ "$relay" = "$("$nebula" relay --print --folder w-relay --address 127.0.0.1:$port)" ] || fail "another key"
for s in a b; do "$nebula" roster add draft $s "$relay"; done
"$nebula" roster add draft w 127.0.0.1:$(free_port) --witness
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b w; do "$nebula" roster join roster $s > /dev/null; done
cat > job.yaml <<'YAML'
task: causal
tokenizer: {type: bpe, vocab: 300, lines: 300}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 10000000, minutes: 20, tokens: 128, max_len: 64, lr: 2e-3, log_every: 100000, threads: 1, save_every: 100000}
wan: {interval: 10, fragments: 1, tokens: 1000000000, round_seconds: 5, archive: yes}
sites:
  - {name: a}
  - {name: b}
  - {name: w, role: witness}
data:
  - {file: text}
YAML
if "$nebula" train job.yaml --relay 127.0.0.1:$port out=x > alone.log 2>&1; then fail "a relay host of no run"; fi
grep -q "give --site NAME" alone.log || fail "no word about --site"
"$nebula" train job.yaml --site w --relay 127.0.0.1:$port --relay-folder w-relay out=out-w > w.log 2>&1 & w=$!
for s in a b; do "$nebula" train job.yaml --site $s out=out-$s > $s.log 2>&1 & eval "$s=$!"; done
until_true "grep -q 'through the relay host 127.0.0.1:$port' a.log b.log"
[ "$(pgrep -P $$ | grep -c .)" -le 5 ] && ! pgrep -P $w > /dev/null || fail "the relay host is another process"
until_true "$nebula status a/run 2> /dev/null | grep -q 'a reaches b through a relay host'"
grep -q '"relayed": *true' a/run/status.json || fail "no word in the JSON"
records() { sed -n 's/^  "record": *\([0-9]*\),/\1/p' a/run/status.json | head -1; }
until_true '[ "$(records)" -ge 2 ] 2> /dev/null'
"$nebula" order a end --operator a --wait 60 > /dev/null || fail "the order end"
wait $a || fail "site a"
wait $b || fail "site b"
wait $w || fail "the witness"
grep -q "is also a relay host" w.log || fail "the witness does not say what it is"
"$nebula" relay --show --folder w-relay > shown || fail "no status"
grep -q '^runs 1$' shown && grep -q '^joined [1-9]' shown || fail "nothing was joined: $(tr '\n' ' ' < shown)"
for s in a b w; do "$nebula" site replay $s 2> /dev/null | head -1 | sed 's/.*state root \([0-9a-f]*\).*/\1/' > root-$s; done
[ -s root-a ] && cmp -s root-a root-b && cmp -s root-a root-w || fail "different state roots: $(cat root-?)"
echo "witness_relay: ok, $(sed -n 's/^bytes //p' shown) bytes passed on"
