#!/bin/sh
# Everything about a Llama of 7 billion parameters on one GPU, in one run of limited time: its import, generation beside the
# transformers library, LoRA beside peft, and two sites over a line.
#
#     bench/llama_7b.sh NEBULA WORK RESULTS [SECONDS [SHAPE]]
#
# WORK is a folder on a disk with 30 GB; what is made there is deleted at the end. The original's files lie in memory (/dev/shm)
# where that has room, so that the import reads memory and writes the disk. RESULTS gets a log and a JSON file of each part. A part
# gets the time that is left, and no more than its own limit; the parts come in the order of what they are worth. DEVICE=cpu
# and SHAPE tiny try it without a GPU. PYTHON has torch, transformers and peft (PYTHONPATH may name an unpacked wheel).
set -u
nebula=$1 work=$2 results=$3 seconds=${4:-420} shape=${5:-7b}
here=$(cd "$(dirname "$0")" && pwd)
device=${DEVICE:-cuda} python=${PYTHON:-python3}
begun=$(date +%s)
mkdir -p "$work" "$results"
source=$work/source
shm=$(df -Pk /dev/shm 2> /dev/null | awk 'NR == 2 { print int($4 / 1048576) }')
[ "${shm:-0}" -ge 20 ] && source=$(mktemp -d /dev/shm/llama.XXXXXX)
mkdir -p "$source"
ln -sfn "$source" "$work/hf"
trap 'rm -rf "$source" "$work"' EXIT
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false TRANSFORMERS_VERBOSITY=error
export TORCHINDUCTOR_CACHE_DIR="$work/inductor"

left() {
    echo $((begun + seconds - $(date +%s)))
}
# part NAME LIMIT COMMAND…
part() {
    name=$1 limit=$2
    shift 2
    [ "$limit" -gt "$(left)" ] && limit=$(left)
    if [ "$limit" -lt 10 ]; then
        echo "== $name: no time is left"
        return 1
    fi
    at=$(date +%s)
    timeout -k 5 "$limit" "$@" 2> "$results/$name.err" | tee "$results/$name.log"
    echo "== $name: $(($(date +%s) - at)) s, $(left) s left"
}

cat /proc/loadavg | sed 's/^/load /'
part weights 75 "$python" "$here/llama_weights.py" "$source" "$work/text.txt" --shape "$shape" || exit 1
part import 90 "$python" -c '
import subprocess, sys, time
t = time.perf_counter()
done = subprocess.run([sys.argv[1], "import", *sys.argv[2:]], capture_output=True, text=True)
print(done.stdout[-500:] + done.stderr[-500:])
print(f"import {time.perf_counter() - t:.1f} s")' "$nebula" "$work/hf" "$work/nebula"
[ -s "$work/nebula/model.safetensors" ] || { echo "the import failed"; exit 1; }
part generate 215 "$python" "$here/vs_transformers_generate.py" --work "$work" --nebula "$nebula" --device "$device" \
    --seconds 165 --json "$results/generate.json" ${GENERATE:-}
part lora 190 "$python" "$here/vs_peft.py" --work "$work" --nebula "$nebula" --device "$device" --arms nebula:bf16,peft,nebula:nf4 \
    --seconds 85 --json "$results/lora.json" ${LORA:-}
part sites 150 "$python" "$here/lora_sites.py" --work "$work" --nebula "$nebula" --device "$device" --json "$results/sites.json" \
    ${SITES:-}
part lora-bf16 85 "$python" "$here/vs_peft.py" --work "$work" --nebula "$nebula" --device "$device" --arms peft:bf16 \
    --seconds 80 --json "$results/lora-bf16.json" ${LORA:-}
echo "== all: $(($(date +%s) - begun)) s"
