#!/bin/sh
# An imported decoder with a tokenizer.json continues texts: the same text twice, another with another seed, answers to prompts and to
# lines, messages for models that cannot.
set -u
nebula=$1 data=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
fail() { echo "generate: $*" >&2; exit 1; }
mkdir from
cp "$data/hf/gpt2/config.json" "$data/hf/gpt2/model.safetensors" from
# the model has 31 tokens: a tokenizer of as many
cat > from/tokenizer.json <<J
{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7, "i": 8, "j": 9, "k": 10, "l": 11,
 "m": 12, "n": 13, "o": 14, "p": 15, "q": 16, "r": 17, "s": 18, "t": 19, "u": 20, "v": 21, "w": 22, "x": 23, "y": 24, "z": 25, "ab": 26,
 "cd": 27, "ef": 28, "gh": 29}, "merges": ["a b", "c d", "e f", "g h"]}, "decoder": {"type": "Fuse"},
 "added_tokens": [{"id": 30, "content": "</s>", "special": true}]}
J
echo '{"eos_token": "</s>", "model_max_length": 1000000000000000019884624838656}' > from/tokenizer_config.json
"$nebula" import from model > /dev/null || fail "the import failed"
"$nebula" generate model abc --max-new 8 --temperature 0 > one || fail "no text"
"$nebula" generate model abc --max-new 8 --temperature 0 > two || fail "no text"
cmp -s one two || fail "the likeliest text differs from run to run"
[ "$(wc -l < one)" = 1 ] || fail "not one line: $(cat one)"
"$nebula" generate model abc --max-new 8 --temperature 0 --scores > scores || fail "no scores"
[ "$(grep -c . scores)" -ge 1 ] || fail "no token has a score"
awk 'NF == 2 && $2 > 0 { exit 1 }' scores || fail "a log-probability is above 0"
"$nebula" generate model abc --max-new 14 --seed 1 > s1 && "$nebula" generate model abc --max-new 14 --seed 1 > s2 || fail "no sample"
cmp -s s1 s2 || fail "one seed gives two texts"
differ=0
for seed in 2 3 4 5; do
    "$nebula" generate model abc --max-new 14 --seed $seed --temperature 2 > s2 && cmp -s s1 s2 || differ=1
done
[ $differ = 1 ] || fail "every seed gives the same text"
printf 'ab\ncd\n' | "$nebula" generate model --max-new 4 --temperature 0 > lines || fail "no answers to lines"
[ "$(wc -l < lines)" = 2 ] || fail "two lines have $(wc -l < lines) answers"
if "$nebula" generate model "$(printf 'abcdefghij%.0s' 1 2 3 4)" 2> err; then fail "a prompt longer than the model was taken"; fi
grep -q 'the prompt has' err || fail "the message does not say why: $(cat err)"
"$nebula" import "$data/hf/bert" encoder > /dev/null 2>&1 || fail "the import of an encoder failed"
if "$nebula" generate encoder abc 2> err; then fail "an encoder generated"; fi
grep -q 'does not continue texts' err || fail "the message does not say why: $(cat err)"
# Qwen's folders have a vocab.json beside the tokenizer.json; read as GPT-2's it would give other ids
mkdir qwen
cp "$data/hf/qwen2/config.json" "$data/hf/qwen2/model.safetensors" from/tokenizer.json from/tokenizer_config.json qwen
echo '{"a": 0}' > qwen/vocab.json
: > qwen/merges.txt
"$nebula" import qwen qwen-model > /dev/null || fail "the import of a Qwen failed"
grep -q 'tokenizer: .*tokenizer.json' qwen-model/model.yaml || fail "not its tokenizer.json: $(grep tokenizer qwen-model/model.yaml)"
"$nebula" generate qwen-model abc --max-new 8 --temperature 0 > /dev/null || fail "a Qwen does not generate"
# characters of several tokens appear once, and the space before the first new word stays
LC_ALL=C awk 'BEGIN { printf "{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"merges\": [], \"vocab\": {"
    for (i = 0; i < 30; i++) printf "%s\"<0x%02X>\": %d", i ? ", " : "", i < 15 ? 195 + i : 113 + i, i
    print "}}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]},"
    print "\"added_tokens\": [{\"id\": 30, \"content\": \"</s>\", \"special\": true}]}" }' > model/tokenizer.json
awk 'BEGIN { for (i = 0; i < 200; i++) print "\303\200" }' > prompts
"$nebula" generate model --max-new 4 --temperature 9 --top-p 1 < prompts > bytes || fail "no bytes"
"$nebula" generate model --max-new 4 --temperature 9 --top-p 1 --scores < prompts |
    awk 'NF { row = row $1 " "; next } { print row; row = "" }' > ids # an empty line ends a text
"$nebula" corpus decode --tokenizer model/tokenizer.json < ids > whole || fail "the numbers are not decoded"
paste ids bytes whole | awk -F'\t' '!/\357\277\275/ && split($1, n, " ") == 4 { if ($2 != $3) exit 1; all++ } END { if (all < 3) exit 2 }' ||
    fail "a text is not what its tokens are: $(paste bytes whole | awk -F'\t' '$1 != $2' | head -3)"
sed 's/"\([a-z]*\)": \([0-9]\)/"▁\1": \2/g; s/"merges": \[.*\]}/"merges": []}/; s/{"type": "Fuse"}/{"type": "Metaspace"}/
s/"decoder"/"pre_tokenizer": {"type": "Metaspace"}, "decoder"/; s/"vocab"/"ignore_merges": true, "vocab"/
s/"▁id"/"id"/' from/tokenizer.json > model/tokenizer.json
"$nebula" generate model "a b" --max-new 4 --temperature 0 > words || fail "no words"
grep -q '^ [a-z]' words || fail "the words do not go on from the prompt: '$(cat words)'"
