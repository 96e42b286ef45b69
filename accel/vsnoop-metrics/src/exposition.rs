//! Values as text (OpenMetrics 1.0), by the crate prometheus-client.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use vsnoop_host::incast::listed::ListedUplink;

use crate::definition::{Buckets, Definition, Value, seconds};
use crate::of_service::ServiceSample;
use crate::port::PortSample;
use crate::{of_port, of_service, of_uplink};

/// The media type of the text.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bounds of the histograms' buckets are 2^b ns for these b: 131 us to 17 s.
const BOUNDS: std::ops::RangeInclusive<usize> = 17..=34;

/// The values of one scrape.
pub struct Sample {
    pub ports: Vec<PortSample>,
    pub uplinks: Vec<ListedUplink>,
    pub service: ServiceSample,
}

impl Sample {
    /// All series.
    pub fn render_text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("ports", &self.ports.len()).finish_non_exhaustive()
    }
}

impl Collector for Sample {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let service = [(Labels::new(), &self.service)];
        families(&mut encoder, &of_service::metrics(), &service)?;
        let ports: Vec<_> =
            self.ports.iter().map(|port| (port.labels.list().into(), port)).collect();
        families(&mut encoder, &of_port::metrics(), &ports)?;
        let uplinks: Vec<_> =
            self.uplinks.iter().map(|uplink| (of_uplink::labels(uplink).into(), uplink)).collect();
        families(&mut encoder, &of_uplink::metrics(), &uplinks)
    }
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Writes the series of each `T` for each metric.
fn families<T>(
    encoder: &mut DescriptorEncoder,
    metrics: &[Definition<T>],
    all: &[(Labels<'_>, &T)],
) -> fmt::Result {
    for metric in metrics {
        let (name, unit) = base_and_unit(&metric.name);
        let kind = metric_type(&metric.value);
        let mut family = encoder.encode_descriptor(name, &metric.help, unit.as_ref(), kind)?;
        for (labels, source) in all {
            series(&mut family, labels, &metric.value, source)?;
        }
    }
    Ok(())
}

/// The encoder adds the unit to the name.
fn base_and_unit(name: &str) -> (&str, Option<Unit>) {
    for unit in [Unit::Bytes, Unit::Seconds] {
        let base = name.strip_suffix(unit.as_str()).and_then(|base| base.strip_suffix('_'));
        if let Some(base) = base {
            return (base, Some(unit));
        }
    }
    (name, None)
}

fn metric_type<T>(value: &Value<T>) -> MetricType {
    match value {
        Value::Counter(_) | Value::Counters(..) => MetricType::Counter,
        Value::Gauge(_) | Value::States(..) => MetricType::Gauge,
        Value::Histogram(_) => MetricType::Histogram,
        Value::Info(_) => MetricType::Info,
    }
}

fn series<T>(
    family: &mut MetricEncoder<'_>,
    labels: &Labels<'_>,
    value: &Value<T>,
    subject: &T,
) -> fmt::Result {
    let with = |label: (&'static str, &'static str)| -> Labels<'_> {
        labels.iter().copied().chain([label]).collect()
    };
    match value {
        Value::Counter(read) => match read(subject) {
            Some(count) => one(family, labels, |it| it.encode_counter(&count, NO_EXEMPLAR)),
            None => Ok(()),
        },
        Value::Gauge(read) => match read(subject) {
            Some(value) => one(family, labels, |it| it.encode_gauge(&value)),
            None => Ok(()),
        },
        Value::Counters(label, read) => read(subject).into_iter().try_for_each(|(value, count)| {
            one(family, &with((label, value)), |it| it.encode_counter(&count, NO_EXEMPLAR))
        }),
        Value::States(states, read) => states.iter().try_for_each(|state| {
            let is_it = u64::from(*state == read(subject));
            one(family, &with(("state", state)), |it| it.encode_gauge(&is_it))
        }),
        Value::Histogram(read) => {
            let Histogram { sum, count, buckets } = Histogram::from_counts(&read(subject));
            one(family, labels, |it| it.encode_histogram::<NoLabelSet>(sum, count, &buckets, None))
        }
        Value::Info(read) => {
            let info = read(subject);
            let info = info.iter().map(|(label, value)| (*label, value.as_str()));
            let labels: Labels<'_> = labels.iter().copied().chain(info).collect();
            family.encode_info(&labels)
        }
    }
}

const NO_EXEMPLAR: Option<&prometheus_client::metrics::exemplar::Exemplar<NoLabelSet, u64>> = None;

/// One series; without labels the family itself.
fn one(
    family: &mut MetricEncoder<'_>,
    labels: &Labels<'_>,
    encode: impl FnOnce(&mut MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    match labels.is_empty() {
        true => encode(family),
        false => encode(&mut family.encode_family(labels)?),
    }
}

struct Histogram {
    sum: f64,
    count: u64,
    /// Upper bound, s, and the number of values in each.
    buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// The hooks count values by powers of two and keep no sum: each counts as the middle of its
    /// power.
    fn from_counts(counts: &Buckets) -> Self {
        let middle = |power: usize| seconds(3 << power) / 2.0;
        let sum = counts.iter().enumerate().map(|(power, count)| *count as f64 * middle(power));
        let mut buckets = Vec::new();
        let mut from = 0;
        for bound in BOUNDS {
            buckets.push((seconds(1 << bound), counts[from..bound].iter().sum()));
            from = bound;
        }
        buckets.push((f64::INFINITY, counts[from..].iter().sum()));
        Self { sum: sum.sum(), count: counts.iter().sum(), buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_end_of_the_name() {
        assert_eq!(base_and_unit("vsnoop_early_bytes"), ("vsnoop_early", Some(Unit::Bytes)));
        assert_eq!(base_and_unit("vsnoop_masked_seconds"), ("vsnoop_masked", Some(Unit::Seconds)));
        assert_eq!(base_and_unit("vsnoop_early_acks"), ("vsnoop_early_acks", None));
    }

    #[test]
    fn every_value_is_in_one_bucket_of_a_histogram() {
        let mut counts: Buckets = [0; 40];
        for power in [0, 16, 17, 33, 34, 39] {
            counts[power] = 1 << power;
        }
        let histogram = Histogram::from_counts(&counts);
        assert_eq!(histogram.count, counts.iter().sum::<u64>());
        assert_eq!(histogram.buckets.iter().map(|(_, count)| count).sum::<u64>(), histogram.count);
        // [2^16, 2^17) ns is below the first bound.
        assert_eq!(histogram.buckets[0], (131_072e-9, counts[0] + counts[16]));
        assert_eq!(histogram.buckets[1], (262_144e-9, counts[17]));
        assert_eq!(histogram.buckets.last(), Some(&(f64::INFINITY, counts[34] + counts[39])));
        let mut one: Buckets = [0; 40];
        one[20] = 2;
        assert_eq!(Histogram::from_counts(&one).sum, 3.0 * (1 << 20) as f64 / 1e9);
    }
}
