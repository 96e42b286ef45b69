//! One network, its faults, and streams opened by either end; the frame of nearly every test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::relay::{Direction, Faults, Freeze};
use vsnoop_testbed::stream::{Outcome, Stream, StreamPlan};
use vsnoop_testbed::topology::{Family, Side, Topology, TopologyOptions};

use crate::PREFIX;
use crate::attached::{self, Attached};

/// The action that vsnoop must have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// Acknowledged segments early.
    Yes,
    /// Acknowledged no segment early.
    Never,
    /// Either.
    Any,
}

/// A VM that runs for 10 ms of every 30.
pub const SHARING_A_CORE: Freeze =
    Freeze::Periodic { frozen: Duration::from_millis(20), period: Duration::from_millis(30) };

/// The default is a VM that shares a core, behind a network without faults.
#[derive(Clone, Debug)]
pub struct Case {
    pub topology: TopologyOptions,
    /// The hold that the port is attached with; none: the default.
    pub hold: Option<&'static str>,
    /// Further options of `attach`.
    pub options: &'static [&'static str],
    /// Set at both ends before the first stream.
    pub sysctls: Vec<(&'static str, &'static str)>,
    pub plan: StreamPlan,
    /// One stream for each combination of these, one after the other.
    pub families: &'static [Family],
    pub openers: &'static [Side],
    pub freezes: &'static [Freeze],
    /// Faults behind the hooks, on the way to the VM.
    pub to_vm: Faults,
    /// Faults before the hooks see what the VM sends.
    pub from_vm: Faults,
    /// Faults between client and host, in both directions.
    pub network: Faults,
    pub early: Early,
}

impl Default for Case {
    fn default() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            topology: TopologyOptions {
                prefix: PREFIX.to_owned(),
                seed: number.into(),
                ..TopologyOptions::default()
            },
            hold: None,
            options: &[],
            sysctls: Vec::new(),
            plan: StreamPlan {
                to_vm_bytes: 400_000,
                from_vm_bytes: 200_000,
                seed: number.into(),
                ..StreamPlan::default()
            },
            families: &[Family::V4],
            openers: &[Side::Client, Side::Vm],
            freezes: &[SHARING_A_CORE],
            to_vm: Faults::default(),
            from_vm: Faults::default(),
            network: Faults::default(),
            early: Early::Yes,
        }
    }
}

impl Case {
    /// The network of this case, its faults set.
    pub fn build(&self) -> Result<Topology> {
        let mut options = self.topology.clone();
        options.network |= self.network != Faults::default();
        let topology = Topology::build(&options)?;
        for (key, value) in &self.sysctls {
            for side in [Side::Client, Side::Vm] {
                topology.netns(side).set_sysctl(key, value)?;
            }
        }
        for (towards, guest) in [(Side::Vm, &self.to_vm), (Side::Client, &self.from_vm)] {
            let freeze = self.freezes.first().copied().unwrap_or_default();
            topology.set_guest_faults(towards, Faults { freeze, ..guest.clone() });
            topology.set_network_faults(towards, self.network.clone());
        }
        Ok(topology)
    }

    /// Attaches as this case wants it.
    pub fn attach<'a>(&self, topology: &'a Topology) -> Result<Attached<'a>> {
        let attached = Attached::with(topology, self.hold, self.options)?;
        if self.hold.is_some() {
            attached.until_it_holds(topology)?;
        }
        Ok(attached)
    }

    pub fn run(&self) -> Result<()> {
        self.run_and(|_, _, _| Ok(()))
    }

    /// Runs the case, and lets `verify` look at the network, the attachment and the streams' ends.
    pub fn run_and(
        &self,
        verify: impl FnOnce(&Topology, &Attached<'_>, &[Outcome]) -> Result<()>,
    ) -> Result<()> {
        let topology = self.build()?;
        let mut attached = self.attach(&topology)?;
        let before = self.until_ready(&topology, &attached)?;
        let mut outcomes = Vec::new();
        for (freeze, plan) in self.streams() {
            topology.guest().set_freeze(freeze);
            let which = || {
                let (family, opener) = (plan.family, plan.opener);
                let state = attached.describe();
                let counters = counters(&topology);
                format!("{family:?}, opened by {opener:?}, {freeze:?}\n{state}\n{counters}")
            };
            let outcome = Stream::run(&topology, &plan).with_context(which)?;
            ensure!(outcome.is_complete(), "a stream was reset: {outcome:?}\n{}", which());
            outcomes.push(outcome);
        }
        verify(&topology, &attached, &outcomes).with_context(|| attached.describe())?;
        self.until_early(&topology, &attached, before)?;
        self.verify_early(&attached)?;
        // Detaching waits for a VM that shares a core.
        topology.guest().set_freeze(Freeze::Never);
        if attached.has_hold() {
            attached.until_memory_is_free()?;
            attached.ensure_no_reset()?;
        }
        attached.detach()
    }

    fn wants_early(&self, attached: &Attached<'_>) -> bool {
        attached.has_hold() && self.early == Early::Yes
    }

    /// Waits until the port acknowledges early, if the streams are to be; the early ACKs so far.
    fn until_ready(&self, topology: &Topology, attached: &Attached<'_>) -> Result<u64> {
        if !self.wants_early(attached) {
            return Ok(0);
        }
        attached.until_it_holds(topology)?;
        attached.counter("early_acks")
    }

    /// All streams may have come while the engine had no CPU.
    fn until_early(&self, topology: &Topology, attached: &Attached<'_>, before: u64) -> Result<()> {
        if !self.wants_early(attached) {
            return Ok(());
        }
        let is_early = || Ok(attached.counter("early_acks")? > before);
        self.send_until(topology, attached, "something is acknowledged early", is_early)
    }

    /// Sends more until the fault of this case has happened: chance may have spared the first
    /// streams.
    pub fn until_it_happens(
        &self,
        topology: &Topology,
        attached: &Attached<'_>,
        count: impl Fn() -> u64,
    ) -> Result<()> {
        self.send_until(topology, attached, "the fault happens", || Ok(count() > 0))
    }

    /// Sends one stream after the other until something is so.
    fn send_until(
        &self,
        topology: &Topology,
        attached: &Attached<'_>,
        what: &str,
        is_so: impl Fn() -> Result<bool>,
    ) -> Result<()> {
        let (_, plan) = self.streams().remove(0);
        attached.wait_until(what, || {
            let is_so = is_so()?;
            if !is_so {
                let outcome = Stream::run(topology, &plan)?;
                ensure!(outcome.is_complete(), "a stream was reset: {outcome:?}");
            }
            Ok(is_so)
        })
    }

    /// Runs a stream opened by each end. Both pause after each `step_bytes`, `steps` times;
    /// `at_each` is called when they go on. They end after its last call.
    pub fn run_in_steps(
        &self,
        attached: &mut Attached<'_>,
        topology: &Topology,
        steps: u64,
        step_bytes: u64,
        at_each: impl Fn(&mut Attached<'_>) -> Result<()>,
    ) -> Result<()> {
        let bytes = (steps + 2) * step_bytes;
        let plan = StreamPlan {
            to_vm_bytes: bytes,
            from_vm_bytes: bytes,
            pause_every_bytes: Some(step_bytes),
            ..self.plan.clone()
        };
        let streams = [Side::Client, Side::Vm]
            .map(|opener| Stream::start(topology, &StreamPlan { opener, ..plan.clone() }));
        let streams: Vec<_> = streams.into_iter().collect::<Result<_>>()?;
        for _ in 0..steps {
            streams.iter().try_for_each(Stream::wait_paused)?;
            streams.iter().for_each(Stream::step);
            at_each(attached)?;
        }
        for stream in streams {
            let outcome = stream.finish().with_context(|| attached.describe())?;
            ensure!(outcome.is_complete(), "{outcome:?}\n{}", attached.describe());
        }
        Ok(())
    }

    /// All streams of this case, and how the VM runs meanwhile.
    pub fn streams(&self) -> Vec<(Freeze, StreamPlan)> {
        let mut streams = Vec::new();
        for freeze in self.freezes {
            for family in self.families {
                for opener in self.openers {
                    let seed = self.plan.seed.wrapping_add(streams.len() as u64) << 8;
                    let plan =
                        StreamPlan { family: *family, opener: *opener, seed, ..self.plan.clone() };
                    streams.push((*freeze, plan));
                }
            }
        }
        streams
    }

    /// Verifies that vsnoop acknowledged early what this case expects.
    pub fn verify_early(&self, attached: &Attached<'_>) -> Result<()> {
        if !attached::is_wanted() || self.early == Early::Any {
            return Ok(());
        }
        let early_acks = attached.counter("early_acks")?;
        ensure!(
            (early_acks > 0) == (self.early == Early::Yes),
            "{early_acks} early acknowledgements, wanted: {:?}\n{}",
            self.early,
            attached.describe()
        );
        Ok(())
    }
}

/// Segments were marked on the network, and the client was told.
pub fn marks_are_echoed(topology: &Topology) -> Result<()> {
    let network = topology.network().context("no network relay")?;
    let marked = network.counters(Direction::LeftToRight).marked;
    ensure!(marked > 0, "nothing was marked");
    // Not the client's `tcpi_delivered_ce`: an echo on an ACK of nothing new does not count there.
    let echoes = network.counters(Direction::RightToLeft).echoes;
    ensure!(echoes > 0, "{marked} marked segments, and the client was told of none");
    Ok(())
}

/// Counters of the relays.
fn counters(topology: &Topology) -> String {
    let network = topology.network().map(|relay| relay.counters(Direction::LeftToRight));
    let guest = topology.guest().counters(Direction::LeftToRight);
    let back = topology.guest().counters(Direction::RightToLeft);
    format!("network: {network:?}\nto the VM: {guest:?}\nfrom the VM: {back:?}")
}
