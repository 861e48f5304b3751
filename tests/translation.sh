#!/bin/sh
# From text to translations: trains a job, translates and measures with its folder, and trains other models from it.
set -eu
nebula=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; exit 1; }

# Sentences over 12 words; the other language has other words in the same order.
pairs() {
    awk -v n="$1" -v seed="$2" 'BEGIN { srand(seed); a = split("the a red green dog cat man tree runs sees here now", x, " ");
        split("der ein rote grüne hund kater mann baum rennt sieht hier jetzt", y, " ");
        for (i = 0; i < n; i++) { s = t = ""; k = 3 + int(rand() * 5)
            for (j = 0; j < k; j++) { w = 1 + int(rand() * a); s = s (j ? " " : "") x[w]; t = t (j ? " " : "") y[w] }
            print s "\t" t } }'
}
pairs 2000 1 > train.tsv
pairs 60 2 > valid.tsv
cut -f1 valid.tsv > source
cut -f2 valid.tsv > reference
cat > mt.yaml <<'END'
name: words
task: translate
out: mt
tokenizer: {vocab: 60}
model: {hidden: 64, layers: 1, heads: 4, ffn: 64, dropout: 0, attention_dropout: 0, max_positions: 40, init_deviation: 0.1}
train: {steps: 200, tokens: 256, max_len: 40, lr: 3e-3, threads: 2, log_every: 100, save_every: 50, average: 2}
data:
  - {file: train.tsv, lang: en-de}
  - {file: valid.tsv, lang: en-de, use: valid}
END
"$nebula" train mt.yaml > train.out 2>&1 || { cat train.out; fail "train"; }
"$nebula" eval bleu mt source reference --tokenize none --write hyp > bleu.out || fail "eval bleu"
awk '{ exit !($1 == "BLEU" && $2 > 60) }' bleu.out || fail "the translation is bad: $(cat bleu.out)"
{ cat source; echo; echo "the dog"; } | "$nebula" translate mt --beams 5 --batch 7 > hyp2 || fail "translate"
test "$(wc -l < hyp2)" = 62 || fail "not one translation for each line"
head -60 hyp2 | cmp -s - hyp || fail "batches change the translation"
sed -n 61p hyp2 | grep -q '^$' || fail "an empty line stays empty"
"$nebula" translate mt --beams 1 source > /dev/null || fail "translate with one beam"
"$nebula" eval loss mt.yaml > loss.out 2>&1 || fail "eval loss"
held=$(awk '/^held out/ { print $7 + 0 }' train.out | tail -1)
grep -q "^valid loss $held" loss.out || fail "the folder has another loss than the trained model: $held, $(cat loss.out)"
"$nebula" eval retrieval mt source reference | grep -q '^mean of 1' || fail "eval retrieval"

# Other models learn from these texts and from the folder: an encoder of sentence pairs, a smaller student.
awk -F'\t' 'BEGIN { print "premise\thypothesis\tlabel" } NR > 1 { print p "\t" $1 "\t" ($1 ~ /dog|tree/ ? 0 : 2) } { p = $1 }' \
    train.tsv | head -600 > nli.tsv
sed -e 's/task: translate/task: mlm/' -e 's/out: mt/out: enc/' -e 's/steps: 200/steps: 40/' mt.yaml > enc.yaml
"$nebula" train enc.yaml > enc.out 2>&1 || { cat enc.out; fail "train an encoder"; }
"$nebula" eval nli enc --train nli.tsv --epochs 4 --lr 3e-3 --threads 2 nli.tsv > nli.out 2>/dev/null || fail "eval nli"
awk '/^nli.tsv/ { exit !($3 > 80) }' nli.out || fail "the classifier does not tell the pairs apart: $(cat nli.out)"
"$nebula" train mt.yaml out=student distill.teacher=mt distill.weight=1 model.hidden=32 train.steps=40 > st.out 2>&1 ||
    { cat st.out; fail "train a student"; }

# Replaced-token detection: the losses at the end of a training are measured again from its two folders.
sed -e 's/task: translate/task: rtd/' -e 's/steps: 200/steps: 30/' -e '/^model/d' mt.yaml > rtd.yaml
cat >> rtd.yaml <<'END'
model: {family: electra, hidden: 32, embedding: 16, layers: 1, heads: 2, ffn: 32, init_deviation: 0.2}
generator: {hidden: 16, layers: 1, heads: 2, ffn: 32, init_deviation: 0.2}
END
for how in separate shared disentangled; do
    "$nebula" train rtd.yaml out=rtd cache=rtd.cache train.rtd_embeddings=$how train.average=0 > rtd.out 2>&1 ||
        { cat rtd.out; fail "train a discriminator"; }
    held=$(sed -n 's/^held out.*discriminator loss \([0-9.]*\),.*/\1/p' rtd.out | tail -1)
    "$nebula" eval loss rtd.yaml out=rtd cache=rtd.cache train.rtd_embeddings=$how > loss.out 2>&1 || fail "eval loss, $how"
    grep -q "^replaced tokens: loss $held," loss.out || fail "$how embeddings: $held in training, then $(cat loss.out)"
    rm -r rtd
done

# Demands that cannot be met get an answer.
"$nebula" help job | grep -q 'hidden_loss' || fail "help job does not list every key"
if "$nebula" translate enc source > /dev/null 2> err; then fail "an encoder translated"; fi
grep -q 'does not translate' err || fail "the message does not say why: $(cat err)"
if "$nebula" translate nowhere source > /dev/null 2> err; then fail "a missing folder translated"; fi
grep -q 'nowhere/model.yaml' err || fail "the message does not name the missing file: $(cat err)"
head -c 100 mt/model.safetensors > enc/model.safetensors
if "$nebula" eval retrieval enc source reference > /dev/null 2>&1; then fail "a torn model was accepted"; fi
echo "translation: ok"
