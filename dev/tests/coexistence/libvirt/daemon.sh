#!/bin/sh
# libvirtd with /run, /etc and /var of its own.  $1: a directory, whose `run` becomes its /run and
# whose `bin` goes before PATH.  $2: the name of its host.  Runs in namespaces of its own for
# processes and mounts.
set -eu
mkdir -p "$1/own" "$1/run/lock" "$1/run/netns" "$1/run/vsnoop" "$1/run/vms"
mkdir -p "$1/followers" /run/vsnoop/libvirt
mount -t tmpfs tmpfs "$1/own"
for name in etc var; do
	mkdir "$1/own/$name" "$1/own/$name.work"
	mount -t overlay overlay \
		-o "lowerdir=/$name,upperdir=$1/own/$name,workdir=$1/own/$name.work" "/$name"
done
# What vsnoop and ip need of the /run outside.
for name in netns vsnoop; do
	mount --rbind "/run/$name" "$1/run/$name"
done
# The followers of the hook are those of this libvirtd.
mount --bind "$1/followers" "$1/run/vsnoop/libvirt"
mount --rbind "$1/run" /run

# The user and group of Debian's package libvirt-daemon-system.
for file in passwd group; do
	grep -q ^libvirt-qemu: /etc/$file || case $file in
	passwd) echo libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin ;;
	group) echo libvirt-qemu:x:64055: ;;
	esac >>/etc/$file
done
# Machines of the same name or number are one host to libvirt, to which nothing migrates.
cat >/etc/libvirt/libvirtd.conf <<END
auth_unix_rw = "none"
host_uuid = "$(cat /proc/sys/kernel/random/uuid)"
END
cat >/etc/libvirt/qemu.conf <<END
user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
END
[ ! -e "$1/hook" ] || install -D -m 755 "$1/hook" /etc/libvirt/hooks/qemu
export PATH="$1/bin:$PATH"
# This shell reaps what loses its parent, which libvirtd waits for.
# shellcheck disable=SC2016 # the inner shell expands it
unshare --uts sh -c 'hostname "$1" && exec libvirtd' sh "$2" &
wait $!
