//! A link that goes and comes back under connections that do not notice.

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use vsnoop_divert::Action;
use vsnoop_testbed::hosts::Layout;
use vsnoop_testbed::topology::Family;

use super::hosts::{LINK_TAP, build, came_out};
use super::link::{Link, Process, rules};
use super::{BYTES, connect, exchange};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("divert::off_and_on_between_transfers", step_by_step),
        trial("divert::off_and_on_under_full_traffic", under_full_traffic),
        trial("divert::other_rules_in_mid_stream", other_rules),
        trial("divert::a_link_that_is_killed_leaves_the_ordinary_way", killed),
        trial("divert::a_link_whose_tap_is_deleted_leaves_the_ordinary_way", deleted_tap),
    ]
}

fn step_by_step() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let hosts = build(Layout::Bridged)?;
        let link = Link::start(&hosts)?;
        let mut pair = connect(&hosts, family)?;
        for is_up in [true, false, true, false, true] {
            link.set_up(is_up)?;
            let before = link.bytes();
            exchange(&mut pair, BYTES)?;
            let carried = link.bytes() - before;
            // Down, the last ACKs of the step before may still come out.
            ensure!((carried > BYTES) == is_up, "up: {is_up}, and {carried} bytes carried");
        }
    }
    Ok(())
}

fn under_full_traffic() -> Result<()> {
    const SWITCHES: usize = 40;
    let hosts = build(Layout::RoutedBridge)?;
    let link = Link::start(&hosts)?;
    let mut pair = connect(&hosts, Family::V4)?;
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| exchange(&mut pair, 40 * BYTES));
        let mut switches = 0;
        while !traffic.is_finished() && switches < SWITCHES {
            let before = link.bytes();
            link.set_up(true)?;
            // The link has to be used before it goes again.
            while link.bytes() < before + 100_000 && !traffic.is_finished() {
                std::thread::yield_now();
            }
            link.set_up(false)?;
            switches += 1;
        }
        link.set_up(true)?;
        traffic.join().expect("no panic")?;
        ensure!(switches > 3, "the traffic ended after {switches} switches");
        Ok(())
    })
}

/// The rules of one host take the traffic out of the link and put it in again: that of the other
/// goes through it all the time.
fn other_rules() -> Result<()> {
    let hosts = build(Layout::Bridged)?;
    let mut link = Link::start(&hosts)?;
    let mut pair = connect(&hosts, Family::V4)?;
    for action in [Action::Never, Action::DivertOrDrop, Action::Never, Action::DivertOrPass] {
        link.diversions[0].set_rules(&rules(&hosts, 1, action))?;
        let before = link.frames();
        exchange(&mut pair, BYTES)?;
        let after = link.frames();
        let is_diverted = action != Action::Never;
        // Packets that the hook diverted before come out of the link later.
        let carried = after[0] - before[0];
        ensure!((carried > 10) == is_diverted, "{action:?}: {carried} frames carried");
        ensure!(after[1] > before[1], "the other host's rules have changed too");
    }
    Ok(())
}

fn killed() -> Result<()> {
    for layout in [Layout::Bridged, Layout::RoutedBridge] {
        let hosts = build(layout)?;
        let process = Process::start(&hosts)?;
        let mut pair = connect(&hosts, Family::V4)?;
        exchange(&mut pair, BYTES)?;
        let received = came_out(&hosts.hosts[1])?;
        ensure!(received > 0, "nothing went through the link");
        std::thread::scope(|scope| {
            let traffic = scope.spawn(|| exchange(&mut pair, 10 * BYTES));
            while came_out(&hosts.hosts[1])? < received + 20 && !traffic.is_finished() {
                std::thread::yield_now();
            }
            process.kill()?;
            traffic.join().expect("no panic").context("the link was killed")
        })?;
        exchange(&mut pair, BYTES)?;
        let gone = hosts.hosts[0].netns.ip(&format!("link show {LINK_TAP}"));
        ensure!(gone.is_err(), "the tap of the dead link is there");
    }
    Ok(())
}

/// The process lives and its hooks stay, but there is nothing to divert into.
fn deleted_tap() -> Result<()> {
    let hosts = build(Layout::Bridged)?;
    let link = Link::start(&hosts)?;
    let mut pair = connect(&hosts, Family::V6)?;
    exchange(&mut pair, BYTES)?;
    for host in &hosts.hosts {
        host.netns.delete(LINK_TAP)?;
    }
    exchange(&mut pair, BYTES)?;
    for diversion in &link.diversions {
        let missed: u64 =
            diversion.read_counters()?.iter().map(|(_, counted)| counted.missed).sum();
        ensure!(missed > 0, "no packet came that should have been diverted");
    }
    Ok(())
}
