#!/bin/sh
# The tokenizers of Hugging Face folders: tokenizer.json comes first, options and classes that would cut a text otherwise are refused by
# their names, a tokenizer that cannot be opened is said at the import; what begins and what ends a text.
set -u
nebula=$1 data=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
fail() { echo "tokenizer_folder: $*" >&2; exit 1; }
# refused FOLDER WORDS: the import fails and says so
refused() {
    rm -rf out
    if "$nebula" import "$1" out > /dev/null 2> err; then fail "taken, without a word of $2"; fi
    grep -q "$2" err || fail "the message does not name $2: $(cat err)"
}
# ---- BERT's vocab.txt
mkdir bert
cp "$data/hf/bert/config.json" "$data/hf/bert/model.safetensors" bert
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' a b c cafe > bert/vocab.txt
config() { printf '%s' "$2" > "$1/tokenizer_config.json"; }
config bert '{"tokenizer_class": "BertTokenizer", "strip_accents": null, "never_split": null, "tokenize_chinese_chars": true}'
"$nebula" import bert out > /dev/null 2>&1 || fail "a plain BERT is refused"
config bert '{"do_lower_case": true, "strip_accents": false}' && refused bert "'strip_accents': false"
config bert '{"do_lower_case": false, "strip_accents": true}' && refused bert "'strip_accents': true"
config bert '{"tokenize_chinese_chars": false}' && refused bert "'tokenize_chinese_chars': false"
config bert '{"do_basic_tokenize": false}' && refused bert "'do_basic_tokenize': false"
config bert '{"never_split": ["b c"]}' && refused bert "'never_split': a list"
config bert '{"tokenizer_class": "BertJapaneseTokenizer"}' && refused bert "'tokenizer_class': BertJapaneseTokenizer"
config bert '{"tokenizer_class": "PhobertTokenizer"}' && refused bert "'tokenizer_class': PhobertTokenizer"
config bert '{"do_lower_case": tru' && refused bert 'tokenizer_config.json, line 1'
# a tokenizer.json beside it comes first, also where the config names no token; its added tokens are there
json() {
    printf '{"normalizer": {"type": "BertNormalizer", "lowercase": %s, "handle_chinese_chars": true, "strip_accents": null},
 "pre_tokenizer": {"type": "%s"}, "model": {"type": "WordPiece", "unk_token": "%s", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
 "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5, "b": 6, "c": 7, "cafe": 8}}, "added_tokens": [
 {"id": 0, "content": "[PAD]", "special": true}, {"id": 1, "content": "[UNK]", "special": true}, {"id": 2, "content": "[CLS]", "special": true},
 {"id": 3, "content": "[SEP]", "special": true}, {"id": 4, "content": "[MASK]", "special": true}, {"id": %s, "content": "new", "special": false}]}' \
        "$1" "$2" "${3:-[UNK]}" "${4:-9}"
}
config bert '{"do_lower_case": true}'
json true BertPreTokenizer > bert/tokenizer.json
"$nebula" import bert out > /dev/null 2>&1 || fail "a BERT with both files is refused"
grep -q 'tokenizer: "tokenizer.json"' out/model.yaml || fail "not its tokenizer.json: $(cat out/model.yaml)"
[ "$(echo 'A new cafe' | "$nebula" corpus encode --tokenizer out/tokenizer.json)" = '5 9 8' ] || fail "the added token is lost"
cmp -s bert/vocab.txt out/vocab.txt && "$nebula" export out bert-back > /dev/null && cmp -s bert/vocab.txt bert-back/vocab.txt || fail "vocab.txt does not come along"
# where it cannot be read, or contradicts the class, the vocabulary is taken and the import says so
json false BertPreTokenizer > bert/tokenizer.json
"$nebula" import bert out > /dev/null 2> err || fail "no vocabulary behind a contradiction"
grep -q "vocab.txt is taken instead of tokenizer.json: .*'do_lower_case': true" err || fail "not said: $(cat err)"
grep -q 'tokenizer: "vocab.txt"' out/model.yaml || fail "not its vocab.txt: $(cat out/model.yaml)"
json true UnicodeScripts > bert/tokenizer.json
"$nebula" import bert out > /dev/null 2> err && grep -q 'vocab.txt is taken.*UnicodeScripts' err || fail "not said: $(cat err)"
# ---- a tokenizer that nobody can open: the weights are taken, and the reason is said
rm bert/vocab.txt
# warned WORDS: of the folder bert
warned() {
    rm -rf out
    "$nebula" import bert out > /dev/null 2> err || fail "the weights are not taken: $(cat err)"
    grep -q "only the weights are taken.*$1" err || fail "the reason is not $1: $(cat err)"
    if grep -q '^tokenizer' out/model.yaml; then fail "the folder has a tokenizer that cannot be read"; fi
}
warned UnicodeScripts
json true BertPreTokenizer '[UNK]' -5 > bert/tokenizer.json && warned "the number of piece 'new'"
json true BertPreTokenizer '[nothing]' > bert/tokenizer.json && warned "unk_token '.nothing.'"
json true BertPreTokenizer | sed 's/WordPiece/BPE/; s/"vocab"/"merges": ["a q"], "vocab"/' > bert/tokenizer.json && warned merge
echo '{' > bert/tokenizer.json && warned 'line 2'
json true BertPreTokenizer '[UNK]' 999 > bert/tokenizer.json && refused bert 'has 1000 tokens, the model only'
# ---- GPT-2: no start token unless the folder asks for one, nor unless it was trained with one
mkdir gpt2
cp "$data/hf/gpt2/config.json" "$data/hf/gpt2/model.safetensors" gpt2
awk 'BEGIN { printf "{"; for (i = 0; i < 26; i++) printf "\"%c\": %d, ", 97 + i, i
    print "\"ab\": 26, \"cd\": 27, \"ef\": 28, \"gh\": 29, \"<|endoftext|>\": 30}" }' > gpt2/vocab.json
printf '#version: 0.2\na b\nc d\ne f\ng h\n' > gpt2/merges.txt
say() { "$nebula" generate "$1" abc --max-new 8 --temperature 0 ${2:-}; }
"$nebula" import gpt2 model > /dev/null || fail "the import of a GPT-2 failed"
[ "$(say model --start=yes)" != "$(say model --start=no)" ] || fail "the start token changes nothing: not a test"
[ "$(say model)" = "$(say model --start=no)" ] || fail "a start token nobody asked for"
config gpt2 '{"add_bos_token": true}'
"$nebula" import gpt2 model > /dev/null && [ "$(say model)" = "$(say model --start=yes)" ] || fail "add_bos_token is not followed"
config gpt2 '{"add_prefix_space": true}' && refused gpt2 "'add_prefix_space': true"
rm gpt2/tokenizer_config.json
"$nebula" import gpt2 model > /dev/null || fail "the import of a GPT-2 failed"
cat > job.yaml <<J
task: causal
init: {from: model}
train: {steps: 1, tokens: 64, max_len: 8, lr: 1e-6}
data: [{file: text}]
out: trained
J
awk 'BEGIN { for (i = 0; i < 200; i++) print "abcdefgh" }' > text
"$nebula" -q train job.yaml > log 2>&1 || fail "no training: $(tail -3 log)"
[ "$(say trained)" = "$(say trained --start=yes)" ] || fail "it was trained with a start token and reads none"
"$nebula" export trained back && "$nebula" import back again > /dev/null && [ "$(say again)" = "$(say again --start=yes)" ] ||
    fail "the start token is lost on the way out and in"
cat > own.yaml <<J
task: causal
model: {family: llama, hidden: 16, layers: 1, heads: 2, ffn: 16}
tokenizer: {vocab: 40}
train: {steps: 1, tokens: 64, max_len: 8}
data: [{file: text}]
out: own
J
"$nebula" -q train own.yaml > log 2>&1 && "$nebula" export own llama > /dev/null || fail "no Llama of our own: $(tail -3 log)"
mv llama/spiece.model llama/tokenizer.model
for says in true false; do
    config llama "{\"tokenizer_class\": \"LlamaTokenizer\", \"add_bos_token\": $says}"
    "$nebula" import llama taken > /dev/null || fail "a SentencePiece folder is refused"
    [ $says = true ] && want=yes || want=no
    grep -q "starts: \"$want\"" taken/model.yaml || fail "add_bos_token: $says is not followed: $(cat taken/model.yaml)"
    [ "$(say taken)" = "$(say taken --start=$want)" ] || fail "the start token is not as the folder says"
done
# ---- lists of end tokens: kept, and each of them ends a text
first=$("$nebula" generate model abc --max-new 8 --temperature 0 --scores | awk 'NF { print $1 }' | sed -n 3p)
[ "$first" ] || fail "no third token"
printf '{"eos_token_id": [30, %s], "temperature": 0.6}' "$first" > gpt2/generation_config.json
"$nebula" import gpt2 ended > /dev/null && cmp -s gpt2/generation_config.json ended/generation_config.json || fail "generation_config.json is lost"
"$nebula" generate ended abc --max-new 8 --temperature 0 --scores > scores || fail "no text"
[ "$(grep -c . scores)" -lt 3 ] || fail "the text goes on behind an end token: $(cat scores)"
"$nebula" export ended back > /dev/null && cmp -s gpt2/generation_config.json back/generation_config.json || fail "it does not go out"
"$nebula" -q train job.yaml init.from=ended out=went > log 2>&1 && cmp -s gpt2/generation_config.json went/generation_config.json ||
    fail "a training loses the end tokens: $(tail -3 log)"
rm gpt2/generation_config.json
sed "s/\"eos_token_id\": [0-9]*/\"eos_token_id\": [30, $first]/" "$data/hf/gpt2/config.json" > gpt2/config.json
"$nebula" import gpt2 listed > /dev/null || fail "a list in config.json is refused"
"$nebula" generate listed abc --max-new 8 --temperature 0 --scores > other && cmp -s scores other || fail "config.json's list is lost"
printf '{"eos_token_id": "x"}' > listed/generation_config.json
if "$nebula" generate listed abc 2> err; then fail "an end token that is none was taken"; fi
grep -q "generation_config.json, 'eos_token_id'" err || fail "the message does not say where: $(cat err)"
echo "tokenizer_folder: all well"
