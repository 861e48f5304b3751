#!/bin/sh
# relay_nat.sh: two sites behind NAT, each in a network namespace of its own, and a relay host between them: paired by a code and training
# within a minute. Nobody can connect to either site. Needs root, ip and nft; else it is skipped.
#
#     a --- router (masquerade, nothing comes in) --- relay host --- router (masquerade, nothing comes in) --- b
set -eu
nebula=$(realpath "$1")
fail() { echo "FAIL: $*" >&2; for log in relay pair-a pair-b a b; do tail -5 "$dir/$log.log" >&2 || true; done; exit 1; }
skip() { echo "relay_nat: skipped, $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "it needs root"
command -v ip > /dev/null && command -v nft > /dev/null || skip "ip and nft are not there"
dir=$(mktemp -d)
tag=nebn$$
pids=
clean() {
    for pid in $pids; do kill "$pid" 2> /dev/null || true; done
    for pid in $pids; do wait "$pid" 2> /dev/null || true; done
    for ns in r na nb a b; do ip netns del "$tag-$ns" 2> /dev/null || true; done
    rm -rf "$dir"
}
trap clean EXIT
on() { ns=$1; shift; ip netns exec "$tag-$ns" "$@"; }
ip netns add "$tag-r" 2> /dev/null || skip "this machine lets nobody make namespaces"
on r ip link set lo up
for s in a b; do
    [ $s = a ] && net=1 || net=2
    ip netns add "$tag-$s"
    ip netns add "$tag-n$s"
    on $s ip link set lo up
    ip -n "$tag-$s" link add name eth0 type veth peer name inner netns "$tag-n$s"
    ip -n "$tag-n$s" link add name outer type veth peer name "to-$s" netns "$tag-r"
    ip -n "$tag-$s" addr add 192.168.$net.2/24 dev eth0
    ip -n "$tag-n$s" addr add 192.168.$net.1/24 dev inner
    ip -n "$tag-n$s" addr add 10.9.$net.2/24 dev outer
    ip -n "$tag-r" addr add 10.9.$net.1/24 dev "to-$s"
    for l in "$s eth0" "n$s inner" "n$s outer" "r to-$s"; do set -- $l; ip -n "$tag-$1" link set "$2" up; done
    ip -n "$tag-$s" route add default via 192.168.$net.1
    ip -n "$tag-n$s" route add default via 10.9.$net.1
    on n$s sysctl -qw net.ipv4.ip_forward=1
    on n$s nft -f - << RULES || skip "nft has no NAT here"
table ip t {
  chain post { type nat hook postrouting priority 100; oifname "outer" masquerade; }
  chain through { type filter hook forward priority 0; iifname "outer" ct state new drop; }
}
RULES
done
on r sysctl -qw net.ipv4.ip_forward=1

# Nobody gets in, even with a route to the inside. (Shown by a server that the router itself reaches.)
ip -n "$tag-r" route add 192.168.1.0/24 via 10.9.1.2
ip netns exec "$tag-a" "$nebula" relay --listen 0.0.0.0:7100 --folder "$dir/bait" > "$dir/bait.out" 2> /dev/null &
bait=$!
pids=$bait
while ! grep -q "^relay://" "$dir/bait.out" 2> /dev/null; do kill -0 "$bait" || fail "no server behind the router"; sleep 0.1; done
reaches() { on $1 timeout 2 bash -c 'exec 3<> /dev/tcp/192.168.1.2/7100' 2> /dev/null; }
reaches na || fail "the router does not reach its own inside"
if reaches r; then fail "somebody can reach a router's inside"; fi
kill "$bait"
wait "$bait" || true

start=$(date +%s)
cd "$dir"
"$nebula" new demo --sites a,b > new.log 2>&1 || fail "no job"
cd demo && rm -rf a b
ip netns exec "$tag-r" "$nebula" relay --listen 0.0.0.0:7500 --address 10.9.1.1:7500 --folder "$dir/relay" > "$dir/relay.out" 2> "$dir/relay.log" &
pids=$!
while ! grep -q '^relay://' "$dir/relay.out"; do kill -0 "$pids" || fail "no relay host"; sleep 0.1; done
# The relay host has one name for both: 10.9.1.1 is an address of its machine that either reaches through its router.
ip netns exec "$tag-a" "$nebula" pair a --relay 10.9.1.1:7500 > "$dir/code" 2> "$dir/pair-a.log" &
first=$!
pids="$pids $first"
while [ ! -s "$dir/code" ]; do kill -0 "$first" || fail "no code"; sleep 0.1; done
on b "$nebula" pair b "$(head -1 "$dir/code")" --relay 10.9.1.1:7500 > /dev/null 2> "$dir/pair-b.log" || fail "b was not paired"
wait "$first" || fail "a was not paired"
for s in a b; do
    ip netns exec "$tag-$s" "$nebula" train job.yaml --site $s out="$dir/out-$s" train.threads=1 train.steps=40 > "$dir/$s.out" 2> "$dir/$s.log" &
    pids="$pids $!"
done
for s in a b; do
    until grep -q "through the relay host" "$dir/$s.log" "$dir/$s.out" 2> /dev/null; do sleep 0.1; [ $(($(date +%s) - start)) -lt 250 ] || fail "$s has no link"; done
done
until grep -qE "round|step +[1-9]" "$dir/a.out" "$dir/a.log"; do sleep 0.1; [ $(($(date +%s) - start)) -lt 250 ] || fail "a does not train"; done
echo "training after $(($(date +%s) - start)) s"
set -- $pids
shift 2 # the relay host and the pairing
for pid in "$@"; do wait "$pid" || fail "a site failed"; done
shown=$(date +%s) # the host writes what it serves every few seconds
until "$nebula" relay --folder "$dir/relay" --show > "$dir/shown" && grep -q '^runs 1$' "$dir/shown"; do
    [ $(($(date +%s) - shown)) -lt 120 ] || fail "the relay host does not serve the run"
    sleep 0.2
done
for s in a b; do "$nebula" site replay $s 2> /dev/null | head -1 | sed 's/.*state root \([0-9a-f]*\).*/\1/' > "$dir/root-$s"; done
[ -s "$dir/root-a" ] && cmp -s "$dir/root-a" "$dir/root-b" || fail "the sites end with different parameters"
echo "relay_nat: ok after $(($(date +%s) - start)) s, $(sed -n 's/^bytes //p' "$dir/shown") bytes passed on"
