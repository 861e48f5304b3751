#!/bin/sh
# The OpenCL device: the conformance suite in f32, parts of it in bf16; products in fp16; a training's losses; a cache that lies; a number that does not exist. Without the
# plug-in or a driver (pocl) one line says what was skipped. Compiled kernels stay in the build folder, so only the first run compiles.
# make oclgrind runs all kernels in the cut for GPUs.
set -eu
nebula=$1
build=$(cd "$(dirname "$nebula")" && pwd)
kernels=$(cd "$(dirname "$0")/../src/device/opencl/kernels" && pwd)
if [ ! -f "$build/libnebula-i-opencl.so" ]; then
    echo "opencl: skipped, OpenCL was not found and the plug-in is not built (Debian: apt install ocl-icd-opencl-dev pocl-opencl-icd)"
    exit 0
fi
export XDG_CACHE_HOME="$build/opencl-cache"
export POCL_CACHE_DIR="$XDG_CACHE_HOME/pocl"
mkdir -p "$XDG_CACHE_HOME" "$POCL_CACHE_DIR"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
fail() { echo "FAIL: $*" >&2; [ ! -f log ] || tail -n 40 log >&2; exit 1; }

line=$("$nebula" device list | grep '^opencl' | head -n 1)
case $line in
*"no OpenCL driver"* | *"offer no device"*)
    echo "skipped: the conformance suite on OpenCL ($line)"
    exit 0
    ;;
"opencl:0 "*) ;;
*) fail "the plug-in does not load: $line" ;;
esac

check() { "$nebula" device test --device opencl "$@" > log 2>&1 || fail "device test --device opencl $*"; grep -q " 0 failures" log; }
check
for only in gemm norm_residual xent; do check --dtype bf16 --only $only; done
# The GPU's cut of one kernel. Where pocl's threads share its local memory, that is a variable of the compiled file.
gpu="$POCL_CACHE_DIR-$(cat "$kernels"/*.cl | cksum | cut -d ' ' -f 1)" # what other sources gave is not looked at
mkdir -p "$gpu"
POCL_CACHE_DIR="$gpu" NEBULA_OPENCL_KERNELS=gpu check --only xent
if grep -r -l -a 'xent\.group_memory' "$gpu" --include=xent.so > log; then fail "work-groups share local memory"; fi

# Products in fp16, in both cuts, on every device that computes in it.
"$nebula" device list | grep '^opencl' > list
if grep -q ', fp16' list; then
    sed -n 's/^\(opencl:[0-9]*\) .*, fp16.*/\1/p' list > able
    while read -r device; do
        for cut in cpu gpu; do
            for only in gemm gemm_deep gemm_poison gemm_scales gemm_infinite linear linear_bwd linear_xent; do
                NEBULA_OPENCL_FP16=yes NEBULA_OPENCL_KERNELS=$cut check --device "$device" --dtype bf16 --only $only
            done
        done
        # fp16 is really in use: the sums are others than in fp32, by less than what bf16 costs.
        for fp16 in yes no; do
            NEBULA_OPENCL_FP16=$fp16 "$nebula" bench engine --shape mlm-tiny --dtype bf16 --losses 4 --device "$device" > "$fp16" 2> log ||
                fail "training with NEBULA_OPENCL_FP16=$fp16"
        done
        cmp -s yes no && fail "NEBULA_OPENCL_FP16=yes changes nothing"
        awk 'NR == FNR { a[$1] = $2; next } $1 + 0 && $1 in a { d = a[$1] - $2; if (d < 0) d = -d; if (d > 2e-3) exit 1; n++ }
            END { if (n < 3) exit 1 }' yes no || fail "losses in fp16: $(cat yes no)"
        echo "opencl: products in fp16 on $device"
    done < able
else
    echo "opencl: skipped products in fp16, no driver here has cl_khr_fp16"
fi
unable=$(grep -v ', fp16' list | sed -n '1s/ .*//p')
if [ -n "$unable" ]; then
    if NEBULA_OPENCL_FP16=yes "$nebula" device test --device "$unable" --dtype bf16 --only gemm > log 2>&1; then fail "fp16 without fp16"; fi
    grep -q "cannot compute in fp16; unset NEBULA_OPENCL_FP16" log || fail "no message about fp16"
fi

# Sums over a row by subgroups, in the GPU's cut, on every device that has them.
sed -n 's/^\(opencl:[0-9]*\) .*, subgroups.*/\1/p' list > able
while read -r device; do
    for only in xent norm_residual linear_xent; do
        NEBULA_OPENCL_SUBGROUPS=yes NEBULA_OPENCL_KERNELS=gpu check --device "$device" --only $only
    done
    echo "opencl: subgroups on $device"
done < able
[ -s able ] || echo "opencl: skipped subgroups, no driver here has them"
if NEBULA_OPENCL_SUBGROUPS=yes NEBULA_OPENCL_KERNELS=cpu "$nebula" device test --device opencl --only xent > log 2>&1; then fail "subgroups without subgroups"; fi
grep -q "has no subgroups, or runs the kernels for CPUs; unset NEBULA_OPENCL_SUBGROUPS" log || fail "no message about subgroups"

# 200 steps with dropout from one seed give the CPU's losses: the masks are the same. make opencl-losses does it with a larger model.
if command -v python3 > log; then
    python3 "$kernels/../../../../bench/parity.py" --nebula "$nebula" --device opencl --only f32 --shape mlm-tiny > log 2>&1 ||
        fail "the losses differ from the CPU's"
    echo "opencl: $(cat log)"
else
    echo "opencl: skipped the comparison of losses, python3 was not found"
fi

# A number behind the name chooses the device.
"$nebula" device test --device opencl:0 --only axpby > log 2>&1 || fail "opencl:0"
if grep -q '^opencl:1 ' list; then # another one, and the one that the list says
    second=$(sed -n 's/^opencl:1 \([^(]* ([^,]*\)).*/\1/p' list)
    "$nebula" device test --device opencl:1 --only gemm > log 2>&1 || fail "opencl:1"
    "$nebula" device info --device opencl:1 > log 2>&1
    grep -qF "opencl:1 $second" log || fail "opencl:1 is not '$second'"
else
    echo "opencl: skipped the choice of a second device, there is one"
fi
if "$nebula" device info --device opencl:99 > log 2>&1; then fail "device 99 was opened"; fi
grep -q "device 99 does not exist; this machine has 0 to" log || fail "no message about device 99"
if "$nebula" device info --device opencl:x > log 2>&1; then fail "device x was opened"; fi
grep -q "'opencl:x' is not a device; use NAME or NAME:NUMBER" log || fail "no message about device x"

# A cache file that is damaged, cut short, writable by others or a link is not used, and a good one takes its place.
export XDG_CACHE_HOME="$dir/cache"
mkdir cache
check --only axpby
files=$(ls cache/nebula-i/opencl | wc -l)
[ "$files" -ge 1 ] || fail "nothing was cached"
[ "$(stat -c %a cache/nebula-i/opencl)" = 700 ] || fail "the cache's folder is open to others"
for f in cache/nebula-i/opencl/*; do
    [ "$(stat -c %a "$f")" = 600 ] || fail "a cache file is open to others"
    cp "$f" good
    printf 'lies' | dd of="$f" bs=1 seek=100 conv=notrunc 2> /dev/null
    check --only axpby
    cmp -s "$f" good || fail "the damaged file was kept"
    head -c 60 good > "$f"
    check --only axpby
    [ "$(stat -c %s "$f")" = "$(stat -c %s good)" ] || fail "the short file was kept"
    chmod 666 "$f"
    check --only axpby
    [ "$(stat -c %a "$f")" = 600 ] || fail "a file that everybody can write was kept"
    ln -sf "$dir/good" "$f"
    check --only axpby
    [ ! -L "$f" ] || fail "a link was followed"
    break
done
chmod 777 cache/nebula-i/opencl
check --only axpby
"$nebula" device test --device opencl --only axpby 2>&1 | grep -q "not a folder that only this user can write" ||
    fail "a folder that everybody can write was trusted"
export XDG_CACHE_HOME="$build/opencl-cache"

echo "opencl: $line"
