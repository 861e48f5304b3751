#!/bin/sh
# The last lines of a training say where the model is and what can be done with it. Every command that they print works as it
# stands. On a terminal the live line fits, and the last step is the last of its number; -q shows results alone, -v details.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/bin" "$dir/a folder"
ln -s "$nebula" "$dir/bin/nebula-i"
PATH=$dir/bin:$PATH
export PATH
unset NEBULA_LOG NO_COLOR
cd "$dir/a folder" # whose name must be quoted
fail() { echo "FAIL: $*" >&2; tail -30 log >&2; exit 1; }

head -150 "$top/LICENSE" > text
tail -40 "$top/LICENSE" > held
awk 'NF > 3 { print $1 " " $2 " " $3 "\t" $3 " " $2 " " $1 }' text held > pairs
cat > job.yaml <<'YAML'
name: small
task: mlm
tokenizer: {type: bpe, vocab: 300, lines: 300}
model: {family: bert, hidden: 32, layers: 1, heads: 2}
train: {steps: 16, tokens: 128, max_len: 32, log_every: 7, device: auto}
data:
  - file: text
  - {file: held, use: valid}
YAML

# commands LOG: the commands behind "Next:", as they are printed.
commands() { tr -d '\r' < "$1" | sed -n '/Next:$/,$s/^\(. | \)\{0,1\}  \(.*\)$/\2/p'; }
# works N: the log has N commands, and each succeeds.
works() {
    commands log > list
    [ "$(grep -c . list)" = "$1" ] || { cat list >&2; fail "not $1 commands"; }
    while read -r line; do sh -ec "$line" > said 2>&1 < /dev/null || { cat said >&2; fail "this printed command fails: $line"; }; done < list
}

nebula-i train job.yaml 'out=the model' > log 2>&1 || fail "training failed"
grep -q "^The model is in the model. Next:$" log || fail "no line says where the model is"
grep -q "device auto: computing on the" log || fail "no line says which device was taken"
[ "$(grep -c '^small  step ' log)" = 3 ] || fail "not a plain line every 7 steps and at the end"
grep '^small  step ' log | tail -1 | grep -q '^small  step 16/16 ' || fail "the last step is not the last of its number"
works 3
[ -f 'the model/report.html' ] && [ -f 'the model/huggingface/config.json' ] || fail "the commands left nothing"

# A terminal of 80 columns: \r begins each drawing; none is wider than 79 characters. Colours are not counted.
script -qec "stty cols 80; TERM=xterm nebula-i train job.yaml out=drawn" log > /dev/null < /dev/null || fail "training on a terminal failed"
esc=$(printf '\033')
tr '\r' '\n' < log | sed "s/$esc\[[0-9;]*[mJA]//g" > drawings
grep -q '^small  step 16/16 ' drawings || fail "the last drawing is not the last step"
[ "$(grep '^small  step' drawings | awk '{ if (length($0) > n) n = length($0) } END { print n }')" -le 79 ] || fail "a drawing is wider than the terminal"
grep -q "$esc\[1m" log || fail "no colours on a terminal"
works 3

nebula-i -q train job.yaml out=quiet > log 2>&1 || fail "training with -q failed"
if grep -q 'step [0-9]*/16\| info ' log; then fail "-q shows progress or notes"; fi
grep -q "^The model is in quiet. Next:$" log || fail "-q hides the result"
nebula-i train job.yaml train.steps=0 -v > log 2>&1 && fail "a wrong value was taken"
grep -q "from 1 to 1e12 (NEB_ERR_CONFIG)$" log || fail "-v does not name the status"

# Translation: the command to translate is there, and a Marian goes out.
sed 's/task: mlm/task: translate/; s/family: bert/family: marian/; s/file: text/file: pairs, lang: en-de/; s/- file: pairs\(.*\)/- {file: pairs\1}/; /held/d' job.yaml > translate.yaml
nebula-i train translate.yaml out=two > log 2>&1 || fail "training a translation failed"
works 3
commands log | grep -q "translate two" || fail "no command translates"

# Replaced tokens: the generator has a folder, too.
sed 's/task: mlm/task: rtd/; s/family: bert/family: electra, embedding: 32/' job.yaml > rtd.yaml
nebula-i train rtd.yaml out=rtd > log 2>&1 || fail "training with replaced tokens failed"
grep -q "^The model is in rtd, its generator in rtd/generator. Next:$" log || fail "the generator's folder is not named"
works 3

# Two sites in the laboratory, each with held-out text of its own.
sed 's/task: mlm/task: causal/; s/family: bert/family: gpt2/; s/use: valid/&, site: a/' job.yaml > lab.yaml
printf 'sites: [{name: a}, {name: b}]\nwan: {interval: 5, fragments: 1}\n' >> lab.yaml
nebula-i lab lab.yaml out=lab "tokenizer.file=the model/tokenizer.model" > log 2>&1 || fail "the laboratory failed"
grep -q '^a | The model is in lab/a. Next:$' log || fail "a site does not say where its model is"
grep '^a | ' log > a.log && mv a.log log
works 4
commands log | grep -q "generate lab/a" || fail "no command goes on from words"
echo "next commands: ok"
