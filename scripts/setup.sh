#!/bin/sh
# Makes a Debian-family machine ready to build, test and demonstrate vsnoop.
#
# Installs what is missing and says so; run again it finds everything there and
# installs nothing.  Needs root.  The guest kernel and image are made by
# vsnoop-lab itself, under build/guest/.
set -eu

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 3; }

[ "$(id -u)" = 0 ] || die "needs root: packages are installed and the BPF file system is mounted"
command -v apt-get >/dev/null || die "needs a Debian-family system (apt-get); elsewhere install the packages listed in $0 by hand"

cd "$(dirname "$0")/.."
rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$rust" ] || die "Cargo.toml does not say which Rust is needed"

release=$(uname -r)
major=${release%%.*}; rest=${release#*.}; minor=${rest%%[!0-9]*}
# Distributions port tcx back to older kernels.
[ "$major" -gt 6 ] || { [ "$major" -eq 6 ] && [ "$minor" -ge 6 ]; } ||
	grep -q ' tcx_prog_attach$' /proc/kallsyms ||
	die "kernel $release is too old: vsnoop needs 6.6 or newer (tcx)"

# Build: clang and libclang (BPF, generated types), libelf and zlib (libbpf),
# libc with its static half (the guest's init).  Run: iproute2, QEMU, zstd, a font.
# Guests: mmdebstrap, e2fsprogs.  Tests: nftables (the guest's firewall), etcd, prometheus, tmux (a
# terminal), python3-venv (the schemas of Kubernetes).
# Experiments: haproxy, a peer.
# Checks (scripts/check.sh): shellcheck, clang-format.
packages="build-essential pkg-config clang libclang-dev llvm libelf-dev zlib1g-dev \
linux-libc-dev iproute2 procps util-linux kmod qemu-system-x86 ca-certificates zstd xz-utils libc6-dev fonts-dejavu-core \
mmdebstrap e2fsprogs nftables haproxy tmux \
etcd-server etcd-client prometheus python3-venv \
shellcheck clang-format"
# shellcheck source=scripts/packages.sh
. scripts/packages.sh
# shellcheck disable=SC2086 # a list of words
missing=$(missing_packages $packages)

# Rust: what is there if it is new enough, else the distribution's, else rustup's.  Clippy and
# rustfmt come from where it came from.
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
is_new_enough() { # VERSION
	[ "$(printf '%s\n' "$rust" "$1" | sort -V | head -n 1)" = "$rust" ]
}
rust_is_new_enough() {
	command -v cargo >/dev/null && is_new_enough "$(rustc --version 2>/dev/null | cut -d' ' -f2)"
}
has_lints() {
	cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1
}
candidate() { # PACKAGE
	apt-cache policy "$1" 2>/dev/null | sed -n 's/ *Candidate: *//p' | sed 's/^[0-9]*://; s/(none)//'
}
lints_of() { # PACKAGE of cargo
	case $1 in
	cargo) echo rust-clippy rustfmt ;;
	cargo-web) echo rust-web-clippy rustfmt-web ;;
	esac
}
if ! rust_is_new_enough; then
	apt-get update -qq
	if is_new_enough "$(candidate cargo)"; then
		missing="$missing cargo rustc $(lints_of cargo)"
	elif is_new_enough "$(candidate cargo-web)"; then # Debian 12's newer Rust
		missing="$missing cargo-web rustc-web $(lints_of cargo-web)"
	elif [ -n "$(candidate rustup)" ]; then
		missing="$missing rustup"
	else
		die "no Rust $rust or newer in this distribution; install it with rustup and run again"
	fi
elif ! has_lints; then
	owner=$(dpkg-query -S "$(command -v cargo)" 2>/dev/null | cut -d: -f1)
	missing="$missing $(lints_of "$owner")"
	missing=${missing% }
fi

if [ -n "$missing" ]; then
	say "installing packages:$missing"
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of words
	install_packages $missing
	# Tests and lab start their own where they need one; nobody asked for a service.
	for pair in haproxy:haproxy etcd-server:etcd prometheus:prometheus; do
		service=${pair#*:}
		case " $missing " in *" ${pair%:*} "*) ;; *) continue ;; esac
		command -v systemctl >/dev/null || continue
		say "the service $service, which came with its package, is switched off"
		systemctl disable -q "$service" || say "could not disable the service $service"
		[ ! -d /run/systemd/system ] || systemctl stop "$service" || say "could not stop the service $service"
	done
else
	say "all packages are there"
fi
if ! rust_is_new_enough && command -v rustup >/dev/null; then
	say "installing the stable Rust toolchain with rustup"
	rustup toolchain install stable --profile minimal --component clippy --component rustfmt
	rustup default stable
fi
rust_is_new_enough || die "Rust $rust or newer is still missing; install it with rustup and run again"
if ! has_lints && command -v rustup >/dev/null; then
	say "installing clippy and rustfmt with rustup"
	rustup component add clippy rustfmt || true
fi
# Who only builds needs neither.
has_lints || say "clippy or rustfmt is missing and cannot be had: make check will fail"

if ! grep -q ' /sys/fs/bpf bpf ' /proc/mounts; then
	say "mounting the BPF file system at /sys/fs/bpf"
	mount -t bpf -o mode=0700 bpf /sys/fs/bpf
fi
say "ready: $(rustc --version), $(clang --version | head -n 1), kernel $release"
