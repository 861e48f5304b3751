#!/bin/sh
# The command line itself: usage, exit codes, suggestions, and the benchmarks' JSON frame.
set -eu
nebula=$1
fail() { echo "FAIL: $*" >&2; exit 1; }

"$nebula" --version | grep -q '^nebula-i [0-9]' || fail "version"
"$nebula" help | grep -q bench || fail "help lists the verbs"
if "$nebula" >/dev/null 2>&1; then fail "no verb must not succeed"; fi
"$nebula" bnech 2>&1 | grep -q "did you mean 'bench'" || fail "suggestion"
"$nebula" bench base --json | tail -1 | grep -q '^{"bench":"base","figures":\[{"name":"pool.region","value":' ||
    fail "bench --json"
license=$(dirname "$0")/../LICENSE
tiny="--hidden 32 --heads 2 --layers 1 --context 32 --sequences 8 --lr 1e-2"
"$nebula" demo "$license" $tiny --steps 300 --sample 10 > demo.out || fail "demo"
grep -q '^step  300 of 300 ' demo.out || fail "the demo shows its progress"
awk '/^held-out/ { exit !($3 > 7 && $13 < $8 - 0.2) }' demo.out || fail "the demo learns: $(grep held-out demo.out)"
test "$(grep -c '^    The ' demo.out)" = 3 || fail "the demo writes"
rm -f demo.out
if "$nebula" demo "$license" --context 100000 2>demo.err; then fail "an impossible demo must not succeed"; fi
grep -q "'context': 100000 is not between" demo.err || fail "an impossible demo says why"
rm -f demo.err
echo "cli: ok"
