#!/bin/sh
# The OpenCL device on a machine with a GPU of NVIDIA, in five parts: the conformance suite in f32; one run of a CPU site, a CUDA site
# and an OpenCL site, killed and back; the losses of 200 steps against the CPU's; the speed against the CUDA device in f32 without TF32;
# the suite in bf16. Each part has its time, and its results are in its file as soon as they are known. Six minutes at most.
#
#     bench/opencl_device.sh FOLDER [WHERE [DEVICE [OTHER]]]     FOLDER: of `make dist`, or of a build with the plug-ins; WHERE: for
#                                                                the results; DEVICE, OTHER: instead of NVIDIA's and of cuda
#     SMALL=yes bench/opencl_device.sh build/release /tmp/results opencl:0 opencl:1     smaller models, for a trial on a CPU
set -u
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
here=$(dirname "$self")
folder=$(cd "$1" && pwd) || exit 1
where=${2:-$(mktemp -d)}
mkdir -p "$where"
where=$(cd "$where" && pwd)
nebula=$folder/nebula-i
large=mlm-base small=mlm-mini
[ "${SMALL:-no}" = no ] || { large=mlm-mini; small=mlm-tiny; }

# ---- the parts; each runs in a process of its own, with a limit ----

suite_f32() { "$nebula" device test --device "$device" --dtype f32; }
suite_bf16() { "$nebula" device test --device "$device" --dtype bf16; }

losses() {
    "$nebula" bench engine --shape $small --dtype f32 --losses 200 --device cpu --threads 8 > "$where/losses-cpu.txt" &
    # A recorded step's losses come a step late.
    "$nebula" bench engine --shape $small --dtype f32 --losses 201 --device "$device" > "$where/losses-opencl.txt" || return 1
    wait
    awk 'NR == FNR { if ($1 + 0) a[$1] = $2; next }
        $1 in a && $2 + 0 == $2 { d = a[$1] - $2; if (d < 0) d = -d; if (d > m) m = d; n++ }
        END { printf "%d steps, largest difference %.2g (bar 1e-3)\n", n, m; exit !(n >= 199 && m <= 1e-3) }' \
        "$where/losses-cpu.txt" "$where/losses-opencl.txt"
}

speed() { python3 "$here/vs_device.py" "$nebula" $large "$device" "$other" --steps 5 --turns 5; }

# All sites wait for each round, so none is done while another one begins.
kinds() {
    mkdir -p "$where/kinds" && cd "$where/kinds" || return 1
    rm -rf out warm
    cat "$here"/*.py "$here"/*.sh > text
    cat > job.yaml << YAML
name: kinds
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: 300, tokens: 256, max_len: 32, lr: 2e-3, log_every: 50, save_every: 20}
wan: {interval: 10, fragments: 1, rung: int4, merge_after: 5}
sites:
  - name: a
  - name: b
    train: {device: "$other"}
  - name: c
    train: {device: "$device"}
data:
  - file: text
YAML
    # Kernels are compiled before, so that no site waits for another one's compiler.
    "$nebula" train job.yaml out=warm train.device="$device" train.steps=10 > warm.txt 2>&1 || { tail warm.txt; return 1; }
    "$nebula" lab job.yaml --wan 100mbit,20ms > first.txt 2>&1 &
    lab=$!
    until ls out/c/checkpoints/* > ls.txt 2>&1; do
        kill -0 $lab 2> ls.txt || { tail first.txt; echo "the run ended before site c saved"; return 1; }
        sleep 0.1
    done
    kill -9 $lab
    wait $lab 2> ls.txt
    while "$nebula" lab job.yaml --wan 100mbit,20ms > again.txt 2>&1; status=$?; [ $status = 8 ]; do
        sleep 0.5 # the killed run's sites end by themselves
    done
    [ $status = 0 ] || { tail -n 20 again.txt; return 1; }
    rm -rf warm
    sed -n 's/^\([abc]\) .*state root \([0-9a-f]*\),.*/\1 \2/p' again.txt | tee roots.txt
    [ "$(cut -d' ' -f2 roots.txt | sort -u | wc -l)" = 1 ] && [ "$(wc -l < roots.txt)" = 3 ]
}

if [ $# = 5 ]; then
    device=$3 other=$4
    $5
    exit
fi

# ---- the whole ----

XDG_CACHE_HOME=$(mktemp -d)
export XDG_CACHE_HOME
trap 'rm -rf "$XDG_CACHE_HOME"' EXIT

# A container often has NVIDIA's driver but no file that tells the loader of it.
if [ -z "${OCL_ICD_VENDORS:-}" ] && ! grep -qs nvidia /etc/OpenCL/vendors/*.icd; then
    driver=$(ls /usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1 /usr/lib64/libnvidia-opencl.so.1 2> /dev/null | head -n 1)
    mkdir -p "$where/vendors"
    cp /etc/OpenCL/vendors/*.icd "$where/vendors/" 2> /dev/null
    echo "${driver:-libnvidia-opencl.so.1}" > "$where/vendors/nvidia.icd"
    export OCL_ICD_VENDORS="$where/vendors" OPENCL_VENDOR_PATH="$where/vendors"
fi
"$nebula" device list 2>&1 | tee "$where/list.txt"
timeout 20 python3 - > "$where/extensions.txt" 2>&1 << 'PYTHON'
import ctypes
cl = ctypes.CDLL("libOpenCL.so.1")
platforms, devices, n = (ctypes.c_void_p * 16)(), (ctypes.c_void_p * 16)(), ctypes.c_uint()
text = ctypes.create_string_buffer(1 << 16)
cl.clGetPlatformIDs(16, platforms, ctypes.byref(n))
for p in platforms[:n.value]:
    n = ctypes.c_uint()
    cl.clGetDeviceIDs(ctypes.c_void_p(p), ctypes.c_ulong(0xFFFFFFFF), 16, devices, ctypes.byref(n))
    for d in devices[:n.value]:
        for what in (0x102B, 0x102F, 0x102D, 0x1030):  # name, version, the driver's version, extensions
            text.value = b""
            cl.clGetDeviceInfo(ctypes.c_void_p(d), what, ctypes.c_size_t(len(text)), text, None)
            print(text.value.decode(errors="replace"))
PYTHON
cat "$where/extensions.txt"
device=${3:-$(sed -n 's/^\(opencl:[0-9]*\) .*(NVIDIA.*/\1/p' "$where/list.txt" | head -n 1)}
other=${4:-cuda}
[ -n "$device" ] || { echo "FAIL: OpenCL shows no GPU of NVIDIA"; exit 1; }

bad=0
part() { # seconds, name of the file, function; KILL, because a training that is asked to end saves first
    began=$(date +%s)
    timeout -s KILL "$1" sh "$self" "$folder" "$where" "$device" "$other" "$3" > "$where/$2.txt" 2>&1
    status=$?
    said="$2 on $device: status $status, $(($(date +%s) - began)) s of at most $1"
    tail -n 8 "$where/$2.txt"
    echo "== $said" | tee -a "$where/summary.txt"
    [ $status = 0 ] || bad=1
}
part 80 suite-f32 suite_f32
part 90 kinds kinds
part 70 losses losses
part 60 speed speed
part 60 suite-bf16 suite_bf16
exit $bad
