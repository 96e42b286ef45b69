//! `incast`: many senders answer one machine at once, through a last hop with a shallow buffer.
//!
//! The experiments of the ICTCP paper (Wu, Feng, Guo, Zhang: ICTCP, CoNEXT 2010). In a round the
//! machine requests data from all senders at the same time; the round ends when all data have
//! arrived. If the buffer of the last hop overflows, whole windows are lost, and the round lasts
//! until the last retransmission timeout. [`plan`] has the rounds, [`stage`] measures them,
//! [`ends`] are the two ends of the traffic, some of them in [`guests`].

mod configuration;
mod connections;
mod ends;
mod figures;
mod guests;
mod paper;
mod plan;
mod plots;
mod selection;
mod stage;
mod tables;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use vsnoop_testbed::fan_in::VM_ADDRESS;
use vsnoop_testbed::interrupt;
use vsnoop_testbed::session::Session;
use vsnoop_testbed::vsnoop::Vsnoop;

use super::definition::{Experiment, Options, Takes};
use super::progress::Progress;
use crate::results::incast::{Incast, Part};
use crate::results::record::Record;
use crate::results::report::Words;
use crate::results::statistics::{ascending, percentile};
use crate::results::{Results, Sample};
use guests::Boot;
use plan::Point;
pub use selection::Selection;
use stage::{IncastStage, last_hop};

/// Counted rounds of a block; the next block has the next configuration.
const BLOCK_ROUNDS: usize = 10;
/// Longest time of a point's measurements, even if rounds remain.
const BUDGET: Duration = Duration::from_secs(90);
/// net.core.netdev_max_backlog, packets: many senders send more at once than the default of 1000,
/// and packets may be lost at the last hop only.
const BACKLOG_PACKETS: &str = "20000";

pub const EXPERIMENT: Experiment = Experiment {
    name: "incast",
    about: "1 to 200 senders answer one VM at once, through a shallow buffer: off, incast control",
    words: Words {
        title: "Incast: many senders, one receiver, a shallow buffer",
        what_to_see: "`goodput` is what the receiving application gets, the mean of all rounds as in \
            the paper; `timeout` is the share of rounds in which at least one sender waited for its \
            retransmission timer. Without control, goodput collapses as soon as the windows of all \
            senders together overflow the buffer; with it no round should wait. `probes` are probes of \
            a closed window, `marks` packets that the last hop marked, `shaped` connections whose windows were \
            shaped when a block ended: those that are too far away, by what is seen of their round trips, \
            are left alone, and then `incast` is no better than `off`.",
        method: METHOD,
        command: "make lab RUN=incast",
        tables: tables::render,
        figures: figures::figures,
        goals: Some(paper::render),
        paper: None,
        plots: plots::draw,
    },
    takes: Takes { full_min: 45, quick_min: 2 },
    run,
};

const METHOD: &str = "Each sender is a network namespace, joined to a bridge (the switch) by a veth. The \
switch's port to the host is a token bucket of 1 Gb/s where no other rate is named (with preamble, checksum \
and gap of Ethernet; what goes at once after a pause stands under *Environment*) whose queue is limited in bytes: the last hop. Behind it are the host's uplink, its bridge, and the tap of the \
VM, which is a namespace with the same kernel's TCP behind a relay in user space, so that no CPU of a \
guest limits what is measured. Super-packets of senders are cut before they come to the queue: the sizes of \
packets at the last hop are checked in every round and stand under *Environment*, with what one flow \
carries with and without the last hop. No metrics are cached.

A round: the VM asks every sender for the same number of bytes by a request of 8 bytes on a connection \
that stays; the round ends when all bytes of all senders are there, each verified. Rounds follow each \
other at once. Configurations alternate in blocks of at most 10 rounds, in random order; each block has \
fresh connections, and a first round that is not counted. `timeout`, `retrans.` and `probes` are TCP's own \
counters (TCPTimeouts, RetransSegs, TCPWinProbe) of all senders; `drops` are those of the last hop. A round \
that is not over after 15 s counts as hung and has no goodput. Kernels count timers in ticks (4 ms at 250 \
Hz): a least RTO of 1 ms is one or two ticks.

| configuration | is |
|---|---|
| `off` | nothing is attached |
| `incast` | `vsnoop attach --observe --incast RATE --incast-buffer SIZE --uplink IFACE`, both those of the last hop: incast control alone, as in the paper |
| `incast-early` | the same without `--observe`: with early acknowledgement |
| `fixed-Nmss` | nothing is attached; the receiver caps its window at N segments (TCP_WINDOW_CLAMP) |

| part | is |
|---|---|
| `fixed-size` | every sender sends the same, however many there are (the paper's Fig. 8, 9) |
| `fixed-total` | all senders together send the same (Fig. 11) |
| `capped`, `capped-background` | fixed windows, without and with one more sender that never stops and has no cap (Fig. 4); its own traffic is not in the goodput |
| `long` | flows without an end, for 5 s after a first second |
| `vm` | as `fixed-size`, but the receiver is a real VM (QEMU, one vCPU), whose vCPU has a core for itself; \
everything else is on the other one. The guest opens the connections, asks, verifies and takes the time. \
The last hop is slower, so that the guest is not what limits: what one flow carries into it without a last \
hop and with it stands under *Environment* |
| `dctcp` | as `vm`, and the senders are in two more VMs, which share the connections; all have DCTCP and ECN \
(the kernel of the guests has it), the receiver too, so that each mark is echoed once. The last hop is a \
relay in user space, whose queue has the same rate, limit and overhead, and marks CE on ECN-capable packets \
that find more than a threshold there; others pass unmarked. `off` is DCTCP alone, `incast` DCTCP and incast \
control, which sees the marks too |";

fn run(options: &Options, record: &mut Record) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "an experiment makes namespaces and taps and attaches vsnoop: run it as root"
    );
    let points = plan::points(options)?;
    let attaches = points
        .iter()
        .any(|point| point.configurations.iter().any(|configuration| configuration.attaches()));
    let vsnoop = if attaches { Some(Vsnoop::find()?) } else { None };
    let has_guests = points.iter().any(|point| point.incast.part.has_guests());
    let image = if has_guests { Some(guests::image()?) } else { None };
    let mut session = Session::begin()?;
    let boot = image.map(|image| Boot::prepare(&session, image)).transpose()?;
    session.set_sysctl("net.core.netdev_max_backlog", BACKLOG_PACKETS)?;
    for point in points.iter().filter(|point| point.incast.part != Part::Dctcp) {
        session.allow_congestion_control(point.incast.congestion_control.name())?;
    }
    if let Some(vsnoop) = &vsnoop {
        record.results.environment.insert("vsnoop".into(), json!(vsnoop.version()?));
    }
    if let Some(boot) = &boot {
        record.results.environment.extend([
            ("accelerator".into(), json!(boot.accelerator)),
            ("guest_kernel".into(), json!(boot.image.kernel_version)),
        ]);
    }
    let rounds = points.iter().map(|point| point.rounds * point.configurations.len());
    let mut progress = Progress::new(rounds.sum());
    for points in points.chunk_by(|one, next| stage::same(&one.incast, &next.incast)) {
        let boot = boot.as_ref().filter(|_| points[0].incast.part.has_guests());
        println!("building a switch with its senders, for {}", points[0].incast.part.name());
        let opener = options.incast.opener.unwrap_or_default();
        let mut stage = IncastStage::build(&mut session, points, boot, opener, vsnoop.as_ref())?;
        calibrate(&mut stage, &mut record.results, &points[0].incast)?;
        for point in points {
            let end = progress.done() + point.rounds * point.configurations.len();
            measure(&mut stage, &mut session, point, record, &mut progress)
                .with_context(|| point.incast.to_string())?;
            progress.skip_to(end);
        }
    }
    Ok(())
}

/// Checks the stage: the throughput of one flow, the size of its packets, and the round trip time.
fn calibrate(stage: &mut IncastStage, results: &mut Results, incast: &Incast) -> Result<()> {
    let congestion_control = incast.congestion_control;
    let (unlimited, _) = stage.one_flow(None, congestion_control)?;
    let last_hop = last_hop(incast);
    let (limited, packet_bytes) = stage.one_flow(Some(last_hop), congestion_control)?;
    let microseconds = |times: Vec<Duration>| {
        let times = ascending(times.iter().map(|time| time.as_secs_f64() * 1e6));
        percentile(&times, 50.0)
    };
    let (what, rtt) = match stage.fan_in.senders.first() {
        Some(sender) => ("empty_path_rtt_us_p50", sender.ping(VM_ADDRESS, 50)?),
        None => ("small_round_us_p50", stage.small_rounds(congestion_control)?),
    };
    // A relay has no bucket.
    let burst = (incast.part != Part::Dctcp)
        .then(|| ("last_hop_burst_bytes", json!(last_hop.burst_bytes())));
    let round = |value: f64| (value * 10.0).round() / 10.0;
    let of = match incast.part.has_guests() {
        true => format!("{}_", incast.part.name()),
        false => String::new(),
    };
    for (name, value) in [
        ("one_flow_without_last_hop_mbps", json!(round(unlimited))),
        ("one_flow_mbps", json!(round(limited))),
        ("packet_bytes_at_last_hop", json!(packet_bytes.map(round))),
        (what, json!(microseconds(rtt).map(round))),
        ("last_hop_mbit", json!(last_hop.rate_mbit)),
    ]
    .into_iter()
    .chain(burst)
    {
        results.environment.insert(format!("{of}{name}"), value);
    }
    Ok(())
}

fn measure(
    stage: &mut IncastStage,
    session: &mut Session,
    point: &Point,
    record: &mut Record,
    progress: &mut Progress,
) -> Result<()> {
    stage.prepare(point)?;
    let started = Instant::now();
    let mut left = point.rounds;
    while left > 0 {
        // Flows without an end are new ones every time.
        let long = point.incast.part == Part::Long;
        let rounds = left.min(if long { 1 } else { BLOCK_ROUNDS });
        if started.elapsed() > BUDGET {
            eprintln!("{}: the time is up, {left} rounds were not measured", point.incast);
            break;
        }
        let mut order = point.configurations.clone();
        fastrand::shuffle(&mut order);
        for configuration in order {
            interrupt::check()?;
            let name = configuration.name();
            let block = point.rounds - left;
            if record.has(&name, point.size_bytes, &point.cell(), block) {
                progress.skip(rounds);
                continue;
            }
            let begin_ms = record.elapsed_ms();
            let samples =
                stage.block(session, point, configuration, rounds).with_context(|| name.clone())?;
            for sample in samples {
                let at_ms = begin_ms + sample.at_ms;
                record.push(Sample { turn: Some(block), at_ms, ..sample })?;
                progress.step(format!("{}, {name}", point.incast));
            }
        }
        left -= rounds;
    }
    Ok(())
}
