#!/bin/bash
# Teachers that are unlike their student: tests/tutors.sh NEBULA-I. A teacher with another tokenizer translates and tells its likeliest
# tokens; two teachers at two sites, each with its tokenizer and its weight, teach one student. First every site works alone, with
# a folder in place of the others: those models are the expected ones. Then the sites work over links and are killed in the
# middle. The student's model must be the same to the last bit: then nothing was lost, repeated or changed.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/tests/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

awk 'BEGIN { srand(7); split("a red dog sees the green tree two men run here now", e); split("ein roter hund sieht den grünen baum zwei leute rennen hier jetzt", d)
    for (i = 0; i < 440; i++) { n = 3 + int(rand() * 6); s = t = ""
        for (k = 0; k < n; k++) { w = 1 + int(rand() * 12); s = s (k ? " " : "") e[w]; t = t (k ? " " : "") d[w] }
        print s "\t" t > (i < 400 ? "train.tsv" : "valid.tsv") } }'
for s in a b c; do
    "$nebula" site init $s > /dev/null 2>&1
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done > /dev/null
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b c; do "$nebula" roster join roster $s > /dev/null; done
mkdir two
(
    cd two
    for s in a b; do
        "$nebula" site init $s > /dev/null
        "$nebula" roster add draft $s 127.0.0.1:$(free_port)
    done > /dev/null
    "$nebula" roster seal draft roster --operator a > /dev/null
    for s in a b; do "$nebula" roster join roster $s > /dev/null; done
) 2> /dev/null

data='data: [{file: train.tsv, lang: en-de}, {file: valid.tsv, lang: en-de, use: valid}]'
cat > teacher.yaml <<YAML
name: teacher
task: translate
out: teacher
tokenizer: {type: bpe, vocab: 70}
model: {family: transformer, hidden: 32, layers: 1, heads: 2, ffn: 64, dropout: 0}
train: {steps: 80, tokens: 512, max_len: 48, lr: 1e-2, warmup: 10, threads: 1, log_every: 1000}
$data
YAML
student="task: translate
cache: data
tokenizer: {own: yes, type: unigram, vocab: 50}
model: {family: marian, hidden: 32, layers: 1, heads: 2, ffn: 64, dropout: 0}
train: {steps: 100, tokens: 256, max_len: 48, lr: 5e-3, warmup: 10, threads: 1, log_every: 1000, save_every: 10, micro: 2}"
cat > sequence.yaml <<YAML
name: sequence
$student
distill: {teacher: teacher, sequence: beam3, n: 2, gold: 0.25, top_k: 8}
wan: {bits: 8, window: 12}
sites: [{name: a, role: teacher, folder: two/a}, {name: b, role: student, folder: two/b}]
$data
YAML
cat > several.yaml <<YAML
name: several
$student
distill: {top_k: 8}
wan: {bits: 8, window: 12}
sites: [{name: a, role: teacher, teacher: teacher, weight: 2}, {name: c, role: teacher, teacher: second}, {name: b, role: student}]
$data
YAML
"$nebula" train teacher.yaml > teacher.log 2>&1 || fail "training the teacher"
"$nebula" train teacher.yaml out=second tokenizer.vocab=90 seed=2 > second.log 2>&1 || fail "training the second teacher"

alive() { kill -0 $1 2>/dev/null; }
site() { # JOB SITE FOLDER [WORD…]
    local job=$1 site=$2 folder=$3; shift 3
    exec "$nebula" train $job.yaml --site $site out=$folder/$job-$site "$@" >> $folder-$job-$site.log 2>&1
}
# JOB TEACHERS…: on a record, then over links; the first teacher and the student are killed once each.
both_ways() {
    local job=$1 s; shift
    for s in "$@"; do (site $job $s alone wan.recorded=record-$job) || fail "$job: site $s records"; done
    (site $job b alone wan.recorded=record-$job) || fail "$job: the student reads the record"
    declare -A pid
    for s in "$@"; do (site $job $s pair) & pid[$s]=$!; done
    (site $job b pair) & b=$!
    until [ "$(ls pair/$job-b/checkpoints 2>/dev/null | wc -l)" -ge 2 ]; do # a whole checkpoint is there, and others will come
        alive $b || fail "$job: the student ended before its second checkpoint"
        sleep 0.02
    done
    alive $b && alive ${pid[$1]} || fail "$job: no site is left to kill"
    kill -9 ${pid[$1]} 2>/dev/null || true; wait ${pid[$1]} 2>/dev/null || true
    (site $job $1 pair) & pid[$1]=$!
    kill -9 $b 2>/dev/null || true; wait $b 2>/dev/null || true
    (site $job b pair) & b=$!
    wait $b || fail "$job: the student"
    for s in "$@"; do wait ${pid[$s]} || fail "$job: site $s"; done
    grep -q "going on\|resum\|continu" pair-$job-b.log || fail "$job: the student did not go on from its checkpoint"
    cmp alone/$job-b/model.safetensors pair/$job-b/model.safetensors || fail "$job: the student learned something else"
    sed -n "s/^site b: /$job: /p" alone-$job-b.log | tail -n 1
}
both_ways sequence a
grep -q " targets by the teacher" alone-sequence-b.log || fail "no count of the teacher's targets"
cmp alone/sequence-a/translations.cache alone/sequence-b/translations.cache || fail "the two ends keep different texts"
grep -q "with a tokenizer of its own, answered" alone-sequence-a.log || fail "the teacher's tokenizer should have been another"
both_ways several a c

# Weights matter, and a teacher left out matters.
(site several b even wan.recorded=record-several 'sites[0].weight=1') || fail "other weights"
! cmp -s alone/several-b/model.safetensors even/several-b/model.safetensors || fail "the weights of the teachers have no effect"

# Text alone: no logits cross.
(site sequence a text wan.recorded=record-text distill.weight=0) || fail "text alone: the teacher"
(site sequence b text wan.recorded=record-text distill.weight=0) || fail "text alone: the student"
size() { cat "$1"/* | wc -c; }
[ $(size record-text) -lt $(($(size record-sequence) / 2)) ] || fail "text alone takes $(size record-text) of $(size record-sequence) bytes"

# A cache of texts that is lost is told, not passed over.
(site sequence b lost wan.recorded=record-sequence train.steps=30) || fail "the first half"
rm lost/sequence-b/translations.cache
! (site sequence b lost wan.recorded=record-sequence) || fail "the student went on without its texts"
grep -q "translations.cache was lost or changed" lost-sequence-b.log || fail "no message about the lost texts"

# The example: a multilingual model of the Hugging Face hub, here a tiny one, teaches a small Marian in one command. A decoder
# teaches behind a prompt.
"$nebula" import "$top/tests/data/hf/nllb" nllb > import.log 2>&1 || fail "importing NLLB"
"$nebula" import "$top/tests/data/hf/llama3" llama >> import.log 2>&1 || fail "importing Llama"
mkdir corpus && cp train.tsv corpus/en-de.train.tsv && cp valid.tsv corpus/en-de.valid.tsv
small="tokenizer.vocab=60 model.hidden=32 model.layers=1 model.decoder_layers=1 model.heads=2 model.ffn=64 train.steps=4 train.tokens=256 train.max_len=48
    train.save_every=2 train.average=1 train.warmup=1 train.threads=1"
"$nebula" lab "$top/examples/distil.yaml" --wan 1gbit,1ms --mode relay --port $(free_port) $small distill.sequence=beam2 distill.n=2 > lab.log 2>&1 ||
    fail "the example"
grep -qh "targets by the teacher" lab.log out/distil/boston/log || fail "the example: no targets by the teacher"
[ -f out/distil/boston/model.safetensors ] || fail "the example left no model"
cut -f2 train.tsv > de.txt
cat > decoder.yaml <<YAML
name: decoder
task: causal
out: decoder
tokenizer: {type: bpe, vocab: 70}
model: {family: llama, hidden: 32, layers: 1, heads: 2, ffn: 64, max_positions: 128}
train: {steps: 20, tokens: 256, max_len: 48, lr: 1e-2, threads: 1, log_every: 1000}
data: [{file: de.txt, lang: de}]
YAML
"$nebula" train decoder.yaml > decoder.log 2>&1 || fail "training a decoder"
prompted() { "$nebula" train "$top/examples/distil.yaml" --site $1 $small cache=prompted/data out=prompted/$1 wan.recorded=prompted/record distill.sequence= \
    distill.teacher=$2 'distill.prompt=English: {source} German:' > prompted-$1.log 2>&1; }
prompted berlin decoder || fail "a decoder as the teacher"
prompted boston decoder || fail "the student of a decoder"
grep -q "with a tokenizer of its own, answered" prompted-berlin.log || fail "the decoder taught nothing"
# It translates, too: its answers take the place of the targets, at both ends the same. It knows German sentences of one line only, and each ends.
answers() { # FOLDER WORD…: both sites, with a record
    local out=$1; shift
    for s in berlin boston; do
        "$nebula" train "$top/examples/distil.yaml" --site $s $small cache=prompted/data out=$out/$s wan.recorded=$out/record distill.teacher=decoder \
            'distill.prompt=English: {source} German:' distill.sequence=beam3 distill.n=2 "$@" > ${out//\//-}-$s.log 2>&1 || return 1
    done
}
answers answered || fail "a decoder does not translate"
grep -q " targets by the teacher" answered-boston.log || fail "no targets by the decoder"
cmp answered/berlin/translations.cache answered/boston/translations.cache || fail "the two ends keep different answers"
answers answered2 && cmp answered/boston/model.safetensors answered2/boston/model.safetensors || fail "the same answers teach something else"
answers answered3 distill.sequence=beam1 distill.n=1 || fail "a decoder does not translate with one beam"
! cmp -s answered/boston/model.safetensors prompted/boston/model.safetensors || fail "the answers of the decoder change nothing"
! answers answered4 distill.prompt= || fail "a decoder translated without a prompt"
grep -q "distill.prompt: the teacher in" answered4-berlin.log || fail "no message about the missing prompt"
! prompted berlin llama || fail "a teacher without a tokenizer was accepted"
grep -q "has no tokenizer, so it cannot read" prompted-berlin.log || fail "no message about the missing tokenizer"

refused() { # MESSAGE WORD…
    local message=$1; shift
    ! "$nebula" train "$@" > refused.log 2>&1 || fail "accepted: $*"
    grep -q -- "$message" refused.log || fail "another message than '$message'"
}
refused "is not beam1, beam5" sequence.yaml --site b distill.sequence=five
refused "finds at most 3 translations" sequence.yaml --site b distill.n=4
refused "set distill.teacher" sequence.yaml --site b distill.teacher=
refused "at a site of its own" sequence.yaml --site b --alone out=by-itself
refused "needs one teacher site" several.yaml --site b distill.sequence=beam2 distill.teacher=teacher
refused "is not a positive number for each of 2" several.yaml --site a wan.recorded=x sites[0].teacher=teacher,second distill.weights=1
echo "tutors: ok"
