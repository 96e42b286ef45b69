//! A cell: one network, one kind of TCP, one way of control; and what it gave.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// Payload of the line: of 1,538 bytes of a full frame 1,448.
pub const PAYLOAD: f64 = 1448.0 / 1538.0;
const SIGABRT: i32 = 6;
const SIGSEGV: i32 = 11;
/// Largest window scale that incast control shapes (accel/flow/incast_credit.h).
const INCAST_SCALE: u32 = 11;
/// A full segment in the queue of the last hop, bytes.
const SEGMENT: f64 = 1514.0;

macro_rules! configurations {
    ($($variant:ident $name:literal $tcp:literal $control:literal,)*) => {
        /// Kind of TCP, and way of control.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Configuration {
            $(#[serde(rename = $name)] $variant,)*
        }

        impl Configuration {
            const ALL: &'static [(Self, &'static str, &'static str, &'static str)] =
                &[$((Self::$variant, $name, $tcp, $control),)*];
        }
    };
}

configurations! {
    Off "off" "cubic" "off",
    Reno "reno" "reno" "off",
    Bbr "bbr" "bbr" "off",
    Dctcp "dctcp" "dctcp" "off",
    Incast "incast" "cubic" "incast",
    IncastReno "incast-reno" "reno" "incast",
    IncastEarly "incast-early" "cubic" "incast-early",
    IncastDctcp "incast-dctcp" "dctcp" "incast",
    Early "early" "cubic" "early",
    Split "split" "cubic" "split",
}

/// Traffic between senders and VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Rounds, in which all senders answer at once.
    #[default]
    Queries,
    /// Flows without an end.
    Flows,
    /// Peers send to VMs, each over a connection of its own.
    Uploads,
    Downloads,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Queries, Self::Flows, Self::Uploads, Self::Downloads];

    pub fn name(self) -> &'static str {
        match self {
            Self::Queries => "queries",
            Self::Flows => "flows",
            Self::Uploads => "uploads",
            Self::Downloads => "downloads",
        }
    }

    pub fn is_transfers(self) -> bool {
        matches!(self, Self::Uploads | Self::Downloads)
    }
}

impl Configuration {
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    pub fn names() -> String {
        Self::ALL.iter().map(|row| row.1).collect::<Vec<_>>().join(", ")
    }

    fn row(self) -> &'static (Self, &'static str, &'static str, &'static str) {
        Self::ALL.iter().find(|row| row.0 == self).expect("each has a row")
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    fn tcp(self) -> &'static str {
        self.row().2
    }

    fn control(self) -> &'static str {
        self.row().3
    }

    /// Has it incast control?
    pub fn is_controlled(self) -> bool {
        self.control().starts_with("incast")
    }

    /// Are there early acknowledgements, and no incast control?
    pub fn is_early(self) -> bool {
        matches!(self, Self::Early | Self::Split)
    }

    /// Does the switch have to mark?
    pub fn needs_marks(self) -> bool {
        self.tcp() == "dctcp"
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    pub series: String,
    pub kind: Kind,
    pub configuration: Configuration,
    pub gbps: f64,
    pub senders: u64,
    pub vms: u64,
    pub background: u64,
    pub answer_bytes: u64,
    pub buffer_bytes: u64,
    pub alpha: f64,
    pub mark_bytes: u64,
    pub rtt_us: f64,
    pub jitter_us: f64,
    pub rto_min_ms: f64,
    pub receive_buffer_bytes: u64,
    pub stop_ms: u64,
    pub period_ms: u64,
    /// Name of recorded waits, or empty.
    pub waits: String,
    /// That a VM's CPU takes in; 0: unlimited.
    pub vm_gbps: f64,
    /// Before each upload or download, at most.
    pub gap_ms: f64,
    /// How long flows without an end run.
    pub seconds: f64,
    pub rounds: u64,
}

impl Default for Cell {
    fn default() -> Self {
        Self {
            series: String::new(),
            kind: Kind::Queries,
            configuration: Configuration::Off,
            gbps: 1.0,
            senders: 8,
            vms: 1,
            background: 0,
            answer_bytes: 64_000,
            buffer_bytes: 128_000,
            alpha: 0.0,
            mark_bytes: 100_000,
            rtt_us: 100.0,
            jitter_us: 0.0,
            rto_min_ms: 200.0,
            receive_buffer_bytes: 4 << 20,
            stop_ms: 0,
            period_ms: 0,
            waits: String::new(),
            vm_gbps: 0.0,
            gap_ms: 0.0,
            seconds: 1.0,
            rounds: 10,
        }
    }
}

/// The simulator's output; only fields that this crate uses have a name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub rounds: u64,
    /// Rounds that ended within the simulated time that they had.
    pub ended: u64,
    pub late_rounds: u64,
    pub timeouts: u64,
    pub drops: u64,
    pub goodput_mbps: f64,
    /// Mean of the rounds, as the lab has it.
    #[serde(default)]
    pub goodput_of_rounds_mbps: f64,
    #[serde(default)]
    pub completion_p50_ms: f64,
    #[serde(default)]
    pub completion_p99_ms: f64,
    /// Medians of each VM's transfers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vm_ms: Vec<f64>,
    #[serde(flatten)]
    pub others: serde_json::Map<String, serde_json::Value>,
}

impl Outcome {
    /// A number that only some cells have.
    pub fn other(&self, name: &str) -> Option<f64> {
        self.others.get(name)?.as_f64()
    }

    /// One that counts what happened, for each simulated second.
    pub fn per_second(&self, name: &str) -> Option<f64> {
        Some(self.other(name)? / self.other("simulated_s")?)
    }
}

impl Cell {
    /// Bytes in the queue from which packets are marked: a fourth of a small buffer.
    fn mark(&self) -> u64 {
        if self.configuration.needs_marks() {
            self.mark_bytes.min(self.buffer_bytes / 4)
        } else {
            0
        }
    }

    /// Does the last hop, its queue and its wire, hold a segment of each sender?
    pub fn holds_a_segment_of_each(&self) -> bool {
        let share = if self.alpha > 0.0 { self.alpha / (1.0 + self.alpha) } else { 1.0 };
        let wire = self.gbps * 1e9 / 8.0 * self.rtt_us / 1e6;
        self.buffer_bytes as f64 * share + wire >= self.senders as f64 * SEGMENT
    }

    /// Are the units of the VM's windows small enough for incast control?
    pub fn is_shaped(&self) -> bool {
        self.receive_buffer_bytes <= 65_535 << INCAST_SCALE
    }

    /// The rate that payload can have, Mb/s.
    pub fn line_mbps(&self) -> f64 {
        self.gbps * 1e3 * PAYLOAD
    }

    fn arguments(&self, turns_us: &[u32]) -> Vec<String> {
        let c = self.configuration;
        let turns: Vec<_> = turns_us.iter().map(u32::to_string).collect();
        // ns-3 refuses an empty value.
        let waits = (!turns.is_empty()).then(|| format!("--waits_us={}", turns.join(",")));
        let others = [
            format!("--kind={}", self.kind.name()),
            format!("--tcp={}", c.tcp()),
            format!("--control={}", c.control()),
            format!("--gbps={}", self.gbps),
            format!("--senders={}", self.senders),
            format!("--vms={}", self.vms),
            format!("--background={}", self.background),
            format!("--answer={}", self.answer_bytes),
            format!("--buffer={}", self.buffer_bytes),
            format!("--alpha={}", self.alpha),
            format!("--mark={}", self.mark()),
            format!("--rtt_us={}", self.rtt_us),
            format!("--jitter_us={}", self.jitter_us),
            format!("--rto_min_ms={}", self.rto_min_ms),
            format!("--receive_buffer={}", self.receive_buffer_bytes),
            format!("--stop_ms={}", self.stop_ms),
            format!("--period_ms={}", self.period_ms),
            format!("--vm_gbps={}", self.vm_gbps),
            format!("--gap_ms={}", self.gap_ms),
            format!("--seconds={}", self.seconds),
            format!("--rounds={}", self.rounds),
        ];
        others.into_iter().chain(waits).collect()
    }

    /// Runs the cell, whose waits are `turns_us`; `None`: it took longer than `limit`, or it
    /// crashed.
    pub fn run(
        &self,
        program: &Path,
        turns_us: &[u32],
        limit: Duration,
    ) -> Result<Option<Outcome>> {
        let arguments = self.arguments(turns_us);
        let mut child =
            Command::new(program).args(&arguments).stdout(Stdio::piped()).spawn().with_context(
                || format!("cannot run {}: build it with make sim", program.display()),
            )?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            sleep(Duration::from_millis(20));
        };
        let mut text = String::new();
        child.stdout.take().context("the output is read once")?.read_to_string(&mut text)?;
        if status.signal().is_some_and(|signal| [SIGABRT, SIGSEGV].contains(&signal)) {
            eprintln!("{} {arguments:?} ended with {status}", program.display());
            return Ok(None);
        }
        ensure!(status.success(), "{} {arguments:?}: {status}", program.display());
        match serde_json::from_str(&text) {
            Ok(outcome) => Ok(Some(outcome)),
            Err(error) => bail!("{} printed no result: {error}: {text}", program.display()),
        }
    }
}
