//! Leases: what the program on the tap itself passes.

use etherparse::TcpOptionElement;
use vsnoop_bpf::Hook;
use vsnoop_bpf::types::{FLOW_F_TIMESTAMPS, flow, flow_mode, flow_sample, port_run, seq};

use crate::{Attached, NEXT, now_ns, of_sender_with, record};

/// The program on the tap passes segments by a lease: of these the record does not note TSval.
pub fn a_lease_passes_what_follows_in_the_same_jiffy() {
    const BYTES: u32 = 100;
    const MOST: u32 = 500;
    let port = Attached::with_hold();
    port.set_run(port_run::PORT_PAUSED).expect("pause");
    let (key, record) = record();
    let at = |v| seq { v };
    let record = flow {
        vm_seq: at(3900),
        next_seq: at(3900),
        right_edge: at(1_000_000),
        adv_edge: at(1_000_000),
        mode: flow_mode::FLOW_PASSIVE as u8,
        flags: record.flags | FLOW_F_TIMESTAMPS as u16,
        sample: flow_sample::FLOW_SAMPLE_PASSED as u8,
        // The VM is not late in this test.
        progress_ns: now_ns() + 60_000_000_000,
        ..record
    };
    port.insert_flow(&key, &record).expect("insert a flow");
    // The segment with this number, whose TSval is one more.
    let segment = |number: u32| {
        let tsval = 1 + number;
        let options =
            [TcpOptionElement::Noop, TcpOptionElement::Noop, TcpOptionElement::Timestamp(tsval, 1)];
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

    // The full decision finds that their checksums are wrong; a lease would pass them.
    type Change = fn(&mut [u8]);
    let unusual: [(&str, Change); 9] = [
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
    for (what, change) in unusual {
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
