//! The definition of a metric: its name, what it means, and how it is read.
//!
//! Names follow the rules of Prometheus: the prefix `vsnoop`, base units (`_bytes`, `_seconds`),
//! `_total` for counters.

use vsnoop_bpf::types::HISTOGRAM_BUCKETS;

/// Counts of the hooks by powers of two, ns.
pub type Buckets = [u64; HISTOGRAM_BUCKETS as usize];

type Read<T, V> = Box<dyn Fn(&T) -> V + Send + Sync>;

/// A metric of `T`.
pub struct Definition<T> {
    /// The family's name: without `_total` of a counter and `_info` of an info.
    pub name: String,
    pub help: String,
    /// The field of `vsnoop stats --json` or `status --json` that has the same value; empty if none
    /// has.
    pub json: String,
    pub value: Value<T>,
}

/// How a metric is read. One that a port does not have (`None`) has no series for it.
pub enum Value<T> {
    Counter(Read<T, Option<u64>>),
    Gauge(Read<T, Option<f64>>),
    /// A counter for each value of a label.
    Counters(&'static str, Read<T, Vec<(&'static str, u64)>>),
    /// 1 for the present state, which is a label, and 0 for each other one.
    States(&'static [&'static str], Read<T, &'static str>),
    Histogram(Read<T, Buckets>),
    /// Labels of a series with the value 1.
    Info(Read<T, Vec<(&'static str, String)>>),
}

impl<T> Definition<T> {
    pub fn new(name: &str, help: &str, value: Value<T>) -> Self {
        Self { name: format!("vsnoop_{name}"), help: help.to_owned(), json: String::new(), value }
    }

    /// The field of `--json` with the same value.
    pub fn json(self, field: &str) -> Self {
        Self { json: field.to_owned(), ..self }
    }

    /// The name that a query has.
    pub fn series(&self) -> String {
        let suffix = match self.value {
            Value::Counter(_) | Value::Counters(..) => "_total",
            Value::Info(_) => "_info",
            Value::Gauge(_) | Value::States(..) | Value::Histogram(_) => "",
        };
        format!("{}{suffix}", self.name)
    }

    /// The label that it has besides those of its group.
    pub fn label(&self) -> Option<&'static str> {
        match self.value {
            Value::Counters(label, _) => Some(label),
            Value::States(..) => Some("state"),
            Value::Counter(_) | Value::Gauge(_) | Value::Histogram(_) | Value::Info(_) => None,
        }
    }

    /// Its type, as Prometheus calls it.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Counter(_) | Value::Counters(..) => "counter",
            Value::Gauge(_) | Value::States(..) => "gauge",
            Value::Histogram(_) => "histogram",
            Value::Info(_) => "info",
        }
    }
}

/// A gauge that every `T` has.
pub fn gauge<T: 'static>(
    name: &str,
    help: &str,
    read: impl Fn(&T) -> f64 + Send + Sync + 'static,
) -> Definition<T> {
    some_gauge(name, help, move |subject| Some(read(subject)))
}

/// A gauge that some `T` have.
pub fn some_gauge<T: 'static>(
    name: &str,
    help: &str,
    read: impl Fn(&T) -> Option<f64> + Send + Sync + 'static,
) -> Definition<T> {
    Definition::new(name, help, Value::Gauge(Box::new(read)))
}

/// A counter that every `T` has.
pub fn counter<T: 'static>(
    name: &str,
    help: &str,
    read: impl Fn(&T) -> u64 + Send + Sync + 'static,
) -> Definition<T> {
    Definition::new(name, help, Value::Counter(Box::new(move |subject| Some(read(subject)))))
}

/// One of several states.
pub fn states<T: 'static>(
    name: &str,
    help: &str,
    all: &'static [&'static str],
    read: impl Fn(&T) -> &'static str + Send + Sync + 'static,
) -> Definition<T> {
    Definition::new(name, help, Value::States(all, Box::new(read)))
}

/// A number of nanoseconds in seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
