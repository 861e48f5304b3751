#!/bin/sh
# Runs the laboratory for a long time: tests/soak/wan.sh NEBULA-I [SECONDS] [SEED]. Networks have random sizes, lines and trouble,
# and TCP runs both ways through them. Each ends in its own time or by a signal. Afterwards no process, no device and no network
# namespace may be left. In a run that was not cut short, every connection must have ended well.
set -eu
nebula=$1 seconds=${2:-600} seed=${3:-$$}
command -v iperf3 >/dev/null || { echo "soak: skipped: iperf3 is missing (package iperf3)"; exit 0; }
"$nebula" wan run --mode namespaces -- true 2>/dev/null || { echo "soak: skipped: network namespaces cannot be made here"; exit 0; }
fail() { echo "FAIL (seed $seed, round $round): $*" >&2; exit 1; }
number() { seed_now=$(((seed_now * 1103515245 + 12345) % 2147483648)); value=$((seed_now / 65536 % $1)); }
namespaces() { for p in /proc/[0-9]*/ns/net; do readlink "$p" 2>/dev/null || true; done | sort -u | wc -l; }
keepers() { grep -lx nebula-site /proc/[0-9]*/comm 2>/dev/null | wc -l; }

seed_now=$seed round=0 began=$(date +%s) before=$(namespaces) keepers_before=$(keepers)
while [ $(($(date +%s) - began)) -lt "$seconds" ]; do
    round=$((round + 1))
    number 400; rate=$((value + 5))
    number 150; rtt=$value
    number 4; sites=$(echo a,b a,b,c a,b,c,d a,b,c,d,e,f | cut -d' ' -f$((value + 1)))
    number 3; loss=$value
    number 6; ending=$value
    set -- --sites "$sites" --wan "${rate}mbit,${rtt}ms,0.0$loss%" --jitter 1ms --reorder 0.1% --seed $round \
        --schedule "1s+500ms a>b down; 2s+1s rate=$((rate / 2 + 1))mbit; 1s+100ms/700ms loss=5%" --stats
    # A server ends with its site, so the other sites stay until site a has talked to all of them.
    script='iperf3 -s -D -p 5300; [ $NEBULA_WAN_INDEX = 0 ] || exec sleep 1000; sleep 0.4
            for peer in $NEBULA_WAN_SITES; do
                [ $peer = a ] || iperf3 -c $peer -p 5300 -t 1 --bidir >/dev/null || exit 9; done'
    if [ $ending = 0 ]; then
        "$nebula" wan run "$@" -- sh -c "$script" >/dev/null 2>&1 & pid=$!
        number 30; sleep "$((value / 10)).$((value % 10))"
        number 3; kill -$(echo TERM INT KILL | cut -d' ' -f$((value + 1))) $pid
        wait $pid 2>/dev/null || true
    else
        "$nebula" wan run "$@" --until a -- sh -c "$script" >/dev/null 2>/tmp/soak.$$ || fail "$* ended with $?: $(tail -3 /tmp/soak.$$)"
    fi
    for i in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(namespaces)" -le "$before" ] && [ "$(keepers)" -le "$keepers_before" ] && break
        sleep 0.3
    done
    [ "$(keepers)" -le "$keepers_before" ] || fail "a keeper is left"
    [ "$(namespaces)" -le "$before" ] || fail "a network namespace is left"
done
rm -f /tmp/soak.$$
echo "soak: $round networks in $seconds s, nothing left"
