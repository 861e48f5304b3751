#!/bin/sh
# The way from nothing to a run's roster, by the commands a user types.
set -eu
nebula=$1
fail() { echo "FAIL: $*" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export NEBULA_LOG=none
a=$("$nebula" site init alpha) b=$("$nebula" site init beta)
"$nebula" site init gamma --dir deep/er/gamma >/dev/null
"$nebula" site init ops >/dev/null
[ "$(stat -c %a alpha/site.key)" = 600 ] || fail "key mode"
if "$nebula" site init alpha >/dev/null 2>&1; then fail "init overwrote a key"; fi
[ "$("$nebula" site show alpha)" = "$a" ] || fail "show"
"$nebula" roster add draft "$a" 127.0.0.1:7401
"$nebula" roster add draft beta 127.0.0.1:7402 --votes 2
if "$nebula" roster add draft "${b}0" 127.0.0.1:7402 2>/dev/null; then fail "mistyped identity"; fi
if "$nebula" roster add draft beta nowhere 2>/dev/null; then fail "bad address"; fi
echo "# by hand" >>draft
"$nebula" roster seal draft run.roster --operator ops --job draft | grep -q '^genesis    [0-9a-f]\{64\}$' || fail "seal"
if "$nebula" roster seal draft run.roster --operator ops 2>/dev/null; then fail "seal overwrote"; fi
"$nebula" roster join run.roster alpha && "$nebula" roster join run.roster beta || fail "join"
if "$nebula" roster join run.roster deep/er/gamma 2>/dev/null; then fail "a stranger joined"; fi
"$nebula" roster show alpha | grep -q '^member 2   beta:.* votes=2 127.0.0.1:7402$' || fail "roster show"
"$nebula" roster admit run.roster deep/er/gamma --learner --operator ops >/dev/null || fail "admit"
"$nebula" roster join run.roster deep/er/gamma || fail "join after admit"
if "$nebula" roster evict run.roster gamma --operator alpha 2>/dev/null; then fail "one vote of three evicted"; fi
if "$nebula" roster evict run.roster beta --operator ops 2>/dev/null; then fail "evicted a majority without --force"; fi
"$nebula" roster evict run.roster beta --operator ops --force | grep -q '^epoch      2$' || fail "evict"
"$nebula" roster join run.roster alpha || fail "a newer epoch"
if "$nebula" roster join run.roster beta 2>/dev/null; then fail "an evicted site joined"; fi
"$nebula" roster show run.roster | grep -q beta && fail "beta is still there"
"$nebula" roster seal draft other.roster --operator ops >/dev/null
if "$nebula" roster join other.roster alpha 2>/dev/null; then fail "two runs in one folder"; fi

# The operator signs two different epochs of one number: a site of one branch takes over the other only when forced.
for k in 1 2; do "$nebula" site init two$k >/dev/null; "$nebula" roster add forked two$k 127.0.0.1:740$k; done
"$nebula" roster seal forked left.roster --operator ops >/dev/null
"$nebula" roster join left.roster two1 && "$nebula" roster join left.roster two2 || fail "join of the forked run"
cp left.roster right.roster
"$nebula" roster admit left.roster alpha --learner --operator ops >/dev/null
"$nebula" roster admit right.roster beta --learner --operator ops >/dev/null
head=$("$nebula" adopt left.roster two1 | sed -n 's/^head  *//p')
[ ${#head} = 64 ] && "$nebula" roster show two1 | grep -q alpha || fail "adopt a newer epoch"
if "$nebula" adopt right.roster two1 >/dev/null 2>&1; then fail "adopted the other branch without --force"; fi
"$nebula" roster show two1 | grep -q alpha || fail "a refused adoption changed the roster"
"$nebula" adopt right.roster two1 --force | grep -q '^dropped    epochs 1 to 1' || fail "adopt the other branch"
"$nebula" roster show two1 | grep -q beta && [ -f two1/roster.dropped ] || fail "the other branch"
if "$nebula" adopt run.roster two1 --force 2>/dev/null; then fail "adopted another run"; fi
(flock 9; if "$nebula" adopt left.roster two1 --force 2>/dev/null; then fail "adopted while in use"; fi) 9<>two1/lock
echo "roster: ok"
