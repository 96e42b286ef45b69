#!/bin/sh
# Runs all tests and ends with one line that counts them.
#
# Tests that need root, QEMU or a kernel feature say themselves why they cannot
# run; they are counted as skipped.  Exits 1 when a test failed or did not build.
set -u
cd "$(dirname "$0")/.." || exit 1

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The command under test and the guests' init are release builds, as shipped.
cargo build --release --locked || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }

# Bounded: a test that hangs must not block whoever waits for the result.
timeout 1500 cargo test --workspace --exclude vsnoop-fuzz --release --locked \
	--no-fail-fast 2>&1 | tee "$log"

# Streams in namespaces once more, with a hold on every port.  Not those that have
# one anyhow, nor the many forms of a hostile network, nor the one whose VM must answer within
# a millisecond: with a hold it is saturated, and beside other tests on two cores it does not.
VSNOOP_NETNS_HOLD=16M timeout 600 cargo test --release --locked -p vsnoop-lab --test netns -- \
	--skip hold:: --skip network:: --skip guest::prompt_vm 2>&1 | tee -a "$log"

# Fuzz targets run elsewhere (scripts/fuzz.sh), but must keep up with what they fuzz.
{ timeout 600 cargo build --release --locked -p vsnoop-fuzz 2>&1 ||
	echo "error: could not compile the fuzz targets"; } | tee -a "$log"

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
	/^error: [0-9]+ targets? failed/ { targets = 1 }
	END {
		if (suites == 0 || (targets && failed == 0)) failed++
		printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
		exit failed > 0
	}' "$log"
