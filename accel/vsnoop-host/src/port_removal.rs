//! Detaches a port: restores its default qdisc, takes the hooks off, removes the pins.
//!
//! A port's pins are in a directory that is *listed* under the port's name. `Port::leave` renames
//! it (*set aside*), which is atomic, and then takes the hooks off:
//!
//! | state | pins | hooks | tap |
//! |---|---|---|---|
//! | arriving: `attach` has not finished | under a name of their own | off or on | exists |
//! | attached | listed | on | exists |
//! | gone | listed | off | deleted |
//! | leaving | set aside | on, then off | exists or deleted |
//! | detached | removed | off | exists or deleted |
//!
//! Steps of [`detach`], and the state that a process leaves if it is killed after the step:
//!
//! | step | killed after it | continued by |
//! |---|---|---|
//! | 1. restore the qdisc: no early ACK without noqueue | attached | the command, repeated |
//! | 2. end what is split; reset connections with held bytes ([`end_held`]) | attached | the same |
//! | 3. set the pins aside, take hooks off, then devices of downloads | leaving | [`finish`] |
//! | 4. reset again; repeat RSTs of the last 5 s, of a deleted tap all | leaving | [`finish`] |
//! | 5. return incast credit, empty the slot, remove the pins | detached | |
//!
//! [`finish`] is called by the helper and by the next command that changes something, under the
//! lock of commands, so that it does not interfere with a live command. `off --all` takes no lock,
//! and need not: repeating a step is no error, and a second RST changes nothing. A port that is
//! arriving is taken away by [`finish`] as well, hooks and qdisc included, unless the process that
//! attaches it still lives.
//!
//! Step 2: the VM acknowledges delivered data by itself. *Held* bytes, acknowledged early
//! but not handed over, would never reach it: the engine serves listed ports only, and the copies
//! are freed with the slot. So their connections are reset: the record enters RESET, in which
//! nothing is acknowledged, and both ends get a RST. A command that is killed in between leaves
//! each record as it was, or in RESET; the hooks answer the ends of a connection in RESET with RST
//! at their next packet, and the helper repeats the RSTs.
//!
//! Step 4 resets connections that got held bytes since step 2, because `off --all` pauses no port
//! first. It repeats recent RSTs, because a RST may be lost and no process is left to repeat it
//! later.
//!
//! Events during a detach:
//!
//! | event | while listed | once set aside |
//! |---|---|---|
//! | the helper looks at it | as at any port | not found; an earlier look finds no pins, stops |
//! | its tap is deleted | the process that sets it aside resets senders | the same, after step 3 |
//! | its tap is attached again | refused | new pins in a directory of their own |
//!
//! A deleted tap takes its ring along, so the senders of bytes that the VM has not acknowledged are
//! reset the way that the VM's segments went ([`reset_after_tap_deleted`]). After step 3 the device
//! itself is looked up, because a link that was taken off and one whose tap was deleted look the
//! same. If the tap is deleted after that, the bytes in its ring are lost without a RST; `detach`
//! has warned of them.

use std::time::Instant;

use vsnoop_bpf::types::port_meta;
use vsnoop_bpf::{Listed, Port};
use vsnoop_hold::detach_resets::{Ended, reset_held, rsts_to_send};

use crate::error::{Error, Result, with_causes};
use crate::holds::{Holds, amount};
use crate::incast;
use crate::lock::CommandLock;
use crate::port_resets::{reset_senders, send};
use crate::ports::Attached;
use crate::split;
use crate::system::clock::monotonic_ns;
use crate::system::netns::Netns;
use crate::system::{netdev, qdisc};
use crate::undelivered::{Notes, Undelivered};

/// Result of a detach.
#[derive(Debug, Default)]
pub struct Detached {
    /// Its tap was deleted, before or meanwhile; its senders were reset.
    pub tap_deleted: bool,
    /// Another process has detached it.
    pub by_another: bool,
    pub ended: Ended,
    /// A message about the qdisc.
    pub note: Option<String>,
}

/// Detaches a port; see the module.
pub fn detach(attached: Attached) -> Result<Detached> {
    detach_until(attached, Instant::now() + split::PATIENCE)
}

/// Detaches one of many ports. If its tap was deleted, the splitter may leave its connections until
/// `deadline`.
pub fn detach_until(attached: Attached, deadline: Instant) -> Result<Detached> {
    // Checked again: the port may have been looked up long ago.
    let hooks_are_off = match attached.port.hooks_are_off() {
        Err(vsnoop_bpf::Error::NotAttached(_)) => {
            return Ok(Detached { by_another: true, ..Detached::default() });
        }
        off => off?,
    };
    let netns = attached.netns();
    // Other tools may have taken the hooks off a tap that still exists.
    let tap_deleted =
        hooks_are_off && (netns.is_none() || !device_exists(&attached.port, netns.as_ref())?);
    let note = if tap_deleted {
        None
    } else {
        restore_qdisc(&attached.port, &attached.meta, netns.as_ref())?
    };
    // Before the pins are set aside: who finds neither pins nor a note may rely on it.
    if tap_deleted && let Err(error) = note_undelivered(&attached) {
        tracing::warn!("the service is not told of undelivered bytes: {}", with_causes(&error));
    }
    Ok(match remove(attached.port, netns.as_ref(), tap_deleted, deadline)? {
        Some(removed) => {
            let Removed { tap_deleted, ended } = removed;
            Detached { tap_deleted, by_another: false, ended, note }
        }
        None => Detached { by_another: true, ..Detached::default() },
    })
}

fn note_undelivered(attached: &Attached) -> Result<()> {
    Undelivered::find_undelivered(attached)?.map_or(Ok(()), |left| Notes::of_host().add(&left))
}

/// Completes what killed processes have begun. The lock keeps it from interfering with a live
/// command.
pub fn finish(_lock: &CommandLock) -> Result<()> {
    let mut failed = None;
    for listed in Port::cut_short()? {
        let finished = match listed {
            Listed::Port(port) => finish_one(*port).map(drop),
            // Either some pins were removed, which is the last step, or they were not all there
            // yet, which is the first: nothing else is left to undo.
            Listed::Damaged(rest) => rest.remove().map_err(Into::into),
        };
        // One failure must not keep the others from being finished.
        failed = finished.err().or(failed);
    }
    failed.map_or(Ok(()), Err)
}

/// Completes the detach of a port that was set aside. Its hooks being off does not mean that its
/// tap is gone.
pub fn finish_one(port: Port) -> Result<Ended> {
    let meta = port.meta()?;
    let netns = Netns::find(meta.netns);
    // Also of one that was set aside, because `off --all` restores qdiscs last; not if the tap is
    // attached again.
    if Port::open(meta.netns, meta.ifindex).is_err() {
        restore_qdisc(&port, &meta, netns.as_ref())?;
    }
    let removed = remove(port, netns.as_ref(), false, Instant::now())?;
    Ok(removed.map_or_else(Ended::default, |removed| removed.ended))
}

/// Result of [`remove`].
struct Removed {
    tap_deleted: bool,
    ended: Ended,
}

/// Steps 2 to 5. `None` if another process has detached the port.
fn remove(
    mut port: Port,
    netns: Option<&Netns>,
    tap_deleted: bool,
    deadline: Instant,
) -> Result<Option<Removed>> {
    let mut ended = Ended::default();
    if !tap_deleted && device_exists(&port, netns)? {
        // Once the programs are off, nothing more can be ended.
        if !port.is_set_aside() {
            split::end(&port);
        }
        ended = end_held(&port, netns)?;
    } else if !port.is_set_aside() {
        end_deleted(&port, deadline);
    }
    if !port.leave()? {
        return Ok(None);
    }
    end_downloads(&port);
    let tap_deleted = tap_deleted || !device_exists(&port, netns)?;
    if tap_deleted {
        reset_after_tap_deleted(&port, netns)?;
        ended = Ended::default();
    } else {
        ended.add(end_held(&port, netns)?);
        send_rsts(&port, netns)?;
    }
    if let Err(error) = incast::forget_all(&port) {
        let error = with_causes(&error);
        tracing::warn!("what incast control knows of its connections stays: {error}");
    }
    port.detach()?;
    if ended.flows > 0 {
        let Ended { flows, held_bytes, .. } = ended;
        tracing::warn!(
            "{flows} connections were reset: {held_bytes} bytes were still held for them"
        );
    }
    Ok(Some(Removed { tap_deleted, ended }))
}

fn end_deleted(port: &Port, deadline: Instant) {
    if let Err(error) = split::end_deleted(port, deadline) {
        tracing::warn!("peers of split connections are not reset: {}", with_causes(&error));
    }
}

/// Deletes what a port had for downloads, once its programs are off.
pub fn end_downloads(port: &Port) {
    if let Err(error) = split::remove_pair_of(port) {
        tracing::warn!("the devices of its downloads stay: {}", with_causes(&error));
    }
}

/// [`end_held`] for callers that have not looked up the port's network namespace.
pub fn end_held_of(port: &Port) -> Result<Ended> {
    let holds = Holds::open_or_do_without(port);
    if port.flows()?.iter().all(|(key, flow)| holds.needed_bytes(key, flow) == 0) {
        return Ok(Ended::default());
    }
    let netns = Netns::find(port.meta()?.netns);
    end_held(port, Some(&netns.ok_or(Error::NoNetns)?))
}

/// Resets the connections with bytes that the VM has not been handed.
fn end_held(port: &Port, netns: Option<&Netns>) -> Result<Ended> {
    let holds = Holds::open_or_do_without(port);
    let ended = reset_held(&mut { port }, |number| holds.read(number), monotonic_ns()?)?;
    if ended.flows > 0 {
        send_rsts(port, netns)?;
    }
    Ok(ended)
}

/// Sends RSTs to both ends of recently reset connections.
fn send_rsts(port: &Port, netns: Option<&Netns>) -> Result<()> {
    let Some(netns) = netns else { return Ok(()) };
    let holds = Holds::open_or_do_without(port);
    let rsts = rsts_to_send(port.flows()?, |number| holds.read(number), monotonic_ns()?);
    netns.run(|| {
        for (key, flow) in &rsts {
            send(port, key, flow);
        }
        Ok(())
    })
}

/// Does the tap exist? Assumed if its namespace cannot be found.
pub(crate) fn device_exists(port: &Port, netns: Option<&Netns>) -> Result<bool> {
    let index = port.meta()?.ifindex;
    netns.map_or(Ok(true), |netns| netns.run(|| Ok(netdev::find_index(index)?.is_some())))
}

/// The tap was deleted, and its ring and the held bytes are lost: resets the senders of bytes that
/// the VM had not acknowledged, and repeats all RSTs, which may have been lost with the tap.
fn reset_after_tap_deleted(port: &Port, netns: Option<&Netns>) -> Result<()> {
    let (flows, bytes) = port.outstanding()?;
    let told = netns.map_or(Ok(0), |netns| netns.run(|| reset_senders(port)))?;
    tracing::warn!(
        "port {} is gone: its tap was deleted, {} were acknowledged and still on their way to the VM; \
         {told} of {flows} senders were sent a RST",
        port.ifname()?,
        amount(bytes, flows)
    );
    Ok(())
}

pub(crate) fn restore_qdisc(
    port: &Port,
    meta: &port_meta,
    netns: Option<&Netns>,
) -> Result<Option<String>> {
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
