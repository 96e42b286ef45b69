#!/bin/sh
# Searches what can happen to small connections further than the tests do, runs the simulated
# transfers with more seeds, random storms for as many seconds as there are seeds, and what tests do
# more of where VSNOOP_SOAK is set (vsnoop_testbed::soak): links for longer among unknown sources,
# cuts and gigabytes, listeners that are busy for longer, migrations, short connections, all tests
# on each kernel, and other software beside vsnoop on one of them.
# $1: most states of a search, $2: seeds of each case.
#
# Prints how many states there are (dev/vsnoop-lab/notes/2026-11.md) and ends with the tests'
# own lines.
set -eu
cd "$(dirname "$0")/.."

VSNOOP_STATES=$1 cargo test --release --locked -p vsnoop-world --test search -- \
	--include-ignored --nocapture --test-threads=1
VSNOOP_SEEDS=$2 cargo test --release --locked -p vsnoop-world --test compare -- --nocapture
VSNOOP_STORM_SECONDS=$2 cargo test --release --locked -p vsnoop-world --test storm -- --nocapture

cargo build --release --locked -p vsnoop
export VSNOOP_SOAK=1
cargo test --release --locked -p vsnoop --test command
cargo test --release --locked -p vsnoop-tests --test faults --test kernels --test links \
	--test netns --test uml
