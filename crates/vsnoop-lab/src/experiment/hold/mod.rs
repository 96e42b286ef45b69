//! `hold`: a [comparison](super::compare) of early acknowledgement, within the VM's own window and
//! beyond it, with its alternatives, in four cells.

mod figures;
mod goals;
mod paper;
mod tables;

use std::time::Duration;

use super::compare::Comparison;
use super::configuration::Configuration;
use super::definition::{Experiment, Takes};
use crate::results::report::Words;

const COMPARISON: Comparison = Comparison {
    name: "hold",
    configurations: &[
        Configuration::Off,
        Configuration::Tuned,
        Configuration::AheadZero,
        Configuration::Vsnoop,
        Configuration::Proxy,
        Configuration::Priority,
        Configuration::Host,
    ],
    machines: &[(3, 0.6), (5, 1.0)],
    path_rtts_ms: &[0.0, 5.0],
    plan: &[(10_000, 30), (100_000, 50), (1_000_000, 40), (10_000_000, 8)],
    quick_plan: &[(10_000, 3), (100_000, 5), (1_000_000, 4), (10_000_000, 2)],
    // Four cells and the booting of eight machines: 14 minutes.
    budget: Duration::from_secs(180),
};

pub const EXPERIMENT: Experiment = Experiment {
    name: COMPARISON.name,
    about: "3 and 5 loaded VMs on one core, near and 5 ms away: vsnoop and what else there is",
    words: Words {
        title: "Holding what was acknowledged, for VMs that share a core",
        what_to_see: "`acked` is what the sender waits for: from the first write until the last byte \
            is acknowledged; `delivered` ends with the answer of the receiving application; `total` is \
            `delivered` and the handshake before it, which a proxy answers itself, so that its own \
            handshake with the machine falls into `delivered`. Where a column says `x/vsnoop`, more than \
            1 means that `vsnoop` was sooner; `vsnoop/host` is what is left to the limit. Intervals (95 %) are \
            of the ratio of the medians; fewer than six transfers have none. The last table says what \
            the VM did in `total`: its vCPU ran, for its own load as well, or had work and waited for its \
            CPU; where the two are the whole time, neither the host nor its hold delays the data. `held` \
            was acknowledged before it was handed to the VM; `hold full` are segments that found no memory \
            to be kept in: they go to the VM as without vsnoop, or their sender repeats them.",
        method: METHOD,
        command: "make lab RUN=hold",
        tables: tables::render,
        figures: figures::figures,
        goals: Some(goals::render),
        papers: &[paper::AGAINST],
        plots: crate::results::plot::draw_all,
    },
    takes: Takes { full_min: 14, quick_min: 1 },
    run: |options, record| COMPARISON.run(options, record),
};

const METHOD: &str = "QEMU guests (1 vCPU each) run a calibrated CPU load; their vCPU threads share one \
core in slices of 30 ms (a thread of the lab gives turns by real-time priorities), everything else (QEMU's main loops, the host's networking, the \
client, the peers) runs on another core. The client, in a network namespace, reaches them by a path, a \
bridge and their taps. A path of 0 ms is a veth; one with a round trip is a relay in user space between \
two taps that delays every frame by half of it each way, on a real-time thread, super-packets kept whole; \
its round trip is measured by ICMP echo to the host before each cell and stands under *Environment*. \
Cells: every number of machines (with its load) with every path. Each transfer is a new connection (cubic, \
no cached metrics) that sends the whole size, a 32-byte header in its first write included; the receiver \
verifies every byte and answers; a wrong byte, a reset or a hang fails the experiment. A round is one \
transfer in each configuration, in random order, to the same guest, with random pauses and only when the \
connection before it has ended on both sides.

| configuration | is |
|---|---|
| `off` | nothing is attached |
| `tuned` | the guest's second device, on the same bridge and the same vCPU, with a ring of 10,000 frames \
on the tap (txqueuelen; the others have the kernel's 1000) and a receive queue of 1024 (the others have \
QEMU's 256). A device of its own, because a queue's size cannot be changed while the guest runs |
| `ahead-0` | `vsnoop attach --ahead 0`: the sender is shown no more than the VM's own window |
| `vsnoop` | `vsnoop attach` |
| `proxy` | HAProxy in TCP mode on the host, one thread, buffers of 64 KB, sockets that may buffer 16 MB, \
cubic towards the guest. It listens on the host's own address: not transparent, which would only cost it |
| `priority` | the guest's vCPU has a higher real-time priority than the others from before the handshake to \
the end: the most that any weight of a scheduler can do for it, at the expense of the others (who, at \
load 1.0, do not run meanwhile). An operator would set a weight for good (cpu.weight, `virsh schedinfo`), \
for nobody knows when a transfer begins |
| `host` | the same server as in the guests, a process of the host: the limit |";
