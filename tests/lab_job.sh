#!/bin/sh
# One command runs every site of a job on this machine. It makes keys, roster and addresses, and the sites end with the same
# state root. The same command again finds the run finished. A job that does not fit is refused before any site starts.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; cat log >&2; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: lab
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 100000, minutes: 2, tokens: 128, max_len: 32, lr: 2e-3, log_every: 1000, save_every: 100000}
wan: {interval: 10, fragments: 1, rung: int4, tokens: 1000000, round_seconds: 1}
sites:
  - name: a
  - name: b
    train: {tokens: 64}
data:
  - file: text
YAML
if "$nebula" lab job.yaml 'sites[1].role=student' > log 2>&1; then fail "roles that do not fit were accepted"; fi
grep -q "site 'b' has role student" log || fail "no message about the role"
sed 's/rung: int4/rung: int5/' job.yaml > rung.yaml
if "$nebula" lab rung.yaml > log 2>&1; then fail "an unknown rung was accepted"; fi
grep -q "rung.yaml:6: wan.rung: 'int5' is not" log || fail "no message about the rung"
if "$nebula" lab job.yaml 'data[0].file=nothing' > log 2>&1; then fail "a missing corpus was accepted"; fi
grep -q "nothing" log || fail "no message about the corpus"
"$nebula" lab job.yaml --wan 100mbit,20ms > log 2>&1 || fail "the run failed"
root() { sed -n "s/^$1 .*state root \([0-9a-f]*\),.*/\1/p" log; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] || fail "state roots: '$(root a)' and '$(root b)'"
cmp -s out/a/model.safetensors out/b/model.safetensors || fail "the models differ"
"$nebula" status out > status || fail "nebula-i status failed"
[ "$(grep -cE '^[ab] +train +(done|evaluating|waiting|training) ' status)" = 2 ] || { cat status >&2; fail "status does not show both sites"; }
"$nebula" status out/a/site | grep -q "^b .* int4 " || fail "the status of a site folder does not show site b"
"$nebula" report out --to page.html > /dev/null || fail "nebula-i report failed"
for what in "Loss against tokens" "Where every second went" "all sites agree" "</html>"; do
    grep -q "$what" page.html || fail "the report lacks '$what'"
done
# 1,000,000 tokens of two sites with 128 a step: 3907 steps, a twentieth of them are 195. What was chosen stands in log and report.
for what in "train.optimizer adamw: Muon pays from 256 tokens a step" "train.beta2 0.994872: a mean over 195 steps of 64 tokens" \
    "wan.outer_lr 0.7: 391 rounds of 10 steps"; do
    grep -q "$what" page.html || fail "the report lacks '$what'"
done
! grep -q "wan.interval 10:" page.html || fail "the report has a reason for what the job says"
[ "$(grep -c "train.beta2 is 0.994872" log)" = 2 ] || fail "the log of both sites does not say beta2"
if "$nebula" report nowhere 2> none; then fail "a report of a missing folder was made"; fi
cp out/a/model.safetensors first
"$nebula" lab job.yaml --wan 100mbit,20ms > log 2>&1 || fail "the finished run cannot be started again"
[ "$(grep -c "^[ab] | this run has ended at record" log)" = 2 ] || fail "a finished run does not say so"
for s in a b; do cmp -s first out/$s/model.safetensors || fail "site $s has another model after a second start"; done
if "$nebula" lab job.yaml name=other --wan 100mbit,20ms > log2 2>&1; then cat log2; fail "the checkpoint of one run was taken for that of another"; fi
grep -q "the checkpoint is of another run.*out=FOLDER" log2 || { cat log2; fail "no message about the checkpoint of another run"; }
rm -rf out/[ab]/model.safetensors out/[ab]/checkpoints
if "$nebula" lab job.yaml seed=2 --wan 100mbit,20ms > log2 2>&1; then cat log2; fail "the run of one job was taken for that of another"; fi
grep -q "run/lab holds the run of another job (name lab, task causal; this one: name lab, seed 2, task causal): give this job another name" log2 ||
    { cat log2; fail "the message does not name the two jobs"; }
# Three sites, two of which have no line to each other from the beginning on.
sed 's/^data:/  - name: c\n&/' job.yaml > three.yaml
grep -q "name: c" three.yaml || fail "the job has no third site"
"$nebula" lab three.yaml name=three out=three wan.tokens=200000 --wan 100mbit,20ms --schedule '0s a>b down; 0s b>a down' > log 2>&1 ||
    { tail -n 40 log; fail "the run with a line that is cut for good failed"; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] && [ "$(root a)" = "$(root c)" ] ||
    fail "with a line that is cut for good the state roots are '$(root a)', '$(root b)' and '$(root c)'"
! grep -q "link to [ab] is up" log || ! grep "^[ab] |" log | grep -q "link to [ab] is up" || fail "the line was not cut"
echo "lab: ok, state root $(root a)"
