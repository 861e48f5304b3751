#!/bin/sh
# units.sh: systemd takes the units, and finds little to blame in their sandboxes.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
command -v systemd-analyze > /dev/null || { echo "units: skipped, systemd-analyze is not there"; exit 0; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for unit in nebula-i@ nebula-i-watch@ nebula-i-relay; do
    case $unit in *@) made=${unit}site ;; *) made=$unit ;; esac
    sed 's|/usr/bin/nebula-i|/bin/true|; s|^User=.*|User=daemon|; s|^Group=.*|Group=daemon|' "$top/packaging/systemd/$unit.service" > "$dir/$made.service"
    found=$(systemd-analyze verify --man=no "$dir/$made.service" 2>&1 | grep "$unit" || true)
    [ -z "$found" ] || { echo "FAIL: $found"; exit 1; }
    systemd-analyze security --offline=yes --threshold=30 "$dir/$made.service" > "$dir/log" 2>&1 || { tail -3 "$dir/log"; echo "FAIL: the sandbox of $unit"; exit 1; }
    tail -1 "$dir/log"
done
