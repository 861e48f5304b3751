#!/bin/bash
# Private steps (privacy.unit: sample) at a site of several processes. The gateway charges each step before it is made, and the ranks have no
# account. Ranks that are killed at random places repeat their steps: the same results, which cost nothing. A rank that had computed wrong makes other
# results when it repeats, and the site ends before they leave it. A gateway that is killed at random places never has spent more than its account says. The same for ranks that
# the user starts by hand, and for a site of a run with others. Layouts that cut a sample's gradient are refused.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v mpirun > /dev/null || [ ! -e "$(dirname "$nebula")/libnebula-i-mpi.so" ]; then
    echo "private_ranks: skipped, there is no Open MPI (apt install libopenmpi-dev openmpi-bin, then build again)"
    exit 0
fi
dir=$(mktemp -d)
started=
trap 'kill $started 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log */ranks/*.log; do echo "== $f" >&2; tail -n 25 "$f" >&2; done; exit 1; }
RANDOM=$$; echo "private_ranks: kills by seed $$"

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: quiet
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 300, lines: 500}
model: {family: gpt2, hidden: 16, layers: 1, heads: 2, dropout: 0.1}
train: {steps: 120, schedule: constant, tokens: 64, max_len: 16, lr: 2e-3, log_every: 1, save_every: 10, threads: 1}
privacy: {unit: sample, epsilon: 8, samples: 16, noise: 1.1}
data: [{file: text}]
YAML
count() { od -An -t u8 -j 16 -N 8 "$1" | tr -d ' '; } # the steps that an account has
made() { tr '\r' '\n' < $1 | grep -aoE 'step [0-9]+/[0-9]+ ' | sort -u | wc -l; } # the steps that a start has told
here() { for p; do [ "$(readlink /proc/$p/cwd)" != "$dir" ] || echo $p; done; } # of these processes, those of this test
ranks_of() { # WORDS: the processes with these in their commands that mpirun has started
    for p in $(here $(pgrep -f "train .*$1")); do
        tr '\0' '\n' < /proc/$p/environ 2> /dev/null | grep -q '^OMPI_COMM_WORLD_RANK=' && echo $p
    done || true
}
begin() { "$nebula" train job.yaml out=$1 "${@:2}" parallel.timeout=20s > $1.log 2>&1 & pid=$!; started="$started $pid"; }
await() { # OUT N: a start of it has told N steps
    until [ "$(made $1.log)" -ge $2 ]; do kill -0 $pid 2> /dev/null || return 1; sleep 0.02; done
}
moment() { sleep 0.0$((RANDOM % 10))$((RANDOM % 10)); }

# ---- alone: ranks are killed at random places, and what they repeat is the same
"$nebula" train job.yaml out=calm parallel.data=2 > calm.log 2>&1 || fail "ranks made no private steps"
grep -aq "privacy: 120 steps will cost epsilon [0-9.]* at delta 1e-05: a sample of [0-9]* takes part" calm.log || fail "nobody said what it costs"
[ "$(count calm/privacy)" = 128 ] && [ "$(stat -c %a calm/privacy)" = 600 ] || fail "120 steps in blocks of 16 are not $(count calm/privacy)"
begin hurt parallel.data=3 parallel.zero=1
for i in 1 2 3 4 5; do # the checkpoints in between keep it from giving up
    await hurt $((i * 20 + RANDOM % 9)) || break
    moment
    all=($(ranks_of out=hurt))
    [ ${#all[@]} = 0 ] || kill -KILL ${all[RANDOM % ${#all[@]}]} 2> /dev/null || true
done
wait $pid || fail "the training did not survive kills of its ranks"
grep -aq "a rank was lost" hurt.log || fail "no rank was lost"
if grep -aq "came out differently" hurt.log; then fail "a repeated step was another one"; fi
[ "$(count hurt/privacy)" = 128 ] || fail "after kills of ranks $(count hurt/privacy) steps are charged"
[ "$(ls hurt/*/privacy hurt/ranks/*privacy* 2> /dev/null | wc -l)" = 0 ] || fail "a rank has an account"

# ---- a rank that computed wrong: what it repeats would be another release. Its memory changes after step 25; the check of step 30 finds it, so
# the results of steps 26 to 29 were other ones than those that are made now.
touch flip
if NEBULA_TEST_FLIP=1:25:$dir/flip "$nebula" train job.yaml out=wrong parallel.data=2 parallel.check_every=30 train.save_every=20 > wrong.log 2>&1; then
    fail "other results of the same draws were taken"
fi
[ ! -e flip ] && grep -aq "came out differently" wrong.log || fail "other results were not noticed"
# Started again, it draws anew, and what it repeats is charged: 32 steps of the first life, whose blocks count as spent, and 100.
"$nebula" train job.yaml out=wrong parallel.data=2 parallel.check_every=30 train.save_every=20 > again.log 2>&1 || fail "it did not go on"
[ "$(count wrong/privacy)" = 144 ] || fail "$(count wrong/privacy) steps are charged for 132"

# ---- the gateway is killed at random places: the account is never behind
told=0
for life in 1 2 3 4 5 6; do
    begin dead parallel.data=2 train.save_every=7
    if await dead $((1 + RANDOM % 25)); then moment; kill -KILL $pid 2> /dev/null || true; fi
    wait $pid 2> /dev/null || true
    told=$((told + $(made dead.log)))
    charged=0; [ ! -e dead/privacy ] || charged=$(count dead/privacy)
    [ "$charged" -ge "$told" ] || fail "life $life: $told steps were made and $charged charged"
    until [ -z "$(ranks_of out=dead)" ]; do sleep 0.05; done # they end with it
done
# a budget holds over all starts: one that 20 steps would spend, beside an account that has more
rate=$(grep -ao "with probability [0-9.]*" dead.log | head -1); rate=${rate##* }
limit=$("$nebula" privacy epsilon --noise 1.1 --rounds 20 --sample-rate $rate --delta 1e-5)
before=$(count dead/privacy); rm -r dead/checkpoints
begin dead parallel.data=2 train.steps=2 privacy.epsilon=$limit
if wait $pid; then fail "a budget that is spent was not kept"; fi
grep -aq "the privacy budget is spent: epsilon" dead.log || fail "stopped for another reason"
[ "$(count dead/privacy)" = "$before" ] && [ "$(made dead.log)" = 0 ] || fail "a step was made beyond the budget"

# ---- ranks that the user starts himself: the first one charges
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NEBULA_PLUGIN_PATH=$(dirname "$nebula")
mpirun -n 2 --oversubscribe "$nebula" train job.yaml out=hand parallel.data=2 train.steps=20 > hand.log 2>&1 || fail "ranks that were started by hand"
[ "$(count hand/privacy)" = 32 ] || fail "started by hand: $(count hand/privacy) steps are charged"

# ---- an account keeps a job without a budget away, also with ranks
if "$nebula" train job.yaml out=calm privacy.unit=none parallel.data=2 train.micro=2 > none.log 2>&1; then fail "went on without noise beside an account"; fi
grep -aq "is a privacy account, and the job has no privacy.unit any more" none.log || fail "no word about the account"

# ---- a run with others: one site of two processes, one of one
cat job.yaml > two.yaml
cat >> two.yaml <<'YAML'
wan: {interval: 10, fragments: 1, rung: int8, archive: yes, round_seconds: 1}
sites: [{name: a, parallel: {data: 2}}, {name: b}]
YAML
"$nebula" lab two.yaml out=two > two.log 2>&1 & pid=$!
started="$started $pid"
until ls two/a/checkpoints/*.neb > /dev/null 2>&1; do kill -0 $pid 2> /dev/null || fail "the run ended early"; sleep 0.05; done
victims=($(ranks_of '--site a'))
[ ${#victims[@]} -gt 0 ] || fail "site a has no ranks"
kill -KILL ${victims[RANDOM % ${#victims[@]}]}
wait $pid || fail "the private run failed"
"$nebula" audit two/a/site > audit.log 2>&1 || fail "an audit found something"
[ "$(grep -cE '^  [ab] .*privacy \(sample\): epsilon [0-9.]+ of 8 at delta 1e-05' audit.log)" = 2 ] || fail "no epsilon of both sites"
[ "$(count two/a/site/run/quiet/privacy)" = 128 ] || fail "site a has $(count two/a/site/run/quiet/privacy) steps in its account"

# ---- refused
refused() { if "$nebula" train job.yaml out=bad "${@:2}" > bad.log 2>&1; then fail "began with ${*:2}"; fi; grep -aq "$1" bad.log || fail "no '$1' with ${*:2}"; }
for words in "parallel.tensor=2" "parallel.pipeline=2" "parallel.data=2 parallel.zero=2" "parallel.offload=moments"; do
    refused "a sample's gradient is clipped whole, at one process; use parallel.data alone, with zero 0 or 1" $words
done
refused "but a step has 16 samples on average" parallel.data=32
echo "private_ranks: ok"
