#!/bin/bash
# Held-out loss of a run in which one of four sites lies, beside the same run without that site.
#
#     bench/liars.sh [--build DIR] [--seeds 1,2,3] [--rules R,R] [--lies L,L] [--steps N] [--tokens N] [--out DIR]
#
# Three honest sites train a small GPT-2. The fourth is tests/liar.c: it answers the first update of every record with a lie of
# its own. The honest sites make --steps at a fixed pace (wan.merge_after), so that a busy machine changes nothing. With
# --tokens the run ends by tokens instead, and rounds are merged when they come. A rule is what `nebula-i roster seal --influence` takes. The lies: none (the fourth
# site is away), poison (times -30), thousand (times 1000), noise (10 times as long), mirror (times -1). Every number is a line
# of OUT/results.tsv: rule, lie, seed, held-out loss, steps of the honest sites, updates that were made shorter or left out.
# The table has medians over the seeds. Exit status 1: a run with a robust rule is more than 2 % above the one without the
# liar, or any loss is not finite. docs/trust.md has what it gave.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
build=$top/build/release seeds=1,2,3 rules='clip=2 combine=trimmed,clip=2' lies=none,poison,thousand,noise,mirror
steps=1000 tokens= out=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$(cd "$2" && pwd) ;;
    --seeds) seeds=$2 ;;
    --rules) rules=$2 ;;
    --lies) lies=$2 ;;
    --steps) steps=$2 ;;
    --tokens) tokens=$2 ;;
    --out) out=$2 ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
    shift 2
done
nebula=$build/nebula-i liar=$build/tests/liar
[ -x "$nebula" ] && [ -x "$liar" ] || { echo "$build has no nebula-i or tests/liar; build them or give --build DIR" >&2; exit 2; }
keep=$out
[ -n "$out" ] || out=$(mktemp -d)
mkdir -p "$out"
cd "$out"
out=$PWD
started=
trap 'for p in $started; do kill -9 $p 2>/dev/null || true; done; [ -n "$keep" ] || rm -rf "$out"' EXIT
trap 'exit 1' INT TERM
: > results.tsv
cat "$top/LICENSE" "$top"/docs/*.md | awk 'NR % 10' > text # every tenth line is held out
cat "$top/LICENSE" "$top"/docs/*.md | awk 'NR % 10 == 0' > held-out
end="merge_after: 5, round_seconds: 600"
if [ -n "$tokens" ]; then end="tokens: $tokens, round_seconds: 20, end_seconds: 3" steps=1000000; fi
cat > job.yaml <<YAML
name: liars
task: causal
cache: $out/cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: $steps, tokens: 256, max_len: 64, lr: 2e-3, warmup: 40, log_every: 1000000, threads: 1, save_every: 0}
wan: {interval: 10, outer_momentum: 0.3, fragments: 1, rung: int8, $end}
sites: [{name: a}, {name: b}, {name: c}, {name: d}]
data: [{file: $out/text}, {file: $out/held-out, use: valid}]
YAML

port=$((24000 + $$ % 6000))
sites() { # RULE: keys and roster of four sites
    for s in a b c d; do
        "$nebula" site init $s > /dev/null 2>&1
        "$nebula" roster add draft $s 127.0.0.1:$port
        port=$((port + 1))
    done
    "$nebula" roster seal draft roster --operator a --influence "$1" > /dev/null 2>&1
    for s in a b c d; do "$nebula" roster join roster $s > /dev/null; done
}

one() { # RULE LIE SEED
    local dir=$out/run pids= pid
    rm -rf "$dir" && mkdir "$dir" && cd "$dir"
    sites "$1"
    if [ $2 != none ]; then "$liar" d $2 > liar.log 2>&1 & local lying=$!; started=$lying; fi
    for s in a b c; do
        "$nebula" train ../job.yaml --site $s out=out-$s seed=$3 > $s.log 2>&1 & pids="$pids $!" started="$started $!"
    done
    for pid in $pids; do wait $pid || { echo "a site failed:" >&2; tail -n 5 ?.log >&2; exit 1; }; done
    if [ $2 != none ]; then kill -9 $lying; wait $lying 2>/dev/null || true; fi
    started=
    local loss steps cut
    loss=$("$nebula" eval loss ../job.yaml out=out-a seed=$3 --threads 1 | sed -n 's/.*loss \([0-9.einfa+-]*\).*/\1/p' | head -1)
    steps=$(sed -n 's/^liars: \([0-9]*\) steps.*/\1/p' a.log b.log c.log | sort -n | tr '\n' ' ')
    cut=$(sed -n 's/^ *"scaled_of": "\(.*\)",*$/\1/p' a/run/status.json | head -1)
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" $2 $3 "${loss:-nan}" "$steps" "$cut" | tee -a "$out/results.tsv"
    cd "$out"
}

IFS=,
for seed in $seeds; do for rule in $rules; do for lie in $lies; do
    IFS=' '; one "$rule" $lie $seed; IFS=,
done; done; done
IFS=' '
awk -F'\t' '
function middle(key,   n, i, j, t, v) { n = split(all[key], v, " ")
    for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2 }
{ key = $1 FS $2; if (!(key in all)) order[++keys] = key; all[key] = all[key] $4 " "; if ($4 != $4 + 0 || $4 > 1e30) bad = 1 }
END {
    printf "\n%-28s %-9s %10s %8s\n", "rule", "lie", "loss", "worse"
    for (k = 1; k <= keys; k++) { split(order[k], p, FS); m = middle(order[k]); base = (p[1] FS "none") in all ? middle(p[1] FS "none") : 0
        worse = base ? 100 * (m / base - 1) : 0
        printf "%-28s %-9s %10.4g %+7.2f%%\n", p[1], p[2], m, worse
        if (p[1] ~ /trimmed|median/ && p[2] != "mirror" && worse > 2) bad = 1 }
    exit bad }' results.tsv
