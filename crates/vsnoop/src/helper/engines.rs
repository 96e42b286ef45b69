//! The supervisor of the engine.
//!
//! While a port has a hold, an engine must run (crates/vsnoop/src/engine): one that ended is
//! started again, one that hangs is killed first. Without a sign of life for a second the hooks do
//! not rely on the engine; the held bytes stay there for the next one. Only if no engine runs for
//! long (its program is gone, say) are connections reset (`vsnoop_upkeep::abandoned`). The engine
//! in turn keeps the helper running.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_bpf::HoldMaps;
use vsnoop_bpf::types::{flow, flow_key};
use vsnoop_host::ports::Attached;
use vsnoop_host::system::clock::monotonic_ns;
use vsnoop_upkeep::abandoned::{HOLD_ABANDONED_NS, abandoned};

use crate::background::{self, Role};

/// An engine whose heartbeat is older than this hangs.
const HANGS: Duration = Duration::from_secs(3);

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
        } else if let Some((pid, _)) = self.started.take() {
            tracing::warn!("engine {pid} has ended, and ports have a hold: another one is started");
        }
        background::start(Role::Engine)
    }
}

/// A port's hold, as the helper sees it.
#[derive(Default)]
pub struct WatchedHold {
    memory: Option<HoldMaps>,
    looked: bool,
}

impl WatchedHold {
    /// Time of the engine's last sign of life; `None` without a hold.
    pub fn engine_ns(&self) -> Option<u64> {
        self.memory.as_ref().map(HoldMaps::engine_ns)
    }

    /// Connections whose held bytes no engine has handed over, or whose losses none has
    /// retransmitted, for too long.
    pub fn abandoned(&mut self, attached: &Attached, flows: &[Entry]) -> Result<Vec<Entry>> {
        if !self.looked {
            self.memory = HoldMaps::open_without_slabs(&attached.port)?;
            self.looked = true;
        }
        let Some(memory) = &mut self.memory else { return Ok(Vec::new()) };
        let (now_ns, engine_ns) = (monotonic_ns()?, memory.engine_ns());
        if now_ns.saturating_sub(engine_ns) < HOLD_ABANDONED_NS {
            return Ok(Vec::new());
        }
        memory.refresh()?;
        let found = abandoned(flows, engine_ns, now_ns, |number| memory.read(number));
        memory.unmap_slabs();
        Ok(found)
    }
}
