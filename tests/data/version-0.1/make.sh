#!/bin/sh
# Makes runs.tar.xz and its expectations: make.sh NEBULA-I FOLDER, with the nebula-i whose files are to stay readable. The text and
# the models are as small as they can be.
set -eu
nebula=$1
mkdir -p "$2"
to=$(cd "$2" && pwd)
dir=$(mktemp -d)
first= second=
trap '[ -z "$first" ] || kill -9 $first $second 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"

for i in $(seq 60); do
    echo "site $((i % 7)) sends update $i to the others, and record $((i / 2)) names $((i % 3 + 1)) of them"
done > text
tail -n 20 text > valid
touch -d @1700000000 text valid # the cache knows files by their time, an archive keeps whole seconds of it
{
    printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n,\nsite\nsends\nupdate\nto\nthe\nothers\nand\nrecord\nnames\nof\nthem\n'
    for i in $(seq 0 9); do printf '%s\n##%s\n' $i $i; done
} > vocab.txt

# One site: 24 steps, checkpoints after 12 and 24.
common="tokens: 64, max_len: 16, lr: 5e-3, threads: 1, temperature: 1"
cat > one.yaml <<YAML
name: one
task: causal
cache: data
out: one
tokenizer: {file: vocab.txt}
model: {family: gpt2, hidden: 8, layers: 1, heads: 2, max_positions: 16}
train: {steps: 24, save_every: 12, eval_every: 12, log_every: 1, $common}
data: [{file: text, lang: en}, {file: valid, lang: en, use: valid}]
YAML
"$nebula" train one.yaml > one.log 2>&1
rm one/events.* # TensorBoard's, nobody here reads them

# Two sites whose work is split by role, each with a folder in the place of the other.
cat > relay.yaml <<YAML
name: relay
task: rtd
cache: data
tokenizer: {file: vocab.txt}
model: {family: electra, hidden: 8, embedding: 8, layers: 1, heads: 2, max_positions: 16}
generator: {family: bert, hidden: 8, layers: 1, heads: 2, max_positions: 16}
train: {steps: 24, save_every: 12, log_every: 1, rtd_embeddings: disentangled, $common}
wan: {window: 16, snapshot: 16, recorded: relay-record}
sites: [{name: a, role: generator}, {name: b, role: discriminator}]
data: [{file: text, lang: en}]
YAML
cat > tutor.yaml <<YAML
name: tutor
task: causal
cache: data
tokenizer: {file: vocab.txt}
model: {family: gpt2, hidden: 8, layers: 1, heads: 2, max_positions: 16}
train: {steps: 30, save_every: 15, log_every: 1, $common}
distill: {teacher: one, top_k: 4}
wan: {window: 16, bits: 8, cache: 2MiB, recorded: tutor-record}
sites: [{name: a, role: teacher}, {name: b, role: student}]
data: [{file: text, lang: en}]
YAML
for job in relay tutor; do
    "$nebula" train $job.yaml --site a out=$job-a > $job-a.log 2>&1
    "$nebula" train $job.yaml --site b out=$job-b > $job-b.log 2>&1
    rm -r $job-a $job-b/events.*
done

# Two replicas: killed when the first snapshots are there, and the same run at its end. Every update is kept, so that a replay can
# begin at the beginning.
cat > two.yaml <<YAML
name: two
task: causal
cache: data
tokenizer: {file: vocab.txt}
model: {family: gpt2, hidden: 8, layers: 1, heads: 2, max_positions: 16}
train: {steps: 1000000, save_every: 7, keep: 1, log_every: 1000, ${common#tokens: 64, }, tokens: 2048}
wan: {interval: 10, fragments: 1, rung: int4, archive: yes, tokens: 1000000000, round_seconds: 5}
sites: [{name: a, folder: a}, {name: b, folder: b}]
data: [{file: text, lang: en}]
YAML
mkdir killed
cd killed
for s in a b; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.20.1.$([ $s = a ] && echo 1 || echo 2):17201
done
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
rm draft roster
cd ..
both() { # FOLDER: starts both sites there
    "$nebula" train two.yaml --site a out=$1/out-a "sites[0].folder=$1/a" > $1-a.log 2>&1 & first=$!
    "$nebula" train two.yaml --site b out=$1/out-b "sites[1].folder=$1/b" > $1-b.log 2>&1 & second=$!
}
updates() { ls killed/$1/run | grep -c '^p-'; }
going() { kill -0 $first && kill -0 $second || { cat killed-a.log; exit 1; }; }
both killed # stopped on purpose: the status names a record, which an order needs
until ls killed/a/run/cell-0-* killed/b/run/cell-0-* > /dev/null 2>&1; do going; done
kill -TERM $first $second
wait $first $second || true
had=$(updates a)
both killed # killed a few records later
until [ $(updates a) -gt $((had + 3)) ]; do going; done
kill -9 $first $second
wait $first $second || true
rm killed/*/events.*
"$nebula" order killed/a end --operator killed/a --wait 0.2 2> /dev/null || [ -n "$(ls killed/a/run/orders)" ]
cp -r killed ended
both ended
wait $first
wait $second
rm ended/*/events.*
rm -f killed/*/metrics.sqlite* # the ended run has them
rm -f */lock */*/lock */*/run/lock

# What the version itself makes of these files.
loss() { # OUT STEPS [WORD…]: the mean that is shown at the end of the second half
    cp -r $1 half
    rm half/checkpoints/checkpoint-*0$2.neb
    "$nebula" train ${1%-b}.yaml out=half ${3:-} ${4:-} 2>&1 | sed -n "s|.* step $2/$2  loss \([0-9.]*\).*|\1|p"
    rm -r half
}
sum() { sha256sum < $1 | cut -d' ' -f1; }
replay() { "$nebula" site replay $1 | sed -n "s/^record \([0-9]*\), state root \([0-9a-f]*\).*/${1%/*}_record=\1 ${1%/*}_root=\2/p"; }
[ "$(replay killed/a)" = "$(replay killed/b)" ] && [ "$(replay ended/a)" = "$(replay ended/b)" ]
"$nebula" export one hf
"$nebula" eval loss one.yaml --threads 1 > eval.log 2>&1
{
    replay killed/a
    replay ended/a
    echo "one_loss=$(loss one 24) one_eval=$(sed -n 's/.*loss \([0-9.]*\).*/\1/p' eval.log)"
    echo "relay_loss=$(loss relay-b 24 --site b)"
    echo "tutor_loss=$(loss tutor-b 30 --site b)"
    for m in one relay-b tutor-b ended/out-a hf; do echo "$(echo ${m%/out-a} | tr -d -)_model=$(sum $m/model.safetensors)"; done
} > "$to/expect"
rm -r hf *.log
tar c --sort=name --owner=0 --group=0 --numeric-owner * | xz -9e > "$to/runs.tar.xz"
