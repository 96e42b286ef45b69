#!/bin/sh
# Runs what needs no root, no BPF and no VM: formatting, unit tests, the rules of flow/, simulations
# of incast control, and what is checked of sources and documents. Two minutes on two cores where
# everything is built.
#
# `make test` has all of it, and the rest. Exits 1 if something failed.
set -u
cd "$(dirname "$0")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

failed=0
cargo fmt --all --check || failed=1

# $1: crates, by the second half of their names; the rest: test programs of theirs.
quick() {
	crates=
	for crate in $1; do
		crates="$crates -p vsnoop-$crate"
	done
	shift
	programs=
	for program in "$@"; do
		programs="$programs --test $program"
	done
	# shellcheck disable=SC2086 # lists of words
	cargo test --quiet --release --locked --no-fail-fast --lib $crates $programs || failed=1
}

# Two commands, as scripts/test.sh has them: the first compiles flow/ with checks for undefined
# behaviour.
quick "flow hold world" rules parser arbitrary grants incast
quick "packet config netdev privileges split splitter link divert linkd etcd metrics host service \
	bpf checks" crates documents language length modules specification version frames
cargo test --quiet --release --locked -p vsnoop --bins || failed=1

[ "$failed" = 0 ] && echo "quick: ok"
exit "$failed"
