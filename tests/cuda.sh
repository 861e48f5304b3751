#!/bin/sh
# Runs the conformance suite on the CUDA device. Without a GPU it prints one line about what was skipped, and still checks
# that the plug-in loads and answers.
set -eu
nebula=$1
plugin=$(dirname "$nebula")/libnebula-i-cuda.so
if [ ! -f "$plugin" ]; then
    echo "cuda: skipped, nvcc was not found and the plug-in is not built"
    exit 0
fi
line=$("$nebula" device list | grep '^cuda')
case $line in
*"not usable: cuda: no"*)
    echo "skipped: the conformance suite on the GPU, f32 and bf16 ($line)"
    ;;
*"not usable"*)
    echo "the plug-in does not load: $line"
    exit 1
    ;;
*)
    "$nebula" device test --device cuda --dtype f32
    "$nebula" device test --device cuda --dtype bf16
    ;;
esac
