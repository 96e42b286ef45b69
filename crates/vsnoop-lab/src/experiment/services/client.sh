# Before the script of each workload.
cd "$(mktemp -d)"
ssh="-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"

# What an operation needs, outside of its time.
before() { :; }

# Operations, one after the other, until the time is over; at least one.
repeat() {
	end=$(($(date +%s) + seconds))
	while :; do
		before
		begin=$(date +%s%N)
		if operation; then
			echo "us $((($(date +%s%N) - begin) / 1000))"
		else
			echo failed
		fi
		[ "$(date +%s)" -lt "$end" ] || break
	done
}
