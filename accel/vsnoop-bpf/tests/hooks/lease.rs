//! Leases: what the programs on the tap themselves pass.

use etherparse::TcpOptionElement;
use vsnoop_bpf::Hook;
use vsnoop_bpf::types::{FLOW_F_TIMESTAMPS, flow, flow_key, flow_mode, flow_sample, port_run, seq};

use crate::scene::{Attached, NEXT, now_ns, of_sender_with, of_vm, record};

/// Bytes of a segment, and segments after which enough must have passed by a lease.
const BYTES: u32 = 100;
const MOST: u32 = 500;

/// Changes a segment.
type Change = fn(&mut [u8]);

/// Changes of a segment that make it unreadable for the fast path. The checksum becomes wrong, so
/// that a full decision learns nothing from the segment.
const UNUSUAL: [(&str, Change); 9] = [
    ("congestion experienced", |f| f[15] |= 3),
    ("a fragment", |f| f[20] |= 0x20),
    ("IP options", |f| f[14] = 0x46),
    ("another protocol", |f| f[23] = 17),
    ("an IP length below the frame's", |f| f[17] -= 1),
    ("a shorter TCP header", |f| f[46] = 0x70),
    ("a reserved bit", |f| f[46] |= 1),
    ("FIN", |f| f[47] |= 1),
    ("another option", |f| f[56] = 253),
];

fn timestamp(tsval: u32) -> [TcpOptionElement; 3] {
    [TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(tsval, 1)]
}

/// A paused port, and a flow that is left to the VM.
fn passive() -> (Attached, flow_key, flow) {
    let port = Attached::with_hold();
    port.set_run(port_run::PORT_PAUSED).expect("pause");
    let (key, record) = record();
    let flags = record.flags | FLOW_F_TIMESTAMPS as u16;
    (port, key, flow { mode: flow_mode::FLOW_PASSIVE as u8, flags, ..record })
}

/// The programs on the tap pass segments by a lease: of those to the VM the record does not note
/// TSval.
pub fn a_lease_passes_what_follows_in_the_same_jiffy() {
    let (port, key, record) = passive();
    let at = |v| seq { v };
    let record = flow {
        vm_seq: at(3900),
        next_seq: at(3900),
        right_edge: at(1_000_000),
        adv_edge: at(1_000_000),
        sample: flow_sample::FLOW_SAMPLE_PASSED as u8,
        // The VM is not late in this test.
        progress_ns: now_ns() + 60_000_000_000,
        ..record
    };
    port.insert_flow(&key, &record).expect("insert a flow");
    // The segment with this number, whose TSval is one more.
    let segment = |number: u32| {
        let options = timestamp(1 + number);
        of_sender_with(40000, 4000 + number * BYTES, 500, &options, &[7; BYTES as usize])
    };
    let (mut sent, mut by_lease) = (0, 0);
    while by_lease < 10 && sent < MOST {
        let frame = segment(sent);
        let (verdict, after) = port.run_hook(Hook::ToVm, &frame, 1).expect("run");
        assert_eq!((verdict, after), (NEXT, frame));
        sent += 1;
        let now = port.flow(&key).expect("read").expect("the flow is on record");
        assert_eq!((now.high_seq, u32::from(now.mode)), (at(4000 + sent * BYTES), 3));
        by_lease += u32::from(now.lease_tsval < sent);
    }
    assert_eq!(by_lease, 10, "of {sent} segments");
    let stats = port.stats().expect("stats");
    assert_eq!((stats.to_vm_packets, stats.passive), (u64::from(sent), u64::from(sent)));
    assert!(stats.to_vm_bytes > u64::from(sent * BYTES));

    for (what, change) in UNUSUAL {
        for _ in 0..3 {
            port.run_hook(Hook::ToVm, &segment(sent), 1).expect("run");
            sent += 1;
            let mut frame = segment(sent);
            change(&mut frame);
            let (verdict, after) = port.run_hook(Hook::ToVm, &frame, 1).expect("run");
            assert_eq!((verdict, after), (NEXT, frame), "{what}");
            let now = port.flow(&key).expect("read").expect("the flow is on record");
            assert_eq!(now.high_seq, at(4000 + sent * BYTES), "a lease passed {what}");
        }
    }
}

/// The fast path moves VM_SEQ only; all else that the VM's ACKs bring is left to the next decision.
pub fn a_lease_passes_acks_of_the_vm_in_the_same_jiffy() {
    const WINDOW: u16 = 9000;
    const SCALE: u8 = 7;
    let (port, key, record) = passive();
    let at = |v| seq { v };
    let edge = at(4000 + (u32::from(WINDOW) << SCALE));
    let record = flow {
        vm_seq: at(4000),
        next_seq: at(4000),
        high_seq: at(1_000_000),
        right_edge: edge,
        adv_edge: edge,
        scale: SCALE,
        progress_ns: now_ns(),
        ..record
    };
    port.insert_flow(&key, &record).expect("insert a flow");
    let ack = |number: u32| of_vm(500, 4000 + number * BYTES, WINDOW, &timestamp(1 + number), &[]);
    let run = |frame: &[u8]| {
        let (verdict, after) = port.run_hook(Hook::FromVm, frame, 1).expect("run");
        assert_eq!((verdict, &after[..]), (NEXT, frame));
        port.flow(&key).expect("read").expect("the flow is on record")
    };
    let (mut sent, mut by_lease) = (0, 0);
    while by_lease < 10 && sent < MOST {
        sent += 1;
        let now = run(&ack(sent));
        assert_eq!((now.vm_seq, now.vm_tsval), (at(4000 + sent * BYTES), 1 + sent));
        by_lease += u32::from(now.next_seq != now.vm_seq);
    }
    assert_eq!(by_lease, 10, "of {sent} ACKs");
    let stats = port.stats().expect("stats");
    let bytes = ack(0).len() as u64;
    let packets = u64::from(sent);
    assert_eq!((stats.from_vm_packets, stats.from_vm_bytes), (packets, packets * bytes));

    let of_vm_only: [(&str, Change); 3] =
        [("ECE", |f| f[47] |= 0x40), ("PSH", |f| f[47] |= 8), ("a smaller window", |f| f[48] = 1)];
    for (what, change) in UNUSUAL.into_iter().chain(of_vm_only) {
        for _ in 0..3 {
            let known = run(&ack(sent + 1)).vm_seq;
            let mut frame = ack(sent + 2);
            change(&mut frame);
            assert_eq!(run(&frame).vm_seq, known, "a lease passed {what}");
            sent += 1;
        }
    }
    // A segment to the VM is decided about: that completes what the leases have passed.
    port.run_hook(Hook::ToVm, &of_sender_with(40000, 2_000_000, 500, &timestamp(1), b"x"), 1)
        .expect("run");
    let now = port.flow(&key).expect("read").expect("the flow is on record");
    assert_eq!((now.vm_lease, now.next_seq, now.adv_edge), (0, now.vm_seq, now.right_edge));
}
