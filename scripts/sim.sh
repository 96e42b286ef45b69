#!/bin/sh
# Simulates incast control in ns-3: installs what is missing, builds, and runs the cells of
# dev/sim/scenario.toml that are not in results/sim/ yet.
#
#   --install     only installs (as root)
#   --build       only builds
#   other options are those of vsnoop-sim
set -eu
cd "$(dirname "$0")/.."
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

# Where the parts of the simulator are.
SIM=dev/sim

install() {
	# shellcheck source=scripts/packages.sh
	. scripts/packages.sh
	missing=$(missing_packages libns3-dev)
	[ -n "$missing" ] || return 0
	echo "sim: installing packages:$missing"
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of words
	install_packages $missing
}

# One at a time: the tests build, too.
build() {
	mkdir -p target/release
	exec 9>target/release/sim.lock
	flock 9
	cargo build --quiet --release --locked -p vsnoop-sim-core -p vsnoop-sim
	make --quiet -C "$SIM/ns3" -j2
	exec 9>&-
}

case ${1-} in
--install) install ;;
--build) build ;;
*)
	install
	build
	exec target/release/vsnoop-sim "$SIM/scenario.toml" "$@"
	;;
esac
