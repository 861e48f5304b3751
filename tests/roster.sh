#!/bin/sh
# Goes from nothing to the roster of a run with the commands that a user types.
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
[ "$(stat -c %a alpha/site.key)" = 600 ] || fail "the key file can be read by others"
if "$nebula" site init alpha >/dev/null 2>&1; then fail "init overwrote a key"; fi
[ "$("$nebula" site show alpha)" = "$a" ] || fail "site show prints another identity"
"$nebula" roster add draft "$a" 127.0.0.1:7401
"$nebula" roster add draft beta 127.0.0.1:7402 --votes 2
if "$nebula" roster add draft "${b}0" 127.0.0.1:7402 2>/dev/null; then fail "a mistyped identity was accepted"; fi
if "$nebula" roster add draft beta nowhere 2>/dev/null; then fail "a bad address was accepted"; fi
echo "# by hand" >>draft
"$nebula" roster seal draft run.roster --operator ops --job draft | grep -q '^genesis    [0-9a-f]\{64\}$' || fail "roster seal"
if "$nebula" roster seal draft run.roster --operator ops 2>/dev/null; then fail "seal overwrote a roster"; fi
"$nebula" roster join run.roster alpha && "$nebula" roster join run.roster beta || fail "roster join"
if "$nebula" roster join run.roster deep/er/gamma 2>/dev/null; then fail "a stranger joined"; fi
"$nebula" roster show alpha | grep -q '^member 2   beta:.* votes=2 127.0.0.1:7402$' || fail "roster show"
"$nebula" roster admit run.roster deep/er/gamma --learner --operator ops >/dev/null || fail "roster admit"
"$nebula" roster join run.roster deep/er/gamma || fail "an admitted site cannot join"
if "$nebula" roster evict run.roster gamma --operator alpha 2>/dev/null; then fail "one vote of three evicted a site"; fi
if "$nebula" roster evict run.roster beta --operator ops 2>/dev/null; then fail "evicted a majority without --force"; fi
"$nebula" roster evict run.roster beta --operator ops --force | grep -q '^epoch      2$' || fail "roster evict --force"
"$nebula" roster join run.roster alpha || fail "a site cannot take a newer epoch"
if "$nebula" roster join run.roster beta 2>/dev/null; then fail "an evicted site joined"; fi
"$nebula" roster show run.roster | grep -q beta && fail "the roster still names beta"
for s in alpha beta; do "$nebula" roster add hidden $s; done
if NEBULA_LOG=error "$nebula" roster seal hidden hidden.roster --operator ops 2>why; then fail "a roster of sites that cannot meet was sealed"; fi
grep -q "cannot meet, because none of them has an address: alpha, beta" why || fail "no message about sites that cannot meet"
"$nebula" roster add hidden deep/er/gamma 127.0.0.1:7403
"$nebula" roster seal hidden hidden.roster --operator ops 2>why >/dev/null || fail "one address is enough for a roster"
grep -q "through the others: alpha, beta" why || fail "no word about the sites without a line"
"$nebula" roster seal draft other.roster --operator ops >/dev/null
if "$nebula" roster join other.roster alpha 2>/dev/null; then fail "one folder joined two runs"; fi

# The operator signs two different epochs with one number. A site of one branch takes over the other only with --force.
for k in 1 2; do "$nebula" site init two$k >/dev/null; "$nebula" roster add forked two$k 127.0.0.1:740$k; done
"$nebula" roster seal forked left.roster --operator ops >/dev/null
"$nebula" roster join left.roster two1 && "$nebula" roster join left.roster two2 || fail "join of the forked run"
cp left.roster right.roster
"$nebula" roster admit left.roster alpha --learner --operator ops >/dev/null
"$nebula" roster admit right.roster beta --learner --operator ops >/dev/null
head=$("$nebula" adopt left.roster two1 | sed -n 's/^head  *//p')
[ ${#head} = 64 ] && "$nebula" roster show two1 | grep -q alpha || fail "a newer epoch was not adopted"
if "$nebula" adopt right.roster two1 >/dev/null 2>&1; then fail "adopted the other branch without --force"; fi
"$nebula" roster show two1 | grep -q alpha || fail "a refused adoption changed the roster"
"$nebula" adopt right.roster two1 --force | grep -q '^dropped    epochs 1 to 1' || fail "the other branch was not adopted with --force"
"$nebula" roster show two1 | grep -q beta && [ -f two1/roster.dropped ] || fail "after the adoption the roster is not that of the other branch"
if "$nebula" adopt run.roster two1 --force 2>/dev/null; then fail "adopted the roster of another run"; fi
(flock 9; if "$nebula" adopt left.roster two1 --force 2>/dev/null; then fail "adopted while the folder was in use"; fi) 9<>two1/lock
echo "roster: ok"
