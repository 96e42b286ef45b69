#!/bin/sh
# Makes build/tarball/vsnoop-VERSION-linux-ARCH.tar.xz: the files of `make install` below
# /usr/local, the program without debugging information. It is unpacked with
#
#   tar -xJf FILE -C / --strip-components=1
#
# The program is linked with the C library of the distribution (docs/decisions/0036-packages.md);
# the last line says which version it needs. Needs the release build (make tarball makes it).
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=vsnoop-$version-linux-$(uname -m)

rm -rf build/tarball
mkdir -p build/tarball
make --silent --old-file=build install DESTDIR="build/tarball/$name"
program=build/tarball/$name/usr/local/sbin/vsnoop
strip "$program"
# Of the last change, so that the same sources give the same archive.
date=$(git log -1 --format=@%ct 2>/dev/null || echo "@$(date +%s)")
tar -C build/tarball --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" \
	-cJf "build/tarball/$name.tar.xz" "$name"
libc=$(objdump -T "$program" | sed -n 's/.*(GLIBC_\([0-9.]*\)).*/\1/p' | sort -Vu | tail -n 1)
rm -r "build/tarball/$name"
echo "tarball: build/tarball/$name.tar.xz, for glibc $libc or newer, with libelf and zlib"
