#!/bin/sh
# dist_twice.sh: the archive of `make dist` from two builds in two folders has the same bits.
set -eu
export CCACHE_DISABLE=1 # objects of the first build would be taken for the second
cd "$(dirname "$0")/../.."
top=$PWD
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for i in one two; do
    mkdir "$dir/$i"
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$dir/$i" 2> /dev/null
    cd "$dir/$i"
    cmake -G Ninja -S . -B "build/$i" ${DIST_CMAKE:-} > log 2>&1 && cmake --build "build/$i" -j "${JOBS:-$(nproc)}" \
        --target nebula-i nebula_shared manual >> log 2>&1 || { tail -20 log; echo "FAIL: the build"; exit 1; }
    tools/dist "build/$i"
    cd "$top"
done
(cd "$dir/one/dist" && cat ./*.sha256) > "$dir/one.sum"
(cd "$dir/two/dist" && cat ./*.sha256) > "$dir/two.sum"
if ! cmp "$dir/one.sum" "$dir/two.sum"; then
    diff -rq "$dir/one/dist" "$dir/two/dist" || true
    echo "FAIL: the archives differ"
    exit 1
fi
echo "dist_twice: ok, $(head -1 "$dir/one.sum")"
