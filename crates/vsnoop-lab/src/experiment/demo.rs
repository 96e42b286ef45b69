//! `demo`: the main job. Three machines share a core; a client sends to them with and without
//! early acknowledgement. A [comparison](super::compare) of two configurations.

use std::time::Duration;

use super::Experiment;
use super::compare::{Comparison, Configuration};
use crate::results::report::Words;
use crate::results::{statistics, table};

const COMPARISON: Comparison = Comparison {
    name: "demo",
    configurations: &[Configuration::Off, Configuration::Vsnoop],
    machines: &[(3, 0.6)],
    path_rtts_ms: &[0.0],
    plan: &[(10_000, 60), (100_000, 90), (1_000_000, 70), (10_000_000, 24)],
    quick_plan: &[(10_000, 6), (100_000, 6), (1_000_000, 4), (10_000_000, 1)],
    budget: Duration::from_secs(250),
    figures: statistics::figures_against_off,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: COMPARISON.name,
    about: "three loaded VMs on one core, transfers of 10 KB to 10 MB, off and vsnoop",
    words: Words {
        title: "Early acknowledgement for VMs that share a core",
        what_to_see: "`acked` is what the sender waits for: from the first write until the last byte \
            is acknowledged. With `vsnoop` the host acknowledges for a machine that waits for its \
            turn, and holds a copy of what it acknowledged, so that the sender waits neither for \
            the machine's turn nor for its window. \
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
            and `vsnoop` (attached) alternate transfer by transfer, to the same guest, in random \
            order, with random pauses; a transfer with a wrong byte fails the experiment.",
        command: "make demo",
        tables: table::against_off,
        goals: None,
        plots: crate::results::plot::draw_all,
    },
    run: |options| COMPARISON.run(options),
};
