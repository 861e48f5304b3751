#!/bin/sh
# The long test of relay and tutor under faults (about ten minutes): tests/soak/split_sites.sh NEBULA-I. First forty kills with
# pauses of up to twenty seconds. Then relay in the laboratory: the line is cut for a minute, and each site in turn is killed
# meanwhile.
set -eu
nebula=$1
here=$(cd "$(dirname "$0")" && pwd)
"$here/../split_sites.sh" "$nebula" 40 6000 20
top=$(cd "$here/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; tail -n 40 log >&2; exit 1; }
"$nebula" wan run --mode namespaces -- true 2>/dev/null || { echo "soak: skipped: network namespaces cannot be made here"; exit 0; }
cat "$top"/docs/*.md > text
cat > relay.yaml <<'YAML'
name: relay
task: rtd
cache: data
tokenizer: {type: bpe, vocab: 800, lines: 3000}
model: {family: electra, hidden: 128, layers: 2, heads: 2}
generator: {family: bert, hidden: 64, layers: 1, heads: 2}
train: {steps: 3000, tokens: 512, max_len: 64, lr: 2e-3, log_every: 200, save_every: 200, threads: 1}
sites: [{name: a, role: generator}, {name: b, role: discriminator}]
data: [{file: text}]
YAML
"$nebula" train relay.yaml --site a out=alone/a wan.recorded=record > log 2>&1 || fail "site a alone"
"$nebula" train relay.yaml --site b out=alone/b wan.recorded=record > log 2>&1 || fail "site b alone"
for victim in a b; do
    rm -rf out
    "$nebula" lab relay.yaml --wan 100mbit,50ms --schedule '10s+60s down' --kill "30s+10s $victim" > log 2>&1 || fail "the run"
    cmp alone/b/model.safetensors out/b/model.safetensors || fail "the discriminator learned something else"
    cmp alone/a/generator/model.safetensors out/a/generator/model.safetensors || fail "the generator learned something else"
    grep "site [ab]: " log
done
echo "soak: relay ends with the same bits after an outage of a minute and a kill of either site"
