#!/bin/sh
# install.sh BUILD: what `cmake --install` leaves is enough for others: a C program finds the library by pkg-config and by CMake, also after
# the tree was moved; the functions are those of the release before (tools/check-abi).
set -eu
build=$(cd "$1" && pwd)
top=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }
"$top/tools/check-abi" "$build/libnebula-i.so" || fail "the library's functions"
cmake --install "$build" --prefix "$dir/first" > "$dir/log" || { cat "$dir/log"; fail "cmake --install"; }
mv "$dir/first" "$dir/moved"
prefix=$dir/moved
library=$(dirname "$(find "$prefix" -name libnebula-i.so)")
[ -x "$prefix/bin/nebula-i" ] && "$prefix/bin/nebula-i" version > /dev/null || fail "the command does not run"
[ -f "$prefix/share/man/man1/nebula-i.1" ] || fail "no man page"
cd "$dir"
cat > use.c <<'C'
#include <nebula/nebula.h>
#include <stdio.h>
int main(void)
{
    neb_session *s = NULL;
    if (neb_session_open_job("no such job", "a", NULL, &s) == NEB_OK) return 1;
    printf("%s\n", neb_last_error());
    return 0;
}
C
if command -v pkg-config > /dev/null; then
    flags=$(PKG_CONFIG_PATH=$library/pkgconfig pkg-config --cflags --libs nebula-i) || fail "pkg-config"
    ${CC:-cc} use.c -o "$dir/by-pkg-config" $flags || fail "a program by pkg-config"
    LD_LIBRARY_PATH=$library "$dir/by-pkg-config" 2> /dev/null | grep -q "no such job" || fail "the program by pkg-config does not run"
else
    echo "install: pkg-config is not there; skipped"
fi
cat > "$dir/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.20)
project(use C)
find_package(nebula-i 0.1 REQUIRED)
add_executable(use use.c)
target_link_libraries(use PRIVATE nebula-i::nebula-i)
CMAKE
cmake -S "$dir" -B "$dir/build" -DCMAKE_PREFIX_PATH="$prefix" > "$dir/log" 2>&1 && cmake --build "$dir/build" >> "$dir/log" 2>&1 ||
    { tail -20 "$dir/log"; fail "a program by find_package"; }
"$dir/build/use" 2> /dev/null | grep -q "no such job" || fail "the program by find_package does not run"
echo "install: ok"
