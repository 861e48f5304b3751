#!/bin/bash
# Strangers take the number of a code before the rightful site comes. Whoever says nothing, nonsense or the hello of another version has
# guessed nothing: the site that shows the code says so once and waits on, a site that has the code comes again, and the two are paired
# under the first code.
#     tests/pair_guests.sh NEBULA-I PAIR_GUEST
set -eu
nebula=$(realpath "$1") guest=$(realpath "$2")
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; for f in *.out *.err; do echo "== $f" >&2; tail -n 20 "$f" >&2; done; exit 1; }
until_true() { local n=0; until eval "$1"; do n=$((n + 1)); [ $n -lt 6000 ] || fail "waited in vain for: $1"; sleep 0.1; done; }
unset https_proxy HTTPS_PROXY all_proxy ALL_PROXY no_proxy NO_PROXY

"$nebula" relay --listen 127.0.0.1:0 --folder host --meetings-per-minute 1000 > relay.out 2> relay.err &
until_true "grep -q '^relay://' relay.out"
relay=$(sed 's#relay://\(.*\)\#.*#\1#' relay.out)
create() { # SITE; its code in $code
    "$nebula" pair $1 --relay $relay > $1.out 2> $1.err & creator=$!
    until_true "grep -q '^[0-9]' $1.out 2> /dev/null"
    code=$(head -1 $1.out)
}
visit() { "$guest" $relay "$code" $1 > $1.met 2> $1.why & visitor=$!; }
noticed() { # SITE TEXT: once, however many came
    [ "$(grep -c 'somebody came with the number of this code' $1.err)" = 1 ] || fail "$1 does not say once that somebody came"
    grep -q "somebody came with the number of this code, and made no guess ($2.*): the code is good still" $1.err || fail "$1 does not say '$2'"
}
paired() { # CREATOR JOINER
    wait $creator || fail "site $1"
    wait $joiner || fail "site $2"
    cmp $1/roster $2/roster || fail "the rosters of $1 and $2 differ"
    [ "$(grep -c '^[0-9]' $1.out)" = 1 ] || fail "$1 made another code"
}

# Two that go, or say nonsense, and one who stays and says nothing: it has the number until the site that shows the code leaves it.
create a
visit leaves; wait $visitor
until_true "grep -qE 'made no guess|is void' a.err"
grep -q "made no guess" a.err || fail "a visit without a guess costs a its code"
visit nonsense; wait $visitor
visit silent
until_true "grep -q met silent.met"
"$nebula" pair b "$code" --relay $relay > b.out 2> b.err & joiner=$!
paired a b
wait $visitor
grep -q "the other one has gone" silent.why || fail "the silent one was not left"
noticed a "the relay host says: the other one has gone"

# One who begins as a joiner does, and gives no proof.
create c
visit hello
until_true "grep -q met hello.met"
"$nebula" pair d "$code" --relay $relay > d.out 2> d.err & joiner=$!
paired c d
wait $visitor
noticed c "nothing came from the other one in time"

# The site with the code meets a stranger first, and comes again: the same word, once.
create x
kill $creator; wait $creator || true
visit silent
"$nebula" pair y "$code" --relay $relay > y.out 2> y.err & joiner=$!
until_true "grep -q met silent.met"
wait $visitor
until_true "grep -q 'made no guess' y.err"
noticed y "nothing came from the other one in time"
kill $joiner; wait $joiner || true

# Whoever guesses wrong gets no proof of the words in return; and has had the guess.
create w
visit wrong; wait $visitor
[ "$(cat wrong.met)" = "met
1 n" ] || fail "a wrong guess is answered by '$(cat wrong.met)'"
until_true "[ \$(grep -c '^[0-9]' w.out) = 2 ]"
kill $creator; wait $creator || true

# Another version: at the site that waits a word and no harm; a site that was given a code ends, since no other will come.
create e
visit version; wait $visitor
until_true "grep -qE 'made no guess|is void' e.err"
grep -q "made no guess" e.err || fail "a visit without a guess costs e its code"
visit version; wait $visitor
"$nebula" pair f "$code" --relay $relay > f.out 2> f.err & joiner=$!
paired e f
noticed e "the other site has another version of pairing (2, here 1): upgrade one"
code=1234-canal-violet-piano
visit version
if "$nebula" pair g $code --relay $relay > g.out 2> g.err; then fail "g was paired with another version"; fi
grep -q "the other site has another version of pairing (2, here 1): upgrade one" g.err || fail "g is not told to upgrade"
[ ! -e g/roster ] || fail "g has a roster"
echo "pair_guests: ok"
