#!/bin/sh
# Reads files that an earlier version wrote (tests/data/version-0.1): a finished and an unfinished training, recorded streams of a relay
# and a tutor, and the folders of two sites. Those are kept twice: at the end of their run, and killed on the way with a waiting order.
# Roots, models and exports must be the recorded ones on every machine. A training gives the recorded bits only where this machine's
# arithmetic repeats the recorded training from its first step. Elsewhere the losses must be near.
#     tests/old_version.sh NEBULA-I [OTHER]      OTHER, a nebula-i of another version, runs site b of the two
set -eu
nebula=$1 other_version=${2:-$1}
data=$(cd "$(dirname "$0")/data/version-0.1" && pwd)
dir=$(mktemp -d)
first= second=
trap '[ -z "$first" ] || kill $first $second 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in $(ls -t *.log | head -n 4); do echo "== $f" >&2; tail -n 12 "$f" >&2; done; exit 1; }
sum() { sha256sum < "$1" | cut -d' ' -f1; }
tar -x --no-same-owner -f "$data/runs.tar.xz"
. "$data/expect"

# ---- one training, and split sites with a folder in place of the other site ----

near() { # NAME VALUE EXPECTED
    awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(a != "" && d < 0.02 * b && d > -0.02 * b) }' || fail "$1 is '$2', not about $3"
}
train() { # LOG WORD…: another start
    log=$1; shift
    "$nebula" train "$@" > $log.log 2>&1 || fail "$log: the training"
}
same=0 other=0
check() { # JOB SITE HALF STEPS LOSS MODEL [WORD…]: OUT is JOB, or JOB-SITE
    job=$1 out=$1${2:+-$2} half=$3 steps=$4 loss=$5 model=$6; shift 6
    cp -r $out again && rm again/model.safetensors
    train $out-again $job.yaml out=again "$@"
    [ "$(sum again/model.safetensors)" = $model ] || fail "$out: another model from its last checkpoint"
    cp -r $out half && rm half/model.safetensors half/checkpoints/checkpoint-*0$steps.neb
    train $out-half $job.yaml out=half "$@"
    grep -q "step $((half + 1))/$steps" $out-half.log || fail "$out does not go on behind step $half"
    ! grep -q "step $half/$steps" $out-half.log || fail "$out does not go on from its checkpoint"
    near "the loss of $out" "$(sed -n "s|.* step $steps/$steps  loss \([0-9.]*\).*|\1|p" $out-half.log)" $loss
    train $out-fresh $job.yaml out=fresh "$@"
    if [ "$(sum fresh/model.safetensors)" = $model ]; then
        [ "$(sum half/model.safetensors)" = $model ] || fail "$out: from its checkpoint on it does not learn the same again"
        same=$((same + 1))
    else
        other=$((other + 1))
    fi
    rm -r again half fresh
}
ls data > before
check one "" 12 24 $one_loss $one_model
check relay b 12 24 $relay_loss $relayb_model --site b
check tutor b 15 30 $tutor_loss $tutorb_model --site b
ls data > after
cmp -s before after || fail "the tokenised text was made again"
"$nebula" eval loss one.yaml --threads 1 > eval.log 2>&1 || fail "eval"
near "the held-out loss" "$(sed -n 's/.*loss \([0-9.]*\).*/\1/p' eval.log)" $one_eval
"$nebula" export one hf > export.log 2>&1 || fail "export"
[ "$(sum hf/model.safetensors)" = $hf_model ] || fail "the exported model is not the recorded one"
for job in relay tutor; do # the sending sites make the same items again
    train $job-feeds $job.yaml --site a out=feeds-$job wan.recorded=feeds-record-$job
    cat $job-record/*1 > want; cat feeds-record-$job/*1 > got
    [ "$(wc -c < want)" -gt 1000 ] || fail "$job: an empty record"
    if [ $other = 0 ]; then cmp want got || fail "$job: the sending site sends different items"; fi
done
! grep -E '^[0-9:.]+ (warn|error) ' *.log || fail "something was read with a warning"

# ---- two sites ----

# The signed roster holds the addresses. Two of these tests at a time would meet there, so a lock lets one run.
exec 9> "${TMPDIR:-/tmp}/nebula-old-version-$(id -u).lock"
flock 9
root() { # FOLDER [WORD…]: after a replay from the beginning
    "$nebula" site replay "$@" > replay.log 2>&1 || fail "the replay of $1"
    sed -n 's/.*state root \([0-9a-f]*\).*/\1/p' replay.log
}
both() { # FOLDER: the two sites go on there to their end. If one fails, the other may wait, so time is limited
    timeout -k 2 400 "$nebula" train two.yaml --site a out=$1/out-a "sites[0].folder=$1/a" > $1-a.log 2>&1 9>&- & first=$!
    timeout -k 2 400 "$other_version" train two.yaml --site b out=$1/out-b "sites[1].folder=$1/b" > $1-b.log 2>&1 9>&- & second=$!
    wait $first || fail "$1: site a"
    wait $second || fail "$1: site b"
    first= second=
}
for s in a b; do
    [ "$(root killed/$s)" = $killed_root ] || fail "killed, $s: another state root: $(cat replay.log)"
    [ "$(root ended/$s)" = $ended_root ] || fail "ended, $s: another state root: $(cat replay.log)"
    [ "$(root ended/$s --to $killed_record)" = $killed_root ] || fail "ended, $s: another root at record $killed_record"
    "$nebula" status ended/$s > status.log 2>&1 && grep -q "^$s .* $ended_record .* int4 " status.log || fail "the status of site $s"
    "$nebula" status ended/out-$s > status.log 2>&1 && grep -q "^$s .* int4 " status.log || fail "the status of out-$s"
done
"$nebula" report ended/out-a ended/out-b --to page.html > report.log 2>&1 || fail "the report"
for what in "Loss against tokens" "Where every second went" "all sites agree" "</html>"; do
    grep -q "$what" page.html || fail "the report lacks '$what'"
done

# Once the updates of the first 16 rounds are gone, only the snapshots hold their effect. A ledger names updates by their hashes.
cp -r killed pruned
for s in a b; do
    names=$(od -An -v -tx1 pruned/$s/run/ledger | tr -d ' \n')
    for f in pruned/$s/run/p-*; do
        before=${names%%"${f##*/p-}"*}
        echo "${#before} $f"
    done | sort -n | head -n 32 | cut -d' ' -f2 > first
    [ "$(wc -l < first)" = 32 ] && rm $(cat first)
done
both pruned
said() { sed -n 's/.*state root \([0-9a-f]*\),.*/\1/p' $1.log; }
[ -n "$(said pruned-a)" ] && [ "$(said pruned-a)" = "$(said pruned-b)" ] || fail "without the first updates: roots $(said pruned-a), $(said pruned-b)"

if "$nebula" train two.yaml --site a out=other name=other "sites[0].folder=ended/a" > other-job.txt 2>&1; then fail "the run of one job was taken for that of another"; fi
grep -q "name two, task causal" other-job.txt || fail "the message does not name the job of the run: $(cat other-job.txt)"

cp -r ended kept
rm ended/out-?/model.safetensors
both ended
for s in a b; do
    [ "$(sum ended/out-$s/model.safetensors)" = $ended_model ] || fail "ended, $s: another model after a second start"
    cmp -s -n "$(wc -c < kept/$s/run/ledger)" kept/$s/run/ledger ended/$s/run/ledger || fail "ended, $s: the ledger was changed"
    [ "$(root ended/$s)" = $ended_root ] || fail "ended, $s: another state root after a second start"
done

# Only the order in site a's folder ends this run.
ls killed/a/run/orders/*.order > /dev/null || fail "no order waits in the folder"
newest() { ls killed/out-$1/checkpoints | sed -n '$s/checkpoint-0*\([0-9]*\).neb/\1/p'; }
at_a=$(newest a) at_b=$(newest b)
both killed
grep -q " from step $at_a\$" killed-a.log && grep -q " from step $at_b\$" killed-b.log || fail "the checkpoints of the killed sites are not used"
[ -z "$(ls killed/a/run/orders)" ] || fail "the order is still in the folder: $(ls killed/a/run/orders)"
final=$(root killed/a)
[ -n "$final" ] && [ "$final" = "$(root killed/b)" ] || fail "state roots: '$final' and '$(root killed/b)'"
for s in a b; do
    [ "$(root killed/$s --to $killed_record)" = $killed_root ] || fail "$s: the log does not begin with the recorded records"
    [ "$(said killed-$s)" = "$(echo $final | cut -c1-16)" ] || fail "$s reports another root than its ledger gives"
    n=$(sed -n 's/.*record \([0-9]*\), state root.*/\1/p' killed-$s.log)
    [ "$n" -gt $((killed_record + 1)) ] || fail "$s: nothing was learned after record $killed_record"
done
cmp -s killed/out-a/model.safetensors killed/out-b/model.safetensors || fail "the models differ"
bits="$same trainings repeated to the bit"
[ $other = 0 ] || bits="$bits, $other not: this machine computes differently from the one that recorded them"
echo "old version: ok, $bits"
