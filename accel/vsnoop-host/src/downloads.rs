//! Switches the downloads of an attached port (`split`).

use vsnoop_bpf::split as programs;

use crate::error::{Error, Result, Unfit, unfit, with_causes};
use crate::ports::{Attached, AttachmentState};
use crate::split::{self, TapId, Unavailable};
use crate::system::netdev::{self, Device};
use crate::system::netns::Netns;

/// Result of switching downloads on or off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Downloads {
    /// They were as they are wanted.
    Same,
    On,
    Off,
    /// The host lacks something, or the port is not fit: they stay off.
    Refused(String),
}

/// Switches them on or off. The caller holds the lock of commands. `netns`: that of the tap.
pub fn set(attached: &Attached, netns: &Netns, is_on: bool) -> Result<Downloads> {
    let port = &attached.port;
    let was_on = port.policy()?.downloads != 0;
    match (was_on, is_on) {
        // An incomplete pair is made anew.
        (true, true) if is_complete(attached, netns) => Ok(Downloads::Same),
        (_, true) => {
            Ok(turn_on(attached, netns).map_or_else(Downloads::Refused, |()| Downloads::On))
        }
        (false, false) if !programs::has_pins(port) => Ok(Downloads::Same),
        (_, false) => {
            split::turn_off(port).map_err(|error| not_switched_off(attached, &error))?;
            Ok(Downloads::Off)
        }
    }
}

/// Refuses a port whose connections are not split.
pub fn require_fit(attached: &Attached) -> Result<()> {
    let name = &attached.name;
    if attached.state == AttachmentState::Observing {
        let text = format!("port {name} is only being observed: there are no downloads to split");
        return Err(unfit(Unfit::Other, text));
    }
    if attached.meta.uplink != 0 {
        return Err(unfit(Unfit::Other, with_incast(name)));
    }
    Ok(())
}

/// A port has one of both.
fn with_incast(name: &str) -> String {
    format!(
        "port {name} is under incast control, beside which downloads are not supported yet; \
         `vsnoop detach {name}`, then `vsnoop attach {name} --downloads on` without it"
    )
}

/// Follows a change of the tap's MTU. Returns whether there was one. The calling thread is in the
/// tap's network namespace.
pub fn follow_mtu(attached: &Attached, device: &Device) -> Result<bool> {
    if attached.port.policy()?.downloads == 0 {
        return Ok(false);
    }
    let follow = || {
        let Some(sockets) = split::namespace::open()? else { return Ok(false) };
        split::follow_mtu(tap_of(attached), device, &sockets)
    };
    let followed: split::Result<bool> = follow();
    followed.map_err(|error| {
        let port = attached.name.clone();
        Error::DownloadsMtu { port, reason: with_causes(&error) }
    })
}

/// Ends the downloads of a port whose tap has left its network namespace. Returns whether it had
/// any.
pub fn end_of_moved(attached: &Attached) -> Result<bool> {
    if attached.port.policy()?.downloads == 0 {
        return Ok(false);
    }
    split::cut(&attached.port).map_err(|error| not_switched_off(attached, &error))?;
    Ok(true)
}

fn not_switched_off(attached: &Attached, error: &Unavailable) -> Error {
    Error::Downloads { port: attached.name.clone(), reason: with_causes(error) }
}

fn tap_of(attached: &Attached) -> TapId {
    TapId { netns: attached.meta.netns, ifindex: attached.meta.ifindex }
}

fn is_complete(attached: &Attached, netns: &Netns) -> bool {
    let has_pair = || {
        let Some(sockets) = split::namespace::open()? else { return Ok(false) };
        netns.run(|| split::find_pair(tap_of(attached), &sockets)).map(|pair| pair.is_some())
    };
    let has_pair: split::Result<bool> = has_pair();
    programs::is_attached(&attached.port) && has_pair.unwrap_or(false)
}

fn turn_on(attached: &Attached, netns: &Netns) -> std::result::Result<(), String> {
    let index = attached.meta.ifindex;
    let turned_on = netns.run(|| {
        let device =
            netdev::find_index(index)?.ok_or_else(|| Unavailable::Gone(attached.name.clone()))?;
        split::turn_on(&attached.port, &device)
    });
    turned_on.map_err(|error| with_causes(&error))
}
