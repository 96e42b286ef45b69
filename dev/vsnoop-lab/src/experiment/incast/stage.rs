//! The stage of the experiment, and what is measured on it.
//!
//! Rounds are measured in blocks. A block sets up a configuration, opens connections, runs one
//! round that is not counted, to warm them up, and then the counted rounds. At its end it closes
//! the connections and removes the configuration.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vsnoop_guest::rounds::{Receiver, Senders, Stream};
use vsnoop_testbed::fan_in::{FanIn, FanInOptions, PORT};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::net::TcpCounters;
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::switch::{LastHop, PortCounts};
use vsnoop_testbed::vsnoop::Vsnoop;

use super::configuration::{Configuration, attach};
use super::connections::{self, Wanted};
use super::plan::Point;
use crate::experiment::cpus::{BUSY, CpuTimes};
use crate::results::incast::{CongestionControl, Incast, Part, RTO_MIN_MS};
use crate::results::{Ending, RETRANSMISSIONS, Sample, TAP_DROPS, ms};

/// MTU and Ethernet header.
pub const PACKET_BYTES: u64 = 1514;
/// The time after which a round counts as hanging: TCP retransmits after 0.2, 0.6, 1.4, 3 and 6.2
/// s.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Flows without an end are not counted in their first second.
const SETTLE: Duration = Duration::from_secs(1);
pub const LONG: Duration = Duration::from_secs(5);

pub struct IncastStage {
    pub fan_in: FanIn,
    counters: Vec<TcpCounters>,
    last_hop: Option<LastHop>,
    rto_min_ms: u32,
    stream: Stream,
    vsnoop: Option<Vsnoop>,
}

/// Connections with both their ends; the receiver closes first.
struct Ends {
    receiver: Receiver,
    _senders: Senders,
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
    /// A stage with this number of senders, and one more for the connection in the background.
    pub fn build(senders: usize, vsnoop: Option<&Vsnoop>) -> Result<Self> {
        let options = FanInOptions { senders: senders + 1, ..FanInOptions::default() };
        let fan_in = FanIn::build_with(PREFIX, options)?;
        let counters =
            fan_in.senders.iter().map(|sender| sender.tcp_counters()).collect::<Result<_>>()?;
        let vsnoop = vsnoop.map(|vsnoop| vsnoop.in_netns(fan_in.host.name()));
        Ok(Self {
            fan_in,
            counters,
            last_hop: None,
            rto_min_ms: RTO_MIN_MS,
            stream: Stream::new(),
            vsnoop,
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
        let attached = self.vsnoop.as_ref().filter(|_| configuration.attaches());
        if let Some(vsnoop) = attached {
            let (netns, last_hop) = (self.fan_in.host.name(), last_hop(&point.incast));
            attach(session, vsnoop, netns, configuration, &last_hop)?;
        }
        let samples = self.rounds(point, configuration, rounds);
        // Also after an error: the port's namespace ends before the session clears up.
        let detached = attached.map_or(Ok(()), |vsnoop| vsnoop.detach(PORT));
        samples.and_then(|samples| detached.map(|()| samples))
    }

    fn rounds(
        &self,
        point: &Point,
        configuration: Configuration,
        rounds: usize,
    ) -> Result<Vec<Sample>> {
        let senders = point.incast.senders;
        let background = point.incast.part == Part::CappedBackground;
        let wanted = Wanted {
            count: senders + usize::from(background),
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
        let ending = if outcome.is_some() { Ending::Exact } else { Ending::Hung };
        let grown = |count: fn(&Counts) -> u64| (count(&after) - count(&before)) as f64;
        let mut values = vec![
            (RETRANSMISSIONS, grown(|counts| counts.retransmissions)),
            (TAP_DROPS, grown(|counts| counts.tap_drops)),
        ];
        values.extend(busy.map(|percent| (BUSY, percent)));
        let mut lists = BTreeMap::new();
        if let Some((took, flows_mbps)) = outcome {
            let asked = point.incast.senders as f64 * point.size_bytes as f64;
            let goodput_mbps = match flows_mbps.is_empty() {
                true => asked * 8.0 / 1e6 / took.as_secs_f64(),
                false => flows_mbps.iter().sum(),
            };
            values.extend([
                ("round_ms", ms(took)),
                // The application sees it, over all senders that it asked.
                ("goodput_mbps", goodput_mbps),
                ("timeouts", grown(|counts| counts.timeouts)),
                ("window_probes", grown(|counts| counts.window_probes)),
                ("last_hop_drops", grown(|counts| counts.last_hop.drops)),
            ]);
            if !flows_mbps.is_empty() {
                lists.insert("flows_mbps".to_owned(), flows_mbps);
            }
        }
        Ok(Sample {
            configuration: configuration.name(),
            size_bytes: point.size_bytes,
            cell: point.cell(),
            ending,
            lists,
            ..Sample::with(values)
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
        for counters in self.counters.iter().take(senders) {
            let counted = counters.read()?;
            counts.timeouts += counted.timeouts;
            counts.retransmissions += counted.retransmissions;
            counts.window_probes += counted.window_probes;
        }
        Ok(counts)
    }

    fn open(&self, wanted: &Wanted) -> Result<Ends> {
        let (from, to) = connections::open(&self.fan_in, wanted)?;
        let senders = Senders::start(0, from, self.stream.clone())?;
        let receiver = Receiver::new(to, self.stream.clone(), interrupt::check)?;
        Ok(Ends { receiver, _senders: senders })
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

    fn one(&self, congestion_control: CongestionControl) -> Wanted {
        Wanted { count: 1, congestion_control, cap: None }
    }
}

/// The last hop that this point asks for.
pub fn last_hop(incast: &Incast) -> LastHop {
    let &Incast { rate_mbit, buffer_bytes, .. } = incast;
    LastHop { rate_mbit, buffer_bytes, mark_bytes: None }
}
