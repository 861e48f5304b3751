#!/bin/bash
# Sites use a model that was trained before. A frozen encoder at one site teaches a student at the other through 4-bit hidden
# states. A generator feeds a discriminator by the clock. Two sites fine-tune one frozen model with LoRA, and only the small
# matrices cross.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

cat "$top"/docs/[a-f]*.md > text
common="tokens: 256, max_len: 32, lr: 2e-3, log_every: 1000, save_every: 100000, threads: 1, temperature: 1"
before() { # NAME TASK FAMILY: a model for the others to begin with
    cat > $1.yaml <<YAML
name: $1
task: $2
out: $1
cache: data
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: $3, hidden: 32, layers: 2, heads: 2}
train: {steps: 20, $common}
data: [{file: text}]
YAML
    "$nebula" train $1.yaml > $1.log 2>&1 || fail "training the model for the others: $1"
}
before encoder mlm xlm-r
before base causal gpt2

# ---- hidden states ----
cat > hidden.yaml <<YAML
name: hidden
task: mlm
strategy: auto
cache: data-hidden
tokenizer: {file: encoder/tokenizer.model}
model: {family: xlm-r, hidden: 24, layers: 1, heads: 2}
distill: {encoder: encoder, width: 32, hidden_weight: 2}
train: {steps: 60, $common}
wan: {bits: 4, window: 16}
sites: [{name: a, role: teacher}, {name: b, role: student}]
data: [{file: text}]
YAML
"$nebula" train hidden.yaml --site a out=alone/a wan.recorded=record > alone-a.log 2>&1 || fail "the teacher that records its items"
"$nebula" train hidden.yaml --site b out=alone/b wan.recorded=record > alone-b.log 2>&1 || fail "the student on a record"
"$nebula" lab hidden.yaml out=pair --wan 100mbit,20ms > pair.log 2>&1 || fail "teacher and student over a line"
cmp alone/b/model.safetensors pair/b/model.safetensors || fail "the line changes what the student learns"
# The line cannot carry 8 bits at the student's pace, and nothing is chosen by hand. The teacher must send fewer bits and say why,
# and it must not send more items than are wanted.
"$nebula" lab hidden.yaml out=thin --wan 1mbit,20ms wan.bits=0 wan.window=0 wan.cache=0 train.steps=150 > thin.log 2>&1 ||
    fail "teacher and student over a thin line"
grep -q "states of 2 bits: the line gives" thin.log || fail "auto did not follow the line"
grep -q "teacher: 150 items" thin.log || fail "the teacher sent more than was wanted"
sed -e '/^distill/d' -e '/^sites/d' -e '/^wan/d' -e 's/^strategy.*//' hidden.yaml > plain.yaml
"$nebula" train plain.yaml out=plain > plain.log 2>&1 || fail "the student without a teacher"
! cmp -s plain/model.safetensors pair/b/model.safetensors || fail "the hidden states have no effect"
# 60 batches of 256 rows of 32 values in 4 bits are 246 kB; 16 bits would be 983 kB.
bytes=$(cat record/* | wc -c)
[ "$bytes" -gt 150000 ] && [ "$bytes" -lt 400000 ] || fail "the hidden states took $bytes bytes"

# ---- generator and discriminator by the clock of the receiving site ----
cat > clock.yaml <<YAML
name: clock
task: rtd
cache: data-hidden
tokenizer: {file: encoder/tokenizer.model}
model: {family: electra, hidden: 32, embedding: 32, layers: 1, heads: 2}
generator: {family: bert, hidden: 16, layers: 1, heads: 2}
train: {steps: 1000000, minutes: 0.03, $common}
wan: {window: 4}
sites: [{name: a, role: generator, train: {minutes: 0.001}}, {name: b, role: discriminator}]
data: [{file: text}]
YAML
timeout 400 "$nebula" lab clock.yaml out=clock --wan 100mbit,20ms > clock.log 2>&1 || fail "a relay by the clock"
[ -f clock/b/model.safetensors ] && [ -f clock/a/generator/model.safetensors ] || fail "a relay by the clock leaves no models"

# The same again, from the discriminator of the run above. Its folder brings the tokenizer, and the generator starts anew.
sed -e '/^tokenizer/d' -e '/^model/d' -e 's/^name:.*/name: again/' -e 's/data-hidden/data-again/' \
    -e 's/steps: 1000000, minutes: 0.03/steps: 10/' -e 's/, train: {minutes: 0.001}//' clock.yaml > again.yaml
echo 'init: {from: clock/b}' >> again.yaml
timeout 400 "$nebula" lab again.yaml out=again --wan 100mbit,20ms > again.log 2>&1 || fail "a relay from a folder"
grep -q "^b .*parameters start from clock/b" again.log || fail "the discriminator did not start from its folder"

# ---- LoRA ----
cat > lora.yaml <<YAML
name: lora
task: causal
strategy: auto
cache: data
init: {from: base}
peft: {method: lora, lora_rank: 2}
train: {steps: 100000, minutes: 2, $common}
wan: {interval: 10, fragments: 1, rung: int8, tokens: 40000, round_seconds: 1}
sites: [{name: a}, {name: b, train: {tokens: 128}}]
data: [{file: text}]
YAML
"$nebula" lab lora.yaml out=lora --wan 100mbit,20ms > lora.log 2>&1 || fail "LoRA on two sites"
root() { sed -n "s/^$1 .*state root \([0-9a-f]*\),.*/\1/p" lora.log; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] || fail "state roots: '$(root a)' and '$(root b)'"
cmp lora/a/model.safetensors lora/b/model.safetensors || fail "the models of the two sites differ"
# Only the small matrices have moved, all of them, and only they have crossed.
[ -x "$(command -v python3)" ] || { echo "workflows: skipped a look into the files: python3 is missing"; exit 0; }
python3 - lora/a base <<'PY' || fail "other values were trained or crossed than those of LoRA"
import json, struct, sys
def tensors(folder):
    data = open(folder + "/model.safetensors", "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}
tuned, base = map(tensors, sys.argv[1:])
small = {k for k in tuned if ".lora." in k}
still = [k for k in small if k.endswith("b") and not any(tuned[k])]
moved = [k for k in base if tuned[k] != base[k]]
values = sum(len(tuned[k]) // 4 for k in small)
file = json.load(open(sys.argv[1] + "/site/run/status.json"))
status = next(s for s in file["sites"] if s["name"] == file["self"])
each = status["sent_updates"] / status["updates"]
print(f"LoRA: {values} of {sum(len(v) // 4 for v in tuned.values())} values are trained; {status['updates']} updates of {each:.0f} bytes")
if still or moved or not small or set(base) != set(tuned) - small:
    sys.exit(f"not trained: {still}; moved: {moved}")
if status["updates"] < 3 or each > 4 * values + 512:  # the last ones are exact: 4 bytes a value
    sys.exit("more crossed than the trained values")
PY
echo "workflows: ok, state root $(root a), $bytes bytes of hidden states"
