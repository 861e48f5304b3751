#!/bin/bash
# A site's gateway and its ranks: two sites of four ranks each over the laboratory's line. A rank of each is killed and one
# is stopped; the gateways stay in the run, the ranks come back, repeat their steps with the values that rounds left, and
# the run ends with the state root of a run in which nothing happened. The ranks have no key in their memory, no site folder and no
# network; nobody but the user may read what gateway and ranks write; a process without the secret does not become a rank.
set -eu
nebula=$1
top=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v mpirun > /dev/null || [ ! -e "$(dirname "$nebula")/libnebula-i-mpi.so" ]; then
    echo "gateway: skipped, there is no Open MPI (apt install libopenmpi-dev openmpi-bin, then build again)"
    exit 0
fi
dir=$(mktemp -d)
lab=
trap 'kill $lab 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.log hurt/*/ranks/*.log; do echo "== $f" >&2; tail -n 30 "$f" >&2; done; exit 1; }

cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
name: gates
task: causal
cache: cache
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 32, layers: 2, heads: 2, dropout: 0.1}
train: {steps: 300, schedule: constant, tokens: 64, micro: 4, max_len: 64, lr: 2e-3, clip: 0.2, log_every: 100, threads: 1,
        save_every: 60, eval_every: 100}
parallel: {timeout: 4s}
wan: {interval: 20, fragments: 1, rung: int8, merge_after: 8, round_seconds: 300}
sites:
  - {name: a, parallel: {data: 2, pipeline: 2}}
  - {name: b, parallel: {data: 2, tensor: 2, zero: 1}}
data:
  - {file: text}
  - {file: text, use: valid}
YAML
root() { sed -n "s/^$1 .*state root \([0-9a-f]*\),.*/\1/p" $2; }
"$nebula" lab job.yaml out=calm --wan 100mbit,20ms > calm.log 2>&1 || fail "the calm run"
[ -n "$(root a calm.log)" ] && [ "$(root a calm.log)" = "$(root b calm.log)" ] || fail "the roots of the calm run differ"

"$nebula" lab job.yaml out=hurt --wan 100mbit,20ms > hurt.log 2>&1 & lab=$!
here() { for p; do [ "$(readlink /proc/$p/cwd)" != "$dir" ] || echo $p; done; } # of these processes, those of this test
ranks_of() { # SITE: the processes that mpirun has started
    for p in $(here $(pgrep -f "train .*--site $1")); do
        tr '\0' '\n' < /proc/$p/environ 2> /dev/null | grep -q '^OMPI_COMM_WORLD_RANK=' && echo $p
    done
}
gateway_of() { # SITE: the process with the keys
    for p in $(here $(pgrep -f "train .*--site $1")); do
        tr '\0' '\n' < /proc/$p/environ 2> /dev/null | grep -q '^OMPI_COMM_WORLD_RANK=' || [ "$(cat /proc/$p/comm)" = mpirun ] || echo $p
    done | head -1
}
listens() { # PROCESS: its TCP sockets that wait for connections
    for f in /proc/$1/fd/*; do
        case $(readlink $f 2> /dev/null) in
        socket:*) n=$(readlink $f); n=${n#socket:[}; awk -v n=${n%]} '$4 == "0A" && $10 == n { print $2 }' /proc/$1/net/tcp /proc/$1/net/tcp6 ;;
        esac
    done 2> /dev/null
}
wait_for() { until eval "$1"; do kill -0 $lab 2> /dev/null || fail "the run ended before: $2"; sleep 0.05; done; }
hurt() { # SIGNAL SITE WHICH
    wait_for "[ \$(ranks_of $2 | wc -l) = 4 ]" "site $2 has four ranks"
    kill -$1 $(ranks_of $2 | sed -n $3p)
}
back() { grep -c "^$1 .* the ranks are back" hurt.log || true; }
for s in a b; do
    wait_for "[ -n \"\$(ls hurt/$s/checkpoints/*.neb 2> /dev/null)\" ]" "a checkpoint of site $s"
    for p in $(ranks_of $s); do
        if ls -l /proc/$p/fd 2> /dev/null | grep -q "hurt/$s/site"; then fail "a rank of site $s has opened the site's folder"; fi
        [ -z "$(listens $p)" ] || fail "a rank of site $s listens on a network: $(listens $p)"
    done
    if command -v python3 > /dev/null; then
        python3 "$top/tests/support/key_in_memory.py" hurt/$s/site/site.key $(gateway_of $s) -- $(ranks_of $s) || fail "the key of site $s"
    fi
done
[ -z "$(find hurt ! -type l -perm /077)" ] || fail "others may read $(find hurt ! -type l -perm /077 | head -3)"
hurt KILL a 1
hurt KILL b 3
for s in a b; do wait_for "[ \$(back $s) -ge 1 ]" "the ranks of $s come back"; done
hurt STOP b 2
wait_for "[ \$(back b) -ge 2 ]" "the ranks of b come back a second time"
wait $lab || fail "the run did not survive"
lab=
grep -qE "^b .*rank [0-9] of 4 (has made no progress for 4 s|does not answer)" hurt.log || fail "the rank that hung was not named"
if grep -q "start 2 of that site" hurt.log; then fail "a site left the run"; fi
for s in a b; do [ "$(root $s hurt.log)" = "$(root a calm.log)" ] || fail "site $s: root $(root $s hurt.log) instead of $(root a calm.log)"; done
echo "gateway: ok, state root $(root a hurt.log)"
