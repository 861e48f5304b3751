#!/bin/bash
# The planner against the clock: [DEVICE=cuda] tests/soak/plan.sh NEBULA-I [JOB] [STEPS] [TURNS]. Measures the costs anew, lets the planner
# foresee every layout of this machine, then trains each of them by hand and prints what was foreseen beside what was measured, time and
# memory, and the regret: how much longer a step of the planner's choice takes than one of the best layout. The last line is JSON. It
# fails if the regret is above 5 %, a step's time is foreseen wrongly by more than 15 %, or the memory by more than 2 %.
#
# On the CPU: for an idle machine, about four minutes on two cores. DEVICE=cuda: RANKS (2) processes share the GPUs of this machine. Several on
# one GPU need MPS, started by the caller, and NCCL 2.30 (NEBULA_NCCL_LIB names its folder), for which NCCL_MULTI_RANK_GPU_ENABLE=1 is
# set here. Layouts with state on the host are left out unless OFFLOAD=yes. It also says what the GPU's libraries took beside the
# allocator, if nvidia-smi is there. About three minutes. Without the device it says so and ends well.
set -eu
nebula=$(realpath "$1") job=${2:+$(realpath "$2")} device=${DEVICE:-cpu}
steps=${3:-$([ $device = cpu ] && echo 20 || echo 60)} turns=${4:-$([ $device = cpu ] && echo 2 || echo 1)}
ranks=${RANKS:-$([ $device = cpu ] && echo 0 || echo 2)} offload=${OFFLOAD:-$([ $device = cpu ] && echo yes || echo no)}
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; grep -a . "$f" | tail -n 5 >&2; done; exit 1; }
if ! "$nebula" device list | grep "^$device" | grep -vq "not usable"; then
    echo "plan: skipped, there is no $device device"
    exit 0
fi
shape="hidden: 256, layers: 4, heads: 4" train="tokens: 512, micro: 8, max_len: 128"
if [ $device = cuda ]; then
    shape="hidden: 1024, layers: 8, heads: 16, max_positions: 512" train="tokens: 8192, micro: 4, max_len: 512, dtype: bf16"
    export NCCL_MULTI_RANK_GPU_ENABLE=1
fi
if [ -z "$job" ]; then
    job=$dir/job.yaml
    cat "$top/LICENSE" "$top"/docs/*.md > text
    [ $device = cpu ] || cat "$top"/src/*/*.c >> text
    cat > job.yaml <<YAML
name: by-hand
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 2000, lines: 4000}
model: {family: gpt2, $shape}
train: {steps: 1000, $train, log_every: 1000, deterministic: no, device: $device, save_every: 0}
data: [{file: text}]
YAML
fi
taken() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2> /dev/null | awk '{n += $1} END {print n + 0}'; }
"$nebula" plan "$job" out=plan --again --top 1000 --json --ranks "$ranks" > plan.json 2> plan.log || fail "the plan"
field() { sed "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/" <<< "$2"; }
sed 's/,"rejected":.*//; s/^{"layouts":\[//' plan.json | sed 's/},{/}\n{/g' | grep '"fits":true' > layouts || true
[ $offload = yes ] || sed -i '/"offload":"none"/!d' layouts
[ -s layouts ] || { cat plan.json; fail "no layout fits"; }
idle=$(taken)
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
        "$nebula" train "$job" out="$out" train.steps="$steps" $words < /dev/null > "$turn-$i.log" 2>&1 &
        running=$! most=0
        while [ $device != cpu ] && kill -0 $running 2> /dev/null; do now=$(taken); [ "$now" -le $most ] || most=$now; sleep 0.3; done
        wait $running || fail "layout $i: $words"
        said() { grep -ao "[a-z0-9, ]*: $1: foreseen [^(]*" "$turn-$i.log" | tail -1; }
        line=$(said "a step")
        [ -n "$line" ] || fail "layout $i says nothing of its time"
        held=$(said "the device's memory")
        number() { sed "s/.*$1 \([^ ]*\) .*/\1/" <<< "$2"; }
        ranks_here=$(($(field data "$row") * $(field tensor "$row") * $(field pipeline "$row")))
        echo "$i|$(field step_seconds "$row")|$(number measured "$line")|$(sed 's/: a step.*//; s/^ *//' <<< "$line")|$(number foreseen "$held")|$(number measured "$held")|$((most > idle ? most - idle : 0))|$ranks_here" >> measured
        rm -rf "$out"
    done < layouts
done
awk -F'|' '
{ if (!($1 in least) || $3 < least[$1]) least[$1] = $3; foreseen[$1] = $2; name[$1] = $4; planned[$1] = $5; held[$1] = $6; gpu[$1] = $7; ranks[$1] = $8; if ($1 > n) n = $1 }
END {
    best = 1
    for (i = 1; i <= n; i++) if (least[i] < least[best]) best = i
    printf "%-34s %12s %12s %8s %14s %14s %8s %s\n", "layout, the choice first", "foreseen, s", "measured, s", "off", "foreseen, MiB", "measured, MiB", "off", "GPU beside the allocator, MiB a process"
    json = ""
    for (i = 1; i <= n; i++) {
        off = 100 * (foreseen[i] / least[i] - 1)
        if (off * off > worst * worst) worst = off
        far = held[i] > 0 ? 100 * (planned[i] / held[i] - 1) : 0
        if (far * far > farthest * farthest) farthest = far
        more = gpu[i] > 0 ? sprintf("%.0f", gpu[i] / ranks[i] - held[i]) : "-"
        printf "%-34s %12.4f %12.4f %+7.1f %% %14.1f %14.1f %+7.2f %% %s\n", name[i], foreseen[i], least[i], off, planned[i], held[i], far, more
        json = json sprintf("%s{\"layout\":\"%s\",\"foreseen_seconds\":%g,\"measured_seconds\":%g,\"off_percent\":%.1f,\"foreseen_mib\":%s,\"measured_mib\":%s}", i > 1 ? "," : "", name[i], foreseen[i], least[i], off, planned[i], held[i])
    }
    regret = 100 * (least[1] / least[best] - 1)
    printf "the choice: %s; the best: %s; regret %.1f %% (bar 5), time off by at most %.1f %% (bar 15), memory by %.2f %% (bar 2)\n", name[1], name[best], regret, worst, farthest
    printf "{\"chosen\":\"%s\",\"best\":\"%s\",\"regret_percent\":%.1f,\"worst_forecast_percent\":%.1f,\"worst_memory_percent\":%.2f,\"layouts\":[%s]}\n", name[1], name[best], regret, worst, farthest, json
    exit !(regret <= 5 && worst <= 15 && worst >= -15 && farthest <= 2 && farthest >= -2)
}' measured
