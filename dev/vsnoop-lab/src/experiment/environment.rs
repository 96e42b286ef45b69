//! The machine that an experiment ran on.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::results::OPTIONS;

/// Properties of the machine that every experiment records; `unknown` if one cannot be read.
pub fn describe() -> BTreeMap<String, Value> {
    let text = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let cpu = text("/proc/cpuinfo").and_then(|info| {
        let line = info.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let memory_mb = text("/proc/meminfo").and_then(|info| {
        let kilobytes = info.lines().next()?.split_whitespace().nth(1)?.parse::<u64>().ok()?;
        Some(kilobytes / 1024)
    });
    let system = text("/etc/os-release").and_then(|info| {
        let line = info.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
        Some(line.trim_matches('"').to_owned())
    });
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output().ok().and_then(|out| {
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        Some(text.lines().next()?.trim_start_matches("QEMU emulator version ").to_owned())
    });
    // The load at the start: on a busy machine high percentiles show that load rather than vsnoop.
    let busy =
        text("/proc/loadavg").and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let options = std::env::args().skip(1).skip_while(|argument| !argument.starts_with('-'));
    let or_unknown = |value: Option<String>| json!(value.unwrap_or_else(|| "unknown".into()));
    BTreeMap::from([
        ("kernel".into(), or_unknown(text("/proc/sys/kernel/osrelease"))),
        ("cpus".into(), json!(thread::available_parallelism().map_or(0, |n| n.get()))),
        ("cpu_model".into(), or_unknown(cpu)),
        ("load_average_before".into(), json!(busy)),
        ("memory_mb".into(), json!(memory_mb)),
        ("system".into(), or_unknown(system)),
        ("qemu".into(), or_unknown(qemu)),
        (OPTIONS.into(), json!(options.collect::<Vec<_>>().join(" "))),
    ])
}
