//! Shell scripts: hosts of their own, and what runs on them. $1 is the test program, $2 the
//! command.

/// Runs a role with a network namespace and a /run of its own, and prints what it leaves there.
pub const HOST: &str = "mount -t tmpfs run /run && mkdir /run/netns || exit
    setting=/proc/sys/net/ipv4/tcp_fin_timeout
    echo 61 >$setting
    \"$@\"
    echo left: $(cat $setting) $(ls /run/netns /run/vsnoop-lab)";
/// A host on which nothing was left prints this.
pub const CLEAN: &str = "left: 61 /run/netns: /run/vsnoop-lab: lock";
/// Two labs: the second one begins while the first is there, and ends after it.
pub const BESIDE: &str = "mkfifo /run/first /run/second
    \"$1\" --lab 17 </run/first >/dev/null & first=$!
    exec 3>/run/first
    until [ $(cat $setting) = 17 ]; do sleep 0.05; done
    \"$1\" --lab 18 </run/second >/dev/null & second=$!
    exec 4>/run/second
    until [ $(cat $setting) = 18 ]; do sleep 0.05; done
    until [ \"$(ls -d /run/netns/vslab-* 2>/dev/null | wc -l)\" = 2 ]; do sleep 0.05; done
    kill -INT $first && echo >&3 && wait $first
    echo beside: $(cat $setting) $(ls /run/netns | wc -l)
    kill -INT $second && echo >&4 && wait $second";
/// A lab that is killed, and another one after it.
pub const KILLED: &str = "mkfifo /run/in
    \"$1\" --lab 17 </run/in >/dev/null & lab=$!
    exec 3>/run/in
    until ls -d /run/netns/vslab-* >/dev/null 2>&1; do sleep 0.05; done
    kill -KILL $lab; wait $lab
    \"$1\" --begin";

/// For scripts that interrupt runs: on a busy machine the shell may see that a condition holds only
/// when a short run has ended by itself. `until_interrupted COMMAND` repeats the command, each time
/// with the results from before, until the `status` that it sets is not that of such an `end`.
pub const AGAIN: &str = r#"until_interrupted() {
        rm -rf /run/kept && mkdir -p /run/results && cp -a /run/results /run/kept || exit
        for try in $(seq 10); do
            "$@"
            [ $status = ${end:-0} ] || break
            rm -rf /run/results && cp -a /run/kept /run/results || exit
        done
    }
    "#;

/// Runs of the command ($2), which compare nothing but the path between two namespaces: `signal
/// WHEN` interrupts one as soon as a condition holds. In the end one runs undisturbed.
pub const COMMAND: &str = r#"lab=$2 results=/run/results/link-lan
    begin() {
        exec "$lab" run link-lan --quick --configuration bare --rounds 3 --dir /run/results \
            >/run/out 2>&1
    }
    measured() { cat $results/journal.jsonl 2>/dev/null | grep -c '"configuration":"bare"'; }
    attempt() {
        : >/run/out
        begin & run=$!
        until eval "$1"; do kill -0 $run || break; sleep 0.02; done
        kill -INT $run; wait $run; status=$?
    }
    signal() {
        until_interrupted attempt "$1"
        echo "status $status, $(ls /run/netns | wc -l) namespaces, $(ls /run/vsnoop-lab)"
        tail -n 1 /run/out
    }
    signal 'ls -d /run/vsnoop-lab/*/ >/dev/null 2>&1'
    signal '[ "$(ls /run/netns | wc -l)" -ge 2 ]'
    signal 'grep -q "carriers run" /run/out'
    signal '[ "$(measured)" -ge 1 ]'
    before=$(grep -o '"stream_bytes":[0-9.]*' $results/journal.jsonl | head -n 1 | cut -c 16-24)
    (begin)
    echo "status $?, in all $(grep -c '"turn"' $results/results.json)"
    grep -q "\"stream_bytes\": $before" $results/results.json && echo kept
    grep -q cut_short $results/results.json || echo whole
    ls $results/journal.jsonl"#;
/// A run of the command on a disk that has room for its measurements and not for its report, and
/// another one when it has more.
pub const NO_ROOM: &str = r#"mkdir /run/disk && mount -t tmpfs -o size=24k disk /run/disk || exit
    run() {
        "$lab" run link-lan --quick --configuration bare --rounds 1 --dir /run/disk >/run/out 2>&1
        echo "status $?"
    }
    measured() { grep -o '"stream_bytes": *[0-9]*' $1 | tr -d ' ' | sort; }
    lab=$2 results=/run/disk/link-lan
    run
    tail -n 1 /run/out
    measured $results/journal.jsonl >/run/before
    mount -o remount,size=4m /run/disk
    run
    measured $results/results.json >/run/after
    wc -l </run/before
    cmp /run/before /run/after && echo the same"#;
/// A host with processes and pins of its own, for scripts that have a function `begin`, which runs
/// the command, and the directory `results`. `signal WHO NAME WHEN` sends a signal to the process
/// group, as a terminal does, or to the command alone, as soon as a condition holds.
pub const SIGNALS: &str = r#"mount -t bpf bpf /sys/fs/bpf && mkdir /run/tmp || exit
    lab=$2
    export TMPDIR=/run/tmp
    # ip mounts /run/netns on itself, for good.
    ip netns add none && ip netns del none && sort /proc/self/mounts >/run/mounts
    measured() { cat $results/journal.jsonl 2>/dev/null | grep -c '"turn"'; }
    running() {
        cat /proc/[0-9]*/stat 2>/dev/null | sed -n 's/^[0-9]* (\(.*\)) [^ZX] .*/\1/p' |
            grep -vx -e sh -e cat -e sed -e grep -e sleep
    }
    left() {
        # The helper ends by itself, soon after its last port has gone.
        for wait in $(seq 300); do [ -z "$(running)" ] && break; sleep 0.1; done
        group="vslab-$(stat -Lc %i /proc/self/ns/pid)-*"
        # The kernel's own pins are called *.debug.
        echo $(running) $(ls -A /run/netns) $(ls -A /run/tmp) $(ls /run/vsnoop-lab) \
            $(find /sys/fs/cgroup -name "$group") \
            $(find /sys/fs/bpf -mindepth 1 ! -name '*.debug') \
            $(sort /proc/self/mounts | comm -13 /run/mounts -)
    }
    run_lab() { exec setsid env --default-signal=INT,TERM "$lab" run "$@" >/run/out 2>&1; }
    attempt() {
        # What an earlier run said, and has left, says nothing of this one.
        left >/dev/null; : >/run/out
        begin & run=$!
        until eval "$3"; do kill -0 $run || break; sleep 0.02; done
        case $1 in group) kill -s $2 -- -$run ;; alone) kill -s $2 $run ;; esac
        wait $run; status=$?
    }
    tell() {
        echo "status $status, left: $(left)"
        tail -n 2 /run/out
    }
    signal() { until_interrupted attempt "$@"; tell; }
    "#;
/// A VM is measured. $3 is a congestion control that the host allows.
pub const MEASURING: &str = r#"control=$3 results=/run/results/hold
    begin() {
        run_lab hold --vms 1 --share quota:50 \
            --load 0.2 --path-rtt 5 --size 100000 --rounds 3 --configuration off \
            --configuration vsnoop --configuration host --congestion-control $control \
            --dir /run/results
    }
    signal group INT 'grep -q "booting a VM" /run/out && running | grep -q qemu'
    signal alone TERM 'grep -q "booting a VM" /run/out && running | grep -q qemu'
    signal group INT '[ -e /sys/fs/bpf/vsnoop ]'
    before=$(measured)
    signal group INT '[ "$(measured)" -gt $before ]'
    before=$(measured) first=$(grep -o '"acked_ms":[0-9.]*' $results/journal.jsonl | head -n 1)
    signal alone TERM '[ "$(measured)" -gt $before ]'
    [ "$(measured)" -gt $before ] && echo more
    # This one ends by itself.
    attempt group INT 'grep -q ^9/9 /run/out'; tell
    echo in all $(grep -c '"turn"' $results/results.json)
    tr -d ' ' <$results/results.json | grep -q "$first" && echo kept"#;
/// Senders behind a switch are measured, in four blocks of ten rounds for each configuration.
pub const INCAST: &str = r#"control=$3 results=/run/results/incast
    # Only the first network namespace has this setting: a file stands for it.
    mount -t tmpfs core /proc/sys/net/core && sort /proc/self/mounts >/run/mounts || exit
    echo 1000 >/proc/sys/net/core/netdev_max_backlog
    begin() {
        run_lab incast --part fixed-size --senders 4 --rate 100 --rounds 40 \
            --configuration off --configuration incast --congestion-control $control \
            --dir /run/results
    }
    signal group INT '[ "$(ls /run/netns | wc -l)" -ge 2 ]'
    signal alone TERM '[ -e /sys/fs/bpf/vsnoop ]'
    before=$(measured)
    signal group INT '[ "$(measured)" -gt $before ]'
    before=$(measured) first=$(grep -o '"goodput_mbps":[0-9]*[.][0-9]' $results/journal.jsonl | head -n 1)
    signal alone TERM '[ "$(measured)" -gt $before ]'
    [ "$(measured)" -gt $before ] && echo more
    before=$(measured)
    (begin)
    echo "status $?, left: $(left)"
    # A busy machine may have no time for all of them.
    [ "$(grep -c '"turn"' $results/results.json)" -gt $before ] && echo gone on with
    tr -d ' ' <$results/results.json | grep -q "$first" && echo kept
    grep -q cut_short $results/results.json || echo whole
    echo $(cat /proc/sys/net/core/netdev_max_backlog)"#;
/// All experiments, of which those fail at once that cannot measure a path alone: interrupted after
/// the first one that can, and again while the next one runs.
pub const ALL: &str = r#"end=1
    begin() { run_lab all --quick --rounds 1 --configuration bare --dir /run/results; }
    signal group INT 'grep -q "^== link-wan " /run/out'
    ls /run/results/link-lan
    signal group INT 'grep -q "^== link-wan " /run/out'
    grep '^going on' /run/out
    grep -c '^== link-lan ' /run/out"#;
/// An installer of packages that never ends, and a signal meanwhile.
pub const INSTALLING: &str = r#"mkdir /run/bin
    cat >/run/bin/mmdebstrap <<'END'
#!/bin/sh
for tree; do :; done
mkdir -p "$tree/etc"
while :; do echo >/run/beat; sleep 0.02; done
END
    chmod +x /run/bin/mmdebstrap
    PATH=/run/bin:$PATH "$1" --make /run & lab=$!
    until [ -e /run/beat ]; do kill -0 $lab || exit; sleep 0.02; done
    kill -INT $lab; wait $lab
    rm /run/beat; sleep 0.2
    [ -e /run/beat ] && echo the installer goes on
    echo systems: $(ls /run/systems)"#;
/// A host on which nothing is installed, and then no installer.
pub const BARE: &str = r#"mkdir /run/bin
    PATH=/run/bin "$2" run ping --dir /run/results 2>&1
    ln -s $(which unshare) /run/bin
    PATH=/run/bin "$1" --make /run"#;
