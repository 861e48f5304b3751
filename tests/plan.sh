#!/bin/bash
# The planner: a job's layouts with memory, time, bytes and reasons; the memory that trainings then take, to the byte; parallel:
# auto, which takes the best; foreseen beside measured; refusals.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }
has() { grep -aq -- "$2" "$1" || fail "$1 lacks: $2"; }

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: planned
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 4, heads: 4}
train: {steps: 30, tokens: 256, micro: 4, max_len: 64, threads: 1, log_every: 30}
data:
  - {file: text}
YAML

# ---- hardware that is not here: no process is started, and the words say what it is
"$nebula" plan job.yaml out=far --scale 4xh200 > far.log 2>&1 || fail "--scale"
has far.log "stated constants"; has far.log "fell out"
"$nebula" plan job.yaml out=far --scale 4xh200 --json > far.json 2> far.log || fail "--scale --json"
has far.json '^{"layouts":\[{"data":[0-9]*,"tensor":[0-9]*,"pipeline":[0-9]*,"zero":[0-9],"memory_bytes":[0-9]*,"step_seconds":[0-9.e-]*,"wan_bytes":0,"fits":true'
has far.json '"rejected":\[{"data"'; has far.json '"stated":true'
"$nebula" plan job.yaml out=far --scale 1xh200 train.threads=0 > far.log 2>&1 || fail "--scale of one device"
has far.log "best: one process"; ! grep -q "was not measured" far.log || fail "stated hardware is said not to be measured"
# ---- a model that is larger than this machine: it is planned, and its rehearsals take next to nothing of the memory
sed 's/^model:.*/model: {family: gpt2, hidden: 8192, layers: 40, heads: 64, tied: no}/' job.yaml > large.yaml
"$nebula" plan large.yaml out=far --scale 1xh200 --json > large.json 2> large.log &
plan=$! most=0
while now=$(awk '/VmHWM/ { print $2 }' "/proc/$plan/status" 2> /dev/null) && [ -n "$now" ]; do most=$now; sleep 0.02; done
wait $plan || fail "a plan of a model that is larger than this machine"
[ "$most" -lt 500000 ] || fail "a plan took $most kB"
has large.json '"offload":"moments"'; has large.json '"parameters":3222'
(cat large.yaml; echo "sites: [{name: a}, {name: b}]") > large-sites.yaml
"$nebula" plan large-sites.yaml out=far --scale 1xh200 --wan 1gbit,10ms > large.log 2>&1 || fail "a pipeline of a large model"
has large.log "strategy replica cannot be: the model needs"; has large.log "site a: its stage needs .* which has 134468"
"$nebula" plan large-sites.yaml out=far --scale 4xh200 --wan 1gbit,10ms --json strategy=pipeline > large.json 2> large.log || fail "a pipeline of clusters"
has large.json '"tensor":4,"pipeline":2,"zero":0,.*"cut":"20 + 20","bits":8'
# ---- several sites: the line, its cost, a pipeline between them, and privacy
cat > sites.yaml <<YAML
$(cat job.yaml)
sites: [{name: a}, {name: b}]
YAML
"$nebula" plan sites.yaml out=far --scale 1xh100 --wan 100mbit,50ms --price 0.08/GB > sites.log 2>&1 || fail "sites"
has sites.log "line of 100 Mbit/s and 50 ms"; has sites.log "costs"; has sites.log "rung"; has sites.log "eplica"
"$nebula" plan sites.yaml out=far --scale 1xh100 wan.rung=int8 privacy.unit=site privacy.epsilon=4 > sites.log 2>&1 || fail "privacy"
has sites.log "unit site is unusable here"

# ---- what is refused before its memory is known has no verdict about it
"$nebula" plan sites.yaml out=far --scale 1xh100 --wan 100mbit,50ms 'peft.train=nosuch.*' > wrong.log 2>&1 || fail "a plan of wrong patterns"
has wrong.log "no parameter"; ! grep -q "strategy replica" wrong.log || fail "a verdict without a figure"
"$nebula" plan sites.yaml out=far --scale 1xh100 --wan 100mbit,50ms 'peft.train=nosuch.*' --json > wrong.json 2> wrong.log || fail "wrong patterns --json"
! grep -q "replica_fits" wrong.json || fail "replica_fits without a figure"
"$nebula" plan sites.yaml out=far --scale 1xh100 'peft.train=nosuch.*' train.memory=1GiB > wrong.log 2>&1 && fail "a limit and wrong patterns"
has wrong.log "no parameter"

# ---- what a relay sends is not planned, which is said
sed 's/^task:.*/task: rtd/; s/^model:.*/model: {hidden: 64, layers: 2, heads: 4}\ngenerator: {hidden: 32, layers: 1, heads: 2}/' job.yaml > relay.yaml
echo 'sites: [{name: a, role: generator}, {name: b, role: discriminator}]' >> relay.yaml
"$nebula" plan relay.yaml out=far --site b --scale 1xh100 > relay.log 2>&1 || fail "a relay"
has relay.log "nothing is planned for what strategy relay sends"

# ---- refusals
refused() { "$nebula" "${@:2}" > refused.log 2>&1 && fail "not refused: ${*:2}"; has refused.log "$1"; }
refused "there are constants for" plan job.yaml --scale 4xabacus
refused "100mbit,50ms" plan job.yaml --wan ,
for price in much inf/GB nan/GB 0.08 -1/GB; do refused "such as 0.08/GB" plan job.yaml --price "$price"; done
refused "leave them out" train job.yaml out=no parallel.auto=yes parallel.data=2
refused "found no layout that fits" train job.yaml out=no parallel=auto train.memory=1MiB parallel.launcher=mpirun

# ---- strategy: auto, by the memory that the job allows its sites
grep -v tied job.yaml | sed 's/heads: 4}/heads: 4, tied: no}/' > apart.yaml
echo 'sites: [{name: a}, {name: b, train: {memory: 1MiB}}]' >> apart.yaml
refused "has no folder" train apart.yaml --site a out=no # both come as far as their keys, with the same choice
has refused.log "strategy: auto takes pipeline: .* site b allows 1 MiB"
refused "has no folder" train apart.yaml --site a out=no 'sites[1].train.memory=1GiB'
has refused.log "strategy: auto takes replica"
# … or, where the job allows them all there is, by what this machine has
refused "has no folder" train large-sites.yaml --site a out=no
has refused.log "strategy: auto takes pipeline: .*the model is too large"
refused "no parameter of the model matches" train sites.yaml --site a out=no 'peft.train=nosuch.*'
! grep -q "takes pipeline" refused.log || fail "a refused model is taken for one that is too large"
mkdir -p begun/checkpoints # a run that has begun as a replica is none
refused "has no folder" train large-sites.yaml --site a out=begun
! grep -q "takes pipeline" refused.log || fail "a run that has begun changes its strategy"
refused "has no folder" train apart.yaml --site a out=begun # nor do limits change it
! grep -q "strategy: auto" refused.log || fail "limits change the strategy of a run that has begun"
mkdir -p begun-cut; touch begun-cut/stream.run # … and a pipeline stays one, with what it refuses
refused "the sites of a pipeline have no common clock" train apart.yaml --site a out=begun-cut 'sites[1].train.memory=1GiB' train.minutes=2
refused "too long" train apart.yaml --site a out="$(printf 'folder/%.0s' {1..600})"
"$nebula" plan apart.yaml out=no --ranks 1 --wan 100mbit,50ms --json > apart.json 2> apart.log || fail "a plan for two strategies"
has apart.json '"replica_fits":false'; has apart.json '"stage_bytes":\[[0-9]*,[0-9]*\]'
has apart.json '"pipeline":2,.*"fits":false.*"strategy":"pipeline","cut":"3 + 1","bits":8'; has apart.json '"reason":"site b: its stage needs'

# ---- one process here
"$nebula" plan job.yaml out=one --ranks 1 --json > one.json 2> one.log || fail "one process"
memory() { # of a layout without sequence
    grep -ao "\"data\":$1,\"tensor\":$2,\"pipeline\":$3,\"zero\":$4,[^}]*\"sequence\":false" $5 | head -1 | sed 's/.*memory_bytes":\([0-9]*\).*/\1/'
}
held() { grep -ah "this process holds" "$@" | sed 's/.*holds \([0-9]*\) .*/\1/' | sort -n | tail -1; }
# sites with layouts of their own: both look at both of them, and come to the same
sed 's/{name: b, .*/{name: b, parallel: {tensor: 2}}]/' apart.yaml > layouts.yaml
for site in a b; do
    refused "has no folder" train layouts.yaml --site $site out=no train.memory=$(($(memory 1 1 1 0 one.json) - 1000))
    has refused.log "strategy: auto takes pipeline: .* site a allows"
    sed -n 's/.*strategy: auto/strategy: auto/p' refused.log > strategy.$site
done
cmp -s strategy.a strategy.b || fail "two sites choose differently: $(cat strategy.a strategy.b)"
NEBULA_LOG=debug "$nebula" train job.yaml out=one > one.log 2>&1 || fail "training in one process"
[ "$(memory 1 1 1 0 one.json)" = "$(held one.log)" ] || fail "foreseen $(memory 1 1 1 0 one.json), held $(held one.log)"
has one.log "one process: a step: foreseen"; has one.log "memory: foreseen .*(+0.0 %)"
"$nebula" report one --to one.html > report.log 2>&1 && has one.html "Foreseen and measured"
"$nebula" plan job.yaml out=one --ranks 1 > again.log 2>&1; grep -q measuring again.log && fail "measured again what was kept"

# ---- a pipeline between sites: memory to the byte, what crosses within 5 %, and both beside what was measured
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
sed 's/heads: 4}/heads: 4, tied: no}/' job.yaml > line.yaml
echo 'strategy: pipeline' >> line.yaml
echo 'sites: [{name: a}, {name: b}]' >> line.yaml
site() { # FILE SITE KEY: of the first row
    python3 -c 'import json, sys
row = json.load(open(sys.argv[1]))["layouts"][0]
print(next(s[sys.argv[3]] for s in row["sites"] if s["name"] == sys.argv[2]))' "$@"
}
as_planned() { # NAME words…
    local name=$1; shift
    for s in a b; do
        "$nebula" plan line.yaml --site $s out=$name/$s --ranks 1 --wan 100mbit,4ms --price 0.08/GB --json "$@" > $name-$s.json 2> $name.log ||
            fail "a plan of $name"
    done
    cmp -s <(site $name-a.json b wan_bytes) <(site $name-b.json b wan_bytes) || fail "$name: the sites plan different bytes"
    NEBULA_LOG=debug timeout 200 "$nebula" lab line.yaml out=$name --mode relay --port $(free_port) --wan 100mbit,4ms "$@" > $name.log 2>&1 ||
        fail "the laboratory of $name"
    for s in a b; do
        foreseen=$(site $name-$s.json $s memory_bytes)
        grep -aq "^$s |.*this process holds $foreseen bytes" $name.log || fail "$name: the stage of $s was foreseen with $foreseen bytes"
        has $name.log "$s | a stage, int.*: a step: foreseen"
        awk -v site=$s '$1 == site && /over the WAN/ { n++; gsub(/[(+%)]/, ""); if ($NF < -5 || $NF > 5) bad = 1 } END { exit bad || !n }' $name.log ||
            fail "$name: the bytes of $s"
    done
}
as_planned line2 wan.depth=2 wan.bits=8
as_planned line4 wan.depth=4 wan.bits=4 'sites[0].layers=3' 'sites[1].layers=1'
as_planned ring wan.depth=2 wan.bits=8 model.tied=yes
has ring-a.json '"cut":"1 + 2 + 1"'
"$nebula" plan line.yaml out=no --ranks 1 'sites[0].layers=1' 'sites[1].layers=1' --json > sum.json 2> sum.log || fail "layers that are not the model's"
has sum.json '"layouts":\[\],.*2 layers together (sites\[\].layers), but the model has 4'
"$nebula" plan line.yaml out=no --ranks 1 'sites[0].layers=1' 'sites[1].layers=1' > sum.log 2>&1; has sum.log "0.3 million trained parameters"
# the layout of a stage is that of its own layers
"$nebula" plan line.yaml --site a out=no --ranks 2 'sites[0].parallel.auto=yes' wan.bits=8 --top 20 --json > stage.json 2> stage.log || fail "parallel: auto of a stage"
has stage.json '"tensor":2,"pipeline":2'; has stage.json '"data":2,"tensor":1,"pipeline":2,"zero":1'
if ! command -v mpirun > /dev/null || [ ! -e "$(dirname "$nebula")/libnebula-i-mpi.so" ]; then
    echo "plan: ranks skipped, there is no Open MPI"
    exit 0
fi
# ---- two processes: measured together, and the memory of each layout
"$nebula" plan job.yaml out=two --ranks 2 --top 99 --json > two.json 2> two.log || fail "two processes"
has two.json '"stated":false'
for layout in "2 1 1 0" "2 1 1 3" "1 2 1 0" "1 1 2 0"; do
    set -- $layout
    out="two$1$2$3$4"
    NEBULA_LOG=debug "$nebula" train job.yaml out=$out parallel.data=$1 parallel.tensor=$2 parallel.pipeline=$3 parallel.zero=$4 \
        train.steps=10 > $out.log 2>&1 || fail "layout $layout"
    foreseen=$(memory $layout two.json) real=$(held $out.log $out/ranks/*.log)
    [ -n "$foreseen" ] && [ "$foreseen" = "$real" ] || fail "layout $layout: foreseen $foreseen, held $real"
done
[ "$(nproc)" -ge 2 ] || { echo "plan: ok, parallel: auto skipped on one core"; exit 0; }
# ---- auto: what does not fit one process goes to two, and their ranks hear of it
least=$(memory 1 2 1 0 two.json)
taskset -c "$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); i++) print i }' | head -2 | paste -sd,)" \
    "$nebula" train job.yaml out=auto parallel=auto train.memory=$((least + 1000)) > auto.log 2>&1 || fail "parallel: auto"
has auto.log "parallel: auto takes tensor 2"; has auto.log "tensor 2.*: a step: foreseen"
[ -e auto/model.safetensors ] || fail "parallel: auto left no model"
echo "plan: ok"
