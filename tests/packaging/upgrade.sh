#!/bin/bash
# upgrade.sh: a run is upgraded site by site. Both sites begin with the last release's binary; one is stopped and goes on with this
# tree's, then the other; between the two the versions train together. The run ends with the same model at both. The two versions pair by a code,
# whichever makes it and whichever is the relay host. A site of an older protocol is refused by name, whichever of the two dials.
# packaging/releases names the commits; they are built in build/upgrade of this checkout.
#     tests/packaging/upgrade.sh NEBULA-I
set -eu
nebula=$(realpath "$1")
top=$(cd "$(dirname "$0")/../.." && pwd)
. "$top/tests/support/ports.sh"
fail() { echo "FAIL: $*" >&2; for f in "${dir:-/nonexistent}"/*.log; do echo "== $f" >&2; tail -n 15 "$f" >&2; done; exit 1; }
git -C "$top" rev-parse --git-dir > /dev/null 2>&1 || { echo "upgrade: skipped, this is not a git checkout"; exit 0; }

build() { # NAME: the release of packaging/releases, into build/upgrade/NAME; its binary in $built
    local commit at=$top/build/upgrade/$1
    commit=$(sed -n "s/^$1 //p" "$top/packaging/releases")
    built=$at/build/release/nebula-i
    git -C "$top" merge-base --is-ancestor "$commit" HEAD || fail "$1 ($commit) is not in the history of this tree, or this is a shallow clone"
    [ "$(cat "$at/commit" 2> /dev/null)" != "$commit" ] || return 0
    rm -rf "$at" && mkdir -p "$at"
    git -C "$top" archive "$commit" | tar -x -C "$at"
    cmake -G Ninja -S "$at" -B "$at/build/release" > "$at/log" 2>&1 && cmake --build "$at/build/release" -j "${JOBS:-$(nproc)}" --target nebula-i >> "$at/log" 2>&1 ||
        { tail -20 "$at/log"; fail "building $1 ($commit)"; }
    echo "$commit" > "$at/commit"
}
build last; last=$built
build old; old=$built

dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
until_true() { local n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 1800 ] || fail "waited in vain for: $1"; sleep 0.1; done; }
cat "$top/LICENSE" "$top"/docs/*.md > text
cat > job.yaml <<'YAML'
task: causal
tokenizer: {type: bpe, vocab: 300, lines: 500}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 10000000, minutes: 10, tokens: 128, max_len: 64, lr: 2e-3, log_every: 100000, threads: 1, save_every: 100000}
wan: {interval: 50, fragments: 1, tokens: 100000000, rung: int8, round_seconds: 5}
sites:
  - {name: a, folder: a}
  - {name: b, folder: b}
data:
  - {file: text}
YAML
roster() { # BINARY: fresh sites, sealed by it; every address is used once
    rm -rf a b draft roster
    local s
    for s in a b; do
        "$1" site init $s > /dev/null 2>&1
        "$1" roster add draft $s 127.0.0.1:$(free_port)
    done
    "$1" roster seal draft roster --operator a > /dev/null 2>&1
    for s in a b; do "$1" roster join roster $s > /dev/null 2>&1; done
}
start() { # SITE BINARY LOG
    "$2" train job.yaml --site $1 out=out-$1 name=$run > $3.log 2>&1 & eval "pid_$1=$!"
}
records() { sed -n 's/.*"record": *\([0-9]*\).*/\1/p' $1/run/status.json 2> /dev/null | head -1; }
goes_on() { # records are committed from here on, seen from site a
    local from; from=$(records a); from=${from:-0}
    until_true "[ \"\$(records a)\" -ge $((from + 4)) ] 2> /dev/null"
}
stop() { kill -TERM $1; wait $1 || true; } # writes a checkpoint

run=rolling
roster "$last"
start a "$last" a-last; start b "$last" b-last
until_true "[ -e a/run/status.json ]"
goes_on; echo "upgrade: the last release commits at both sites"
stop $pid_b; start b "$nebula" b-new
goes_on; echo "upgrade: site b is upgraded, and the run goes on"
stop $pid_a; start a "$nebula" a-new
goes_on; echo "upgrade: site a is upgraded, and the run goes on"
stop $pid_b; start b "$last" b-back
goes_on; echo "upgrade: site b is back at the last release, and the run goes on"
"$nebula" order a end --operator a > order.log 2>&1 || fail "the order to end"
wait $pid_a || fail "site a"
wait $pid_b || fail "site b"
cmp out-a/model.safetensors out-b/model.safetensors || fail "the models differ"
"$last" roster show a > /dev/null 2>&1 || fail "the last release does not read the roster"

# A code, with the last release as one of the two sites, then as the other; and as the relay host of the second pair.
pairs() { # HOST CREATOR JOINER: binaries
    rm -rf a b host pair-*.out
    "$1" relay --listen 127.0.0.1:0 --folder host > pair-host.out 2> pair-host.log & local host=$!
    until_true "grep -q '^relay://' pair-host.out"
    local at; at=$(cat pair-host.out)
    "$2" pair a --relay "$at" > pair-a.out 2> pair-a.log & local creator=$!
    until_true "grep -q '^[0-9]' pair-a.out"
    "$3" pair b "$(head -1 pair-a.out)" --relay "$at" > pair-b.out 2> pair-b.log || fail "the site that was given the code"
    wait $creator || fail "the site that made the code"
    cmp a/roster b/roster || fail "the rosters differ"
    kill $host; wait $host || true
}
pairs "$nebula" "$last" "$nebula"
pairs "$last" "$nebula" "$last"
echo "upgrade: both versions pair with each other"

# Older ones, as the site that dials (a, the lower number) and as the one that is dialled.
for way in dials answers; do
    run=$way
    rm -rf out-a out-b
    roster "$old"
    if [ $way = dials ]; then start a "$old" a-old; start b "$nebula" b-$way; log=b-$way other=a; else start a "$nebula" a-$way; start b "$old" b-old; log=a-$way other=b; fi
    until_true "grep -qE '$other \\(key .*(speaks versions [0-9]+ to 4 of the protocol, this site 5|refuses this site: the peer speaks versions 5 )' $log.log"
    grep -q "upgrade the older one" $log.log || fail "no word about what to do"
    ! grep -q "link to $other is up" $log.log || fail "a link to an older version"
    stop $pid_a; stop $pid_b
done
echo "upgrade: ok, older ones are refused by name"
