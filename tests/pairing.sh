#!/bin/bash
# Two sites that have nothing get a common roster from a code, at a relay host; then a third one. Wrong codes, typing errors, folders that
# take part elsewhere and sites that run are refused with a message at both sites, and change nothing.
set -eu
nebula=$1
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.out *.err; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
until_true() { local n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 12000 ] || fail "waited in vain for: $1"; sleep 0.1; done; }
unset https_proxy HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY

"$nebula" relay --listen 127.0.0.1:0 --folder host --meetings-per-minute 1000 > relay.out 2> relay.err &
until_true "grep -q '^relay://' relay.out"
address=$(cat relay.out) relay=$(sed 's#relay://\(.*\)\#.*#\1#' relay.out)
create() { "$nebula" pair "$@" --relay $relay > create.out 2> create.err & creator=$!; }   # its codes: the lines of create.out
code() { until_true "[ \$(grep -c '^[0-9]' create.out) -ge $1 ]"; grep '^[0-9]' create.out | sed -n "$1p"; }
refuses() { # TEXT WORD…: the command fails and says the text
    local text=$1; shift
    if "$nebula" pair "$@" --relay $relay > bad.out 2> bad.err; then fail "pair $* went through"; fi
    grep -q "$text" bad.err || fail "pair $*: no '$text'"
}
wrong() { echo "$1" | sed 's/-[a-z]*$/-piano/; t; s/$/x/'; }   # another last word (one in 2048 codes has it already)

# Two sites from nothing.
: > create.out
create a a.example.org:7100
first=$(code 1)
"$nebula" pair b "$first" --relay "$address" > b.out 2> b.err || fail "site b"
wait $creator || fail "site a"
cmp a/roster b/roster || fail "the rosters differ"
grep -q "nebula-i train job.yaml --site b" b.err || fail "the next command is missing"
"$nebula" roster show b > show.out
grep -q "^member 1 .* a.example.org:7100 $address" show.out && grep -q "^member 2   b:.* $address" show.out || fail "addresses"
grep "^genesis" create.out > one; grep "^genesis" b.out > two; cmp one two || fail "the two sites print different genesis hashes"

# A typing error costs no attempt; a wrong code voids the code at both sites, and the next one is good.
: > create.out
create a
second=$(code 1)
refuses "is not a word of any code" c "${second%-*}-qwertz"
refuses "the other has another code, or somebody changed a message. The code is void now" c "$(wrong $second)"
third=$(code 2)
[ "$third" != "$second" ] || fail "the same code again"
grep -q "^this code is void: the other has another code" create.err || fail "site a does not say that its code is void"
refuses "two have met under this code already" c "$second"
"$nebula" pair c "$third" --relay $relay > c.out 2> c.err || fail "site c"
wait $creator || fail "site a, with c"
cmp a/roster c/roster || fail "the rosters of three"
"$nebula" roster show c | grep -q "^member 3   c:" || fail "c is not the third member"
cmp -s a/roster b/roster && fail "b has the new roster already: by whom?"

# The same site again: the same roster. Another site of that name: refused at both.
: > create.out
create a
"$nebula" pair c "$(code 1)" --relay $relay > c.out 2> c.err || fail "site c once more"
wait $creator || fail "site a once more"
cmp a/roster c/roster || fail "the roster changed without a reason"
: > create.out
create a
mkdir other; refuses "does not go on: the roster has another site named 'b'" other/b "$(code 1)"
if wait $creator; then fail "site a took a second b"; fi
[ ! -e other/b/roster ] || fail "a refused site has a roster"

# A folder with a roster of its own keeps it, unless --replace.
"$nebula" pair x --relay $relay --wait 1 > x.out 2> x.err && fail "site x was paired with nobody"
grep -q "nobody came with this code within 1 s" x.err || grep -q "1 s" x.err || fail "x does not say that nobody came"
: > create.out
create x
refuses "b takes part in another run already" b "$(code 1)"
if wait $creator; then fail "x took b"; fi
grep -q "b takes part in another run already" create.err || fail "x is not told why"
: > create.out
create x
"$nebula" pair b "$(code 1)" --replace --relay $relay > b.out 2> b.err || fail "--replace"
wait $creator || fail "x, with b"
[ -s b/roster.before ] && cmp x/roster b/roster || fail "the old roster is not kept"

# Who is not the operator makes no codes; whoever is given wrong codes again and again stops.
refuses "whose operator is somebody else" c
: > create.out
create a
for i in 1 2 3 4 5; do refuses "The code is void now" d "$(wrong $(code $i))"; done
if wait $creator; then fail "five wrong codes, and site a is content"; fi
grep -q "5 codes in a row failed: somebody may be guessing" create.err || fail "no message about guesses"
[ "$(grep -c '^[0-9]' create.out)" = 5 ] || fail "more than five codes"
[ ! -e d/roster ] || fail "a guesser has a roster"
if [ -s relay.err ] && grep -q "warn\|error" relay.err; then fail "the relay host complains"; fi
echo "pairing: ok"
