#!/bin/sh
# Fetches the programs that links are compared with (vsnoop-lab run link-...).
#
# Debian's come as packages, the others are built into build/peers/.  What
# cannot be had is named and left out; the experiments then report it as
# missing.  Run again it fetches nothing.  Needs root and scripts/setup.sh.
set -eu

say() { echo "peers: $*"; }
[ "$(id -u)" = 0 ] || { echo "peers: needs root: packages are installed" >&2; exit 3; }
cd "$(dirname "$0")/.."
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin:/usr/local/go/bin"

# openssl and wireguard-tools make the keys and certificates of the others.
packages="openvpn vtun tinc fastd slirp4netns openssh-client openssh-server openssl wireguard-tools"
# shellcheck source=scripts/packages.sh
. scripts/packages.sh
# shellcheck disable=SC2086 # a list of words
missing=$(missing_packages $packages)
if [ -n "$missing" ]; then
	say "installing packages:$missing"
	apt-get update -qq
	for package in $missing; do
		install_without_services "$package" ||
			say "$package cannot be installed"
		# Nor at the next boot, where this package brought the service.
		service=$package
		[ "$package" != openssh-server ] || service=ssh
		if command -v systemctl >/dev/null; then
			systemctl disable -q "$service" 2>/dev/null || true
		fi
	done
else
	say "all packages are there"
fi

if [ ! -x build/peers/bin/vpncloud ]; then
	say "building vpncloud"
	cargo install --quiet --locked --root build/peers --version 2.3.0 vpncloud ||
		say "vpncloud cannot be built"
fi

if [ ! -x build/peers/bin/wireguard-go ]; then
	if command -v go >/dev/null ||
		install_packages golang-go; then
		say "building wireguard-go"
		if GOBIN="$PWD/build/peers/go" go install golang.zx2c4.com/wireguard@latest; then
			mkdir -p build/peers/bin
			mv build/peers/go/wireguard build/peers/bin/wireguard-go
		else
			say "wireguard-go cannot be built"
		fi
	else
		say "wireguard-go cannot be built: there is no Go"
	fi
fi
say "ready"
