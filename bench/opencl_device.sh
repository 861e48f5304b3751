#!/bin/sh
# The OpenCL device on a machine with a GPU of NVIDIA: the conformance suite, the speed against the CUDA device in f32 without TF32,
# the losses against the CPU's, and one run of a CPU site, a CUDA site and an OpenCL site, killed and back.
#
#     bench/opencl_device.sh FOLDER [WHERE]     FOLDER: of `make dist`, or of a build with both plug-ins; WHERE: for the results
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=$(cd "$1" && pwd)
where=${2:-$(mktemp -d)}
mkdir -p "$where"
where=$(cd "$where" && pwd)
nebula=$folder/nebula-i
export XDG_CACHE_HOME="$where/cache"
mkdir -p "$XDG_CACHE_HOME"

# A container often has NVIDIA's driver but no file that tells the loader of it.
if ! grep -qs nvidia /etc/OpenCL/vendors/*.icd; then
    driver=$(ls /usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1 /usr/lib64/libnvidia-opencl.so.1 2> /dev/null | head -n 1)
    mkdir -p "$where/vendors"
    cp /etc/OpenCL/vendors/*.icd "$where/vendors/" 2> /dev/null
    echo "${driver:-libnvidia-opencl.so.1}" > "$where/vendors/nvidia.icd"
    export OCL_ICD_VENDORS="$where/vendors" OPENCL_VENDOR_PATH="$where/vendors"
fi
"$nebula" device list | tee "$where/list.txt"
gpu=$(sed -n 's/^\(opencl:[0-9]*\) .*(NVIDIA.*/\1/p' "$where/list.txt" | head -n 1)
[ -n "$gpu" ] || { echo "FAIL: OpenCL shows no GPU of NVIDIA"; exit 1; }

bad=0
for type in f32 bf16; do
    echo "== conformance, $type, $gpu"
    "$nebula" device test --device "$gpu" --dtype $type > "$where/suite-$type.txt" 2>&1 || bad=1
    tail -n 15 "$where/suite-$type.txt"
done
echo "== speed on mlm-base, f32, against CUDA"
python3 "$here/vs_device.py" "$nebula" mlm-base "$gpu" cuda --steps 5 --turns 5 | tee "$where/speed.txt"

echo "== losses of mlm-mini, 200 steps, against the CPU"
for device in "$gpu" cpu; do
    "$nebula" bench engine --shape mlm-mini --dtype f32 --losses 200 --device "$device" > "$where/losses-${device%%:*}.txt"
done
awk 'NR == FNR { a[$1] = $2; next } $1 in a && $2 + 0 == $2 { d = a[$1] - $2; if (d < 0) d = -d; if (d > m) m = d; n++ }
    END { printf "%d steps, largest difference %.2g (bar 1e-3)\n", n, m; exit !(n >= 200 && m <= 1e-3) }' \
    "$where/losses-cpu.txt" "$where/losses-opencl.txt" | tee "$where/losses.txt" || bad=1

echo "== three kinds in one run"
cd "$where" || exit 1
rm -rf out job.yaml text
cat "$here"/*.py "$here"/*.sh > text
cat > job.yaml <<YAML
name: kinds
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 1000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2}
train: {steps: 100000, minutes: 3, tokens: 256, max_len: 32, lr: 2e-3, log_every: 1000, save_every: 20}
wan: {interval: 10, fragments: 1, rung: int4, tokens: 600000, round_seconds: 1}
sites:
  - name: a
  - name: b
    train: {device: cuda}
  - name: c
    train: {device: "$gpu"}
data:
  - file: text
YAML
"$nebula" lab job.yaml --wan 100mbit,20ms > first.txt 2>&1 &
lab=$!
n=0
until ls out/c/checkpoints/* > /dev/null 2>&1; do
    n=$((n + 1))
    [ $n -lt 600 ] && kill -0 $lab 2> /dev/null || break
    sleep 0.1
done
kill -9 $lab
wait $lab 2> /dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do
    "$nebula" lab job.yaml --wan 100mbit,20ms > again.txt 2>&1
    status=$?
    [ $status = 8 ] || break
    sleep 1
done
sed -n 's/^\([abc]\) .*state root \([0-9a-f]*\),.*/\1 \2/p' again.txt | tee roots.txt
[ $status = 0 ] && [ "$(cut -d' ' -f2 roots.txt | sort -u | wc -l)" = 1 ] && [ "$(wc -l < roots.txt)" = 3 ] ||
    { bad=1; tail -n 20 again.txt; echo "FAIL: the three sites did not end with one state root"; }
exit $bad
