# ports.sh: ports for shell tests that run side by side. `free_port` prints one that nobody listens at and that no other test has
# claimed; a claim ends with the test (the process $$). Below those that the system gives to outgoing connections.
free_port() {
    local claims="${TMPDIR:-/tmp}/nebula-i-ports.$(id -u)" port hex try
    mkdir -p -m 700 "$claims"
    for try in $(seq 400); do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        hex=$(printf '%04X' $port)
        ! grep -qs ":$hex 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 || continue
        if ! (set -C; echo $$ > "$claims/$port") 2> /dev/null; then
            kill -0 "$(cat "$claims/$port" 2> /dev/null)" 2> /dev/null && continue # the test that claimed it still runs
            echo $$ > "$claims/$port"
        fi
        echo $port
        return 0
    done
    echo "no port is free" >&2
    return 1
}
release_ports() {
    local f
    for f in "${TMPDIR:-/tmp}/nebula-i-ports.$(id -u)"/*; do
        [ "$(cat "$f" 2> /dev/null)" != $$ ] || rm -f "$f"
    done
}
