# Before the script of each workload. Lines of output are values of the measurement by their names,
# or operations: `us MICROSECONDS`, or `failed`.
cd "$(mktemp -d)"
ssh="-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"

# wrk with what it has measured, in microseconds and by kinds of errors.
load_http() { # SCRIPT CONNECTIONS PATH
	cat >wrk.lua <<-END
		$1
		function done(summary, latency)
		    local errors = summary.errors
		    local values = {
		        operations_per_s = summary.requests / summary.duration * 1e6,
		        p50_ms = latency:percentile(50) / 1e3,
		        p99_ms = latency:percentile(99) / 1e3,
		        errors = errors.connect + errors.read + errors.write + errors.status + errors.timeout,
		    }
		    for name, value in pairs(values) do print(name, value) end
		end
	END
	wrk --threads 1 --connections "$2" --duration "${seconds}s" --timeout 30s --script wrk.lua \
		"http://$server/$3"
}

# SET of redis.
load_redis() { # BYTES CONNECTIONS OPERATIONS
	redis-benchmark -h "$server" -t set -d "$1" -c "$2" -n "$3" --csv >csv
	tr -d '"' <csv | awk -F, '
		$1 == "test" { for (i = NF; i > 0; i--) column[$i] = i }
		$1 == "SET" {
			print "operations_per_s", $column["rps"]
			print "p50_ms", $column["p50_latency_ms"]
			print "p99_ms", $column["p99_latency_ms"]
		}'
	# It ends with the first one.
	echo errors 0
}

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
