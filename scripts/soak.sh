#!/bin/sh
# Searches what can happen to small connections further than the tests do, runs the simulated
# transfers with more seeds, random storms for as many seconds as there are seeds, links for longer
# among unknown sources, cuts and gigabytes, more listeners that are busy for longer, more transfers
# to User Mode Linux, and all tests on each kernel.
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
for tests in hostile:: memory:: unknown_sources::; do
	VSNOOP_SOAK=1 cargo test --release --locked -p vsnoop-tests --test links -- "$tests"
done
VSNOOP_SOAK=1 cargo test --release --locked -p vsnoop-tests --test netns -- accept_queue::
VSNOOP_SOAK=1 cargo test --release --locked -p vsnoop-tests --test uml -- --nocapture
VSNOOP_SOAK=1 cargo test --release --locked -p vsnoop-tests --test kernels
