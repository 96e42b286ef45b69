//! Actions of the helper and the commands at a port: the decisions of vsnoop-hold, on the maps of
//! the simulated kernel.

use std::convert::Infallible;

use vsnoop_flow::types::*;
use vsnoop_hold::detach_resets::{Ended, reset_held, rsts_to_send};
use vsnoop_hold::engine_silence::{EngineSilence, find_unserved};
use vsnoop_hold::expiry::expire;
use vsnoop_hold::grants::{self, GrantQueue, Granted, PORT_GRANTS, Rounds};
use vsnoop_hold::outstanding;
use vsnoop_hold::reset::{Way, probe, reset, send};
use vsnoop_hold::rst_repeats::RstRepeats;
use vsnoop_hold::{Connections, Place, drain_limit};

use crate::away;
use crate::frame::Frame;
use crate::host::{Vm, bytes_of, tell};
use crate::kernel::SimulatedPort;
use crate::maps;
use crate::native::Program;

const DRAIN_NS: u64 = (drain_limit::TIMEOUT_S * 1e9) as u64;

impl Connections for Vm {
    type Error = Infallible;

    fn flows(&mut self) -> Result<Vec<(flow_key, flow)>, Infallible> {
        Ok(Vm::flows(self))
    }

    fn max_flows(&mut self) -> u32 {
        self.port.map("flows").shape.max_entries
    }

    fn flow(&mut self, key: &flow_key) -> Result<Option<flow>, Infallible> {
        Ok(Vm::flow(self, key).map(|flow| *flow))
    }

    fn take(&mut self, key: &flow_key) -> Result<Option<flow>, Infallible> {
        let taken = Vm::flow(self, key).map(|flow| *flow);
        self.port.delete("flows", bytes_of(key));
        Ok(taken)
    }

    fn add(&mut self, key: &flow_key, flow: &flow) -> Result<bool, Infallible> {
        Ok(self.port.update("flows", bytes_of(key), bytes_of(flow), maps::NOEXIST))
    }

    fn put(&mut self, key: &flow_key, flow: &flow) -> Result<(), Infallible> {
        let done = self.port.update("flows", bytes_of(key), bytes_of(flow), maps::ANY);
        assert!(done, "the table of flows is full");
        Ok(())
    }

    fn replace(&mut self, key: &flow_key, flow: &flow) -> Result<bool, Infallible> {
        let found = Vm::flow(self, key).map(|found| *found = *flow);
        Ok(found.is_some())
    }

    fn end_hold(&mut self, number: u32) {
        self.run_reclaim(number, reclaim::RECLAIM_RESET);
    }

    fn count_reset(
        &mut self,
        why: reset_reason::Type,
        flows: u64,
        _bytes: u64,
    ) -> Result<(), Infallible> {
        self.helper.counted[why as usize] += flows;
        Ok(())
    }

    fn note_failure(&mut self, vm_port: u16, now_ns: u64) -> Result<(), Infallible> {
        let key = u32::from(vm_port).to_ne_bytes();
        let found = self.port.value::<failures>("failures", &key);
        let mut failures = found.map(|failures| *failures).unwrap_or_default();
        vsnoop_flow::note_failure(&mut failures, now_ns);
        self.port.update("failures", &key, bytes_of(&failures), maps::ANY);
        Ok(())
    }

    fn count_unsent(&mut self) -> Result<(), Infallible> {
        unreachable!("each tap here passes RSTs")
    }

    fn send(&mut self, place: Place, frame: &[u8]) -> Result<(), Infallible> {
        let way = match place {
            Place::ToVm => inject_way::INJECT_TO_VM,
            Place::FromVm => inject_way::INJECT_TO_SENDER,
            Place::OutOf(away::PORT) => {
                self.away.ring.push_back(Frame::new(frame.to_vec()));
                return Ok(());
            }
            Place::OutOf(_) | Place::InBy(_) | Place::Routed => {
                unreachable!("no tap here is without a reader")
            }
        };
        let mut frame = Frame::new(frame.to_vec());
        frame.cb[0] = way;
        self.port.now = self.now;
        self.port.test_run(Program::Inject, &mut frame, &mut |_, _| {});
        Ok(())
    }
}

impl Vm {
    /// One look of the helper (cli/src/helper/monitor.rs).
    pub fn helper(&mut self) {
        let now = self.now;
        let flows = Vm::flows(self);
        let mut gone = Vec::new();
        let Ok(()) = expire(self, &flows, now, |flow| {
            gone.push(*flow);
            Ok::<(), Infallible>(())
        });
        for mut flow in gone {
            self.note(|| "the helper removes a record".into());
            // vsnoop_bpf::Uplink::forget() does the same.
            if flow.incast.is_shaped() {
                let mut uplink = *self.port.uplink();
                vsnoop_flow::incast::end(&mut flow, &mut uplink, &mut self.state().incast);
                *self.port.uplink() = uplink;
            }
        }
        for (key, flow) in self.helper.rst_repeats.due(&flows, now) {
            let to_vm = self.way_to_vm();
            // vsnoop_host::port_resets::repeat() does the same.
            send(self, &key, &flow, to_vm, Way::Tap);
            probe(self, &key, &flow, to_vm, Way::Tap);
        }
        let engine_ns = self.state().engine_ns;
        let silent_ns = self.helper.silence.count_look(engine_ns, now);
        let holds = self.holds();
        for (key, flow) in find_unserved(&flows, silent_ns, now, |number| holds.read(number)) {
            self.note(|| "the helper resets a connection that no engine serves".into());
            let Ok(_) = reset(self, &key, &flow, reset_reason::RESET_ENGINE_GONE, now, tell);
        }
    }

    /// The helper dies: the next one remembers nothing.
    pub fn forget_helper(&mut self) {
        self.helper.rst_repeats = RstRepeats::default();
        self.helper.silence = EngineSilence::default();
        self.helper.grants = None;
    }

    /// The helper opens windows that no packet opens. Returns when it does so again; none without
    /// incast control.
    pub fn open_windows(&mut self) -> Option<u64> {
        self.port.uplink_ifindex?;
        let now = self.now;
        let mut rounds = self.helper.grants.take().unwrap_or_else(|| Rounds::new(now));
        self.port.now = now;
        let offered = rounds.serve(&mut self.port, PORT_GRANTS, now, |port, most| {
            let Ok(offered) = grants::grant(port, most);
            offered
        });
        if offered > 0 {
            self.note(|| format!("the helper offers {offered} grants"));
        }
        let next = now + rounds.period_ns();
        self.helper.grants = Some(rounds);
        Some(next)
    }

    /// Does a drain that began at `since` end now?
    pub fn is_drained(&self, since: u64) -> bool {
        drain_limit::is_over(outstanding::outstanding(&self.flows()).1, self.now - since, DRAIN_NS)
    }

    /// Detaches the port, as accel/vsnoop-host/src/port_removal.rs does.
    pub fn detach(&mut self) {
        self.end_held();
        self.port.attached = false;
        self.helper.silence = EngineSilence::default();
        self.end_held();
        self.send_rsts();
    }

    fn end_held(&mut self) {
        let (holds, now) = (self.holds(), self.now);
        let Ok(ended) = reset_held(self, |number| holds.read(number), now);
        if ended != Ended::default() {
            self.note(|| format!("the detach ends connections: {ended:?}"));
            self.send_rsts();
        }
    }

    fn send_rsts(&mut self) {
        let holds = self.holds();
        for (key, flow) in rsts_to_send(Vm::flows(self), |number| holds.read(number), self.now) {
            let to_vm = self.way_to_vm();
            send(self, &key, &flow, to_vm, Way::Tap);
        }
    }

    /// All holds, as they are now.
    fn holds(&mut self) -> Holds {
        let count = self.state().slabs * SLAB_HOLDS;
        Holds((1..=count).map(|number| self.hold(number).map(|hold| *hold)).collect())
    }
}

impl GrantQueue for SimulatedPort {
    type Error = Infallible;

    fn queued(&self) -> u32 {
        self.shared_now().state.incast.own.queued as u32
    }

    fn finished(&self) -> u32 {
        let incast = self.shared_now().state.incast;
        (incast.finished_answerers + incast.finished_others) as u32
    }

    fn grants(&self) -> u32 {
        self.shared_now().state.incast.grants
    }

    fn head(&mut self) -> Result<Option<flow_key>, Infallible> {
        let queue = if self.queued() > 0 { "grant_queue" } else { "finished_queue" };
        let found = self.map(queue).front();
        // SAFETY: the queue has keys, which may have any value.
        Ok(found.map(|bytes| unsafe { bytes.as_ptr().cast::<flow_key>().read_unaligned() }))
    }

    fn grant_next(&mut self, segment: &[u8]) -> Result<Granted, Infallible> {
        let mut frame = Frame::new(segment.to_vec());
        let result = self.test_run(Program::Grant, &mut frame, &mut |_, _| {});
        Ok(match result as u32 {
            incast_grant_result::GRANT_SENT => Granted::Sent,
            incast_grant_result::GRANT_RETRY => Granted::Retry,
            _ => Granted::None,
        })
    }
}

struct Holds(Vec<Option<hold>>);

impl Holds {
    /// The hold with this number, from 1; a free one where there is none.
    fn read(&self, number: u32) -> hold {
        let at = (number as usize).checked_sub(1);
        at.and_then(|at| self.0.get(at).copied().flatten()).unwrap_or_default()
    }
}
