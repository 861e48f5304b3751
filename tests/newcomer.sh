#!/bin/bash
# Does what somebody does who has just installed the program, with nothing but what it prints: a new folder, the laboratory, two
# sites that train, one of them killed and started again, a report, an export, a second run with the same keys, a witness, sites
# that join from afar, a script as a site. Every command that the program proposes is taken from its output and run as it is.
#     tests/newcomer.sh NEBULA-I LIBNEBULA-I.SO
set -eu
. "$(dirname "$0")/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty
mkdir "$dir/bin"
ln -s "$(realpath "$1")" "$dir/bin/nebula-i"
export PATH=$dir/bin:$PATH PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$(cd "$(dirname "$0")/../python" && pwd) NEBULA_I_LIBRARY=$(realpath "$2")
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in $(ls -t "$dir"/*.log | head -n 3); do echo "== $f" >&2; tail -n 25 "$f" >&2; done; exit 1; }
# The commands that an output proposes: on lines of their own, indented (in the laboratory behind the site's name), or `quoted`.
proposed() {
    sed -nE 's/^([a-z0-9-]+ +\| )? {2,}((cd .* && |[A-Z_]+=[^ ]+ |echo [^|]*\| )*(nebula-i|python3) .*)$/\2/p' "$1" | sed 's/ *#.*//'
    { grep -o '`nebula-i [^`]*`' "$1" || true; } | tr -d '`'
}
one() { # LOG PATTERN: the only proposed command with this in it
    local found
    found=$(proposed "$1" | grep -e "$2") || fail "$1 does not propose '$2'"
    [ "$(echo "$found" | wc -l)" = 1 ] || fail "$1 proposes '$2' more than once: $found"
    echo "$found"
}
run_proposed() { # LOG NUMBER: runs every proposed command; there are so many
    local command
    proposed "$1" | sort -u > "$dir/next"
    [ "$(wc -l < "$dir/next")" = "$2" ] || fail "$1 does not propose $2 commands but these: $(cat "$dir/next")"
    while read -r command; do
        eval "$command" > "$dir/command.log" 2>&1 < /dev/null || fail "proposed by $1: $command"
    done < "$dir/next"
}
same() { cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

# ---- new, lab: as it stands --------------------------------------------------------------------------------------------

nebula-i new first --port $(free_port 2) > new.log || fail "new"
[ "$(proposed new.log | wc -l)" = 3 ] || fail "new proposes: $(proposed new.log)"
if nebula-i new first > again.log 2>&1; then fail "new wrote into a folder that was not empty"; fi
grep -q "first is not empty" again.log || fail "no message about the folder"
if nebula-i new "it's new" --text nothing > again.log 2>&1; then fail "a text that is not there was taken"; fi
nebula-i new "it's new" > quoted.log || fail "a folder cannot be made after a failure"
eval "($(one quoted.log ' lab ' | sed 's/ nebula-i lab / test -s /'))" || fail "the proposed command does not quote the folder's name"
began=$SECONDS
eval "($(one new.log ' lab '))" > lab.log 2>&1 || fail "the lab of a new folder"
took=$((SECONDS - began))
same first/out/a/model.safetensors first/out/b/model.safetensors
grep -q "Where every second went" first/out/report.html || fail "the laboratory made no report"
losses=$(sed -n 's/^a | .* loss \([0-9.]*\)  lr .*/\1/p' lab.log)
awk -v first="$(echo "$losses" | head -1)" -v last="$(echo "$losses" | tail -1)" 'BEGIN { exit !(first > 0 && last < 0.95 * first) }' ||
    fail "it learned nothing: losses $losses"
cd first
run_proposed ../lab.log 9 # of each site: report, eval, generate, export; of the laboratory: status
[ -s out/a/huggingface/model.safetensors ] || fail "no exported model"

# ---- train at two sites, kill, restart, report, export --------------------------------------------------------------------

for s in a b; do one ../new.log "--site $s " > command-$s; done
eval "$(cat command-a)" > ../a.log 2>&1 & first=$!
eval "exec $(cat command-b)" > ../b.log 2>&1 & second=$!
for i in $(seq 1200); do ls out-b/checkpoints/*.neb > /dev/null 2>&1 && break; sleep 0.1; done
kill -9 $second
wait $second 2> /dev/null && fail "site b had ended before it was killed"
eval "$(cat command-b)" > ../b2.log 2>&1 & second=$!
wait $first || fail "site a"
wait $second || fail "site b, started again"
grep -q "going on from step [1-9]" ../b2.log || fail "site b did not go on from its checkpoint"
same out-a/model.safetensors out-b/model.safetensors
for s in a b2; do run_proposed ../$s.log 4; done
nebula-i status out-a > ../status.log || fail "status"
grep -q "^b " ../status.log || fail "the status of a does not show b"
nebula-i report out-a out-b > ../report.log && grep -q "</html>" report.html || fail "report"
nebula-i export out-a hf-a > ../export.log 2>&1 && [ -s hf-a/model.safetensors ] || fail "export"

# ---- another run with the same keys; the first one stays ------------------------------------------------------------------

both() { # LOG WORDS…: both sites to their end
    local log=$1 s pids=
    shift
    for s in a b; do
        eval "$(sed "s/out=out-/out=$log-/" command-$s)" '"$@"' > ../$log-$s.log 2>&1 & pids="$pids $!"
    done
    for s in $pids; do wait $s || fail "$log: a site"; done
    same $log-a/model.safetensors $log-b/model.safetensors
}
key=$(sha256sum a/site.key)
if nebula-i train job.yaml --site a out=out-a name=second train.steps=30 > ../wrong.log 2>&1; then fail "a checkpoint of another run was taken"; fi
grep -q "the checkpoint is of another run" ../wrong.log || fail "no message about the checkpoint"
both second name=second train.steps=30
[ "$key" = "$(sha256sum a/site.key)" ] || fail "the key has changed"
[ "$(nebula-i site runs a | tr '\n' ' ')" = "first second " ] || fail "runs in the folder: $(nebula-i site runs a)"
! cmp -s out-a/model.safetensors second-a/model.safetensors || fail "the second run gave the first one's model"
both out > /dev/null # the first one, ended: it says so and writes the same model
grep -q "this run has ended" ../out-a.log || fail "the first run does not say that it has ended"
cd ..

# ---- without a folder, and joining from afar ------------------------------------------------------------------------------

for s in east west; do # two machines
    mkdir $s
    cp -r first/text $s
    sed "s/{name: a}/{name: east}/; s/{name: b}/{name: west}/" first/job.yaml > $s/job.yaml
    (cd $s && if nebula-i train job.yaml --site $s train.steps=30 > ../$s-none.log 2>&1; then fail "a site without a folder began"; fi)
    [ ! -e $s/out ] || fail "a site without a folder tokenised its text first"
    (cd $s && eval "$(one ../$s-none.log 'site init')" > identity 2> ../$s-init.log) || fail "site init at $s"
    (one $s-init.log 'roster add' | grep -qF "$(cat $s/identity)") || fail "site init does not show what to do with the identity"
    eval "$(one $s-init.log 'roster add' | sed "s/HOST:PORT/127.0.0.1:$(free_port)/")" || fail "roster add of $s"
done
nebula-i roster seal draft roster --operator east/east > seal.log 2>&1 || fail "roster seal"
one seal.log 'roster join' > /dev/null
for s in east west; do
    cp roster $s
    (cd $s && eval "$(one ../$s-none.log 'roster join' | sed 's/ROSTER/roster/')") || fail "roster join at $s"
done
(cd east && exec nebula-i train job.yaml --site east train.steps=30) > east.log 2>&1 & first=$!
(cd west && exec nebula-i train job.yaml --site west train.steps=30) > west.log 2>&1 & second=$!
wait $first || fail "site east"
wait $second || fail "site west"
same east/out/model.safetensors west/out/model.safetensors

# ---- a witness in the laboratory, the other tasks -------------------------------------------------------------------------

nebula-i new voted --witness w > witness-new.log || fail "new --witness"
(cd voted && nebula-i lab job.yaml train.steps=40) > witness.log 2>&1 || fail "a witness in the laboratory"
grep -q "^w | .*this site is a witness" witness.log || fail "w is not a witness"
same voted/out/a/model.safetensors voted/out/w/model.safetensors
for task in mlm translate; do
    nebula-i new $task --task $task > $task-new.log || fail "new --task $task"
    (cd $task && nebula-i lab job.yaml train.steps=20) > $task.log 2>&1 || fail "the lab of task $task"
    same $task/out/a/model.safetensors $task/out/b/model.safetensors
    (cd $task && run_proposed ../$task.log $([ $task = translate ] && echo 9 || echo 7)) # of each site: report, eval, export; translate: a translation, too
done
seq 500 | sed 's/.*/line & of some text of my own/' > own.txt
nebula-i new own --text own.txt --sites x,y,z > own.log || fail "new --text"
[ "$(cat own/text/train.txt own/text/valid.txt | sort | sha256sum)" = "$(sort own.txt | sha256sum)" ] || fail "the text is not the user's"

# ---- scripts as sites -----------------------------------------------------------------------------------------------------

nebula-i new script --task torch > script-new.log || fail "new --task torch"
done="newcomer: ok, the first laboratory took $took s"
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2> /dev/null; then echo "$done; no python3, so no scripts"; exit 0; fi
cat > script/plain.py <<'PY'
import array
import os
import nebula_i
with nebula_i.Run(settings={"wan.tokens": 3000}) as run:
    w = array.array("f", [0.0] * 64)
    run.attach({"w": w})
    more = True
    while more:
        for i in range(64):
            w[i] += 0.1 * (i - w[i])  # towards 0, 1, 2, …
        more = run.step(tokens=10)
open(os.environ["NEBULA_OUT"] + "/values", "w").write(repr(list(w)))
PY
(cd script && nebula-i lab job.yaml -- python3 plain.py) > script.log 2>&1 || fail "a script in the laboratory"
same script/out/a/values script/out/b/values
grep -q "^b  *ended " script.log || fail "no table of the scripts' sites"
torch=${NEBULA_TORCH_PYTHON:-python3}
if "$torch" -c 'import torch' 2> /dev/null; then
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$(command -v "$torch")" > bin/python3 # not a link: an environment is known by its path
    chmod +x bin/python3
    eval "($(one script-new.log ' lab ' | sed 's/lab job.yaml/& out=torch wan.tokens=60000/'))" > torch.log 2>&1 || fail "train.py"
    [ "$(grep -c 'the model is in' torch.log)" = 2 ] || fail "train.py wrote no models"
    done="$done; with PyTorch"
fi
echo "$done"
