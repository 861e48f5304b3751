#!/bin/sh
# nebula-i lab --chaos: the same run without faults and with them. The sites end with one state root in both, every fault that was
# asked for came, and the figures are on the output as JSON. train.speed bounds a site's speed. A seed repeats its plan. Faults that
# need root or libfaketime are left out with a line where these are missing.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; tail -n 60 log >&2; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: chaos
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 100000, tokens: 128, max_len: 32, lr: 2e-3, log_every: 1000, save_every: 20, speed: 2000}
wan: {interval: 5, fragments: 1, rung: int4, tokens: 60000, round_seconds: 1}
sites: [{name: a}, {name: b}, {name: c}]
data:
  - {file: text}
  - {file: text, use: valid}
YAML
refused() { # MESSAGE OPTIONS...
    message=$1
    shift
    if "$nebula" lab job.yaml "$@" > log 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$message" log || fail "no message '$message' for $*"
}
refused "'flood' is not a fault; there are kill, cut" --chaos 2s --faults kill,flood
refused "goes with --chaos" --faults kill
refused "leave out --apart" --chaos 2s --apart

"$nebula" lab job.yaml --wan 100mbit,20ms --chaos 1500ms --faults kill,cut,one-way,slow-line,slow-site --json > json 2> log ||
    fail "the runs failed"
figure() { sed -n "s/^ *\"$1\": \([^,]*\),*$/\1/p" json; }
[ "$(figure one_root)" = true ] || fail "the sites' states differ"
awk "BEGIN { exit !($(figure goodput) > 0 && $(figure goodput) < 2) }" || fail "goodput $(figure goodput)"
[ "$(figure faults.count)" -ge 5 ] || fail "only $(figure faults.count) faults"
[ "$(figure goodput.short)" = true ] || fail "a figure from ten seconds is not marked"
for kind in kill cut one-way slow-line slow-site; do [ "$(figure $kind)" -ge 1 ] || fail "no fault of kind $kind"; done
[ "$(figure full-disk)" = 0 ] || fail "a fault that was not asked for"
grep -q "killed, as planned" log || fail "no site was killed"
grep -q "Tokens of all sites" out/chaos.html || fail "the page has no plot"
grep -q 'class="shade".*>kill [abc]<' out/chaos.html || fail "no shade of the page says what it is"
# 60,000 tokens of three sites at 2,000 a second take ten seconds; a busy machine takes longer.
awk "BEGIN { exit !($(figure seconds.calm) > 9) }" || fail "the sites were faster than train.speed: $(figure seconds.calm) s"
refused "is there already" --chaos 2s

# The same seed: the same kinds at the same sites for as long, as far as the shorter run goes; another seed: others.
plan() { sed -n 's/^   "\(site\|kind\|seconds\)": *//p' json; }
plan > first
again() { # SEED
    rm -rf out/calm out/chaos
    "$nebula" lab job.yaml --wan 100mbit,20ms --chaos 1500ms --faults kill,cut,one-way,slow-line,slow-site --seed $1 --json \
        wan.tokens=30000 > json 2> log || fail "the runs with seed $1 failed"
    plan > second
    least=$(wc -l < second)
    [ "$least" -le "$(wc -l < first)" ] || least=$(wc -l < first)
    [ "$least" -ge 6 ] || fail "too few faults to compare: $least lines"
    head -n $least first > first.part
    head -n $least second > second.part
}
again 1
cmp -s first.part second.part || fail "one seed gave two plans: $(diff first.part second.part)"
again 2
if cmp -s first.part second.part; then fail "two seeds gave one plan"; fi

# A standstill costs more than train.speed makes up for.
rm -rf out/calm out/chaos
sed 's/^sites: .*/sites: [{name: a}, {name: b}]/' job.yaml > two.yaml
"$nebula" lab two.yaml --wan 100mbit,20ms --chaos 4s --faults slow-site --json wan.tokens=48000 > json 2> log ||
    fail "the runs with a slow site failed"
awk "BEGIN { exit !($(figure goodput) < 0.94) }" || fail "a site that stands still loses nothing: goodput $(figure goodput)"

# What could not be made is in the plan and does not count.
rm -rf out/calm out/chaos
"$nebula" lab two.yaml --wan 100mbit,20ms --chaos 1s --faults slow-site --kill '2s+5s a; 2s+5s b' --json wan.tokens=20000 > json 2> log ||
    fail "the runs with killed sites failed"
grep -q "chaos: no slow-site: the site does not run" log || fail "a fault at a site that does not run is not told"
[ "$(grep -c '"happened": true' json)" = "$(figure faults.count)" ] || fail "a fault that did not happen counts"
grep -q '"happened": false' json || fail "the plan has only what happened"

# Faults that need something of the machine: alone, so that each comes.
for kind in full-disk clock; do
    rm -rf out/calm out/chaos
    if ! "$nebula" lab two.yaml --wan 100mbit,20ms --chaos 2s --faults $kind --json wan.tokens=24000 > json 2> log; then
        grep -q "faults of kind $kind:" log || fail "the runs with $kind failed"
        echo "chaos: skipped $kind: $(sed -n "s/.*faults of kind $kind: //p" log | head -n 1)"
        continue
    fi
    [ "$(figure $kind)" -ge 2 ] || fail "only $(figure $kind) faults of kind $kind"
    [ "$(figure one_root)" = true ] || fail "the sites' states differ after $kind"
done
[ "$(grep -c "its clock is off by" log)" -ge 2 ] || grep -q "faults of kind clock:" log || fail "no clock jumped"

# Sites that end with different states are a failure: here site b's status tells of another root than it has.
rm -rf out/calm out/chaos
"$nebula" lab two.yaml --wan 100mbit,20ms --chaos 2s --faults cut --json wan.tokens=12000 > json 2> log & pid=$!
while kill -0 $pid 2> nothing; do
    for status in out/chaos/b/status.json out/chaos/b/site/run/status.json; do
        if sed 's/\("root": *"\)[0-9a-f]\{8\}/\100000000/g' $status > other 2> nothing && [ -s other ]; then cp other $status; fi
    done
    sleep 0.02
done
if wait $pid; then fail "two roots, and the command says that all is well"; fi
[ "$(figure one_root)" = false ] || fail "two roots are taken for one"
grep -q "do not end with one state root" log || fail "no message about the roots"

# A laboratory that is killed leaves no disk behind that would stop the next one.
rm -rf out/calm out/chaos
"$nebula" lab two.yaml --wan 100mbit,20ms --chaos 2s --faults full-disk wan.tokens=1000000 > log 2>&1 & pid=$!
for i in $(seq 600); do if grep -q "^a | .*step\|faults of kind" log; then break; fi; sleep 0.1; done
kill -9 $pid 2> nothing || true
wait $pid 2> nothing || true
for i in $(seq 100); do if rm -rf out/calm out/chaos 2> nothing; then break; fi; sleep 0.1; done # the sites end by themselves
if grep -q "$dir/out" /proc/mounts; then fail "a killed laboratory left its disks mounted"; fi
[ ! -e out/calm ] || fail "the folder of a killed laboratory cannot be removed: $(cat nothing)"
