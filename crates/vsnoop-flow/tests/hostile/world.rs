//! The simulated world: sender, network, host with the hooks, ring, VM.
//!
//! Discrete events on a simulated clock; everything random comes from the
//! scenario's seed, so that a failure can be replayed. The hooks follow
//! bpf/vsnoop.bpf.c step by step (`hooks.rs`); the endpoints are `tcp.rs`.

use std::collections::VecDeque;

use fastrand::Rng;
use vsnoop_flow::testing::clock::{Events, MS, START};
use vsnoop_flow::testing::record::Record;
use vsnoop_flow::testing::segment::*;
use vsnoop_flow::testing::tcp::{State, Tcp};
use vsnoop_flow::{policy, port_state, types::*};

use crate::checks::{Checks, Made};
use crate::scenario::{Act, Scenario};

/// From the end of hostility to the end of the connection, at most.
const PATIENCE: u64 = 400_000 * MS;
const MAX_STEPS: u64 = 3_000_000;

#[derive(Debug)]
enum Event {
    AtHost(Seg),
    AtSender(Seg),
    VmPoll,
    VmTimer,
    SenderTimer,
    Act(Act),
    Shrink,
    Abort(bool),
    Helper,
}

/// How often the interesting things happened, over all scenarios.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub exact: u64,
    pub reset: u64,
    pub early: u64,
    pub reacked: u64,
    pub suppressed: u64,
    pub rewritten: u64,
    pub losses: u64,
    pub helper_resets: u64,
    pub ring_full: u64,
    pub aside: u64,
    pub capped: u64,
    pub mid_flow: u64,
    pub closed: u64,
    pub offline: [u64; 3],
    pub drained_detach: u64,
    pub excused: u64,
}

pub struct World {
    pub sc: Scenario,
    pub now: u64,
    pub rng: Rng,
    events: Events<Event>,
    pub sender: Tcp,
    pub vm: Tcp,
    pub ring: VecDeque<Seg>,
    /// Where the next segment for the VM goes.
    queue: u8,
    vm_poll_due: bool,
    sender_timer: u64,
    vm_timer: u64,
    pub checks: Checks,
    pub tally: Tally,
    // The host.
    pub attached: bool,
    detaching: Option<u64>,
    /// Detached past the bound, with bytes outstanding: should the guest lose
    /// one of them, nobody is left to see it.
    excused: bool,
    pub record: Record,
    pub port: port_state,
    pub policy: policy,
}

impl World {
    pub fn new(sc: Scenario) -> Self {
        let mut w = World {
            now: START,
            rng: Rng::with_seed(sc.seed),
            events: Events::default(),
            sender: Tcp::new(sc.sender.clone(), 0),
            vm: Tcp::new(sc.vm.clone(), 1),
            ring: VecDeque::new(),
            queue: 0,
            vm_poll_due: false,
            sender_timer: u64::MAX,
            vm_timer: u64::MAX,
            checks: Checks::new(sc.queues > 1),
            tally: Tally::default(),
            attached: sc.attached,
            detaching: None,
            excused: false,
            record: Record::default(),
            port: port_state::default(),
            policy: policy {
                run: port_run::PORT_ACTIVE,
                buf_size: sc.buf_size,
                thin: sc.thin.into(),
                lists: if sc.queues > 1 { PORT_UNORDERED } else { 0 },
                ..Default::default()
            },
            sc,
        };
        for (ms, act) in w.sc.acts.clone() {
            w.at(START + ms * MS, Event::Act(act));
        }
        if let Some(ms) = w.sc.shrink_ms {
            w.at(START + ms * MS, Event::Shrink);
        }
        if let Some((vm, ms)) = w.sc.abort {
            w.at(START + ms * MS, Event::Abort(vm));
        }
        w.at(START, Event::Helper);
        w
    }

    fn at(&mut self, time: u64, event: Event) {
        self.events.at(time, event);
    }

    pub fn note(&mut self, what: impl FnOnce(&Self) -> String) {
        if std::env::var_os("VSNOOP_TRACE").is_some() {
            let line = format!("{:>10.3} ms  {}", (self.now - START) as f64 / 1e6, what(self));
            eprintln!("{line}");
        }
    }

    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.u32(0..1000) < per_mille
    }

    pub fn hostile(&self) -> bool {
        self.now < START + self.sc.hostile_ms * MS
    }

    /// After a freeze some VMs look at their timers first, some at the ring.
    fn timer_lag(&self) -> u64 {
        if self.sc.seed.is_multiple_of(2) { 0 } else { 200_000 }
    }

    /// Runs the connection to its end.
    pub fn run(mut self) -> Tally {
        let opener = if self.sc.vm_opens { &mut self.vm } else { &mut self.sender };
        opener.open(self.now);
        self.flush();
        let mut steps = 0;
        let deadline = START + self.sc.hostile_ms * MS + PATIENCE;
        while !(self.sender.is_over() && self.vm.is_over()) {
            let Some((time, event)) = self.events.pop() else {
                panic!("nothing happens any more: {}", self.summary());
            };
            steps += 1;
            if time >= deadline && self.excused && self.checks.vm_is_at_fault {
                self.tally.excused += 1;
                return self.tally;
            }
            assert!(
                time < deadline && steps < MAX_STEPS,
                "the connection hangs after {} ms and {steps} steps: {}",
                (time - START) / MS,
                self.summary()
            );
            self.now = time;
            self.handle(event);
            self.flush();
        }
        self.finish()
    }

    fn summary(&self) -> String {
        let end = |t: &Tcp| {
            format!(
                "{:?} sent {}..{} of {} edge {} received {} fin {} unread-right-edge {}",
                t.state, t.una, t.nxt, t.cfg.bytes, t.snd_edge, t.rcv_nxt, t.got_fin, t.right_edge
            )
        };
        format!(
            "\n sender {}\n vm {}\n ring {} flow {:?}",
            end(&self.sender),
            end(&self.vm),
            self.ring.len(),
            self.record.flow
        )
    }

    /// I4, I5: both streams whole, or both ends know that they are not.
    fn finish(mut self) -> Tally {
        let (a, b) = (&self.sender, &self.vm);
        if a.is_done() && b.is_done() {
            assert_eq!(b.rcv_nxt, a.cfg.bytes + 2, "the VM's copy has the wrong length");
            assert_eq!(a.rcv_nxt, b.cfg.bytes + 2, "the sender's copy has the wrong length");
            self.tally.exact += 1;
        } else {
            assert!(self.may_reset(), "reset without a reason: {}", self.summary());
            let whole = |t: &Tcp, peer: &Tcp| !t.is_done() || peer.rcv_nxt == t.cfg.bytes + 2;
            assert!(whole(a, b) && whole(b, a), "an end believes in more than arrived");
            self.tally.reset += 1;
        }
        self.tally
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::AtHost(s) => self.towards_vm(s, 0),
            Event::AtSender(s) => {
                self.note(|_| format!("        sender < {}", brief(&s)));
                self.sender.input(self.now, &s, &mut self.rng);
            }
            Event::VmPoll => {
                self.vm_poll_due = false;
                if let Some(end) = self.sc.freezes.until(self.now) {
                    self.vm_poll_due = true;
                    self.at(end, Event::VmPoll);
                } else {
                    self.vm_poll();
                }
            }
            Event::VmTimer => {
                self.vm_timer = u64::MAX;
                if self.sc.freezes.until(self.now).is_none() {
                    self.vm.timers(self.now, &mut self.rng);
                }
            }
            Event::SenderTimer => {
                self.sender_timer = u64::MAX;
                self.sender.timers(self.now, &mut self.rng);
            }
            Event::Act(act) => self.act(act),
            Event::Shrink => {
                self.note(|_| "the VM's window shrinks".into());
                self.checks.vm_is_at_fault = true;
                self.vm.shrink();
            }
            Event::Abort(vm) => {
                self.note(|_| format!("abort, by the VM: {vm}"));
                if vm { self.vm.abort() } else { self.sender.abort() }
            }
            Event::Helper => self.helper(),
        }
    }

    /// The VM takes some segments off its ring.
    pub fn vm_poll(&mut self) {
        let queue = self.rng.u8(0..self.sc.queues);
        for _ in 0..self.rng.u32(1..8) {
            let at = self.ring.iter().position(|s| s.queue == queue).unwrap_or(0);
            let Some(s) = self.ring.remove(at) else { break };
            let lossy = self.hostile() && s.has(ACK);
            if lossy && self.rng.u32(0..1000) < self.sc.guest_loss {
                self.note(|_| format!("guest LOSES {}", brief(&s)));
                self.checks.vm_is_at_fault = true;
                continue;
            }
            self.note(|_| format!("            vm < {}", brief(&s)));
            self.vm.input(self.now, &s, &mut self.rng);
        }
        // Out of another queue, a later segment may have come first.
        self.checks.vm_is_at_fault |= self.sc.queues > 1 && self.vm.paws_drops > 0;
        self.wake_vm();
    }

    fn wake_vm(&mut self) {
        if !self.ring.is_empty() && !self.vm_poll_due {
            self.vm_poll_due = true;
            let soon = self.rng.u64(1_000..60_000);
            self.at(self.now + soon, Event::VmPoll);
        }
    }

    /// The tap's ring takes a segment, or is full.
    pub fn push(&mut self, mut s: Seg) -> bool {
        s.queue = self.queue;
        if self.ring.len() >= self.sc.ring_slots {
            return false;
        }
        if !s.corrupt {
            let near = self.vm.rcv_nxt;
            let start = position(s.seq, self.sender.cfg.iss, near);
            let end = start + i64::from(s.len()) + i64::from(s.has(FIN)) + i64::from(s.has(SYN));
            if start >= 0 {
                self.checks.handed.insert(start as u64, end as u64);
            }
        }
        self.ring.push_back(s);
        self.wake_vm();
        true
    }

    /// Everything that the endpoints have to say goes on its way.
    fn flush(&mut self) {
        while !self.vm.out.is_empty() {
            // Out of two queues, the later one may come first.
            let overtakes = self.sc.queues > 1 && self.vm.out.len() > 1 && self.chance(50);
            let s = self.vm.out.remove(usize::from(overtakes)).expect("not empty");
            self.note(|_| format!("            vm > {}", brief(&s)));
            if self.rng.u32(0..1000) < 50 {
                self.queue = self.rng.u8(0..self.sc.queues);
            }
            self.vm_sends(s);
        }
        while let Some(mut s) = self.sender.out.pop_front() {
            self.note(|_| format!("        sender > {}", brief(&s)));
            if self.hostile() && s.len() > 0 && self.rng.u32(0..10_000) < self.sc.foreign {
                s.foreign = true;
            }
            let attacks = self.sc.attacks;
            if self.hostile() && self.sender.state == State::Open && self.chance(attacks) {
                self.attack();
            }
            self.travel(s, true);
        }
        if let Some(t) = self.sender.next_timer(self.now)
            && t < self.sender_timer
        {
            self.sender_timer = t;
            self.at(t, Event::SenderTimer);
        }
        if let Some(t) = self.vm.next_timer(self.now) {
            let t = self.sc.freezes.until(t).map_or(t, |end| end + self.timer_lag());
            if t < self.vm_timer {
                self.vm_timer = t;
                self.at(t, Event::VmTimer);
            }
        }
    }

    /// Through the network, with all that may befall a segment there.
    pub fn travel(&mut self, s: Seg, to_vm: bool) {
        let link = if to_vm { &self.sc.to_vm } else { &self.sc.from_vm };
        let (hostile, ecn) = (self.hostile(), self.vm.ecn);
        for (delay, s) in link.carry(s, hostile, ecn, &mut self.rng) {
            let event = if to_vm { Event::AtHost(s) } else { Event::AtSender(s) };
            self.at(self.now + delay, event);
        }
    }

    /// Somebody who knows the addresses, but not where the stream is: a RST is
    /// beyond its end, so that it is never exact.
    fn attack(&mut self) {
        let mut s = Seg::bare(0, self.sender.wire(0), RST);
        let beyond = self.sender.cfg.bytes + 3 + self.rng.u64(0..100_000);
        s.seq = self.sender.wire(beyond);
        if self.rng.bool() {
            s.seq = self.rng.u32(..);
            s.flags = SYN;
        }
        self.travel(s, true);
    }

    /// A segment leaves the host for the sender, made or let through.
    pub fn send_to_sender(&mut self, s: Seg, made: Made) {
        self.note(|_| format!("   host {made:?} > {}", brief(&s)));
        self.checks.for_sender(
            &s,
            made,
            self.record.flow.as_ref().filter(|_| self.attached),
            &self.vm,
            &self.ring,
            self.sender.cfg.iss,
        );
        self.travel(s, false);
    }

    fn act(&mut self, act: Act) {
        self.note(|_| format!("operator: {act:?}"));
        match act {
            Act::Observe => self.policy.run = port_run::PORT_OBSERVE,
            Act::Activate => self.policy.run = port_run::PORT_ACTIVE,
            Act::Pause => self.policy.run = port_run::PORT_PAUSED,
            Act::Buffer(bytes) => self.policy.buf_size = bytes,
            Act::Thin(thin) => self.policy.thin = thin.into(),
            Act::Attach => {
                self.detaching = None;
                if !self.attached {
                    self.attached = true;
                    self.port = port_state::default();
                }
                self.policy.run = port_run::PORT_ACTIVE;
            }
            Act::Detach if self.attached => {
                // First no new early ACKs, then a bounded wait.
                self.policy.run = port_run::PORT_PAUSED;
                self.detaching = Some(self.now + 3_000 * MS);
            }
            Act::Detach => {}
        }
    }

    /// What the user-space helper does ten times a second: it resets what a
    /// VM that ran for 1 s has not acknowledged, and forgets idle records.
    fn helper(&mut self) {
        self.at(self.now + 100 * MS, Event::Helper);
        let outstanding = self.record.flow.map_or(0, |f| f.next_seq.diff(f.vm_seq).max(0));
        if let Some(deadline) = self.detaching
            && (outstanding == 0 || self.now >= deadline)
        {
            self.note(|_| format!("detached with {outstanding} bytes outstanding"));
            self.detaching = None;
            self.attached = false;
            self.record = Record::default();
            self.tally.drained_detach += u64::from(outstanding == 0);
            self.excused |= outstanding > 0;
        }
        let Some(f) = self.record.flow.filter(|_| self.attached) else {
            return;
        };
        if u32::from(f.mode) != flow_mode::FLOW_RESET
            && outstanding > 0
            && self.sc.freezes.run_time(f.progress_ns.max(START), self.now) >= 1_000 * MS
        {
            self.note(|_| "helper resets both ends".into());
            self.tally.helper_resets += 1;
            assert!(
                self.may_reset(),
                "the VM ran for 1 s and did not acknowledge: {}",
                self.summary()
            );
            if let Some(f) = &mut self.record.flow {
                f.mode = flow_mode::FLOW_RESET as u8;
            }
            self.push(Seg::bare(f.vm_seq.v, 0, RST));
            self.send_to_sender(Seg::bare(f.snd_nxt.v, 0, RST), Made::Early);
        } else if outstanding == 0 && self.now - f.last_ns > self.sc.idle_ms * MS {
            self.checks.removal(&f);
            self.record.flow = None;
        }
    }

    /// May the connection end in a reset?  Not without a reason.
    fn may_reset(&self) -> bool {
        self.sc.abort.is_some() || self.checks.vm_is_at_fault
    }

    /// Is the VM's connection one that the checks can speak of?
    pub fn vm_is_open(&self) -> bool {
        self.vm.state == State::Open
    }
}
