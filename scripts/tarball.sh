#!/bin/sh
# tarball.sh PROGRAM: makes build/tarball/vsnoop-VERSION-linux-ARCH.tar.xz of the files of
# `make install` below /usr/local, with this program, without its debugging information. It is
# unpacked with
#
#   tar -xJf FILE -C / --strip-components=1
#
# `make tarball` gives it the static program (scripts/static.sh).
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=vsnoop-$version-linux-$(uname -m)

rm -rf build/tarball
mkdir -p build/tarball
make --silent --old-file=build install PROGRAM="$1" DESTDIR="build/tarball/$name"
strip "build/tarball/$name/usr/local/sbin/vsnoop"
# Of the last change, so that the same sources give the same archive.
date=$(git log -1 --format=@%ct 2>/dev/null || echo "@$(date +%s)")
tar -C build/tarball --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" \
	-cJf "build/tarball/$name.tar.xz" "$name"
rm -r "build/tarball/$name"
echo "tarball: build/tarball/$name.tar.xz"
