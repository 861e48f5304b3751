#!/bin/bash
# Jobs that are split over two sites (relay, tutor) under kill -9: tests/split_sites.sh NEBULA-I [KILLS] [STEPS] [SECONDS]. First
# each site trains alone, with a folder in place of the other one. Those models are the expected ones. Then both train over a link,
# and random sides are killed at random moments and started again. The models must be the same to the last bit: then no item was
# lost, repeated or changed, and no step of the site that stayed was lost. SECONDS is the longest pause before a restart.
set -eu
nebula=$1 kills=${2:-2} steps=${3:-150} pause=${4:-0}
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }
number() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); value=$((seed / 65536 % $1)); }
seed=$$

cat "$top"/docs/[a-f]*.md | head -c 84137 > text # so much that a second epoch begins
for s in a b; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b; do "$nebula" roster join roster $s > /dev/null; done
common="tokens: 256, max_len: 32, lr: 2e-3, log_every: 1000, threads: 1, temperature: 1"
cat > teacher.yaml <<YAML
name: teacher
task: causal
out: teacher
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 30, $common}
data: [{file: text}]
YAML
cat > relay.yaml <<YAML
name: relay
task: rtd
cache: data
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: electra, hidden: 32, embedding: 32, layers: 1, heads: 2}
generator: {family: bert, hidden: 32, layers: 1, heads: 2}
train: {steps: $steps, save_every: 20, rtd_embeddings: disentangled, $common}
wan: {window: 16, snapshot: 16}
sites: [{name: a, role: generator}, {name: b, role: discriminator}]
data: [{file: text}]
YAML
cat > tutor.yaml <<YAML
name: tutor
task: causal
cache: data-tutor
tokenizer: {file: teacher/tokenizer.model}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: $((2 * steps)), save_every: 20, $common}
distill: {teacher: [teacher, second], top_k: 8}
wan: {window: 16, bits: 8, cache: 2MiB}
sites: [{name: a, role: teacher}, {name: b, role: student}]
data: [{file: text}]
YAML

site() { # JOB SITE FOLDER [WORD…]: one split site; adds to its log
    job=$1 site=$2 folder=$3; shift 3
    exec "$nebula" train $job.yaml --site $site out=$folder/$job-$site "$@" >> $folder-$job-$site.log 2>&1
}
alive() { kill -0 $1 2>/dev/null; }

"$nebula" train teacher.yaml > teacher.log 2>&1 || fail "training the teacher"
"$nebula" train teacher.yaml out=second tokenizer.vocab=330 seed=2 > second.log 2>&1 || fail "training the second teacher" # another tokenizer
for job in relay tutor; do
    (site $job a alone wan.recorded=record-$job) || fail "$job: the recording site"
    (site $job b alone wan.recorded=record-$job) || fail "$job: the site that reads the record"

    (site $job a pair) & a=$!
    (site $job b pair) & b=$!
    for i in $(seq $kills); do
        number 8; sleep 0.$((value + 2))
        number 2; if [ $value = 0 ]; then victim=a pid=$a; else victim=b pid=$b; fi
        alive $a && alive $b || break
        kill -9 $pid; wait $pid 2>/dev/null || true
        number $((pause + 1)); sleep $value
        (site $job $victim pair) & pid=$!
        if [ $victim = a ]; then a=$pid; else b=$pid; fi
    done
    wait $b || fail "$job: site b"
    wait $a || fail "$job: site a"
    cmp alone/$job-b/model.safetensors pair/$job-b/model.safetensors || fail "$job: site b learned something else"
    [ $job = tutor ] || cmp alone/$job-a/generator/model.safetensors pair/$job-a/generator/model.safetensors ||
        fail "$job: site a learned something else"
    sed -n "s/^site b: /$job, site b: /p" pair-$job-b.log | tail -n 1
done

# A generator that was killed when the other site had all its items is told at its next start that no more are wanted. It makes the
# steps that its checkpoint lacks for itself, and ends with the same model.
rm -r pair/relay-a/generator
rm pair/relay-a/checkpoints/"$(ls pair/relay-a/checkpoints | sort | tail -1)"
(site relay a pair) & a=$!
(site relay b pair) & b=$!
wait $b || fail "relay: site b, once more"
wait $a || fail "relay: site a, once more"
cmp alone/relay-a/generator/model.safetensors pair/relay-a/generator/model.safetensors || fail "relay: site a has not made its last steps"

# The journals in the site folders outlive OUT. Another teacher or another generator must start anew all the same. Its items must
# not be mixed with those of the one before.
again() { # JOB WORD…: both sites once more from nothing, first on a record, then over a link
    job=$1; shift
    rm -rf pair/$job-a pair/$job-b
    (site $job a new wan.recorded=record-new-$job train.steps=60 "$@") || fail "$job, changed: the recording site"
    (site $job b new wan.recorded=record-new-$job train.steps=60 "$@") || fail "$job, changed: the site that reads the record"
    (site $job a pair train.steps=60 "$@") & a=$!
    (site $job b pair train.steps=60 "$@") & b=$!
    wait $b || fail "$job, changed: site b"
    wait $a || fail "$job, changed: site a"
    cmp new/$job-b/model.safetensors pair/$job-b/model.safetensors || fail "$job: items of an earlier run were taken for this one's"
    ! (site $job a new wan.recorded=record-$job out=new/over train.steps=60 "$@") || fail "$job: a site wrote to the record of another run"
    grep -q "holds the items of another run" new-$job-a.log || fail "$job: no message about the record of another run"
}
mv teacher before
"$nebula" train teacher.yaml tokenizer.file=before/tokenizer.model train.steps=60 > teacher.log 2>&1 || fail "the teacher, trained longer"
again tutor
again relay generator.layers=2
for job in relay tutor; do
    (site $job b mixed wan.recorded=record-$job train.steps=20) || fail "$job: the first steps of a student on a record"
    ! (site $job b mixed wan.recorded=record-new-$job train.steps=40) || fail "$job: a checkpoint of one run went on with the record of another"
    grep -q "the checkpoint in .* belong to different runs" mixed-$job-b.log || fail "$job: no message about the other run"
done

# A record that is too short is refused before the first step. A training that ends by time may also end with its record.
for job in relay tutor; do
    ! (site $job b short wan.recorded=record-new-$job) || fail "$job: a record that is too short was accepted"
    grep -q "record-new-$job holds 60 batches" short-$job-b.log || fail "$job: no message about the short record"
    (site $job b timed wan.recorded=record-new-$job train.minutes=10) || fail "$job: a training by time failed at the end of its record"
    grep -q "ends after item 60" timed-$job-b.log && [ -f timed/$job-b/model.safetensors ] || fail "$job: no model at the end of the record"
done

# In the second epoch the teacher's answers come from the cache. Without a cache all of them cross again.
rm -rf teacher; mv before teacher
"$nebula" train tutor.yaml --site a out=none/a wan.recorded=record-none wan.cache=0 > none-a.log 2>&1 || fail "without a cache: site a"
"$nebula" train tutor.yaml --site b out=none/b wan.recorded=record-none wan.cache=0 > none-b.log 2>&1 || fail "without a cache: site b"
cmp alone/tutor-b/model.safetensors none/b/model.safetensors || fail "the cache changed the model"
size() { cat "$1"/* | wc -c; }
[ $(size record-tutor) -lt $(($(size record-none) * 3 / 4)) ] || fail "the cache saved nothing: $(size record-tutor) of $(size record-none) bytes"

# A site with different text is found at the first batch.
head -c 20000 text > other
if "$nebula" train relay.yaml --site b out=other-b cache=data-other wan.recorded=record-relay 'data[0].file=other' > other.log 2>&1; then
    fail "a site with other text went on"
fi
grep -q "drawn another batch" other.log || fail "no message about the different batch"
echo "split sites: ok"
