//! Letting go of a port: its default qdisc comes back, then the hooks and pins go.
//!
//! In this order a command that is killed in between can be repeated; the pins remember the qdisc
//! until the end, and the hooks acknowledge nothing early without noqueue. What vsnoop-bpf does
//! last is atomic for everybody else: the port is *set aside*, and only then the hooks are taken
//! off (`Port::leave`) and the pins removed. So there are three answers to the question how a port
//! is:
//!
//! | its pins | its links | |
//! |---|---|---|
//! | listed | on the tap | attached |
//! | listed | on no device | its tap was deleted |
//! | set aside, or not there | | detached, or about to be |
//!
//! What has been handed to the VM is its own concern from there on. What is still *held*
//! (acknowledged, and on this host only) would never reach it: the engine looks after listed ports
//! alone, and the copies go when its slot is emptied. So its connections end ([`end_held`]): each
//! record becomes a tombstone, which acknowledges nothing, and both ends get RST, before the hooks
//! go. Once they are off, and no packet is in the middle of one, there is a second look, for what
//! was held since the first: the panic switch pauses no port. All tombstones of the last seconds
//! are told then, again where they were before, because a RST may be lost and nobody is left to
//! repeat it.
//!
//! A detach, the looks of the helper, the end of a tap and the end of any process meet like this:
//!
//! - *The helper looks while a port is detached.* Before it is set aside, the port is as attached
//!   as ever; afterwards it is not found. A look that began before finds no pins any more when it
//!   wants to change something or send a frame, and lets the port be: nothing is reset for what the
//!   hooks, off already, have not seen.
//! - *The tap is deleted* and its ring with it: the senders of what had not been acknowledged by
//!   the VM are reset. As long as the port is listed, whoever sees it first does so, the helper or
//!   a command, and setting it aside decides who: the other one finds nothing to do. While it waits
//!   for the VM, a detach notices and waits no longer. Once the port is set aside, only the one who
//!   did so looks: after the hooks are off, and at the device, because a link that was taken off
//!   and one whose tap was deleted look the same. A tap that is deleted later than that takes along
//!   what `detach` has warned of.
//! - *The command is killed.* Before the port is set aside, it stays attached, paused, and the
//!   command can be repeated. Connections that it had made tombstones of stay so; their ends are
//!   told by the hooks at their next packet, by the helper a second later, or by whoever lets the
//!   port go before that. Those that it had not come to go on: the engine hands over what they
//!   hold. Afterwards the helper, or the next command that changes something, goes on from there
//!   ([`finish`]), with the look at the device as well. Both do so under the lock of commands, so
//!   that none is disturbed who still lives and will come to it; but nothing breaks if (`off --all`
//!   has no lock): a step that was taken is no error, and a second RST changes nothing.
//! - *The helper is killed* while it cleans up after a tap: the same, either way.
//! - *A command is killed while it attaches.* What it leaves is no port yet, but its hooks may be
//!   on the tap and its qdisc may be replaced: the next command, or the helper, takes both back
//!   ([`finish`]). Whose maker still lives is left alone.
//! - *The tap is attached anew* at any time after that: its pins have a directory of their own,
//!   which the one who removes the former never touches.

use anyhow::{Context, Result};
use vsnoop_bpf::types::{flow, flow_key, flow_mode, port_meta, reset_reason};
use vsnoop_bpf::{Listed, Port, bytes_owed};

use crate::drain::Left;
use crate::held::Holds;
use crate::helper;
use crate::helper::frame::{Segment, frame};
use crate::helper::reset::send;
use crate::incast;
use crate::lock::CommandLock;
use crate::ports::Attached;
use crate::system::clock::monotonic_ns;
use crate::system::netns::Netns;
use crate::system::{netdev, qdisc};

/// Tombstones that are older were told before, several times (`helper`).
const FRESH_NS: u64 = 5_000_000_000;

/// Connections that were reset because of what was held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub flows: u64,
    /// What was held of them.
    pub held_bytes: u64,
    /// What the VM had not acknowledged of them; the held bytes are part of it.
    pub outstanding_bytes: u64,
}

impl Ended {
    pub fn add(&mut self, other: Self) {
        self.flows += other.flows;
        self.held_bytes += other.held_bytes;
        self.outstanding_bytes += other.outstanding_bytes;
    }

    /// What of `left`, as it was before, is still on its way.
    pub fn rest_of(self, left: Left) -> Left {
        Left {
            flows: left.flows.saturating_sub(self.flows),
            bytes: left.bytes.saturating_sub(self.outstanding_bytes),
            held_flows: 0,
            held_bytes: 0,
        }
    }
}

/// How a port was let go.
#[derive(Debug, Default)]
pub struct Released {
    /// Its tap had been deleted, before or meanwhile; its senders know.
    pub tap_deleted: bool,
    /// Somebody else has done it.
    pub by_another: bool,
    pub ended: Ended,
    /// What is worth telling about the qdisc.
    pub note: Option<String>,
}

/// Takes everything away.
pub fn release(attached: Attached) -> Result<Released> {
    // Anew: it may be long since the port was found.
    let hooks_are_off = match attached.port.hooks_are_off() {
        Err(vsnoop_bpf::Error::NotAttached(_)) => {
            return Ok(Released { by_another: true, ..Released::default() });
        }
        off => off?,
    };
    let netns = attached.netns();
    // Somebody may have taken the hooks off a tap that is still there.
    let tap_deleted =
        hooks_are_off && (netns.is_none() || !device_exists(&attached.port, netns.as_ref())?);
    let note = if tap_deleted {
        None
    } else {
        restore_qdisc(&attached.port, &attached.meta, netns.as_ref())?
    };
    Ok(match let_go(attached.port, netns.as_ref(), tap_deleted)? {
        Some(gone) => {
            let Gone { tap_deleted, ended } = gone;
            Released { tap_deleted, by_another: false, ended, note }
        }
        None => Released { by_another: true, ..Released::default() },
    })
}

/// Finishes what processes began that were killed. With the lock of commands, so that it is not
/// done beside one who lives.
pub fn finish(_lock: &CommandLock) -> Result<()> {
    let mut failed = None;
    for listed in Port::cut_short()? {
        let finished = match listed {
            Listed::Port(port) => finish_one(*port).map(drop),
            // Some of its pins have been removed, and all else was done before; or they were not
            // there yet, and nothing else was done.
            Listed::Damaged(rest) => rest.remove().map_err(Into::into),
        };
        // One that cannot be finished is no reason to neglect the others.
        failed = finished.err().or(failed);
    }
    failed.map_or(Ok(()), Err)
}

/// That its hooks are off says nothing about the tap of a port that was set aside.
pub fn finish_one(port: Port) -> Result<Ended> {
    let meta = port.meta()?;
    let netns = Netns::find(meta.netns);
    // Of one that was set aside, too: the panic switch restores them last. Unless it is attached
    // again.
    if Port::open(meta.netns, meta.ifindex).is_err() {
        restore_qdisc(&port, &meta, netns.as_ref())?;
    }
    Ok(let_go(port, netns.as_ref(), false)?.map_or_else(Ended::default, |gone| gone.ended))
}

/// What [`let_go`] found and did.
struct Gone {
    tap_deleted: bool,
    ended: Ended,
}

/// `None` when somebody else has let the port go.
fn let_go(mut port: Port, netns: Option<&Netns>, tap_deleted: bool) -> Result<Option<Gone>> {
    let mut ended = Ended::default();
    if !tap_deleted && device_exists(&port, netns)? {
        ended = end_held(&port, netns)?;
    }
    if !port.leave()? {
        return Ok(None);
    }
    let tap_deleted = tap_deleted || !device_exists(&port, netns)?;
    if tap_deleted {
        bury(&port, netns)?;
        ended = Ended::default();
    } else {
        ended.add(end_held(&port, netns)?);
        tell_tombstones(&port, netns)?;
    }
    if let Err(error) = incast::forget_all(&port) {
        tracing::warn!("what incast control knows of its connections stays: {error:#}");
    }
    port.detach()?;
    if ended.flows > 0 {
        let Ended { flows, held_bytes, .. } = ended;
        tracing::warn!(
            "{flows} connections were reset: {held_bytes} bytes were still held for them"
        );
    }
    Ok(Some(Gone { tap_deleted, ended }))
}

/// [`end_held`], for who has not looked for the port's network namespace.
pub fn end_held_of(port: &Port) -> Result<Ended> {
    let holds = Holds::open_or_do_without(port);
    if port.flows()?.iter().all(|(key, flow)| holds.needed_bytes(key, flow) == 0) {
        return Ok(Ended::default());
    }
    let netns = Netns::find(port.meta()?.netns);
    let netns = netns.context("the tap's network namespace cannot be found, so nobody is told")?;
    end_held(port, Some(&netns))
}

/// Resets the connections with bytes that the VM has not been handed.
fn end_held(port: &Port, netns: Option<&Netns>) -> Result<Ended> {
    let holds = Holds::open_or_do_without(port);
    let mut ended = Ended::default();
    for (key, flow) in &port.flows()? {
        if let Some((flow, held_bytes)) = entomb(port, &holds, key, *flow)? {
            let outstanding_bytes = bytes_owed(&flow);
            ended.add(Ended { flows: 1, held_bytes, outstanding_bytes });
        }
    }
    if ended.flows > 0 {
        tell_tombstones(port, netns)?;
    }
    Ok(ended)
}

/// Makes a tombstone of a flow with held bytes: how it was, and how many these were.
fn entomb(
    port: &Port,
    holds: &Holds,
    key: &flow_key,
    mut flow: flow,
) -> Result<Option<(flow, u64)>> {
    loop {
        let held_bytes = holds.needed_bytes(key, &flow);
        if held_bytes == 0 {
            return Ok(None);
        }
        if port.mark_reset(key, &flow, monotonic_ns()?)? {
            let counted = port.count_reset(reset_reason::RESET_DETACHED, 1, bytes_owed(&flow));
            if let Err(error) = counted {
                tracing::debug!("a reset is not counted: {error:#}");
            }
            return Ok(Some((flow, held_bytes)));
        }
        // The VM has acknowledged something since, or the record is a tombstone already, or gone.
        match port.flow(key)? {
            Some(now) => flow = now,
            None => return Ok(None),
        }
    }
}

/// RST to both ends of the connections that were reset lately.
fn tell_tombstones(port: &Port, netns: Option<&Netns>) -> Result<()> {
    let Some(netns) = netns else { return Ok(()) };
    let holds = Holds::open_or_do_without(port);
    let mut told = Vec::new();
    for (key, flow) in fresh_tombstones(port)? {
        told.push((key, flow));
        // What lies in the ring the VM reads before the RST: that one must be the next in order
        // then.
        let handed = holds.handed(&key, &flow);
        if handed.diff(flow.vm_seq) > 0 {
            told.push((key, flow { vm_seq: handed, ..flow }));
        }
    }
    netns.run(|| {
        told.iter().for_each(|(key, flow)| send(port, key, flow));
        Ok(())
    })
}

fn fresh_tombstones(port: &Port) -> Result<Vec<(flow_key, flow)>> {
    let now_ns = monotonic_ns()?;
    let mut flows = port.flows()?;
    flows.retain(|(_, flow)| {
        u32::from(flow.mode) == flow_mode::FLOW_RESET
            && now_ns.saturating_sub(flow.last_ns) < FRESH_NS
    });
    Ok(flows)
}

/// A namespace that nothing leads to is not taken for one that has gone.
fn device_exists(port: &Port, netns: Option<&Netns>) -> Result<bool> {
    let index = port.meta()?.ifindex;
    netns.map_or(Ok(true), |netns| netns.run(|| Ok(netdev::find_index(index)?.is_some())))
}

/// Whatever was in the tap's ring, or held for it, is lost with the VM's end of it: senders that
/// were told otherwise are reset, over the bridge that the tap was a port of. So are, again, those
/// that were reset lately: their RST may have met the tap's end.
fn bury(port: &Port, netns: Option<&Netns>) -> Result<()> {
    let (flows, bytes) = port.outstanding()?;
    let tombstones = fresh_tombstones(port)?;
    let reset = match netns.filter(|_| flows > 0 || !tombstones.is_empty()) {
        Some(netns) => netns.run(|| {
            tell_senders(port, &tombstones)?;
            helper::reset_senders(port)
        })?,
        None => 0,
    };
    tracing::warn!(
        "port {} is gone: its tap was deleted, {bytes} acknowledged bytes of {flows} connections \
         were still on their way to the VM; {reset} senders were reset",
        port.ifname()?
    );
    Ok(())
}

/// By way of the bridge. The calling thread must be in the tap's network namespace.
fn tell_senders(port: &Port, flows: &[(flow_key, flow)]) -> Result<()> {
    let bridge = port.meta()?.bridge;
    for (key, flow) in flows.iter().filter(|_| bridge != 0) {
        let sent = port.send_out_of(bridge, &frame(key, flow, Segment::ResetSender));
        if let Err(error) = sent {
            tracing::debug!("a RST to a sender: {error:#}");
        }
    }
    Ok(())
}

fn restore_qdisc(port: &Port, meta: &port_meta, netns: Option<&Netns>) -> Result<Option<String>> {
    let Some(default) = port.qdisc_replaced()? else { return Ok(None) };
    let Some(netns) = netns else {
        return Ok(Some(format!(
            "its network namespace cannot be found: noqueue stays where {default} was"
        )));
    };
    let index = meta.ifindex;
    let restored = netns.run(|| match netdev::find_index(index)? {
        Some(device) => qdisc::restore_default(&device),
        None => Ok(true),
    })?;
    Ok((!restored).then(|| "its qdisc was changed meanwhile and is left as it is".into()))
}
