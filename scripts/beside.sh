#!/bin/sh
# Starts one test program beside others; scripts/test.sh has cargo call it for each.
#
#   beside.sh PROGRAM [ARGUMENT...]   starts the program in the background as soon as a slot is free
#   beside.sh --wait                  waits until all have ended
#
# $BESIDE is a directory of the caller, with a lock for each slot.  A program has a network namespace
# and a mount namespace of its own, with its own BPF file system and /run: `off --all` of a test takes
# down nothing of the host, of another program or of another run.  Its output appears as a whole when
# it has ended; cargo is told that it succeeded, the caller reads what is printed.
set -u
# One, unless the caller says more: the default hold of a port counts the VMs of the host, in all
# namespaces, and a test of it fails beside tests that boot some.
SLOTS=${VSNOOP_TEST_SLOTS:-1}

if [ "$1" = --wait ]; then
	for slot in $(seq "$SLOTS"); do
		flock "$BESIDE/slot.$slot" true
	done
	exit
fi

# In its namespaces.
if [ "$1" = --alone ]; then
	shift
	if [ "$(id -u)" = 0 ]; then
		{ mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs tmpfs /run &&
			mkdir -p /run/lock /run/netns && ip link set lo up; } ||
			{ echo "no mounts of its own for a test program"; exit 1; }
	fi
	exec "$@"
fi

take_slot() {
	while :; do
		for slot in $(seq "$SLOTS"); do
			exec 9>"$BESIDE/slot.$slot"
			flock --nonblock 9 && return
		done
		sleep 0.1
	done
}

run() {
	namespaces=
	[ "$(id -u)" = 0 ] && namespaces="unshare --mount --net --propagation private"
	output=$BESIDE/output.$slot
	echo "     Running $1" >"$output"
	# What the program leaves running must not keep the slot.
	# shellcheck disable=SC2086 # a list of words, or nothing
	$namespaces sh "$self" --alone "$@" >>"$output" 2>&1 9>&- ||
		grep -q '^test result: FAILED' "$output" || echo "error: $1 died" >>"$output"
	flock "$BESIDE/print" cat "$output"
}

self=$(realpath "$0")
take_slot
run "$@" &
