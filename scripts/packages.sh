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

# The same, but no service of theirs is started: tests and lab start their own.  The policy is the
# distribution's way to say so; one that is there stays.
install_without_services() ( # PACKAGE...
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ]; then
		trap 'rm -f "$policy"' EXIT
		trap 'exit 130' INT TERM
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	install_packages "$@"
)
