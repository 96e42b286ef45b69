//! The runner `profile`: what each routine of vsnoop costs per packet, as Table I of the vSnoop
//! report, with one stream to a VM and with many to all of them.

mod perf;
mod report;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::json;
use vsnoop_guest::transfer;
use vsnoop_testbed::stage::{CONGESTION_CONTROL, Stage};
use vsnoop_testbed::{guest, workspace};

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Runner, Task, on_stages};
use super::lab::Lab;
use super::rounds::Trial;
use super::ways::{Way, Ways, settle};
use crate::results::{Label, Sample, Values, ms};
use report::{NS, PACKETS, PERCENT, Packets, Routine, SAMPLES, SEGMENTS, TOOK};

pub const RUNNER: Runner = Runner {
    name: "profile",
    run,
    tables: report::tables,
    figures: report::figures,
    goals: None,
    plots: report::plots,
    difference: report::difference,
};

/// Payload of a segment on a path of 1500 bytes, with timestamps.
const SEGMENT_BYTES: f64 = 1448.0;
const WARM_UP_BYTES: u64 = 10_000;
/// On a busy machine perf may begin too late, and then has no sample.
const MOST_RECORDINGS: usize = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Streams at once; a stream has the size of a cell divided by their number.
    streams: Vec<usize>,
}

fn run(task: Task) -> Result<()> {
    let Settings { streams } = task.plan.settings()?;
    perf::require()?;
    // Packets are counted in nanoseconds; cycles are those of the time stamp counter.
    if let Some(mhz) = tsc_mhz() {
        task.record.results.environment.insert(report::MHZ.into(), json!(mhz));
    }
    on_stages(task, guest::Options::default(), &mut Profile { streams, ways: None })
}

/// As /proc/cpuinfo has it.
fn tsc_mhz() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

struct Profile {
    streams: Vec<usize>,
    ways: Option<Ways>,
}

/// What the hooks of all ports have counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    to_vm_packets: u64,
    to_vm_bytes: u64,
    from_vm_packets: u64,
}

impl Measure for Profile {
    fn booted(&mut self, lab: &mut Lab, stage: &Stage) -> Result<()> {
        let configurations = [Configuration::Off, Configuration::Vsnoop];
        self.ways = Some(Ways::open(&mut lab.session, stage, &configurations, transfer::PORT)?);
        Ok(())
    }

    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let stage = ground.stage;
        let attached = trial.configuration.attach_options().is_some();
        // The machine of this round is attached already.
        let others =
            || (0..stage.vm_count()).filter(|&machine| attached && machine != ground.machine);
        others().try_for_each(|machine| stage.attach(machine))?;
        let measured = self.streams.iter().map(|&streams| {
            let machines = if streams == 1 { 1 } else { stage.vm_count() };
            self.streams(ground, trial, streams, machines)
        });
        let samples = measured.collect::<Result<Vec<_>>>()?;
        others().try_for_each(|machine| stage.detach(machine))?;
        Ok(samples)
    }

    fn leave(&mut self) {
        self.ways = None;
    }
}

impl Profile {
    fn streams(
        &self,
        ground: &Ground,
        trial: Trial<Configuration>,
        streams: usize,
        machines: usize,
    ) -> Result<Sample> {
        let stage = ground.stage;
        let ways = self.ways.as_ref().context("no stage was booted")?;
        let way = |stream: usize| {
            let machine = (ground.machine + stream % machines) % stage.vm_count();
            ways.way(stage, trial.configuration, machine)
        };
        let ways = (0..streams).map(way).collect::<Result<Vec<Way>>>()?;
        send(stage, &ways, WARM_UP_BYTES)?;
        let bytes = trial.size_bytes / streams as u64;
        let values = match trial.configuration.attach_options() {
            Some(_) => recorded(ground, &ways, bytes)?,
            None => Values::from([(TOOK.into(), ms(send(stage, &ways, bytes)?))]),
        };
        let what = if streams == 1 { "1 stream".into() } else { format!("{streams} streams") };
        let what = Label::from(&what).map_err(|_| anyhow!("{what} is too long for a label"))?;
        Ok(Sample { what: Some(what), values, ..Sample::default() })
    }
}

/// Sends while perf records; again where it has no sample of any routine.
fn recorded(ground: &Ground, ways: &[Way], size_bytes: u64) -> Result<Values> {
    let stage = ground.stage;
    for _ in 0..MOST_RECORDINGS {
        let machines: Vec<_> = (0..stage.vm_count()).map(|number| stage.vm(number).pid()).collect();
        let processes = [vec![Pid::this()], machines, engines()?].concat();
        let before = counts(stage)?;
        let recording = perf::Recording::start(&processes, &ground.lab.session.scratch())?;
        let took = send(stage, ways, size_bytes)?;
        let times = recording.end()?;
        let values = values(&times, took, counts(stage)?.since(before));
        if report::is_recorded(&values) {
            return Ok(values);
        }
    }
    bail!("perf has no sample of vsnoop's programs in {MOST_RECORDINGS} recordings")
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            to_vm_packets: self.to_vm_packets - before.to_vm_packets,
            to_vm_bytes: self.to_vm_bytes - before.to_vm_bytes,
            from_vm_packets: self.from_vm_packets - before.from_vm_packets,
        }
    }
}

/// Sends on all ways at once, and waits until all connections have ended. Returns the time until
/// all bytes had arrived.
fn send(stage: &Stage, ways: &[Way], size_bytes: u64) -> Result<Duration> {
    let begin = Instant::now();
    let upload = |way: &Way| way.upload(stage.client(), size_bytes, CONGESTION_CONTROL);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ways.iter().map(|way| scope.spawn(|| upload(way))).collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join().map_err(|_| anyhow!("the thread of a stream panicked"))?;
            ended.map(drop)
        })
    })?;
    let took = begin.elapsed();
    settle(stage)?;
    Ok(took)
}

fn counts(stage: &Stage) -> Result<Counts> {
    let mut sum = Counts::default();
    for machine in 0..stage.vm_count() {
        let tap = stage.tap(machine);
        let stats = stage.vsnoop()?.stats(tap)?;
        let count = |name: &str| {
            let value = stats["ports"][0][name].as_u64();
            value.with_context(|| format!("the statistics of {tap} have no {name}"))
        };
        sum.to_vm_packets += count("to_vm_packets")?;
        sum.to_vm_bytes += count("to_vm_bytes")?;
        sum.from_vm_packets += count("from_vm_packets")?;
    }
    Ok(sum)
}

/// The engines of vsnoop, which hands data over.
fn engines() -> Result<Vec<Pid>> {
    let (mut pids, command) = (Vec::new(), workspace::vsnoop_command()?);
    let command = command.as_os_str().as_bytes();
    for entry in std::fs::read_dir("/proc").context("list /proc")? {
        let entry = entry.context("list /proc")?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may have ended.
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split(|&byte| byte == 0);
        if words.next() == Some(command) && words.next() == Some(b"engine") {
            pids.push(Pid::from_raw(pid));
        }
    }
    Ok(pids)
}

/// Time per packet that a hook has seen, and share of the host's core, of each routine.
fn values(times: &BTreeMap<String, Duration>, took: Duration, counts: Counts) -> Values {
    let mut values = Values::new();
    // A routine of which perf has no sample has taken no time, which counts in a mean.
    for routine in Routine::ALL {
        for value in [NS, PERCENT, SAMPLES] {
            values.insert(format!("{}{value}", routine.name()), 0.0);
        }
    }
    for (symbol, time) in times {
        let Some(routine) = report::routine(symbol) else { continue };
        let packets = match routine.packets() {
            Packets::ToVm => counts.to_vm_packets,
            Packets::FromVm => counts.from_vm_packets,
            Packets::Both => counts.to_vm_packets + counts.from_vm_packets,
        };
        let name = routine.name();
        *values.entry(format!("{name}{NS}")).or_default() +=
            time.as_nanos() as f64 / packets.max(1) as f64;
        *values.entry(format!("{name}{PERCENT}")).or_default() +=
            time.as_secs_f64() / took.as_secs_f64() * 100.0;
        *values.entry(format!("{name}{SAMPLES}")).or_default() +=
            time.as_secs_f64() / perf::PERIOD.as_secs_f64();
    }
    values.insert(TOOK.into(), ms(took));
    values.insert(PACKETS.into(), counts.to_vm_packets as f64);
    values.insert(SEGMENTS.into(), counts.to_vm_bytes as f64 / SEGMENT_BYTES);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_that_of_the_packets_a_routine_sees_and_no_sample_is_no_time() {
        let counts = Counts { to_vm_packets: 100, to_vm_bytes: 144_800, from_vm_packets: 300 };
        let times = [("parse_packet", 400), ("from_vm", 300), ("copy_chunk", 50)];
        let symbol = |name: &str| format!("bpf_prog_0123456789abcdef_{name}");
        let times = times.map(|(name, us)| (symbol(name), Duration::from_micros(us))).into();
        let values = values(&times, Duration::from_millis(10), counts);
        assert_eq!(
            (values["parse_ns"], values["egress_ns"], values["hold_ns"]),
            (1000.0, 1000.0, 500.0)
        );
        assert_eq!((values["ingress_ns"], values["lookup_samples"]), (0.0, 0.0));
        assert_eq!(values["took_ms"], 10.0);
    }
}
