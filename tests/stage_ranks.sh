#!/bin/bash
# A stage that is a cluster (strategy pipeline, sites[].parallel): copies of a stage, ranks that share its layers, both, each site
# with a layout of its own, one without the text. The model is that of one process to 1e-5, and a layout repeats itself bit by bit: also when ranks are killed or
# stopped and the line is cut. A site that was asked to stop goes on under another layout. What does not fit is refused.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v mpirun > /dev/null || [ ! -e "$(dirname "$nebula")/libnebula-i-mpi.so" ]; then
    echo "stage_ranks: skipped, there is no Open MPI (apt install libopenmpi-dev openmpi-bin, then build again)"
    exit 0
fi
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
lab=
trap 'release_ports; kill $lab $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log */*/ranks/*.log; do echo "== $f" >&2; tail -n 8 "$f" >&2; done; exit 1; }
cat "$top/LICENSE" > text # a text that stays as it is: how far two orders of adding up come apart depends on it
tail -c 3000 text > valid
cat > one.yaml <<'YAML'
name: stages
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 4, heads: 2, dropout: 0.1, tied: no}
train: {steps: 16, tokens: 128, micro: 5, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 1000, threads: 1, save_every: 4, eval_every: 8,
        keep: 8, schedule: constant, warmup: 0}
data: [{file: text}, {file: valid, use: valid}]
YAML
{ cat one.yaml; echo "strategy: pipeline"; echo "wan: {bits: 32, depth: 3}"; echo "parallel: {timeout: 6s}"; echo "sites: [{name: a}, {name: b}]"; } > two.yaml
sed 's/{name: b}/{name: b}, {name: c}/' two.yaml > three.yaml

run() { # OUT JOB WORD…: all sites of a job on this machine
    timeout 300 "$nebula" lab $2.yaml out=$1 --mode relay --port $(free_port) --wan 100mbit,4ms "${@:3}" > $1.log 2>&1 || fail "the laboratory of $1 ended with $?"
}
same() { cmp -s $1/model.safetensors $2/model.safetensors || fail "the models of $1 and $2 differ"; }
values() { # OUT: all values of its model, one a line
    od -An -v -t f4 -w4 -j $((8 + $(od -An -t u8 -N 8 $1/model.safetensors))) $1/model.safetensors
}
close() { # value by value, to 1e-5
    paste <(values $1) <(values $2) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { print most; exit !(NR > 1000 && most < 1e-5) }' > distance.log ||
        fail "the models of $1 and $2 differ by $(cat distance.log)"
}
held() { grep -ao "held out at step 16: loss [0-9.]*" $1.log | tail -1; }
near_held() { [ -n "$(held $1)" ] && [ "$(held $1)" = "$(held $2)" ] || fail "held out: $(held $1), in stages $(held $2)"; }

# ---- the model of one process
"$nebula" train one.yaml out=one > one.log 2>&1 || fail "one process"
mixed="sites[0].parallel.data=2 sites[0].parallel.zero=1 sites[1].parallel.tensor=2"
run many three 'sites[1].parallel.data=2' 'sites[1].parallel.tensor=2' 'sites[2].parallel.data=3'; close one many/a; near_held one many
sed -e 's/^tokenizer: .*/tokenizer: {file: cache\/tokenizer.model}/' \
    -e 's/^data: .*/data: [{file: text, site: a}, {file: text, site: c}, {file: valid, use: valid, site: a}, {file: valid, use: valid, site: c}]/' three.yaml > bare.yaml
run bare bare 'sites[1].parallel.data=2' 'sites[1].parallel.tensor=2' 'sites[2].parallel.data=3'; same many/a bare/a; near_held one bare
grep -aqr "site 'b' has no text and needs none" bare.log bare/b || fail "the ranks of site b have the text"
tied="model.tied=yes peft.method=lora peft.train=embed.token.*"
"$nebula" train one.yaml out=tied $tied > tied.log 2>&1 || fail "one process, tied"
run ring two $tied 'sites[0].parallel.tensor=2' 'sites[1].parallel.data=2'; close tied ring/a

# ---- ranks that are lost
eight="$mixed wan.bits=8 train.steps=40"
run calm two $eight
"$nebula" lab two.yaml out=hurt --mode relay --port $(free_port) --wan 100mbit,4ms $eight --schedule '3s+2s down' > hurt.log 2>&1 & lab=$!
here() { for p; do [ "$(readlink /proc/$p/cwd)" != "$dir" ] || echo $p; done; } # of these processes, those of this test
ranks_of() { # SITE RANK
    for p in $(here $(pgrep -f "train .*--site $1")); do
        tr '\0' '\n' < /proc/$p/environ 2> /dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$2" && echo $p
    done
}
newest() { ls hurt/$1/checkpoints 2> /dev/null | sort | tail -1; }
wait_for() { until eval "$1"; do kill -0 $lab 2> /dev/null || fail "the run ended before: $2"; sleep 0.05; done; }
for how in 9:a:1 9:b:0 STOP:b:1; do # each when its site has a new checkpoint, and before the last one
    site=${how#*:}; site=${site%:*}
    before=$(newest $site)
    wait_for '[ "$(newest $site)" != "$before" ] && [ -n "$(ranks_of $site ${how##*:})" ]' "a checkpoint of site $site"
    kill -${how%%:*} $(ranks_of $site ${how##*:}) 2> /dev/null || true
    lines=$(grep -ac "a rank was lost" hurt.log || true)
    wait_for '[ "$(grep -ac "a rank was lost" hurt.log)" -gt "$lines" ]' "the loss of a rank of site $site"
done
wait $lab || fail "the run with lost ranks ended with $?"
same calm/a hurt/a

# ---- a checkpoint goes on under another layout; the first part ends by a request to stop, which may come in a step
for s in a b; do
    "$nebula" site init $s > /dev/null 2>&1
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a > /dev/null 2>&1
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
part() { # WORD…: both sites; the second is started first
    for s in b a; do
        (exec "$nebula" train two.yaml --site $s out=part-$s "$@" >> part-$s.log 2>&1) & eval "pid_$s=$!"
    done
}
part $mixed
until [ "$(ls part-a/checkpoints part-b/checkpoints 2> /dev/null | wc -l)" -ge 5 ]; do
    kill -0 $pid_a 2> /dev/null && kill -0 $pid_b 2> /dev/null || fail "the first part ended by itself"
    sleep 0.02
done
kill -TERM $pid_a $pid_b
wait $pid_a || true; wait $pid_b || true
grep -aq "the same command goes on from" part-a.log || fail "site a did not stop in order"
part 'sites[0].parallel.tensor=2'
wait $pid_a || fail "the second part, site a"; wait $pid_b || fail "the second part, site b"
grep -aq "going on from step" part-a.log && grep -aq "going on from step" part-b.log || fail "the second part began anew"
close one part-a

# ---- what does not fit
refused() { # in the laboratory: a site that has read the job waits until the other one knows why it cannot begin
    rm -rf bad
    if "$nebula" lab two.yaml out=bad --mode relay --port $(free_port) "${@:2}" > bad.log 2>&1; then fail "began with ${*:2}"; fi
    grep -aq "$1" bad.log || fail "no '$1' with ${*:2}"
}
refused "one stage of the model between sites" 'sites[1].parallel.pipeline=2'
refused "zero 0 or 1" 'sites[1].parallel.data=2' 'sites[1].parallel.zero=2' train.micro=4
refused "whole rows cross" 'sites[1].parallel.tensor=2' 'sites[1].parallel.sequence=yes'
refused "both ends of the model" 'sites[0].parallel.data=2' model.tied=yes
echo "stage of several ranks: ok"
