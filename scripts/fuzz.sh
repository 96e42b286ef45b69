#!/bin/sh
# Runs each fuzz target (dev/fuzz/fuzz_targets/) for some seconds: fuzz.sh [SECONDS [TARGET...]].
#
# Needs a nightly toolchain and cargo-fuzz, which nothing else does: `rustup toolchain install
# nightly`, `cargo install cargo-fuzz`.  What was found to reach new code stays in dev/fuzz/corpus/,
# and what failed in dev/fuzz/artifacts/; neither is kept in the repository.  Exits 1 when a target
# failed.
set -u
cd "$(dirname "$0")/../dev/fuzz" || exit 1

seconds=${1:-20}
[ $# -gt 0 ] && shift
if [ $# -eq 0 ]; then
	for file in fuzz_targets/*.rs; do
		target=${file##*/}
		set -- "$@" "${target%.rs}"
	done
fi

failed=0
for target; do
	echo "== $target"
	cargo +nightly fuzz run --features run "$target" -- \
		-max_total_time="$seconds" -timeout=10 -verbosity=0 -print_final_stats=1 || failed=1
done
exit "$failed"
