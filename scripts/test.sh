#!/bin/sh
# Runs all checks (scripts/check.sh) and tests, and ends with one line that counts them.
#
# First everything is checked, built and downloaded, without a bound: a slow machine takes as long
# as it takes.  Then the tests run in a network namespace and a mount namespace of their own, with their own BPF
# file system and /run: `off --all` of a test takes down nothing of the host or of another run.  They
# need no network then, and have 75 minutes in all (a CI job has 90, the build included), so that a
# test that hangs does not block whoever waits for the result.
#
# Tests that need root, QEMU or a kernel feature say themselves why they cannot
# run; they are counted as skipped.  Exits 1 when a test failed or did not build.
set -u
cd "$(dirname "$0")/.." || exit 1

LIMIT_S=4500

# The simulated hosts (vsnoop-world) are no part of a default build.
all="--workspace --exclude vsnoop-fuzz"

run_tests() {
	# shellcheck disable=SC2086 # a list of words
	cargo test $all --release --locked --no-fail-fast
}

# The second call of this script: within the namespaces.
if [ "${1-}" = --in-namespaces ]; then
	if [ "$(id -u)" = 0 ]; then
		{ mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs tmpfs /run &&
			mkdir -p /run/lock /run/netns && ip link set lo up; } ||
			{ echo "error: no mounts of their own for the tests"; exit 1; }
	fi
	CARGO_NET_OFFLINE=true
	export CARGO_NET_OFFLINE
	run_tests
	exit
fi

namespaces=
[ "$(id -u)" = 0 ] && namespaces="unshare --mount --net --propagation private"

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The command under test and the guests' init are release builds, as shipped.
cargo build --release --locked || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
{
	sh scripts/check.sh
	# What does not build is told again, and counted, by the tests themselves.
	# shellcheck disable=SC2086 # a list of words
	cargo test $all --release --locked --no-run --no-fail-fast >/dev/null 2>&1
	# Fuzz targets run elsewhere (scripts/fuzz.sh), but must keep up with what they fuzz.
	cargo build --release --locked -p vsnoop-fuzz || echo "error: could not compile the fuzz targets"
	# The kernels and the image of guests.  Without them the tests say what they lack.
	target/release/vsnoop-lab prepare

	# shellcheck disable=SC2086 # a list of words, or nothing
	timeout --kill-after=30 "$LIMIT_S" $namespaces sh scripts/test.sh --in-namespaces
	case $? in 124 | 137) echo "error: the tests were ended after $((LIMIT_S / 60)) minutes" ;; esac
} 2>&1 | tee "$log"

awk '
	# Both the standard harness and libtest-mimic end so.
	/^test result:/ {
		for (i = 1; i < NF; i++) {
			if ($(i + 1) ~ /^passed/) passed += $i
			if ($(i + 1) ~ /^failed/) failed += $i
			if ($(i + 1) ~ /^ignored/) skipped += $i
		}
		suites++
	}
	# A test program that did not build, or died, has no result line.
	/^error: could not compile/ { failed++ }
	/^error: the tests were ended/ { failed++ }
	/^error: no mounts/ { failed++ }
	# scripts/check.sh
	/^check: .*: ok$/ { passed++ }
	/^error: check: / { failed++ }
	/^error: [0-9]+ targets? failed/ { targets = 1 }
	END {
		if (suites == 0 || (targets && failed == 0)) failed++
		printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
		exit failed > 0
	}' "$log"
