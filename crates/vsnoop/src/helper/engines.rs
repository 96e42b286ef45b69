//! The engine's supervisor.
//!
//! Where a port has a hold an engine must work (crates/vsnoop/src/engine): one that ended is started
//! again, one that has stopped working is killed first. The hooks rely on none that was not heard of
//! for a second, and what it held is still there for the next one. Only where no engine can be had for
//! `HOLD_ABANDONED` (its program is gone, say) are connections reset whose bytes nobody can hand over.
//! The engine keeps the helper running in turn.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_bpf::Memory;
use vsnoop_bpf::types::{flow, flow_key, flow_mode, seq};
use vsnoop_hold::View;

use crate::background::{self, Role};
use crate::command::flows::monotonic_ns;
use crate::ports::Attached;

/// An engine that is not heard of for so long hangs.
const HANGS: Duration = Duration::from_secs(3);
/// As HOLD_ABANDONED_NS in flow/hold.h.
const HOLD_ABANDONED: Duration = Duration::from_secs(5);

type Entry = (flow_key, flow);

#[derive(Debug, Default)]
pub struct Engines {
    /// When the one that works was first seen to.
    started: Option<(i32, Instant)>,
    trouble: Option<String>,
}

impl Engines {
    /// `heard_ns`: of each port with a hold, when an engine was last alive; CLOCK_MONOTONIC.
    pub fn look(&mut self, heard_ns: impl Iterator<Item = u64>) {
        let Some(newest_ns) = heard_ns.max() else {
            self.started = None;
            return;
        };
        let trouble = self.try_look(newest_ns).err().map(|error| format!("{error:#}"));
        if let Some(text) = trouble.as_ref().filter(|text| self.trouble.as_ref() != Some(*text)) {
            tracing::warn!("no engine: ports with a hold acknowledge no more than without: {text}");
        }
        self.trouble = trouble;
    }

    fn try_look(&mut self, newest_ns: u64) -> Result<()> {
        if let Some(pid) = background::running_pid(Role::Engine) {
            let since = match self.started {
                Some((known, since)) if known == pid => since,
                _ => self.started.insert((pid, Instant::now())).1,
            };
            let silent = Duration::from_nanos(monotonic_ns()?.saturating_sub(newest_ns));
            if silent < HANGS || since.elapsed() < HANGS {
                return Ok(());
            }
            tracing::warn!("engine {pid} was not heard of for {silent:.1?}: it is killed");
            // It may have ended by itself at this moment.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        background::start(Role::Engine)
    }
}

/// A port's hold, as the helper sees it.
#[derive(Default)]
pub struct Held {
    memory: Option<Memory>,
    looked: bool,
}

/// Who looks after which connections.
#[derive(Default)]
pub struct Care {
    /// Nobody can hand over what they wait for.
    pub abandoned: Vec<Entry>,
    /// The engine has copies of none, or not of what is missing.
    pub rest: Vec<Entry>,
}

impl Held {
    /// When an engine was last alive; `None` where there is no hold.
    pub fn engine_ns(&self) -> Option<u64> {
        self.memory.as_ref().map(Memory::engine_ns)
    }

    pub fn look(&mut self, attached: &Attached, flows: &[Entry]) -> Result<Care> {
        if !self.looked {
            self.memory = Memory::open(&attached.port)?;
            self.looked = true;
        }
        let Some(memory) = &self.memory else {
            return Ok(Care { rest: flows.to_vec(), ..Care::default() });
        };
        let silent_ns = monotonic_ns()?.saturating_sub(memory.engine_ns());
        let is_gone = silent_ns >= HOLD_ABANDONED.as_nanos() as u64;
        let mut care = Care::default();
        for entry in flows {
            let (_, flow) = entry;
            let is_held = u32::from(flow.mode) == flow_mode::FLOW_HOLDING
                && flow.hold != 0
                && !View::new(&memory.read(flow.hold.into())).is_drained();
            if is_held && is_gone {
                care.abandoned.push(*entry);
            } else if is_gone || !is_kept(memory, flow) {
                care.rest.push(*entry);
            }
        }
        Ok(care)
    }
}

/// Is there a copy of the byte that the VM is to acknowledge next?
fn is_kept(memory: &Memory, flow: &flow) -> bool {
    if flow.hold == 0 {
        return false;
    }
    let hold = memory.read(flow.hold.into());
    let from = |other: seq| flow.vm_seq.diff(other);
    hold.chunks > 0 && from(hold.first) >= 0 && from(hold.tail) < 0
}
