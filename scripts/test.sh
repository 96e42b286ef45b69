#!/bin/sh
# Runs all checks (scripts/check.sh) and tests, and ends with one line that counts them.
#
# First everything is checked, built and downloaded, without a bound: a slow machine takes as long
# as it takes.  Then the test programs run, each in namespaces of its own
# (scripts/beside.sh).  They need no network then, and have 75 minutes in all (a CI job has 90, the
# build included), so that a test that hangs does not block whoever waits for the result.
#
# Tests that need root, QEMU or a kernel feature say themselves why they cannot
# run; they are counted as skipped.  Exits 1 when a test failed or did not build.
set -u
cd "$(dirname "$0")/.." || exit 1

LIMIT_S=4500

# Tests of the decision core compile flow/ with checks for undefined behaviour, a feature of
# vsnoop-flow.  In one command with the other crates these, too, would be compiled with it: again.
core="vsnoop-flow vsnoop-hold vsnoop-world"

# cargo test, first of all but the core, then of the core.  Fuzz targets run elsewhere
# (scripts/fuzz.sh); that they keep up with what they fuzz is scripts/check.sh's.
cargo_tests() {
	excluded='' chosen=''
	for crate in $core; do
		excluded="$excluded --exclude $crate"
		chosen="$chosen -p $crate"
	done
	# shellcheck disable=SC2086 # lists of words
	{
		cargo test --release --locked --no-fail-fast --workspace --exclude vsnoop-fuzz $excluded "$@"
		cargo test --release --locked --no-fail-fast $chosen "$@"
	}
}

# The second call of this script: all test programs, within the time that they have.
if [ "${1-}" = --run ]; then
	export CARGO_NET_OFFLINE=true
	cargo_tests --config "target.'cfg(unix)'.runner = ['sh', '$PWD/scripts/beside.sh']"
	sh scripts/beside.sh --wait
	exit
fi

BESIDE=$(mktemp -d)
export BESIDE
trap 'rm -rf "$BESIDE"' EXIT
log=$BESIDE/log

# The command under test and the guests' init are release builds, as shipped.
cargo build --release --locked -p vsnoop -p vsnoop-lab -p vsnoop-guest || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
{
	sh scripts/check.sh
	# What does not build is told again, and counted, by the tests themselves.
	cargo_tests --no-run >/dev/null 2>&1
	# The kernels and the image of guests.  Without them the tests say what they lack.
	target/release/vsnoop-lab prepare

	timeout --kill-after=30 "$LIMIT_S" sh scripts/test.sh --run
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
	/^error: .* died$/ { failed++ }
	/^error: the tests were ended/ { failed++ }
	# scripts/check.sh
	/^check: .*: ok$/ { passed++ }
	/^error: check: / { failed++ }
	/^error: [0-9]+ targets? failed/ { targets = 1 }
	END {
		if (suites == 0 || (targets && failed == 0)) failed++
		printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
		exit failed > 0
	}' "$log"
