#!/bin/bash
# Sites of a pipeline without the text. A stage with neither the embedding nor the loss hears what the batches look like and ends with the bits
# of one process: a decoder on three sites whose middle one has neither text nor tokenizer, gets the text and loses it again between
# kills; both ends of the model at the first site; an encoder-decoder with held-out text in two languages; masked tokens of texts and pairs. Sites that need the text, text that differs, a
# vocabulary of another size and a run that was begun with other items are refused by name.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 6 "$f" >&2; done; exit 1; }

cat "$top/LICENSE" "$top"/docs/[a-c]*.md > text
tail -c 6000 text > valid
for s in a b c; do
    "$nebula" site init $s > /dev/null 2>&1
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a > /dev/null 2>&1
for s in a b c; do "$nebula" roster join roster $s > /dev/null; done

common='train: {steps: 24, tokens: 128, micro: 4, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 1000, threads: 1, save_every: 4, eval_every: 12,
        schedule: constant, warmup: 0}'
cat > decoder.yaml <<YAML
name: decoder
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: llama, hidden: 32, layers: 4, heads: 2, dropout: 0.1}
$common
data: [{file: text}, {file: valid, use: valid}]
YAML
sed 's/family: llama/family: gpt2/; s/dropout: 0.1/dropout: 0.1, tied: yes/; s/name: decoder/name: tied/' decoder.yaml > tied.yaml
sed 's/[.!?]/ &/g' text | head -400 > one; tac one | head -400 > two
head -60 one > one.valid; tail -60 two > two.valid
cat > both.yaml <<YAML
name: both
task: translate
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: marian, hidden: 32, layers: 2, decoder_layers: 3, heads: 2, dropout: 0.1, tied: no}
$common
data:
  - {file: one, second: two, lang: en-de}
  - {file: two, second: one, lang: en-fr}
  - {file: one.valid, second: two.valid, lang: en-de, use: valid}
  - {file: two.valid, second: one.valid, lang: en-fr, use: valid}
YAML
cat > masked.yaml <<YAML
name: masked
task: mlm
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: xlm-r, hidden: 32, layers: 4, heads: 2, dropout: 0.1, tied: no}
$common
data: [{file: one}, {file: one, second: two, lang: en-de}]
YAML
sites() { # JOB SITE…: JOB-all.yaml for the sites with text, JOB-bare.yaml without any
    { cat $1.yaml; echo "strategy: pipeline"; echo "wan: {bits: 32, depth: 3}"; echo "sites: [$(printf '{name: %s}, ' "${@:2}" | sed 's/, $//')]"; } > $1-all.yaml
    sed '/^data:/,/^[a-z]*:/ { /^data:/d; /^  - /d }' $1-all.yaml > $1-bare.yaml
    ! grep -q "file:" $1-bare.yaml || fail "$1-bare.yaml has a corpus"
}
sites decoder a b c; sites tied a b; sites both a b c; sites masked a b c

train() { "$nebula" train $2.yaml out=$1 cache=cache-$2 "${@:3}" > $1.log 2>&1 || fail "$1 ended with $?"; }
site() { exec "$nebula" train $1.yaml --site $3 out=$2-$3 "${@:4}" >> $2-$3.log 2>&1; }
start() { (site "$@") & eval "pid_$3=$!"; } # JOB RUN SITE WORD…
await() { # RUN SITE…: all end well; the others would wait for one that does not
    local site left=${*:2} still pid
    while [ -n "$left" ]; do
        still=
        for site in $left; do
            eval "pid=\$pid_$site"
            if kill -0 $pid 2> /dev/null; then still="$still $site"; else wait $pid || fail "$1: site $site ended with $?"; fi
        done
        left=$still
        sleep 0.02
    done
}
same() { cmp -s $1/model.safetensors $2/model.safetensors || fail "the models of $1 and $2 differ"; }
found() { grep -ao "held out at step [0-9]*: loss.*" $1.log | tail -1; }
held() { [ -n "$(found $1)" ] && [ "$(found $1)" = "$(found $2)" ] || fail "held out: $(found $1), at $2 $(found $2)"; }
newest() { ls $1/checkpoints 2> /dev/null | sort | tail -1; }
kill_when_saved() { # RUN SITE SIGNAL: at a moment when it has a new checkpoint
    local before=$(newest $1-$2) pid
    eval "pid=\$pid_$2"
    while kill -0 $pid 2> /dev/null && [ "$(newest $1-$2)" = "$before" ]; do sleep 0.02; done
    if kill -$3 $pid 2> /dev/null; then wait $pid 2> /dev/null || true; else wait $pid || fail "$1: site $2 ended with $?"; fi
}

# ---- three sites: the middle one has no text, then it has, then it has not
steps="train.steps=64 train.eval_every=3 train.speed=20000" # slow enough to be killed in the middle
train whole decoder $steps train.speed=0
start decoder-all line a cache=cache-decoder $steps
start decoder-all line c cache=cache-decoder $steps
start decoder-bare line b $steps
kill_when_saved line b 9
start decoder-all line b cache=cache-decoder $steps
kill_when_saved line b 9
start decoder-bare line b $steps
kill_when_saved line b TERM # it evaluates first
start decoder-bare line b $steps
kill_when_saved line a TERM
start decoder-all line a cache=cache-decoder $steps
await line a b c
grep -aq "site 'b' has no text and needs none.*the job has none for it" line-b.log || fail "site b does not say that it has no text"
grep -aq "its size is taken to be tokenizer.vocab, 400" line-b.log || fail "site b has a tokenizer"
grep -aq "going on from step" line-b.log || fail "site b was not stopped in the middle"
same whole line-a; held whole line-b
! grep -rql "Apache" line-b b || fail "site b has text"
refused_again() { # MESSAGE WORD…: site a says so before it tells the others, who are gone
    start decoder-all line a cache=cache-decoder $steps "${@:2}"
    until grep -aq "$1" line-a.log; do
        kill -0 $pid_a 2> /dev/null || fail "no '$1' at line-a"
        sleep 0.02
    done
    kill -9 $pid_a; wait $pid_a 2> /dev/null || true
}
refused_again "was begun with layers 1 to 1 here, and the job gives layers 1 to 2 now: say sites...layers" 'sites[0].layers=2' 'sites[1].layers=1' 'sites[2].layers=1'
printf '%.8s\n' "$(cat line-a/stream.run)" > line-a/stream.run
refused_again "stages do not say what their batches look like"

# ---- both ends of the model at the first site
train closed tied
start tied-all ring-text a cache=cache-tied; start tied-all ring-text b cache=cache-tied
await ring-text a b
start tied-all ring a cache=cache-tied; start tied-bare ring b
kill_when_saved ring b 9
start tied-bare ring b
await ring a b
same ring-text-a ring-a; held closed ring-b

# ---- source and target, two languages; the file is named, and is not there
train both both
start both-all pair a cache=cache-both; start both-all pair c cache=cache-both
start both-all pair b $(for i in 0 1 2 3; do echo "data[$i].file=nowhere"; done)
await pair a b c
grep -aq "site 'b' has no text and needs none.*corpus nowhere: No such file" pair-b.log || fail "site b does not say which file it lacks"
same both pair-a; held both pair-b
found pair-b | grep -q "by language: .*de [0-9.]*, .*fr [0-9.]*" || fail "site b knows no languages: $(found pair-b)"

# ---- masked tokens, texts and pairs that share a sequence; steps in which nothing is masked change nothing
few="train.tokens=64 train.micro=1 train.mask=0.01"
train mask masked $few
start masked-all empty a cache=cache-masked $few; start masked-all empty c cache=cache-masked $few; start masked-bare empty b $few
await empty a b c
same mask empty-a
grep -aq "steps had nothing to predict" mask.log || fail "every step has something to predict"
[ "$(grep -ao "[0-9]* steps had nothing to predict" mask.log)" = "$(grep -ao "[0-9]* steps had nothing to predict" empty-b.log)" ] ||
    fail "site b skips other steps"

# ---- what does not fit
refused() { # MESSAGE RUN: site SITE, started last, says so and ends; the others are ended
    eval "pid=\$pid_$3"
    wait $pid && fail "$2: site $3 began"
    grep -aq "$1" $2-$3.log || fail "no '$1' at $2-$3"
    kill -9 $(jobs -p) 2> /dev/null || true; wait 2> /dev/null || true
}
start decoder-all last a cache=cache-decoder; start decoder-bare last b; start decoder-bare last c
refused "the last site of a pipeline has the loss" last c
start decoder-bare first a
refused "site 'a' has no corpus to train on" first a
start decoder-all other a cache=cache-decoder; start decoder-all other c cache=cache-decoder
start decoder-all other b cache=cache-decoder 'data[0].file=valid'
refused "have drawn other batches" other b
tok=tokenizer.file=cache-decoder/tokenizer.model
sed -i 's/vocab: 400, //' decoder-all.yaml decoder-bare.yaml
start decoder-all cut a $tok; start decoder-all cut c $tok; start decoder-bare cut b
refused "(the cut) is '1-1;2-3;4-4' there and '1-2;3-3;4-4' here; use one release and the same sites...train and tokenizer.vocab" cut b
hand="sites[0].layers=1 sites[1].layers=2 sites[2].layers=1"
start decoder-all size a $tok $hand; start decoder-all size c $tok $hand; start decoder-bare size b $hand
refused "have a vocabulary of 400 tokens, and this site has taken it to be 8000" size b
! "$nebula" plan decoder-bare.yaml --site b out=planned > plan.log 2>&1 || fail "a plan without text"
grep -aq "run nebula-i plan at a site that has it" plan.log || fail "no message about a plan without text"

echo "sites without text: ok"
