//! `vsnoop doctor`: is this host ready, which VMs would gain, and how much?

use anyhow::Result;
use serde::Serialize;
use vsnoop_host::config::Config;
use vsnoop_host::error::Unfit;
use vsnoop_host::failures::BypassedVmPort;
use vsnoop_host::far_end::Forwarded;
use vsnoop_host::size;
use vsnoop_host::system::kernel;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;

use crate::cli::{self, Cli};
use crate::doctor::hold::Budget;
use crate::doctor::{Check, Level, TapReport, configuration, host, taps};
use crate::error::{exit_code_of, unfit_error};
use crate::output::fold::fold_text;
use crate::output::watch::print_text;
use crate::output::{hint, hold, table};
use crate::service::ServiceStatus;

/// In the place of a value that cannot be read without privileges.
const NEEDS_ROOT: &str = "needs root";
const NEEDS_ROOT_NOTE: &str = "note: only root can read which processes hold the taps, how their \
                               vCPUs run, what is attached, and what is held";

#[derive(Serialize)]
struct DoctorDocument {
    ready: bool,
    host: Vec<Check>,
    /// Null if the configuration, or the host's memory, cannot be read.
    hold: Option<Budget>,
    ports: Vec<TapReport>,
}

/// The exit code is that of the first failed check, or of the first named port that is unfit.
pub fn run(cli: &Cli, arguments: &cli::Doctor) -> Result<u8> {
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let config = Config::read(cli.config.as_deref());
    let mut host = host::check_host(&config, &netns)?;
    let service = ServiceStatus::of_host();
    host.extend(configuration::of_service(service.config_file(), cli.config.as_deref()));
    let mut ports = taps::examine_taps(&arguments.ports, &netns, arguments.measure)?;
    let budget = config.ok().map(|config| Budget::of_host(&config, &netns)).transpose()?;
    let mut hold = budget.flatten();
    if let Some(budget) = &mut hold {
        taps::recommend_holds(&mut ports, budget);
    }
    let ready = host.iter().all(|check| check.level != Level::Fail);
    let document = DoctorDocument { ready, host, hold, ports };
    if cli.json {
        print_text(&serde_json::to_string(&document)?)?;
    } else {
        print_text(&fold_text(&hint::in_netns(
            &render_text(&document, &netns),
            cli.netns.as_deref(),
        )))?;
    }
    let failed = document.host.iter().find(|check| check.level == Level::Fail);
    if let Some(check) = failed {
        return Err(unfit_error(check.unfit, format!("this host is not ready: {}", check.detail)));
    }
    let unfit_port = document.ports.iter().find(|port| port.refused.is_some());
    Ok(match unfit_port {
        Some(_) if !arguments.ports.is_empty() => exit_code_of(Unfit::Qdisc),
        _ => 0,
    })
}

fn render_text(document: &DoctorDocument, netns: &Netns) -> String {
    let mut checks = table::new(&["host", "", ""]);
    for check in &document.host {
        checks.add_row([check.name.to_owned(), check.level.as_text().into(), check.detail.clone()]);
    }
    let mut parts = vec![table::render_table(&checks)];
    if document.ports.is_empty() {
        parts.push(format!(
            "no tap in the network namespace {}; taps of pods are in theirs: --netns",
            netns.label()
        ));
        return parts.join("\n\n");
    }
    let is_privileged = kernel::missing_privileges().is_empty();
    parts.extend(port_texts(&document.ports, is_privileged));
    if !is_privileged {
        parts.push(NEEDS_ROOT_NOTE.to_owned());
    }
    parts.extend(held_text(&document.ports));
    if let Some(budget) = &document.hold {
        parts.extend(hold_text(&document.ports, budget));
    }
    let takes_none =
        |port: &&TapReport| port.process.is_some() && port.segmentation_offload == Some(false);
    parts.extend(document.ports.iter().filter(takes_none).map(|port| {
        format!(
            "note: port {}: the VM's device takes no super-packets; those that reach the host go \
             through the hold, from which the engine hands them over in segments: that costs CPU time \
             (virtio-net: guest_tso4 and guest_tso6 avoid it)",
            port.port
        )
    }));
    for port in &document.ports {
        parts.extend(port.bypassed_vm_ports.iter().map(|left| bypassed_text(&port.port, left)));
    }
    parts.extend(document.ports.iter().filter_map(forwarded_text));
    parts.extend(document.ports.iter().filter_map(gain_text));
    parts.extend(
        document
            .ports
            .iter()
            .filter_map(|port| port.refused.clone())
            .map(|why| format!("refused: {why}")),
    );
    parts.join("\n\n")
}

/// The devices of the ports, and their VMs. Without privileges what is not known says so.
fn port_texts(ports: &[TapReport], is_privileged: bool) -> [String; 2] {
    let or_root = |text: String| match text.as_str() {
        "-" if !is_privileged => NEEDS_ROOT.to_owned(),
        _ => text,
    };
    let mut devices =
        table::new(&["port", "qdisc", ">ring", ">queues", "offloads", "process", "attached"]);
    let mut vms = table::new(&["port", ">vCPUs", ">run", ">wait", "quota", "verdict"]);
    for port in ports {
        devices.add_row([
            port.port.clone(),
            port.qdisc.clone(),
            units::count(port.ring_frames.into()),
            units::count(port.queues.into()),
            port.offloads_text().into(),
            or_root(port.process_text()),
            or_root(port.attached.unwrap_or("-").to_owned()),
        ]);
        let share = |share: Option<f64>| or_root(share.map_or("-".into(), units::percent));
        let vcpus = match port.vcpus.len() {
            0 => "-".into(),
            count => units::count(count as u64),
        };
        vms.add_row([
            port.port.clone(),
            or_root(vcpus),
            share(port.ran_share),
            share(port.waited_share),
            or_root(port.quota_text()),
            port.verdict.clone(),
        ]);
    }
    [table::render_table(&devices), table::render_table(&vms)]
}

/// Bytes that each VM's port holds now, and its bound; `None` if no port has a hold.
fn held_text(ports: &[TapReport]) -> Option<String> {
    let mut rows = table::new(&["port", "vm", ">held now", ">connections", ">memory", ">at most"]);
    for (port, held) in ports.iter().filter_map(|port| Some((port, port.held.as_ref()?))) {
        rows.add_row([
            port.port.clone(),
            port.process_text(),
            units::bytes(held.held_bytes),
            units::count(held.held_flows),
            units::bytes(held.memory_bytes),
            units::bytes(held.size_bytes),
        ]);
    }
    let holds: Vec<_> = ports.iter().filter_map(|port| port.held.as_ref()).collect();
    let table = (!holds.is_empty()).then(|| table::render_table(&rows))?;
    Some([Some(table), hold::sum_text(&holds)].into_iter().flatten().collect::<Vec<_>>().join("\n"))
}

fn bypassed_text(port: &str, left: &BypassedVmPort) -> String {
    format!(
        "note: port {port}: connections to port {} of the VM are not acknowledged early for another {}: {} \
         failed there (vsnoop stats {port} says of what)",
        left.vm_port,
        units::duration(left.remaining_ns),
        units::plural(left.failures.into(), "connection")
    )
}

/// Which direction would gain, and how much at most; `None` if the VM would not.
fn gain_text(port: &TapReport) -> Option<String> {
    let (name, gain) = (&port.port, port.gain?);
    port.would_gain.filter(|would_gain| *would_gain)?;
    Some(format!(
        "note: port {name}: its VM has received {} and sent {} meanwhile; transfers that begin may \
         be over sooner, one of 100 KB by {}, of 1 MB by {} at most (the delay seen, once for each \
         round of slow start): what it receives by `vsnoop attach {name}`, what it sends by \
         `--downloads on`",
        units::bytes(port.received_bytes),
        units::bytes(port.sent_bytes),
        units::duration(gain.of_100_kb_ns),
        units::duration(gain.of_1_mb_ns),
    ))
}

/// Says how much the VM forwards, the consequence, and the remedy; `None` if it forwards nothing.
fn forwarded_text(port: &TapReport) -> Option<String> {
    let seen @ Forwarded { connections, neighbours, .. } = port.forwarded?;
    let name = &port.port;
    let forwards = (connections > 0).then(|| {
        let way_out = if connections == port.flows {
            format!("`vsnoop detach {name}` loses nothing")
        } else {
            "nothing is to be done for a router, firewall or VPN gateway".to_owned()
        };
        format!(
            "note: port {name}: the VM forwards {} of {} on record: {}. They are left to it: what they send              is acknowledged as without vsnoop, and gains nothing. {way_out}; a VM that forwards nothing              has a program that sets a small TTL, or is slow with CPU enough (`vsnoop flows {name}              --json`)",
            units::count(connections),
            units::plural(port.flows, "connection"),
            seen.signs(),
        )
    });
    let beside = (neighbours > 0).then(|| {
        format!(
            "note: port {name}: {} one hop behind the VM, as containers in it do: acknowledged early only              while the VM waits for a CPU",
            match neighbours {
                1 => "1 connection ends".to_owned(),
                count => format!("{} connections end", units::count(count)),
            }
        )
    });
    let texts: Vec<_> = forwards.into_iter().chain(beside).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Recommended holds; `None` if no VM was late.
fn hold_text(ports: &[TapReport], budget: &Budget) -> Option<String> {
    let mut rows = table::new(&["port", ">hold", ">delay seen", "which is", ">round trip"]);
    let mut is_any = false;
    for (port, hold) in ports.iter().filter_map(|port| Some((port, port.hold?))) {
        is_any = true;
        let size = match port.held.as_ref().map(|held| held.size_bytes) {
            None => units::bytes(hold.size_bytes),
            Some(has) => format!("{} (has {})", units::bytes(hold.size_bytes), units::bytes(has)),
        };
        rows.add_row([
            port.port.clone(),
            size,
            units::duration(hold.delay.delay_ns),
            hold.delay.delay_from.as_text().to_owned(),
            hold.round_trip_ns.map_or("-".into(), units::duration),
        ]);
    }
    let bandwidth = format!("{} Gb/s", budget.bandwidth_bits as f64 / 1e9);
    let bandwidth = match &budget.bandwidth_of {
        Some(name) => format!("{bandwidth}, of {name}"),
        None => format!("{bandwidth}, assumed"),
    };
    let free = budget.total_bytes.saturating_sub(budget.taken_bytes);
    let comparison = if budget.needed_bytes > free { "more than" } else { "within" };
    let larger: Vec<_> = ports.iter().filter_map(larger_hold).collect();
    is_any.then(|| {
        let text = format!(
            "{}\na hold needs bandwidth ({bandwidth}) x (2 x delay + round trip), as a power of two; new ones \
             for these VMs could take {}, {comparison} the {} that are left of {} for all holds of this host \
             ({}){}",
            table::render_table(&rows),
            units::bytes(budget.needed_bytes),
            units::bytes(free),
            units::bytes(budget.total_bytes),
            budget.total_from,
            budget.default_text()
        );
        [vec![text], larger].concat().join("\n")
    })
}

/// The command that gives an attached port the recommended hold; `None` if it has as much.
fn larger_hold(port: &TapReport) -> Option<String> {
    let (wanted, has) = (port.hold?.size_bytes, port.held.as_ref()?.size_bytes);
    let (name, size) = (&port.port, size::render_size(wanted));
    (has < wanted).then(|| {
        format!(
            "port {name}: `vsnoop set {name} --hold {size}` gives it the recommended hold (of a port of the \
             service: `hold` in its [[port]])"
        )
    })
}

#[cfg(test)]
mod tests {
    use vsnoop_host::holds::{EngineState, PortHold};

    use crate::doctor::hold::{Delay, Source};

    use super::*;
    use crate::longest;
    use crate::output::gain::Gain;

    fn budget() -> Budget {
        Budget {
            bandwidth_bits: 1_000_000_000,
            bandwidth_of: Some("eth0".into()),
            needed_bytes: 0,
            total_bytes: 20 << 20,
            total_from: "hold.total in /f.toml".into(),
            taken_bytes: 0,
            default_bytes: Some(4 << 20),
            vms: 5,
            memory_bytes: 1 << 30,
        }
    }

    #[test]
    fn the_memory_for_holds_is_compared_with_what_is_left() {
        let delay = Delay { delay_ns: 60_000_000, delay_from: Source::VcpuWait };
        let mut ports =
            [TapReport { port: "tap0".into(), seen: Some(delay), ..TapReport::default() }];
        let mut enough = budget();
        taps::recommend_holds(&mut ports, &mut enough);
        let text = hold_text(&ports, &enough).unwrap();
        for word in ["tap0", "16 MiB", "60.0 ms", "1 Gb/s, of eth0", "within the 20 MiB", "/f.toml"]
        {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
        let mut scarce = Budget { taken_bytes: 8 << 20, ..budget() };
        taps::recommend_holds(&mut ports, &mut scarce);
        assert!(hold_text(&ports, &scarce).unwrap().contains("more than the 12 MiB"), "{text}");
        // It has a hold: nothing is recommended.
        ports[0].held = Some(held(1 << 20, 0));
        let mut has = budget();
        taps::recommend_holds(&mut ports, &mut has);
        assert_eq!(has.needed_bytes, 0);
        let text = hold_text(&ports, &has).unwrap();
        assert!(text.contains("16 MiB (has 1 MiB)"), "{text}");
        assert!(text.contains("`vsnoop set tap0 --hold 16M`"), "{text}");
        ports[0].held = Some(held(32 << 20, 0));
        assert!(!hold_text(&ports, &has).unwrap().contains("vsnoop set"));
    }

    #[test]
    fn who_would_gain_is_said_with_the_direction_and_how_much() {
        let late = TapReport {
            port: "tap0".into(),
            would_gain: Some(true),
            received_bytes: 1 << 20,
            sent_bytes: 3 << 20,
            gain: Some(Gain::from_delay(80_000_000)),
            ..TapReport::default()
        };
        let text = gain_text(&late).unwrap();
        for word in ["received 1 MiB", "sent 3 MiB", "160 ms", "480 ms", "`--downloads on`"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
        assert_eq!(gain_text(&TapReport { would_gain: Some(false), ..late }), None);
    }

    #[test]
    fn what_is_held_is_said_of_each_vm_and_in_all() {
        let report = |port: &str, vm: &str, hold: PortHold| TapReport {
            port: port.into(),
            pid: Some(77),
            process: Some("qemu".into()),
            vm: Some(vm.into()),
            held: Some(hold),
            ..TapReport::default()
        };
        assert_eq!(held_text(&[TapReport::default()]), None);
        let one = report("tap0", "web", held(1 << 20, 1500));
        let text = held_text(std::slice::from_ref(&one)).unwrap();
        for word in ["tap0", "77 web", "1.46 KiB", "266 KiB", "1 MiB"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
        assert!(!text.contains("in all"), "{text}");
        let text = held_text(&[one, report("tap1", "db", held(3 << 20, 0))]).unwrap();
        for word in ["77 web", "77 db", "3 MiB", "held in all: 8 KiB of at most 4 MiB"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    fn held(size_bytes: u64, held_bytes: u64) -> PortHold {
        PortHold {
            size_bytes,
            used_bytes: 4096,
            memory_bytes: 266 << 10,
            flows: 1,
            held_flows: 1,
            held_bytes,
            oldest_ns: None,
            handovers: 0,
            resends: 0,
            resent_bytes: 0,
            engine: EngineState::Alive,
            engine_silent_ns: Some(0),
        }
    }

    #[test]
    fn what_the_doctor_says_stays_narrow() {
        let delay = Delay { delay_ns: u64::MAX, delay_from: Source::VcpuWait };
        let port = TapReport {
            port: longest::INTERFACE.into(),
            qdisc: "fq_codel 8001: (configured)".into(),
            refused: Some("a long reason, ".repeat(20)),
            ring_frames: u32::MAX,
            queues: u32::MAX,
            segmentation_offload: Some(false),
            pid: Some(i32::MAX),
            process: Some("qemu-system-x86_64".into()),
            vm: Some(longest::NAME.into()),
            attached: Some("observing"),
            verdict: "would gain: held back by its quota 100 % of the time, but refused".into(),
            held: Some(longest::hold()),
            seen: Some(delay),
            bypassed_vm_ports: vec![BypassedVmPort {
                vm_port: u16::MAX,
                failures: 2,
                remaining_ns: u64::MAX,
            }],
            forwarded: Some(Forwarded {
                connections: u64::MAX,
                path: u64::MAX,
                mtu: u64::MAX,
                loss: u64::MAX,
                late: u64::MAX,
                neighbours: u64::MAX,
            }),
            flows: u64::MAX,
            round_trip_ns: Some(u64::MAX),
            ..TapReport::default()
        };
        let mut ports = vec![port];
        let mut budget = budget();
        taps::recommend_holds(&mut ports, &mut budget);
        let host = ["configuration", "incast control"].map(|name| Check {
            name,
            level: Level::Warn,
            detail: "uplink eth0 has lost its hook: `vsnoop incast set`; ".repeat(9),
            unfit: Unfit::Other,
        });
        let document = DoctorDocument { ready: true, host: host.into(), hold: Some(budget), ports };
        let netns = Netns::chosen(None).expect("the network namespace of the test");
        longest::assert_narrow(&fold_text(&render_text(&document, &netns)));
    }

    #[test]
    fn without_root_it_is_said_what_needs_root() {
        let port = TapReport { port: "tap0".into(), ..TapReport::default() };
        let texts = port_texts(std::slice::from_ref(&port), false);
        assert!(texts.iter().all(|text| text.contains(NEEDS_ROOT)), "{texts:?}");
        let texts = port_texts(&[port], true);
        assert!(!texts.iter().any(|text| text.contains(NEEDS_ROOT)), "{texts:?}");
    }

    #[test]
    fn ports_of_a_vm_that_are_left_alone_are_told_with_the_reason() {
        let left = BypassedVmPort { vm_port: 443, failures: 2, remaining_ns: 240_000_000_000 };
        let text = bypassed_text("tap0", &left);
        for word in ["tap0", "port 443", "2 connections", "4 min"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    #[test]
    fn a_port_that_forwards_is_told_with_the_signs_and_what_to_do() {
        let text_for = |forwarded, flows| {
            forwarded_text(&TapReport {
                port: "tap0".into(),
                forwarded: Some(forwarded),
                flows,
                ..TapReport::default()
            })
        };
        assert_eq!(text_for(Forwarded::default(), 7), None);
        let seen = Forwarded { connections: 3, path: 2, late: 1, ..Forwarded::default() };
        let text = text_for(seen, 7).unwrap();
        for word in ["tap0", "3 of 7 connections", "2 by the TTL", "1 by late ACKs", "router"] {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
        assert!(text_for(seen, 3).unwrap().contains("`vsnoop detach tap0`"));
        let text = text_for(Forwarded { neighbours: 1, ..Forwarded::default() }, 7).unwrap();
        assert!(text.contains("1 connection ends one hop behind the VM"), "{text}");
    }

    #[test]
    fn nothing_is_recommended_for_vms_that_were_not_late() {
        let mut ports = [TapReport::default()];
        let mut budget = budget();
        taps::recommend_holds(&mut ports, &mut budget);
        assert_eq!((hold_text(&ports, &budget), budget.needed_bytes), (None, 0));
    }
}
