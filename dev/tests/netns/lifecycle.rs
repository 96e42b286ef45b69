//! Attaching, detaching, pausing and resuming while streams run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::stream::{Stream, StreamPlan};
use vsnoop_testbed::topology::{Family, PORT, Side, address};
use vsnoop_testbed::vsnoop::PATIENTLY;

use crate::attached::{self, Attached};
use crate::backlog::Backlog;
use crate::case::Case;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("lifecycle::attach_in_mid_stream", attach_in_mid_stream),
        trial("lifecycle::detach_in_mid_stream", detach_in_mid_stream),
        trial("lifecycle::attach_and_detach_again_and_again", again_and_again),
        trial("lifecycle::pause_stops_early_acknowledgements", pause_and_resume),
        trial("lifecycle::several_streams_at_once", several_streams),
        trial("lifecycle::denied_connections_are_left_alone", denied),
        trial("lifecycle::a_deleted_tap_resets_senders_that_were_told_too_much", || {
            deleted_tap(false)
        }),
        trial("lifecycle::detaching_a_deleted_tap_resets_its_senders", || deleted_tap(true)),
    ]
}

fn paused_in_the_middle(case: &Case, opener: Side) -> StreamPlan {
    StreamPlan { opener, pause_every_bytes: Some(150_000), ..case.plan.clone() }
}

fn attach_in_mid_stream() -> anyhow::Result<()> {
    for opener in [Side::Client, Side::Vm] {
        let case = Case::default();
        let topology = case.build()?;
        let stream = Stream::start(&topology, &paused_in_the_middle(&case, opener))?;
        stream.wait_paused()?;
        let mut attached = Attached::new(&topology)?;
        stream.go_on();
        let outcome = stream.finish().with_context(|| attached.describe())?;
        ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
        if attached::is_wanted() {
            let flows = attached.counter("flows_mid_flow")?;
            ensure!(flows > 0, "the running flow was not taken up\n{}", attached.describe());
        }
        attached.detach()?;
    }
    Ok(())
}

fn detach_in_mid_stream() -> anyhow::Result<()> {
    for opener in [Side::Client, Side::Vm] {
        let case = Case::default();
        let topology = case.build()?;
        let mut attached = Attached::new(&topology)?;
        let stream = Stream::start(&topology, &paused_in_the_middle(&case, opener))?;
        stream.wait_paused()?;
        case.verify_early(&attached)?;
        attached.detach()?;
        stream.go_on();
        let outcome = stream.finish()?;
        ensure!(outcome.is_complete(), "{outcome:?}");
    }
    Ok(())
}

/// Under full traffic, of a VM that shares a core: each switch begins with streams that go on, and
/// they never come to their end before the last.
fn again_and_again() -> anyhow::Result<()> {
    let case = Case::default();
    let topology = case.build()?;
    let mut attached = Attached::new(&topology)?;
    case.run_in_steps(&mut attached, &topology, 5, 400_000, |attached| {
        attached.detach()?;
        attached.attach()
    })?;
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

fn pause_and_resume() -> anyhow::Result<()> {
    let case = Case::default();
    let topology = case.build()?;
    let mut attached = Attached::new(&topology)?;
    attached.run(&[&["pause", PORT], PATIENTLY].concat())?;
    let early_acks = || if attached::is_wanted() { attached.counter("early_acks") } else { Ok(0) };
    let before = early_acks()?;
    let outcome = Stream::run(&topology, &case.plan).with_context(|| attached.describe())?;
    ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    let since = early_acks()? - before;
    ensure!(since == 0, "{since} early acknowledgements of a paused port");
    attached.run(&["resume", PORT])?;
    let outcome = Stream::run(&topology, &case.plan).with_context(|| attached.describe())?;
    ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    case.verify_early(&attached)?;
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

fn several_streams() -> anyhow::Result<()> {
    let case = Case::default();
    let topology = case.build()?;
    let mut attached = Attached::new(&topology)?;
    let streams: Vec<_> = (0..8)
        .map(|seed| {
            let opener = if seed % 2 == 0 { Side::Client } else { Side::Vm };
            Stream::start(&topology, &StreamPlan { opener, seed, ..case.plan.clone() })
        })
        .collect();
    for stream in streams {
        let outcome = stream?.finish().with_context(|| attached.describe())?;
        ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
    }
    case.verify_early(&attached)?;
    topology.guest().set_freeze(Freeze::Never);
    attached.detach()
}

/// A sender whose bytes were acknowledged and then lost with the tap only reads: nothing but a
/// reset can tell it.
///
/// With `detach` the operator is faster than the helper.
fn deleted_tap(detach: bool) -> anyhow::Result<()> {
    if !attached::is_wanted() {
        return Ok(());
    }
    let topology = Case::default().build()?;
    let mut attached = Attached::new(&topology)?;
    let mut connection = Backlog::connect(&topology)?;
    topology.guest().set_freeze(Freeze::Now);
    connection.send(16)?;
    topology.host.delete(PORT)?;
    if detach {
        // The helper may have been faster after all; then there is nothing left to detach.
        let _ = attached.run(&["detach", PORT]);
    }
    attached.forget();
    connection.expect_reset_of_sender()
}

/// Deny lists by port number and by prefix: connections that they deny are never acknowledged
/// early.
fn denied() -> anyhow::Result<()> {
    const BYTES: usize = 30_000;
    const DENIED: usize = 5;
    let topology = Case::default().build()?;
    let mut attached = Attached::new(&topology)?;
    if !attached::is_wanted() {
        return Ok(());
    }
    attached.detach()?;
    let client = address(Side::Client, Family::V4);
    let (own, other) = (format!("{client}/32"), "192.0.2.0/24".to_owned());
    // Both listen to the end: a child of another test that has not called `exec` yet has a copy of
    // the socket, so that none could listen at its port again at once.
    let listen = |port| -> anyhow::Result<TcpListener> {
        let at = SocketAddr::new(address(Side::Vm, Family::V4), port);
        topology.vm.run(|| Ok(TcpListener::bind(at)?))
    };
    let (seven, eight) = (listen(7)?, listen(8)?);
    for (arguments, listener, allowed) in [
        (vec!["--deny-port", "7"], &seven, false),
        (vec!["--deny-port", "7"], &eight, true),
        (vec!["--allow-port", "7"], &seven, true),
        (vec!["--allow-port", "7"], &eight, false),
        (vec!["--deny", &own], &seven, false),
        (vec!["--deny", &other], &seven, true),
        (vec!["--allow", &other], &seven, false),
    ] {
        attached.attach_with(&arguments)?;
        let to = listener.local_addr()?;
        let is_early = || -> anyhow::Result<bool> {
            let mut sender = topology.client.run(|| Ok(TcpStream::connect(to)?))?;
            let (mut receiver, _) = listener.accept()?;
            sender.write_all(&vec![1; BYTES])?;
            receiver.read_exact(&mut vec![0; BYTES])?;
            Ok(attached.counter("early_bytes")? > 0)
        };
        if allowed {
            // The first one may come before the memory that the host acknowledges with.
            attached.wait_until("a connection is acknowledged early", is_early)?;
        } else {
            for _ in 0..DENIED {
                ensure!(!is_early()?, "{arguments:?}, {to}\n{}", attached.describe());
            }
        }
        attached.detach()?;
    }
    Ok(())
}
