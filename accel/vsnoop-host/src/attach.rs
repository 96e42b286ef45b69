//! Attaches a port: checks, then hooks, then the qdisc, then early acknowledgement.
//!
//! A port becomes visible at once, or not at all. Loading the programs, which takes longest, leaves
//! no trace. Then the hooks are attached, paused, and their pins record which default qdisc will be
//! replaced; these pins do not count as a port until the rest is done. What a killed process leaves
//! (`Port::cut_short`) the next command removes; it restores the qdisc, too. A port that is only
//! observed gets the hooks alone.

use vsnoop_bpf::types::{HOLD_CHUNK, policy, port_run};
use vsnoop_bpf::{AttachSpec, Loaded, Port, TableLimits};

use crate::config::Config;
use crate::congestion_control;
use crate::detached_by_operator::{Mark, Marks};
use crate::error::{Error, Result, Unfit, unfit, with_causes};
use crate::incast::uplink::{Joined, Wanted, prepare};
use crate::ports;
use crate::quota;
use crate::settings::{Mode, Settings};
use crate::split;
use crate::system::holder;
use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;
use crate::system::{foreign, qdisc};

/// Senders may run ahead as far as the hold allows.
pub const UNBOUNDED: u32 = u32::MAX;

/// How to attach a port.
pub struct Request<'a> {
    pub settings: &'a Settings,
    pub config: &'a Config,
    /// Name of the table `[[port]]`, if the service attaches the port.
    pub table: Option<&'a str>,
    /// Asked while nothing is on the tap yet: stop here?
    pub is_interrupted: &'a (dyn Fn() -> bool + Sync),
}

/// A port that was attached.
#[derive(Debug)]
pub struct NewPort {
    pub policy: policy,
    pub incast: Option<Joined>,
    pub qdisc_replaced: Option<String>,
    /// Why downloads, which were asked for, are off.
    pub no_downloads: Option<String>,
}

/// Attaches the tap of this name. The caller holds the lock of commands.
pub fn attach(name: &str, netns: &Netns, request: &Request<'_>) -> Result<NewPort> {
    stop_if_interrupted(request)?;
    netns.run(|| {
        let device = netdev::find_tap(name, netns.label())?;
        attach_device(&device, netns, request).map_err(|error| match netdev::find(name) {
            Ok(Some(now)) if now.index == device.index => error,
            Ok(_) => unfit(Unfit::NoPort, format!("port {name} was deleted while it was attached")),
            Err(_) => error,
        })
    })
}

fn attach_device(device: &Device, netns: &Netns, request: &Request<'_>) -> Result<NewPort> {
    let Request { settings, config, .. } = request;
    let name = &device.name;
    refuse_attached(device, netns)?;
    refuse_link(device, netns)?;
    // Without early acknowledgement the hand-over need not be exact.
    let is_observed = settings.mode == Mode::Observe;
    let root = qdisc::root(device)?;
    if !is_observed {
        qdisc::refuse_configured(device, &root)?;
        foreign::refuse(device)?;
    }
    let mut spec = spec(device, netns)?;
    configure(&mut spec, request);
    refuse_too_many(&spec, "give a smaller --max-flows or detach a port")?;
    if !is_observed {
        let bytes = quota::bytes_for(name, settings.hold, config, netns, None)?;
        spec.policy.hold_chunks = bytes / HOLD_CHUNK;
    }
    if let (false, qdisc::Root::Default(kind)) = (is_observed, &root) {
        spec.qdisc_replaced = Some(kind.clone());
    }
    let incast = settings.incast.as_ref().map(|incast| {
        let wanted = Wanted {
            rate: incast.rate,
            uplink: incast.uplink.as_deref(),
            buffer_bytes: incast.buffer_bytes,
            config: &config.incast,
            file: config.file.display().to_string(),
        };
        prepare(device, netns, &wanted)
    });
    let incast = incast.transpose()?;
    spec.uplink = incast.as_ref().map_or(0, |joined| joined.ifindex);
    let loaded = Loaded::new(&spec)?;
    stop_if_interrupted(request)?;
    // Its other work needs no congestion control.
    let missing = congestion_control::require(settings.congestion_control).err();
    let missing = missing.map(|error| with_causes(&error)).filter(|_| settings.downloads);
    let downloads = settings.downloads && missing.is_none();
    let mut no_downloads = None;
    let complete = |port: &Port| {
        if is_observed {
            return Ok(());
        }
        no_downloads = match downloads {
            true => without_downloads(port, device),
            false => missing.clone(),
        };
        switch_on(port, device, &root)
    };
    let port = loaded.attach(complete).inspect_err(|_: &Error| {
        if settings.downloads {
            remove_pair(device, netns);
        }
        if let (false, qdisc::Root::Default(_)) = (is_observed, &root) {
            // Best effort: the error that led here is the one to report.
            let _ = qdisc::restore_default(device);
        }
    })?;
    if request.table.is_none() {
        // Attached by a command. The service attaches nothing that has a mark.
        let mark = Mark::from_device(netns, device.index);
        if let Err(error) = mark.and_then(|mark| Marks::of_host().remove(mark)) {
            tracing::warn!("port {name} stays marked as detached: {}", with_causes(&error));
        }
    }
    let policy = policy { downloads: port.policy()?.downloads, ..spec.policy };
    Ok(NewPort { policy, incast, qdisc_replaced: spec.qdisc_replaced, no_downloads })
}

/// Switches the downloads of a port on. Returns why they stay off.
fn without_downloads(port: &Port, device: &Device) -> Option<String> {
    split::turn_on(port, device).err().map(|error| with_causes(&error))
}

/// Best effort: the error that led here is the one to report.
fn remove_pair(device: &Device, netns: &Netns) {
    let _ = split::remove_pair(split::TapId { netns: netns.inode, ifindex: device.index });
}

/// Fills in the fields that do not depend on the host.
fn configure(spec: &mut AttachSpec, request: &Request<'_>) {
    let Request { settings, config, .. } = request;
    spec.policy = policy {
        run: match settings.mode {
            Mode::Observe => port_run::PORT_OBSERVE,
            Mode::Accelerate => port_run::PORT_PAUSED,
        },
        passive: u32::from(settings.passive),
        hold_chunks: 0,
        ahead: settings.ahead.unwrap_or(UNBOUNDED),
        silence_ms: config.silence_ms,
        downloads: 0,
        congestion_control: settings.congestion_control.record(),
    };
    spec.port_rules.clone_from(&settings.port_rules);
    spec.prefix_rules.clone_from(&settings.prefix_rules);
    spec.limits = TableLimits { max_flows: settings.max_flows, ..TableLimits::default() };
    spec.service = request.table.map(|table| settings.mark(table));
}

/// The common part of `attach` and `observe`.
pub fn spec(device: &Device, netns: &Netns) -> Result<AttachSpec> {
    let mut spec = AttachSpec::new(device.index, &device.name, netns.inode);
    spec.tx_queue_len = device.ring_frames;
    spec.bridge = netdev::bridge_of(device)?;
    spec.mac = device.mac.unwrap_or_default();
    spec.tx_queues = device.tap.map_or(1, |tap| tap.queues);
    Ok(spec)
}

/// Refuses an attached port, and one with damaged state.
pub fn refuse_attached(device: &Device, netns: &Netns) -> Result<()> {
    match Port::open(netns.inode, device.index) {
        Ok(_) => Err(vsnoop_bpf::Error::AlreadyAttached { ifname: device.name.clone() }.into()),
        Err(vsnoop_bpf::Error::NotAttached(_)) => Ok(()),
        Err(error) => Err(Error::CannotAttach { port: device.name.clone(), source: error }),
    }
}

/// Refuses a tap that a link of vsnoop has made: what goes there is for another host, whose vsnoop
/// knows better what its VMs have.
fn refuse_link(device: &Device, netns: &Netns) -> Result<()> {
    let name = &device.name;
    match holder::link_with(name, netns.inode) {
        Some(pid) => Err(unfit(
            Unfit::Other,
            format!(
                "port {name} is the tap of a link of vsnoop (process {pid}), with no VM behind it: \
                 attach the taps of the VMs"
            ),
        )),
        None => Ok(()),
    }
}

/// Refuses more flows than the host may have. `way_out`: the remedy of the caller.
pub fn refuse_too_many(spec: &AttachSpec, way_out: &str) -> Result<()> {
    let taken: u64 =
        ports::inventory()?.ports.iter().map(|other| u64::from(other.port.max_flows())).sum();
    let wanted = u64::from(spec.limits.max_flows);
    let most = TableLimits::HOST_FLOWS;
    if taken + wanted <= u64::from(most) {
        return Ok(());
    }
    Err(unfit(
        Unfit::Other,
        format!(
            "port {} asks for {wanted} flows, but the other ports have {taken} of the {most} \
             that are possible on a host; {way_out}",
            spec.ifname
        ),
    ))
}

fn switch_on(port: &Port, device: &Device, root: &qdisc::Root) -> Result<()> {
    if *root != qdisc::Root::NoQueue {
        qdisc::replace_by_noqueue(device)?;
    }
    Ok(port.set_run(port_run::PORT_ACCELERATE)?)
}

fn stop_if_interrupted(request: &Request<'_>) -> Result<()> {
    if (request.is_interrupted)() { Err(Error::Interrupted) } else { Ok(()) }
}
