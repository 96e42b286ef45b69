//! Tests of the network itself, without vsnoop.

use anyhow::{bail, ensure};
use libtest_mimic::Trial;
use vsnoop_testbed::relay::{Direction, Faults};
use vsnoop_testbed::stream::Stream;

use crate::case::Case;
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("bare::hostile_network_is_mended_by_tcp_alone", hostile_network),
        trial("bare::one_wrong_bit_is_noticed", one_wrong_bit),
    ]
}

fn hostile_network() -> anyhow::Result<()> {
    let network = Faults { loss: 0.05, duplicate: 0.05, corrupt: 0.05, ..Faults::default() };
    let case = Case { network, ..Case::default() };
    let topology = case.build()?;
    for (_, plan) in case.streams() {
        let outcome = Stream::run(&topology, &plan)?;
        ensure!(outcome.is_complete(), "{plan:?} came to {outcome:?}");
    }
    Ok(())
}

fn one_wrong_bit() -> anyhow::Result<()> {
    let case = Case { to_vm: Faults { falsify: 1.0, ..Faults::default() }, ..Case::default() };
    let topology = case.build()?;
    let ended = Stream::run(&topology, &case.plan);
    let falsified = topology.guest().counters(Direction::LeftToRight).falsified;
    ensure!(falsified > 0, "no bit was flipped");
    match ended {
        Err(error) if format!("{error:#}").contains("wrong byte") => Ok(()),
        other => bail!("{falsified} frames had a wrong bit, and the stream came to {other:?}"),
    }
}
