//! The last ACK of the VM is lost, or the data before it, and then both ends are silent: the helper
//! asks the VM which it was.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use vsnoop_frame::edit::Tag;
use vsnoop_lab::testbed::relay::{Direction, Faults, Freeze};
use vsnoop_lab::testbed::topology::{Family, PORT, Side, Topology, TopologyOptions, address};

use crate::attached::{self, Attached};
use crate::case::Case;
use crate::{FAMILIES, trial};

/// What takes longer has hung.
const PATIENCE: Duration = Duration::from_secs(120);
/// By then a receiver has sent the ACK that it delays (RFC 9293, section 3.8.6.3, allows half a second).
const DELAYED_ACK: Duration = Duration::from_millis(500);
/// The burst whose fate is in question.
const BURST: usize = 1000;

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    let plain = [("net.ipv4.tcp_timestamps", "0"), ("net.ipv4.tcp_sack", "0")];
    let options = [("with_options", vec![]), ("without_options", plain.to_vec())];
    for (family_name, families) in FAMILIES {
        for (options_name, sysctls) in &options {
            for (tags_name, tags) in
                [("untagged", vec![]), ("double_tagged", vec![Tag::service(100), Tag::customer(7)])]
            {
                let name = format!("{family_name}_{options_name}_{tags_name}");
                let scene = Scene { family: families[0], sysctls: sysctls.clone(), tags };
                let (first, second, third) = (scene.clone(), scene.clone(), scene);
                trials.push(trial(
                    format!("question::a_connection_outlives_a_lost_acknowledgement_{name}"),
                    move || lost_acknowledgement(&first, 1),
                ));
                trials.push(trial(
                    format!("question::and_the_loss_of_the_first_answer_too_{name}"),
                    move || lost_acknowledgement(&second, 2),
                ));
                trials.push(trial(
                    format!("question::lost_data_is_reset_all_the_same_{name}"),
                    move || lost_data(&third),
                ));
            }
        }
    }
    trials
}

#[derive(Clone)]
struct Scene {
    family: Family,
    sysctls: Vec<(&'static str, &'static str)>,
    tags: Vec<Tag>,
}

impl Scene {
    fn build(&self) -> Result<Topology> {
        let base = Case::default();
        Case {
            topology: TopologyOptions {
                network: !self.tags.is_empty(),
                tags: self.tags.clone(),
                ..base.topology.clone()
            },
            sysctls: self.sysctls.clone(),
            freezes: &[Freeze::Never],
            ..base
        }
        .build()
    }
}

/// The first `frames` that the VM sends after the burst are lost.
fn lost_acknowledgement(scene: &Scene, frames: u64) -> Result<()> {
    let topology = scene.build()?;
    let mut attached = Attached::new(&topology)?;
    if !attached::is_wanted() {
        return Ok(());
    }
    let (mut sender, mut receiver) = connect(&topology, scene.family)?;
    exchange(&mut sender, &mut receiver)?;
    let lost = || topology.guest().counters(Direction::RightToLeft).lost;
    let lost_before = lost();
    topology.set_guest_faults(Side::Client, Faults { loss: 1.0, ..Faults::default() });
    sender.write_all(&[7; BURST])?;
    receiver.read_exact(&mut [0; BURST]).context("the burst in the VM")?;
    wait_until(&attached, "the VM's ACK is lost", || Ok(lost() > lost_before))?;
    std::thread::sleep(DELAYED_ACK);
    ensure!(outstanding_bytes(&attached)? == BURST as u64, "{}", attached.describe());
    wait_until(&attached, "more is lost", || Ok(lost() - lost_before >= frames))?;

    topology.set_guest_faults(Side::Client, Faults::default());
    wait_until(&attached, "the VM has told how far it has got", || {
        Ok(outstanding_bytes(&attached)? == 0)
    })?;
    exchange(&mut sender, &mut receiver).with_context(|| attached.describe())?;
    for resets in ["helper_resets", "guest_loss"] {
        ensure!(attached.counter(resets)? == 0, "{resets}\n{}", attached.describe());
    }
    attached.detach()
}

fn lost_data(scene: &Scene) -> Result<()> {
    let topology = scene.build()?;
    let mut attached = Attached::new(&topology)?;
    if !attached::is_wanted() {
        return Ok(());
    }
    let (mut sender, mut receiver) = connect(&topology, scene.family)?;
    exchange(&mut sender, &mut receiver)?;
    let lossy = Faults { loss: 1.0, data_only: true, ..Faults::default() };
    topology.set_guest_faults(Side::Vm, lossy);
    sender.write_all(&[7; BURST])?;
    wait_until(&attached, "the host has acknowledged what the VM lost", || {
        let lost = topology.guest().counters(Direction::LeftToRight).lost;
        Ok(lost > 0 && outstanding_bytes(&attached)? == BURST as u64)
    })?;
    topology.set_guest_faults(Side::Vm, Faults::default());
    if attached.has_hold() {
        // There is a copy: no need for a reset.
        receiver.read_exact(&mut [0; BURST]).context("the burst in the VM")?;
        exchange(&mut sender, &mut receiver).with_context(|| attached.describe())?;
        ensure!(attached.hold("resends")? > 0, "sent again by nobody\n{}", attached.describe());
        attached.ensure_no_reset()?;
        return attached.detach();
    }
    let answers_before = attached.counter("suppressed")?;
    wait_until(&attached, "the connection is reset", || {
        Ok(attached.counter("helper_resets")? == 1)
    })?;
    // The VM said nothing new to the questions, so the sender was told nothing.
    let answers = attached.counter("suppressed")? - answers_before;
    ensure!(answers == 2, "{answers} answers to two questions\n{}", attached.describe());
    for (end, name) in [(&mut sender, "sender"), (&mut receiver, "VM")] {
        match end.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => bail!("the {name} got {other:?} instead of a reset"),
        }
    }
    attached.detach()
}

fn connect(topology: &Topology, family: Family) -> Result<(TcpStream, TcpStream)> {
    let to = SocketAddr::new(address(Side::Vm, family), 7);
    let listener = topology.vm.run(|| Ok(TcpListener::bind(to)?))?;
    let sender = topology.client.run(|| Ok(TcpStream::connect(to)?))?;
    let (receiver, _) = listener.accept()?;
    for end in [&sender, &receiver] {
        end.set_nodelay(true)?;
        end.set_read_timeout(Some(PATIENCE))?;
    }
    Ok((sender, receiver))
}

/// Bytes to the VM and back, which both ends acknowledge: the last of the VM's with data.
fn exchange(sender: &mut TcpStream, receiver: &mut TcpStream) -> Result<()> {
    let sent: Vec<_> = (0..10_000).map(|i| (i % 251) as u8).collect();
    let mut received = vec![0; sent.len()];
    sender.write_all(&sent)?;
    receiver.read_exact(&mut received).context("reading in the VM")?;
    ensure!(received == sent, "the VM received something else");
    receiver.write_all(&received)?;
    sender.read_exact(&mut received).context("reading at the sender")?;
    ensure!(received == sent, "the sender received something else");
    Ok(())
}

fn outstanding_bytes(attached: &Attached<'_>) -> Result<u64> {
    let status: Value = serde_json::from_str(&attached.run(&["status", PORT, "--json"])?)
        .context("vsnoop status printed no JSON")?;
    status["ports"][0]["outstanding_bytes"].as_u64().context("no outstanding_bytes")
}

fn wait_until(
    attached: &Attached<'_>,
    what: &str,
    mut done: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        ensure!(start.elapsed() < PATIENCE, "in vain: {what}\n{}", attached.describe());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
