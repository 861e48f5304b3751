#!/bin/sh
# Two sites train one model in the laboratory, and the line between them is cut for a while: tests/soak/partition.sh NEBULA-I
# [SECONDS]. The cut lasts a minute, or a third of the time if that is less; it begins after 12 s, or after a minute if there are 600 or
# more: a busy machine needs that long for its first round. Both sites must train on meanwhile, notice the cut
# within 10 s, and commit again within 10 s of its end (plus the time of the update). At the end every step of either site must
# be in the ledger exactly once.
set -eu
nebula=$1 seconds=${2:-600}
cut=$((seconds / 3)); [ $cut -le 60 ] || cut=60
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
lab=
trap '[ -z "$lab" ] || kill $lab 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in logs/*.log; do echo "== $f" >&2; tail -n 15 "$f" >&2; done; exit 1; }
"$nebula" wan run --wan 50mbit,20ms -- true 2> /dev/null || { echo "partition: skipped: the laboratory does not run here"; exit 0; }
at=12; [ $seconds -lt 600 ] || at=60
minutes=$(awk "BEGIN { print ($at + $cut + 14) / 60 }") # of training: the run ends some time after the cut
for s in a b; do "$nebula" site init $s > /dev/null; done
cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<YAML
name: partition
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: 10000000, minutes: $minutes, tokens: 256, max_len: 64, lr: 1e-3, log_every: 100000, threads: 1, save_every: 1000000}
wan: {interval: 20, fragments: 1, archive: yes, drift_steps: 1000000, round_seconds: 5, end: keep}
sites:
  - {name: a}
  - {name: b}
data:
  - {file: text}
YAML
cat > site.sh <<'SH'
set -eu
s=$NEBULA_WAN_SITE
if [ $s = a ]; then
    "$nebula" roster add draft a $NEBULA_WAN_ADDR_A:7000; "$nebula" roster add draft b $NEBULA_WAN_ADDR_B:7000
    "$nebula" roster seal draft roster.new --operator a > /dev/null && mv roster.new roster
fi
while [ ! -f roster ]; do sleep 0.1; done
"$nebula" roster join roster $s > /dev/null
exec "$nebula" train job.yaml --site $s out=out-$s > logs/$s.log 2>&1
SH
mkdir logs
export nebula
began=$(date +%s)
"$nebula" wan run --wan 50mbit,20ms --schedule "${at}s+${cut}s down" -- sh site.sh > lab.log 2>&1 & lab=$!
now() { echo $(($(date +%s) - began)); }
field() { sed -n "s/^  \"$2\": \\([0-9]*\\),/\\1/p" $1/run/status.json 2>/dev/null | head -1; }
until_now() { while [ $(now) -lt $1 ]; do kill -0 $lab 2>/dev/null || fail "the run ended: $(tail -3 lab.log)"; sleep 0.2; done; }
until_now $((at + 1))
before_a=$(field a step) before_b=$(field b step) records=$(field a record)
[ "${records:-0}" -gt 0 ] || fail "no round before the cut"
noticed=
while [ $(now) -lt $((at + cut)) ]; do
    if [ -z "$noticed" ] && grep -q "is down" logs/a.log && grep -q "is down" logs/b.log; then noticed=$(($(now) - at)); fi
    kill -0 $lab 2>/dev/null || fail "the run ended: $(tail -3 lab.log)"
    sleep 0.2
done
during_a=$(($(field a step) - before_a)) during_b=$(($(field b step) - before_b)) cut_record=$(field a record)
[ $during_a -gt 0 ] && [ $during_b -gt 0 ] || fail "steps during the cut: $during_a and $during_b"
[ -n "$noticed" ] && [ $noticed -le 10 ] || fail "the cut was noticed after '$noticed' s"
while [ "$(field a record)" -le "$cut_record" ]; do
    [ $(now) -le $((at + cut + 60)) ] || fail "no round within a minute of the cut's end"
    sleep 0.2
done
back=$(($(now) - at - cut))
[ $back -le 12 ] || fail "the first round came $back s after the cut's end (2 s of it may be the status file's age)"
wait $lab || fail "the run: $(tail -3 lab.log)"
lab=
"$nebula" site replay a > replay.log || fail "replay"
for m in 1 2; do
    made=$(field $(echo a b | cut -d' ' -f$m) step) in=$(sed -n "s/^member $m: \([0-9]*\) steps/\1/p" replay.log)
    [ "$made" = "$in" ] || fail "member $m made $made steps, $in are in the ledger"
done
echo "partition: ok, cut for $cut s: noticed after $noticed s, $during_a and $during_b steps meanwhile, a round $back s after" \
     "its end, every step in; $(head -1 replay.log)"
