//! The supervisor of the engine.
//!
//! While a port has a hold, an engine must run (cli/src/engine): one that ended is
//! started again, one that hangs is killed first. Without a sign of life for a second the hooks do
//! not rely on the engine; the held bytes stay there for the next one. Only if this helper finds
//! none for long (its program is gone, say) are connections reset
//! (`vsnoop_hold::engine_silence`). The engine in turn keeps the helper running.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vsnoop_bpf::types::{flow, flow_key};
use vsnoop_bpf::{Hold, HoldMaps};
use vsnoop_hold::engine_silence::{EngineSilence, HOLD_ENGINE_GONE_NS, find_unserved};
use vsnoop_host::ports::Attached;
use vsnoop_host::system::clock::monotonic_ns;

use crate::background::{self, Role};

/// An engine hangs that gives no sign of life for this time, and for some looks: after a pause of
/// the whole machine the helper may have its turn before the engine.
const HANGS: Duration = Duration::from_secs(3);
const HANGS_LOOKS: u32 = 3;

/// Pauses between starts that fail, so that there are several before held bytes are given up. The
/// engine logs each time why it does.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
const _: () = assert!(4 * LONGEST_PAUSE.as_nanos() < HOLD_ENGINE_GONE_NS as u128);

type Entry = (flow_key, flow);

#[derive(Debug, Default)]
pub struct Engines {
    silence: Option<Silence>,
    trouble: Option<String>,
    /// How long to wait after a start that failed, and until when.
    pause: Duration,
    start_at: Option<Instant>,
}

/// Since when a running engine has given no sign of life.
#[derive(Debug)]
struct Silence {
    pid: i32,
    /// Its last one, CLOCK_MONOTONIC.
    heard_ns: u64,
    since: Instant,
    looks: u32,
}

impl Engines {
    /// `heard_ns`: time of the engine's last sign of life at each port with a hold;
    /// CLOCK_MONOTONIC.
    pub fn watch_engine(&mut self, heard_ns: impl Iterator<Item = u64>) {
        let Some(newest_ns) = heard_ns.max() else {
            *self = Self::default();
            return;
        };
        if let Some(pid) = background::running_pid(Role::Engine) {
            if !self.is_hanging(pid, newest_ns) {
                *self = Self { silence: self.silence.take(), ..Self::default() };
                return;
            }
            // It may just have ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            self.silence = None;
        } else if let Some(Silence { pid, .. }) = self.silence.take() {
            tracing::warn!("engine {pid} has ended, and ports have a hold");
        }
        if self.start_at.is_none_or(|at| Instant::now() >= at) {
            self.start_engine();
        }
    }

    /// Has this engine, which runs, given no sign of life for too long?
    fn is_hanging(&mut self, pid: i32, newest_ns: u64) -> bool {
        let silence = match &mut self.silence {
            Some(silence) if silence.pid == pid && silence.heard_ns == newest_ns => silence,
            other => {
                other.insert(Silence { pid, heard_ns: newest_ns, since: Instant::now(), looks: 0 })
            }
        };
        silence.looks += 1;
        let silent = silence.since.elapsed();
        let hangs = silent >= HANGS && silence.looks >= HANGS_LOOKS;
        if hangs {
            tracing::warn!("engine {pid} was not heard of for {silent:.1?}: it is killed");
        }
        hangs
    }

    /// Starts an engine. After a failure the next look that does is a pause later; the same trouble
    /// is logged once.
    fn start_engine(&mut self) {
        let Err(error) = background::start(Role::Engine) else {
            *self = Self::default();
            return;
        };
        self.pause = (2 * self.pause).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.start_at = Some(Instant::now() + self.pause);
        let text = format!("{error:#}");
        if self.trouble.as_ref() != Some(&text) {
            tracing::warn!("no engine: ports with a hold acknowledge no more than without: {text}");
            self.trouble = Some(text);
        }
    }
}

/// A port's hold, as the helper sees it.
#[derive(Default)]
pub struct WatchedHold {
    memory: Option<HoldMaps>,
    looked: bool,
    silence: EngineSilence,
}

impl WatchedHold {
    /// Time of the engine's last sign of life; `None` without a hold.
    pub fn engine_ns(&self) -> Option<u64> {
        self.memory.as_ref().map(HoldMaps::engine_ns)
    }

    /// Connections whose held bytes no engine has handed over, or whose losses none has
    /// retransmitted, for too long.
    pub fn find_unserved(&mut self, attached: &Attached, flows: &[Entry]) -> Result<Vec<Entry>> {
        if !self.looked {
            self.memory = HoldMaps::open_without_slabs(&attached.port)?;
            self.looked = true;
        }
        let Some(memory) = &mut self.memory else { return Ok(Vec::new()) };
        let now_ns = monotonic_ns()?;
        let silent_ns = self.silence.count_look(memory.engine_ns(), now_ns);
        if silent_ns < HOLD_ENGINE_GONE_NS {
            return Ok(Vec::new());
        }
        memory.refresh()?;
        let found = find_unserved(flows, silent_ns, now_ns, |number| memory.read(number));
        memory.unmap_slabs();
        Ok(found)
    }

    /// Calls `look` with what reads a hold of a port whose pins were removed by its number; a free
    /// one if the holds cannot be read.
    pub fn read_without_pins<T>(&mut self, look: impl FnOnce(&dyn Fn(u32) -> Hold) -> T) -> T {
        let Some(memory) = &mut self.memory else { return look(&|_| Hold::default()) };
        // What could not be mapped counts as free.
        let _ = memory.refresh_without_pins();
        let result = look(&|number| memory.read(number));
        memory.unmap_slabs();
        result
    }
}
