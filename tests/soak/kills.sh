#!/bin/sh
# Three sites train one model in the laboratory. Random ones are killed (SIGKILL) again and again, and started again:
# tests/soak/kills.sh NEBULA-I [SECONDS] [SEED]. There is one kill for every four seconds, at most 100. The run must end with one
# state root and one model at all sites, and a replay of each site's ledger from its beginning must give that root again. A kill
# waits until the run has made a certain number of tokens, so all kills come before the end, however slow the machine is.
set -eu
nebula=$1 seconds=${2:-600} seed=${3:-$$}
kills=$((seconds / 4)); [ $kills -le 100 ] || kills=100
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
lab=
trap '[ -z "$lab" ] || kill $lab 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL (seed $seed): $*" >&2; for f in logs/*.log; do echo "== $f" >&2; tail -n 15 "$f" >&2; done; exit 1; }
number() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); value=$((seed / 65536 % $1)); }

target=$(((kills + 1) * 24000))
"$nebula" wan run --sites a,b,c --wan 50mbit,20ms -- true 2> /dev/null || { echo "kills: skipped: the laboratory does not run here"; exit 0; }
for s in a b c; do "$nebula" site init $s > /dev/null; done
cat "$top/LICENSE" "$top"/docs/*.md "$top"/src/tensor/*.[ch] > text
cat > job.yaml <<YAML
name: kills
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: 10000000, tokens: 256, max_len: 64, lr: 2e-3, log_every: 100000, threads: 1, save_every: 40}
wan: {interval: 10, fragments: 1, archive: yes, tokens: $target, round_seconds: 2}
sites:
  - {name: a}
  - {name: b}
  - {name: c}
data:
  - {file: text}
YAML
# Each site starts its process again until it ends by itself. Site a makes the roster from the addresses of the laboratory.
cat > site.sh <<'SH'
set -eu
s=$NEBULA_WAN_SITE
if [ $s = a ]; then
    for m in a b c; do eval "address=\$NEBULA_WAN_ADDR_$(echo $m | tr abc ABC)"; "$nebula" roster add draft $m $address:7000; done
    "$nebula" roster seal draft roster.new --operator a > /dev/null && mv roster.new roster
fi
while [ ! -f roster ]; do sleep 0.1; done
"$nebula" roster join roster $s > /dev/null
mkdir -p out-$s
if [ $s != a ]; then while [ ! -f prepared ]; do sleep 0.2; done; fi
for start in $(seq 1000); do
    "$nebula" train job.yaml --site $s out=out-$s >> logs/$s.log 2>&1 & echo $! > $s.pid
    [ $s != a ] || touch prepared
    status=0; wait $! || status=$?
    [ $status != 0 ] || exit 0
    [ $status = 137 ] || { echo "site $s ended with $status" >> logs/$s.log; exit 1; }
done
SH
mkdir logs
export nebula
"$nebula" wan run --sites a,b,c --wan 50mbit,20ms -- sh site.sh > lab.log 2>&1 & lab=$!

committed() { best=0; for s in a b c; do n=$(sed -n 's/^  "tokens": \([0-9]*\),/\1/p' $s/run/status.json 2>/dev/null || true); [ "${n:-0}" -le $best ] || best=$n; done; echo $best; }
done_kills=0
while [ $done_kills -lt $kills ]; do
    want=$(((done_kills + 1) * target / (kills + 1)))
    tries=0
    while [ "$(committed)" -lt $want ]; do
        kill -0 $lab 2>/dev/null || fail "the run ended after $done_kills kills: $(tail -3 lab.log)"
        tries=$((tries + 1)); [ $tries -lt 1200 ] || fail "no progress after $done_kills kills: $(committed) of $want tokens"
        sleep 0.1
    done
    number 8; sleep 0.$value
    number 3; victim=$(echo a b c | cut -d' ' -f$((value + 1)))
    kill -9 "$(cat $victim.pid)" 2>/dev/null && done_kills=$((done_kills + 1))
done
wait $lab || fail "the laboratory: $(tail -3 lab.log)"
lab=
root() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' logs/$1.log | tail -1; }
for s in a b c; do
    [ -n "$(root $s)" ] && [ "$(root $s)" = "$(root a)" ] || fail "state roots: '$(root a)' '$(root b)' '$(root c)'"
    "$nebula" site replay $s > replay.$s || fail "replay at $s"
    grep -q "state root $(root a)" replay.$s || fail "the replay at $s gives another root: $(cat replay.$s)"
done
cmp -s out-a/model/model.safetensors out-b/model/model.safetensors || cmp -s out-a/model.safetensors out-b/model.safetensors || fail "the models of a and b differ"
echo "kills: ok, $kills kills; $(head -1 replay.a)"
