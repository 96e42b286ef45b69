//! The stage of the experiment, and what is measured on it.
//!
//! Rounds come in blocks: a configuration is set up, connections are opened, one round warms them up
//! and is not counted, the others are. Between blocks nothing is left of either.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::configuration::{Attached, Configuration};
use super::connections::{self, Opener, Wanted};
use super::pattern::Pattern;
use super::plan::{Point, RTO_MIN_MS};
use super::receiver::Receiver;
use super::senders::Senders;
use crate::interrupt;
use crate::results::incast::{Part, Round};
use crate::results::{Cell, Ending, Sample};
use crate::session::{PREFIX, Session};
use crate::testbed::fan_in::FanIn;
use crate::testbed::net::TcpCounters;
use crate::testbed::switch::{LastHop, PortCounts};
use crate::vsnoop::Vsnoop;

pub const RATE_MBIT: u64 = 1000;
/// MTU and Ethernet header.
pub const PACKET_BYTES: u64 = 1514;
/// Before a round counts as hanging: TCP tries again after 0.2, 0.6, 1.4, 3 and 6.2 s.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Flows without an end are not counted in their first second.
const SETTLE: Duration = Duration::from_secs(1);
pub const LONG: Duration = Duration::from_secs(5);

pub struct Stage {
    pub fan_in: FanIn,
    counters: Vec<TcpCounters>,
    last_hop: Option<LastHop>,
    rto_min_ms: u32,
    pattern: Pattern,
    vsnoop: Option<Vsnoop>,
    pub opener: Opener,
}

/// Sums of all that is counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    timeouts: u64,
    retransmissions: u64,
    window_probes: u64,
    last_hop: PortCounts,
    tap_drops: u64,
}

impl Stage {
    /// `senders` and one more, for the connection in the background.
    pub fn build(senders: usize, opener: Opener, vsnoop: Option<&Vsnoop>) -> Result<Self> {
        let fan_in = FanIn::build(PREFIX, senders + 1)?;
        let counters =
            fan_in.senders.iter().map(|sender| sender.tcp_counters()).collect::<Result<_>>()?;
        let vsnoop = vsnoop.map(|vsnoop| vsnoop.in_netns(fan_in.host.name()));
        let pattern = Pattern::new();
        Ok(Self {
            fan_in,
            counters,
            last_hop: None,
            rto_min_ms: RTO_MIN_MS,
            pattern,
            vsnoop,
            opener,
        })
    }

    /// Sets up what surrounds the rounds of a point.
    pub fn prepare(&mut self, point: &Point) -> Result<()> {
        let buffer_bytes = point.incast.buffer_bytes;
        self.set_last_hop(Some(LastHop { rate_mbit: RATE_MBIT, buffer_bytes }))?;
        if self.rto_min_ms != point.incast.rto_min_ms {
            let microseconds = (u64::from(point.incast.rto_min_ms) * 1000).to_string();
            for sender in &self.fan_in.senders {
                sender
                    .set_sysctl("net.ipv4.tcp_rto_min_us", &microseconds)
                    .context("set the least RTO (Linux 6.11 or newer)")?;
            }
            self.rto_min_ms = point.incast.rto_min_ms;
        }
        Ok(())
    }

    pub fn set_last_hop(&mut self, last_hop: Option<LastHop>) -> Result<()> {
        if self.last_hop != last_hop {
            self.fan_in.switch.set_last_hop(last_hop)?;
            self.last_hop = last_hop;
        }
        Ok(())
    }

    /// A block of rounds in one configuration; it ends early when a round hangs.
    pub fn block(
        &self,
        session: &mut Session,
        point: &Point,
        configuration: Configuration,
        rounds: usize,
        begin: Instant,
    ) -> Result<Vec<Sample>> {
        let attached = match (&self.vsnoop, configuration) {
            (Some(vsnoop), Configuration::Incast | Configuration::Alone) => {
                let netns = self.fan_in.host.name();
                let buffer_bytes = point.incast.buffer_bytes;
                let alone = configuration == Configuration::Alone;
                Some(Attached::attach(session, vsnoop, netns, alone, RATE_MBIT, buffer_bytes)?)
            }
            _ => None,
        };
        let samples = self.rounds(point, configuration, rounds, begin)?;
        attached.map_or(Ok(()), Attached::detach)?;
        Ok(samples)
    }

    fn rounds(
        &self,
        point: &Point,
        configuration: Configuration,
        rounds: usize,
        begin: Instant,
    ) -> Result<Vec<Sample>> {
        let senders = point.incast.senders;
        let background = point.incast.part == Part::CappedBackground;
        let wanted = Wanted {
            count: senders + usize::from(background),
            opener: self.opener,
            congestion_control: point.incast.congestion_control,
            cap: configuration.cap_bytes().map(|bytes| (senders, bytes)),
        };
        let (from, to) = connections::open(&self.fan_in, &wanted)?;
        // Declared in the order of their end, reversed: the receiver closes first.
        let _senders = Senders::start(from, self.pattern.clone())?;
        let mut receiver = Receiver::new(to, self.pattern.clone())?;
        if background {
            receiver.ask_endlessly(senders)?;
            receiver.listen(SETTLE)?;
        }
        if point.incast.part == Part::Long {
            (0..senders).try_for_each(|number| receiver.ask_endlessly(number))?;
            receiver.listen(SETTLE)?;
        }
        let mut samples = Vec::new();
        // One more, to warm up.
        for round in 0..=rounds {
            let at_ms = begin.elapsed().as_secs_f64() * 1e3;
            let before = self.count(wanted.count)?;
            let outcome = if point.incast.part == Part::Long {
                if round == 0 {
                    continue;
                }
                let bytes = receiver.listen(LONG)?;
                let megabits = |bytes: &u64| *bytes as f64 * 8.0 / 1e6 / LONG.as_secs_f64();
                Some((LONG, bytes.iter().map(megabits).collect()))
            } else {
                let took = receiver.round(senders, point.size_bytes, PATIENCE)?;
                took.map(|took| (took, Vec::new()))
            };
            let after = self.count(wanted.count)?;
            let made = self.sample(point, configuration, outcome, before, after)?;
            let hung = made.ending == Ending::Hung;
            if hung {
                let missing = receiver.missing();
                eprintln!(
                    "{}, {}: a round hangs; sender and bytes missing: {missing:?}",
                    configuration.name(),
                    point.incast
                );
            }
            if round > 0 || hung {
                samples.push(Sample { at_ms, ..made });
            }
            if hung {
                break;
            }
        }
        Ok(samples)
    }

    fn sample(
        &self,
        point: &Point,
        configuration: Configuration,
        outcome: Option<(Duration, Vec<f64>)>,
        before: Counts,
        after: Counts,
    ) -> Result<Sample> {
        let packets = after.last_hop.packets - before.last_hop.packets;
        let bytes = after.last_hop.bytes - before.last_hop.bytes;
        ensure!(
            bytes <= packets * PACKET_BYTES,
            "{packets} packets of {bytes} bytes went through the last hop: it saw super-packets"
        );
        let round = outcome.map(|(took, flows_mbps)| {
            let seconds = took.as_secs_f64();
            let asked = point.incast.senders as u64 * point.size_bytes;
            let all = flows_mbps.iter().sum::<f64>();
            let goodput_mbps =
                if flows_mbps.is_empty() { asked as f64 * 8.0 / 1e6 / seconds } else { all };
            Round {
                round_ms: seconds * 1e3,
                goodput_mbps,
                timeouts: after.timeouts - before.timeouts,
                window_probes: after.window_probes - before.window_probes,
                last_hop_drops: after.last_hop.drops - before.last_hop.drops,
                flows_mbps,
            }
        });
        Ok(Sample {
            configuration: configuration.name(),
            size_bytes: point.size_bytes,
            cell: Cell { vms: 1, incast: Some(point.incast), ..Cell::default() },
            ending: if round.is_some() { Ending::Exact } else { Ending::Hung },
            retransmissions: (after.retransmissions - before.retransmissions) as u32,
            tap_drops: after.tap_drops - before.tap_drops,
            round,
            ..Sample::default()
        })
    }

    fn count(&self, senders: usize) -> Result<Counts> {
        interrupt::check()?;
        let mut counts = Counts {
            last_hop: self.fan_in.switch.counts()?,
            tap_drops: self.fan_in.port_drops()?,
            ..Counts::default()
        };
        for counter in &self.counters[..senders] {
            let counted = counter.read()?;
            counts.timeouts += counted.timeouts;
            counts.retransmissions += counted.retransmissions;
            counts.window_probes += counted.window_probes;
        }
        Ok(counts)
    }

    /// What one flow carries, in Mb/s, and how large its packets are at the last hop, if that is
    /// limited.
    pub fn one_flow(&mut self, last_hop: Option<LastHop>) -> Result<(f64, Option<f64>)> {
        const MEASURE: Duration = Duration::from_secs(2);
        self.set_last_hop(last_hop)?;
        let wanted = Wanted {
            count: 1,
            opener: self.opener,
            congestion_control: Default::default(),
            cap: None,
        };
        let (from, to) = connections::open(&self.fan_in, &wanted)?;
        let _senders = Senders::start(from, self.pattern.clone())?;
        let mut receiver = Receiver::new(to, self.pattern.clone())?;
        receiver.ask_endlessly(0)?;
        receiver.listen(SETTLE)?;
        let bytes: u64 = receiver.listen(MEASURE)?.iter().sum();
        let packet_bytes = match last_hop {
            Some(_) => {
                let counts = self.fan_in.switch.counts()?;
                Some(counts.bytes as f64 / counts.packets.max(1) as f64)
            }
            None => None,
        };
        Ok((bytes as f64 * 8.0 / 1e6 / MEASURE.as_secs_f64(), packet_bytes))
    }
}
