#!/bin/sh
# Runs test programs side by side; scripts/test.sh has cargo call it for each.
#
#   beside.sh PROGRAM   notes the program, with the directory and the environment that cargo gave it
#   beside.sh --run     runs all that were noted, some at a time: those that take long first, the
#                       longest in parts (VSNOOP_TEST_PART), those that emulate machines at the end
#   beside.sh --again   runs each test that failed once more, alone, when all else has ended
#
# $BESIDE is a directory of the caller.  A program has namespaces of its own: of the network, of
# mounts, with its own BPF file system, /run and TMPDIR, and of processes.  `off --all` of a test
# takes down nothing of the host, of another program or of another run, no test counts another's
# VMs, and all that a program leaves running ends with it.  Its output appears as a whole when it
# has ended; cargo is told that it succeeded, the caller reads what is printed.
set -u
# More tests that fail have another reason than a busy machine: they are not run again.
MOST_AGAIN=5
# Most programs wait for timers and packets most of the time: a part of faults takes a tenth of a
# CPU.
SLOTS=${VSNOOP_TEST_SLOTS:-$((3 * $(nproc)))}

# Those that take longest start first.  Emulated machines need a CPU each: kernels has as many as
# there are, when all other programs have ended.  A machine that waits for the CPU of its host
# cannot see that; its VMs then look late for another reason than theirs, and its clock goes on.
LAST=9
rank() { # NAME
	case $1 in
	faults | links) echo 1 ;;
	command | netns) echo 2 ;;
	coexistence | interrupted | vm) echo 3 ;;
	kernels) echo "$LAST" ;;
	*) echo 4 ;;
	esac
}

# In how many parts a program runs that takes longer than the others, and waits.
parts() { # NAME
	case $1 in
	command | faults) echo 3 ;;
	links) echo 2 ;;
	*) echo 1 ;;
	esac
}

note() { # PROGRAM
	file=${1##*/}
	of=$(parts "${file%-*}")
	mkdir -p "$BESIDE/noted"
	which=1
	while [ "$which" -le "$of" ]; do
		{
			export -p
			echo "cd '$PWD' || exit 1"
			echo "program='$1'"
			[ "$of" = 1 ] || echo "export VSNOOP_TEST_PART=$which/$of"
		} >"$BESIDE/noted/$(rank "${file%-*}").$file:$which"
		which=$((which + 1))
	done
}

# The program of a note, with its arguments, in namespaces of its own.
isolated() { # NOTE ARGUMENT...
	program=
	# shellcheck disable=SC1090 # written by note()
	. "$1"
	shift
	export VSNOOP_TEST_PROGRAMS="$BESIDE/noted"
	[ $# = 0 ] || unset VSNOOP_TEST_PART
	namespaces=
	[ "$(id -u)" = 0 ] &&
		namespaces="unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private"
	# shellcheck disable=SC2086 # a list of words, or nothing
	$namespaces sh "$self" --alone "$program" "$@"
}

# $1: file of a noted program.
run() {
	name=${1##*/}
	output=$BESIDE/output.$name
	echo "     Running $name" >"$output"
	isolated "$1" >>"$output" 2>&1 ||
		grep -q '^test result: FAILED' "$output" || echo "error: $name died" >>"$output"
	failed_tests "$output" | sed "s|^|$1 |" >>"$BESIDE/failed"
	# Its CPU time and that of the processes that it waited for, user and system.
	# ($(times) would be that of another shell.)
	times >"$output.times"
	echo "     CPU time of $name: $(tail -n 1 "$output.times")" >>"$output"
	rm "$output.times"
	flock "$BESIDE/print" cat "$output"
	rm "$output"
}

# Names that a test program lists at its end.  A test may have printed another's list before.
failed_tests() { # OUTPUT
	awk '
		/^failures:$/ { count = 0; inside = 1 }
		inside && /^    [^ ]+$/ { names[count++] = $1 }
		/^test result:/ { failed = /FAILED/; inside = 0 }
		END { for (i = 0; failed && i < count; i++) print names[i] }
	' "$1"
}

# A test waits for events, and for what it waits has an end: a peer's timeouts, the keep-alives of a
# daemon.  Beside all others it may come too late.  scripts/test.sh counts what passes now as
# passed, and names it.
again() {
	[ -s "$BESIDE/failed" ] && [ "$(wc -l <"$BESIDE/failed")" -le "$MOST_AGAIN" ] || return 0
	while read -r noted name; do
		output=$BESIDE/output.again
		# In a shell of its own, because a note sets variables.
		(isolated "$noted" --exact "$name") </dev/null >"$output" 2>&1
		if grep -q '^test result: ok. 1 passed' "$output"; then
			echo "again: $name: ok"
		else
			sed 's/^/    | /' "$output"
			echo "again: $name: failed"
		fi
		rm "$output"
	done <"$BESIDE/failed"
}

# Runs the noted programs of these ranks, so many at a time.
run_ranks() { # RANKS COUNT
	find "$BESIDE/noted" -name "$1.*" | sort | xargs -P "$2" -I '{}' sh "$self" --one '{}'
}

# In its namespaces, where this shell is the first process: it reaps what loses its parent.
alone() { # PROGRAM ARGUMENT...
	if [ "$(id -u)" = 0 ]; then
		{ mount -t bpf bpf /sys/fs/bpf && mount -t tmpfs tmpfs /run &&
			mkdir -p /run/lock /run/netns && ip link set lo up; } ||
			{ echo "no mounts of its own for a test program"; exit 1; }
	fi
	TMPDIR=$(mktemp -d "$BESIDE/XXXXXX") && export TMPDIR
	# A link with a user of its own reads its files there.
	chmod 711 "$BESIDE" "$TMPDIR"
	"$@"
}

self=$(realpath "$0")
case $1 in
--run)
	run_ranks "[!$LAST]" "$SLOTS"
	run_ranks "$LAST" 1
	;;
--again) again ;;
--one) run "$2" ;;
--alone)
	shift
	alone "$@"
	;;
*) note "$1" ;;
esac
