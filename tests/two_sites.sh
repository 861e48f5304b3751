#!/bin/bash
# Two sites train one model from one job file over loopback, each with one command. The run ends at its token target with the
# same state root at both. Jobs that do not fit together are refused before the first step.
set -eu
umask 022
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md "$top"/src/tensor/*.[ch] > text
for s in a b; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
cat > job.yaml <<'YAML'
name: two
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: 100000, minutes: 2, tokens: 256, max_len: 64, lr: 2e-3, log_every: 1000, threads: 1, save_every: 100000}
wan: {interval: 10, fragments: 1, archive: yes, tokens: 40000, round_seconds: 5}
sites:
  - {name: a, folder: a}
  - {name: b, folder: b}
data:
  - {file: text}
YAML
if "$nebula" train job.yaml --site c out=out-c > c.log 2>&1; then fail "a site that is not in the job began"; fi
grep -q "no site 'c'" c.log || fail "no message about site c"

# A difference is found before the first step. Both sites name the other one and say what to do.
both() { # WORDS-OF-A WORDS-OF-B: both sites must refuse to begin
    "$nebula" train job.yaml --site a out=bad-a $1 > a.log 2>&1 & first=$!
    "$nebula" train job.yaml --site b out=bad-b $2 > b.log 2>&1 & second=$!
    if wait $first; then fail "site a began with '$1', '$2'"; fi
    if wait $second; then fail "site b began with '$1', '$2'"; fi
    if grep -q "step 1" a.log b.log; then fail "a site made steps"; fi
}
both train.lr=3e-3 train.log_every=1
grep -q "site 'b' runs another job: train.lr is '2e-3' there and '3e-3' here; use the same job file" a.log || fail "site a does not say how the jobs differ"
grep -q "site 'a' runs another job: train.lr is '3e-3' there" b.log || fail "site b does not say how the jobs differ"
both train.log_every=1 'data[0].file=lost'
grep -qi "site 'b' cannot start: corpus lost: no such file" a.log || fail "site a does not hear what b lacks"
grep -qi "corpus lost: no such file" b.log || fail "site b does not say what it lacks"
if "$nebula" train job.yaml --site a out=bad-a 'sites[0].folder=b' > a.log 2>&1; then fail "site a began with the folder of b"; fi
if "$nebula" train job.yaml --site b out=bad-b 'sites[0].name=c' > b.log 2>&1; then fail "site b began with a job that its roster does not fit"; fi
grep -q "folder 'b' belongs to site 'b', but the job gives it to site 'a'" a.log || fail "no message about the folder of another site"
grep -q "site 'c' of the job is not in the roster that 'b' joined" b.log || fail "no message about roster and job"

"$nebula" train job.yaml --site a out=out-a > a.log 2>&1 & first=$!
# A site that waits says for whom and for what: in the status of its folder and of its OUT at once, after three seconds as a line.
shown() { "$nebula" status $1 2> /dev/null | grep -q "^a, for .* s: waiting for b (not connected): a quorum of the sites must be connected"; }
for i in $(seq 1800); do
    shown a && shown out-a && grep -q "waiting for b (not connected)" a.log && break
    [ $i -lt 1800 ] && sleep 0.1 || fail "site a waits in silence: $("$nebula" status a; "$nebula" status out-a)"
done
"$nebula" train job.yaml --site b out=out-b > b.log 2>&1 & second=$!
wait $first || fail "site a failed"
wait $second || fail "site b failed"
root() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' $1.log; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] || fail "state roots: '$(root a)' and '$(root b)'"
cmp -s out-a/model.safetensors out-b/model.safetensors || fail "the models differ"
grep -q '"state": "ended"' a/run/status.json && grep -q "\"root\": \"$(root a)" a/run/status.json || fail "the status file of a lacks the end or the root"
grep -q '"others": {' a/run/status.json && grep -q 'sending .*-bit updates .* it is the cheapest' a.log || fail "a does not have the status of b, or its log lacks the reason for the rung"
# Both files have one shape and hold the other site. The keys of the version before stay for one release.
for d in a/run out-a; do
    f=$d/status.json
    grep -q '^ "self": "a"' $f && grep -q '^   "name": "b"' $f && grep -q '^   "loss": [1-9]' $f && grep -q '^ "log": {' $f ||
        fail "$f has another shape"
    "$nebula" status ${d%/run} | grep -q '^b  ' || fail "nebula-i status does not show b from $f"
done
open=$(find a b out-a out-b -perm /077)
[ -z "$open" ] || fail "other users may read what the run wrote: $open"
"$nebula" site replay b > replay.log || fail "the replay failed"
grep -q "state root $(root a)" replay.log || fail "replay from the beginning gives another root: $(cat replay.log)"
# One site alone, started again, says at once that the run has ended and writes the same model, with and without its checkpoint.
cp out-a/model.safetensors model
for s in a b; do
    rm out-$s/model.safetensors
    [ $s = a ] || rm -r out-$s/checkpoints
    timeout -k 2 400 "$nebula" train job.yaml --site $s out=out-$s > again-$s.log 2>&1 || fail "site $s cannot be started again alone"
    grep -q "this run has ended at record" again-$s.log || fail "site $s does not say that the run has ended"
    cmp -s model out-$s/model.safetensors || fail "site $s writes another model when it is started again alone"
done
echo "two sites: ok, state root $(root a)"
