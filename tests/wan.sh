#!/bin/bash
# Measures the laboratory with ping and iperf3: delay within 1 ms, rate within 2 % up to 1 Gbit/s. Also checks exit codes,
# signals, and that nothing is left behind. A busy machine can make packets late and starve iperf3, so a failed try is repeated.
set -eu
nebula=$1
. "$(dirname "$0")/support/ports.sh"
fail() { echo "FAIL: $*" >&2; exit 1; }
dir=$(mktemp -d)
trap 'release_ports; kill -9 $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$dir"' EXIT # bash: dash's $(jobs -p) is empty

# ---- without any permission ------------------------------------------------------------------------------------------
"$nebula" wan --help | grep -q -- --schedule || fail "wan --help does not name --schedule"
if "$nebula" wan run --wan nonsense -- true 2>/dev/null; then fail "a wrong line was accepted"; fi
if "$nebula" wan run -- true : true : true 2>/dev/null; then fail "three commands for two sites were accepted"; fi
printf 'sites: [{name: north, command: exit 4}, {name: south, command: "true"}]\nline: {rate: 1mbit, rtt: 10ms}\n' > "$dir/lab.yaml"
"$nebula" wan check "$dir/lab.yaml" | grep -q 'north > south: rate 1 Mbit/s, delay 5 ms' || fail "wan check prints another line"
code=0; "$nebula" wan run "$dir/lab.yaml" --mode relay --ports $(free_port) 2>/dev/null || code=$?
[ $code = 4 ] || fail "with --mode relay the exit status is $code instead of 4"

if ! "$nebula" wan run --mode namespaces -- true 2> "$dir/why"; then
    echo "wan: skipped: no network namespaces here ($(head -1 "$dir/why"))"; exit 0
fi

# ---- exit status, names, signals -------------------------------------------------------------------------------------
code=0; "$nebula" wan run -- sh -c 'exit 3' : true 2>/dev/null || code=$?
[ $code = 3 ] || fail "exit status $code instead of 3"
code=0; "$nebula" wan run --until b -- sleep 1000 : sh -c 'grep -q "10.77.0.1 a" /etc/hosts' 2>/dev/null || code=$?
[ $code = 0 ] || fail "--until: exit status $code instead of 0"
left() { grep -lza "^4321$1\$" /proc/[0-9]*/cmdline 2>/dev/null | wc -l; }
for signal in TERM INT KILL; do
    "$nebula" wan run -- sh -c "sleep 4321$$ & sleep 4321$$" 2>/dev/null & pid=$!
    for i in $(seq 3000); do [ "$(left $$)" -ge 4 ] && break; sleep 0.2; done
    [ "$(left $$)" -ge 4 ] || fail "the commands did not start"
    # A shell starts background jobs with SIGINT ignored. The laboratory must still react to it.
    kill -$signal $pid
    wait $pid 2>/dev/null || true
    for i in $(seq 3000); do [ "$(left $$)" = 0 ] && break; sleep 0.2; done
    [ "$(left $$)" = 0 ] || fail "processes are left after SIG$signal"
done

# ---- how punctual this machine is --------------------------------------------------------------------------------------
# A virtual machine on a busy host wakes sleepers many milliseconds late. Figures taken then say nothing about the laboratory,
# so a missed bar is reported as skipped.
late_ms() {
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        from=$(date +%s%N); sleep 0.01; echo $((($(date +%s%N) - from) / 100000 - 100))
    done | sort -n | sed -n 15p | awk '{ print $1 / 10 }'
}
missed() {
    late=$(late_ms)
    if awk "BEGIN { exit !($late > 6) }"; then
        echo "wan: skipped: $*: this machine wakes one sleeper in four more than $late ms late"
    else
        fail "$*"
    fi
}

# ---- delay -----------------------------------------------------------------------------------------------------------
# within VALUE WANT TOLERANCE
within() { awk "BEGIN { d = $1 - $2; exit !(d <= $3 && d >= -($3)) }"; }
# The median round trip. From 100 ms on ping prints whole milliseconds. Then the function takes the mean of ping's last line
# without the largest of the 15: like a median it ignores one packet that a busy machine delivered late.
ping_ms() {
    "$nebula" wan run --wan "1gbit,$1ms" --until b -- sleep 60 : ping -c 15 -i 0.05 -W 2 a > "$dir/ping" 2>/dev/null || true
    if [ "$1" -ge 100 ]; then
        awk -F'[ /]' '/ received/ { n = $4 } /^rtt/ { if (n > 1) printf "%.3f", ($8 * n - $9) / (n - 1) }' "$dir/ping"
        return
    fi
    sed -n 's/.*time=\([0-9.]*\).*/\1/p' "$dir/ping" | sort -n |
        awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : 0 }'
}
if command -v ping >/dev/null; then
    for rtt in 0 10 90 300; do
        for try in 1 2 3 4 5; do
            ms=$(ping_ms $rtt)
            if within "$ms" $rtt 1; then break; fi
        done
        echo "delay: $rtt ms asked, ping saw $ms ms"
        within "$ms" $rtt 1 || missed "the delay is off by more than 1 ms"
    done
else
    echo "wan: skipped: the delay against ping (package iputils-ping)"
fi

# ---- rate ------------------------------------------------------------------------------------------------------------
# The rate that iperf3 received, counted in whole IP packets (1448 of 1500 bytes are payload), in Mbit/s.
iperf_rate() {
    "$nebula" wan run --wan "$1mbit,10ms" --stats --until b -- iperf3 -s -1 : \
        sh -c 'sleep 0.3; exec iperf3 -c a -O 1 -t 3 -f k' > "$dir/iperf" 2> "$dir/stats" || true
    awk '/receiver/ { for (i = 2; i <= NF; i++) if ($i == "Kbits/sec") r = $(i - 1) } END { printf "%.2f", r / 1000 * 1500 / 1448 }' "$dir/iperf"
}
if command -v iperf3 >/dev/null; then
    for rate in 10 100 1000; do
        for try in 1 2 3; do
            got=$(iperf_rate $rate)
            if within "$got" $rate "$rate * 0.02"; then break; fi
        done
        echo "rate: $rate Mbit/s asked, iperf3 received $got; $(tail -1 "$dir/stats")"
        within "$got" $rate "$rate * 0.02" || missed "the rate is off by more than 2 %"
    done
else
    echo "wan: skipped: the rate against iperf3 (package iperf3)"
fi
echo "wan: ok"
