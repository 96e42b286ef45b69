//! `demo`: the main job. Three machines share a core; a client sends to them with and without
//! early acknowledgement.
//!
//! Transfers come in pairs, one for each configuration, to the same machine and of the same size, in
//! random order and with a random pause before each, so that neither drift nor the period of the
//! scheduler favours one side. `off` means detached: the port is attached before each `strict`
//! transfer and detached after it.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use vsnoop_guest::transfer::Direction;

use super::progress::Progress;
use super::{Experiment, Options, environment};
use crate::client::{self, Outcome, Request};
use crate::results::report::Words;
use crate::results::{Results, Sample, size_text, statistics};
use crate::session::Session;
use crate::stage::{CONGESTION_CONTROL, Stage};
use crate::vsnoop::Vsnoop;
use crate::{guest, interrupt, vm};

pub const EXPERIMENT: Experiment = Experiment {
    name: "demo",
    about: "three loaded VMs on one core, transfers of 10 KB to 10 MB, off and strict",
    words: Words {
        title: "Early acknowledgement for VMs that share a core",
        what_to_see: "`acked` is what the sender waits for: from the first write until the last byte \
            is acknowledged. With `strict` the host acknowledges for a machine that waits for its \
            turn, so small transfers, which fit into the machine's window, take the sender hardly \
            any time, and larger ones advance once per round trip instead of once per turn. \
            `delivered` ends with the answer of the receiving application, which no host can give in \
            its place. `off/x` says how many times sooner than without vsnoop (more than 1 is \
            better). `spurious` are retransmissions of segments that were not lost.",
        method: "Three QEMU guests (1 vCPU each) run a calibrated CPU load; their vCPU threads share \
            one core under SCHED_RR in slices of 30 ms, everything else runs on another core. Under \
            TCG a vCPU also yields when it meets the lock of its QEMU's main loop, which happens about \
            twice per tick of the guest, so that its turns are a few ms long and a machine may lose \
            its turn right after the handshake; with undisturbed slices a small transfer would \
            mostly find the machine still running, and gain less. The \
            client, in a network namespace, reaches them by a veth, a bridge and their taps. Each \
            transfer is a new connection (cubic, no cached metrics) that sends the whole size, a \
            32-byte header in its first write included; the guest verifies every byte and answers. \
            acked_ms: first write to the kernel's transmit-ACK timestamp of the last byte; \
            delivered_ms: first write to the answer; the handshake is connect_ms. `off` (detached) \
            and `strict` (attached) alternate transfer by transfer, to the same guest, in random \
            order, with random pauses; a transfer with a wrong byte fails the experiment.",
        command: "make demo",
    },
    run,
};

const VMS: usize = 3;
const LOAD: f64 = 0.6;
const LOAD_PERIOD_MS: u32 = 100;
const CONFIGURATIONS: [&str; 2] = ["off", "strict"];
/// Size and pairs.
const PLAN: [(u64, usize); 4] = [(10_000, 60), (100_000, 90), (1_000_000, 70), (10_000_000, 24)];
const QUICK_PLAN: [(u64, usize); 4] = [(10_000, 6), (100_000, 6), (1_000_000, 4), (10_000_000, 1)];
/// The measuring ends here, whatever is left of the plan.
const BUDGET: Duration = Duration::from_secs(250);
const PAUSE_MS: std::ops::Range<u64> = 5..100;
const TIMEOUT: Duration = Duration::from_secs(60);

fn run(options: &Options) -> Result<Results> {
    let configurations = configurations(options)?;
    let vsnoop = if configurations.contains(&"strict") { Some(Vsnoop::find()?) } else { None };
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and attaches vsnoop: run it as root"
    );
    vm::require_two_cores()?;
    vm::require_qemu()?;
    let image = guest::prepare(guest::Options::default())?;
    let mut session = Session::begin()?;
    let accelerator = vm::choose_accelerator(&image, &session.scratch())?;
    // Described before booting, which is work itself, and before the lab is confined to one core.
    let mut environment = environment::describe();
    println!("booting {VMS} VMs (Linux {}, {accelerator})", image.kernel_version);
    let stage = Stage::build(&mut session, &image, accelerator, VMS, vsnoop.as_ref())?;
    vm::pin_self()?;
    stage.load(&mut session, LOAD, LOAD_PERIOD_MS)?;

    environment.extend([
        ("accelerator".into(), json!(accelerator)),
        ("guest_kernel".into(), json!(image.kernel_version)),
        ("vms".into(), json!(VMS)),
        ("load".into(), json!(LOAD)),
        ("load_period_ms".into(), json!(LOAD_PERIOD_MS)),
        ("slice_ms".into(), json!(crate::stage::SLICE_MS)),
        ("congestion_control".into(), json!(CONGESTION_CONTROL)),
    ]);
    if let Some(vsnoop) = &vsnoop {
        environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    }
    let mut results = Results {
        experiment: EXPERIMENT.name.into(),
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        environment,
        samples: Vec::new(),
        summary: Vec::new(),
        figures: Vec::new(),
    };
    let plan = plan(options)?;
    measure(&stage, &configurations, &plan, &mut results.samples)?;
    ensure!(!results.samples.is_empty(), "no transfer was finished within {BUDGET:?}");
    statistics::summarise(&mut results);
    Ok(results)
}

/// Sizes and pairs, as asked for.
fn plan(options: &Options) -> Result<Vec<(u64, usize)>> {
    let mut plan = if options.quick { QUICK_PLAN } else { PLAN }.to_vec();
    if let Some(size_bytes) = options.size_bytes {
        plan.retain(|(size, _)| *size == size_bytes);
        ensure!(
            !plan.is_empty(),
            "there are no transfers of {size_bytes} bytes in this experiment"
        );
    }
    if let Some(pairs) = options.pairs {
        plan.iter_mut().for_each(|(_, count)| *count = pairs);
    }
    Ok(plan)
}

fn configurations(options: &Options) -> Result<Vec<&'static str>> {
    if let Some(unknown) =
        options.configurations.iter().find(|name| !CONFIGURATIONS.contains(&name.as_str()))
    {
        bail!("there is no configuration {unknown:?}; there are: {}", CONFIGURATIONS.join(", "));
    }
    let chosen = |name: &&str| {
        options.configurations.is_empty() || options.configurations.iter().any(|c| c == name)
    };
    Ok(CONFIGURATIONS.into_iter().filter(chosen).collect())
}

fn measure(
    stage: &Stage,
    configurations: &[&'static str],
    plan: &[(u64, usize)],
    samples: &mut Vec<Sample>,
) -> Result<()> {
    let begin = Instant::now();
    let pairs = spread(plan);
    let total = pairs.len() * configurations.len();
    let mut progress = Progress::new(total);
    for (index, size_bytes) in pairs.into_iter().enumerate() {
        if begin.elapsed() > BUDGET {
            eprintln!(
                "the time is up: {index} of {} pairs were measured",
                total / configurations.len()
            );
            break;
        }
        let machine = index % stage.vm_count();
        let mut order = configurations.to_vec();
        fastrand::shuffle(&mut order);
        for configuration in order {
            interrupt::check()?;
            let sample =
                one(stage, configuration, size_bytes, machine, begin).with_context(|| {
                    format!("{configuration}, {} to VM {machine}", size_text(size_bytes))
                })?;
            samples.push(sample);
            progress.step(samples.len(), format!("{} {configuration}", size_text(size_bytes)));
        }
    }
    Ok(())
}

/// The sizes of all pairs, each size spread evenly over the whole time, so that an end before the
/// plan is done cuts all sizes alike.
fn spread(plan: &[(u64, usize)]) -> Vec<u64> {
    let mut places: Vec<(f64, u64)> = plan
        .iter()
        .flat_map(|&(size, count)| (0..count).map(move |i| ((i as f64 + 0.5) / count as f64, size)))
        .collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.into_iter().map(|(_, size)| size).collect()
}

fn one(
    stage: &Stage,
    configuration: &str,
    size_bytes: u64,
    machine: usize,
    begin: Instant,
) -> Result<Sample> {
    let attached = configuration == "strict";
    if attached {
        stage.attach(machine)?;
    }
    std::thread::sleep(Duration::from_millis(fastrand::u64(PAUSE_MS)));
    let drops_before = stage.tap_counts(machine)?.drops;
    let at_ms = begin.elapsed().as_secs_f64() * 1e3;
    let request = Request {
        server: stage.server(machine),
        direction: Direction::Upload,
        size_bytes,
        seed: fastrand::u64(..),
        congestion_control: CONGESTION_CONTROL,
        timeout: TIMEOUT,
    };
    let outcome = client::transfer(stage.client(), &request)?;
    let tap_drops = stage.tap_counts(machine)?.drops - drops_before;
    if attached {
        stage.detach(machine)?;
    }
    match outcome {
        Outcome::Exact(times) => Ok(Sample {
            configuration: configuration.to_owned(),
            size_bytes,
            connect_ms: times.connect_ms,
            acked_ms: times.acked_ms,
            delivered_ms: times.delivered_ms,
            retransmissions: times.retransmissions,
            dsack_duplicates: times.dsack_duplicates,
            tap_drops,
            vm: machine,
            at_ms,
        }),
        Outcome::Wrong(verdict) => bail!("the guest did not get what was sent: {verdict:?}"),
        Outcome::Broken(error) => bail!("the connection broke: {error}"),
        Outcome::Hung => bail!("nothing came of the transfer within {} s", TIMEOUT.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_spread_over_the_whole_plan() {
        let order = spread(&[(1, 8), (2, 2)]);
        assert_eq!(order.len(), 10);
        assert_eq!(order.iter().filter(|&&size| size == 2).count(), 2);
        assert!(order[..5].contains(&2) && order[5..].contains(&2));
    }
}
