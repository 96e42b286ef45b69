//! Invariants of incast control: any flows, under any segments, in any order, with a clock that may
//! stop or step back.

use std::mem::{swap, take};
use std::slice::Iter;

use proptest::prelude::*;
use vsnoop_flow::{flow, incast, policy, segment, seq, types::*};

use crate::hooks::Hooks;

/// Flows are distributed over these in turn.
const PORTS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    /// A flow with this shift count, timestamps or not, and this much shown already.
    Begin {
        scale: u8,
        stamps: bool,
        shown: u32,
    },
    /// Data `skip` beyond what came last; negative: some of it again. `marked` with CE.
    Data {
        flow: usize,
        skip: i32,
        len: u32,
        marked: bool,
    },
    /// Data arrives, but other CPUs act before a flow that has to wait is in its queue, until
    /// [`Op::Decide`].
    Arrives {
        flow: usize,
        len: u32,
    },
    /// The last such segment continues.
    Decide,
    /// The VM acknowledges this share (of 255) of the unacknowledged bytes, and sends data.
    VmSends {
        flow: usize,
        share: u8,
        window: u16,
        len: u32,
    },
    /// An option that is not understood.
    Foreign {
        flow: usize,
    },
    /// The VM resets it.
    Reset {
        flow: usize,
    },
    /// Its record is removed, as by a new connection on the same addresses.
    Gone {
        flow: usize,
    },
    Grant {
        port: usize,
    },
    /// The sender's segments leave the uplink, or use it again.
    Way {
        flow: usize,
        beside: bool,
    },
    Wait {
        ns: i64,
    },
    /// The operator turns incast control off, or on.
    Rate {
        mbps: u32,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let flow = 0..300usize;
    prop_oneof![
        2 => (0..15u8, any::<bool>(), 0..20_000u32).prop_map(|(scale, stamps, shown)| Op::Begin {
            scale, stamps, shown
        }),
        8 => (
            flow.clone(),
            prop_oneof![5 => Just(0), 1 => -9_000..9_000i32],
            1..65_000u32,
            any::<bool>(),
        )
            .prop_map(|(flow, skip, len, marked)| Op::Data { flow, skip, len, marked }),
        8 => (flow.clone(), 1..3_000u32).prop_map(|(flow, len)| Op::Data {
            flow, skip: 0, len, marked: false
        }),
        2 => (flow.clone(), 1..3_000u32).prop_map(|(flow, len)| Op::Arrives { flow, len }),
        3 => Just(Op::Decide),
        8 => (flow.clone(), any::<u8>(), any::<u16>(), prop_oneof![Just(0), 1..500u32])
            .prop_map(|(flow, share, window, len)| Op::VmSends { flow, share, window, len }),
        1 => flow.clone().prop_map(|flow| Op::Foreign { flow }),
        1 => flow.clone().prop_map(|flow| Op::Reset { flow }),
        1 => flow.clone().prop_map(|flow| Op::Gone { flow }),
        1 => (flow, any::<bool>()).prop_map(|(flow, beside)| Op::Way { flow, beside }),
        4 => (0..PORTS).prop_map(|port| Op::Grant { port }),
        6 => prop_oneof![
            4 => 0..500_000i64,
            1 => -1_000_000..0i64,
            1 => 0..400_000_000i64,
        ].prop_map(|ns| Op::Wait { ns }),
        1 => prop_oneof![Just(0), Just(10), Just(1_000), Just(100_000)]
            .prop_map(|mbps| Op::Rate { mbps }),
    ]
}

/// C in bytes per 2^20 ns.
pub fn rate_of(mbps: u32) -> u32 {
    ((u64::from(mbps) * 125_000) << 20).div_ceil(1_000_000_000) as u32
}

struct CheckedHooks {
    host: Hooks,
    now: u64,
    /// Flows with a segment between the two parts of its decision: it has yet to queue them.
    pending: Vec<usize>,
    /// Granted edges of shaped flows, and the edges that senders were shown.
    edges: Vec<(Option<seq>, seq)>,
    /// Highest credit so far: a window is limited by it only when it changes.
    most_credit: u32,
    /// Highest byte that each sender has sent, and highest that its VM has sent.
    sent: Vec<seq>,
}

impl CheckedHooks {
    /// A flow with a record, and this record.
    fn pick(&mut self, flow: usize) -> Option<(usize, flow)> {
        let n = self.host.len();
        let id = if n == 0 { return None } else { flow % n };
        self.host.flow(id).map(|f| (id, *f))
    }

    fn data(&mut self, (id, f): (usize, flow), skip: i32, len: u32, bits: u32) -> segment {
        let at = self.sent[id].add(skip as u32);
        if at.add(len).diff(self.sent[id]) > 0 {
            self.sent[id] = at.add(len);
        }
        let stamps = u32::from(f.flags) & FLOW_F_TIMESTAMPS;
        let stamps = if stamps != 0 { SEG_TIMESTAMPS } else { 0 };
        segment {
            seq: at,
            ack: f.snd_nxt,
            len,
            unit_len: len.min(if id.is_multiple_of(2) { 1_448 } else { 8_948 }) as u16,
            tsval: (self.now >> 20) as u32,
            tsecr: f.vm_tsval,
            tcp_flags: TCP_ACK as u8,
            bits: (bits | stamps) as u16,
            ..segment::default()
        }
    }

    /// Takes and checks all operations, until [`Op::Decide`] within a gap.
    fn run(&mut self, ops: &mut Iter<Op>, in_gap: bool) {
        while let Some(op) = ops.next() {
            match *op {
                Op::Decide if in_gap => break,
                Op::Arrives { flow, len } => self.arrives(flow, len, ops),
                _ => self.step(op),
            }
            self.check();
        }
    }

    fn arrives(&mut self, flow: usize, len: u32, ops: &mut Iter<Op>) {
        let Some(picked) = self.pick(flow) else { return };
        let s = self.data(picked, 0, len, 0);
        let (id, now) = (picked.0, self.now);
        let uplink = self.host.uplink();
        if uplink.rate == 0 && uplink.all.open == 0 {
            // There is no part of incast control.
            self.host.to_vm(id, &s, now);
            return;
        }
        let mut host = take(&mut self.host);
        self.pending.push(id);
        host.to_vm_meanwhile(id, &s, now, &mut |host| {
            swap(host, &mut self.host);
            self.run(ops, true);
            swap(host, &mut self.host);
            self.now
        });
        self.pending.pop();
        self.host = host;
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Begin { scale, stamps, shown } => self.begin(scale, stamps, shown),
            Op::Data { flow, skip, len, marked } => {
                let Some(picked) = self.pick(flow) else { return };
                let s = self.data(picked, skip, len, if marked { SEG_CE } else { 0 });
                self.host.to_vm(picked.0, &s, self.now);
            }
            Op::Arrives { .. } | Op::Decide => {}
            Op::VmSends { flow, share, window, len } => {
                let Some((id, f)) = self.pick(flow) else { return };
                let fresh = f.high_seq.diff(f.vm_seq).max(0) as u32;
                let s = segment {
                    seq: f.snd_nxt,
                    ack: f.vm_seq.add((u64::from(fresh) * u64::from(share) / 255) as u32),
                    len,
                    window,
                    tsval: (self.now >> 20) as u32,
                    tcp_flags: TCP_ACK as u8,
                    bits: if u32::from(f.flags) & FLOW_F_TIMESTAMPS != 0 {
                        SEG_TIMESTAMPS as u16
                    } else {
                        0
                    },
                    ..segment::default()
                };
                self.host.from_vm(id, &s, self.now);
            }
            Op::Foreign { flow } => {
                let Some(picked) = self.pick(flow) else { return };
                let s = self.data(picked, 0, 1, SEG_FOREIGN);
                self.host.to_vm(picked.0, &s, self.now);
            }
            Op::Reset { flow } => {
                let Some((id, f)) = self.pick(flow) else { return };
                let s = segment { seq: f.snd_nxt, tcp_flags: TCP_RST as u8, ..segment::default() };
                self.host.from_vm(id, &s, self.now);
            }
            Op::Gone { flow } => {
                let Some((id, _)) = self.pick(flow) else { return };
                self.host.begin_anew(id, self.now);
            }
            Op::Grant { port } => {
                self.host.grants(port, 1, self.now);
            }
            Op::Way { flow, beside } => {
                let Some((id, _)) = self.pick(flow) else { return };
                self.host.route_beside_uplink(id, beside);
            }
            Op::Wait { ns } => self.now = self.now.saturating_add_signed(ns),
            Op::Rate { mbps } => self.host.uplink().rate = rate_of(mbps),
        }
    }

    /// The VM accepts a connection.
    fn begin(&mut self, scale: u8, stamps: bool, shown: u32) {
        if self.host.len() == 300 {
            return;
        }
        let id = self.host.connect(self.host.len() % PORTS);
        let first = seq::new(0u32.wrapping_sub(shown));
        let (stamps, now) = (if stamps { SEG_TIMESTAMPS } else { 0 }, self.now);
        let syn = segment {
            ack: first,
            window: shown as u16,
            scale,
            tcp_flags: (TCP_SYN | TCP_ACK) as u8,
            bits: (SEG_SCALE | stamps) as u16,
            ..segment::default()
        };
        self.host.from_vm(id, &syn, now);
        let ack = segment {
            seq: first,
            ack: seq::new(1),
            tcp_flags: TCP_ACK as u8,
            bits: stamps as u16,
            ..segment::default()
        };
        self.host.to_vm(id, &ack, now);
        self.sent.push(first);
        self.edges.push((None, first));
    }

    fn check(&mut self) {
        let uplink = *self.host.uplink();
        let u = &uplink;
        self.most_credit = self.most_credit.max(incast::credit(u));
        let records = self.host.flows();
        let flows = || records.iter().enumerate().filter_map(|(id, f)| Some((id, f.as_ref()?)));
        assert_eq!(
            self.host.outstanding(),
            incast::outstanding(u),
            "outstanding is not the sum of the flows"
        );
        assert_eq!(self.host.silent(), u.all.silent, "silent is not the sum of the others");
        let count =
            |is: &dyn Fn(usize, &flow) -> bool| flows().filter(|(id, f)| is(*id, f)).count() as i32;
        let waits = |f: &flow, state: u32| u32::from(f.incast.waiting) == state;
        let is_queued = |f: &flow| waits(f, incast_waiting::INCAST_QUEUED);
        assert_eq!(count(&|_, f| is_queued(f)), u.all.queued);
        assert_eq!(count(&|_, f| f.incast.is_shaped()), u.all.open);
        for at in 0..PORTS {
            let outstanding = self.host.outstanding_of(at);
            let port = *self.host.share_of(at);
            let is_of = |id| self.host.port_of(id) == at;
            assert_eq!(
                outstanding,
                port.own.outstanding + port.own.silent,
                "an account of a port is not the sum of its flows"
            );
            assert_eq!(count(&|id, f| is_of(id) && is_queued(f)), port.own.queued);
            assert_eq!(count(&|id, f| is_of(id) && f.incast.is_shaped()), port.own.open);
            let answerers =
                count(&|id, f| is_of(id) && waits(f, incast_waiting::INCAST_FINISHED_ANSWERER));
            let others =
                count(&|id, f| is_of(id) && waits(f, incast_waiting::INCAST_FINISHED_OTHER));
            assert_eq!((answerers, others), (port.finished_answerers, port.finished_others));
        }
        for (id, f) in flows() {
            let i = &f.incast;
            let queue = |name| self.host.queue(self.host.port_of(id), name);
            let is_pending = self.pending.contains(&id);
            if waits(f, incast_waiting::INCAST_QUEUED) && !is_pending {
                let queue = queue("grant_queue");
                assert!(queue.contains(&id), "waits, and is not in the grant queue");
            }
            let is_finished = waits(f, incast_waiting::INCAST_FINISHED_ANSWERER)
                || waits(f, incast_waiting::INCAST_FINISHED_OTHER);
            if is_finished && !is_pending {
                let queue = queue("finished_queue");
                assert!(queue.contains(&id), "is finished, and not in its queue");
            }
            if i.is_shaped() {
                assert!(i.edge.diff(i.received) >= 0);
                assert!(
                    i.window > 0 && i.window <= self.most_credit.max(10 * 8_948),
                    "{}",
                    i.window
                );
            }
        }
        for (id, f) in records.iter().enumerate() {
            let Some(f) = f else { continue };
            let (edge, shown) = self.edges[id];
            assert!(f.adv_edge.diff(shown) >= 0, "what the sender was shown is taken back");
            let now = f.incast.is_shaped().then_some(f.incast.edge);
            if let (Some(now), Some(before)) = (now, edge) {
                let kept = now.diff(before) >= 0 || now.diff(shown) >= 0;
                assert!(kept, "what was granted and shown is taken back");
            }
            self.edges[id].0 = now;
            self.edges[id].1 = f.adv_edge;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_sequence_of_events_makes_the_account_wrong(
        buffer in 0..(1u32 << 20),
        ops in prop::collection::vec(op(), 1..600),
    ) {
        let policy = policy { run: port_run::PORT_ACCELERATE, passive: 1, ..policy::default() };
        let mut m = CheckedHooks {
            host: Hooks::new(PORTS, rate_of(1_000), buffer, policy),
            now: 1_000_000_000,
            pending: Vec::new(),
            edges: Vec::new(),
            most_credit: 0,
            sent: Vec::new(),
        };
        m.run(&mut ops.iter(), false);
        // With all flows gone no credit is outstanding, and no flow waits.
        for id in 0..m.host.len() {
            m.host.begin_anew(id, m.now);
        }
        let u = m.host.uplink();
        prop_assert_eq!((incast::outstanding(u), u.all.queued, u.all.open), (0, 0, 0));
    }
}
