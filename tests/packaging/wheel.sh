#!/bin/sh
# wheel.sh BUILD NEBULA: the wheel of this build in an empty virtual environment, without the network: it imports, finds its own library and
# trains on two sites. Two wheels of one build have the same bits.
set -eu
build=$(cd "$1" && pwd) nebula=$(realpath "$2")
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }
python=${PYTHON:-python3}
"$python" -m venv "$dir/venv" > "$dir/log" 2>&1 || { echo "wheel: skipped, $python makes no virtual environment"; exit 0; }
"$top/tools/wheel" "$build" || fail "no wheel"
wheel=$(ls -t "$top"/dist/nebula_i-*.whl | head -1)
sum=$(sha256sum < "$wheel")
"$top/tools/wheel" "$build" > /dev/null && [ "$(sha256sum < "$wheel")" = "$sum" ] || fail "a second wheel has other bits"
"$dir/venv/bin/pip" install --no-index --quiet "$wheel" || fail "pip does not take it"
cd "$dir"
where=$(env -u PYTHONPATH -u NEBULA_I_LIBRARY "$dir/venv/bin/python" -c '
from nebula_i.library import library
print(library()._name)') || fail "the package does not load its library"
case $where in "$dir"/venv/*) ;; *) fail "it loads $where" ;; esac
# Its libraries come from the wheel, too.
other=$(env -u LD_LIBRARY_PATH ldd "$where" | awk '$3 ~ /^\// { print $3 }' | grep -vE "^$(realpath "$dir")|/(ld-linux|lib(c|m|dl|pthread|rt|resolv|util|gcc_s|stdc\+\+|z))[.-]" || true)
[ -z "$other" ] || fail "it uses libraries of this system: $other"
# Two sites train with it, in a tree that has no package of its own.
mkdir -p tree/tests && cp -r "$top/tests/python" tree/tests/
env -u PYTHONPATH -u NEBULA_I_LIBRARY NEBULA="$nebula" PYTHONDONTWRITEBYTECODE=1 "$dir/venv/bin/python" tree/tests/python/test_plain.py Training > log 2>&1 ||
    { tail -20 log; fail "two sites do not train with the wheel"; }
echo "wheel: ok, $(basename "$wheel")"
