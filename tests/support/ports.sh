# ports.sh: ports for bash tests that run side by side. `free_port` prints one that nobody listens at and that no other test has
# claimed; `free_port N` prints the first of N such ports in a row. A claim ends with the test (the process $$). All are below those
# that the system gives to outgoing connections.
port_claims="${TMPDIR:-/tmp}/nebula-i-ports.$(id -u)"
claim_port() { # PORT
    ! grep -qs ":$(printf '%04X' $1) 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 || return 1
    if ! (set -C; echo $$ > "$port_claims/$1") 2> /dev/null; then
        ! kill -0 "$(cat "$port_claims/$1" 2> /dev/null)" 2> /dev/null || return 1 # the test that claimed it still runs
        echo $$ > "$port_claims/$1"
    fi
}
free_port() { # [N]
    local port n try
    mkdir -p -m 700 "$port_claims"
    for try in $(seq 400); do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        n=0
        while [ $n -lt ${1:-1} ] && claim_port $((port + n)); do n=$((n + 1)); done
        [ $n -lt ${1:-1} ] || { echo $port; return 0; }
    done
    echo "no port is free" >&2
    return 1
}
release_ports() {
    local f
    for f in "$port_claims"/*; do
        [ "$(cat "$f" 2> /dev/null)" != $$ ] || rm -f "$f"
    done
}
