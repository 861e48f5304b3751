#!/bin/sh
# The command line itself: usage, exit codes, suggestions, and the benchmarks' JSON frame.
set -eu
nebula=$1
fail() { echo "FAIL: $*" >&2; exit 1; }

"$nebula" --version | grep -q '^nebula-i [0-9]' || fail "version"
"$nebula" help | grep -q bench || fail "help lists the verbs"
for verb in $("$nebula" help | awk '/^  [a-z]/ { print $1 }'); do
    "$nebula" "$verb" --help | grep -q . || fail "$verb --help"
    case $verb in bench) continue ;; esac
    "$nebula" "$verb" some --thing --help > /dev/null 2>&1 || fail "$verb with --help among other words"
done
for bench in $("$nebula" bench | awk '/^  [a-z]/ { print $1 }'); do
    "$nebula" bench "$bench" --json --help | grep -q "^usage: nebula-i bench $bench" || fail "bench $bench --help"
done
if "$nebula" >/dev/null 2>&1; then fail "no verb must not succeed"; fi
"$nebula" bnech 2>&1 | grep -q "did you mean 'bench'" || fail "suggestion"
"$nebula" bench base --json | tail -1 | grep -q '^{"bench":"base","figures":\[{"name":"pool.region","value":' ||
    fail "bench --json"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '{"job":"j\\u001bc","strategy":"replica","written":1,"sites":[{"site":"a","role":"\\u009b2J","state":"\\u001b[2J"}]}' > "$dir/status.json"
"$nebula" status "$dir" > "$dir/shown" || fail "a status of the version before"
if LC_ALL=C grep -q "$(printf '[\001-\010\033\177\302]')" "$dir/shown"; then fail "control characters of a peer reach the terminal"; fi
"$nebula" status "$dir" --json | LC_ALL=C grep -q "$(printf '[\033\302]')" && fail "control characters in --json"
echo "cli: ok"
