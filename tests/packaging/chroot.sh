#!/bin/sh
# chroot.sh DEBS [MIRROR]: the Debian packages in a fresh Debian 12 (debootstrap; root is needed): lintian finds nothing, they install with
# their dependencies, the command trains a small run of two sites, a C program compiles against the development package and runs, Python
# loads the library, the systemd units are valid, and everything can be removed.
set -eu
debs=$(cd "$1" && pwd) mirror=${2:-http://deb.debian.org/debian}
dir=$(mktemp -d)
root=$dir/root
cleanup() { umount "$root/proc" 2> /dev/null || true; rm -rf "$dir"; }
trap cleanup EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }
for tool in debootstrap lintian; do command -v $tool > /dev/null || { echo "chroot: $tool is not there (Debian: apt install $tool)"; exit 2; }; done
found=$(lintian --fail-on error,warning --tag-display-limit 0 "$debs"/*.deb 2>&1) || { echo "$found"; fail "lintian"; }
debootstrap --variant=minbase bookworm "$root" "$mirror" > "$dir/log" 2>&1 || { tail -5 "$dir/log"; fail "debootstrap"; }
mount -t proc proc "$root/proc"
cp "$debs"/*.deb "$root/root/"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive sh -euc "$1"; }
inside 'apt-get update -qq && cd /root && apt-get install -qq -y --no-install-recommends ./nebula-i_*.deb ./libnebula-i0_*.deb ./libnebula-i-dev_*.deb ./python3-nebula-i_*.deb' \
    > "$dir/log" 2>&1 || { tail -20 "$dir/log"; fail "the packages do not install"; }
inside 'nebula-i version' || fail "the command does not run"
inside 'cd /root && nebula-i new first > /dev/null && cd first && nebula-i lab job.yaml --mode relay train.steps=30' > "$dir/log" 2>&1 || { tail -20 "$dir/log"; fail "a run of two sites"; }
inside 'python3 -c "from nebula_i.library import library; print(library()._name)"' | grep -q libnebula-i || fail "Python does not load the library"
inside 'apt-get install -qq -y --no-install-recommends gcc libc6-dev pkg-config' > "$dir/log" 2>&1 || { tail -20 "$dir/log"; fail "no compiler"; }
program=use
cat > "$root/root/$program.c" <<'C'
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
inside 'cd /root && gcc use.c -o use $(pkg-config --cflags --libs nebula-i) && ./use' 2> /dev/null | grep -q "no such job" || fail "a C program"
inside 'man=$(dpkg -L nebula-i | grep -c "/man/"); [ "$man" -gt 5 ]' || fail "no man pages"
inside 'apt-get purge -qq -y nebula-i libnebula-i-dev python3-nebula-i libnebula-i0 && ! command -v nebula-i && [ ! -e /usr/include/nebula ]' > "$dir/log" 2>&1 || { tail -20 "$dir/log"; fail "the packages cannot be removed"; }
echo "chroot: ok"
