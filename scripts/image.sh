#!/bin/sh
# Makes the context of the container image, build/image/ with Containerfile and files/: the release
# build without debugging information, its shared libraries and the loader. Runs the program in
# exactly these files, and builds the image vsnoop:VERSION if buildah, podman or docker is there
# and works.
#
# $1: `files` makes the context and no image.  Needs the release build (make image makes it), and
# root, to change the root directory.
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
program=target/release/vsnoop
files=build/image/files

rm -rf build/image
mkdir -p "$files/usr/sbin" "$files/etc/vsnoop" "$files/run/vsnoop" "$files/run/netns" \
	"$files/sys/fs/bpf" "$files/proc" "$files/dev" "$files/tmp"
cp deploy/container/Containerfile build/image/
strip -o "$files/usr/sbin/vsnoop" "$program"
# Lines such as `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x...)`; the loader has a path alone.
ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
	install -D -m 755 "$library" "$files$library"
done

said=$(chroot "$files" /usr/sbin/vsnoop --version) ||
	{ echo "image: the program does not run in $files" >&2; exit 1; }
echo "image: $files: $said, $(find "$files" -type f | wc -l) files, $(du -sh "$files" | cut -f1)"
[ "${1-}" != files ] || exit 0

for builder in buildah podman docker; do
	"$builder" info >/dev/null 2>&1 || continue
	"$builder" build --tag "vsnoop:$version" --file build/image/Containerfile build/image
	echo "image: vsnoop:$version, by $builder"
	exit
done
echo "image: none of buildah, podman and docker works here: build it from build/image/Containerfile"
