//! Carries out what `reconcile` says, with the functions of the command and under its lock.
//!
//! Detaching takes time: the port is paused, and detached once the VM has acknowledged everything,
//! or at the latest when a command would give up, too. Its record says meanwhile that it is
//! leaving, so that another service goes on with it.

use std::time::{Duration, Instant};

use vsnoop_bpf::types::{HOLD_CHUNK, port_run};
use vsnoop_bpf::{Port, ServiceMark};
use vsnoop_hold::drain_limit;
use vsnoop_host::attach::{self, Request, UNBOUNDED};
use vsnoop_host::config::Config;
use vsnoop_host::congestion_control;
use vsnoop_host::detached_by_operator::{Mark, Marks, Until};
use vsnoop_host::downloads::{self, Downloads};
use vsnoop_host::error::{Result, with_causes};
use vsnoop_host::holds::amount;
use vsnoop_host::port_removal;
use vsnoop_host::ports::{Attached, AttachmentState};
use vsnoop_host::quota;
use vsnoop_host::settings::Mode;
use vsnoop_host::split::SplitFlows;
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;

use crate::reconcile::{PortKey, Wanted};

/// The digest in the record of a port that the service is detaching.
pub const LEAVING: u64 = u64::MAX;

/// Attaches a tap.
pub fn attach(
    name: &str,
    netns: &Netns,
    wanted: &Wanted,
    config: &Config,
    is_interrupted: &(dyn Fn() -> bool + Sync),
) -> Result<()> {
    let Wanted { settings, table } = wanted;
    let request = Request { settings, config, table: Some(table), is_interrupted };
    let new = attach::attach(name, netns, &request)?;
    let port = netns.label_of_port(name);
    match settings.mode {
        Mode::Observe => tracing::info!("port {port}: observed ({table})"),
        Mode::Accelerate => {
            let hold = units::bytes(quota::bytes_of(&new.policy));
            tracing::info!("port {port}: accelerated, holds at most {hold} ({table})");
        }
    }
    if let Some(why) = new.no_downloads {
        tracing::warn!("port {port}: downloads stay off: {why}");
    }
    Ok(())
}

/// Changes the bounds of a port that the service attached, or the table that it belongs to.
pub fn set_bounds(key: PortKey, netns: &Netns, wanted: &Wanted, config: &Config) -> Result<()> {
    let settings = &wanted.settings;
    let attached = Attached::from_port(Port::open(key.netns, key.ifindex)?)?;
    let name = &attached.name;
    let is_other = ServiceMark::from_meta(&attached.meta)
        .is_none_or(|mark| mark.bounds != wanted.mark().bounds);
    if settings.mode == Mode::Accelerate && is_other {
        let hold = quota::bytes_for(name, settings.hold, config, netns, Some(&attached))?;
        let ahead = settings.ahead.unwrap_or(UNBOUNDED);
        attached.port.set_bounds(Some(hold / HOLD_CHUNK), Some(ahead))?;
        let (port, hold) = (netns.label_of_port(name), units::bytes(hold.into()));
        tracing::info!("port {port}: holds at most {hold}");
        let (mut wants, chosen) = (settings.downloads, settings.congestion_control);
        match congestion_control::require(chosen) {
            Ok(()) => attached.port.set_congestion_control(chosen)?,
            Err(error) if wants => {
                tracing::warn!("port {port}: downloads stay off: {}", with_causes(&error));
                wants = false;
            }
            Err(_) => {}
        }
        match downloads::set(&attached, netns, wants)? {
            Downloads::Same => {}
            Downloads::On => tracing::info!("port {port}: downloads are on"),
            Downloads::Off => tracing::info!("port {port}: downloads are off"),
            Downloads::Refused(why) => tracing::warn!("port {port}: downloads stay off: {why}"),
        }
    }
    attached.port.set_service(&wanted.mark())?;
    Ok(())
}

/// Keeps a tap off that another program has taken off.
pub fn mark_detached(name: &str, netns: &Netns, mark: Mark) -> Result<()> {
    Marks::of_host().add(mark, Until::Reload)?;
    let port = netns.label_of_port(name);
    tracing::warn!("port {port} was taken off by another program: left off until a reload");
    Ok(())
}

/// Pauses a port while its VM migrates, or ends that.
pub fn set_migrating(key: PortKey, migrating: bool) -> Result<()> {
    let attached = Attached::from_port(Port::open(key.netns, key.ifindex)?)?;
    attached.port.set_migrating(migrating)?;
    let port = attached.label();
    match migrating {
        true => tracing::info!("port {port}: paused, its VM is being migrated or saved"),
        false => tracing::info!("port {port}: goes on, its VM is here"),
    }
    Ok(())
}

/// Says what a VM that has left has not acknowledged. Returns the bytes.
pub fn report_undelivered(key: PortKey) -> Result<u64> {
    let attached = Attached::from_port(Port::open(key.netns, key.ifindex)?)?;
    let (flows, bytes) = attached.port.outstanding()?;
    let port = attached.label();
    match bytes {
        0 => tracing::info!("port {port}: its VM has left, with all that was acknowledged for it"),
        _ => tracing::warn!(
            "port {port}: its VM has left without {}: these connections are reset unless it comes \
             back",
            amount(bytes, flows)
        ),
    }
    Ok(bytes)
}

/// A port that is being detached.
pub struct Draining {
    pub key: PortKey,
    attached: Attached,
    /// The mark of a command that was ended before it took the port off.
    mark: Option<Mark>,
    since: Instant,
}

impl Draining {
    /// Pauses the port.
    pub fn begin(key: PortKey) -> Result<Self> {
        let attached = Attached::from_port(Port::open(key.netns, key.ifindex)?)?;
        let table =
            ServiceMark::from_meta(&attached.meta).map_or_else(String::new, |mark| mark.table);
        attached.port.set_service(&ServiceMark { settings: LEAVING, bounds: 0, table })?;
        if attached.state == AttachmentState::Active {
            attached.port.set_run(port_run::PORT_PAUSED)?;
        }
        let mark =
            attached.netns().map(|netns| Mark::from_device(&netns, key.ifindex)).transpose()?;
        let mark = mark.filter(|mark| Marks::of_host().has(*mark));
        Ok(Self { key, attached, mark, since: Instant::now() })
    }

    /// Has the VM acknowledged everything, and is nothing split, or did that take too long?
    pub fn is_over(&self) -> bool {
        let timeout = Duration::from_secs_f64(drain_limit::TIMEOUT_S).as_nanos() as u64;
        let waited = self.since.elapsed().as_nanos() as u64;
        if self.attached.state == AttachmentState::Observing || !self.attached.port.links_alive() {
            return true;
        }
        // Reading again would fail again.
        self.attached.port.outstanding().map_or(true, |(_, bytes)| {
            let split = SplitFlows::count_splits(&self.attached.port).count();
            drain_limit::is_over(bytes + split, waited, timeout)
        })
    }

    /// Detaches the port. Returns how many connections that has reset.
    pub fn finish(self) -> Result<u64> {
        let port = self.attached.label();
        let detached = port_removal::detach(self.attached)?;
        // If an operator has detached the port meanwhile, the operator's mark stays.
        if let Some(mark) = self.mark.filter(|_| !detached.by_another) {
            Marks::of_host().remove(mark)?;
        }
        match detached.ended.flows {
            0 => tracing::info!("port {port}: detached"),
            flows => {
                let flows = units::plural(flows, "connection");
                tracing::warn!("port {port}: detached; {flows} with held bytes reset");
            }
        }
        Ok(detached.ended.flows)
    }
}
