#!/bin/bash
# A model whose layers live on several sites (strategy pipeline). With 32 bits between the stages it ends with the bits of one
# process, with dropout, clipping and steps that are skipped: a decoder on two and on three sites, an encoder-decoder whose cut
# carries the encoder's output, both ends of the model at one site. With 8 bits it ends with the same bits after stages were killed and the line was cut. A model that
# fits into the memory of neither site is trained. Where nothing before the cut is trained, nothing comes back. Jobs that do not
# fit are refused.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 5 "$f" >&2; done; exit 1; }

cat "$top/LICENSE" "$top"/docs/[a-f]*.md > text
tail -c 6000 text > valid
head -300 text > second; tail -300 text > first
cat > decoder.yaml <<'YAML'
name: decoder
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 4, heads: 2, dropout: 0.1, tied: no}
train: {steps: 24, tokens: 128, micro: 4, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 1000, threads: 1, save_every: 8, eval_every: 12,
        schedule: constant, warmup: 0}
data: [{file: text}, {file: valid, use: valid}]
YAML
cat > both.yaml <<'YAML'
name: both
task: translate
cache: cache-both
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: marian, hidden: 32, layers: 2, decoder_layers: 2, heads: 2, dropout: 0.1, tied: no}
train: {steps: 10, tokens: 256, micro: 3, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 1000, threads: 1, schedule: constant, warmup: 0}
data: [{file: first, second: second, lang: en-de}]
YAML
for job in decoder both; do
    { cat $job.yaml; echo "strategy: pipeline"; echo "wan: {bits: 32, depth: 3}"; echo "sites: [{name: a}, {name: b}]"; } > $job-2.yaml
    sed 's/{name: b}/{name: b}, {name: c}/' $job-2.yaml > $job-3.yaml
done

train() { "$nebula" train $2.yaml out=$1 "${@:3}" > $1.log 2>&1 || fail "$1 ended with $?"; }
lab() { # OUT JOB WORD…: all sites of a job on this machine
    timeout 300 "$nebula" lab $2.yaml out=$1 --mode relay --port $(free_port) --wan 100mbit,4ms "${@:3}" > $1.log 2>&1 || fail "the laboratory of $1 ended with $?"
}
same() { cmp -s $1/model.safetensors $2/model.safetensors || fail "the models of $1 and $2 differ"; }
found() { grep -ao "held out at step 24: loss [0-9.]*" $1.log | tail -1; }

# ---- the bits of one process
train one decoder
lab two decoder-2; same one two/a
[ -n "$(found one)" ] && [ "$(found one)" = "$(found two)" ] || fail "held out: $(found one), in stages $(found two)"
lab three decoder-3 'sites[0].layers=1' 'sites[1].layers=1' 'sites[2].layers=2'; same one three/a
wild="train.lr=10 train.weight_decay=10 train.steps=12"
train wild decoder $wild; lab wilder decoder-2 $wild; same wild wilder/a
grep -aq "is not finite" wilder.log || fail "no step was skipped"
lab eight decoder-2 $wild wan.bits=8; grep -aq "is not finite" eight.log || fail "no step of 8 bits was skipped"
train both-one both; lab both-two both-2; same both-one both-two/a
[ ! -e both-two/b/model.safetensors ] || fail "the second site has a model"
echo "Ein Satz" | "$nebula" translate both-two/a > translated.log 2>&1 || fail "the gathered model does not translate"

# ---- both ends of the model at the first site, where the output is tied to the token table
lab ring decoder-2 'sites[0].layers=1' 'sites[0].last_layers=1' 'sites[1].layers=2'; same one ring/a
train tied decoder model.tied=yes
lab tied-two decoder-2 model.tied=yes
grep -aq "layers 1 to 1 and 4 to 4" tied-two.log || fail "the first site has not got both ends"
[ -n "$(found tied)" ] && [ "$(found tied)" = "$(found tied-two)" ] || fail "tied: held out $(found tied), in stages $(found tied-two)"

# ---- a frozen body: nothing is trained before the cut, and nothing crosses back
lab frozen decoder-2 peft.method=frozen 'peft.train=decoder.layers.3*'
train frozen-one decoder peft.method=frozen 'peft.train=decoder.layers.3*'; same frozen-one frozen/a
back=$(sed -n 's/.*site b: stage 2 of 2 .* 0.00 MB ahead and \([0-9.]*\) MB back sent.*end: \([0-9.]*\) MB of those sent.*/\1 \2/p' frozen.log | tail -1)
echo "$back" | awk '{ exit !(NF == 2 && $2 > 0.1 && $1 - $2 < 0.02) }' || fail "gradients came back to a frozen stage: $back MB"

# ---- frozen weights that the first site has in init.from do not cross at the end
tuned="peft.method=lora init.from=one"
train tuned-one decoder $tuned; lab tuned decoder-2 $tuned; same tuned-one tuned/a
lab tuned-three decoder-3 $tuned 'sites[0].layers=1' 'sites[1].layers=1' 'sites[2].layers=2'; same tuned-one tuned-three/a
sent=$(sed -n 's/.*site b: stage 2 of 2 .*end: \([0-9.]*\) MB of those sent.*/\1/p' tuned.log | tail -1)
echo "$sent" | awk '{ exit !(NF && $1 > 0 && $1 < 0.05) }' || fail "frozen weights crossed: $sent MB"

# ---- the model in parts: nobody has the whole, and the parts are the same bytes
mkdir -p parts/b; : > parts/b/model-00002-of-00009.safetensors
lab parts decoder-3 wan.gather=no 'sites[0].layers=1' 'sites[1].layers=1' 'sites[2].layers=2'
grep -aq "b/model-00002-of-00009.safetensors is not of this run's cut: remove it" parts.log || fail "a part of another cut is not named"
rm parts/b/model-00002-of-00009.safetensors
[ ! -e parts/a/model.safetensors ] || fail "a model was gathered"
"$nebula" export --join parts/c parts/a parts/b joined > joined.log 2>&1 || fail "the parts do not join"
same one joined; cmp -s one/model.yaml joined/model.yaml || fail "another model.yaml"
"$nebula" eval joined valid > eval.log 2>&1 || "$nebula" generate joined The --max-new 2 > eval.log 2>&1 || fail "the joined model cannot be used"
[ ! -e three/a/model-00001-of-00003.safetensors ] || fail "the first site keeps a part beside the whole"
mkdir -p blocked/a/model-00001-of-00002.safetensors blocked/b/model-00002-of-00002.safetensors
lab blocked decoder-2; same one blocked/a
[ $(grep -ac "part of the model is not written; the model is gathered without it" blocked.log) -ge 2 ] || fail "no message about a part that cannot be written"
rm -rf refused; ! "$nebula" export --join parts/a parts/b refused > bad-join.log 2>&1 || fail "a part is missing, and they join"
grep -aq "part 3 of 3 is missing" bad-join.log || fail "no message about a missing part"
! "$nebula" export --join parts/a parts/b three/c refused > bad-join.log 2>&1 || fail "parts of two runs join"
grep -aq "other parts are of run" bad-join.log || fail "no message about parts of two runs"
! "$nebula" export --join parts/a parts/a parts/b refused > bad-join.log 2>&1 || fail "a part joins twice"
for s in a b c; do mkdir -p noteless/$s; cp parts/$s/model* noteless/$s; LC_ALL=C sed -i 's/"run":/"nur":/' noteless/$s/model-*; done
! "$nebula" export --join noteless/a noteless/b noteless/c refused > bad-join.log 2>&1 || fail "parts of no run join"
grep -aq "does not say of which run and step it is" bad-join.log || fail "no message about parts of no run"
[ ! -e refused/model.safetensors ] || fail "a refused join left a model"
lab tuned-parts decoder-2 $tuned wan.gather=no
"$nebula" export --join tuned-parts/a tuned-parts/b tuned-joined > joined.log 2>&1 || fail "the parts with LoRA do not join"
same tuned-one tuned-joined

# ---- a model that fits into the memory of neither site
large="model.hidden=128 train.tokens=64 train.max_len=32 train.steps=3 train.memory=12MiB"
! "$nebula" train decoder.yaml out=large-one $large > large-one.log 2>&1 || fail "the model fits into one site"
grep -aq "the limit is 12582912" large-one.log || fail "no message about the memory"
lab large decoder-2 $large wan.depth=1

# ---- stages that are killed, and a line that is cut
long="train.steps=80 wan.bits=8"
lab calm decoder-2 $long
lab cut decoder-2 $long --schedule '2s+2s down' --kill '1s+0.2s b; 3s+0.2s a'
same calm/a cut/a
lab tied-calm decoder-2 model.tied=yes wan.bits=8
lab tied-cut decoder-2 model.tied=yes wan.bits=8 --schedule '1s+1s down' --kill '1.5s+0.2s a; 2.5s+0.2s b'
same tied-calm/a tied-cut/a
for s in a b; do
    "$nebula" site init $s > /dev/null 2>&1
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a > /dev/null 2>&1
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
site() { exec "$nebula" train decoder-2.yaml --site $1 out=hurt-$1 $long train.eval_every=1 "${@:2}" >> hurt-$1.log 2>&1; }
start() { (site $1) & eval "pid_$1=$!"; }
newest() { ls hurt-$1/checkpoints 2> /dev/null | sort | tail -1; }
start a; start b
for how in 9:b 9:a TERM:b 9:b TERM:a; do # each at a moment when it has a new checkpoint; who is asked to stop evaluates first
    victim=${how#*:}
    before=$(newest $victim)
    eval "pid=\$pid_$victim"
    while kill -0 $pid 2> /dev/null && [ "$(newest $victim)" = "$before" ]; do sleep 0.02; done
    kill -${how%:*} $pid 2> /dev/null || true
    wait $pid 2> /dev/null || true
    start $victim
done
wait $pid_a || fail "site a"
wait $pid_b || fail "site b"
grep -aq "going on from step" hurt-a.log && grep -aq "going on from step" hurt-b.log || fail "nobody was killed in the middle"
same calm/a hurt-a
(site a train.steps=81) & last=$!
! wait $last || fail "a run that has ended went on"
grep -aq "has ended after 80" hurt-a.log || fail "no message about a run that has ended"

# ---- what does not fit
refused() { # in the laboratory: a site that has read the job waits until the other one knows why it cannot begin
    rm -rf bad
    if "$nebula" lab decoder-2.yaml out=bad --mode relay --port $(free_port) "${@:2}" > bad.log 2>&1; then fail "began with ${*:2}"; fi
    grep -aq "$1" bad.log || fail "no '$1' with ${*:2}"
}
refused "set model.tied: no" model.tied=yes 'sites[0].layers=2' 'sites[1].layers=2'
refused "those of the first site" 'sites[0].layers=2' 'sites[1].layers=1' 'sites[1].last_layers=1'
refused "the sites have 5 layers together" 'sites[0].layers=2' 'sites[1].layers=3'
refused "1 of 2 sites say how many layers" 'sites[0].layers=2'
refused "give train.steps" train.minutes=1
refused "leave it out" train.average=2
refused "32, 16, 8 or 4 bits" wan.bits=2
refused "set strategy: pipeline" strategy=replica 'sites[0].layers=2' 'sites[1].layers=2'
refused "not cut into stages" task=rtd model.family=electra

# ---- the benchmark's figures, of runs that are too short for them
"$nebula" bench pipeline --json --mode relay --port $(free_port) --dir bench --steps 2 --micro 4 --turns 1 --widths "32 32 32" --seeds 1 --loss-steps 3 > bench.json 2> bench.log ||
    fail "bench pipeline"
for figure in efficiency.100mbit.50ms loss.int8 loss.int4 bytes.ahead bytes.back; do grep -q "\"$figure\"" bench.json || fail "no figure $figure"; done

echo "pipeline of sites: ok"
