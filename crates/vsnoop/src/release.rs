//! Letting go of a port: its default qdisc comes back, then the hooks and pins go.
//!
//! In this order a command that is killed in between can be repeated; the pins remember the qdisc until
//! the end, and the hooks acknowledge nothing early without noqueue.

use anyhow::Result;

use crate::helper;
use crate::ports::{Attached, State};
use crate::system::{netdev, qdisc};

/// Takes everything away. Returns what is worth telling about the qdisc.
pub fn release(attached: Attached) -> Result<Option<String>> {
    if attached.state == State::Gone {
        helper::bury(attached)?;
        return Ok(None);
    }
    let note = restore_qdisc(&attached)?;
    attached.port.detach()?;
    Ok(note)
}

fn restore_qdisc(attached: &Attached) -> Result<Option<String>> {
    let Some(default) = attached.port.qdisc_replaced()? else { return Ok(None) };
    let Some(place) = attached.netns() else {
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
