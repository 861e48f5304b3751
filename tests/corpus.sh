#!/bin/sh
# From text files to verified token sets and scores, through the command line.
set -eu
nebula=$1
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }

awk 'BEGIN { srand(1); split("lum tar ven kor sil mar del pon rix gal", w)
    for (i = 0; i < 2000; i++) { a = ""; b = ""; n = 3 + int(rand() * 9)
        for (k = 0; k < n; k++) { x = w[1 + int(rand() * 10)] w[1 + int(rand() * 10)]; a = a " " x "a"; b = b " " x "en" }
        print substr(a, 2) "\t" substr(b, 2) } }' > "$dir/pairs.tsv"
cut -f1 "$dir/pairs.tsv" | gzip > "$dir/a.txt.gz"
cut -f2 "$dir/pairs.tsv" > "$dir/b.txt"

"$nebula" corpus tokenizer --vocab 120 --langs aa,bb --out "$dir/t.model" "$dir/pairs.tsv" | grep -q 'pieces' || fail "corpus tokenizer"
"$nebula" corpus tokenise --tokenizer "$dir/t.model" --pair aa-bb --out "$dir/pairs" "$dir/pairs.tsv" |
    grep -q '2000 samples' || fail "tokenise pairs"
"$nebula" corpus tokenise --tokenizer "$dir/t.model" --lang aa --out "$dir/mono" "$dir/a.txt.gz" | grep -q '2000 samples' ||
    fail "tokenise compressed text"
gunzip "$dir/a.txt.gz"
"$nebula" corpus tokenise --tokenizer "$dir/t.model" --pair aa-bb --two-files --out "$dir/two" "$dir/a.txt" "$dir/b.txt" \
    >/dev/null || fail "tokenise two files"
[ "$("$nebula" corpus check "$dir/pairs" "$dir/mono" "$dir/two" | grep -c ': ok')" = 3 ] || fail "corpus check does not accept three good sets"
printf 'x' | dd of="$(ls "$dir"/mono/*.tok)" bs=1 seek=300 conv=notrunc 2>/dev/null
if "$nebula" corpus check "$dir/mono" 2>/dev/null; then fail "damage was not noticed"; fi

"$nebula" score "$dir/b.txt" < "$dir/b.txt" | grep -q 'BLEU 100.00' || fail "a text scored against itself is not 100"
"$nebula" score --tokenize none "$dir/b.txt" < "$dir/a.txt" | grep -q 'BLEU 0.00' || fail "a text without a right word is not 0"
if head -5 "$dir/b.txt" | "$nebula" score "$dir/b.txt" 2>/dev/null; then fail "files of different length were scored"; fi

# Without apt the command says what to do.
PATH=/nonexistent "$nebula" corpus debian --out "$dir/deb" 2>&1 | grep -q 'What to do: get the Debian package' ||
    fail "without apt the command does not say what to do"
echo "corpus: ok"
