#!/bin/sh
# Three sites train one model in the laboratory, once undisturbed and once with site c cut off twice: tests/soak/away.sh NEBULA-I
# [SECONDS]. Site c goes on training alone and misses at least 20 rounds the first time and 40 the second. Once c is back, the
# held-out loss of the outer state must be at most 2 % above that of the undisturbed run at equal tokens: late work is discounted
# and does no harm. The loss is a mean of five evaluations, because a single one strays by 1 %. The test also prints how the two
# runs compare while c is away, when two sites' mean stands against three sites'.
set -eu
nebula=$1 seconds=${2:-600}
part=$((seconds / 2)); [ $part -ge 90 ] || part=90; [ $part -le 300 ] || part=300
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
lab=
trap '[ -z "$lab" ] || kill $lab 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in away/*.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }
"$nebula" wan run --sites a,b,c --wan 50mbit,20ms -- true 2> /dev/null || { echo "away: skipped: the laboratory does not run here"; exit 0; }
cat "$top/LICENSE" "$top"/docs/*.md "$top"/src/tensor/*.[ch] "$top"/src/nn/*.[ch] > text
cat "$top"/src/optim/*.[ch] "$top"/CONTRIBUTING.md > valid
cat > site.sh <<'SH'
set -eu
s=$NEBULA_WAN_SITE
if [ $s = a ]; then
    for m in a b c; do eval "address=\$NEBULA_WAN_ADDR_$(echo $m | tr abc ABC)"; "$nebula" roster add draft $m $address:7000; done
    "$nebula" roster seal draft roster.new --operator a > /dev/null && mv roster.new roster
fi
while [ ! -f roster ]; do sleep 0.1; done
"$nebula" roster join roster $s > /dev/null
exec "$nebula" train job.yaml --site $s out=out-$s > $s.log 2>&1
SH
told() { n=$(sed -n "s/^  \"$2\": \([0-9]*\),/\1/p" $1/a/run/status.json 2>/dev/null | head -1); echo ${n:-0}; }
records() { told $1 record; }
one_run() { # NAME SCHEDULE
    mkdir $1; cp site.sh $1; ln -s ../text ../valid $1
    for s in a b c; do "$nebula" site init $s --dir $1/$s > /dev/null; done
    cat > $1/job.yaml <<YAML
name: away
task: causal
tokenizer: {type: bpe, vocab: 600, lines: 4000}
model: {family: gpt2, hidden: 96, layers: 2, heads: 2}
train: {steps: 10000000, minutes: $(awk "BEGIN { print $part / 60 }"), tokens: 256, max_len: 64, lr: 2e-3, schedule: constant,
        warmup: 50, eval_every: 40, log_every: 100000, threads: 1, save_every: 1000000}
wan: {interval: 10, fragments: 1, drift_steps: 1000000, round_seconds: 1}
sites:
  - {name: a}
  - {name: b}
  - {name: c}
data:
  - {file: text}
  - {file: valid, use: valid}
YAML
    (cd $1 && exec "$nebula" wan run --sites a,b,c --wan 50mbit,20ms ${2:+--schedule "$2"} -- sh site.sh) > $1.lab 2>&1 & lab=$!
}
finish() { wait $lab || fail "run $1: $(tail -3 $1.lab)"; lab=; }
points() { sed -n 's/^.*held out at step [0-9]*: loss \([0-9.]*\),.*with \([0-9]*\) tokens.*/\2 \1/p' $1/a.log; }
export nebula
one_run still ""
finish still
one_run away "$((part / 5))s+$((part / 5))s c down; $((3 * part / 5))s+$((part / 3))s c down"
sleep $((part / 5 + 7)); first=$(records away); sleep $((part / 5 - 8)); first=$(($(records away) - first)) back=$(told away tokens)
sleep $((part / 5)); cut=$(told away tokens)
sleep 7; second=$(records away); sleep $((part / 3 - 8)); second=$(($(records away) - second)) again=$(told away tokens)
finish away
[ $first -ge 20 ] && [ $second -ge 40 ] || fail "site c missed $first and $second rounds: too few on this machine; give it more seconds"
points still > still.points; points away > away.points
# The most by which the disturbed run lies above the other one between two numbers of tokens.
above() {
    awk -v from=$1 -v to=$2 'function mean(a, at, n,  i, s, k) { for (i = at - 2; i <= at + 2; i++) if (i >= 0 && i < n) { s += a[i]; k++ } return s / k }
        NR == FNR { t[n] = $1; l[n++] = $2; next } { u[m] = $1; k[m++] = $2 }
        END { for (x = 0; x < m; x++) {
                if (u[x] < from || u[x] > to || u[x] < t[0]) continue
                for (i = 1; i < n && t[i] < u[x]; i++);
                if (i == n) continue
                a = mean(l, i - 1, n); b = mean(l, i, n)
                d = mean(k, x, m) / (a + (b - a) * (u[x] - t[i-1]) / (t[i] > t[i-1] ? t[i] - t[i-1] : 1)) - 1
                if (!seen++ || d > worst) worst = d }
            if (seen < 5) print "none"; else printf "%.4f", worst }' still.points away.points
}
worst=$(above $back $cut) later=$(above $again 1e18)
[ "$worst" != none ] && [ "$later" != none ] || fail "too few evaluations at equal tokens ($worst, $later)"
alone=$(above $cut $again)
worst=$(printf '%s\n' $worst $later | sort -g | tail -n 1)
awk "BEGIN { exit !($worst <= 0.02) }" || fail "the held-out loss was $worst above the undisturbed run's at equal tokens"
factor=$(grep -c "enters with factor" away/c.log || true)
echo "away: ok, site c missed $first and $second rounds; held-out loss at most $worst above (share; $alone while c was away), $factor discounts;" \
     "last: $(tail -1 still.points) still, $(tail -1 away.points) away (tokens, loss)"
