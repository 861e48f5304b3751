#!/bin/sh
# What a run leaves behind that comes to its end in another way than it should: no room for the last checkpoint.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

cat "$top"/docs/[a-f]*.md > text
cat > one.yaml <<'YAML'
name: one
task: causal
cache: data
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 128, layers: 2, heads: 2}
train: {steps: 6, tokens: 128, max_len: 32, lr: 2e-3, log_every: 1000, save_every: 100000, threads: 1}
data: [{file: text}]
YAML
"$nebula" train one.yaml out=whole > whole.log 2>&1 || fail "a plain run"
# A checkpoint is three times the model: files of up to twice the model's size are let through.
blocks=$(($(wc -c < whole/model.safetensors) / 512 * 2))
if (trap '' XFSZ; ulimit -f $blocks; exec "$nebula" train one.yaml out=full) > full.log 2>&1; then fail "no room, and no word"; fi
grep -q "the model is in full, its last checkpoint is not" full.log || fail "the message about the checkpoint"
cmp -s whole/model.safetensors full/model.safetensors || fail "the model was not written without its checkpoint"
# Where the last checkpoint is there already, a second start needs no room for it.
(trap '' XFSZ; ulimit -f $blocks; exec "$nebula" train one.yaml out=whole) > again.log 2>&1 || fail "a finished run, once more"
echo "stop: ok"
