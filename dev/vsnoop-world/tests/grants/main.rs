//! Incast control of one connection, with the programs' steps interrupted: what another CPU does
//! between a look-up and a lock, or between taking a connection off the grant queue and putting it
//! back.

use vsnoop_flow::incast::uplink_rate;
use vsnoop_flow::testing::segment::{ACK, PSH, SYN, Seg};
use vsnoop_flow::types::*;
use vsnoop_hold::initial_policy;
use vsnoop_hold::segment::{EndSegment, frame};
use vsnoop_world::Program;
use vsnoop_world::frame::{Frame, Summed};
use vsnoop_world::host::bytes_of;
use vsnoop_world::kernel::{Gap, SimulatedPort};
use vsnoop_world::wire::{self, Path};

/// The interface by which packets for the VM come in.
const UPLINK: u32 = 3;
/// Initial sequence numbers.
const SENDER: u32 = 1000;
const VM: u32 = 9000;
/// Time between two packets, ns: the round trip is short enough to be shaped.
const STEP_NS: u64 = 50_000;

/// A port with a connection that is shaped.
#[derive(Clone)]
struct Shaped {
    port: SimulatedPort,
    path: Path,
    key: flow_key,
}

impl Shaped {
    fn new() -> Self {
        let mut port = SimulatedPort::new(10, 64, |_, _| {});
        port.shared().policy = initial_policy::initial();
        port.shared().policy.run = port_run::PORT_ACCELERATE;
        port.uplink_ifindex = Some(UPLINK);
        let uplink = port.uplink();
        (uplink.rate, uplink.buffer) = (uplink_rate(1_000_000_000), 64 << 10);
        uplink.ingress[0] = UPLINK;
        let path = Path::new(0, 0, false);
        let mut shaped = Self { port, path, key: flow_key::default() };
        let no_gap: &mut Gap = &mut |_, _| {};
        shaped.send_to_vm(&Seg { scale: Some(7), ..of_sender(0, SYN) }, no_gap);
        shaped.send_from_vm(&Seg { scale: Some(7), ..of_vm(0, 1, SYN | ACK) }, no_gap);
        shaped.send_to_vm(&of_sender(1, ACK), no_gap);
        shaped.key = shaped.port.entries::<flow_key, flow>("flows")[0].0;
        shaped.send_to_vm(&shaped.data(), no_gap);
        assert!(shaped.flow().incast.is_shaped());
        shaped
    }

    /// The next 1000 bytes of the sender.
    fn data(&self) -> Seg {
        let received = self.flow().incast.received.v;
        let next = if received == 0 { 1 } else { received - SENDER };
        Seg { data: [7; 1000].into(), ..of_sender(next, ACK | PSH) }
    }

    fn send_to_vm(&mut self, s: &Seg, gap: &mut Gap) {
        self.port.now += STEP_NS;
        let mut frame = wire::encode(s, &self.path, true, Summed::Unnecessary);
        self.port.comes_in(&mut frame);
        self.port.to_vm(frame, gap);
    }

    fn send_from_vm(&mut self, s: &Seg, gap: &mut Gap) {
        self.port.now += STEP_NS;
        let frame = wire::encode(s, &self.path, false, Summed::Unnecessary);
        self.port.from_vm(frame, gap);
    }

    /// The helper grants a window, with a packet for `key`.
    fn grant(&mut self, key: &flow_key, gap: &mut Gap) -> i32 {
        self.port.now += STEP_NS;
        let mut packet = Frame::new(frame(key, &flow::default(), EndSegment::ResetSender));
        self.port.test_run(Program::Grant, &mut packet, gap)
    }

    fn flow(&self) -> flow {
        self.port.entries::<flow_key, flow>("flows")[0].1
    }

    fn incast(&self) -> incast_port {
        self.port.shared_now().state.incast
    }

    /// Closes the window of the connection, and puts it into the grant queue.
    fn waits(&mut self) {
        let key = self.key;
        let f = self.port.value::<flow>("flows", bytes_of(&key)).expect("it is there");
        (f.incast.edge, f.adv_edge) = (f.incast.received, f.incast.received);
        f.incast.waiting = incast_waiting::INCAST_QUEUED as u8;
        self.port.shared().state.incast.own.queued = 1;
        self.port.uplink().all.queued = 1;
        assert_eq!(self.port.map_mut("grant_queue").push(bytes_of(&key)), 0);
    }
}

fn of_sender(position: u32, flags: u8) -> Seg {
    Seg { window: 500, ..Seg::bare(SENDER + position, VM + 1, flags) }
}

fn of_vm(position: u32, acked: u32, flags: u8) -> Seg {
    Seg { window: 1000, ..Seg::bare(VM + position, SENDER + acked, flags) }
}

/// Runs `act` once for each step of the programs, each time with the record reused at that step,
/// and checks that the record of the other flow, which differs by the hash of its key only, stays
/// as it was.
fn reused_at_each_step(start: &Shaped, act: impl Fn(&mut Shaped, &mut Gap)) {
    let mut other = start.flow();
    other.key_hash ^= 0x55;
    let (mut steps, mut wrong) = (0, Vec::new());
    for reused_at in 1.. {
        let mut shaped = start.clone();
        shaped.port.racing = true;
        steps = 0;
        let key = shaped.key;
        act(&mut shaped, &mut |port, helper| {
            steps += 1;
            if steps == reused_at {
                *port.value::<flow>("flows", bytes_of(&key)).expect("it is there") = other;
                wrong.push((steps, helper));
            }
        });
        if steps < reused_at {
            break;
        }
        if bytes_of(&shaped.flow()) == bytes_of(&other) {
            wrong.pop();
        }
    }
    assert!(steps > 5, "the programs took {steps} steps");
    assert!(wrong.is_empty(), "the other flow was changed at {wrong:?}");
}

#[test]
fn data_leave_a_reused_record_alone() {
    reused_at_each_step(&Shaped::new(), |shaped, gap| {
        let data = shaped.data();
        shaped.send_to_vm(&data, gap);
    });
}

#[test]
fn an_answer_leaves_a_reused_record_alone() {
    let start = Shaped::new();
    let received = start.flow().incast.received.v - SENDER;
    reused_at_each_step(&start, |shaped, gap| {
        let answer = Seg { data: [7; 100].into(), ..of_vm(1, received, ACK | PSH) };
        shaped.send_from_vm(&answer, gap);
    });
}

#[test]
fn a_grant_leaves_a_reused_record_alone() {
    let mut start = Shaped::new();
    start.waits();
    let key = start.key;
    reused_at_each_step(&start, |shaped, gap| {
        shaped.grant(&key, gap);
    });
    // Without a race it gets the grant.
    assert_eq!(start.grant(&key, &mut |_, _| {}), incast_grant_result::GRANT_SENT as i32);
}

#[test]
fn a_flow_for_which_the_grant_queue_has_no_room_any_more_does_not_wait() {
    let mut shaped = Shaped::new();
    shaped.waits();
    let key = shaped.key;
    // Packets with another VLAN tag cannot become its ACK, so it goes back into the queue; another
    // CPU has taken its place there.
    let tagged = flow_key { vlan_outer: VLAN_PRESENT as u16 | 5, ..key };
    let filler = flow_key { vm_port: !key.vm_port, ..key };
    shaped.port.racing = true;
    shaped.grant(&tagged, &mut |port, _| {
        while port.map_mut("grant_queue").push(bytes_of(&filler)) == 0 {}
    });
    let queue = shaped.port.map_mut("grant_queue");
    let mut left = std::iter::from_fn(|| queue.pop(true));
    assert!(left.all(|waits| waits == bytes_of(&filler)));
    assert_eq!(u32::from(shaped.flow().incast.waiting), incast_waiting::INCAST_NOT_WAITING);
    assert_eq!(shaped.incast().own.queued, 0);
    assert_eq!(shaped.port.uplink().all.queued, 0);
    // Its sender probes, the VM answers, and the window is open.
    shaped.port.racing = false;
    let edge = shaped.flow().incast.received.v - SENDER;
    shaped.send_to_vm(&of_sender(edge - 1, ACK), &mut |_, _| {});
    shaped.send_from_vm(&of_vm(1, edge, ACK), &mut |_, _| {});
    let f = shaped.flow();
    assert!(f.adv_edge.diff(f.incast.received) > 0);
}
