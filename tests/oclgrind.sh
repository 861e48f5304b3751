#!/bin/sh
# The conformance suite with small shapes on Oclgrind, which simulates an OpenCL device and reports data races and accesses outside of
# buffers; with the kernels' cut for GPUs, then with that for CPUs. Takes minutes, so it is no part of `make test`: make oclgrind.
set -eu
nebula=$1
shift
command -v oclgrind > /dev/null || { echo "oclgrind: skipped, it is not installed (Debian: apt install oclgrind)"; exit 0; }
[ -f "$(dirname "$nebula")/libnebula-i-opencl.so" ] || { echo "oclgrind: skipped, the OpenCL plug-in is not built"; exit 0; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export XDG_CACHE_HOME="$dir" NEBULA_LOG=warn
# Every case of the suite; those of slots that the device lacks check nothing.
cases=${*:-$(sed -n 's/^    {"\([a-z0-9_]*\)", case_.*/\1/p' "$(dirname "$0")"/../src/device/conform_*.c)}
[ -n "$cases" ] || { echo "FAIL: oclgrind: the suite's cases were not found" >&2; exit 1; }
bad=0
for cut in gpu cpu; do
    for only in $cases; do
        NEBULA_OPENCL_KERNELS=$cut oclgrind --data-races --local-mem-size 131072 --max-errors 20 \
            "$nebula" device test --device opencl --tiny --only "$only" > "$dir/log" 2>&1 || bad=1
        if grep -q " 0 failures" "$dir/log" && ! grep -qE "Invalid (read|write)|data race|FATAL|Work-item diverge" "$dir/log"; then
            echo "oclgrind, $cut, $only: $(tail -n 1 "$dir/log")"
        else
            echo "FAIL: oclgrind, $cut, $only" >&2
            head -n 40 "$dir/log" >&2
            bad=1
        fi
    done
done
exit $bad
