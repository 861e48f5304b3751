#!/bin/sh
# Models of others at work: an imported Marian translates, a job goes on training it, the result goes out and comes in again. A model of
# many languages asks for them. An adapter of the peft library comes in, is trained further and goes out alone.
set -u
nebula=$1 data=$2/hf
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
fail() { echo "pretrained: $*" >&2; exit 1; }
"$nebula" import "$data/marian" opus > /dev/null || fail "the import failed"
printf 'A man is reading a book.\n\nTwo girls play.\n' > source
"$nebula" translate opus source --beams 3 > one || fail "no translation"
[ "$(wc -l < one)" = 3 ] && [ -z "$(sed -n 2p one)" ] || fail "not three lines with an empty one: $(cat one)"
"$nebula" translate opus source --beams 1 --scores > scores || fail "no scores"
awk 'NF == 2 && $2 > 0 { exit 1 }' scores || fail "a log-probability is above 0"
if "$nebula" translate opus source --to xyz 2> err; then fail "an unknown language was taken"; fi
grep -q '>>xyz<<' err || fail "the message does not name the token: $(cat err)"
for i in 1 2 3 4 5 6 7 8; do
    printf 'A man is reading a book.\tEin Mann liest ein Buch.\nTwo girls play in the snow.\tZwei Mädchen spielen im Schnee.\n'
done > train.tsv
cat > job.yaml <<J
name: on
task: translate
out: out
init: {from: opus}
train: {steps: 40, tokens: 256, max_len: 32, lr: 5e-3, threads: 1, log_every: 10}
data: [{file: train.tsv, lang: en-deu}]
J
"$nebula" train job.yaml > log 2>&1 || fail "training does not go on: $(cat log)"
awk '/loss/ { for (i = 1; i <= NF; i++) if ($i == "loss") { if (!first) first = $(i + 1); last = $(i + 1) } }
     END { exit !(last < first - 0.2) }' log || fail "it learned nothing: $(grep loss log)"
grep -q 'frame: "marian"' out/model.yaml || fail "the frame is lost: $(cat out/model.yaml)"
"$nebula" export out back && "$nebula" import back again > /dev/null || fail "the trained model does not go out and in"
for f in model.safetensors source.spm target.spm; do cmp -s out/$f again/$f || fail "$f differs after export and import"; done
"$nebula" translate out source > a && "$nebula" translate again source > b && cmp -s a b || fail "it translates otherwise"
if "$nebula" train job.yaml out=other "data[0].lang=en-xx" 2> err; then fail "a language without a token was trained"; fi
grep -q "job.yaml:6: .*>>xx<<" err || fail "the message does not say where: $(cat err)"
sed 's|init: .*|tokenizer: {file: opus/source.spm, frame: marian}\nmodel: {family: marian, hidden: 16, layers: 1, heads: 2}|; s/steps: 40/steps: 4/; s/out: out/out: fresh/' \
    job.yaml > fresh.yaml
"$nebula" train fresh.yaml > log 2>&1 || fail "a job does not train with Marian's tokenizer: $(cat log)"
grep -q 'frame: "marian"' fresh/model.yaml && cmp -s fresh/vocab.json opus/vocab.json || fail "not Marian's frame and vocabulary"
"$nebula" translate fresh source > /dev/null || fail "the new model does not translate"
"$nebula" import "$data/m2m100" many > /dev/null || fail "the import of M2M100 failed"
"$nebula" translate many source --from en --to de > /dev/null || fail "M2M100 does not translate"
if "$nebula" translate many source --to de 2> err; then fail "it translates from nowhere"; fi
grep -q -- '--from' err || fail "the message does not ask for the source language: $(cat err)"
"$nebula" import "$data/mt5" t5 > /dev/null || fail "the import of mT5 failed"
"$nebula" translate t5 source --beams 3 > one || fail "mT5 writes nothing"
[ "$(wc -l < one)" = 3 ] || fail "not three lines of mT5: $(cat one)"
sed 's/init: .*/init: {from: t5}/; s/out: out/out: tuned-t5/; s/en-deu/en-de/' job.yaml > t5.yaml
"$nebula" train t5.yaml > log 2>&1 || fail "training of mT5 does not go on: $(cat log)"
awk '/loss/ { for (i = 1; i <= NF; i++) if ($i == "loss") { if (!first) first = $(i + 1); last = $(i + 1) } }
     END { exit !(last < first - 0.2) }' log || fail "mT5 learned nothing: $(grep loss log)"
"$nebula" export tuned-t5 back-t5 && "$nebula" import back-t5 again-t5 > /dev/null || fail "the trained mT5 does not go out and in"
cmp -s tuned-t5/model.safetensors again-t5/model.safetensors || fail "mT5 changed on its way"
for o in parallel.tensor=2 parallel.pipeline=2; do
    if timeout 60 "$nebula" train t5.yaml out=never $o > log 2>&1; then fail "$o was taken for mT5"; fi
    grep -q 'positions: relative' log || fail "$o is not refused by the name of the option: $(cat log)"
done
# T5's pieces have no start token: padding is one in its own frame, and nowhere else
awk 'BEGIN { for (i = 0; i < 40; i++) print "A man is reading a book." }' > one.txt
cat > causal.yaml <<J
task: causal
model: {family: llama, hidden: 16, layers: 1, heads: 2}
tokenizer: {file: $data/mt5/spiece.model}
train: {steps: 1, tokens: 64, max_len: 16}
data: [{file: one.txt}]
out: never
J
if "$nebula" train causal.yaml > log 2>&1; then fail "a text began with padding"; fi
grep -q 'the tokenizer has no start token.*frame' log || fail "the message does not say what to do: $(tail -2 log)"
sed "s|init: .*|tokenizer: {file: $data/mt5/spiece.model}\nmodel: {family: transformer, hidden: 16, layers: 1, heads: 2}|" job.yaml > no.yaml
if "$nebula" train no.yaml out=never > log 2>&1; then fail "a target began with padding"; fi
grep -q 'the tokenizer has no start token.*frame' log || fail "the message does not say what to do: $(tail -2 log)"
sed "s|spiece.model}|spiece.model, frame: t5}|; s/steps: 40/steps: 2/" no.yaml > yes.yaml
"$nebula" train yes.yaml out=framed > log 2>&1 || fail "T5's frame is refused: $(tail -2 log)"
"$nebula" import "$data/llama3" llama > /dev/null 2>&1 || fail "the import of a Llama failed"
if "$nebula" import "$data/llama3_lora" tuned 2> err; then fail "an adapter without its base was taken"; fi
grep -q -- '--base' err || fail "the message does not ask for the base: $(cat err)"
"$nebula" import "$data/llama3_lora" tuned --base llama || fail "the adapter does not come in"
"$nebula" export tuned alone --adapter && [ -s alone/adapter_config.json ] || fail "the adapter does not go out"
"$nebula" import alone tuned2 --base llama && cmp -s tuned/model.safetensors tuned2/model.safetensors || fail "the adapter changed on its way"
if "$nebula" export llama alone2 --adapter 2> err; then fail "a model without LoRA went out as an adapter"; fi
grep -q 'only LoRA' err || fail "the message does not say why: $(cat err)"
printf 'the cat sat\nthe dog ran far\n' > ref
printf 'the cat sat\nfar the dog ran\n' > hyp
"$nebula" score ref --hyp hyp --spm opus/source.spm --signature > score || fail "no scores"
grep -q 'TER 14.29' score && grep -q '^spBLEU ' score || fail "not the scores: $(cat score)"
grep -q '^TER nrefs:1|case:lc|tok:tercom|norm:no|punct:yes|asian:no|version:' score || fail "not the signatures: $(cat score)"
for stem in flores200sacrebleuspm:flores200 sacrebleu_tokenizer_spm:flores101; do
    cp opus/source.spm "${stem%:*}.model" && "$nebula" score ref --hyp hyp --spm "${stem%:*}.model" --signature > score
    grep -q "^spBLEU .*|tok:${stem#*:}|" score || fail "not sacreBLEU's name of the model: $(cat score)"
done
cp flores200sacrebleuspm.model flores200sacrebleuspm # as sacreBLEU keeps it
"$nebula" score ref --hyp hyp --spm flores200sacrebleuspm --signature | grep -q '^spBLEU .*|tok:flores200|' || fail "not without an ending"
"$nebula" score ref --hyp hyp --tokenize zh --signature | grep -q '^BLEU .*|tok:zh|' || fail "no Chinese words"
echo "pretrained: ok"
