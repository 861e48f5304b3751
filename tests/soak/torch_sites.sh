#!/bin/sh
# PyTorch sites in the WAN laboratory: quality at equal tokens, a killed site that comes back, a native site beside a PyTorch
# site. It needs a Python interpreter with torch and safetensors: NEBULA_TORCH_PYTHON, else python3.
set -eu
NEBULA=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
export NEBULA
python=${NEBULA_TORCH_PYTHON:-python3}
if ! "$python" -c 'import torch, safetensors' 2>/dev/null; then
    echo "torch_sites: skipped, $python lacks torch or safetensors (set NEBULA_TORCH_PYTHON to an interpreter that has them)"
    exit 0
fi
"$python" "$(dirname "$0")/../python/lab_torch.py"
