//! Early acknowledgement and diversion on the same tap.
//!
//! Packets of the VM must pass from_vm before it leaves for the link, or no connection would ever
//! be on record; and so must the early ACKs leave for it, which are the VM's as far as the network
//! can tell.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::hosts::Layout;
use vsnoop_testbed::topology::Family;

use super::hosts::build;
use super::link::Link;
use super::{BYTES, connect, exchange};
use crate::attached::{self, Attached};
use crate::case::SHARING_A_CORE;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("divert::early_acks_leave_through_the_link_attached_before", || run(true)),
        trial("divert::early_acks_leave_through_the_link_attached_after", || run(false)),
    ]
}

fn run(vsnoop_first: bool) -> Result<()> {
    let hosts = build(Layout::Bridged)?;
    let attach = || Attached::on(&hosts.hosts[1].netns, None, &[]);
    let (mut attached, link);
    if vsnoop_first {
        attached = attach()?;
        link = Link::start(&hosts)?;
    } else {
        link = Link::start(&hosts)?;
        attached = attach()?;
    }
    hosts.hosts[1].set_freeze(SHARING_A_CORE);
    for family in [Family::V4, Family::V6] {
        let before = link.bytes();
        exchange(&mut connect(&hosts, family)?, BYTES)?;
        ensure!(link.bytes() - before > 2 * BYTES, "{family:?}: not through the link");
    }
    if attached::is_wanted() {
        attached.wait_until("the host acknowledges early", || {
            exchange(&mut connect(&hosts, Family::V4)?, BYTES)?;
            Ok(attached.counter("early_acks")? > 0)
        })?;
    }
    hosts.hosts[1].set_freeze(Default::default());
    attached.detach()?;
    // The link is still on the tap.
    let before = link.bytes();
    exchange(&mut connect(&hosts, Family::V4)?, BYTES)?;
    ensure!(link.bytes() - before > 2 * BYTES, "detaching took the link off");
    Ok(())
}
