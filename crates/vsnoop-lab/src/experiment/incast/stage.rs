//! The stage of the experiment, and what is measured on it.
//!
//! Rounds are measured in blocks. A block sets up a configuration, opens connections, runs one
//! round that is not counted, to warm them up, and then the counted rounds. At its end it closes
//! the connections and removes the configuration.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vsnoop_guest::rounds::Stream;
use vsnoop_testbed::fan_in::{FanIn, FanInOptions};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::TcpCounters;
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::switch::{LastHop, PortCounts, PortKind};
use vsnoop_testbed::vsnoop::Vsnoop;

use super::configuration::{Attached, Configuration};
use super::connections::{Opener, Wanted};
use super::ends::{Ends, tcp_counts};
use super::guests::{Boot, Guests};
use super::plan::Point;
use crate::experiment::cpus::{BUSY, CpuTimes};
use crate::results::incast::{CongestionControl, Incast, Part, RTO_MIN_MS, Round};
use crate::results::{Ending, Sample};

/// MTU and Ethernet header.
pub const PACKET_BYTES: u64 = 1514;
/// The time after which a round counts as hanging: TCP retransmits after 0.2, 0.6, 1.4, 3 and 6.2
/// s.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Flows without an end are not counted in their first second.
const SETTLE: Duration = Duration::from_secs(1);
/// Guests that share the connections of all senders.
const SENDING_GUESTS: usize = 2;
pub const LONG: Duration = Duration::from_secs(5);

/// The guests are declared first, to end before the namespaces that they are in.
pub struct IncastStage {
    guests: Option<Guests>,
    pub fan_in: FanIn,
    counters: Vec<TcpCounters>,
    last_hop: Option<LastHop>,
    rto_min_ms: u32,
    stream: Stream,
    vsnoop: Option<Vsnoop>,
    pub opener: Opener,
}

/// Sums of all counters.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    timeouts: u64,
    retransmissions: u64,
    window_probes: u64,
    last_hop: PortCounts,
    tap_drops: u64,
    cpus: CpuTimes,
}

impl IncastStage {
    /// A stage for these points, whose ends are in the same places: in guests that boot `boot`, if
    /// it is given.
    pub fn build(
        session: &mut Session,
        points: &[Point],
        boot: Option<&Boot>,
        opener: Opener,
        vsnoop: Option<&Vsnoop>,
    ) -> Result<Self> {
        let senders = points.iter().map(|point| point.incast.senders).max().unwrap_or(1);
        let options = if points.iter().any(|point| point.incast.part == Part::Dctcp) {
            FanInOptions {
                senders: 0,
                machine: true,
                sending_machines: SENDING_GUESTS,
                port: PortKind::Relay,
            }
        } else {
            // One more for the connection in the background.
            let (senders, machine) = (senders + 1, boot.is_some());
            FanInOptions { senders, machine, ..FanInOptions::default() }
        };
        let fan_in = FanIn::build_with(PREFIX, options)?;
        let guests = boot.map(|boot| Guests::boot(session, boot, &fan_in)).transpose()?;
        let counters =
            fan_in.senders.iter().map(|sender| sender.tcp_counters()).collect::<Result<_>>()?;
        let vsnoop = vsnoop.map(|vsnoop| vsnoop.in_netns(fan_in.host.name()));
        Ok(Self {
            guests,
            fan_in,
            counters,
            last_hop: None,
            rto_min_ms: RTO_MIN_MS,
            stream: Stream::new(),
            vsnoop,
            opener,
        })
    }

    /// Sets up the stage for the rounds of a point.
    pub fn prepare(&mut self, point: &Point) -> Result<()> {
        self.set_last_hop(Some(last_hop(&point.incast)))?;
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

    /// A block of rounds in one configuration; it ends early when a round hangs. Times of samples
    /// begin with the block.
    pub fn block(
        &self,
        session: &mut Session,
        point: &Point,
        configuration: Configuration,
        rounds: usize,
    ) -> Result<Vec<Sample>> {
        let attached = match (&self.vsnoop, configuration) {
            (Some(vsnoop), _) if configuration.attaches() => {
                let netns = self.fan_in.host.name();
                let last_hop = last_hop(&point.incast);
                Some(Attached::attach(session, vsnoop, netns, configuration, &last_hop)?)
            }
            _ => None,
        };
        let samples = self.rounds(point, configuration, attached.as_ref(), rounds)?;
        attached.map_or(Ok(()), Attached::detach)?;
        Ok(samples)
    }

    fn rounds(
        &self,
        point: &Point,
        configuration: Configuration,
        attached: Option<&Attached>,
        rounds: usize,
    ) -> Result<Vec<Sample>> {
        let senders = point.incast.senders;
        let background = point.incast.part == Part::CappedBackground;
        let wanted = Wanted {
            count: senders + usize::from(background),
            opener: self.opener,
            congestion_control: point.incast.congestion_control,
            cap: configuration.cap_bytes().map(|bytes| (senders, bytes)),
        };
        let mut ends = self.open(&wanted)?;
        let receiver = &mut ends.receiver;
        if background {
            receiver.ask_endlessly(senders)?;
            receiver.take_in_for(SETTLE)?;
        }
        if point.incast.part == Part::Long {
            (0..senders).try_for_each(|number| receiver.ask_endlessly(number))?;
            receiver.take_in_for(SETTLE)?;
        }
        let (begin, mut samples) = (Instant::now(), Vec::new());
        // One more, to warm up.
        for round in 0..=rounds {
            let at_ms = begin.elapsed().as_secs_f64() * 1e3;
            let before = self.count(wanted.count)?;
            let outcome = if point.incast.part == Part::Long {
                if round == 0 {
                    continue;
                }
                let bytes = receiver.take_in_for(LONG)?;
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
        if let Some(attached) = attached {
            let shaped = attached.shaped()?;
            for round in samples.iter_mut().filter_map(|sample| sample.round.as_mut()) {
                round.shaped = Some(shaped);
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
        let busy = after.cpus.busy_percent_since(&before.cpus);
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
                last_hop_marks: after.last_hop.marks - before.last_hop.marks,
                shaped: None,
                flows_mbps,
            }
        });
        Ok(Sample {
            configuration: configuration.name(),
            size_bytes: point.size_bytes,
            cell: point.cell(),
            ending: if round.is_some() { Ending::Exact } else { Ending::Hung },
            retransmissions: (after.retransmissions - before.retransmissions) as u32,
            tap_drops: after.tap_drops - before.tap_drops,
            values: busy.map(|percent| (BUSY.to_owned(), percent)).into_iter().collect(),
            round,
            ..Sample::default()
        })
    }

    fn count(&self, senders: usize) -> Result<Counts> {
        interrupt::check()?;
        let mut counts = Counts {
            last_hop: self.fan_in.switch.counts()?,
            tap_drops: self.fan_in.port_drops()?,
            cpus: CpuTimes::read()?,
            ..Counts::default()
        };
        let namespaces = self.counters.iter().take(senders).map(|counters| counters.read());
        let guests = self.guests.iter().flat_map(|guests| &guests.senders).map(tcp_counts);
        for counted in namespaces.chain(guests) {
            let counted = counted?;
            counts.timeouts += counted.timeouts;
            counts.retransmissions += counted.retransmissions;
            counts.window_probes += counted.window_probes;
        }
        Ok(counts)
    }

    fn open(&self, wanted: &Wanted) -> Result<Ends<'_>> {
        Ends::open(&self.fan_in, self.guests.as_ref(), wanted, &self.stream)
    }

    /// The throughput of one flow in Mb/s, and the mean size of its packets at the last hop in
    /// bytes if that hop has a rate.
    pub fn one_flow(
        &mut self,
        last_hop: Option<LastHop>,
        congestion_control: CongestionControl,
    ) -> Result<(f64, Option<f64>)> {
        const MEASURE: Duration = Duration::from_secs(2);
        self.set_last_hop(last_hop)?;
        let mut ends = self.open(&self.one(congestion_control))?;
        let receiver = &mut ends.receiver;
        receiver.ask_endlessly(0)?;
        receiver.take_in_for(SETTLE)?;
        let bytes: u64 = receiver.take_in_for(MEASURE)?.iter().sum();
        let packet_bytes = match last_hop {
            Some(_) => {
                let counts = self.fan_in.switch.counts()?;
                Some(counts.bytes as f64 / counts.packets.max(1) as f64)
            }
            None => None,
        };
        Ok((bytes as f64 * 8.0 / 1e6 / MEASURE.as_secs_f64(), packet_bytes))
    }

    /// How long small rounds with one sender take: the round trip of the empty path, with both
    /// applications.
    pub fn small_rounds(&self, congestion_control: CongestionControl) -> Result<Vec<Duration>> {
        const ROUNDS: usize = 50;
        const BYTES: u64 = 100;
        let mut ends = self.open(&self.one(congestion_control))?;
        let rounds = (0..ROUNDS).map(|_| {
            let took = ends.receiver.round(1, BYTES, PATIENCE)?;
            took.context("a round with one sender hangs")
        });
        rounds.collect()
    }

    fn one(&self, congestion_control: CongestionControl) -> Wanted {
        Wanted { count: 1, opener: self.opener, congestion_control, cap: None }
    }
}

/// Whether one stage serves both points.
pub fn same(one: &Incast, other: &Incast) -> bool {
    if one.part.has_guests() { one.part == other.part } else { !other.part.has_guests() }
}

/// The last hop that this point asks for.
pub fn last_hop(incast: &Incast) -> LastHop {
    let &Incast { rate_mbit, buffer_bytes, mark_bytes, .. } = incast;
    LastHop { rate_mbit, buffer_bytes, mark_bytes }
}
