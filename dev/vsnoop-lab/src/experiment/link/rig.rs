//! Two hosts with all carriers of an experiment side by side, and single measurements over them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use serde_json::json;
use vsnoop_testbed::hosts::{Network, Path, Plan};
use vsnoop_testbed::interrupt;
use vsnoop_testbed::relay::Faults;
use vsnoop_testbed::session::{PREFIX, Session};

use super::probe::{self, Echoes};
use super::stream::{self, Load};
use crate::peers::link::{self, HostSide, Kind, RunningCarrier, Site};
use crate::results::{Cell, RETRANSMISSIONS, Results, Sample};

/// The key, in the environment of results, of carriers that did not run, with the reasons.
const MISSING: &str = "missing";
/// The kernel's default congestion control, for sockets that choose none.
const DEFAULT_CONGESTION_CONTROL: &str = "cubic";
/// Milliseconds between two echoes.
const IDLE_GAP_MS: Range<u64> = 5..20;
const LOADED_GAP_MS: Range<u64> = 10..50;

/// Links are declared first, to end before their hosts.
pub struct Rig {
    links: Vec<RunningCarrier>,
    pub missing: BTreeMap<&'static str, String>,
    hosts: Network,
    _session: Session,
}

/// The parameters of one measurement.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a> {
    pub cell: Cell,
    pub load: Load<'a>,
    /// Echoes before the stream.
    pub idle_echoes: usize,
    /// Echoes beside it.
    pub loaded_echoes: bool,
}

impl Rig {
    /// Builds the hosts, joined by a relay with these faults each way or by a veth, and starts
    /// carriers. A carrier that does not start is noted, and left out.
    pub fn build(path: Option<&Faults>, carriers: &[&'static str]) -> Result<Self> {
        let mut session = Session::begin()?;
        let hosts = Network::build(Plan {
            prefix: PREFIX,
            dead_after: None,
            path: if path.is_some() { Path::Relay { realtime: true } } else { Path::Veth },
            ordinary_way: true,
            ipv6: false,
            ..Plan::default()
        })?;
        hosts.set_faults(path.unwrap_or(&Faults::default()));
        // Programs take the default of their host for connections of their own.
        let has_programs = carriers
            .iter()
            .any(|name| link::find(name).is_some_and(|carrier| carrier.kind != Kind::Kernel));
        if has_programs {
            session.allow_congestion_control(DEFAULT_CONGESTION_CONTROL)?;
        }
        for side in HostSide::BOTH {
            let host = &hosts.hosts[side as usize].netns;
            if has_programs {
                host.set_sysctl("net.ipv4.tcp_congestion_control", DEFAULT_CONGESTION_CONTROL)?;
            }
            // Some programs do not start on a host without a default route.
            host.ip(&format!("route add default via {}", side.other().address()))?;
        }
        let (mut links, mut missing) = (Vec::new(), BTreeMap::new());
        for (number, name) in carriers.iter().enumerate() {
            interrupt::check()?;
            let carrier =
                link::find(name).with_context(|| format!("no carrier is called {name}"))?;
            let number = u8::try_from(number + 1).context("too many carriers")?;
            let started = Site::new(&hosts, &mut session, number)
                .and_then(|site| RunningCarrier::start(carrier, site))
                .and_then(|link| stream::try_out(&link).map(|()| link));
            match started {
                Ok(link) => links.push(link),
                Err(error) => {
                    interrupt::check()?;
                    // A command may print its usage after the error.
                    let error = format!("{error:#}");
                    let reason = error.lines().next().unwrap_or_default().to_owned();
                    eprintln!("{name} is missing: {reason}");
                    missing.insert(&*carrier.name, reason);
                }
            }
        }
        println!("{} of {} carriers run", links.len(), carriers.len());
        Ok(Self { links, missing, hosts, _session: session })
    }

    /// Records in the results the carriers that run and those that do not.
    pub fn describe(&self, results: &mut Results) {
        let reason = |(name, reason): (&&str, &String)| format!("{name} did not run: {reason}");
        let missing: Vec<_> = self.missing.iter().map(reason).collect();
        if !missing.is_empty() {
            results.environment.insert(MISSING.into(), json!(missing.join("; ")));
        }
        let about: BTreeMap<_, _> =
            self.links.iter().map(|link| (&link.carrier.name, &link.carrier.about)).collect();
        results.environment.insert("carriers".into(), json!(about));
    }

    /// A carrier, if it runs.
    pub fn link(&self, name: &str) -> Option<&RunningCarrier> {
        self.links.iter().find(|link| link.carrier.name == name)
    }

    pub fn hosts(&self) -> &Network {
        &self.hosts
    }

    pub fn measure(&self, link: &RunningCarrier, task: Measurement) -> Result<Sample> {
        let name = &link.carrier.name;
        self.try_measure(link, task).with_context(|| format!("{name}, {}", task.cell))
    }

    fn try_measure(&self, link: &RunningCarrier, task: Measurement) -> Result<Sample> {
        interrupt::check()?;
        let ends = &link.ends;
        let offloads = task.cell.link.is_none_or(|link| link.offloads);
        let switch = |on: bool| -> Result<()> {
            let devices = ends.devices.as_ref().context("it has no devices of its own")?;
            ends.client.set_offloads(&devices[HostSide::A as usize], on)?;
            ends.server.set_offloads(&devices[HostSide::B as usize], on)
        };
        if !offloads {
            switch(false)?;
        }
        let idle = match task.idle_echoes {
            count if count > 0 && link.has_echo() => {
                probe::echoes(&ends.client, ends.address, IDLE_GAP_MS, |asked| asked < count)?
            }
            _ => Echoes::default(),
        };
        let before =
            (link.cpu_seconds(), self.hosts.outer_bytes(HostSide::A as usize)?, Instant::now());
        let stop = AtomicBool::new(false);
        let (streamed, loaded) = std::thread::scope(|scope| {
            let probing = (task.loaded_echoes && link.has_echo()).then(|| {
                let more = |_| !stop.load(Ordering::Acquire);
                scope.spawn(move || probe::echoes(&ends.client, ends.address, LOADED_GAP_MS, more))
            });
            let streamed = stream::stream(link, task.load);
            let after =
                (link.cpu_seconds(), self.hosts.outer_bytes(HostSide::A as usize), Instant::now());
            stop.store(true, Ordering::Release);
            let loaded = match probing.map(|probing| probing.join()) {
                Some(joined) => joined.map_err(|_| anyhow!("the prober panicked"))??,
                None => Echoes::default(),
            };
            anyhow::Ok(((streamed?, after), loaded))
        })?;
        let (streamed, after) = streamed;
        if !offloads {
            switch(true)?;
        }
        let seconds = after.2.duration_since(before.2).as_secs_f64();
        let cores = before.0.zip(after.0).map(|(before, after)| (after - before) / seconds);
        let values = [
            ("stream_mbps", Some(streamed.megabits_per_second())),
            ("stream_bytes", Some(streamed.bytes as f64)),
            // CPUs that the carrier's processes on both hosts kept busy during the stream.
            ("cores", cores),
            (RETRANSMISSIONS, Some(f64::from(streamed.retransmissions))),
            // On the path, from the Ethernet header on.
            ("wire_bytes", Some((after.1? - before.1) as f64)),
            // Echoes without an answer during the stream.
            ("echoes_lost", task.loaded_echoes.then_some(f64::from(loaded.lost))),
        ];
        let values = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let lists = [("idle_ms", idle.round_trips_ms), ("loaded_ms", loaded.round_trips_ms)];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        Ok(Sample {
            configuration: link.carrier.name.clone(),
            size_bytes: task.load.bytes(),
            cell: task.cell,
            lists: lists.map(|(name, list)| (name.to_owned(), list)).collect(),
            ..Sample::with(values)
        })
    }
}

/// Calls `measure` for each measurement as often as its number of rounds says, in random order
/// within a round; the rounds of a measurement are spread evenly over all rounds,
/// and `measure` is told which round it is.
pub fn interleave<T: Copy>(
    measurements: &[(T, usize)],
    mut measure: impl FnMut(T, usize) -> Result<()>,
) -> Result<()> {
    let most = measurements.iter().map(|(_, rounds)| *rounds).max().unwrap_or_default();
    for round in 0..most {
        let is_due = |rounds: usize| (round + 1) * rounds / most > round * rounds / most;
        let mut due: Vec<_> = measurements
            .iter()
            .filter(|(_, rounds)| is_due(*rounds))
            .map(|(measurement, _)| *measurement)
            .collect();
        fastrand::shuffle(&mut due);
        due.into_iter().try_for_each(|measurement| measure(measurement, round))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measurement_has_its_rounds_and_those_with_fewer_are_spread() {
        let mut order = Vec::new();
        interleave(&[('a', 10), ('b', 2), ('c', 0)], |measurement, _| {
            order.push(measurement);
            Ok(())
        })
        .unwrap();
        let count = |wanted| order.iter().filter(|measurement| **measurement == wanted).count();
        assert_eq!([count('a'), count('b'), count('c')], [10, 2, 0]);
        let half = &order[..order.len() / 2];
        assert_eq!(half.iter().filter(|measurement| **measurement == 'b').count(), 1, "{order:?}");
    }
}
