//! The monitor: looks at all ports, and does the helper's duties.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vsnoop_bpf::split::{flows as split_flows, full_key, note_place};
use vsnoop_bpf::types::{flow, flow_key, reset_reason, split_place};
use vsnoop_bpf::{PIN_ROOT, Port};
use vsnoop_hold::expiry::expire;
use vsnoop_hold::outstanding_bytes;
use vsnoop_hold::rst_repeats::RstRepeats;
use vsnoop_host::error::with_causes;
use vsnoop_host::failures::BypassedVmPort;
use vsnoop_host::incast;
use vsnoop_host::incast::ingress::Follower;
use vsnoop_host::lock::CommandLock;
use vsnoop_host::orphan::{self, Orphan};
use vsnoop_host::port_removal::{detach_until, finish};
use vsnoop_host::port_resets::{repeat, reset};
use vsnoop_host::ports::{self, Attached, AttachmentState};
use vsnoop_host::split;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_host::system::netdev::{self, Device};
use vsnoop_host::system::netns::Netns;
use vsnoop_host::units;

use super::engines::{Engines, WatchedHold};
use super::port_grants::{PortGrants, serve_all};
use super::reader_loss::ReaderLoss;
use super::splitters::Splitters;
use super::surroundings::LoggedState;

/// State of all ports between two looks.
#[derive(Default)]
pub struct Monitor {
    engines: Engines,
    splitters: Splitters,
    watched: HashMap<PortKey, Watched>,
    /// Ports whose pins another program has removed.
    orphans: Vec<(Attached, WatchedHold, Orphan)>,
    ingress: Follower,
    /// Number of attaches and detaches that killed commands have begun, and a running one may
    /// complete.
    cut_short: usize,
    /// Index of the port that is served first.
    first_served: usize,
}

/// Network namespace and index of the tap, id of the attachment.
type PortKey = (u64, u32, u64);

#[derive(Default)]
struct Watched {
    /// The port at the last look, with what the helper needs if the pins are removed.
    attached: Option<Attached>,
    netns_path: Option<PathBuf>,
    surroundings: LoggedState,
    held: WatchedHold,
    /// Connections that wait for incast control to open their window.
    grants: Option<PortGrants>,
    /// Connections that the hooks had reset for want of an engine, at the last look.
    reset_without_engine: u64,
    /// VM ports that were in BYPASS at the last look.
    bypassed_vm_ports: Vec<u16>,
    reader_loss: ReaderLoss,
    /// Connections that were reset.
    rst_repeats: RstRepeats,
}

impl Monitor {
    /// Are there ports to look after, as the last look that succeeded has found?
    pub fn has_ports(&self) -> bool {
        !self.watched.is_empty() || !self.orphans.is_empty() || self.cut_short > 0
    }

    /// Looks at every port once.
    pub fn watch_ports(&mut self) -> Result<()> {
        let inventory = ports::inventory()?;
        let mut earlier = std::mem::take(&mut self.watched);
        let deadline = Instant::now() + split::PATIENCE;
        for attached in inventory.ports {
            let key = (attached.meta.netns, attached.meta.ifindex, attached.port.id());
            let name = attached.name.clone();
            if attached.state == AttachmentState::Gone {
                // One failure must not keep the others from being detached.
                if let Err(error) = detach_until(attached, deadline) {
                    tracing::warn!("port {name}: {}", with_causes(&error));
                }
                continue;
            }
            let mut watched = earlier.remove(&key).unwrap_or_default();
            // A port that is just being detached is skipped.
            if let Err(error) = watched.watch_port(&attached) {
                tracing::debug!("port {name}: {error:#}");
            }
            watched.attached = Some(attached);
            self.watched.insert(key, watched);
        }
        earlier.into_values().for_each(|watched| self.adopt_port(watched));
        self.orphans.retain_mut(|(attached, held, orphan)| {
            let netns = attached.netns();
            !held.read_without_pins(|read| orphan.reset_silent(attached, netns.as_ref(), read))
        });
        self.engines
            .watch_engine(self.watched.values().filter_map(|watched| watched.held.engine_ns()));
        self.look_after_downloads();
        if let Err(error) = incast::sweep_if_idle().and_then(|()| self.ingress.follow_ports()) {
            tracing::warn!("uplinks: {}", with_causes(&error));
        }
        let cut_short = finish_what_was_cut_short();
        self.cut_short = cut_short.inspect_err(|error| tracing::warn!("{error:#}")).unwrap_or(0);
        Ok(())
    }
}

impl Monitor {
    fn look_after_downloads(&mut self) {
        let attached = self.watched.values().filter_map(|watched| watched.attached.as_ref());
        if let Err(error) = split::sweep_if_idle(attached.clone()) {
            tracing::warn!("downloads: {}", with_causes(&error));
        }
        let mut policies = attached.filter_map(|attached| attached.port.policy().ok());
        self.splitters.watch_splitters(policies.any(|policy| policy.downloads != 0));
    }

    /// Looks after a port that is not listed any more, if nothing has detached it.
    fn adopt_port(&mut self, watched: Watched) {
        let Some(attached) = watched.attached else { return };
        if let Some(orphan) = Orphan::find_orphan(&attached, orphan::PATIENCE) {
            tracing::warn!(
                "port {}: another program has removed its pins in {PIN_ROOT}; the port is taken \
                 off when its VM has acknowledged what is held",
                attached.name
            );
            self.orphans.push((attached, watched.held, orphan));
        }
    }

    /// Opens windows that no packet opens. Returns the time to the next round; `None` without
    /// incast control.
    pub fn open_windows(&mut self) -> Option<Duration> {
        let ports = self.watched.values_mut().filter_map(|watched| watched.grants.as_mut());
        self.first_served = self.first_served.wrapping_add(1);
        serve_all(&mut ports.collect::<Vec<_>>(), self.first_served)
    }
}

/// Completes what killed commands have begun. Returns how much is left, if a running command may
/// still complete it.
fn finish_what_was_cut_short() -> Result<usize> {
    let count = Port::cut_short()?.len();
    if count > 0
        && let Some(lock) = CommandLock::try_take()?
    {
        finish(&lock)?;
        return Ok(0);
    }
    Ok(count)
}

impl Watched {
    fn watch_port(&mut self, attached: &Attached) -> Result<()> {
        self.surroundings.check_surroundings(attached, &mut self.netns_path);
        if let Some(trouble) = incast::notice_gone(attached)? {
            tracing::warn!("{trouble}");
        }
        self.grants = PortGrants::open_known(attached, self.grants.take())?;
        let flows = attached.port.flows()?;
        self.expire_flows(attached, &flows)?;
        if attached.state == AttachmentState::Observing {
            return Ok(());
        }
        self.repeat_resets(attached, &flows)?;
        self.notice_reader_loss(attached, &flows)?;
        let unserved = self.held.find_unserved(attached, &flows)?;
        self.notice_unserved(attached)?;
        self.notice_failures(attached)?;
        let why = "the engine that had their bytes is gone";
        self.reset_flows(attached, &unserved, reset_reason::RESET_ENGINE_GONE, why)
    }

    fn expire_flows(&self, attached: &Attached, flows: &[(flow_key, flow)]) -> Result<()> {
        let removed = |flow: &flow| Ok(incast::forget(attached, flow)?);
        expire(&mut &attached.port, flows, monotonic_ns()?, removed)
    }

    fn repeat_resets(&mut self, attached: &Attached, flows: &[(flow_key, flow)]) -> Result<()> {
        let due = self.rst_repeats.due(flows, monotonic_ns()?);
        if due.is_empty() {
            return Ok(());
        }
        let netns = Netns::find_again(attached.meta.netns, &mut self.netns_path)
            .context("its network namespace cannot be found")?;
        netns.run(|| {
            for (key, flow) in &due {
                repeat(&attached.port, key, flow);
            }
            Ok(())
        })
    }

    /// Logs connections that the hooks have reset, which they can only count. The first look
    /// includes those from the time without a helper.
    fn notice_unserved(&mut self, attached: &Attached) -> Result<()> {
        if self.held.engine_ns().is_none() {
            return Ok(());
        }
        let reset = attached.port.stats()?.reset_without_engine;
        let new = reset.saturating_sub(std::mem::replace(&mut self.reset_without_engine, reset));
        if new > 0 {
            tracing::warn!(
                "port {}: {} reset by the kernel side: the engine that had their bytes was gone",
                attached.name,
                units::plural(new, "connection")
            );
        }
        Ok(())
    }

    /// Logs once for each port number of the VM that its new connections go to BYPASS.
    fn notice_failures(&mut self, attached: &Attached) -> Result<()> {
        let left = BypassedVmPort::list_bypassed(&attached.port)?;
        for left in left.iter().filter(|left| !self.bypassed_vm_ports.contains(&left.vm_port)) {
            tracing::warn!("port {}: {}", attached.name, left.describe_failure());
        }
        self.bypassed_vm_ports = left.iter().map(|left| left.vm_port).collect();
        Ok(())
    }

    /// Resets connections of a persistent tap whose VM was killed: their bytes are lost.
    fn notice_reader_loss(
        &mut self,
        attached: &Attached,
        flows: &[(flow_key, flow)],
    ) -> Result<()> {
        let behind: Vec<_> =
            flows.iter().filter(|(_, flow)| outstanding_bytes(flow) > 0).copied().collect();
        let split = split_flows(&attached.port)?;
        let has_no_reader = !(behind.is_empty() && split.is_empty())
            && self.find_device(attached)?.is_some_and(|device| device.up && !device.carrier);
        if !self.reader_loss.lasts(has_no_reader, Instant::now()) {
            return Ok(());
        }
        // The splitter has their bytes.
        for entry in split {
            note_place(&attached.port, &full_key(&entry), split_place::SPLIT_GONE)?;
        }
        let why = "nobody reads the tap any more: the VM is gone";
        self.reset_flows(attached, &behind, reset_reason::RESET_NO_READER, why)
    }

    fn find_device(&mut self, attached: &Attached) -> Result<Option<Device>> {
        let index = attached.meta.ifindex;
        match Netns::find_again(attached.meta.netns, &mut self.netns_path) {
            Some(netns) => Ok(netns.run(|| netdev::find_index(index))?),
            None => Ok(None),
        }
    }

    fn reset_flows(
        &mut self,
        attached: &Attached,
        flows: &[(flow_key, flow)],
        counted: reset_reason::Type,
        why: &str,
    ) -> Result<()> {
        if flows.is_empty() {
            return Ok(());
        }
        let netns = Netns::find_again(attached.meta.netns, &mut self.netns_path);
        let (mut reset_flows, mut failed) = (0u64, None);
        for (key, flow) in flows {
            // One failure must not keep the others from being reset.
            match reset(&attached.port, netns.as_ref(), key, flow, counted) {
                Ok(is_reset) => reset_flows += u64::from(is_reset),
                Err(error) => failed = Some(error),
            }
        }
        if reset_flows > 0 {
            let unsent = attached.port.meta()?.resets_unsent - attached.meta.resets_unsent;
            let but = match unsent {
                0 => String::new(),
                unsent => format!("; the senders of {unsent} could not be sent a RST"),
            };
            tracing::warn!("port {}: {reset_flows} connections reset: {why}{but}", attached.name);
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}
