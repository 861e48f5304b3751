#!/bin/sh
# The conformance suite on the CUDA device, where there is one. Where there is none, one line says what was skipped; that
# the plug-in loads and answers is checked all the same.
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
