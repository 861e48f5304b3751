#!/bin/sh
# Jobs whose halves live on two sites (relay, tutor) under kill -9: tests/split_sites.sh NEBULA-I [KILLS] [STEPS] [SECONDS]. First each half alone, with a
# folder instead of the other site: that is what must come out. Then both over a link, either side killed at random moments and
# started again: the models must be the same to the last bit, so no item was lost, repeated or changed, and no step of
# the site that stayed was lost. SECONDS: the longest pause before a killed site starts again.
set -eu
nebula=$1 kills=${2:-2} steps=${3:-150} pause=${4:-0}
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }
number() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); value=$((seed / 65536 % $1)); }
seed=$$

cat "$top"/docs/[a-f]*.md > text
for s in a b; do
    "$nebula" site init $s > /dev/null
    "$nebula" roster add draft $s 127.0.0.1:$((20000 + ($$ + $([ $s = a ] && echo 0 || echo 1)) % 10000))
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

half() { # JOB SITE FOLDER [WORD]: one half, its log appended
    job=$1 site=$2 folder=$3; shift 3
    exec "$nebula" train $job.yaml --site $site out=$folder/$job-$site "$@" >> $folder-$job-$site.log 2>&1
}
alive() { kill -0 $1 2>/dev/null; }

"$nebula" train teacher.yaml > teacher.log 2>&1 || fail "the teacher"
"$nebula" train teacher.yaml out=second tokenizer.file=teacher/tokenizer.model seed=2 > second.log 2>&1 || fail "the second teacher"
for job in relay tutor; do
    (half $job a alone wan.recorded=record-$job) || fail "$job: the recording site"
    (half $job b alone wan.recorded=record-$job) || fail "$job: the site that reads the record"

    (half $job a pair) & a=$!
    (half $job b pair) & b=$!
    for i in $(seq $kills); do
        number 8; sleep 0.$((value + 2))
        number 2; if [ $value = 0 ]; then victim=a pid=$a; else victim=b pid=$b; fi
        alive $a && alive $b || break
        kill -9 $pid; wait $pid 2>/dev/null || true
        number $((pause + 1)); sleep $value
        (half $job $victim pair) & pid=$!
        if [ $victim = a ]; then a=$pid; else b=$pid; fi
    done
    wait $b || fail "$job: site b"
    wait $a || fail "$job: site a"
    cmp alone/$job-b/model.safetensors pair/$job-b/model.safetensors || fail "$job: site b learned something else"
    [ $job = tutor ] || cmp alone/$job-a/generator/model.safetensors pair/$job-a/generator/model.safetensors ||
        fail "$job: site a learned something else"
    sed -n "s/^site b: /$job, site b: /p" pair-$job-b.log | tail -n 1
done

# The journals in the site folders outlive OUT: another teacher, or another generator, starts anew all the same, and is not
# mixed with what a site learned from the one before.
again() { # JOB WORD…: both halves once more from nothing, on a record and over a link
    job=$1; shift
    rm -rf pair/$job-a pair/$job-b
    (half $job a new wan.recorded=record-new-$job train.steps=60 "$@") || fail "$job, changed: the recording site"
    (half $job b new wan.recorded=record-new-$job train.steps=60 "$@") || fail "$job, changed: the site that reads the record"
    (half $job a pair train.steps=60 "$@") & a=$!
    (half $job b pair train.steps=60 "$@") & b=$!
    wait $b || fail "$job, changed: site b"
    wait $a || fail "$job, changed: site a"
    cmp new/$job-b/model.safetensors pair/$job-b/model.safetensors || fail "$job: items of an earlier run were taken for this one's"
    ! (half $job a new wan.recorded=record-$job out=new/over train.steps=60 "$@") || fail "$job: a record of another run is written to"
    grep -q "holds the items of another run" new-$job-a.log || fail "$job: the message about a record of another run"
}
mv teacher before
"$nebula" train teacher.yaml tokenizer.file=before/tokenizer.model train.steps=60 > teacher.log 2>&1 || fail "the teacher, trained longer"
again tutor
again relay generator.layers=2
for job in relay tutor; do
    (half $job b mixed wan.recorded=record-$job train.steps=20) || fail "$job: some steps"
    ! (half $job b mixed wan.recorded=record-new-$job train.steps=40) || fail "$job: one checkpoint of two runs"
    grep -q "of another run than the checkpoint" mixed-$job-b.log || fail "$job: the message about another run"
done

# A record that is too short is said before the first step; where a time ends the training, the record may do so as well.
for job in relay tutor; do
    ! (half $job b short wan.recorded=record-new-$job) || fail "$job: a record that is too short"
    grep -q "record-new-$job holds 60 batches" short-$job-b.log || fail "$job: the message about a short record"
    (half $job b timed wan.recorded=record-new-$job train.minutes=10) || fail "$job: the end of a record"
    grep -q "ends behind item 60" timed-$job-b.log && [ -f timed/$job-b/model.safetensors ] || fail "$job: a model at the end of a record"
done

# In the second epoch lessons come from the cache; without one all of them cross again.
rm -rf teacher; mv before teacher
"$nebula" train tutor.yaml --site a out=none/a wan.recorded=record-none wan.cache=0 > none-a.log 2>&1 || fail "no cache: site a"
"$nebula" train tutor.yaml --site b out=none/b wan.recorded=record-none wan.cache=0 > none-b.log 2>&1 || fail "no cache: site b"
cmp alone/tutor-b/model.safetensors none/b/model.safetensors || fail "the cache changes what is learned"
size() { cat "$1"/* | wc -c; }
[ $(size record-tutor) -lt $(($(size record-none) * 3 / 4)) ] || fail "the cache saved nothing: $(size record-tutor) of $(size record-none) bytes"

# A site with other text is noticed at the first batch.
head -c 20000 text > other
if "$nebula" train relay.yaml --site b out=other-b cache=data-other wan.recorded=record-relay 'data[0].file=other' > other.log 2>&1; then
    fail "other text at one site"
fi
grep -q "drawn another batch" other.log || fail "the message about another batch"
echo "halves: ok"
