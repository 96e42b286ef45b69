#!/bin/sh
# Fetches the software that vsnoop is tested beside (dev/tests/coexistence), as packages of Debian.
#
# What cannot be had is named and left out; its tests then count as ignored.  Run again it fetches
# nothing.  Needs root and scripts/setup.sh.
set -eu

say() { echo "coexistence: $*"; }
[ "$(id -u)" = 0 ] || { say "needs root: packages are installed" >&2; exit 3; }
cd "$(dirname "$0")/.."
# shellcheck source=scripts/packages.sh
. scripts/packages.sh

# iptables has ebtables as well.  A newer Debian has libvirt's filter in a package of its own.
packages="iptables openvswitch-switch libvirt-daemon libvirt-clients libvirt-daemon-config-nwfilter"
filter=libvirt-daemon-driver-nwfilter
! apt-cache show "$filter" >/dev/null 2>&1 || packages="$packages $filter"
# shellcheck disable=SC2086 # a list of words
missing=$(missing_packages $packages)
if [ -z "$missing" ]; then
	say "all packages are there"
	exit
fi
say "installing packages:$missing"
apt-get update -qq || say "the lists of packages cannot be fetched"
# shellcheck disable=SC2086 # a list of words
install_without_services $missing ||
	for package in $missing; do
		install_without_services "$package" ||
			say "$package cannot be installed: its tests count as ignored"
	done
# Nor at the next boot.
if command -v systemctl >/dev/null; then
	systemctl disable -q openvswitch-switch 2>/dev/null || true
fi
