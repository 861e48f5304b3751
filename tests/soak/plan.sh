#!/bin/bash
# The planner against the clock: tests/soak/plan.sh NEBULA-I [JOB] [STEPS] [TURNS]. Measures the costs anew, lets the planner foresee every
# layout of this machine, then trains each of them by hand and prints what was foreseen beside what was measured, and the regret: how much
# longer a step of the planner's choice takes than one of the best layout. The last line is JSON. It fails if the regret is above 5 % or
# a step's time is foreseen wrongly by more than 15 %. For an idle machine: about four minutes on two cores.
set -eu
nebula=$(realpath "$1") job=${2:+$(realpath "$2")} steps=${3:-20} turns=${4:-2}
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 5 "$f" >&2; done; exit 1; }
if [ -z "$job" ]; then
    job=$dir/job.yaml
    cat "$top/LICENSE" "$top"/docs/*.md > text
    cat > job.yaml <<'YAML'
name: by-hand
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 2000, lines: 4000}
model: {family: gpt2, hidden: 256, layers: 4, heads: 4}
train: {steps: 1000, tokens: 512, micro: 8, max_len: 128, log_every: 1000, deterministic: no}
data: [{file: text}]
YAML
fi
"$nebula" plan "$job" out=plan --again --top 1000 --json > plan.json 2> plan.log || fail "the plan"
field() { sed "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/" <<< "$2"; }
sed 's/,"rejected":.*//; s/^{"layouts":\[//' plan.json | sed 's/},{/}\n{/g' > layouts
n=$(grep -c '"fits":true' layouts || true)
[ "$n" -gt 0 ] || fail "no layout fits"
for turn in $(seq "$turns"); do
    i=0
    while read -r row; do
        i=$((i + 1))
        out=$dir/out-$turn-$i
        mkdir -p "$out"
        cp plan/plan "$out/plan"
        words="parallel.auto=no parallel.data=$(field data "$row") parallel.tensor=$(field tensor "$row") parallel.pipeline=$(field pipeline "$row")"
        words="$words parallel.zero=$(field zero "$row") parallel.offload=$(field offload "$row") train.threads=$(field threads "$row")"
        [ "$(field sequence "$row")" = true ] && words="$words parallel.sequence=yes" || words="$words parallel.sequence=no"
        "$nebula" train "$job" out="$out" train.steps="$steps" $words < /dev/null > "$turn-$i.log" 2>&1 || fail "layout $i: $words"
        line=$(grep -ao "[a-z0-9, ]*: a step: foreseen [^(]*" "$turn-$i.log" | tail -1)
        [ -n "$line" ] || fail "layout $i says nothing of its time"
        echo "$i|$(field step_seconds "$row")|$(sed 's/.*measured \([^ ]*\) s.*/\1/' <<< "$line")|$(sed 's/: a step.*//; s/^ *//' <<< "$line")" >> measured
        rm -rf "$out"
    done < <(grep '"fits":true' layouts)
done
awk -F'|' '
{ if (!($1 in least) || $3 < least[$1]) least[$1] = $3; foreseen[$1] = $2; name[$1] = $4; if ($1 > n) n = $1 }
END {
    best = 1
    for (i = 1; i <= n; i++) if (least[i] < least[best]) best = i
    printf "%-34s %12s %12s %8s\n", "layout, the choice first", "foreseen, s", "measured, s", "off"
    json = ""
    for (i = 1; i <= n; i++) {
        off = 100 * (foreseen[i] / least[i] - 1)
        if (off * off > worst * worst) worst = off
        printf "%-34s %12.4f %12.4f %+7.1f %%\n", name[i], foreseen[i], least[i], off
        json = json sprintf("%s{\"layout\":\"%s\",\"foreseen_seconds\":%g,\"measured_seconds\":%g,\"off_percent\":%.1f}", i > 1 ? "," : "", name[i], foreseen[i], least[i], off)
    }
    regret = 100 * (least[1] / least[best] - 1)
    printf "the choice: %s; the best: %s; regret %.1f %% (bar 5), forecast off by at most %.1f %% (bar 15)\n", name[1], name[best], regret, worst
    printf "{\"chosen\":\"%s\",\"best\":\"%s\",\"regret_percent\":%.1f,\"worst_forecast_percent\":%.1f,\"layouts\":[%s]}\n", name[1], name[best], regret, worst, json
    exit !(regret <= 5 && worst <= 15 && worst >= -15)
}' measured
