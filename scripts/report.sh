#!/bin/sh
# Opens the page of `vsnoop-lab report` in a browser, without a network, in a wide and in a narrow
# window: it asks for nothing, has no error, plots have a size, and no text is cut off or covered.
#
#   report.sh [PAGE]    results/report.html, unless another is named
#
# Pictures of each part are in results/page/, for people: wide ones in light, narrow ones in dark.
# The browser takes some 300 MB, and so this is no part of `make test`.
set -eu
cd "$(dirname "$0")/.."
. scripts/packages.sh
PAGE=${1:-results/report.html}
OUT=results/page
BROWSER=chromium-headless-shell
# The browser draws no more.
MOST_PIXELS=16000

[ -s "$PAGE" ] || { echo "report: no $PAGE: \`vsnoop-lab report\` makes it of results" >&2; exit 1; }
if ! command -v $BROWSER >/dev/null; then
	echo "report: installing $BROWSER"
	apt-get update -qq
	install_packages $BROWSER fonts-dejavu-core
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
rm -rf $OUT
mkdir -p $OUT

# In a network namespace without a device. Root needs --no-sandbox.
browse() { # WIDTH HEIGHT OPTION... FILE
	size=$1,$2
	shift 2
	unshare --net timeout 120 $BROWSER --no-sandbox --disable-gpu --hide-scrollbars \
		--user-data-dir="$scratch/profile" --window-size="$size" "$@" 2>"$scratch/log"
}

{
	echo '<!DOCTYPE html><script>const errors = [];'
	echo 'addEventListener("error", (e) => errors.push(e.message || e.target.outerHTML), true);'
	cat scripts/report.js
	echo '</script>'
	cat "$PAGE"
} >"$scratch/looked-at.html"

status=0
for view in "1280 light 1" "400 dark 0"; do
	# shellcheck disable=SC2086 # three words
	set -- $view
	width=$1 theme=$2 scheme=$3
	browse "$width" 1000 --dump-dom --virtual-time-budget=10000 "$scratch/looked-at.html" |
		sed 's/<[^>]*>//g; s/&gt;/>/g; s/&lt;/</g; s/&amp;/\&/g' |
		grep -E '^(part|wrong): ' >"$scratch/found" ||
		{ echo "report: $BROWSER did not show $PAGE:"; cat "$scratch/log"; exit 1; }
	sed -n "s/^wrong/$width pixels/p" "$scratch/found"
	! grep -q '^wrong' "$scratch/found" || status=1
	sed -n 's/^part: //p' "$scratch/found" | while read -r part height; do
		others="body > :not(#$part)"
		[ "$part" != head ] || others=section
		{ cat "$PAGE"; echo "<style>$others { display: none }</style>"; } >"$scratch/part.html"
		[ "$height" -lt $MOST_PIXELS ] || height=$MOST_PIXELS
		browse "$width" $((height + 200)) --screenshot="$OUT/$part-$width-$theme.png" \
			--blink-settings=preferredColorScheme="$scheme" "$scratch/part.html" >/dev/null
	done
done
echo "report: $(find $OUT -name '*.png' | wc -l) pictures are in $OUT/"
[ $status = 1 ] || echo "report: nothing is wrong with $PAGE"
exit $status
