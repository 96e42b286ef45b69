#!/bin/sh
# Packages of Debian: which are missing, and how they are installed. Other scripts source this file.

# Prints those of the named packages that are not installed, each after a blank.
missing_packages() { # PACKAGE...
	for package in "$@"; do
		dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
			printf ' %s' "$package"
	done
}

# Installs them, without what they merely recommend. Needs root, and apt-get update before.
install_packages() { # PACKAGE...
	DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
