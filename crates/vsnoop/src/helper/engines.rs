//! The supervisor of the engine.
//!
//! While a port has a hold, an engine must run (crates/vsnoop/src/engine): one that ended is
//! started again, one that hangs is killed first. Without a sign of life for a second the hooks do
//! not rely on the engine; the held bytes stay there for the next one. Only if no engine runs for
//! `HOLD_ABANDONED` (its program is gone, say) are connections with held bytes reset, and after
//! `LOST` connections whose VM may have lost some. The engine in turn keeps the helper running.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_bpf::types::{HOLD_ABANDONED_S, flow, flow_key, flow_mode};
use vsnoop_bpf::{Memory, outstanding_bytes};
use vsnoop_hold::View;
use vsnoop_host::ports::Attached;
use vsnoop_host::system::clock::monotonic_ns;

use crate::background::{self, Role};

/// An engine without a sign of life for so long hangs.
const HANGS: Duration = Duration::from_secs(3);
/// The same time as in the hooks.
const HOLD_ABANDONED: Duration = Duration::from_secs(HOLD_ABANDONED_S as u64);
/// Without an engine, a VM that has acknowledged nothing for so long may have lost segments (R2 of
/// RFC 9293, section 3.8.3).
const LOST: Duration = Duration::from_secs(100);

type Entry = (flow_key, flow);

#[derive(Debug, Default)]
pub struct Engines {
    /// Process id of the running engine, and when it was first seen.
    started: Option<(i32, Instant)>,
    trouble: Option<String>,
}

impl Engines {
    /// `heard_ns`: time of the engine's last sign of life at each port with a hold;
    /// CLOCK_MONOTONIC.
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
            // It may just have ended by itself.
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

impl Held {
    /// Time of the engine's last sign of life; `None` without a hold.
    pub fn engine_ns(&self) -> Option<u64> {
        self.memory.as_ref().map(Memory::engine_ns)
    }

    /// Connections whose held bytes no engine has handed over, or whose losses none has
    /// retransmitted, for too long.
    pub fn abandoned(&mut self, attached: &Attached, flows: &[Entry]) -> Result<Vec<Entry>> {
        if !self.looked {
            self.memory = Memory::open_without_slabs(&attached.port)?;
            self.looked = true;
        }
        let Some(memory) = &mut self.memory else { return Ok(Vec::new()) };
        let now_ns = monotonic_ns()?;
        let silent = Duration::from_nanos(now_ns.saturating_sub(memory.engine_ns()));
        if silent < HOLD_ABANDONED {
            return Ok(Vec::new());
        }
        memory.refresh()?;
        let is_lost = |(_, flow): &&Entry| {
            let stands = Duration::from_nanos(now_ns.saturating_sub(flow.progress_ns));
            is_held(memory, flow) || outstanding_bytes(flow) > 0 && silent.min(stands) >= LOST
        };
        Ok(flows.iter().filter(is_lost).copied().collect())
    }
}

/// Has the flow bytes that the VM was not handed yet?
fn is_held(memory: &Memory, flow: &flow) -> bool {
    u32::from(flow.mode) == flow_mode::FLOW_HOLDING
        && flow.hold != 0
        && !View::new(&memory.read(flow.hold.into())).is_drained()
}
