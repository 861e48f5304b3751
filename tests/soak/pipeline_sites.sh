#!/bin/bash
# A model on two sites under many kills and cuts: tests/soak/pipeline_sites.sh NEBULA-I [KILLS] [CUTS] [BITS]. Stages are killed
# at random moments, both at once now and then, and the line is cut for a second again and again. The model must end with the
# bits of a run that nobody disturbed.
set -eu
nebula=$(realpath "$1") kills=${2:-50} cuts=${3:-20} bits=${4:-8}
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }
seed=$$
number() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); value=$((seed / 65536 % $1)); }

cat "$top"/docs/*.md > text
tail -c 6000 text > valid
cat > job.yaml <<YAML
name: soak
task: causal
cache: cache
strategy: pipeline
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 4, heads: 2, dropout: 0.1, tied: no}
train: {steps: $((8 * kills)), tokens: 128, micro: 4, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 100000, threads: 1,
        save_every: 4, eval_every: 50, schedule: constant, warmup: 0}
wan: {bits: $bits, depth: 3}
sites: [{name: a}, {name: b}]
data: [{file: text}, {file: valid, use: valid}]
YAML
"$nebula" lab job.yaml out=calm --mode relay --port $(free_port) --wan 100mbit,4ms > calm.log 2>&1 || fail "the undisturbed run"

plan= schedule= at=10
for i in $(seq $kills); do
    number 2; site=$([ $value = 0 ] && echo a || echo b)
    number 12; at=$((at + 12 + value))
    plan="$plan${plan:+; }$((at / 10)).$((at % 10))s+0.3s $site"
    number 6
    if [ $value = 0 ]; then plan="$plan; $((at / 10)).$((at % 10))s+0.5s $([ $site = a ] && echo b || echo a)"; fi
done
for i in $(seq $cuts); do
    number $((at / 10)); schedule="$schedule${schedule:+; }$((2 + value))s+1s down"
done
"$nebula" lab job.yaml out=hurt --mode relay --port $(free_port) --wan 100mbit,4ms train.speed=$((2200)) --kill "$plan" --schedule "$schedule" > hurt.log 2>&1 ||
    fail "the disturbed run"
happened=$(grep -ac "killed, as planned" hurt.log)
cmp calm/a/model.safetensors hurt/a/model.safetensors || fail "the models differ after $happened kills"
echo "pipeline of sites: the same bits after $happened kills and $cuts cuts"
