//! The rounds to measure: the parts that are declared (experiments/incast.toml), or those that the
//! options select.

use anyhow::{Result, bail, ensure};
use vsnoop_testbed::fan_in::MOST_SENDERS;

use super::configuration::Configuration;
use super::connections::Opener;
use super::declaration::{self, Series};
use super::selection::Selection;
use crate::experiment::definition::{self, Options};
use crate::results::Cell;
use crate::results::incast::{self, CongestionControl, Part, RTO_MIN_MS};

/// Rounds that differ in their configuration only.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub incast: incast::Incast,
    /// Bytes that each sender sends.
    pub size_bytes: u64,
    pub configurations: Vec<Configuration>,
    /// In each configuration.
    pub rounds: usize,
}

impl Point {
    pub fn cell(&self) -> Cell {
        Cell { vms: 1, incast: Some(self.incast), ..Cell::default() }
    }
}

/// The longest queue of a relay, with packets of the MTU.
const MOST_RELAYED_BYTES: u64 = 1_000_000;
/// The smallest answer: the experiment is not about smaller ones.
const LEAST_BYTES: u64 = 1000;

/// All points, in the order of their measurement.
pub fn points(options: &Options) -> Result<Vec<Point>> {
    let wanted = &options.incast;
    check(options)?;
    // Options that select a point select it in one part only, not in all parts.
    let single = !wanted.senders.is_empty()
        || wanted.rate_mbit.is_some()
        || wanted.mark_bytes.is_some()
        || !wanted.buffers_bytes.is_empty()
        || !options.congestion_controls.is_empty()
        || !wanted.rtos_min_ms.is_empty()
        || !options.sizes_bytes.is_empty();
    let declared = declaration::read();
    let all = if options.quick { &declared.quick } else { &declared.series };
    let asked: Vec<Part> = definition::parts(&options.parts)?;
    let parts = match &asked[..] {
        [] if single => &[Part::FixedSize][..],
        [] => &Part::ALL[..],
        asked => asked,
    };
    let of = |all: &'static [Series], part| all.iter().filter(move |series| series.part == part);
    let mut points = Vec::new();
    for &part in parts {
        let mut chosen: Vec<_> = of(all, part).collect();
        if chosen.is_empty() && !asked.is_empty() {
            chosen = of(&declared.series, part).collect();
        }
        if single {
            chosen.truncate(1);
        }
        for series in chosen {
            series.expand(options, &mut points)?;
        }
    }
    if asked.is_empty() && !single {
        points.retain(|point| check_part(point, wanted).is_ok());
    }
    points.iter().try_for_each(|point| check_part(point, wanted))?;
    ensure!(!points.is_empty(), "nothing of the experiment was asked for");
    Ok(points)
}

fn check(options: &Options) -> Result<()> {
    let wanted = &options.incast;
    ensure!(
        options.vms.is_empty()
            && options.loads.is_empty()
            && options.path_rtts_ms.is_empty()
            && options.path_loss_percent.is_none()
            && options.path_link.is_none(),
        "incast has one VM and a path of its own: leave out --vms, --load, --path-rtt, --path-loss \
         and --path-rate"
    );
    for senders in &wanted.senders {
        // One more for the connection in the background.
        let most = MOST_SENDERS - 1;
        ensure!((1..=most).contains(senders), "{senders} senders: 1 to {most} are possible");
    }
    if let Some(rate) = wanted.rate_mbit {
        ensure!((10..=1000).contains(&rate), "{rate} Mb/s: 10 to 1000 are possible");
    }
    for buffer in &wanted.buffers_bytes {
        ensure!(
            (3_000..=10_000_000).contains(buffer),
            "a buffer of {buffer} bytes: 3000 to 10000000 are possible"
        );
    }
    for rto in &wanted.rtos_min_ms {
        ensure!((1..=1000).contains(rto), "an RTO of {rto} ms: 1 to 1000 is possible");
    }
    for size in &options.sizes_bytes {
        ensure!(
            (LEAST_BYTES..=100_000_000).contains(size),
            "{size} bytes: {LEAST_BYTES} to 100000000 are possible"
        );
    }
    ensure!(options.rounds != Some(0), "an experiment needs at least one round");
    Ok(())
}

/// Refuses options that parts with guests do not support, and options that only they support.
fn check_part(point: &Point, wanted: &Selection) -> Result<()> {
    let Point { incast, configurations, .. } = point;
    let part = incast.part.name();
    if incast.part == Part::Dctcp {
        ensure!(incast.rto_min_ms == RTO_MIN_MS, "{part}: no guest knows another least RTO");
        ensure!(
            incast.buffer_bytes <= MOST_RELAYED_BYTES,
            "{part}: a queue that marks holds at most {MOST_RELAYED_BYTES} bytes"
        );
    } else {
        let dctcp = incast.congestion_control == CongestionControl::Dctcp;
        ensure!(
            !dctcp && incast.mark_bytes.is_none(),
            "{part}: only the senders of the part dctcp have DCTCP, and only its last hop marks"
        );
    }
    if !incast.part.has_guests() {
        return Ok(());
    }
    ensure!(
        wanted.opener.unwrap_or_default() == Opener::Vm,
        "{part} has a guest that opens the connections itself: leave out --opener"
    );
    ensure!(
        configurations.iter().all(|configuration| configuration.cap_bytes().is_none()),
        "{part} has a guest that does not cap its windows: only off and incast are possible"
    );
    Ok(())
}

impl Series {
    fn expand(&self, options: &Options, points: &mut Vec<Point>) -> Result<()> {
        fn or<'a, T>(asked: &'a [T], own: &'a [T]) -> &'a [T] {
            if asked.is_empty() { own } else { asked }
        }
        let wanted = &options.incast;
        let names = or(&options.configurations, &self.configurations).iter();
        let configurations =
            names.map(|name| Configuration::from_name(name)).collect::<Result<Vec<_>>>()?;
        let sizes = match self.part {
            Part::Long => &self.sizes,
            _ => or(&options.sizes_bytes, &self.sizes),
        };
        for &congestion_control in or(&options.congestion_controls, &self.congestion_controls) {
            for &rto_min_ms in or(&wanted.rtos_min_ms, &self.rtos_min_ms) {
                for &buffer_bytes in or(&wanted.buffers_bytes, &self.buffers) {
                    for &size in sizes {
                        for &senders in or(&wanted.senders, &self.senders) {
                            let total_bytes = (self.part == Part::FixedTotal).then_some(size);
                            let size_bytes = total_bytes.map_or(size, |all| all / senders as u64);
                            if total_bytes.is_some() && size_bytes < LEAST_BYTES {
                                bail!("{size} bytes are too few for {senders} senders");
                            }
                            points.push(Point {
                                incast: incast::Incast {
                                    part: self.part,
                                    senders,
                                    rate_mbit: wanted.rate_mbit.unwrap_or(self.rate_mbit),
                                    buffer_bytes,
                                    mark_bytes: wanted.mark_bytes.or(self.mark_bytes),
                                    congestion_control,
                                    rto_min_ms,
                                    total_bytes,
                                },
                                size_bytes,
                                configurations: configurations.clone(),
                                rounds: options.rounds.unwrap_or(self.rounds),
                            });
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::incast::RATE_MBIT;

    fn of(selection: Selection) -> Vec<Point> {
        points(&Options { incast: selection, ..Options::default() }).unwrap()
    }

    fn of_part(name: &str) -> Options {
        Options { parts: vec![name.into()], ..Options::default() }
    }

    #[test]
    fn the_whole_experiment_has_all_parts_and_every_point_once() {
        let points = of(Selection::default());
        for part in Part::ALL {
            assert!(points.iter().any(|point| point.incast.part == part), "{part:?}");
        }
        let mut keys: Vec<_> =
            points.iter().map(|point| format!("{} {}", point.incast, point.size_bytes)).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }

    #[test]
    fn a_point_that_is_asked_for_is_the_only_one() {
        let points = points(&Options {
            sizes_bytes: vec![32_000],
            configurations: vec!["off".into()],
            rounds: Some(7),
            incast: Selection {
                senders: vec![12],
                buffers_bytes: vec![64_000],
                ..Selection::default()
            },
            ..Options::default()
        });
        let [point] = &points.unwrap()[..] else { panic!("not one point") };
        assert_eq!((point.incast.senders, point.incast.buffer_bytes), (12, 64_000));
        assert_eq!((point.size_bytes, point.rounds), (32_000, 7));
        assert_eq!((point.incast.part, point.incast.rto_min_ms), (Part::FixedSize, RTO_MIN_MS));
        assert_eq!(point.configurations, [Configuration::Off]);
    }

    #[test]
    fn a_part_alone_is_the_whole_part() {
        let points = points(&of_part("fixed-total")).unwrap();
        let declared = declaration::read().series.iter();
        let declared = declared.filter(|series| series.part == Part::FixedTotal);
        let count: usize = declared.map(|one| one.sizes.len() * one.senders.len()).sum();
        assert_eq!(points.len(), count);
        for point in points {
            let total = point.incast.total_bytes.unwrap();
            assert_eq!(point.size_bytes, total / point.incast.senders as u64);
        }
    }

    #[test]
    fn guests_are_asked_only_for_what_they_can() {
        let senders = Some(Opener::Senders);
        let all = of(Selection { opener: senders, ..Selection::default() });
        assert!(!all.is_empty() && all.iter().all(|point| !point.incast.part.has_guests()));
        let vm = of_part("vm");
        assert!(points(&vm).unwrap().iter().all(|point| point.incast.rate_mbit < RATE_MBIT));
        let refused = |incast: Selection, configurations: &[&str]| {
            let configurations = configurations.iter().map(|name| name.to_string()).collect();
            points(&Options { incast, configurations, ..vm.clone() }).is_err()
        };
        assert!(refused(Selection { opener: senders, ..Selection::default() }, &[]));
        assert!(refused(Selection::default(), &["off", "fixed-2mss"]));
        assert!(!refused(Selection::default(), &["off"]));
    }

    #[test]
    fn only_the_part_dctcp_has_dctcp_and_marks() {
        let all = of(Selection::default());
        for Point { incast, .. } in &all {
            let dctcp = incast.part == Part::Dctcp;
            assert_eq!(incast.mark_bytes.is_some(), dctcp, "{incast}");
            assert_eq!(incast.congestion_control == CongestionControl::Dctcp, dctcp, "{incast}");
        }
        let refused =
            |incast: Selection| points(&Options { incast, ..Options::default() }).is_err();
        assert!(refused(Selection { mark_bytes: Some(20_000), ..Selection::default() }));
        let dctcp = vec![CongestionControl::Dctcp];
        assert!(points(&Options { congestion_controls: dctcp, ..Options::default() }).is_err());
        let dctcp = |incast: Selection| points(&Options { incast, ..of_part("dctcp") });
        assert!(dctcp(Selection { rtos_min_ms: vec![1], ..Selection::default() }).is_err());
        let buffers_bytes = vec![2_000_000];
        assert!(dctcp(Selection { buffers_bytes, ..Selection::default() }).is_err());
        let marks = dctcp(Selection { mark_bytes: Some(20_000), ..Selection::default() }).unwrap();
        assert!(marks.iter().all(|point| point.incast.mark_bytes == Some(20_000)));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let refused = |options: Options| points(&options).is_err();
        let selected = |incast: Selection| refused(Options { incast, ..Options::default() });
        assert!(selected(Selection { senders: vec![0], ..Selection::default() }));
        assert!(selected(Selection { senders: vec![MOST_SENDERS], ..Selection::default() }));
        assert!(selected(Selection { rate_mbit: Some(2000), ..Selection::default() }));
        assert!(selected(Selection { buffers_bytes: vec![1000], ..Selection::default() }));
        assert!(selected(Selection { rtos_min_ms: vec![0], ..Selection::default() }));
        assert!(refused(Options { rounds: Some(0), ..Options::default() }));
        assert!(refused(Options { sizes_bytes: vec![1], ..Options::default() }));
        assert!(refused(Options { vms: vec![2], ..Options::default() }));
        assert!(refused(Options { configurations: vec!["hold".into()], ..Options::default() }));
    }
}
