#!/bin/sh
# Runs tools/science from text to a table, with made-up pairs in place of Multi30k and with tiny models. Checks what it refuses.
set -eu
nebula=$1
science=$(cd "$(dirname "$0")/.." && pwd)/tools/science
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

mkdir -p "$dir/data/mt/multi30k/tok"
for set in train:200:1 val:12:2 test_2016_flickr:12:3; do
    name=${set%%:*} rest=${set#*:}
    awk -v n="${rest%:*}" -v seed="${rest#*:}" -v base="$dir/data/mt/multi30k/tok/$name.lc.norm.tok" 'BEGIN { srand(seed)
        a = split("the red green dog cat man runs sees here now", x, " "); split("der rote grüne hund kater mann rennt sieht hier jetzt", y, " ")
        for (i = 0; i < n; i++) { s = t = ""; k = 3 + int(rand() * 4)
            for (j = 0; j < k; j++) { w = 1 + int(rand() * a); s = s (j ? " " : "") x[w]; t = t (j ? " " : "") y[w] }
            print s > (base ".en"); print t > (base ".de") } }'
done

"$science" --help | grep -q '^  pretrain ' || fail "--help does not list the commands"
if "$science" multi30k --nebula "$nebula" --data "$dir" --out "$dir/out" 2> "$dir/err"; then fail "a folder without text was accepted"; fi
grep -q 'NEBULA_DATA' "$dir/err" || fail "the message does not say what is missing: $(cat "$dir/err")"
if "$science" multi30k --nebula "$nebula" --data "$dir/data" --out "$dir/out" --step 3 2> "$dir/err"; then fail "an unknown option was accepted"; fi

"$science" multi30k --nebula "$nebula" --data "$dir/data" --out "$dir/out" --device cpu --threads 1 --jobs 2 --seeds 1,2 \
    tokenizer.vocab=60 model.hidden=32 model.layers=1 model.ffn=32 train.steps=6 train.warmup=2 train.tokens=128 train.max_len=32 \
    train.save_every=2 train.eval_every=0 > "$dir/said" 2>&1 || { cat "$dir/said"; fail "multi30k"; }
grep -q '^recipe  *[0-9.]* *[0-9.]* *[0-9.]* *[0-9.]*$' "$dir/said" || { cat "$dir/said"; fail "the table lacks the line of an arm"; }
for arm in recipe varied; do
    for seed in 1 2; do
        awk -F'\t' -v a=$arm -v s=$seed '$1 == "multi30k" && $2 == a && $3 == s && $5 != "" { n[$4]++ }
            END { exit !(n["val"] == 1 && n["test"] == 1) }' "$dir/out/results.tsv" || fail "results.tsv lacks the numbers of $arm, seed $seed"
    done
done
# A training that fails is named. The others are measured all the same.
if "$science" multi30k --nebula "$nebula" --data "$dir/data" --out "$dir/out" --device nowhere --threads 1 --seeds 1 --arms recipe \
    tokenizer.vocab=60 train.steps=6 train.warmup=2 train.tokens=128 train.max_len=32 > "$dir/said" 2>&1; then
    fail "a training on an unknown device succeeded"
fi
grep -q 'FAILED: multi30k/recipe.1.train' "$dir/said" || { cat "$dir/said"; fail "the failed training is not named"; }
echo "science: ok"
