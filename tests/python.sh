#!/bin/sh
# Tests the Python package with the library of this build: the symbols that the library exports, the tests without a framework,
# and the quick tests with torch, JAX and Paddle if they are there (NEBULA_TORCH_PYTHON names an interpreter that has torch,
# NEBULA_FRAMEWORKS_PYTHON one that has the other two).
set -eu
nebula=$1 library=$2
here=$(cd "$(dirname "$0")" && pwd)
shown=$(nm -D --defined-only "$library" | awk '$3 !~ /^neb_[a-z]/ { print $3 }')
[ -z "$shown" ] || { echo "FAIL: libnebula-i.so also exports: $shown"; exit 1; }
# The README shows the whole difference between the two example scripts.
top=$(dirname "$here")
added=$(diff "$top/examples/torch_one_site.py" "$top/examples/torch_two_sites.py" | sed -n 's/^> //p')
[ "$(echo "$added" | wc -l)" = 6 ] || { echo "FAIL: the two examples differ by other than six lines: $added"; exit 1; }
echo "$added" | while IFS= read -r line; do
    grep -qxF -- "+$line" "$top/README.md" || { echo "FAIL: the README does not show: $line"; exit 1; }
done
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    echo "python: skipped, python3 (3.9 or newer) was not found"
    exit 0
fi
export NEBULA="$nebula" NEBULA_I_LIBRARY="$library" PYTHONDONTWRITEBYTECODE=1
python3 "$here/python/test_plain.py"
python3 "$here/python/test_exit.py" 12
for framework in jax paddle; do
    "${NEBULA_FRAMEWORKS_PYTHON:-python3}" -c "import $framework" 2>/dev/null || echo "python: skipped the tests with $framework" \
        "(${NEBULA_FRAMEWORKS_PYTHON:-python3} lacks it; set NEBULA_FRAMEWORKS_PYTHON to an interpreter that has it)"
done
"${NEBULA_FRAMEWORKS_PYTHON:-python3}" "$here/python/test_frameworks.py"
torch=${NEBULA_TORCH_PYTHON:-python3}
if "$torch" -c 'import torch' 2>/dev/null; then
    "$torch" "$here/python/test_torch.py"
    "$torch" "$here/python/test_npu.py"
    if "$torch" -c 'import accelerate, transformers' 2>/dev/null; then
        "$torch" "$here/python/test_hf.py"
    else
        echo "python: skipped the tests with a Hugging Face Trainer ($torch lacks transformers or accelerate)"
    fi
else
    echo "python: skipped the tests with PyTorch ($torch lacks it; set NEBULA_TORCH_PYTHON to an interpreter that has it)"
fi
