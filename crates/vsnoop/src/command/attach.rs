//! `vsnoop attach`: checks, then hooks, then the qdisc, then early acknowledgement.
//!
//! A port becomes visible at once, or not at all. Loading the programs, which takes longest, leaves
//! no trace. Then the hooks are attached, paused, and their pins record which default qdisc will be
//! replaced; these pins do not count as a port until the rest is done. A first signal is handled
//! before this or after it. What a killed command leaves (`Port::cut_short`) the next command
//! removes; it restores the qdisc, too. With `--observe` only the hooks are attached.

use std::net::IpAddr;

use anyhow::{Context, Result};
use vsnoop_bpf::types::{HOLD_CHUNK, policy, port_run};
use vsnoop_bpf::{AttachSpec, Loaded, Port, TableLimits};
use vsnoop_host::config::Config;
use vsnoop_host::error::Unfit;
use vsnoop_host::incast;
use vsnoop_host::incast::uplink::{Joined, Wanted, prepare};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::ports;
use vsnoop_host::quota;
use vsnoop_host::sweep;
use vsnoop_host::system::netdev::Device;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::system::{egress, kernel, netdev, qdisc};

use crate::bounds::{UNBOUNDED, ahead_bytes, bounds_text};
use crate::cli::{self, Cli};
use crate::engine;
use crate::error::{unfit, usage};
use crate::helper;
use crate::lists;
use crate::output::report::{self, Outcome};
use crate::output::watch::Interrupt;

/// Limit of connections on record over all ports of the host. Each takes 512 bytes: a record of 192
/// bytes, its key, and the fields of the hash map make 296, and the kernel's caches for BPF have
/// sizes of 256 and 512 (kernel/bpf/memalloc.c).
const HOST_FLOWS: u64 = 1 << 20;

/// Settings for all ports of the command.
struct Request<'a> {
    policy: policy,
    /// Bytes; `None`: the default.
    hold: Option<u32>,
    port_rules: Vec<(u16, bool)>,
    prefix_rules: Vec<(IpAddr, u8, bool)>,
    limits: TableLimits,
    incast: Option<Wanted<'a>>,
    config: &'a Config,
    interrupt: &'a Interrupt,
}

pub fn run(cli: &Cli, arguments: &cli::Attach) -> Result<u8> {
    let port_rules = lists::port_rules(&arguments.lists)?;
    let prefix_rules = lists::prefix_rules(&arguments.lists)?;
    let config = Config::read(cli.config.as_deref())?;
    refuse_removed(arguments)?;
    kernel::require()?;
    kernel::require_features()?;
    let netns = Netns::chosen(cli.netns.as_deref())?;
    let interrupt = Interrupt::catch()?;
    let is_observed = arguments.observe;
    let request = Request {
        policy: policy {
            run: if is_observed { port_run::PORT_OBSERVE } else { port_run::PORT_PAUSED },
            passive: u32::from(!arguments.no_passive),
            // Each port's own; see attach().
            hold_chunks: 0,
            ahead: arguments.bounds.ahead.unwrap_or(UNBOUNDED),
            silence_ms: config.silence_ms,
            zero: 0,
        },
        hold: arguments.bounds.hold,
        port_rules,
        prefix_rules,
        limits: TableLimits { max_flows: arguments.max_flows, ..TableLimits::default() },
        incast: arguments.incast.map(|rate| Wanted {
            rate,
            uplink: arguments.uplink.as_deref(),
            buffer_bytes: arguments.incast_buffer,
            config: &config.incast,
            file: config.file.display().to_string(),
        }),
        config: &config,
        interrupt: &interrupt,
    };
    let lock = CommandLock::take()?;
    sweep::sweep(&lock)?;
    let code = report::each(cli, &arguments.ports, |name| attach(name, &netns, &request))?;
    // Removes the uplink of a port that could not be attached.
    incast::sweep(&lock)?;
    drop(lock);
    helper::ensure_running();
    if !is_observed {
        engine::ensure_working(&arguments.ports, &netns);
    }
    Ok(code)
}

/// Options of earlier versions.
fn refuse_removed(arguments: &cli::Attach) -> Result<()> {
    if arguments.buf_size.is_some() {
        return Err(usage(
            "--buf-size went away: leave it out, or bound how far a sender may run ahead of the VM's own \
             window with --ahead SIZE (0: not at all)",
        ));
    }
    if arguments.hold_per_flow.is_some() {
        return Err(usage(
            "--hold-per-flow went away: leave it out, for connections share the hold of their port fairly",
        ));
    }
    if arguments.no_thin {
        return Err(usage("--no-thin was renamed: use --no-passive"));
    }
    Ok(())
}

fn attach(name: &str, netns: &Netns, request: &Request<'_>) -> Result<Outcome> {
    stop_if(request.interrupt)?;
    netns.run(|| {
        let device = netdev::find_tap(name, netns.label())?;
        attach_device(&device, netns, request).map_err(|error| match netdev::find(name) {
            Ok(Some(now)) if now.index == device.index => error,
            Ok(_) => unfit(Unfit::NoPort, format!("port {name} was deleted while it was attached")),
            Err(_) => error,
        })
    })
}

fn attach_device(device: &Device, netns: &Netns, request: &Request<'_>) -> Result<Outcome> {
    let name = &device.name;
    refuse_attached(device, netns)?;
    // Without early acknowledgement the hand-over need not be exact.
    let is_observed = request.policy.run == port_run::PORT_OBSERVE;
    let root = qdisc::root(device)?;
    if !is_observed {
        qdisc::refuse_configured(device, &root)?;
        egress::refuse_foreign(device)?;
    }

    let mut spec = spec(device, netns)?;
    spec.policy = request.policy;
    spec.port_rules.clone_from(&request.port_rules);
    spec.prefix_rules.clone_from(&request.prefix_rules);
    spec.limits = request.limits;
    refuse_too_many(&spec, "give a smaller --max-flows or detach a port")?;
    if !is_observed {
        let bytes = quota::bytes_for(name, request.hold, request.config, netns, None)?;
        spec.policy.hold_chunks = bytes / HOLD_CHUNK;
    }
    if let (false, qdisc::Root::Default(kind)) = (is_observed, &root) {
        spec.qdisc_replaced = Some(kind.clone());
    }
    let wanted = request.incast.as_ref();
    let incast = wanted.map(|wanted| prepare(device, netns, wanted)).transpose()?;
    spec.uplink = incast.as_ref().map_or(0, |joined| joined.ifindex);
    let loaded = Loaded::new(&spec)?;
    stop_if(request.interrupt)?;
    let complete = |port: &Port| match is_observed {
        true => Ok(()),
        false => switch_on(port, device, &root),
    };
    loaded.attach(complete).inspect_err(|_: &anyhow::Error| {
        if let (false, qdisc::Root::Default(_)) = (is_observed, &root) {
            // Best effort: the error that led here is the one to report.
            let _ = qdisc::restore_default(device);
        }
    })?;
    Ok(Outcome {
        hold_bytes: Some(quota::bytes_of(&spec.policy)),
        ahead_bytes: ahead_bytes(spec.policy.ahead).filter(|_| !is_observed),
        incast: incast.clone(),
        ..Outcome::done(name, "attached", text(&spec, incast.as_ref()))
    })
}

fn text(spec: &AttachSpec, incast: Option<&Joined>) -> String {
    let mut text = format!("{}: attached", spec.ifname);
    if spec.policy.run == port_run::PORT_OBSERVE {
        text.push_str(", acknowledging nothing early");
    } else {
        let bounds = bounds_text(quota::bytes_of(&spec.policy), spec.policy.ahead);
        text.push_str(&format!(", {bounds}"));
    }
    if let Some(joined) = incast {
        text.push_str(&format!(", with {}", joined.text()));
    }
    if let Some(kind) = &spec.qdisc_replaced {
        text.push_str(&format!("; its default qdisc {kind} is now noqueue"));
    }
    text
}

/// The common part of `attach` and `observe`.
pub fn spec(device: &Device, netns: &Netns) -> Result<AttachSpec> {
    let mut spec = AttachSpec::new(device.index, &device.name, netns.inode);
    spec.tx_queue_len = device.ring_frames;
    spec.bridge = netdev::bridge_of(device)?;
    spec.tx_queues = device.tap.map_or(1, |tap| tap.queues);
    Ok(spec)
}

/// Refuses an attached port, and one with damaged state.
pub fn refuse_attached(device: &Device, netns: &Netns) -> Result<()> {
    match Port::open(netns.inode, device.index) {
        Ok(_) => Err(vsnoop_bpf::Error::AlreadyAttached { ifname: device.name.clone() }.into()),
        Err(vsnoop_bpf::Error::NotAttached(_)) => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("port {} cannot be attached", device.name))
        }
    }
}

/// Refuses more flows than the host may have. `way_out`: the remedy in this command.
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
    Ok(port.set_run(port_run::PORT_ACCELERATE)?)
}

fn stop_if(interrupt: &Interrupt) -> Result<()> {
    anyhow::ensure!(!interrupt.is_set(), "interrupted before it was attached");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::longest;
    use crate::output::fold::fold;

    #[test]
    fn what_attach_says_stays_narrow() {
        let mut spec = AttachSpec::new(1, longest::INTERFACE, 1);
        spec.qdisc_replaced = Some("pfifo_fast".into());
        for rate_bits_per_second in [0, u64::MAX] {
            let joined = Joined {
                uplink: longest::INTERFACE.into(),
                ifindex: 1,
                rate_bits_per_second,
                buffer_bytes: u32::MAX,
            };
            longest::assert_narrow(&fold(&text(&spec, Some(&joined))));
        }
    }
}
