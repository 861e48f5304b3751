#!/bin/sh
# Two kinds of hardware train one model: a CPU site and an OpenCL site over the laboratory's line. The run is killed on the way and comes
# back, and the sites end with one state root. Without the plug-in or a driver (pocl) one line says what was skipped.
set -eu
nebula=$1
build=$(cd "$(dirname "$nebula")" && pwd)
top=$(cd "$(dirname "$0")/.." && pwd)
export XDG_CACHE_HOME="$build/opencl-cache"
export POCL_CACHE_DIR="$XDG_CACHE_HOME/pocl"
mkdir -p "$XDG_CACHE_HOME" "$POCL_CACHE_DIR"
"$nebula" device list | grep -q '^opencl:0 ' || { echo "opencl_lab: skipped, there is no OpenCL device"; exit 0; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; [ ! -f log ] || tail -n 40 log >&2; exit 1; }

cat "$top/LICENSE" "$top/README.md" > text
cat > job.yaml <<'YAML'
name: kinds
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 400, tokens: 128, max_len: 32, lr: 2e-3, log_every: 100, save_every: 20}
# Both sites wait for each round, so neither is done while the other begins, however slow it is.
wan: {interval: 10, fragments: 1, rung: int4, merge_after: 5}
sites:
  - name: a
  - name: b
    train: {device: "opencl:0"}
data:
  - file: text
YAML
# The kernels are compiled before, so that no site waits for the other's compiler.
"$nebula" train job.yaml out=warm train.device=opencl train.steps=10 > log 2>&1 || fail "training on OpenCL alone"
"$nebula" lab job.yaml --wan 100mbit,20ms > log 2>&1 &
lab=$!
until ls out/b/checkpoints/* > /dev/null 2>&1; do # it has trained and saved
    kill -0 $lab 2> /dev/null || fail "the run ended before site b saved"
    sleep 0.1
done
kill -9 $lab 2> /dev/null || true
wait $lab 2> /dev/null || true
n=0
while "$nebula" lab job.yaml --wan 100mbit,20ms > log 2>&1; status=$?; [ $status = 8 ]; do # its sites end by themselves
    n=$((n + 1))
    [ $n -lt 1200 ] || fail "the killed run's sites are still at work"
    sleep 0.2
done
[ $status = 0 ] || fail "the run did not go on after the kill"
root() { sed -n "s/^$1 .*state root \([0-9a-f]*\),.*/\1/p" log; }
[ -n "$(root a)" ] && [ "$(root a)" = "$(root b)" ] || fail "state roots: '$(root a)' and '$(root b)'"
cmp -s out/a/model.safetensors out/b/model.safetensors || fail "the models differ"
