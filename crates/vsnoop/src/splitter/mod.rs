//! The splitter: moves the bytes of split connections (flow/split.h) between their sockets.
//!
//! One process per host. It is started with a port that has downloads, and kept running by the
//! helper; it exits when no port has downloads. A port belongs to it from the time that `downloads`
//! is in the port's record: its pins, and its pair of devices, are then there. Once `downloads` is
//! gone, the splitter has `vsnoop_host::split::PATIENCE` to join what it can and to reset the rest.
//! If it is killed, the kernel resets both ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use vsnoop_host::error::{Unfit, with_causes};
use vsnoop_host::lock::CommandLock;
use vsnoop_host::ports::{self, Attached};
use vsnoop_host::split;
use vsnoop_service::control;

use crate::background::{self, Instance, Linger, Role};
use crate::cli;
use crate::error::unfit;
use crate::output::watch::Interrupt;

/// Interval at which ports are listed.
const DISCOVERY: Duration = Duration::from_millis(250);

pub fn run(arguments: &cli::Helper) -> Result<u8> {
    let interrupt = background::begin(Role::Splitter, arguments.foreground)?;
    let Some(_instance) = Instance::take(Role::Splitter)? else {
        if arguments.foreground {
            return Err(unfit(Unfit::Other, "another splitter works already"));
        }
        return Ok(0);
    };
    tracing::info!("splitter started");
    work(&interrupt);
    tracing::info!("splitter ends");
    Ok(0)
}

/// Starts the splitter. A failure is a warning only: until it works, no connection is split.
pub fn ensure_working() {
    if let Err(error) = background::start(Role::Splitter) {
        eprintln!("vsnoop: no splitter works yet: {error:#}; until one does, nothing is split");
    }
}

/// Removes what no port with downloads uses any more; not beside a service, which has too few
/// privileges to make it again. Best effort: the next command that finds it does so.
pub fn forget_unused(lock: &CommandLock) {
    if control::is_served() {
        return;
    }
    if let Err(error) = split::remove_namespace_if_unused(lock) {
        tracing::debug!("the network namespace of downloads stays: {}", with_causes(&error));
    }
}

/// Network namespace and index of the tap, id of the attachment.
type PortKey = (u64, u32, u64);

fn work(interrupt: &Interrupt) {
    let mut linger = Linger::default();
    let mut served: BTreeMap<PortKey, String> = BTreeMap::new();
    while !interrupt.is_set() {
        let looked = Instant::now();
        match with_downloads() {
            Ok(ports) => served = log_changes(served, &ports),
            Err(error) => tracing::warn!("{}", with_causes(&error)),
        }
        if linger.is_over(!served.is_empty(), Instant::now()) {
            return;
        }
        interrupt.sleep_until(looked + DISCOVERY);
    }
}

/// The ports whose connections are split.
fn with_downloads() -> vsnoop_host::error::Result<Vec<Attached>> {
    let mut ports = ports::inventory()?.ports;
    ports.retain(|attached| attached.port.policy().is_ok_and(|policy| policy.downloads != 0));
    Ok(ports)
}

fn log_changes(
    earlier: BTreeMap<PortKey, String>,
    ports: &[Attached],
) -> BTreeMap<PortKey, String> {
    let key = |attached: &Attached| -> PortKey {
        (attached.meta.netns, attached.meta.ifindex, attached.port.id())
    };
    let now: BTreeMap<_, _> = ports.iter().map(|port| (key(port), port.name.clone())).collect();
    for (_, name) in now.iter().filter(|(key, _)| !earlier.contains_key(key)) {
        tracing::info!("port {name}: the splitter looks after its downloads");
    }
    for (_, name) in earlier.iter().filter(|(key, _)| !now.contains_key(key)) {
        tracing::info!("port {name}: it has no downloads any more");
    }
    now
}
