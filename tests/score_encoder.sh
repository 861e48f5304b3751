#!/bin/bash
# Sentences compared by an imported encoder: tests/score_encoder.sh NEBULA-I. tools/score_parity.py recorded what the packages
# bert-score and unbabel-comet say about these sentences.
set -eu
nebula=$1
data=$(cd "$(dirname "$0")" && pwd)/data/bertscore
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; exit 1; }
"$nebula" import "$data" encoder > import.log 2>&1 || { cat import.log >&2; fail "importing the encoder"; }
while read -r layer want; do
    "$nebula" score --encoder encoder --layer $layer --threads 1 --hyp "$data/hyp.txt" --source "$data/source.txt" "$data/ref.txt" "$data/second.txt" > out.txt 2> err.txt ||
        { cat err.txt >&2; fail "layer $layer"; }
    got=$(sed -n 's/^BERTScore P \([0-9.-]*\), R \([0-9.-]*\), F1 \([0-9.-]*\) .*/\1 \2 \3/p; s/^cosine of sentence vectors: to the reference \([0-9.-]*\), to the source \([0-9.-]*\)$/\1 \2/p' out.txt | tr '\n' ' ')
    awk -v a="$want" -v b="$got" 'BEGIN { n = split(a, x, " "); m = split(b, y, " "); if (n != 5 || m != 5) exit 1
        for (i = 1; i <= n; i++) if ((d = x[i] - y[i]) > 6e-5 || d < -6e-5) exit 1 }' || { cat out.txt; fail "layer $layer: $want expected, got $got"; }
done < "$data/expect.txt"
grep -q "BLEU" out.txt || fail "the other scores are missing"

# COMET estimators out of checkpoints of the unbabel-comet package, with references and without.
estimate() { "$nebula" score --encoder encoder --threads 1 --hyp "$data/hyp.txt" --source "$data/source.txt" "$@" "$data/ref.txt"; }
while read -r file want; do
    got=$(estimate --estimator "$data/$file" | sed -n 's/^COMET estimator \([0-9.-]*\) .*/\1/p')
    awk -v a="$want" -v b="${got:-none}" 'BEGIN { exit !(b != "none" && (d = a - b) < 6e-5 && d > -6e-5) }' || fail "$file: $want expected, got $got"
done < "$data/estimators.txt"

# A sentence is like itself; without text it is like nothing.
"$nebula" score --encoder encoder --hyp "$data/ref.txt" "$data/ref.txt" | grep -q "BERTScore P 1.0000, R 1.0000, F1 1.0000" || fail "a text is not like itself"
printf '\n\n\n\n' > empty.txt
"$nebula" score --encoder encoder --hyp empty.txt "$data/ref.txt" | grep -q "BERTScore P 0.0000, R 0.0000, F1 0.0000" || fail "empty lines"

# LaBSE: the first token, a dense layer, length 1; in, out and in again. tools/hf_parity.py recorded its vectors.
labse=$(dirname "$data")/labse
near() { awk -v file="$1" '{ getline line < file; n = split(line, x, " "); if (n != NF) exit 1
    for (i = 1; i <= n; i++) if ((d = x[i] - $i) > 2e-5 || d < -2e-5) exit 1; seen++ } END { exit seen != 2 }'; }
"$nebula" import "$labse" ours > import.log 2>&1 || { cat import.log >&2; fail "importing LaBSE"; }
"$nebula" embed ours "$labse/lines.txt" > vectors.txt
near "$labse/expect.txt" < vectors.txt || fail "other sentence vectors than sentence-transformers has"
"$nebula" export ours back > export.log 2>&1 || { cat export.log >&2; fail "exporting LaBSE"; }
"$nebula" import back again > import.log 2>&1 || { cat import.log >&2; fail "importing the export"; }
cmp ours/sentence.safetensors again/sentence.safetensors || fail "another dense layer came back"
"$nebula" embed again "$labse/lines.txt" | cmp - vectors.txt || fail "the export has other vectors"
"$nebula" embed --layer 1 ours "$labse/lines.txt" | awk 'NF != 16 { exit 1 }' || fail "a lower layer has no dense layer behind it"
"$nebula" score --encoder ours --hyp "$labse/lines.txt" "$labse/lines.txt" | grep -q "to the reference 1.0000" || fail "a sentence is not near itself"
cp -r "$labse" odd
sed -i 's/"pooling_mode_max_tokens": false/"pooling_mode_max_tokens": true/; s/"pooling_mode_cls_token": true/"pooling_mode_cls_token": false/' odd/1_Pooling/config.json
! "$nebula" import odd odd-ours > odd.log 2>&1 || fail "accepted another pooling"
grep -q "pooling_mode_max_tokens" odd.log || { cat odd.log >&2; fail "the pooling is not named"; }
cp "$labse/1_Pooling/config.json" odd/1_Pooling/ && sed -i 's/activation.Tanh/activation.ReLU/' odd/2_Dense/config.json
! "$nebula" import odd odd-ours > odd.log 2>&1 || fail "accepted another activation"
grep -q "activation.ReLU" odd.log || { cat odd.log >&2; fail "the activation is not named"; }

refused() { # MESSAGE WORD…
    local message=$1; shift
    ! "$nebula" score "$@" > refused.log 2>&1 || fail "accepted: $*"
    grep -q -- "$message" refused.log || { cat refused.log >&2; fail "another message than '$message'"; }
}
refused "name its folder with --encoder" --hyp "$data/hyp.txt" --source "$data/source.txt" "$data/ref.txt"
head -n 2 "$data/source.txt" > short.txt
refused "fewer sentences than the translation" --encoder encoder --hyp "$data/hyp.txt" --source short.txt "$data/ref.txt"
refused "has no tensor mix" --encoder encoder --estimator "$data/model.safetensors" --source "$data/source.txt" --hyp "$data/hyp.txt" "$data/ref.txt"
refused "name their file with --source" --encoder encoder --estimator "$data/softmax.safetensors" --hyp "$data/hyp.txt" "$data/ref.txt"
refused "leave out --layer" --encoder encoder --layer 1 --estimator "$data/softmax.safetensors" --source "$data/source.txt" --hyp "$data/hyp.txt" "$data/ref.txt"
refused "nowhere" --encoder nowhere --hyp "$data/hyp.txt" "$data/ref.txt"
echo "score_encoder: ok"
