#!/bin/bash
# On-policy distillation: tests/on_policy.sh NEBULA-I. A student writes, its teacher at another site judges. First both sites work
# undisturbed: that model is the expected one. Then each of them is killed in the middle, both at once as well, and the student's
# model must be the same to the last bit: then no sample and no judgement was lost, repeated or changed. A teacher with another
# tokenizer and a causal student do the same.
set -eu
nebula=$1
. "$(dirname "$0")/support/ports.sh"
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log; do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }

awk 'BEGIN { srand(7); split("a red dog sees the green tree two men run here now", e); split("ein roter hund sieht den grünen baum zwei leute rennen hier jetzt", d)
    for (i = 0; i < 440; i++) { n = 3 + int(rand() * 6); s = t = ""
        for (k = 0; k < n; k++) { w = 1 + int(rand() * 12); s = s (k ? " " : "") e[w]; t = t (k ? " " : "") d[w] }
        print s "\t" t > (i < 400 ? "train.tsv" : "valid.tsv"); print t > (i < 400 ? "train.txt" : "valid.txt") } }'
for s in a b; do
    "$nebula" site init $s > /dev/null 2>&1
    "$nebula" roster add draft $s 127.0.0.1:$(free_port)
done > /dev/null
"$nebula" roster seal draft roster --operator a > /dev/null
for s in a b; do "$nebula" roster join roster $s > /dev/null; done

pairs='data: [{file: train.tsv, lang: en-de}, {file: valid.tsv, lang: en-de, use: valid}]'
texts='data: [{file: train.txt, lang: de}, {file: valid.txt, lang: de, use: valid}]'
small='hidden: 32, layers: 1, heads: 2, ffn: 64, dropout: 0'
steps='train: {steps: 60, tokens: 256, max_len: 48, lr: 5e-3, warmup: 10, threads: 1, log_every: 10, save_every: 10, micro: 2}'
teacher() { # NAME TASK FAMILY DATA
    printf 'name: %s\ntask: %s\nout: %s\ncache: %s-data\ntokenizer: {type: bpe, vocab: 70}\n' $1 $2 $1 $2
    printf 'model: {family: %s, %s}\ntrain: {steps: 80, tokens: 512, max_len: 48, lr: 1e-2, warmup: 10, threads: 1, log_every: 1000}\n%s\n' $3 "$small" "$4"
}
student() { # NAME TASK FAMILY TEACHER TOKENIZER DATA
    printf 'name: %s\ntask: %s\ncache: %s-data\ntokenizer: %s\nmodel: {family: %s, %s}\n%s\n' $1 $2 $1 "$5" $3 "$small" "$steps"
    printf 'distill: {teacher: %s, top_k: 8, on_policy: 0.5, lag: 4, beta: 1}\nwan: {bits: 8, window: 12}\n' $4
    printf 'sites: [{name: a, role: teacher}, {name: b, role: student}]\n%s\n' "$6"
}
teacher mt translate transformer "$pairs" > mt.yaml
teacher lm causal llama "$texts" > lm.yaml
student same translate marian mt '{file: mt/tokenizer.model}' "$pairs" > same.yaml
student across translate marian mt '{own: yes, type: unigram, vocab: 50}' "$pairs" > across.yaml
student text causal gpt2 lm '{file: lm/tokenizer.model}' "$texts" > text.yaml
for t in mt lm; do "$nebula" train $t.yaml > $t.log 2>&1 || fail "training the teacher $t"; done

alive() { kill -0 $1 2>/dev/null; }
site() { # JOB SITE FOLDER [WORD…]
    local job=$1 site=$2 folder=$3; shift 3
    exec "$nebula" train $job.yaml --site $site out=$folder/$job-$site "$@" >> $folder-$job-$site.log 2>&1
}
begin() { # JOB FOLDER [WORD…]: a= and b= are the processes
    local job=$1 folder=$2; shift 2
    (site $job a $folder "$@") & a=$!
    (site $job b $folder "$@") & b=$!
}
end() { wait $b || fail "$1: the student"; wait $a || fail "$1: the teacher"; rm -rf a/streams b/streams; }
checkpoints() { ls $1/checkpoints 2>/dev/null | wc -l; }
# JOB FOLDER WHOM…: kills these sites once a checkpoint is there, while others will come
disturb() {
    local job=$1 folder=$2 s; shift 2
    begin $job $folder
    until [ "$(checkpoints $folder/$job-b)" -ge 2 ]; do alive $b || fail "$job: the student ended early"; sleep 0.02; done
    alive $a && alive $b || fail "$job: no site is left to kill"
    for s in "$@"; do kill -9 ${!s} 2>/dev/null || true; wait ${!s} 2>/dev/null || true; done
    for s in "$@"; do (site $job $s $folder) & printf -v $s %s $!; done
    end $job
    case "$*" in *b*) grep -q "going on\|resum\|continu" $folder-$job-b.log || fail "$job: the student did not go on from its checkpoint" ;; esac
    cmp whole/$job-b/model.safetensors $folder/$job-b/model.safetensors || fail "$job, killed $*: the student learned something else"
}
for job in same across text; do begin $job whole; end $job; done
disturb same student b
disturb same teacher a
disturb same both a b
disturb across both a b
disturb text both b a

# Samples were judged: every sequence of every second batch behind the first lag * micro, and the student's loss fell.
for job in same across text; do
    judged=$(sed -n 's/.*; \([0-9]*\) own samples judged.*/\1/p' whole-$job-b.log | tail -n 1)
    [ "${judged:-0}" -gt 200 ] || fail "$job: ${judged:-no} own samples judged"
    echo "on_policy: $job: $judged own samples judged"
done
grep -q "with a tokenizer of its own, answered" whole-across-a.log || fail "across: the teacher's tokenizer should have been another"
cmp -s whole/same-b/model.safetensors whole/across-b/model.safetensors && fail "two tokenizers, one model"

# From its own samples alone it learns what the teacher says: the divergence on what it writes falls.
begin same alone distill.on_policy=1 train.steps=120 train.log_every=20; end same
first=$(sed -n 's/.*step 20\/120  loss \([0-9.]*\) .*/\1/p' alone-same-b.log)
last=$(sed -n 's/.*step 120\/120  loss \([0-9.]*\) .*/\1/p' alone-same-b.log)
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b > 0 && b < a / 4) }' || fail "the loss went from $first to $last"
echo "on_policy: loss on own samples $first, then $last"

# The share matters, so does the divergence; without a share the job is an ordinary one.
for word in distill.on_policy=0 distill.beta=0; do
    begin same other $word; end same
    ! cmp -s whole/same-b/model.safetensors other/same-b/model.safetensors || fail "$word has no effect"
    rm -rf other/same-?
done

# A student that is killed in the last `lag` steps, when it has written samples that nobody will learn from, goes on as well.
late="train.steps=12 train.save_every=1 train.warmup=2"
begin same calm $late; end same
for try in 1 2 3; do
    rm -rf last
    begin same last $late train.speed=1500
    until ls last/same-b/checkpoints 2>/dev/null | grep -q '0*1[01]'; do alive $b || break; sleep 0.02; done
    alive $b && kill -9 $b && { wait $b 2>/dev/null || true; (site same b last $late) & b=$!; try=done; }
    end same
    [ $try != done ] || break
done
cmp calm/same-b/model.safetensors last/same-b/model.safetensors || fail "killed in its last steps the student learned something else"

refused() { # MESSAGE WORD…
    local message=$1; shift
    ! "$nebula" train "$@" > refused.log 2>&1 || fail "accepted: $*"
    grep -q -- "$message" refused.log || fail "another message than '$message'"
}
refused "at a site of its own" same.yaml --site b --alone out=by-itself
refused "set distill.teacher" same.yaml --site b distill.teacher=
refused "one teacher judges" same.yaml --site b distill.teacher=mt,mt
refused "cannot judge a student" same.yaml --site b wan.recorded=x
refused "writes no text" text.yaml --site b task=mlm model.family=bert
refused "must be at most 256" same.yaml --site b distill.top_k=300
refused "distill.lag" same.yaml --site b distill.lag=0
refused "4000 micro-batches" same.yaml --site b distill.lag=2000
refused "judges nothing" same.yaml --site b distill.on_policy=0.0004
refused "distill.beta" same.yaml --site b distill.beta=2
for device in cuda opencl; do # at both sites, before anything is opened
    refused "train.device: device $device has no divergence" same.yaml --site b train.device=$device
    refused "sites\[1\].train.device: device $device has no divergence" same.yaml --site a "sites[1].train.device=$device"
done
refused "needs one teacher site" same.yaml --site b 'sites[2].name=c' 'sites[2].role=teacher'
echo "on_policy: ok"
