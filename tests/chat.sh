#!/bin/sh
# An imported decoder converses: with the folder's template, with a named one and with a file; an answer ends where the template says;
# special tokens in a message stay text; the template goes on to the folder that a training writes; stop strings, prompts from a file,
# Ctrl-C; messages for folders and templates that do not do.
set -u
nebula=$1 data=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
fail() { echo "chat: $*" >&2; exit 1; }
mkdir from
cp "$data/hf/llama3/config.json" "$data/hf/llama3/model.safetensors" from
# the model has 31 tokens: a tokenizer of as many
cat > from/tokenizer.json <<J
{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7, "i": 8, "j": 9, "k": 10, "l": 11,
 "m": 12, "n": 13, "o": 14, "p": 15, "q": 16, "r": 17, "s": 18, "t": 19, "u": 20, "v": 21, "w": 22, "x": 23, "y": 24, "z": 25, "<": 26,
 ">": 27}, "merges": []}, "decoder": {"type": "Fuse"},
 "added_tokens": [{"id": 28, "content": "<t>", "special": true}, {"id": 29, "content": "<e>", "special": true},
 {"id": 30, "content": "</s>", "special": true}]}
J
echo '{"eos_token": "</s>", "bos_token": null}' > from/tokenizer_config.json
"$nebula" import from model > /dev/null || fail "the import failed"
# no template
if "$nebula" chat model ab 2> err; then fail "a folder without a template converses"; fi
grep -q 'no chat template in model.*chatml, llama2, llama3, mistral, gemma, plain' err || fail "the message does not say what to do: $(cat err)"
printf '{%% for m in messages %%}<t>{{ m[0:1] | trim }}{%% endfor %%}' > bad.jinja
if "$nebula" chat model ab --template bad.jinja 2> err; then fail "a slice of a table was taken"; fi
grep -q "line 1: the slice 'of something that is not a list' is not known" err || fail "the message does not name it: $(cat err)"
if "$nebula" chat model ab --template lama 2> err; then fail "an unknown template was taken"; fi
grep -q "there is no chat template lama" err || fail "the message does not name it: $(cat err)"
printf '{%% for m in messages %%}<t>{{ m.content }}<e>{%% endfor %%}{%% if add_generation_prompt %%}<t>{%% endif %%}' > from/chat_template.jinja
"$nebula" import from model > /dev/null || fail "the import with a template failed"
[ "$("$nebula" chat model 'ab<t>c' --ids)" = '28 0 1 26 19 27 2 29 28' ] || fail "the tokens: $("$nebula" chat model 'ab<t>c' --ids)"
[ "$("$nebula" chat model ab --system z --ids)" = '28 25 29 28 0 1 29 28' ] || fail "no system message: $("$nebula" chat model ab --system z --ids)"
# two messages are one conversation, from words and from lines
"$nebula" chat model ab cd --max-new 6 --seed 3 > words || fail "no conversation"
printf 'ab\n\ncd\n/new\nab\n' | "$nebula" chat model --max-new 6 --seed 3 > lines || fail "no conversation of lines"
[ "$(wc -l < words)" = 2 ] && [ "$(wc -l < lines)" = 3 ] || fail "not an answer a message: $(cat words lines)"
head -2 lines | cmp -s - words || fail "lines and words differ: $(cat words lines)"
# what the cache has kept changes nothing: the answer is that to the whole conversation
"$nebula" chat model ab cd --max-new 6 --temperature 0 > greedy || fail "no greedy conversation"
one=$(sed -n 1p greedy) two=$(sed -n 2p greedy)
printf '<t>ab<e><t>%s<e><t>cd<e><t>' "$one" > whole.jinja
printf '{%% if messages | length < 3 %%}%s{%% else %%}{%% for m in messages %%}<t>{{ m.content }}<e>{%% endfor %%}{%% endif %%}' "$(cat whole.jinja)" > once.jinja
[ "$("$nebula" chat model x --template once.jinja --max-new 6 --temperature 0)" = "$two" ] || fail "the second answer depends on the cache"
# the template's token ends an answer, beside the tokenizer's: of 31 tokens two end it, so 45 % and not 67 % of the answers have 12 tokens
awk 'BEGIN { while (i++ < 200) print "ab\n/new" }' | "$nebula" chat model --max-new 12 --temperature 99 --top-p 1 --stats 2> stats > /dev/null ||
    fail "no answers: $(tail -1 stats)"
full=$(grep -c '^12 tokens' stats)
[ "$full" -gt 60 ] && [ "$full" -lt 112 ] || fail "$full of 200 answers went on to the limit"
"$nebula" chat model ab --template plain --ids > /dev/null || fail "the plain template fails on a vocabulary without capitals"
# stop strings
"$nebula" generate model abc --max-new 12 --temperature 3 --seed 4 > all || fail "no text"
mid=$(cut -c4-5 all)
"$nebula" generate model abc --max-new 12 --temperature 3 --seed 4 --stop "zzzz|$mid" > cut || fail "no text with a stop string"
[ "$(cat cut)" = "$(awk -v m="$mid" '{ print substr($0, 1, index($0, m) - 1) }' all)" ] || fail "stopped elsewhere: $(cat all cut)"
"$nebula" generate model abc --max-new 12 --temperature 3 --seed 4 --stop "zz\\|zz|$mid|" > cut2 && cmp -s cut cut2 || fail "an escaped | divides"
# a special token is a stop string, too: it shows in no text
for seed in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    "$nebula" generate model abc --max-new 40 --temperature 9 --top-p 1 --seed $seed --scores > all || fail "no text"
    if grep -q '^29 ' all; then break; fi
done
sed 's/"<e>"/"<|e|>"/' model/tokenizer.json > t && mv t model/tokenizer.json
n=$(awk '$1 == 29 { print NR - 1; exit }' all)
[ "$n" ] || fail "the token does not come: $(cut -d' ' -f1 all | tr '\n' ' ')"
"$nebula" generate model abc --max-new 40 --temperature 9 --top-p 1 --seed $seed --scores --stop '<\|e\|>' > cut || fail "no text with a special token"
[ "$(grep -c . cut)" = "$n" ] || fail "it does not stop at the special token: $(cat cut)"
sed 's/"<|e|>"/"<e>"/' model/tokenizer.json > t && mv t model/tokenizer.json
# a prompt from a file and from standard input, of several lines
printf 'ab\ncd\n' > prompt
"$nebula" generate model --file prompt --max-new 5 --temperature 0 > f1 && "$nebula" generate model --file - --max-new 5 --temperature 0 < prompt > f2 ||
    fail "no text from a file"
cmp -s f1 f2 && [ "$(wc -l < f1)" = 1 ] || fail "file and standard input differ: $(cat f1 f2)"
if "$nebula" generate model ab --file prompt 2> err; then fail "two prompts were taken"; fi
grep -q 'both prompts' err || fail "the message does not say why: $(cat err)"
# Ctrl-C, while prompts without end come: the line is ended, and the status says why
mkfifo pipe prompts
yes abc > prompts 2> /dev/null &
"$nebula" generate model --max-new 50 --temperature 5 --threads 1 < prompts > pipe &
pid=$!
exec 3< pipe
dd bs=1 count=1 <&3 > first 2> /dev/null
kill -INT $pid
cat <&3 > rest
wait $pid
code=$?
exec 3<&-
[ $code = 130 ] || fail "Ctrl-C gave status $code"
[ "$(cat first rest | tail -c 1 | od -An -c | tr -d ' ')" = '\n' ] || fail "the line was not ended"
# the template is part of what a training writes
cat > job.yaml <<J
task: causal
init: {from: model}
peft: {method: lora, lora_rank: 2}
train: {steps: 2, tokens: 64, max_len: 16}
data: [{file: text}]
out: trained
J
awk 'BEGIN { for (i = 0; i < 200; i++) print "abcdefgh" }' > text
"$nebula" -q train job.yaml > log 2>&1 || fail "no training: $(tail -3 log)"
found=$(find . -path ./model -prune -o -path ./from -prune -o -name chat_template.jinja -print | head -1)
[ "$found" ] || fail "the training lost the template: $(ls -R | head -40)"
"$nebula" chat "$(dirname "$found")" ab --max-new 4 > /dev/null || fail "the trained model does not converse"
echo "chat: all well"
