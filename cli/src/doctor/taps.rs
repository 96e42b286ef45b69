//! Reports on each tap and its VM: would early acknowledgement help?
//!
//! A VM gains if it waits: its vCPUs want to run and cannot, because others have the CPU or a quota
//! is exhausted. That share of the time is measured, over all taps at the same time.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;
use vsnoop_bpf::Port;
use vsnoop_host::error;
use vsnoop_host::failures::BypassedVmPort;
use vsnoop_host::far_end::Forwarded;
use vsnoop_host::holds::{Holds, PortHold};
use vsnoop_host::ports::Attached;
use vsnoop_host::system::holder::{self, Holder};
use vsnoop_host::system::netdev::{self, Device};
use vsnoop_host::system::netns::Netns;
use vsnoop_host::system::process;
use vsnoop_host::system::traffic::{self, Traffic};
use vsnoop_host::system::vcpu::{self, Shares, Vcpu};
use vsnoop_host::system::{foreign, kernel, offload, qdisc};
use vsnoop_host::units;

use super::hold::{Budget, Delay, Recommended, seen_of_acks, seen_of_vcpus};
use super::waits::Waits;
use crate::output::gain::Gain;
use crate::output::histogram::Histogram;

/// A VM that waits for less than this share of the time has little to gain.
const WORTH_IT: f64 = 0.05;
/// A VM that neither runs nor waits for more than this is idle.
const IDLE: f64 = 0.01;

/// Report on one tap.
#[derive(Debug, Default, Serialize)]
pub struct TapReport {
    pub port: String,
    pub ifindex: u32,
    pub up: bool,
    /// "noqueue", "pfifo_fast (default)", or "tbf 1: (configured)".
    pub qdisc: String,
    /// Reason why vsnoop would refuse it; null if it would not.
    pub refused: Option<String>,
    pub ring_frames: u32,
    pub queues: u32,
    pub vnet_hdr: bool,
    pub checksum_offload: Option<bool>,
    pub segmentation_offload: Option<bool>,
    pub pid: Option<i32>,
    pub process: Option<String>,
    /// The VM's name in the process's arguments; null without one.
    pub vm: Option<String>,
    pub vcpus: Vec<VcpuReport>,
    /// Shares of the measured time, 0 to 1; null without a VM.
    pub ran_share: Option<f64>,
    pub waited_share: Option<f64>,
    pub throttled_share: Option<f64>,
    /// Bytes that its VM has received and sent in the measured time.
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// How much sooner what it receives, or sends, may be over; null if the VM was not late.
    pub gain: Option<Gain>,
    /// "active", "paused", "observing"; null when not attached.
    pub attached: Option<&'static str>,
    pub would_gain: Option<bool>,
    pub verdict: String,
    /// Recommended hold; null if the VM was not late.
    pub hold: Option<Recommended>,
    /// The hold of an attached port as it is now; null without one.
    pub held: Option<PortHold>,
    #[serde(skip)]
    pub seen: Option<Delay>,
    /// VM ports whose new connections are left to the VM, because some failed.
    pub bypassed_vm_ports: Vec<BypassedVmPort>,
    /// Connections on record that the VM forwards; null when not attached.
    pub forwarded: Option<Forwarded>,
    /// All on record.
    #[serde(skip)]
    pub flows: u64,
    /// 90th percentile of handshakes, of an attached port.
    #[serde(skip)]
    pub round_trip_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct VcpuReport {
    pub tid: i32,
    pub name: String,
    pub policy: String,
    pub affinity: String,
    /// CPUs that its quota allows; null without a quota.
    pub quota_cpus: Option<f64>,
    pub quota_period_us: Option<u64>,
}

impl TapReport {
    pub fn offloads_text(&self) -> &'static str {
        match (self.checksum_offload, self.segmentation_offload) {
            (_, Some(true)) => "csum tso",
            (Some(true), _) => "csum",
            (Some(false), _) => "none",
            (None, _) => "-",
        }
    }

    pub fn process_text(&self) -> String {
        match (self.pid, self.vm.as_ref().or(self.process.as_ref())) {
            (Some(pid), Some(name)) => format!("{pid} {name}"),
            _ => "-".into(),
        }
    }

    pub fn quota_text(&self) -> String {
        let quota =
            self.vcpus.iter().find_map(|vcpu| Some((vcpu.quota_cpus?, vcpu.quota_period_us?)));
        quota.map_or("-".into(), |(cpus, period_us)| {
            format!("{:.0}/{:.0} ms", cpus * period_us as f64 / 1e3, period_us as f64 / 1e3)
        })
    }
}

/// Recommends holds, and adds them up in `budget`.
pub fn recommend_holds(ports: &mut [TapReport], budget: &mut Budget) {
    for port in ports {
        port.hold = port.seen.map(|delay| budget.recommend_hold(delay, port.round_trip_ns));
        if port.held.is_none() {
            budget.needed_bytes += port.hold.map_or(0, |hold| hold.size_bytes);
        }
    }
}

/// Examines the named ports, which must be taps, or all taps of the namespace, for `seconds`.
pub fn examine_taps(names: &[String], netns: &Netns, seconds: f64) -> Result<Vec<TapReport>> {
    let devices = netns.run(|| {
        if names.is_empty() {
            let devices = netdev::list()?;
            return Ok(devices.into_iter().filter(|device| device.tap.is_some()).collect());
        }
        names
            .iter()
            .map(|name| netdev::find_tap(name, netns.label()))
            .collect::<error::Result<Vec<_>>>()
    })?;
    let mut holders = holder::of_all_taps();
    let watched: Vec<_> = devices
        .into_iter()
        .map(|device| {
            let holder = holders.remove(&(device.name.clone(), netns.inode));
            let vcpus = vcpu_threads(holder.as_ref());
            (device, holder, vcpus)
        })
        .collect();
    let counted = || netns.run(|| Ok::<_, error::Error>(traffic::read()));
    let (start, earlier) = (Instant::now(), counted()?);
    let threads_of = |(_, holder, vcpus): &(Device, Option<Holder>, Vec<Vcpu>)| {
        let pid = holder.as_ref().map_or(0, |holder| holder.process.pid);
        vcpus.iter().map(|vcpu| (pid, vcpu.tid)).collect::<Vec<_>>()
    };
    let watched_threads: Vec<_> = watched.iter().flat_map(threads_of).collect();
    let waits = Waits::watch_threads(&watched_threads, seconds);
    let later = counted()?;
    let moved = |name: &str| {
        let of_port = |all: &HashMap<String, Traffic>| all.get(name).copied().unwrap_or_default();
        of_port(&later).since(of_port(&earlier))
    };
    watched
        .into_iter()
        .map(|(device, holder, before)| {
            let now = vcpu_threads(holder.as_ref());
            let shares = vcpu::shares(&before, &now, start.elapsed().as_nanos() as u64);
            let seen =
                seen_of_vcpus(&before, &now, &waits).filter(|_| shares.held_up() >= WORTH_IT);
            let Traffic { received, sent } = moved(&device.name);
            let report = netns.run(|| build_report(&device, holder, &now, shares, seen, netns))?;
            Ok(TapReport { received_bytes: received, sent_bytes: sent, ..report })
        })
        .collect()
}

fn vcpu_threads(holder: Option<&Holder>) -> Vec<Vcpu> {
    holder.map_or(Vec::new(), |holder| vcpu::of_process(holder.process.pid))
}

fn build_report(
    device: &Device,
    holder: Option<Holder>,
    vcpus: &[Vcpu],
    shares: Shares,
    seen: Option<Delay>,
    netns: &Netns,
) -> Result<TapReport> {
    let root = qdisc::root(device)?;
    let attached = kernel::require()
        .ok()
        .and_then(|()| Port::open(netns.inode, device.index).ok())
        .and_then(|port| Attached::from_port(port).ok());
    let stats = attached.as_ref().and_then(|attached| attached.port.stats().ok());
    let seen_by_hooks = stats.and_then(|stats| seen_of_acks(&Histogram::new(&stats.ack_delay_ns)));
    let flows = attached.as_ref().and_then(|attached| attached.port.flows().ok());
    let held = attached.as_ref().zip(flows.as_ref()).and_then(|(attached, flows)| {
        Holds::open(&attached.port).and_then(|holds| holds.port(&attached.port, flows)).ok()
    });
    let round_trip_ns = stats.and_then(|stats| Histogram::new(&stats.round_trip_ns).p90);
    let bypassed =
        attached.as_ref().and_then(|attached| BypassedVmPort::list_bypassed(&attached.port).ok());
    let attached = attached.map(|attached| attached.condition());
    let refused = if attached.is_some() { None } else { find_refusal(device, &root) };
    let offloads = offload::read(&device.name).ok();
    let has_vm = !vcpus.is_empty();
    let is_privileged = kernel::missing_privileges().is_empty();
    let share = |share: f64| has_vm.then_some(share);
    let tap = device.tap.unwrap_or_default();
    let verdict = reach_verdict(holder.as_ref(), has_vm, shares, refused.is_some(), is_privileged);
    let process = holder.map(|holder| holder.process);
    Ok(TapReport {
        port: device.name.clone(),
        ifindex: device.index,
        up: device.up,
        qdisc: match &root {
            qdisc::Root::NoQueue => "noqueue".into(),
            qdisc::Root::Default(kind) => format!("{kind} (default)"),
            qdisc::Root::Configured(kind, handle) => format!("{kind} {handle} (configured)"),
        },
        ring_frames: device.ring_frames,
        queues: tap.queues,
        vnet_hdr: tap.vnet_hdr,
        checksum_offload: offloads.map(|offloads| offloads.checksum),
        segmentation_offload: offloads.map(|offloads| offloads.tso),
        verdict,
        would_gain: has_vm.then_some(refused.is_none() && shares.held_up() >= WORTH_IT),
        refused,
        pid: process.as_ref().map(|process| process.pid),
        vm: process.as_ref().and_then(|process| process::vm_name(process.pid)),
        process: process.map(|process| process.name),
        vcpus: vcpus.iter().map(vcpu_report).collect(),
        ran_share: share(shares.ran),
        waited_share: share(shares.waited),
        throttled_share: share(shares.throttled),
        attached,
        hold: None,
        held: held.flatten(),
        gain: seen_by_hooks.or(seen).map(|delay| Gain::from_delay(delay.delay_ns)),
        received_bytes: 0,
        sent_bytes: 0,
        seen: seen_by_hooks.or(seen),
        bypassed_vm_ports: bypassed.unwrap_or_default(),
        forwarded: flows.as_deref().map(Forwarded::find_forwarded),
        flows: flows.map_or(0, |flows| flows.len() as u64),
        round_trip_ns,
    })
}

fn find_refusal(device: &Device, root: &qdisc::Root) -> Option<String> {
    let refused = qdisc::refuse_configured(device, root).err();
    let refused = refused.or_else(|| {
        if kernel::missing_privileges().is_empty() { foreign::refuse(device).err() } else { None }
    });
    refused.map(|error| error.to_string())
}

fn vcpu_report(vcpu: &Vcpu) -> VcpuReport {
    VcpuReport {
        tid: vcpu.tid,
        name: vcpu.name.clone(),
        policy: vcpu.policy.clone(),
        affinity: vcpu.affinity.clone(),
        quota_cpus: vcpu.quota.map(|quota| quota.cpus),
        quota_period_us: vcpu.quota.map(|quota| quota.period_us),
    }
}

/// `is_privileged`: the processes that hold taps can be read.
fn reach_verdict(
    holder: Option<&Holder>,
    has_vm: bool,
    shares: Shares,
    refused: bool,
    is_privileged: bool,
) -> String {
    let held_up = shares.held_up();
    let why = if shares.throttled > shares.waited { "held back by its quota" } else { "waits" };
    let verdict = match holder {
        None if is_privileged => "no process holds the tap".to_owned(),
        None => "not known: needs root".to_owned(),
        Some(holder) if !has_vm => match holder.why_no_vm() {
            Some(why) => format!("left alone: {why}"),
            None => format!("no vCPU threads in {}", holder.process.name),
        },
        _ if held_up >= WORTH_IT => {
            format!("would gain: {why} {} of the time", units::percent(held_up))
        }
        _ if shares.ran < IDLE => "idle now: look again under load".to_owned(),
        _ => format!("little to gain: {why} {} of the time", units::percent(held_up)),
    };
    if refused { format!("{verdict}, but refused") } else { verdict }
}

#[cfg(test)]
mod tests {
    use vsnoop_host::system::holder::Evidence;
    use vsnoop_host::system::process::Process;

    use super::*;

    fn holder(name: &str, is_named: bool) -> Holder {
        let process = Process { pid: 1, started_ticks: 1, name: name.into() };
        let evidence = Evidence { is_named, ..Evidence::default() };
        Holder { process, evidence, is_link: name == "vsnoop" }
    }

    fn vm_verdict(shares: Shares) -> String {
        reach_verdict(Some(&holder("qemu", true)), true, shares, false, true)
    }

    #[test]
    fn the_verdict_follows_the_time_that_the_vm_is_held_up() {
        assert_eq!(
            vm_verdict(Shares { ran: 0.5, waited: 0.31, throttled: 0.0 }),
            "would gain: waits 31 % of the time"
        );
        assert_eq!(
            vm_verdict(Shares { ran: 0.25, waited: 0.1, throttled: 0.7 }),
            "would gain: held back by its quota 70 % of the time"
        );
        assert_eq!(
            vm_verdict(Shares { ran: 0.9, waited: 0.02, throttled: 0.0 }),
            "little to gain: waits 2 % of the time"
        );
        assert!(vm_verdict(Shares::default()).starts_with("idle"));
        let holder_verdict = |name, is_named| {
            reach_verdict(Some(&holder(name, is_named)), false, Shares::default(), false, true)
        };
        assert_eq!(holder_verdict("linux", true), "no vCPU threads in linux");
        assert!(holder_verdict("openvpn", false).starts_with("left alone: openvpn"));
        assert!(holder_verdict("vsnoop", false).contains("a link of vsnoop"));
        let without =
            |is_privileged| reach_verdict(None, false, Shares::default(), false, is_privileged);
        assert!(without(true).contains("no process"));
        assert!(without(false).contains("needs root"));
    }
}
