#!/bin/sh
# tarball.sh PROGRAM: makes build/tarball/vsnoop-VERSION-linux-ARCH.tar.xz of the files of
# `make install` below /usr/local, with this program, without its debugging information. It is
# unpacked with
#
#   tar -xJf FILE -C / --strip-components=1
#
# `make tarball` gives it the static program (scripts/static.sh). VSNOOP_TARBALL_DIR is a directory
# to use instead of build/tarball; what is in it is removed.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
name=vsnoop-$version-linux-$(uname -m)
dir=${VSNOOP_TARBALL_DIR:-build/tarball}

rm -rf "$dir"
mkdir -p "$dir"
make --silent --old-file=build install PROGRAM="$1" DESTDIR="$dir/$name"
strip "$dir/$name/usr/local/sbin/vsnoop"
# Of the last change, so that the same sources give the same archive.
date=$(git log -1 --format=@%ct 2>/dev/null || echo "@$(date +%s)")
tar -C "$dir" --sort=name --owner=0 --group=0 --numeric-owner --mtime="$date" \
	-cJf "$dir/$name.tar.xz" "$name"
rm -r "${dir:?}/$name"
echo "tarball: $dir/$name.tar.xz"
