//! Each kind of bad input has one clear line, its own exit code, and leaves the system as it was.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;

use crate::hold::ConfigFile;
use crate::sandbox::{PORT, TapHost, foreign_program, vsnoop, vsnoop_under, xdp_program};
use crate::surroundings::{add_filter, with_filter};
use crate::{skipped, trial};

const UNMOUNT: &str = "while umount /sys/fs/bpf 2>/dev/null; do :; done;";

pub fn trials() -> Vec<Trial> {
    let mut trials = trials![
        a_port_that_does_not_exist_is_refused,
        a_port_in_another_network_namespace_is_not_found_without_its_name,
        an_attached_port_is_refused_and_stays_attached,
        a_port_that_is_not_attached_cannot_be_detached,
        a_configured_qdisc_is_refused_and_kept,
        a_qdisc_that_somebody_added_is_configured_even_if_it_is_like_the_default,
        another_tcx_program_on_the_egress_is_refused,
        an_xdp_program_is_refused_with_the_reason,
        no_privilege_is_said_at_once,
        a_bpffs_that_is_not_mounted_is_named_with_the_command_that_mounts_it,
        a_bpffs_that_only_the_command_cannot_see_is_not_to_be_mounted,
        a_kernel_that_has_tcx_is_not_refused_for_its_version,
        a_kernel_without_btf_is_refused,
        more_flows_than_a_host_may_have_are_refused,
        observing_is_refused_where_other_ports_have_all_the_flows,
        wrong_arguments_are_usage_errors,
        a_wrong_configuration_is_said_with_line_and_column_and_nothing_is_changed,
        a_failure_before_the_first_port_is_a_json_document,
        a_way_out_leads_into_the_namespace_of_the_port,
        nothing_is_repeated_every_0_seconds,
        a_negative_time_is_refused_for_what_it_is,
        a_port_that_is_named_twice_is_meant_once,
        of_several_ports_each_is_reported_and_the_good_ones_are_attached,
    ];
    trials.extend(other_devices());
    trials.extend(trials![a_tc_filter_on_the_egress_is_refused].into_iter().map(with_filter));
    trials
}

fn a_port_that_does_not_exist_is_refused() -> Result<()> {
    refused(TapHost::new("none")?, &["attach", "nowhere"], 31, &["nowhere", "ip link"])
}

fn a_port_in_another_network_namespace_is_not_found_without_its_name() -> Result<()> {
    let host = TapHost::new("else")?;
    host.vsnoop(["attach", PORT])?.ok()?;
    vsnoop(["detach", PORT])?.failed(39, &[PORT, "--netns", host.netns.name()])?;
    host.vsnoop(["detach", PORT])?.ok()?;
    vsnoop(["detach", PORT])?.failed(31, &[PORT])
}

fn an_attached_port_is_refused_and_stays_attached() -> Result<()> {
    let host = TapHost::new("twice")?;
    let before = host.state()?;
    host.vsnoop(["attach", PORT])?.ok()?;
    let attached = host.state()?;
    host.vsnoop(["attach", PORT])?.failed(33, &[PORT, "detach vscli-tap0`"])?;
    host.vsnoop(["observe", PORT, "--for", "1"])?.failed(33, &[PORT])?;
    ensure!(host.state()? == attached, "the attachment changed");
    host.vsnoop(["detach", PORT])?.ok()?;
    ensure!(host.state()? == before, "something was left: {:?}", host.state()?);
    Ok(())
}

fn a_port_that_is_not_attached_cannot_be_detached() -> Result<()> {
    let host = TapHost::new("idle")?;
    for command in ["detach", "pause", "resume", "stats", "flows", "status"] {
        host.vsnoop([command, PORT])?.failed(39, &[PORT, "status`"])?;
    }
    Ok(())
}

fn a_configured_qdisc_is_refused_and_kept() -> Result<()> {
    let host = TapHost::new("tbf")?;
    host.tc(&format!("qdisc add dev {PORT} root tbf rate 1mbit burst 10k latency 50ms"))?;
    refused(host, &["attach", PORT], 34, &[PORT, "tbf", "tc qdisc del"])
}

fn a_qdisc_that_somebody_added_is_configured_even_if_it_is_like_the_default() -> Result<()> {
    let host = TapHost::new("pfifo")?;
    host.tc(&format!("qdisc add dev {PORT} root pfifo_fast"))?;
    refused(host, &["attach", PORT], 34, &[PORT, "pfifo_fast"])
}

fn another_tcx_program_on_the_egress_is_refused() -> Result<()> {
    let host = TapHost::new("tcx")?;
    let _program = host.netns.run(|| foreign_program(PORT))?;
    refused(host, &["attach", PORT], 34, &[PORT, "tcx program"])
}

fn an_xdp_program_is_refused_with_the_reason() -> Result<()> {
    let host = TapHost::new("xdp")?;
    let _program = host.netns.run(|| xdp_program(PORT))?;
    let doctor = host.vsnoop(["doctor", PORT])?;
    let says = doctor.unfolded();
    ensure!(doctor.code == 34 && says.contains("XDP program pass"), "{}: {says}", doctor.code);
    refused(host, &["attach", PORT], 34, &[PORT, "XDP program pass", "xdpgeneric off"])
}

/// Commands that need privileges and a BPF file system.
fn for_privileged(netns: &str) -> Vec<Vec<&str>> {
    let inside = [&["attach", PORT][..], &["detach", PORT], &["status"]];
    let inside = inside.map(|command| [&["--netns", netns], command].concat());
    inside.into_iter().chain([vec!["off", "--all"]]).collect()
}

fn no_privilege_is_said_at_once() -> Result<()> {
    let host = TapHost::new("caps")?;
    let before = host.state()?;
    let netns = host.netns.name().to_owned();
    let way = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    for arguments in for_privileged(&netns) {
        vsnoop_under(&way, &arguments)?.failed(36, &["CAP_NET_ADMIN", "root"])?;
    }
    ensure!(host.state()? == before, "something changed");
    Ok(())
}

/// In a process id namespace of its own, so that the host is what the test makes it.
fn a_bpffs_that_is_not_mounted_is_named_with_the_command_that_mounts_it() -> Result<()> {
    let script = format!("{UNMOUNT} exec \"$@\"");
    without_bpffs("bpffs", &script, "mount -t bpf -o mode=0700 bpf /sys/fs/bpf")
}

/// `ip netns exec` mounts /sys anew.
fn a_bpffs_that_only_the_command_cannot_see_is_not_to_be_mounted() -> Result<()> {
    let script = format!("unshare --mount sh -c '{UNMOUNT} exec \"$@\"' sh \"$@\"; exit $?");
    without_bpffs("unseen", &script, "with --netns NAME")
}

fn without_bpffs(role: &str, script: &str, remedy: &str) -> Result<()> {
    let host = TapHost::new(role)?;
    let before = host.state()?;
    let way = ["unshare", "--mount-proc", "--pid", "--fork", "sh", "-c", script, "sh"];
    let netns = host.netns.name().to_owned();
    for arguments in for_privileged(&netns) {
        vsnoop_under(&way, &arguments)?.failed(37, &["/sys/fs/bpf", remedy])?;
    }
    vsnoop_under(&way, &["doctor"])?.failed(37, &[remedy])?;
    ensure!(host.state()? == before, "something changed");
    Ok(())
}

/// The kernel then reports 2.6 as its release (personality UNAME26).
fn a_kernel_that_has_tcx_is_not_refused_for_its_version() -> Result<()> {
    let host = TapHost::new("old")?;
    let before = host.state()?;
    let netns = host.netns.name().to_owned();
    for command in [&["attach", PORT][..], &["detach", PORT], &["doctor"]] {
        let arguments = [&["--netns", &netns], command].concat();
        vsnoop_under(&["setarch", "--uname-2.6"], &arguments)?.ok()?;
    }
    ensure!(host.state()? == before, "something was left");
    Ok(())
}

fn a_kernel_without_btf_is_refused() -> Result<()> {
    let script = "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"";
    let way = ["unshare", "--mount", "sh", "-c", script, "sh"];
    without_feature("btf", &way, &["/sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF"])
}

fn more_flows_than_a_host_may_have_are_refused() -> Result<()> {
    let host = TapHost::new("many")?;
    refused(host, &["attach", PORT, "--max-flows", "1048577"], 3, &[PORT, "--max-flows"])
}

fn observing_is_refused_where_other_ports_have_all_the_flows() -> Result<()> {
    let full = TapHost::new("full")?;
    let host = TapHost::new("more")?;
    let before = host.state()?;
    full.vsnoop(["attach", PORT, "--max-flows", "1048576"])?.ok()?;
    let refused = host.vsnoop(["observe", PORT, "--for", "0.1"])?;
    let attached = host.state()?;
    full.vsnoop(["detach", PORT])?.ok()?;
    refused.failed(3, &[PORT, "1048576", "detach a port"])?;
    ensure!(attached.programs == before.programs, "something was attached");
    host.vsnoop(["observe", PORT, "--for", "0.1"])?.ok().map(drop)
}

fn wrong_arguments_are_usage_errors() -> Result<()> {
    let host = TapHost::new("usage")?;
    let before = host.state()?;
    for arguments in [
        &["attach"][..],
        &["attach", PORT, "--allow-port", "80", "--deny-port", "80"],
        &["attach", PORT, "--allow", "10.0.0.0/40"],
        &["attach", PORT, "--buf-size", "2G"],
        &["detach", PORT, "--timeout", "soon"],
        &["off"],
        &["fly"],
    ] {
        let ran = host.vsnoop(arguments)?;
        ensure!(ran.code == 2, "{arguments:?}: exit code {}: {}", ran.code, ran.err);
    }
    vsnoop(["--netns", "/proc/self/status", "attach", PORT])?
        .failed(2, &["/proc/self/status", "not a network namespace"])?;
    vsnoop(["--netns", "nowhere", "attach", PORT])?.failed(3, &["nowhere", "ip netns"])?;
    ensure!(host.state()? == before, "something changed");
    Ok(())
}

fn a_wrong_configuration_is_said_with_line_and_column_and_nothing_is_changed() -> Result<()> {
    let host = TapHost::new("check")?;
    let before = host.state()?;
    let file = ConfigFile::new(&host, "[[port]]\nname = \"web\"\ninterface = \"vnet*\"\n")?;
    let good = vsnoop(["check", &file.path])?.ok()?;
    ensure!(good.out.contains("1 table [[port]]: web"), "{}", good.out);
    let json = vsnoop(["--config", &file.path, "check", "--json"])?.json()?;
    ensure!(json["tables"][0]["name"] == "web" && json["tables"][0]["line"] == 1, "{json}");
    file.write("[[port]]\nmode = \"fast\"\n")?;
    let place = format!("{}, line 2, column 8: port.mode = \"fast\"", file.path);
    vsnoop(["check", &file.path])?.failed(2, &[&place, "accelerate or observe"])?;
    vsnoop(["check", "/nonexistent.toml"])?.failed(2, &["/nonexistent.toml", "cannot be read"])?;
    ensure!(host.state()? == before, "something changed");
    Ok(())
}

fn a_failure_before_the_first_port_is_a_json_document() -> Result<()> {
    let nowhere = vsnoop(["--netns", "nowhere", "attach", PORT, "--json"])?;
    ensure!(nowhere.failure()?["kind"] == "environment", "{nowhere:?}");
    for (arguments, words) in [
        (&["attach", "--json"][..], "were not provided: <PORT>..."),
        (&["--json", "fly"], "'fly'"),
        (&["attach", PORT, "--json", "--allow-port", "80", "--deny-port", "80"], "number 80"),
        (
            &["set", PORT, "--json"],
            "<--hold <SIZE>|--ahead <SIZE>|--downloads <on|off>|--congestion-control <NAME>>",
        ),
        (&["completions", "tcsh", "--json"], "[possible values: bash,"),
        (&["attach", PORT, "--json", "--hld"], "'--hld' found"),
    ] {
        let ran = vsnoop(arguments)?;
        let error = ran.failure()?;
        ensure!(error["kind"] == "usage", "{arguments:?}: {ran:?}");
        let message = error["message"].as_str().context("no message")?;
        ensure!(message.contains(words) && !message.contains("error: "), "{arguments:?}: {error}");
    }
    let host = TapHost::new("json")?;
    let idle = host.vsnoop(["status", PORT, "--json"])?;
    ensure!(idle.failure()?["kind"] == "not_attached", "{idle:?}");
    Ok(())
}

fn a_way_out_leads_into_the_namespace_of_the_port() -> Result<()> {
    let host = TapHost::new("hint")?;
    let name = host.netns.name();
    host.vsnoop(["attach", PORT])?.ok()?;
    let detach = format!("`vsnoop --netns {name} detach {PORT}`");
    host.vsnoop(["attach", PORT])?.failed(33, &[&detach])?;
    let json = host.vsnoop(["attach", PORT, "--json"])?;
    ensure!(json.out.contains(&detach), "{json:?}");
    host.tc(&format!("qdisc replace dev {PORT} root pfifo_fast"))?;
    let tc = format!("`ip netns exec {name} tc qdisc replace dev {PORT} root noqueue`");
    let status = vsnoop(["status"])?.ok()?.out;
    ensure!(status.contains(&tc), "{tc} is not in: {status}");
    host.vsnoop(["detach", PORT])?.ok()?;
    host.vsnoop(["detach", PORT])?.failed(39, &[&format!("`vsnoop --netns {name} status`")])
}

fn nothing_is_repeated_every_0_seconds() -> Result<()> {
    for command in [&["status"][..], &["stats"], &["flows"], &["incast"], &["observe", "x"]] {
        let ran = vsnoop([command, &["--watch", "0"]].concat())?;
        ensure!(ran.code == 2 && ran.err.contains("more than 0"), "{ran:?}");
    }
    Ok(())
}

fn a_negative_time_is_refused_for_what_it_is() -> Result<()> {
    for arguments in [
        &["observe", "x", "--for", "-3"][..],
        &["observe", "x", "--watch", "-3"],
        &["detach", "x", "--timeout", "-3"],
        &["pause", "x", "--timeout", "-3"],
        &["doctor", "--measure", "-3"],
        &["top", "--for", "-3"],
        &["top", "--interval", "-3"],
        &["stats", "--watch", "-3"],
    ] {
        let ran = vsnoop(arguments)?;
        ensure!(ran.code == 2 && ran.err.contains("'-3'"), "{arguments:?}: {ran:?}");
        ensure!(ran.err.contains("give a number of seconds"), "{arguments:?}: {ran:?}");
        ensure!(!ran.err.contains("tip:"), "{arguments:?}: {ran:?}");
    }
    Ok(())
}

fn a_port_that_is_named_twice_is_meant_once() -> Result<()> {
    let host = TapHost::new("once")?;
    for command in ["attach", "pause", "resume", "status", "detach"] {
        let json = host.vsnoop([command, PORT, PORT, "--json"])?.json()?;
        let ports = json["ports"].as_array().context("no ports")?;
        ensure!(ports.len() == 1, "{command}: {json}");
    }
    host.vsnoop(["observe", PORT, PORT, "--for", "0.1"])?.ok().map(drop)
}

fn of_several_ports_each_is_reported_and_the_good_ones_are_attached() -> Result<()> {
    let host = TapHost::new("both")?;
    let before = host.state()?;
    host.vsnoop(["attach", "nowhere", PORT])?.failed(31, &["nowhere"])?;
    let status = host.vsnoop(["status", "--json"])?.json()?;
    ensure!(status["ports"][0]["port"] == PORT, "{status}");
    let ran = host.vsnoop(["detach", PORT, "nowhere", "--json"])?;
    ensure!(ran.code == 31, "exit code {}", ran.code);
    let json: serde_json::Value = serde_json::from_str(&ran.out)?;
    ensure!(json["ports"][0]["result"] == "detached", "{json}");
    ensure!(json["ports"][1]["error"]["kind"] == "no_such_port", "{json}");
    ensure!(host.state()? == before, "something was left");
    Ok(())
}

/// The command fails with this code and these words, and changes nothing.
fn refused(host: TapHost, arguments: &[&str], code: i32, words: &[&str]) -> Result<()> {
    let before = host.state()?;
    host.vsnoop(arguments)?.failed(code, words)?;
    ensure!(host.state()? == before, "changed: {before:?} to {:?}", host.state()?);
    Ok(())
}

/// On a kernel without a feature nothing is attached, and the doctor gives the reason.
fn without_feature(role: &str, way: &[&str], words: &[&str]) -> Result<()> {
    let host = TapHost::new(role)?;
    let before = host.state()?;
    let netns = host.netns.name().to_owned();
    for command in [&["attach", PORT][..], &["observe", PORT, "--for", "1"], &["doctor"]] {
        let arguments = [&["--netns", &netns], command].concat();
        vsnoop_under(way, &arguments)?.failed(35, words)?;
    }
    ensure!(host.state()? == before, "something changed");
    Ok(())
}

/// All kinds of devices that are not taps.
fn other_devices() -> impl Iterator<Item = Trial> {
    const DEVICES: [(&str, &str, &str, &[&str]); 6] = [
        ("veth", "link add vscli-x type veth peer name vscli-y", "vscli-x", &["veth"]),
        ("bridge", "link add vscli-x type bridge", "vscli-x", &["bridge", PORT]),
        ("tun", "tuntap add vscli-x mode tun", "vscli-x", &["tun without Ethernet"]),
        ("macvtap", "link add link vscli-tap0 name vscli-x type macvtap", "vscli-x", &["macvtap"]),
        ("dummy", "link add vscli-x type dummy", "vscli-x", &["dummy"]),
        ("loopback", "link set lo up", "lo", &["loopback"]),
    ];
    DEVICES.into_iter().map(|(kind, make, device, words)| {
        let name = format!("a_{kind}_is_refused_with_the_reason");
        let test = trial(&name, move || {
            let host = TapHost::new(kind)?;
            host.netns.ip(make)?;
            if kind == "bridge" {
                host.netns.add_port(device, PORT)?;
            }
            refused(host, &["attach", device], 32, &[&[device, "not a tap"], words].concat())
        });
        match TapHost::new("probe").and_then(|host| host.netns.ip(make).map(drop)) {
            Ok(()) => test,
            Err(_) => skipped(test, &format!("this kernel makes no {kind}")),
        }
    })
}

fn a_tc_filter_on_the_egress_is_refused() -> Result<()> {
    let host = TapHost::new("filter")?;
    add_filter(&host)?;
    refused(host, &["attach", PORT], 34, &[PORT, "tc filter", "tc filter del"])
}
