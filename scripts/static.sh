#!/bin/sh
# Builds the command for the archive (scripts/tarball.sh): a static program, with musl, in
# target/ARCH-unknown-linux-musl/release/vsnoop.
#
# Needs what scripts/setup.sh installs, musl-gcc and Rust's library for musl; installs both where
# apt-get and rustup do it. libelf and zlib, which libbpf needs, are compiled from the sources that
# the crate libbpf-sys brings: its own build of libelf needs functions of glibc (argp, fts,
# obstack), for tools that are not built here.
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
target=$(uname -m)-unknown-linux-musl
die() { echo "static: $*" >&2; exit 3; }

# shellcheck source=scripts/packages.sh
. scripts/packages.sh
missing=$(missing_packages musl-tools)
# shellcheck disable=SC2086 # a list of words
[ -z "$missing" ] || install_packages $missing
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || {
	command -v rustup >/dev/null ||
		die "this Rust has no library for $target: install Rust with rustup (the distribution's has none)"
	rustup target add "$target"
}

dir=$PWD/build/static
sources=$(cargo metadata --format-version 1 --locked | grep -o '"[^"]*/libbpf-sys-[^"]*/Cargo.toml"' |
	head -n 1 | sed 's|^"||; s|/Cargo.toml"$||')
[ -d "$sources/elfutils/libelf" ] || die "the crate libbpf-sys has no elfutils: ${sources:-not found}"
rm -rf "$dir"
mkdir -p "$dir/include" "$dir/lib"
cp -R "$sources/elfutils/lib" "$sources/elfutils/libelf" "$sources/zlib" "$dir"
# Headers of the kernel, of which musl has none.
for headers in /usr/include/linux /usr/include/asm-generic "/usr/include/$(gcc -print-multiarch)/asm"; do
	ln -s "$headers" "$dir/include"
done

(cd "$dir/zlib" && CC=musl-gcc CFLAGS='-O2 -fPIC' ./configure --static && make libz.a) >"$dir/zlib.log" ||
	die "zlib was not built: $dir/zlib.log"
cp "$dir/zlib/libz.a" "$dir/lib"
cp "$dir/zlib/zlib.h" "$dir/zlib/zconf.h" "$dir/libelf/libelf.h" "$dir/libelf/gelf.h" "$dir/include"

# What elfutils' configure would find out about musl.
cat >"$dir/config.h" <<'EOF'
#define _GNU_SOURCE 1
#define _FILE_OFFSET_BITS 64
#define HAVE_DECL_MEMPCPY 1
#define HAVE_DECL_MEMRCHR 1
#define HAVE_DECL_POWEROF2 1
#define HAVE_DECL_RAWMEMCHR 0
#define HAVE_DECL_REALLOCARRAY 1
#define HAVE_ERR_H 1
#define HAVE_FALLTHROUGH 1
#define HAVE_GCC_STRUCT 1
#define HAVE_MREMAP 1
#define HAVE_VISIBILITY 1
#include <eu-config.h>
EOF
for file in "$dir"/libelf/*.c; do
	case $file in *dynamicsizehash*) continue ;; esac
	musl-gcc -O2 -fPIC -w -DHAVE_CONFIG_H -I"$dir" -I"$dir/lib" -I"$dir/libelf" -I"$dir/include" \
		-c "$file" -o "${file%.c}.o"
done
ar rcs "$dir/lib/libelf.a" "$dir"/libelf/*.o

# As cargo, cc and libbpf-sys have their variables for a target.
name=$(echo "$target" | tr - _)
export "CC_$name=musl-gcc" "CFLAGS_$name=-isystem $dir/include" "LIBBPF_SYS_LIBRARY_PATH_$name=$dir/lib"
cargo build --release --locked -p vsnoop --target "$target"
echo "static: target/$target/release/vsnoop"
