//! The ports behind an uplink, with the programs of accel/bpf/ on their taps. Segments go in as
//! frames; the ACKs that the programs let out to the senders come back as fields.

use std::mem::{replace, swap, take};

use vsnoop_flow::testing::segment::Seg;
use vsnoop_flow::{ack_fields, flow, incast, policy, segment, seq, types::*};
use vsnoop_hold::grants::{self, GrantQueue};
use vsnoop_packet::headers::Headers;
use vsnoop_world::frame::{Frame, Summed};
use vsnoop_world::host::bytes_of;
use vsnoop_world::kernel::{Gap, SimulatedPort};
use vsnoop_world::maps::{Entries, NOEXIST};
use vsnoop_world::wire::{Path, decode, encode};

/// Interface of the uplink, and of the way beside it.
const UPLINK: u32 = 3;
const BESIDE: u32 = 4;
const TAP: u32 = 10;
/// Memory of a port's holds: enough for 512 flows.
const SLABS: u32 = 16;

/// An ACK that leaves for the sender of flow `.0`.
pub type Answer = (usize, ack_fields);

/// Result of a segment to the VM.
pub struct ToVm {
    /// The VM has been handed it.
    pub delivered: bool,
    pub answers: Vec<Answer>,
}

/// A connection, from its sender to a VM.
struct Connection {
    port: usize,
    path: Path,
    /// Its segments do not come through the uplink.
    beside: bool,
}

/// There is no engine: data beyond the VM's own window are left to the VM.
#[derive(Default)]
pub struct Hooks {
    ports: Vec<SimulatedPort>,
    /// The port whose programs ran last: its record of the uplink, which all share, is valid.
    latest: usize,
    connections: Vec<Connection>,
}

#[allow(clippy::wrong_self_convention, reason = "named as the programs are, to_vm and from_vm")]
impl Hooks {
    pub fn new(ports: usize, rate: u32, buffer: u32, policy: policy) -> Self {
        let policy = policy { hold_chunks: 1 << 16, silence_ms: 300_000, ..policy };
        let port = |at| {
            let mut port = SimulatedPort::new(TAP + at as u32, usize::MAX, |_, _| {});
            port.uplink_ifindex = Some(UPLINK);
            (0..SLABS).for_each(|slab| port.add_slab(slab));
            let shared = port.shared();
            (shared.policy, shared.state.slabs) = (policy, SLABS);
            port
        };
        let mut hooks = Self { ports: (0..ports).map(port).collect(), ..Self::default() };
        let uplink = hooks.uplink();
        (uplink.rate, uplink.buffer, uplink.ingress[0]) = (rate, buffer, UPLINK);
        hooks
    }

    /// Adds a connection to the VM of a port, as yet without a record. Returns its number.
    pub fn connect(&mut self, port: usize) -> usize {
        let id = self.connections.len();
        let path = Path::new(port as u8, id as u16, false);
        self.connections.push(Connection { port, path, beside: false });
        id
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    pub fn port_of(&self, id: usize) -> usize {
        self.connections[id].port
    }

    /// Later segments of the sender do not come through the uplink, or do so again.
    pub fn route_beside_uplink(&mut self, id: usize, beside: bool) {
        self.connections[id].beside = beside;
    }

    // Records of the programs.

    pub fn uplink(&mut self) -> &mut uplink {
        self.ports[self.latest].uplink()
    }

    /// Incast control of a port.
    pub fn share_of(&mut self, port: usize) -> &mut incast_port {
        &mut self.ports[port].shared().state.incast
    }

    pub fn flow(&mut self, id: usize) -> Option<&mut flow> {
        let key = self.key(id);
        self.ports[self.connections[id].port].value("flows", bytes_of(&key))
    }

    /// The records of all connections that have one.
    pub fn flows(&self) -> Vec<Option<flow>> {
        let mut flows = vec![None; self.connections.len()];
        for port in &self.ports {
            for (key, flow) in port.entries::<flow_key, flow>("flows") {
                flows[self.id_of(u16::from_be(key.sender_port))] = Some(flow);
            }
        }
        flows
    }

    /// Adds the record of a connection whose handshake was not seen.
    pub fn insert(&mut self, id: usize, flow: flow) {
        let key = self.key(id);
        let flow = flow { key_hash: vsnoop_flow::key_hash(&key), ..flow };
        let port = &mut self.ports[self.connections[id].port];
        assert!(port.update("flows", bytes_of(&key), bytes_of(&flow), NOEXIST));
    }

    /// The flows in a queue of a port, `grant_queue` or `finished_queue`.
    pub fn queue(&self, port: usize, name: &str) -> Vec<usize> {
        let Entries::Queue { values } = &self.ports[port].map(name).entries else {
            panic!("{name} is no queue")
        };
        let sender_port = std::mem::offset_of!(flow_key, sender_port);
        let id = |key: &Vec<u8>| u16::from_be_bytes([key[sender_port], key[sender_port + 1]]);
        values.iter().map(|key| self.id_of(id(key))).collect()
    }

    fn key(&self, id: usize) -> flow_key {
        let Path { sender, vm, vm_mac, .. } = &self.connections[id].path;
        let mapped = |address: &std::net::IpAddr| match address {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(v6) => v6.octets(),
        };
        flow_key {
            sender_addr: mapped(&sender.0),
            vm_addr: mapped(&vm.0),
            sender_port: sender.1.to_be(),
            vm_port: vm.1.to_be(),
            vm_mac: *vm_mac,
            ..flow_key::default()
        }
    }

    /// The connection whose sender has this port.
    fn id_of(&self, sender_port: u16) -> usize {
        usize::from(sender_port - self.connections[0].path.sender.1)
    }

    // Segments.

    /// A segment of the sender.
    pub fn to_vm(&mut self, id: usize, s: &segment, now: u64) -> ToVm {
        let at = self.switch_to_port_of(id, now);
        let frame = self.frame_to_vm(id, s);
        self.ports[at].to_vm(frame, &mut |_, _| {});
        self.result(at)
    }

    /// Runs a segment of the sender, but other CPUs act after incast control and the decision,
    /// before a flow that has to wait is in its queue: `meanwhile`, which returns the time.
    pub fn to_vm_meanwhile(
        &mut self,
        id: usize,
        s: &segment,
        now: u64,
        meanwhile: &mut dyn FnMut(&mut Self) -> u64,
    ) -> ToVm {
        let at = self.switch_to_port_of(id, now);
        let frame = self.frame_to_vm(id, s);
        // The port itself is out of reach while its program runs, but in the gap.
        let mut port = replace(&mut self.ports[at], SimulatedPort::new(0, 0, |_, _| {}));
        port.racing = true;
        let (mut was_locked, mut is_over) = (false, false);
        let gap: &mut Gap = &mut |port, helper| {
            // decide_locked() takes the first lock; what looks up next queues the flow, or counts.
            if !was_locked || is_over || helper != "map_lookup_elem" {
                was_locked |= helper == "spin_lock";
                return;
            }
            is_over = true;
            swap(port, &mut self.ports[at]);
            let now = meanwhile(self);
            self.switch_to_port_of(id, now);
            swap(port, &mut self.ports[at]);
        };
        port.to_vm(frame, gap);
        port.racing = false;
        self.ports[at] = port;
        self.result(at)
    }

    /// A segment of the VM. Returns the ACKs that leave.
    pub fn from_vm(&mut self, id: usize, s: &segment, now: u64) -> Vec<Answer> {
        let at = self.switch_to_port_of(id, now);
        let frame = self.frame(id, s, false);
        self.ports[at].from_vm(frame, &mut |_, _| {});
        self.result(at).answers
    }

    /// The VM begins another connection with the same addresses, and the sender's answer ends the
    /// record.
    pub fn begin_anew(&mut self, id: usize, now: u64) {
        self.begin_anew_after(id, now, 0);
    }

    /// The same, but the answer comes after `rtt_ns`.
    pub fn begin_anew_after(&mut self, id: usize, now: u64, rtt_ns: u64) {
        let iss = seq::new(0x7000_0000);
        let syn = segment { seq: iss, tcp_flags: TCP_SYN as u8, ..segment::default() };
        self.from_vm(id, &syn, now);
        let flags = (TCP_SYN | TCP_ACK) as u8;
        let answer = segment { ack: iss.add(1), tcp_flags: flags, ..segment::default() };
        self.to_vm(id, &answer, now + rtt_ns);
    }

    /// The helper offers at most this many grants to the waiting flows of a port.
    pub fn grants(&mut self, port: usize, most: usize, now: u64) -> Vec<Answer> {
        self.switch_to_port(port, now);
        let Ok(_) = grants::grant(&mut self.ports[port], most);
        self.result(port).answers
    }

    /// Waiting flows of a port, as the helper counts them.
    pub fn waiting(&self, port: usize) -> usize {
        (self.ports[port].queued() + self.ports[port].finished()) as usize
    }

    fn switch_to_port_of(&mut self, id: usize, now: u64) -> usize {
        let port = self.connections[id].port;
        self.switch_to_port(port, now);
        port
    }

    /// The programs of this port run next.
    fn switch_to_port(&mut self, port: usize, now: u64) {
        if port != self.latest {
            *self.ports[port].uplink() = *self.uplink();
            self.latest = port;
        }
        self.ports[port].now = now;
    }

    fn frame_to_vm(&mut self, id: usize, s: &segment) -> Frame {
        let mut frame = self.frame(id, s, true);
        if self.connections[id].beside {
            frame.ingress_ifindex = BESIDE;
        } else {
            self.ports[self.latest].comes_in(&mut frame);
        }
        frame
    }

    fn frame(&self, id: usize, s: &segment, to_vm: bool) -> Frame {
        let has = |bit: u32| u32::from(s.bits) & bit != 0;
        let segment = Seg {
            window: s.window,
            data: vec![0; s.len as usize].into(),
            unit: s.unit_len,
            ts: has(SEG_TIMESTAMPS).then_some((s.tsval, s.tsecr)),
            scale: has(SEG_SCALE).then_some(s.scale),
            sack_permitted: has(SEG_SACK_PERMITTED),
            foreign: has(SEG_FOREIGN),
            ce: has(SEG_CE),
            ..Seg::bare(s.seq.v, s.ack.v, s.tcp_flags)
        };
        encode(&segment, &self.connections[id].path, to_vm, Summed::Partial)
    }

    /// The frames that have left the port since the last call.
    fn result(&mut self, port: usize) -> ToVm {
        let port = &mut self.ports[port];
        let (ring, to_host) = (take(&mut port.ring), take(&mut port.to_host));
        let answers = to_host.iter().map(|frame| self.answer(frame)).collect();
        ToVm { delivered: !ring.is_empty(), answers }
    }

    fn answer(&self, frame: &Frame) -> Answer {
        let s = decode(frame).expect("what the programs send is whole");
        let (tsval, tsecr) = s.ts.unwrap_or_default();
        let fields = ack_fields {
            seq: seq::new(s.seq),
            ack: seq::new(s.ack),
            window: s.window,
            tsval,
            tsecr,
            timestamps: s.ts.is_some().into(),
            ..ack_fields::default()
        };
        let headers = Headers::of_start(&frame.bytes).expect("whole headers");
        let [_, sender_port] = headers.ports(&frame.bytes).expect("TCP has ports");
        (self.id_of(sender_port), fields)
    }

    // Sums over the records.

    /// Outstanding credit of live flows, which the account must have.
    pub fn outstanding(&mut self) -> i64 {
        self.sum_of(true, |_| true)
    }

    /// Outstanding credit of silent flows, which the account must have.
    pub fn silent(&mut self) -> i64 {
        self.sum_of(false, |_| true)
    }

    /// Outstanding credit of one port's flows, live or silent.
    pub fn outstanding_of(&mut self, port: usize) -> i64 {
        self.sum_of(true, |at| at == port) + self.sum_of(false, |at| at == port)
    }

    fn sum_of(&mut self, live: bool, is_of: impl Fn(usize) -> bool) -> i64 {
        let (uplink, flows) = (*self.uplink(), self.flows());
        let flows = flows.iter().enumerate().filter(|(id, _)| is_of(self.port_of(*id)));
        let flows = flows.filter_map(|(_, f)| f.as_ref()).filter(|f| f.incast.is_shaped());
        flows.filter(|f| incast::is_live(f, &uplink) == live).map(incast::flow_outstanding).sum()
    }
}
