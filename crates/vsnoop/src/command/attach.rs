//! `vsnoop attach`: checks, then hooks, then the qdisc, then early acknowledgement.
//!
//! The order matters when the command is killed half-way: the hooks come first, paused, and their pins
//! say which default qdisc is about to be replaced, so that `detach` or `off` can undo it. Only when
//! everything stands are early ACKs switched on.

use anyhow::{Context, Result};
use vsnoop_bpf::types::{policy, port_run};
use vsnoop_bpf::{AttachSpec, Limits, Port};

use crate::cli::{self, Cli};
use crate::error::{Unfit, unfit};
use crate::helper;
use crate::lists;
use crate::lock::CommandLock;
use crate::output::report::{self, Outcome};
use crate::ports;
use crate::system::netdev::Device;
use crate::system::netns::Netns;
use crate::system::{egress, kernel, netdev, qdisc};

/// Connections on record over all ports of the host: 128 bytes each, plus the map's own.
const HOST_FLOWS: u64 = 1 << 20;

pub fn run(cli: &Cli, arguments: &cli::Attach) -> Result<u8> {
    let port_rules = lists::port_rules(&arguments.lists)?;
    let prefix_rules = lists::prefix_rules(&arguments.lists)?;
    kernel::require()?;
    kernel::require_features()?;
    let place = Netns::chosen(cli.netns.as_deref())?;
    let settings = policy {
        run: port_run::PORT_PAUSED,
        buf_size: arguments.buf_size,
        thin: u32::from(!arguments.no_thin),
        lists: 0,
    };
    let lock = CommandLock::take()?;
    ports::sweep(&lock)?;
    let code = report::each(&arguments.ports, cli.json, |name| {
        let limits = Limits { max_flows: arguments.max_flows, ..Limits::default() };
        attach(name, &place, |spec| {
            spec.policy = settings;
            spec.port_rules.clone_from(&port_rules);
            spec.prefix_rules.clone_from(&prefix_rules);
            spec.limits = limits;
        })
        .map(|text| Outcome::done(name, "attached", text))
    })?;
    drop(lock);
    helper::ensure_running();
    Ok(code)
}

fn attach(name: &str, place: &Netns, fill: impl FnOnce(&mut AttachSpec) + Send) -> Result<String> {
    place.run(|| {
        let device = netdev::find_tap(name, place.label())?;
        refuse_attached(&device, place)?;
        let root = qdisc::root(&device)?;
        qdisc::refuse_configured(&device, &root)?;
        egress::refuse_foreign(&device)?;

        let mut spec = spec(&device, place)?;
        fill(&mut spec);
        refuse_too_many(&spec, "give a smaller --max-flows or detach a port")?;
        if let qdisc::Root::Default(kind) = &root {
            spec.qdisc_replaced = Some(kind.clone());
        }
        let port = Port::attach(&spec)?;
        switch_on(&port, &device, &root).inspect_err(|_| undo(port, &device, &root))?;
        Ok(match spec.qdisc_replaced {
            Some(kind) => format!("{name}: attached; its default qdisc {kind} is now noqueue"),
            None => format!("{name}: attached"),
        })
    })
}

/// What `attach` and `observe` have in common.
pub fn spec(device: &Device, place: &Netns) -> Result<AttachSpec> {
    let mut spec = AttachSpec::new(device.index, &device.name, place.inode);
    spec.tx_queue_len = device.ring_frames;
    spec.bridge = helper::bridge_of(device)?;
    // Also when it has one queue now: the guest may enable more.
    spec.multi_queue = device.tap.is_some_and(|tap| tap.multi_queue);
    spec.tx_queues = device.tap.map_or(1, |tap| tap.queues);
    Ok(spec)
}

/// An attached port, or one with damaged state, is never attached again.
pub fn refuse_attached(device: &Device, place: &Netns) -> Result<()> {
    match Port::open(place.inode, device.index) {
        Ok(_) => Err(vsnoop_bpf::Error::AlreadyAttached { ifname: device.name.clone() }.into()),
        Err(vsnoop_bpf::Error::NotAttached(_)) => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("port {} cannot be attached", device.name))
        }
    }
}

/// `way_out`: what this command's user can do about it.
pub fn refuse_too_many(spec: &AttachSpec, way_out: &str) -> Result<()> {
    let taken: u64 =
        ports::inventory()?.ports.iter().map(|other| u64::from(other.port.max_flows())).sum();
    let wanted = u64::from(spec.limits.max_flows);
    if taken + wanted <= HOST_FLOWS {
        return Ok(());
    }
    Err(unfit(
        Unfit::Other,
        format!(
            "port {} asks for {wanted} flows, but the other ports have {taken} of the {HOST_FLOWS} \
             that are possible on a host; {way_out}",
            spec.ifname
        ),
    ))
}

fn switch_on(port: &Port, device: &Device, root: &qdisc::Root) -> Result<()> {
    if *root != qdisc::Root::NoQueue {
        qdisc::replace_by_noqueue(device)?;
    }
    Ok(port.set_run(port_run::PORT_ACTIVE)?)
}

/// Best effort: the error that led here is the one to report.
fn undo(port: Port, device: &Device, root: &qdisc::Root) {
    if *root != qdisc::Root::NoQueue {
        let _ = qdisc::restore_default(device);
    }
    let _ = port.detach();
}
