//! The metrics of the service and of the host.

use std::time::Duration;

use vsnoop_bpf::types::VSNOOP_ABI;

use crate::definition::{Definition, Value, gauge};

/// Facts that only the service knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Tables `[[port]]` of the configuration.
    pub tables: usize,
    /// Taps that should be attached and cannot be.
    pub failed_ports: usize,
    /// QMP monitors that cannot be used.
    pub failed_monitors: usize,
    pub reloads_good: u64,
    pub reloads_bad: u64,
    /// Was the last configuration that it read refused?
    pub is_refused: bool,
    /// Connections that were reset when the service detached their ports.
    pub detached_resets: u64,
    /// Bytes that VMs which migrated had not acknowledged when they left.
    pub undelivered_bytes: u64,
}

impl Facts {
    /// Counts a reload.
    pub fn reloaded(&mut self, is_good: bool) {
        self.is_refused = !is_good;
        match is_good {
            true => self.reloads_good += 1,
            false => self.reloads_bad += 1,
        }
    }
}

/// Do helper and engine run?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Background {
    pub helper: bool,
    pub engine: bool,
}

/// The values of one scrape.
pub struct ServiceSample {
    pub facts: Facts,
    pub background: Background,
    /// Ports that are attached, whatever their state.
    pub ports: usize,
    /// Ports and uplinks whose pinned state is damaged.
    pub damaged: usize,
    /// Ports whose values could not be read, since the service was started.
    pub unread: u64,
    /// How long reading took.
    pub duration: Duration,
}

pub fn metrics() -> Vec<Definition<ServiceSample>> {
    let truth = |is: bool| f64::from(u8::from(is));
    let build = |_: &ServiceSample| {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        vec![("version", version), ("abi", VSNOOP_ABI.to_string())]
    };
    let reloads = |service: &ServiceSample| {
        vec![("good", service.facts.reloads_good), ("bad", service.facts.reloads_bad)]
    };
    vec![
        Definition::new(
            "build",
            "version of the service, and of the layout of its pinned maps",
            Value::Info(Box::new(build)),
        ),
        gauge("ports", "attached ports", |service: &ServiceSample| service.ports as f64),
        gauge(
            "damaged_ports",
            "ports and uplinks whose pinned state is damaged or of another version",
            |service: &ServiceSample| service.damaged as f64,
        ),
        gauge(
            "failed_ports",
            "taps that the configuration wants attached and that cannot be",
            |service: &ServiceSample| service.facts.failed_ports as f64,
        ),
        gauge(
            "failed_monitors",
            "QMP monitors that cannot be used: migrations of their VMs are not noticed",
            |service: &ServiceSample| service.facts.failed_monitors as f64,
        ),
        gauge("tables", "tables [[port]] of the configuration", |service: &ServiceSample| {
            service.facts.tables as f64
        }),
        Definition::new(
            "reloads",
            "reloads of the configuration, by result: good or bad",
            Value::Counters("result", Box::new(reloads)),
        ),
        gauge(
            "config_refused",
            "1 while the service runs on an older configuration, since the last reload was refused",
            move |service: &ServiceSample| truth(service.facts.is_refused),
        ),
        Definition::new(
            "detached_resets",
            "connections with held bytes that were reset when the service detached their port; \
             those of `vsnoop detach` are not counted",
            Value::Counter(Box::new(|service: &ServiceSample| Some(service.facts.detached_resets))),
        ),
        Definition::new(
            "migrations_undelivered_bytes",
            "bytes that were acknowledged early and that VMs had not when they left the host by \
             a migration which the service followed, or when their QEMU ended in one",
            Value::Counter(Box::new(|service: &ServiceSample| {
                Some(service.facts.undelivered_bytes)
            })),
        ),
        gauge("helper_running", "1 while the helper runs", move |service: &ServiceSample| {
            truth(service.background.helper)
        })
        .json("helper.running"),
        gauge("engine_running", "1 while the engine runs", move |service: &ServiceSample| {
            truth(service.background.engine)
        })
        .json("engine.running"),
        Definition::new(
            "unread_ports",
            "how often the values of a port could not be read",
            Value::Counter(Box::new(|service: &ServiceSample| Some(service.unread))),
        ),
        gauge("scrape_seconds", "time that reading all values took", |service: &ServiceSample| {
            service.duration.as_secs_f64()
        }),
    ]
}
