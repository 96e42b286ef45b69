//! Letting go of a port: its default qdisc comes back, then the hooks and pins go.
//!
//! In this order a command that is killed in between can be repeated; the pins remember the qdisc until
//! the end, and the hooks acknowledge nothing early without noqueue. What vsnoop-bpf does last is
//! atomic for everybody else: the port is *set aside*, and only then the hooks are taken off
//! (`Port::leave`) and the pins removed. So there are three answers to the question how a port is:
//!
//! | its pins | its links | |
//! |---|---|---|
//! | listed | on the tap | attached |
//! | listed | on no device | its tap was deleted |
//! | set aside, or not there | | detached, or about to be |
//!
//! A detach, the looks of the helper, the end of a tap and the end of any process meet like this:
//!
//! - *The helper looks while a port is detached.* Before it is set aside, the port is as attached as
//!   ever; afterwards it is not found. A look that began before finds no pins any more when it wants to
//!   change something or send a frame, and lets the port be: nothing is reset for what the hooks, off
//!   already, have not seen.
//! - *The tap is deleted* and its ring with it: the senders of what had not been acknowledged by the VM
//!   are reset. As long as the port is listed, whoever sees it first does so, the helper or a command,
//!   and setting it aside decides who: the other one finds nothing to do. While it waits for the VM, a
//!   detach notices and waits no longer. Once the port is set aside, only the one who did so looks:
//!   after the hooks are off, and at the device, because a link that was taken off and one whose
//!   tap was deleted look the same. A tap that is deleted later than that takes along what `detach`
//!   has warned of.
//! - *The command is killed.* Before the port is set aside, it stays attached, paused, and the command
//!   can be repeated. Afterwards the helper, or the next command that changes something, goes on from
//!   there ([`finish`]), with the look at the device as well. Both do so under the lock of commands, so
//!   that none is disturbed who still lives and will come to it; but nothing breaks if (`off --all` has
//!   no lock): a step that was taken is no error, and a second RST changes nothing.
//! - *The helper is killed* while it cleans up after a tap: the same, either way.
//! - *The tap is attached anew* at any time after that: its pins have a directory of their own, which
//!   the one who removes the former never touches.

use anyhow::Result;
use vsnoop_bpf::{Listed, Port};

use crate::helper;
use crate::lock::CommandLock;
use crate::ports::Attached;
use crate::system::netns::Netns;
use crate::system::{netdev, qdisc};

/// How a port was let go.
#[derive(Debug, Default)]
pub struct Released {
    /// Its tap had been deleted, before or meanwhile; its senders know.
    pub tap_deleted: bool,
    /// Somebody else has done it.
    pub by_another: bool,
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
    let place = attached.netns();
    // Somebody may have taken the hooks off a tap that is still there.
    let tap_deleted =
        hooks_are_off && (place.is_none() || !device_exists(&attached.port, place.as_ref())?);
    let note = if tap_deleted { None } else { restore_qdisc(&attached, place.as_ref())? };
    Ok(match let_go(attached.port, place.as_ref(), tap_deleted)? {
        Some(tap_deleted) => Released { tap_deleted, by_another: false, note },
        None => Released { by_another: true, ..Released::default() },
    })
}

/// Finishes what processes began that were killed. With the lock of commands, so that it is not done
/// beside one who lives.
pub fn finish(_lock: &CommandLock) -> Result<()> {
    let mut failed = None;
    for listed in Port::cut_short()? {
        let finished = match listed {
            Listed::Port(port) => finish_one(*port),
            // Some of its pins have been removed: all else was done before.
            Listed::Damaged(rest) => rest.remove().map_err(Into::into),
        };
        // One that cannot be finished is no reason to neglect the others.
        failed = finished.err().or(failed);
    }
    failed.map_or(Ok(()), Err)
}

/// That its hooks are off says nothing about the tap of a port that was set aside.
pub fn finish_one(port: Port) -> Result<()> {
    let place = Netns::find(port.meta()?.netns);
    let_go(port, place.as_ref(), false).map(drop)
}

/// Whether the tap has been deleted; `None` when somebody else has let the port go.
fn let_go(mut port: Port, place: Option<&Netns>, tap_deleted: bool) -> Result<Option<bool>> {
    if !port.leave()? {
        return Ok(None);
    }
    let deleted = tap_deleted || !device_exists(&port, place)?;
    if deleted {
        bury(&port, place)?;
    }
    port.detach()?;
    Ok(Some(deleted))
}

/// A namespace that nothing leads to is not taken for one that has gone.
fn device_exists(port: &Port, place: Option<&Netns>) -> Result<bool> {
    let index = port.meta()?.ifindex;
    place.map_or(Ok(true), |place| place.run(|| Ok(netdev::find_index(index)?.is_some())))
}

/// Whatever was in the tap's ring is lost with the VM's end of it: senders that were told otherwise are
/// reset, over the bridge that the tap was a port of.
fn bury(port: &Port, place: Option<&Netns>) -> Result<()> {
    let (flows, bytes) = port.outstanding()?;
    let reset = match place.filter(|_| flows > 0) {
        Some(place) => place.run(|| helper::reset_senders(port))?,
        None => 0,
    };
    tracing::warn!(
        "port {} is gone: its tap was deleted, {bytes} acknowledged bytes of {flows} connections \
         were still on their way to the VM; {reset} senders were reset",
        port.ifname()?
    );
    Ok(())
}

fn restore_qdisc(attached: &Attached, place: Option<&Netns>) -> Result<Option<String>> {
    let Some(default) = attached.port.qdisc_replaced()? else { return Ok(None) };
    let Some(place) = place else {
        return Ok(Some(format!(
            "its network namespace cannot be found: noqueue stays where {default} was"
        )));
    };
    let index = attached.meta.ifindex;
    let restored = place.run(|| match netdev::find_index(index)? {
        Some(device) => qdisc::restore_default(&device),
        None => Ok(true),
    })?;
    Ok((!restored).then(|| "its qdisc was changed meanwhile and is left as it is".into()))
}
