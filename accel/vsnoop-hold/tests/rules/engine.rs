//! The loop of one port: when it looks at a hold, and what it does with a frame.

use std::collections::HashMap;

use vsnoop_flow::seq;
use vsnoop_flow::types::{HOLD_OVER, HOLD_UNCONFIRMED, hold};
use vsnoop_hold::{
    Clock, Device, Engine, Memory, PortAccess, Reason, Reclaimed, RunTime, Sent, Slice, TICK_NS,
    Urgency, Waited,
};
use vsnoop_packet::vnet::VNET_BYTES;

use crate::case::*;

const SECOND: u64 = 1_000 * MS;

/// Memory, device and clock under the test's control.
#[derive(Default)]
struct TestPort {
    now_ns: u64,
    holds: HashMap<u32, hold>,
    count: u32,
    busy: HashMap<u32, u32>,
    woken: Vec<u32>,
    /// Told that the engine looks by itself.
    looks: bool,
    /// Holds whose numbers the hooks leave just before they are told that it does so no longer.
    left_at_last: Vec<u32>,
    reads: usize,
    reclaimed: Vec<(u32, bool)>,
    /// Result of reclaim().
    over: bool,
    /// Another flow gets the hold before the engine can look.
    taken_at_once: bool,
    mtu: u32,
    no_tso: bool,
    says: Option<Sent>,
    /// Headers, and payload.
    frames: Vec<(Vec<u8>, Vec<Slice>)>,
    refused: usize,
    resets: Vec<Reason>,
    /// reset_held_flow() finds that the VM has acknowledged something.
    is_late: bool,
    grown: usize,
    /// When the hooks were told that the VM waits for a CPU.
    starved: Vec<u64>,
    /// How long it waited, and how often that was asked.
    waited_ns: Option<u64>,
    samples: u32,
    /// An ACK of the sender comes while the next frame is written: the hooks drop it.
    acked_while_sending: bool,
    /// The sender's ACK that comes while the engine looks for bytes.
    new_ack: Option<seq>,
}

impl TestPort {
    fn new(count: u32) -> Self {
        Self { count, mtu: 1_500, ..Self::default() }
    }

    /// A hold whose VM has acknowledged none of the 10,000 bytes that it was handed.
    fn lags(&mut self, number: u32) {
        self.holds.insert(number, held(10_000, 10_000, 20_000));
        *self.busy.entry((number - 1) / 32).or_default() |= 1 << ((number - 1) % 32);
    }

    fn acks(&mut self, number: u32, offset: u32) {
        let hold = self.holds.get_mut(&number).expect("it is used");
        hold.vm_acks += 1;
        hold.vm_seq = at(offset);
    }

    /// Ticks for `ns`; the VM runs.
    fn run(&mut self, engine: &mut Engine, ns: u64) {
        let end = self.now_ns + ns;
        while self.now_ns < end {
            self.now_ns += TICK_NS;
            engine.tick(self);
            self.work(engine);
        }
    }

    fn work(&mut self, engine: &mut Engine) {
        engine.work(self);
        let mut rounds = 0;
        while engine.urgency() == Urgency::Now {
            engine.work(self);
            rounds += 1;
            assert!(rounds < 10_000, "it never ends");
        }
    }
}

impl Memory for TestPort {
    fn hold_count(&mut self) -> u32 {
        self.count
    }

    fn read(&mut self, number: u32) -> hold {
        self.reads += 1;
        self.holds.get(&number).copied().unwrap_or_default()
    }

    fn front(&mut self, number: u32) -> (seq, u32) {
        if let Some(ack) = self.new_ack {
            self.holds.get_mut(&number).expect("it is used").snd_una = ack;
        }
        (at(0), 0)
    }

    fn next(&mut self, chunk: u32) -> u32 {
        chunk + 1
    }

    fn take_woken(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.woken)
    }

    fn set_looks(&mut self, looks: bool) {
        self.looks = looks;
        if !looks {
            self.woken.append(&mut self.left_at_last);
        }
    }

    fn clear_woken(&mut self, number: u32) {
        self.holds.entry(number).or_default().woken = 0;
    }

    fn busy(&mut self, group: u32) -> u32 {
        self.busy.get(&group).copied().unwrap_or_default()
    }

    fn clear_busy(&mut self, number: u32) {
        *self.busy.entry((number - 1) / 32).or_default() &= !(1 << ((number - 1) % 32));
    }

    fn set_wants_acks(&mut self, number: u32, wants: bool) {
        self.holds.get_mut(&number).expect("it is used").wants_acks = wants.into();
    }

    fn set_portion(&mut self, number: u32, bytes: u32) {
        self.holds.get_mut(&number).expect("it is used").portion = bytes;
    }

    fn set_sending(&mut self, number: u32, now_ns: Option<u64>) {
        self.holds.get_mut(&number).expect("it is used").sending = now_ns.is_some().into();
    }

    fn set_ack_waits(&mut self, number: u32, waits: bool) {
        self.holds.get_mut(&number).expect("it is used").ack_waits = waits.into();
    }

    fn heartbeat(&mut self, _now_ns: u64) {}

    fn starves(&mut self, now_ns: u64) {
        self.starved.push(now_ns);
    }

    fn set_handed(&mut self, number: u32, handed: seq) {
        self.holds.get_mut(&number).expect("it is used").handed = handed;
    }

    fn set_handed_ns(&mut self, _number: u32, _now_ns: u64) {}

    fn set_handed_tsval(&mut self, _number: u32, _tsval: u32) {}

    fn set_late(&mut self, number: u32, why: u32) {
        self.holds.get_mut(&number).expect("it is used").late = why;
    }

    fn count_handover(&mut self, _number: u32) {}

    fn count_resend(&mut self, _number: u32, _bytes: u32) {}

    fn count_probe(&mut self, number: u32) {
        self.holds.get_mut(&number).expect("it is used").probes += 1;
    }

    fn reclaim(&mut self, number: u32, end: bool) -> Reclaimed {
        self.reclaimed.push((number, end));
        match (self.over, end) {
            (false, _) => Reclaimed::Used,
            (true, false) => Reclaimed::Over,
            (true, true) => {
                self.holds.remove(&number);
                if self.taken_at_once {
                    self.lags(number);
                    self.over = false;
                }
                Reclaimed::Free
            }
        }
    }

    fn grow(&mut self) {
        self.grown += 1;
    }

    fn shrink(&mut self) {}
}

impl Device for TestPort {
    fn mtu(&mut self) -> u32 {
        self.mtu
    }

    fn takes_super_packets(&mut self) -> bool {
        !self.no_tso
    }

    fn send(&mut self, headers: &[u8], payload: &[Slice]) -> Sent {
        let gso_size = u32::from(u16::from_le_bytes([headers[4], headers[5]]));
        let len = headers.len() as u32 - VNET_BYTES as u32
            + payload.iter().map(|slice| slice.len).sum::<u32>();
        if gso_size == 0 && len > self.mtu + 14 {
            return Sent::TooLarge;
        }
        if std::mem::take(&mut self.acked_while_sending) {
            let hold = self.holds.values_mut().find(|hold| hold.sending != 0);
            hold.expect("it says so").ack_waits = 1;
        }
        match self.says {
            None => self.frames.push((headers.to_vec(), payload.to_vec())),
            Some(_) => self.refused += 1,
        }
        self.says.unwrap_or(Sent::Taken)
    }
}

impl Clock for TestPort {
    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn run_time(&mut self) -> RunTime {
        RunTime { ns: TICK_NS, live_ns: TICK_NS }
    }

    fn forget_run_time(&mut self) {}

    fn waited(&mut self) -> Option<Waited> {
        self.samples += 1;
        self.waited_ns.map(|ns| Waited { vcpu_ns: ns, process_ns: ns })
    }
}

impl PortAccess for TestPort {
    fn reset_held_flow(&mut self, _hold: &hold, reason: Reason) -> bool {
        self.resets.push(reason);
        !self.is_late
    }
}

#[test]
fn a_loss_that_nobody_reports_is_mended_without_a_doorbell() {
    let mut port = TestPort::new(32);
    let mut engine = Engine::new(&mut port);
    port.run(&mut engine, SECOND);
    port.lags(5);
    port.run(&mut engine, 350 * MS);
    // The first frame again, and a probe.
    assert_eq!(port.frames.len(), 2);
    assert_eq!(port.frames[0].1.iter().map(|slice| slice.len).sum::<u32>(), 10_000);
}

#[test]
fn the_hooks_are_told_while_the_vm_waits_for_a_cpu() {
    let mut port = TestPort { waited_ns: Some(800 * MS), ..TestPort::new(32) };
    let mut engine = Engine::new(&mut port);
    port.run(&mut engine, 10 * SECOND);
    assert_eq!(port.starved.len() as u32, port.samples - 1, "the first sample has no beginning");
    assert!((8..=11).contains(&port.samples), "an idle port costs little: {}", port.samples);
    port.lags(5);
    port.samples = 0;
    port.run(&mut engine, 2 * SECOND);
    assert!((6..=9).contains(&port.samples), "a busy one is known better: {}", port.samples);
    for waited_ns in [Some(MS), None] {
        port.starved.clear();
        port.waited_ns = waited_ns;
        port.run(&mut engine, 2 * SECOND);
        assert_eq!(port.starved, [], "{waited_ns:?}");
    }
}

#[test]
fn a_vm_that_is_late_while_it_does_not_wait_is_told_to_the_hooks() {
    for (waited_ns, late) in [(Some(0), 1), (Some(200 * MS), 0), (None, 0)] {
        let mut port = TestPort { waited_ns, ..TestPort::new(32) };
        let mut engine = Engine::new(&mut port);
        port.lags(5);
        for _ in 0..20 {
            port.run(&mut engine, 250 * MS);
            let hold = port.holds.get_mut(&5).expect("it is used");
            hold.due_acks += 2;
            hold.due_ns += 2 * 100 * MS;
        }
        assert_eq!(port.holds[&5].late, late, "{waited_ns:?}");
    }
}

#[test]
fn what_an_engine_left_is_looked_at_by_the_next_one_without_a_sign() {
    let mut port = TestPort::new(64);
    port.lags(40);
    port.busy.clear();
    let mut engine = Engine::new(&mut port);
    port.work(&mut engine);
    assert_eq!(port.frames.len(), 2);
}

#[test]
fn a_quiet_hold_costs_nothing_and_is_reclaimed_after_its_idle_times() {
    let mut port = TestPort::new(64);
    for number in 1..=64 {
        port.lags(number);
        port.acks(number, 10_000);
    }
    let mut engine = Engine::new(&mut port);
    port.run(&mut engine, SECOND);
    assert_eq!(port.busy.values().sum::<u32>(), 0);
    port.reads = 0;
    port.run(&mut engine, 8 * SECOND);
    assert_eq!((port.reads, port.reclaimed.len()), (0, 0));
    port.run(&mut engine, 3 * SECOND);
    assert_eq!((port.reads, port.reclaimed.len()), (0, 64));
    port.run(&mut engine, 50 * SECOND);
    assert_eq!((port.reads, port.reclaimed.len()), (0, 64));
    port.run(&mut engine, 15 * SECOND);
    assert_eq!((port.reads, port.reclaimed.len()), (0, 128));
}

#[test]
fn a_hold_that_another_flow_takes_is_looked_at() {
    for taken_at_once in [false, true] {
        let mut port = TestPort { taken_at_once, ..TestPort::new(32) };
        let mut engine = Engine::new(&mut port);
        port.lags(1);
        port.run(&mut engine, 100 * MS);
        // Its flow ends before all of it is acknowledged: the busy bit was never cleared.
        port.holds.get_mut(&1).expect("it is used").flags |= HOLD_OVER as u16;
        port.over = true;
        port.woken.push(1);
        port.run(&mut engine, SECOND);
        if !taken_at_once {
            assert!(port.holds.is_empty(), "it is free");
            port.over = false;
            port.frames.clear();
            port.lags(1);
            port.run(&mut engine, 350 * MS);
        }
        assert!(!port.frames.is_empty(), "nobody looks at it, taken at once: {taken_at_once}");
    }
}

#[test]
fn bytes_kept_after_a_busy_bit_was_cleared_are_seen() {
    let mut port = TestPort::new(32);
    port.lags(1);
    port.acks(1, 10_000);
    let mut engine = Engine::new(&mut port);
    while port.busy[&0] != 0 {
        port.run(&mut engine, TICK_NS);
    }
    // A hook that found the bit set a moment before.
    let hold = port.holds.get_mut(&1).expect("it is used");
    (hold.tail, hold.high_seq) = (at(12_000), at(12_000));
    port.run(&mut engine, 500 * MS);
    assert!(!port.frames.is_empty());
    // A hook that finds it clear, later.
    port.acks(1, 12_000);
    port.frames.clear();
    port.run(&mut engine, 5 * SECOND);
    let hold = port.holds.get_mut(&1).expect("it is used");
    (hold.tail, hold.high_seq) = (at(14_000), at(14_000));
    port.busy.insert(0, 1);
    port.run(&mut engine, 500 * MS);
    assert!(!port.frames.is_empty());
}

#[test]
fn very_many_busy_holds_are_served_in_small_parts() {
    let mut port = TestPort::new(16_384);
    let mut engine = Engine::new(&mut port);
    (1..=16_384).for_each(|number| port.lags(number));
    port.run(&mut engine, TICK_NS);
    for _ in 0..10 {
        port.now_ns += TICK_NS;
        port.reads = 0;
        engine.tick(&mut port);
        assert_eq!(port.reads, 0, "a tick reads no hold");
        let mut works = 0;
        loop {
            port.reads = 0;
            engine.work(&mut port);
            works += 1;
            // Two frames each, a look after them, and the newest ACK for each frame.
            assert!(port.reads <= 256 * 5, "{} reads at once", port.reads);
            if engine.urgency() != Urgency::Now {
                break;
            }
        }
        assert!(works <= 64, "{works}");
    }
    assert!(port.frames.len() >= 16_384);
}

#[test]
fn a_hold_whose_flow_is_over_is_given_back_a_moment_later() {
    let mut port = TestPort::new(32);
    port.lags(1);
    let mut engine = Engine::new(&mut port);
    port.run(&mut engine, SECOND);
    port.over = true;
    port.holds.get_mut(&1).expect("it is used").flags |= HOLD_OVER as u16;
    port.woken.push(1);
    port.work(&mut engine);
    assert_eq!(port.reclaimed, [(1, false)]);
    port.run(&mut engine, TICK_NS);
    assert_eq!(port.reclaimed, [(1, false), (1, true)]);
    port.run(&mut engine, 100 * SECOND);
    assert_eq!(port.reclaimed.len(), 2);
}

#[test]
fn a_frame_carries_what_the_sender_has_told_meanwhile() {
    let mut port = TestPort::new(32);
    port.holds.insert(1, held(0, 5_000, 9_000));
    port.woken.push(1);
    port.new_ack = Some(seq::new(0x0102_0304));
    let mut engine = Engine::new(&mut port);
    port.work(&mut engine);
    let (headers, _) = &port.frames[0];
    // IPv6 addresses, no tags.
    assert_eq!(headers[VNET_BYTES + 14 + 40 + 8..][..4], [1, 2, 3, 4]);
}

#[test]
fn an_ack_that_comes_while_a_frame_is_written_follows_it() {
    let mut port = TestPort::new(32);
    port.holds.insert(1, held(0, 5_000, 9_000));
    port.woken.push(1);
    port.acked_while_sending = true;
    let mut engine = Engine::new(&mut port);
    // When all is handed over, and when all is acknowledged.
    port.work(&mut engine);
    assert_eq!(port.frames.len(), 2);
    port.acks(1, 5_000);
    port.holds.get_mut(&1).expect("it is used").ack_waits = 1;
    port.woken.push(1);
    port.work(&mut engine);
    assert_eq!(port.frames.len(), 3);
    assert!(port.frames[2].1.is_empty(), "a pure ACK");
    assert!(port.frames[1].1.is_empty(), "a pure ACK");
    assert_eq!((port.holds[&1].ack_waits, port.holds[&1].sending), (0, 0));
    port.run(&mut engine, SECOND);
    assert_eq!(port.frames.len(), 3);
}

#[test]
fn an_ack_that_the_ring_refuses_still_waits() {
    let mut port = TestPort::new(32);
    port.holds.insert(1, held(5_000, 5_000, 9_000));
    port.acks(1, 5_000);
    port.holds.get_mut(&1).expect("it is used").ack_waits = 1;
    port.says = Some(Sent::Refused);
    port.woken.push(1);
    let mut engine = Engine::new(&mut port);
    engine.work(&mut port);
    assert_eq!(port.holds[&1].ack_waits, 1);
    port.says = None;
    port.work(&mut engine);
    assert_eq!((port.holds[&1].ack_waits, port.frames.len()), (0, 1));
}

#[test]
fn a_new_engine_ends_what_a_killed_one_was_writing() {
    let mut port = TestPort::new(32);
    port.lags(1);
    port.holds.get_mut(&1).expect("it is used").sending = 1;
    Engine::new(&mut port);
    assert_eq!(port.holds[&1].sending, 0);
}

#[test]
fn a_lower_mtu_is_learned_and_kept_to() {
    let mut port = TestPort::new(32);
    port.mtu = 1_600;
    let mut engine = Engine::new(&mut port);
    let mut hold = held(0, 1_448, 9_000);
    hold.mss = 1_448;
    port.holds.insert(1, hold);
    port.woken.push(1);
    port.mtu = 1_400;
    port.work(&mut engine);
    let (headers, _) = &port.frames[0];
    assert_eq!(u16::from_le_bytes([headers[4], headers[5]]), 1_400 - 60);
    assert_eq!(port.holds[&1].handed, at(1_448));
}

#[test]
fn a_vm_that_takes_no_super_packets_gets_segments() {
    let mut port = TestPort::new(32);
    port.no_tso = true;
    let mut engine = Engine::new(&mut port);
    port.holds.insert(1, held(0, 9_000, 20_000));
    port.woken.push(1);
    port.work(&mut engine);
    assert!(port.frames.len() >= 6, "{} frames", port.frames.len());
    for (headers, _) in &port.frames {
        assert_eq!(headers[4..6], [0, 0], "gso_size");
    }
    assert_eq!(port.holds[&1].handed, at(9_000));
}

#[test]
fn a_ring_that_is_full_is_tried_again_soon_and_a_device_in_trouble_by_the_tick() {
    let mut port = TestPort::new(32);
    port.holds.insert(1, held(0, 5_000, 9_000));
    port.woken.push(1);
    let mut engine = Engine::new(&mut port);
    port.says = Some(Sent::Refused);
    engine.work(&mut port);
    assert_eq!(engine.urgency(), Urgency::Soon);
    port.says = Some(Sent::Failed);
    port.refused = 0;
    port.work(&mut engine);
    assert_eq!((engine.urgency(), port.refused), (Urgency::Soon, 1));
    port.now_ns += MS;
    port.work(&mut engine);
    assert_eq!((engine.urgency(), port.refused), (Urgency::None, 1));
    port.run(&mut engine, 10 * TICK_NS);
    assert!((8..=11).contains(&port.refused), "{}", port.refused);
    port.says = None;
    port.run(&mut engine, 2 * TICK_NS);
    assert_eq!(port.holds[&1].handed, at(5_000));
}

/// A connection that the application behind `vm_port` has not taken: its accept queue was full.
fn unconfirmed(number: u32, vm_port: u16) -> hold {
    let mut hold = held(1_000, 1_000, 20_000);
    hold.key.sender_port = (number as u16).to_be();
    hold.key.vm_port = vm_port.to_be();
    hold.flags |= HOLD_UNCONFIRMED as u16;
    hold
}

/// The port of the sender in a frame with an IPv6 header.
fn sender_port((headers, _): &(Vec<u8>, Vec<Slice>)) -> u32 {
    let at = VNET_BYTES + 14 + 40;
    u16::from_be_bytes([headers[at], headers[at + 1]]).into()
}

#[test]
fn each_connection_that_a_listener_takes_lets_two_others_be_tried() {
    let mut port = TestPort::new(32);
    let mut engine = Engine::new(&mut port);
    let ports = |number| if number <= 20 { 80 } else { 81 };
    for number in 1..=30 {
        port.holds.insert(number, unconfirmed(number, ports(number)));
        port.woken.push(number);
    }
    // Attempts of all after 200 and 600 ms, and then after 1.4 s.
    port.run(&mut engine, SECOND);
    assert_eq!(port.frames.len(), 60);
    let cases: [(_, &[u32]); 4] =
        [(1..=1, &[2, 3]), (4..=6, &[7, 8, 9, 10, 11, 12]), (7..=7, &[13, 14]), (0..=0, &[])];
    for (taken, tried) in cases {
        for number in taken {
            if let Some(hold) = port.holds.get_mut(&number) {
                hold.flags &= !HOLD_UNCONFIRMED as u16;
                port.acks(number, 1_000);
            }
            port.woken.push(number);
        }
        port.frames.clear();
        port.run(&mut engine, TICK_NS);
        let mut senders: Vec<_> = port.frames.iter().map(sender_port).collect();
        senders.sort_unstable();
        assert_eq!(senders, tried);
    }
}

/// It may just wait for the VM's CPU.
#[test]
fn a_connection_that_was_not_attempted_yet_is_not_because_of_others() {
    let mut port = TestPort::new(32);
    let mut engine = Engine::new(&mut port);
    for number in 1..=3 {
        port.holds.insert(number, unconfirmed(number, 80));
        port.woken.push(number);
    }
    port.run(&mut engine, TICK_NS);
    port.holds.get_mut(&1).expect("it is used").flags &= !HOLD_UNCONFIRMED as u16;
    port.acks(1, 1_000);
    port.woken.push(1);
    port.run(&mut engine, 2 * TICK_NS);
    assert_eq!(port.frames.len(), 0);
}

#[test]
fn the_engine_is_woken_for_acks_of_a_vm_until_it_has_confirmed_and_acknowledged_all() {
    let mut port = TestPort::new(32);
    let mut engine = Engine::new(&mut port);
    port.holds.insert(1, unconfirmed(1, 80));
    port.woken.push(1);
    port.run(&mut engine, TICK_NS);
    assert_eq!(port.holds[&1].wants_acks, 1);
    port.holds.get_mut(&1).expect("it is used").flags &= !HOLD_UNCONFIRMED as u16;
    port.acks(1, 1_000);
    port.woken.push(1);
    port.run(&mut engine, TICK_NS);
    assert_eq!(port.holds[&1].wants_acks, 0);
}

#[test]
fn a_silent_vm_is_given_up_once_and_its_hold_given_back() {
    let mut port = TestPort::new(32);
    port.lags(1);
    let mut engine = Engine::new(&mut port);
    port.over = true;
    port.run(&mut engine, 920 * SECOND);
    assert_eq!(port.resets, []);
    port.run(&mut engine, 20 * SECOND);
    assert_eq!(port.resets, [Reason::Silent]);
    assert_eq!(port.reclaimed, [(1, false), (1, true)]);
}

#[test]
fn a_vm_whose_device_takes_nothing_is_given_up_when_its_sender_would_have() {
    for answer in [Sent::Refused, Sent::Failed] {
        let mut port = TestPort::new(32);
        port.lags(1);
        port.says = Some(answer);
        let mut engine = Engine::new(&mut port);
        port.run(&mut engine, 900 * SECOND);
        assert_eq!(port.resets, [], "{answer:?}");
        port.over = true;
        port.run(&mut engine, 40 * SECOND);
        assert_eq!(port.resets, [Reason::Silent], "{answer:?}");
    }
}

#[test]
fn a_vm_that_takes_something_at_the_last_moment_is_not_given_up() {
    let mut port = TestPort::new(32);
    port.lags(1);
    port.is_late = true;
    let mut engine = Engine::new(&mut port);
    while port.resets.is_empty() {
        port.run(&mut engine, SECOND);
    }
    port.acks(1, 5_000);
    port.frames.clear();
    port.run(&mut engine, 10 * SECOND);
    assert_eq!((port.resets.len(), port.reclaimed.len()), (1, 0));
    assert!(!port.frames.is_empty());
}

#[test]
fn memory_is_added_when_the_hooks_ring_for_it() {
    let mut port = TestPort::new(0);
    let mut engine = Engine::new(&mut port);
    port.woken.push(0);
    engine.work(&mut port);
    assert_eq!(port.grown, 1);
}

#[test]
fn each_probe_is_counted() {
    let mut port = TestPort::new(32);
    let mut hold = held(1_000, 20_000, 1_000);
    hold.vm_seq = at(1_000);
    port.holds.insert(1, hold);
    let mut engine = Engine::new(&mut port);
    port.run(&mut engine, SECOND);
    let probes = port.holds[&1].probes;
    assert!(probes > 1);
    assert_eq!(port.frames.len() as u32, probes);
}

/// For less room it would be woken in vain.
#[test]
fn the_hooks_know_from_how_much_room_on_the_vm_is_handed_more() {
    let mut port = TestPort::new(32);
    let mut engine = Engine::new(&mut port);
    port.lags(5);
    *port.holds.get_mut(&5).expect("it is used") = held(10_000, 40_000, 10_000);
    port.work(&mut engine);
    port.woken = vec![5];
    port.work(&mut engine);
    assert_eq!((port.frames.len(), port.holds[&5].portion), (0, 5_000));
    port.acks(5, 5_000);
    port.holds.get_mut(&5).expect("it is used").right_edge = at(15_000);
    port.woken = vec![5];
    port.work(&mut engine);
    assert_eq!((port.frames.len(), port.holds[&5].portion), (1, 5_000));
    port.acks(5, 40_000);
    port.woken = vec![5];
    port.work(&mut engine);
    assert_eq!(port.holds[&5].portion, 0, "the next window may be smaller");
}

/// For such an ACK the hooks do not wake the engine. They leave a note, which the engine reads at
/// its next tick.
#[test]
fn an_ack_of_which_a_note_was_left_is_not_late() {
    let mut port = TestPort::new(32);
    let mut engine = Engine::new(&mut port);
    port.waited_ns = Some(0);
    port.lags(5);
    for turn in 1..=20 {
        let hold = port.holds.get_mut(&5).expect("it is used");
        (hold.tail, hold.right_edge) = (at(turn * 10_000 + 1), at(turn * 10_000));
        port.woken = vec![5];
        port.work(&mut engine);
        assert_eq!(port.holds[&5].handed, at(turn * 10_000));
        port.acks(5, turn * 10_000);
        port.woken = vec![5];
        port.now_ns += TICK_NS;
        engine.tick(&mut port);
        port.work(&mut engine);
    }
    assert_eq!(port.holds[&5].late, 0);
}

/// Else it is woken for each of them, for ten times the CPU time.
#[test]
fn while_segments_come_the_engine_looks_by_itself_and_the_hooks_know() {
    let mut port = TestPort::new(32);
    let mut engine = Engine::new(&mut port);
    port.work(&mut engine);
    assert_eq!((port.looks, engine.urgency()), (false, Urgency::None));
    port.lags(5);
    port.woken = vec![5];
    port.work(&mut engine);
    assert_eq!((port.looks, engine.urgency()), (true, Urgency::Soon));
    // Another port's doorbell wakes the engine before that.
    port.now_ns += MS / 2;
    port.work(&mut engine);
    assert_eq!((port.looks, engine.urgency()), (true, Urgency::Soon));
    // Nothing has come since.
    port.now_ns += MS / 2;
    port.work(&mut engine);
    assert_eq!((port.looks, engine.urgency()), (false, Urgency::None));
    // A number that the hooks left before they knew is not left lying.
    port.woken = vec![5];
    port.work(&mut engine);
    port.left_at_last = vec![5];
    port.now_ns += MS;
    port.reads = 0;
    engine.work(&mut port);
    assert!(port.reads > 0, "it was served");
    // A timer alone is no sign of more.
    port.run(&mut engine, SECOND);
    assert!(!port.looks);
    port.woken = vec![5];
    port.work(&mut engine);
    // The next engine begins anew.
    Engine::new(&mut port);
    assert!(!port.looks);
}
