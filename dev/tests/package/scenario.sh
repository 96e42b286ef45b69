#!/bin/sh
# Runs as root in the machine, after each boot. Prints a line for each step, `ok NAME` or `failed
# NAME` behind a mark, and before it what a failed one has to say; notes are lines of their own.
#
# Beside this script are old.deb, new.deb and the test program, whose `traffic` is the VM and its
# client.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
here=$(dirname "$0")
state=/var/lib/scenario
traffic=/run/scenario-traffic
log=/run/scenario-log
# Of the tap in the network that the traffic makes.
port=vst-port
# Looks at what a test waits for, half a second apart; the machine is slow, and may be busy.
LOOKS=1200

mark() { echo "package-test: $*"; }

# Runs a function, which prints what it does; the machine powers off after a failure.
step() { # NAME
	"$1" >"$log" 2>&1 && { mark "ok $1"; return; }
	cat "$log"
	vsnoop status
	journalctl --no-pager -b -u vsnoop -n 50
	mark "failed $1"
	systemctl poweroff
	exit 1
}

# Waits until a command succeeds.
await() { # COMMAND...
	looks=0
	until "$@" >/dev/null 2>&1; do
		looks=$((looks + 1))
		[ "$looks" -lt "$LOOKS" ] || { echo "waited in vain: $*"; return 1; }
		sleep 0.5
	done
}

# Does the status, of which $1 is a filter of jq, hold?
status() { # FILTER
	vsnoop status --json | jq -e "$1"
}

of_port() { # FIELD
	vsnoop status --json | jq ".ports[] | select(.port == \"$port\") | $1"
}

service_runs() {
	systemctl is-active vsnoop && systemctl is-enabled vsnoop && status .service.running
}

begin_traffic() {
	rm -rf "$traffic" && mkdir "$traffic"
	"$here/package" traffic "$traffic" &
	await test -e "$traffic/ready"
}

is_accelerated() {
	await status ".ports[] | select(.port == \"$port\" and .state == \"active\" \
		and .attached_by == \"service\" and .early_acks > 0)"
}

# Ends the traffic, of which no connection may have failed.
end_traffic() {
	touch "$traffic/stop"
	await test -e "$traffic/result" || return
	cat "$traffic/result"
	mark "note $1: $(head -n 1 "$traffic/result")" >/dev/console
	grep -q ' complete, 0 broken' "$traffic/result"
}

acknowledges_more() { # THAN
	[ "$(of_port .early_acks)" -gt "$1" ]
}

# Does that process, named by its lock, run the program that is installed?
runs_new_program() { # ROLE
	[ "$(readlink "/proc/$(cat "/run/vsnoop/$1.lock")/exe")" = /usr/sbin/vsnoop ]
}

install_starts_the_service() {
	apt-get install -y "$here/old.deb" || return
	await service_runs || return
	vsnoop check && [ "$(stat -c %a /etc/vsnoop/vsnoop.toml)" = 644 ]
}

without_a_table_taps_are_observed() {
	ip tuntap add spare mode tap && ip link set spare up || return
	before=$(tc qdisc show dev spare)
	await status '.ports[] | select(.port == "spare" and .state == "observing")' || return
	[ "$(tc qdisc show dev spare)" = "$before" ] || return
	ip link del spare
	await status '.ports == []'
}

a_port_that_comes_up_is_accelerated() {
	cat >/etc/vsnoop/vsnoop.toml <<-END || return
		[[port]]
		name = "nested"
		interface = "$port"
		netns = "vspkg-*"
		hold = "4M"
	END
	vsnoop reload && begin_traffic && is_accelerated || return
	bpftool prog list | grep -w to_vm
}

# With the reason, and the running configuration stays; mended, the file is taken again.
reload_of_a_bad_file_fails_and_changes_nothing() {
	file=/etc/vsnoop/vsnoop.toml
	tables=$(vsnoop status --json | jq -c .service.tables)
	attached_at=$(of_port .attached_at)
	cp "$file" "$file.good" && echo 'holds = "1M"' >>"$file" || return
	! systemctl reload vsnoop || return
	journalctl --no-pager -b -u vsnoop | grep holds || return
	service_runs || return
	[ "$(vsnoop status --json | jq -c .service.tables)" = "$tables" ] || return
	mv "$file.good" "$file" && systemctl reload vsnoop && service_runs || return
	[ "$(of_port .attached_at)" = "$attached_at" ]
}

main_process() {
	systemctl show -p MainPID --value vsnoop
}

# systemd has started another process than this one.
is_started_anew() { # PROCESS
	now=$(main_process) && [ "$now" != 0 ] && [ "$now" != "$1" ]
}

# As soon as it comes again: more often than systemd's default limit on starts (5 in 10 s) allows.
killed_often_the_service_comes_again() {
	attached_at=$(of_port .attached_at)
	for _ in 1 2 3 4 5 6 7 8; do
		process=$(main_process)
		kill -KILL "$process" && await is_started_anew "$process" || return
	done
	[ "$(systemctl show -p NRestarts --value vsnoop)" -ge 8 ] || return
	[ "$(systemctl show -p StartLimitIntervalUSec --value vsnoop)" = 0 ] || return
	await service_runs || return
	[ "$(of_port .attached_at)" = "$attached_at" ] || return
	await acknowledges_more "$(of_port .early_acks)" || return
	[ "$(of_port '[.resets[]] | add')" = 0 ]
}

# The traffic is that of the steps before: no connection broke in these either.
an_upgrade_breaks_no_connection() {
	attached_at=$(of_port .attached_at)
	process=$(main_process)
	apt-get install -y "$here/new.deb" || return
	dpkg-query -W -f '${Version}\n' vsnoop | grep rebuilt || return
	await service_runs || return
	[ "$(main_process)" != "$process" ] || return
	await runs_new_program helper && await runs_new_program engine || return
	[ "$(of_port .attached_at)" = "$attached_at" ] || return
	await acknowledges_more "$(of_port .early_acks)" || return
	# What the operator wrote stays.
	grep -q nested /etc/vsnoop/vsnoop.toml || return
	[ "$(of_port '[.resets[]] | add')" = 0 ] || return
	end_traffic upgrade || return
	touch "$traffic/leave"
}

the_service_does_it_again_after_a_reboot() {
	await service_runs && begin_traffic && is_accelerated
}

removal_breaks_no_connection_and_leaves_nothing() {
	network=$(cat "$traffic/ready")
	within="ip netns exec $network"
	$within ip tuntap add spare mode tap && $within ip link set spare up || return
	$within tc qdisc show dev "$port" | grep noqueue || return
	apt-get remove -y vsnoop || return
	end_traffic removal || return
	[ ! -e /sys/fs/bpf/vsnoop ] || return
	kind() { $within tc qdisc show dev "$1" | cut -d' ' -f2; }
	[ "$(kind "$port")" = "$(kind spare)" ] || return
	no_programs() { ! bpftool prog list | grep -wE 'to_vm|from_vm'; }
	no_processes() { ! pgrep -x vsnoop; }
	await no_programs && await no_processes || return
	[ -e /etc/vsnoop/vsnoop.toml ]
}

purging_removes_configuration_and_state() {
	apt-get purge -y vsnoop || return
	[ ! -e /etc/vsnoop ] && [ ! -e /run/vsnoop ] || return
	! systemctl cat vsnoop
}

if [ ! -e "$state" ]; then
	mark "note kernel $(uname -r), $(systemctl --version | head -n 1)"
	step install_starts_the_service
	step without_a_table_taps_are_observed
	step a_port_that_comes_up_is_accelerated
	step reload_of_a_bad_file_fails_and_changes_nothing
	step killed_often_the_service_comes_again
	step an_upgrade_breaks_no_connection
	mark "note $(systemd-analyze --no-pager security vsnoop | tail -n 1)"
	touch "$state"
	sync
	exec systemctl reboot
fi
step the_service_does_it_again_after_a_reboot
step removal_breaks_no_connection_and_leaves_nothing
step purging_removes_configuration_and_state
exec systemctl poweroff
