#!/bin/sh
# Checks the sources without running them: formatting, lines, lints, warnings of the C compilers,
# subjects of commits, and that SPECIFICATION.md names what there is.
#
# Prints a line for each check, and before it what a failed one has to say.  Goes on after a
# failure; exits 1 if there was one.  scripts/test.sh counts the lines.
set -u
cd "$(dirname "$0")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# $1: name of the check; $2: what mends it; the rest: a command, of which --version tells whether it
# is there.
check() {
	name=$1
	mend=$2
	shift 2
	case $1 in
	cargo) version="cargo $2" ;;
	*) version=$1 ;;
	esac
	# shellcheck disable=SC2086 # cargo's commands are two words
	if [ "$1" != sh ] && ! $version --version >/dev/null 2>&1; then
		mend="$version is missing; installed by: sh scripts/setup.sh"
	elif "$@" >"$log" 2>&1; then
		echo "check: $name: ok"
		return
	else
		# scripts/test.sh takes no line of it for one of its own.
		sed 's/^/  /' "$log"
	fi
	echo "error: check: $name: $mend"
	failed=1
}

check rustfmt "mended by: cargo fmt --all" cargo fmt --all --check
sources='accel link dev'
# shellcheck disable=SC2046,SC2086 # lists of files and of directories
check clang-format "mended by: clang-format -i \$(find $sources -name '*.[ch]' -o -name '*.cc')" \
	clang-format --dry-run --Werror --ferror-limit=1 \
	$(find $sources -name '*.[ch]' -o -name '*.cc')
# Comments and documents, which neither of them wraps, but tables, headings and single words.
# shellcheck disable=SC2046,SC2016 # a list of files, a program of awk
check "lines of 100 columns" "mended by hand" env LC_ALL=C awk \
	'{ gsub(/\t/, "        "); gsub(/[\200-\277]/, "") } length > 100 && (FILENAME ~ /md$/ ? !/^ *([|#]|([-*>] )*[^ ]*$)/ : /^ *(\/\/|# )/ || (FILENAME ~ /[.]([ch]|cc)$/ && !/"/)) { print FILENAME ":" FNR; bad = 1 } END { exit bad }' \
	$(git ls-files --cached --others --exclude-standard '*.rs' '*.[ch]' '*.cc' '*.sh' '*.toml' '*.md' '*.py')
check shellcheck "mended by hand, with: shellcheck FILE" shellcheck scripts/*.sh .ci/run \
	deploy/libvirt/qemu dev/tests/coexistence/libvirt/daemon.sh
# Those of the last commits, where there is a repository.
check "commit subjects" "mended by: git commit --amend (at most 72 characters, no semicolon)" \
	sh -c '! git log -20 --format=%s | grep -e ".\{73\}" -e ";"'
check "names of tests" "mended by naming tests that exist" sh scripts/specification.sh
# The build scripts compile C with warnings as errors.  The release profile has their results, with
# the C libraries of dependencies, in common with `make build` and `make test`.
check "clippy and C warnings" "many are mended by: cargo clippy --fix --release --workspace" \
	cargo clippy --quiet --release --locked --workspace --all-targets -- -D warnings
check "without links" "\`make demo\` builds so" \
	cargo clippy --quiet --release --locked --no-default-features -p vsnoop -- -D warnings

exit "$failed"
