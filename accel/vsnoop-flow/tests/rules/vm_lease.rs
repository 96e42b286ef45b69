//! The VM's leases: which of its ACKs pass without a full decision, and what they leave to the next
//! one.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vsnoop_flow::{
    FromVm, decide_and_grant_shared, end_vm_lease, flow, grant_vm_lease, pass_by_vm_lease,
    pass_by_vm_lease_shared, segment, seq, types::*,
};

use crate::case::*;

const JIFFY: u64 = 1 << 32 | 7;
/// Bytes that the VM of [`leased`] was handed, and the part of them that the ACK covers which
/// brings the lease.
const HANDED: u32 = 30 * MSS;
const FIRST: u32 = 4 * MSS;

/// A flow in a paused port. The timed byte, that of the first segment, is acknowledged.
fn paused() -> FlowCase {
    let mut c = FlowCase::accepted();
    c.policy.run = port_run::PORT_PAUSED;
    for number in 0..HANDED / MSS {
        c.pass(&c.data(number * MSS, MSS));
    }
    assert_eq!(c.hear(&ack(&c, FIRST)).0, FromVm::Pass);
    assert_eq!((c.mode(), c.f.sample), (flow_mode::FLOW_PASSIVE, 0));
    c
}

fn grant(c: &mut FlowCase) -> bool {
    grant_vm_lease(&mut c.f, &c.h, JIFFY)
}

fn leased() -> FlowCase {
    let mut c = paused();
    assert!(grant(&mut c));
    c
}

/// An ACK of the VM with its edge, rounded up.
fn ack(c: &FlowCase, offset: u32) -> segment {
    let window = c.f.right_edge.diff(at(offset)) as u32;
    c.ack_of_vm(offset, window.div_ceil(1 << SCALE) as u16)
}

fn passes(c: &mut FlowCase, s: &segment) -> bool {
    pass_by_vm_lease(&mut c.f, s, JIFFY, c.now)
}

#[test]
fn acks_below_what_the_vm_was_handed_pass_until_the_jiffy_ends() {
    let mut c = leased();
    for offset in (FIRST + 1..HANDED).step_by(997) {
        let s = ack(&c, offset);
        assert!(passes(&mut c, &s), "{offset}: {:?}", c.f);
        assert_eq!(c.f.vm_seq, at(offset));
    }
    let s = ack(&c, HANDED - 1);
    assert!(!pass_by_vm_lease(&mut c.f, &s, JIFFY + 1, c.now), "another jiffy");
    let s = ack(&c, HANDED);
    assert!(!passes(&mut c, &s), "the VM has caught up");
    c.hear(&s);
    assert_eq!(c.mode(), flow_mode::FLOW_ACTIVE);
}

#[test]
fn the_ack_of_the_timed_byte_takes_a_full_decision() {
    let mut c = leased();
    c.wait(10 * MS);
    // The next one that is timed.
    c.pass(&c.data(HANDED, MSS));
    assert_ne!(c.f.sample, 0);
    c.f.progress_ns = c.now;
    assert!(grant(&mut c));
    c.f.high_seq = at(HANDED + 9 * MSS);
    let s = ack(&c, HANDED + MSS - 1);
    assert!(passes(&mut c, &s));
    let s = ack(&c, HANDED + MSS);
    assert!(!passes(&mut c, &s));
    let (_, out) = c.hear(&s);
    assert_ne!(out.events & EVENT_SAMPLE, 0);
}

/// The fields of a record that tell of the VM.
fn known(f: &flow) -> impl PartialEq + std::fmt::Debug + use<> {
    let seqs = [f.vm_seq, f.next_seq, f.right_edge, f.adv_edge];
    (seqs, f.vm_tsval, f.ts_recent, f.heard_at, f.progress_ns, f.vm_lease)
}

#[test]
fn a_lease_leaves_what_full_decisions_would() {
    let mut by_lease = leased();
    let mut by_decision = paused();
    for (offset, window) in [(FIRST + 1, 500), (2 * FIRST, 500), (5 * FIRST, 510)] {
        for c in [&mut by_lease, &mut by_decision] {
            c.now += MS / 2;
            c.vm_ts += 3;
            c.ts += 2;
        }
        let s = by_lease.ack_of_vm(offset, window);
        assert!(passes(&mut by_lease, &s), "{:?}", by_lease.f);
        assert_eq!(by_decision.hear(&s).0, FromVm::Pass);
    }
    assert_ne!(by_lease.f.next_seq, by_lease.f.vm_seq, "that is left to the next decision");
    end_vm_lease(&mut by_lease.f, &mut by_lease.h);
    assert_eq!(known(&by_lease.f), known(&by_decision.f));
    let copies = |c: &FlowCase| (c.h.vm_seq, c.h.first, c.h.tail, c.h.sure);
    assert_eq!(copies(&by_lease), copies(&by_decision));
}

#[test]
fn each_decision_ends_a_lease_first() {
    let offset = 3 * FIRST;
    let decisions: [fn(&mut FlowCase); 3] = [
        |c| c.goes(&c.data(HANDED, MSS)),
        // A hole: the flow goes offline, and NEXT_SEQ decides what is kept afterwards.
        |c| c.goes(&c.data(HANDED + 9 * MSS, MSS)),
        |c| {
            c.hear(&c.sack_of_vm(3 * FIRST, HANDED));
        },
    ];
    for decision in decisions {
        let mut c = leased();
        let s = ack(&c, offset);
        assert!(passes(&mut c, &s));
        decision(&mut c);
        assert_eq!((c.f.vm_lease, c.f.next_seq, c.h.tail), (0, at(offset), at(offset)));
        let s = ack(&c, offset + 1);
        assert!(!passes(&mut c, &s));
    }
}

#[test]
fn anything_else_takes_a_full_decision() {
    let c = leased();
    let s = ack(&c, 2 * FIRST);
    let unusual: [(&str, segment); 11] = [
        ("data", segment { len: 1, unit_len: 1, ..s }),
        ("FIN", segment { tcp_flags: ACK | FIN, ..s }),
        ("RST", segment { tcp_flags: ACK | RST, ..s }),
        ("ECE", segment { tcp_flags: ACK | ECE, ..s }),
        ("no ACK", segment { tcp_flags: 0, ..s }),
        ("SACK", segment { bits: s.bits | SEG_SACK as u16, ..s }),
        ("no timestamps", segment { bits: 0, ..s }),
        ("a probe", segment { seq: s.seq.add(u32::MAX), ..s }),
        ("a duplicate", segment { ack: at(FIRST), ..s }),
        ("an old ACK", segment { ack: at(FIRST - 1), ..s }),
        ("a window taken back", segment { window: s.window - 1, ..s }),
    ];
    for (name, unusual) in unusual {
        let mut c = c.clone();
        assert!(!passes(&mut c, &unusual), "{name}");
        assert_eq!(known(&c.f), known(&leased().f), "{name}");
    }
    let mut late = c.clone();
    late.now += 2 * MS;
    assert!(!passes(&mut late, &s), "the VM was late, which is noted");
    assert!(passes(&mut c.clone(), &s));
}

#[test]
fn only_a_flow_without_anything_to_decide_has_a_lease() {
    type Change = fn(&mut FlowCase);
    let cases: [(&str, Change); 12] = [
        ("active", |c| c.f.mode = flow_mode::FLOW_ACTIVE as u8),
        ("offline", |c| c.f.mode = flow_mode::FLOW_UNEXPECTED_SEQ as u8),
        ("no timestamps", |c| c.f.flags &= !FLOW_F_TIMESTAMPS as u16),
        ("scale unknown", |c| c.f.flags &= !FLOW_F_SCALE_KNOWN as u16),
        ("ECE", |c| c.f.flags |= FLOW_F_ECE as u16),
        ("an answer is due", |c| c.f.flags |= FLOW_F_REPLY_DUE as u16),
        ("a FIN", |c| c.f.flags |= FLOW_F_FIN_SENDER as u16),
        ("early bytes", |c| c.f.next_seq = c.f.next_seq.add(1)),
        ("a wider window was shown", |c| c.f.adv_edge = c.f.adv_edge.add(1)),
        ("copies", |c| c.h.chunks = 1),
        ("ranges", |c| c.h.range_count = 1),
        ("a copy is being made", |c| c.h.claimed = 1),
    ];
    for (name, change) in cases {
        let mut c = paused();
        change(&mut c);
        assert!(!grant(&mut c), "{name}");
    }
    assert!(grant(&mut paused()));
}

/// A record that two threads use.
#[derive(Clone, Copy)]
struct Shared(NonNull<flow>);

// SAFETY: the threads follow the rules of flow/vm_lease.h.
unsafe impl Send for Shared {}

impl Shared {
    fn vm_seq(self) -> seq {
        // SAFETY: the record outlives the threads.
        unsafe { (&raw const (*self.0.as_ptr()).vm_seq).read_volatile() }
    }
}

/// One CPU passes ACKs by the lease, another decides: neither sets back what the other has learnt.
#[test]
fn vm_seq_never_goes_back_between_two_cpus() {
    /// Fewest ACKs that pass by the lease, and fewest decisions.
    const LEAST: u32 = 20_000;
    /// The other thread may have no CPU for a while.
    const MOST: u32 = 100_000_000;
    let mut c = paused();
    // Edges do not matter here.
    c.f.right_edge = at(0);
    c.f.adv_edge = at(0);
    c.f.high_seq = at(1 << 29);
    let (template, now, policy) = (ack(&c, FIRST), c.now, c.policy);
    let ack_of = move |next: seq| segment { ack: next, window: u16::MAX, ..template };
    let shared = Shared(NonNull::from(&mut c.f));
    // The latest ACK that has passed by the lease, and how many have.
    let (passed, count) = &(AtomicU32::new(at(FIRST).v), AtomicU32::new(0));
    let is_over = &AtomicBool::new(false);
    let mut went_back = None;
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let shared = shared;
            while !is_over.load(Ordering::Relaxed) {
                let latest = seq::new(passed.load(Ordering::Relaxed));
                let known = shared.vm_seq();
                let next = if known.diff(latest) > 0 { known } else { latest }.add(1);
                // SAFETY: see Shared.
                if unsafe { pass_by_vm_lease_shared(shared.0, &ack_of(next), JIFFY, now) } {
                    passed.store(next.v, Ordering::SeqCst);
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        let mut rounds = 0;
        while (rounds < LEAST || count.load(Ordering::SeqCst) < LEAST) && rounds < MOST {
            rounds += 1;
            let next = shared.vm_seq().add(1);
            // SAFETY: see Shared. Only this thread decides, so that it needs no lock.
            unsafe { decide_and_grant_shared(shared.0, &ack_of(next), &policy, JIFFY, now) };
            let by_other = seq::new(passed.load(Ordering::SeqCst));
            let is = shared.vm_seq();
            if is.diff(next) < 0 || is.diff(by_other) < 0 {
                went_back = Some((is, next, by_other));
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(went_back, None, "VM_SEQ, and what had been learnt by decision and by lease");
    assert!(count.load(Ordering::SeqCst) > 0, "nothing passed by the lease");
}
