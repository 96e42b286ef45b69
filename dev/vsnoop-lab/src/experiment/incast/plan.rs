//! The rounds to measure: the parts that are declared (experiments/incast.toml), or those that the
//! options select.

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use serde::Deserialize;

use super::configuration::Configuration;
use crate::experiment::options::{Options, Selection};
use crate::results::Cell;
use crate::results::incast::{self, BUFFER_BYTES, CongestionControl, Part, RATE_MBIT, RTO_MIN_MS};

/// The plan of experiments/incast.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    series: Vec<Series>,
    /// Instead of `series`, with `--quick`.
    quick: Vec<Series>,
}

/// Points that are alike. What a declaration does not say is [`Series::default`].
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Series {
    part: Part,
    /// Bytes that each sender sends, or all together (`Part::FixedTotal`).
    sizes: Vec<u64>,
    senders: Vec<usize>,
    /// The highest rate that is tried for the last hop.
    rate_mbit: u64,
    buffers: Vec<u64>,
    congestion_controls: Vec<CongestionControl>,
    rtos_min_ms: Vec<u32>,
    /// Names, see [`super::configuration`].
    configurations: Vec<String>,
    rounds: usize,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            part: Part::FixedSize,
            sizes: vec![64_000],
            senders: vec![1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 200],
            rate_mbit: RATE_MBIT,
            buffers: vec![BUFFER_BYTES],
            congestion_controls: vec![CongestionControl::Cubic],
            rtos_min_ms: vec![RTO_MIN_MS],
            configurations: vec!["off".into(), "incast".into()],
            rounds: 100,
        }
    }
}

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

/// The smallest answer: the experiment is not about smaller ones.
const LEAST_BYTES: u64 = 1000;

impl Declared {
    /// All points, in the order of their measurement.
    pub fn points(&self, options: &Options) -> Result<Vec<Point>> {
        for size in &options.sizes_bytes {
            ensure!(*size >= LEAST_BYTES, "{size} bytes: {LEAST_BYTES} are the least");
        }
        // Options that select a point select it in one part only, not in all parts.
        let single = options.incast != Selection::default()
            || !options.congestion_controls.is_empty()
            || !options.sizes_bytes.is_empty();
        let all = if options.quick { &self.quick } else { &self.series };
        let parts = match &options.parts[..] {
            [] if single => &[Part::FixedSize][..],
            [] => Part::value_variants(),
            asked => asked,
        };
        let has = |part| move |series: &&Series| series.part == part;
        let mut points = Vec::new();
        for &part in parts {
            let mut chosen: Vec<_> = all.iter().filter(has(part)).collect();
            if chosen.is_empty() && !options.parts.is_empty() {
                chosen = self.series.iter().filter(has(part)).collect();
            }
            if single {
                chosen.truncate(1);
            }
            for series in chosen {
                series.expand(options, &mut points)?;
            }
        }
        ensure!(!points.is_empty(), "nothing of the experiment was asked for");
        Ok(points)
    }
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
    use crate::experiment::declared::Experiment;

    fn points(options: &Options) -> Result<Vec<Point>> {
        Experiment::find("incast")?.own_plan::<Declared>()?.points(options)
    }

    fn in_part(part: Part) -> Options {
        Options { parts: vec![part], ..Options::default() }
    }

    #[test]
    fn the_whole_experiment_has_all_parts_and_every_point_once() {
        let points = points(&Options::default()).unwrap();
        for part in Part::value_variants() {
            assert!(points.iter().any(|point| point.incast.part == *part), "{part:?}");
        }
        let key = |point: &Point| format!("{} {}", point.incast, point.size_bytes);
        let mut keys: Vec<_> = points.iter().map(key).collect();
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
    fn a_part_alone_is_the_whole_part_and_its_bytes_are_shared_out() {
        for point in points(&in_part(Part::FixedTotal)).unwrap() {
            let total = point.incast.total_bytes.unwrap();
            assert_eq!(point.size_bytes, total / point.incast.senders as u64);
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let configured = |name: &str| {
            let configurations = vec!["off".into(), name.into()];
            Options { configurations, ..in_part(Part::Capped) }
        };
        assert!(points(&configured("incast")).is_ok());
        assert!(points(&configured("hold")).is_err());
        assert!(points(&Options { sizes_bytes: vec![1], ..Options::default() }).is_err());
    }
}
