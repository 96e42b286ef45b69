//! The runner `profile`: what each routine of vsnoop costs per packet, as Table I of the vSnoop
//! report, with one stream to a VM and with many to all of them.

mod perf;
mod routine;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::json;
use vsnoop_testbed::stage::{CONGESTION_CONTROL, Stage};
use vsnoop_testbed::{guest, workspace};

use super::configuration::Configuration;
use super::declared::{Ground, Measure, Task, on_stages};
use super::lab::guest_image;
use super::rounds::Trial;
use super::ways::{Way, settle};
use crate::results::{Label, Sample, ms};
use routine::{Packets, Routine};

/// Payload of a segment on a path of 1500 bytes, with timestamps.
const SEGMENT_BYTES: f64 = 1448.0;
/// Samples by routine, the last one of all of them.
type Samples = Vec<(String, Sample)>;

const ALL: &str = "all";
/// Names of values: until all bytes had arrived; perf's samples.
const TOOK: &str = "took_ms";
const SAMPLES: &str = "samples";
const WARM_UP_BYTES: u64 = 10_000;
/// On a busy machine perf may begin too late, and then has no sample.
const MOST_RECORDINGS: usize = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Streams at once; a stream has the size of a cell divided by their number.
    streams: Vec<usize>,
    routine: Vec<Routine>,
}

pub fn run(task: Task) -> Result<()> {
    let settings: Settings = task.plan()?.settings()?;
    perf::require()?;
    // Packets are counted in nanoseconds; cycles are those of the time stamp counter.
    let mhz = tsc_mhz();
    task.record.results.environment.insert("cpu_mhz".into(), json!(mhz));
    let image = guest_image(guest::Options::default())?;
    on_stages(task, image, &mut Profile { settings, mhz })
}

/// Reads the frequency from /proc/cpuinfo.
fn tsc_mhz() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

struct Profile {
    settings: Settings,
    mhz: Option<f64>,
}

/// Counters of the hooks of all ports.
#[derive(Clone, Copy, Default)]
struct Counts {
    to_vm_packets: u64,
    to_vm_bytes: u64,
    from_vm_packets: u64,
}

impl Measure for Profile {
    fn measure(&mut self, ground: &Ground, trial: Trial<Configuration>) -> Result<Vec<Sample>> {
        let stage = ground.stage;
        let attached = trial.configuration.attach_options().is_some();
        // The machine of this round is attached already.
        let others =
            || (0..stage.vm_count()).filter(|&machine| attached && machine != ground.machine);
        others().try_for_each(|machine| stage.attach(machine))?;
        let measured = self.settings.streams.iter().map(|&streams| {
            let machines = if streams == 1 { 1 } else { stage.vm_count() };
            self.streams(ground, trial, streams, machines)
        });
        let samples = measured.collect::<Result<Vec<_>>>()?.concat();
        others().try_for_each(|machine| stage.detach(machine))?;
        Ok(samples)
    }
}

impl Profile {
    fn streams(
        &self,
        ground: &Ground,
        trial: Trial<Configuration>,
        streams: usize,
        machines: usize,
    ) -> Result<Vec<Sample>> {
        let stage = ground.stage;
        let way = |stream: usize| {
            let machine = (ground.machine + stream % machines) % stage.vm_count();
            ground.at(machine).way(trial.configuration)
        };
        let ways = (0..streams).map(way).collect::<Result<Vec<Way>>>()?;
        send(stage, &ways, WARM_UP_BYTES)?;
        let bytes = trial.size_bytes / streams as u64;
        let mut samples = match trial.configuration.attach_options() {
            Some(_) => self.recorded(ground, &ways, bytes)?,
            None => {
                let took = ms(send(stage, &ways, bytes)?);
                vec![(ALL.to_owned(), Sample::with([(TOOK, took)]))]
            }
        };
        let named = |(routine, sample): (String, Sample)| {
            let what = Label::from(&format!("{routine} {streams}")).ok();
            Sample { what, ..sample }
        };
        Ok(samples.drain(..).map(named).collect())
    }

    /// Sends while perf records; again where it has no sample of any routine.
    fn recorded(&self, ground: &Ground, ways: &[Way], size_bytes: u64) -> Result<Samples> {
        let stage = ground.stage;
        for _ in 0..MOST_RECORDINGS {
            let machines: Vec<_> =
                (0..stage.vm_count()).map(|number| stage.vm(number).pid()).collect();
            let processes = [vec![Pid::this()], machines, engines()?].concat();
            let before = counts(stage)?;
            let recording = perf::Recording::start(&processes, &ground.lab.session.scratch())?;
            let took = send(stage, ways, size_bytes)?;
            let times = recording.end()?;
            let counts = counts(stage)?.since(before);
            let routines = &self.settings.routine;
            let samples = samples(routines, &times, took, counts, ways.len(), self.mhz);
            if samples.iter().any(|(_, sample)| sample.values.get(SAMPLES) > Some(&0.0)) {
                return Ok(samples);
            }
        }
        bail!("perf has no sample of vsnoop's programs in {MOST_RECORDINGS} recordings")
    }
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

/// The time of each routine per packet that its hook has seen, and its share of the host's core.
/// One of which perf has no sample has taken no time, which counts in a mean. Of all together the
/// cycles for each segment of an MTU.
fn samples(
    routines: &[Routine],
    times: &BTreeMap<String, Duration>,
    took: Duration,
    counts: Counts,
    streams: usize,
    mhz: Option<f64>,
) -> Samples {
    let packets = counts.to_vm_packets as f64;
    let segments = counts.to_vm_bytes as f64 / SEGMENT_BYTES;
    let cycles = |time_ns: f64| mhz.map(|mhz| time_ns * mhz / 1e3);
    let mut all = Duration::ZERO;
    let mut samples: Samples = Vec::new();
    for routine in routines {
        let is_it = |(symbol, _): &(&String, &Duration)| routine.has(symbol);
        let time: Duration = times.iter().filter(is_it).map(|(_, time)| *time).sum();
        all += time;
        let seen = match routine.packets {
            Packets::ToVm => counts.to_vm_packets,
            Packets::FromVm => counts.from_vm_packets,
            Packets::Both => counts.to_vm_packets + counts.from_vm_packets,
        };
        let ns = time.as_nanos() as f64 / seen.max(1) as f64;
        let paper = routine.paper_cycles.map(|[one, many]| if streams == 1 { one } else { many });
        let values = [
            ("ns", Some(ns)),
            ("cycles", cycles(ns)),
            ("cpu_percent", Some(time.as_secs_f64() / took.as_secs_f64() * 100.0)),
            (SAMPLES, Some(time.as_secs_f64() / perf::PERIOD.as_secs_f64())),
            ("paper_cycles", paper),
            ("packets_to_vm", Some(packets)),
            ("segments_each", Some(segments / packets.max(1.0))),
        ];
        let values = values.into_iter().filter_map(|(name, value)| Some((name, value?)));
        samples.push((routine.name.clone(), Sample::with(values)));
    }
    let each = cycles(all.as_nanos() as f64 / segments.max(1.0)).map(|each| ("cycles_each", each));
    let whole = [(TOOK, ms(took)), ("segments_each", segments / packets.max(1.0))];
    samples.push((ALL.to_owned(), Sample::with(whole.into_iter().chain(each))));
    samples
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
        let (routines, took) = (routine::tests::routines(), Duration::from_millis(10));
        let samples = samples(&routines, &times, took, counts, 1, Some(2000.0));
        let samples: BTreeMap<_, _> = samples.into_iter().collect();
        let value = |routine: &str, name: &str| samples[routine].values[name];
        let ns = ["parse", "egress", "hold"].map(|routine| value(routine, "ns"));
        assert_eq!(ns, [1000.0, 1000.0, 500.0]);
        assert_eq!((value("ingress", "ns"), value("lookup", "samples")), (0.0, 0.0));
        assert_eq!((value("hold", "cycles"), value("all", "took_ms")), (1000.0, 10.0));
    }
}
