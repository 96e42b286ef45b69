#!/bin/sh
# Runs all checks (scripts/check.sh) and tests, and ends with one line that counts them.
#
# First the command and most test programs are built, and everything is downloaded, without a bound:
# a slow machine takes as long as it takes.  Then, side by side:
#
#   test programs   each in namespaces of its own (scripts/beside.sh); most of them wait for timers
#                   and packets most of the time
#   computation     at low priority: the checks, then build and tests of the decision core
#
# They need no network then, and have 75 minutes in all (a CI job has 90, the build included), so
# that a test that hangs does not block whoever waits for the result.
#
# Tests that need root, QEMU or a kernel feature say themselves why they cannot
# run; they are counted as skipped.  Why tests failed is told again before the count, and which of
# them passed when they ran once more, alone.  Exits 1 when a test failed or did not build.
set -u
cd "$(dirname "$0")/.." || exit 1

LIMIT_S=4500

# Tests of the decision core compile accel/flow/ with checks for undefined behaviour, a feature of
# vsnoop-flow.  In one command with the other crates these, too, would be compiled with it: again.
core="vsnoop-flow vsnoop-hold vsnoop-world"
# Programs without libraries, named beside the core so that cargo gives dependencies that both have
# (bindgen, proptest) the same features: else it compiles them again.  They are not compiled here.
beside_core="vsnoop vsnoop-bench"

cargo_test() { cargo test --release --locked --no-fail-fast "$@"; }

# Of all crates but the core: all targets but documentation, which has no tests, fuzz targets, which
# run elsewhere (scripts/fuzz.sh; that they compile is scripts/check.sh's), and the core of the
# simulator, which has no tests and that feature.
host_tests() {
	excluded=
	for crate in vsnoop-fuzz vsnoop-sim-core $core; do
		excluded="$excluded --exclude $crate"
	done
	# shellcheck disable=SC2086 # a list of words
	cargo_test --all-targets --workspace $excluded "$@"
}

core_tests() {
	chosen=
	for crate in $core $beside_core; do
		chosen="$chosen -p $crate"
	done
	for crate in $core; do
		for program in */"$crate"/tests/*; do
			program=${program##*/}
			chosen="$chosen --test ${program%.rs}"
		done
	done
	# shellcheck disable=SC2086 # a list of words
	cargo_test --lib $chosen
}

# Prints what a command prints when it has ended, in one piece.
in_one_piece() { # NAME COMMAND...
	output=$BESIDE/output.$1
	shift
	"$@" >"$output" 2>&1
	flock "$BESIDE/print" cat "$output"
	rm "$output"
}

# The second call of this script: all that runs side by side, within the time that it has.
if [ "${1-}" = --run ]; then
	export CARGO_NET_OFFLINE=true
	host_tests --config "target.'cfg(unix)'.runner = ['sh', '$PWD/scripts/beside.sh']"
	sh scripts/beside.sh --run &
	renice -n 10 -p $$ >/dev/null
	in_one_piece checks sh scripts/check.sh
	in_one_piece core core_tests
	wait
	# Only root may.
	renice -n 0 -p $$ >/dev/null 2>&1
	sh scripts/beside.sh --again
	exit
fi

BESIDE=$(mktemp -d)
export BESIDE
trap 'rm -rf "$BESIDE"' EXIT
log=$BESIDE/log

# The command under test and the guests' init are release builds, as shipped.
cargo build --release --locked -p vsnoop -p vsnoop-lab -p vsnoop-guest || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
{
	cargo fetch --locked --target "$(rustc -vV | sed -n 's/^host: //p')"
	# The kernels and the image of guests, the schemas of Kubernetes.  Without them the tests
	# say what they lack.
	target/release/vsnoop-lab prepare &
	sh scripts/check-deploy.sh --fetch &
	# What does not build is told again, and counted, by the tests themselves.
	host_tests --no-run >/dev/null 2>&1
	[ ! -e /usr/include/ns3/core-module.h ] || sh scripts/sim.sh --build
	wait

	timeout --kill-after=30 "$LIMIT_S" sh scripts/test.sh --run
	case $? in 124 | 137)
		for output in "$BESIDE"/output.*; do
			cat "$output"
		done
		echo "error: the tests were ended after $((LIMIT_S / 60)) minutes"
		;;
	esac
} 2>&1 | tee "$log"

# What failed: a reader of the end of a long log sees why.  A test's block is in "failures:",
# from its name to the next name or to the list of all that failed; 12 lines of it tell the reason.
awk '
	/^failures:$/ { inside = !inside; told = 13; next }
	/^test result:/ { inside = 0 }
	/^error: (could not compile|check: |the tests were ended|.* died$)/ { print; next }
	/^again: / { print; next }
	inside && /^---- .* ----$/ { told = 0 }
	inside && NF && told++ < 13
' "$log"

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
	# scripts/beside.sh --again
	/^again: .*: ok$/ { passed++; failed-- }
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
