#!/bin/sh
# Builds the Debian package, build/deb/vsnoop_VERSION_ARCHITECTURE.deb, of the release build, and
# has lintian check it.
#
# $1: version; without it that of Cargo.toml. Needs the release build (make deb makes it). What is
# missing of debhelper and lintian is installed, as root.
#
# debhelper works in a directory with debian/ in it: build/deb/source, made of deploy/debian.
set -eu
cd "$(dirname "$0")/.."
tree=$PWD
version=${1:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}

# shellcheck source=scripts/packages.sh
. scripts/packages.sh
missing=$(missing_packages debhelper lintian)
if [ -n "$missing" ]; then
	echo "deb: installing packages:$missing"
	apt-get update -qq
	# shellcheck disable=SC2086 # a list of words
	install_packages $missing
fi

abi=$(target/release/vsnoop --version | sed -n 's/.*(ABI \([0-9]*\)).*/\1/p')
[ -n "$abi" ] || { echo "deb: target/release/vsnoop does not say its ABI" >&2; exit 1; }

rm -rf build/deb/source
mkdir -p build/deb/source
cp -R deploy/debian build/deb/source/debian
cd build/deb/source
sed -i "s/#ABI#/$abi/" debian/preinst
# Of the last change, so that the same sources give the same package.
date=$(git -C "$tree" log -1 --format=%cD 2>/dev/null || date -R)
cat >debian/changelog <<END
vsnoop ($version) unstable; urgency=medium

  * CHANGELOG.md, installed as changelog.gz, says what is new.

 -- The vsnoop authors <authors@vsnoop.invalid>  $date
END
# -d: cargo has built the program, with its own dependencies.
VSNOOP_TREE=$tree dpkg-buildpackage -d -b -us -uc >../build.log 2>&1 ||
	{ tail -n 30 ../build.log; echo "deb: dpkg-buildpackage fails" >&2; exit 1; }
cd ..
rm -rf source
package=$(echo "$PWD/vsnoop_${version}_"*.deb)
lintian --allow-root --fail-on error,warning "$package"
echo "deb: $package"
