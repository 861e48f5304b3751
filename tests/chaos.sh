#!/bin/sh
# nebula-i lab --chaos: the same run without faults and with them. The sites end with one state root in both, every fault that was
# asked for came, and the figures are on the output as JSON. train.speed bounds a site's speed.
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
[ "$(figure faults)" -ge 5 ] || fail "only $(figure faults) faults"
for kind in kill cut one-way slow-line slow-site; do [ "$(figure $kind)" -ge 1 ] || fail "no fault of kind $kind"; done
[ "$(figure full-disk)" = 0 ] || fail "a fault that was not asked for"
grep -q "killed, as planned" log || fail "no site was killed"
grep -q "Tokens of all sites" out/chaos.html || fail "the page has no plot"
# 60,000 tokens of three sites at 2,000 a second take ten seconds; a busy machine takes longer.
awk "BEGIN { exit !($(figure seconds.calm) > 9) }" || fail "the sites were faster than train.speed: $(figure seconds.calm) s"
refused "is there already" --chaos 2s
