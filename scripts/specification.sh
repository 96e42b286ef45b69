#!/bin/sh
# Checks that the sources have every test and figure that SPECIFICATION.md names, and every test of
# the commands in CONTRIBUTING.md.
#
# A row is `| ID | promise | names |`.  Its names, in backticks, are
#   CRATE/PROGRAM::MODULE::TEST  a test of the crate's tests/PROGRAM, or of its src if PROGRAM is
#                                `unit`: `fn TEST(`, or a string that ends with TEST;
#   bench/FIGURE, lab/FIGURE     a string in the sources of vsnoop-bench or vsnoop-lab, or
#                                in a file that declares an experiment.
# `*` stands for what the program fills in at run time: what comes before the first one, or after it
# if nothing does, is looked for.  Modules lead to a file as far as there is one for them; that file
# or one in that directory must have the others: `mod MODULE {`; of vsnoop-tests, whose programs
# name their tests themselves, a string with MODULE, or one that fills in a module
# (`{transport}::`).
#
# A command is `cargo test ... -p CRATE --test PROGRAM -- NAME`, where NAME is a test, its first
# part, or a module; it is checked as the name CRATE/PROGRAM::NAME*.
#
# Usage: scripts/specification.sh [FILE]: FILE instead of SPECIFICATION.md, for the test of this
# script (dev/vsnoop-checks/tests/specification.rs).
#
# Prints each name that is not found with the ID of its row, and how many were checked; exits 1 if
# one was not found.
set -u
specification=$(realpath "${1:-$(dirname "$0")/../SPECIFICATION.md}") || exit 1
cd "$(dirname "$0")/.." || exit 1

# A pattern for the string "...$1..." in Rust, where the name may stand in a format string.
string() {
	case $1 in
	*'*'*) echo "[\"}:_]$(echo "$1" | sed 's/^\*_*//; s/_*\*.*//')[\"_{]" ;;
	*) echo "[\"}:]$1\"" ;;
	esac
}

has_figure() { # CRATE FIGURE
	grep -rqsE "$(string "$2")" "dev/$1/src" "dev/$1/experiments"
}

# The directory of a crate; a name without one for a crate that does not exist.
directory_of() { # CRATE
	case $1 in
	vsnoop) echo cli ;;
	vsnoop-tests) echo dev/tests ;;
	vsnoop-sim) echo dev/sim/runner ;;
	*) echo ./*/"$1" ;;
	esac
}

has_test() { # CRATE PROGRAM::MODULE::TEST
	path=${2#*::}
	place=$(directory_of "$1")
	case $1/$2 in
	vsnoop-tests/*) place=$place/${2%%::*} ;;
	*/unit::*) place=$place/src ;;
	*) place=$place/tests/${2%%::*} ;;
	esac
	while [ "$path" != "${path#*::}" ]; do
		next=$place/${path%%::*}
		[ -e "$next" ] || [ -e "$next.rs" ] || break
		place=$next
		path=${path#*::}
	done
	while [ "$path" != "${path#*::}" ]; do
		module=${path%%::*}
		path=${path#*::}
		[ "$module" = '*' ] && continue
		pattern="\\bmod ${module%'*'} \\{"
		[ "$1" = vsnoop-tests ] && pattern="$pattern|(\"|::)${module%'*'}(\"|::)|\\{[a-z_]*\\}::"
		# The second is a module with `#[path]`.
		grep -rqsE "$pattern" "$place" "$place.rs" || grep -qs "\bmod $module;" "$place.rs" ||
			return 1
	done
	test=${2##*::}
	[ -e "$place/${test%'*'}.rs" ] && return
	case $test in
	*'*') function="fn ${test%%'*'*}" ;;
	*) function="fn $test\(" ;;
	esac
	grep -rqsE "$function|$(string "$test")" "$place" "$place.rs"
}

checked=0
missing=0
while read -r row name; do
	checked=$((checked + 1))
	case $name in
	bench/*) has_figure vsnoop-bench "${name#*/}" ;;
	lab/*) has_figure vsnoop-lab "${name#*/}" ;;
	*/*::*) has_test "${name%%/*}" "${name#*/}" ;;
	*) false ;;
	esac && continue
	missing=$((missing + 1))
	echo "$row: the sources have no $name"
done <<END
$(awk -F'|' '$2 ~ /^ [A-Z]+[0-9]+ $/ {
	count = split($4, part, "`")
	if (count < 3) print $2, "test or figure"
	for (i = 2; i <= count; i += 2) print $2, part[i]
}' "$specification")
$(sed -nE 's/^cargo test .*-p ([^ ]+) --(lib|bin [^ ]+) -- /CONTRIBUTING.md \1\/unit::/p
	s/^cargo test .*-p ([^ ]+) --test ([^ ]+) -- (--exact )?/CONTRIBUTING.md \1\/\2::/p
	' CONTRIBUTING.md | sed 's/$/*/')
END

echo "SPECIFICATION.md, CONTRIBUTING.md: $checked names checked, $missing missing"
# Without a row that is understood there is one name, and it is empty.
[ "$missing" -eq 0 ] && [ "$checked" -gt 1 ]
