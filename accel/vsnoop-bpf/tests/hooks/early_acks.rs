//! The segments that the host sends in the VM's place look as if the VM had sent them. Some
//! segments of the sender bring the VM an ACK.

use etherparse::PacketBuilder;
use vsnoop_bpf::types::{WOKEN_LATER, WOKEN_NOW, flow, seq};
use vsnoop_bpf::{HoldMaps, Hook};

use crate::scene::{
    Attached, DROP, NEXT, REDIRECT, SENDER, VM, checked, engine, holding, insert_ipv6_flow, now_ns,
    of_sender, of_vm, record,
};

/// The sender's segment came from another MAC than the VM's own segments go to.
pub fn an_early_ack_has_the_vms_next_hop_and_traffic_class() {
    let port = Attached::with_hold();
    holding(&port);
    let answer = || port.run_hook(Hook::ToVm, &of_sender(5000, 500, &[7; 10]), 1).expect("run").1;
    let reply = answer();
    assert_eq!((&reply[..6], &reply[6..12], reply[15]), (&[4; 6][..], &[2; 6][..], 0xb8));
    assert!(checked(&reply).1, "checksum");
    // The VM has another way, and another class, from now on.
    let mut frame = Vec::new();
    let ip = etherparse::Ipv4Header {
        dscp: 2.try_into().expect("a DSCP"),
        ..etherparse::Ipv4Header::new(20, 64, etherparse::IpNumber::TCP, VM, SENDER)
            .expect("a header")
    };
    PacketBuilder::ethernet2([2; 6], [8; 6])
        .ip(etherparse::IpHeaders::Ipv4(ip, Default::default()))
        .tcp(80, 40000, 500, 9000)
        .ack(4000)
        .write(&mut frame, &[])
        .expect("build an ACK");
    port.run_hook(Hook::FromVm, &frame, 1).expect("run");
    let reply = answer();
    assert_eq!((&reply[..6], reply[15]), (&[8; 6][..], 2 << 2));
}

/// The first word of an IPv6 header: version, traffic class and flow label. The ECN bits of the
/// VM's class are those of its own packets, not of the host's.
pub fn an_early_ack_over_ipv6_has_the_vms_class_and_flow_label() {
    let port = Attached::with_hold();
    engine(&port);
    let key = insert_ipv6_flow(&port);
    let (sender, vm) = (key.sender_addr, key.vm_addr);
    let ip = |source, destination, traffic_class, label: u32| {
        let ip = etherparse::Ipv6Header {
            traffic_class,
            flow_label: label.try_into().expect("20 bits"),
            hop_limit: 64,
            next_header: etherparse::IpNumber::TCP,
            source,
            destination,
            ..Default::default()
        };
        etherparse::IpHeaders::Ipv6(ip, Default::default())
    };
    let answer = |seq| {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([6; 6], [2; 6])
            .ip(ip(sender, vm, 0, 0x54321))
            .tcp(40000, 80, seq, 1000)
            .ack(500)
            .write(&mut frame, &[7; 100])
            .expect("build a segment");
        let (verdict, reply) = port.run_hook(Hook::ToVm, &frame, 1).expect("run");
        assert_eq!(verdict, REDIRECT, "acknowledged");
        assert_eq!((&reply[22..38], &reply[38..54]), (&vm[..], &sender[..]), "the VM's");
        assert_eq!(&reply[62..66], &(seq + 100).to_be_bytes(), "ACK");
        u32::from_be_bytes([reply[14], reply[15], reply[16], reply[17]])
    };
    assert_eq!(answer(4000), 0x6b80_0000, "of its record");
    for (class, label, word) in [(0x28, 0xabcde, 0x628a_bcde), (0xbb, 0x00001, 0x6b80_0001)] {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [8; 6])
            .ip(ip(vm, sender, class, label))
            .tcp(80, 40000, 500, 9000)
            .ack(4000)
            .write(&mut frame, &[])
            .expect("build an ACK");
        port.run_hook(Hook::FromVm, &frame, 1).expect("run");
        let seq = port.flow(&key).expect("read").expect("a record").next_seq.v;
        assert_eq!(answer(seq), word, "class {class:#x}, label {label:#x}");
    }
}

/// Frames of the sender with a priority tag belong to the same connection.
pub fn a_priority_tag_is_no_vlan() {
    let port = Attached::with_hold();
    let (key, _) = holding(&port);
    let mut frame = of_sender(5000, 500, &[7; 100]);
    let tag = |frame: &mut Vec<u8>, vid: u8| {
        frame.splice(12..12, [0x81, 0x00, 0xa0, vid]);
    };
    tag(&mut frame, 0);
    let (verdict, reply) = port.run_hook(Hook::ToVm, &frame, 1).expect("run");
    assert_eq!(verdict, REDIRECT, "acknowledged");
    let untagged = if reply[12..14] == [0x81, 0] { &reply[4..] } else { &reply[..] };
    assert_eq!(untagged[12..14], [8, 0]);
    assert_eq!(port.flow(&key).expect("read").expect("a record").next_seq.v, 5100);
    let mut frame = of_sender(5100, 500, &[7; 100]);
    tag(&mut frame, 7);
    assert_eq!(port.run_hook(Hook::ToVm, &frame, 1).expect("run").0, NEXT, "of another VLAN");
    let frame = of_sender(5100, 500, &[7; 100]);
    assert_eq!(port.run_hook(Hook::ToVm, &frame, 1).expect("run").0, REDIRECT);
}

/// A peer with IP_MINTTL drops packets whose TTL is smaller than the VM's (RFC 5082).
pub fn an_early_ack_has_the_vms_ttl() {
    let port = Attached::with_hold();
    holding(&port);
    let answer = || port.run_hook(Hook::ToVm, &of_sender(5000, 500, &[7; 10]), 1).expect("run").1;
    assert_eq!(answer()[22], 64, "of no segment yet");
    for ttl in [255, 128] {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(VM, SENDER, ttl)
            .tcp(80, 40000, 500, 9000)
            .ack(4000)
            .write(&mut frame, &[])
            .expect("build an ACK");
        port.run_hook(Hook::FromVm, &frame, 1).expect("run");
        let reply = answer();
        assert_eq!(reply[22], ttl);
        assert!(checked(&reply).1, "checksum");
    }
}

pub fn an_ack_is_forwarded_where_the_vm_accepts_it() {
    let port = Attached::with_hold();
    holding(&port);
    port.run_hook(Hook::FromVm, &of_vm(500, 4000, 9000, &[], &[1; 100]), 1).expect("run");
    let (verdict, after) = port.run_hook(Hook::ToVm, &of_sender(5000, 600, &[]), 1).expect("run");
    assert_eq!(verdict, NEXT);
    assert_eq!(&after[38..42], &4000u32.to_be_bytes(), "SEQ: what the VM has been handed");
    let ((ack, window), valid) = checked(&after);
    assert_eq!((ack, window, valid), (600, 1000, true));
}

/// The frame may have an older ACK, and get to the VM behind it.
pub fn an_ack_that_comes_while_the_engine_writes_a_frame_is_left_to_it() {
    let port = Attached::with_hold();
    let (_, record) = holding(&port);
    let number = record.hold.into();
    let memory = HoldMaps::open(&port).expect("open the memory").expect("there is a hold");
    port.run_hook(Hook::FromVm, &of_vm(500, 4000, 9000, &[], &[1; 100]), 1).expect("run");
    let verdict = |ack| port.run_hook(Hook::ToVm, &of_sender(5000, ack, &[]), 1).expect("run").0;
    // In HOLDING, and where the ACK is noted without the lock.
    for ack in [510, 540] {
        memory.set_sending(number, Some(now_ns()));
        assert_eq!(verdict(ack), DROP);
        assert_eq!((memory.read(number).ack_waits, memory.read(number).snd_una.v), (1, ack));
        assert!(memory.take_woken().contains(&number));
        memory.clear_woken(number);
        assert_eq!(verdict(ack), NEXT, "it has nothing new");
        memory.set_sending(number, None);
        memory.set_ack_waits(number, false);
        assert_eq!(verdict(ack + 10), NEXT);
        assert_eq!(memory.read(number).ack_waits, 0);
        memory.set_handed(number, seq { v: 5000 });
        port.run_hook(Hook::FromVm, &of_vm(600, 5000, 9000, &[], &[]), 1).expect("run");
        memory.take_woken();
        memory.clear_woken(number);
    }
}

pub fn an_engine_that_looks_by_itself_is_left_a_number_and_not_woken() {
    let port = Attached::with_hold();
    let (_, record) = holding(&port);
    let number = record.hold.into();
    let memory = HoldMaps::open(&port).expect("open the memory").expect("there is a hold");
    for seq in [5000, 6000, 7000] {
        port.run_hook(Hook::ToVm, &of_sender(seq, 500, &[7; 1000]), 1).expect("run");
    }
    // The VM is late: it has not acknowledged two segments for long.
    memory.set_handed(number, seq { v: 7000 });
    let mut seq = 8000;
    let mut woken_after = |looks| {
        memory.take_woken();
        memory.clear_woken(number);
        memory.set_looks(looks);
        let records = [(); 2].map(|()| {
            port.run_hook(Hook::ToVm, &of_sender(seq, 500, &[7; 10]), 1).expect("run");
            seq += 10;
            memory.take_woken().len()
        });
        assert_eq!(records, [1, 0], "one for both");
        memory.read(number).woken
    };
    assert_eq!(woken_after(false), WOKEN_NOW);
    assert_eq!(woken_after(true), WOKEN_LATER);
    assert_eq!(woken_after(false), WOKEN_NOW);
}

/// A pure ACK is noted without the lock.
pub fn an_ack_on_a_segment_beyond_the_shown_edge_is_not_noted() {
    let port = Attached::active();
    let (key, record) = record();
    let record = flow { snd_nxt: seq { v: 700 }, vm_seq: record.next_seq, ..record };
    port.insert_flow(&key, &record).expect("insert a flow");
    let una = |seq, ack| {
        let (verdict, _) = port.run_hook(Hook::ToVm, &of_sender(seq, ack, &[]), 1).expect("run");
        assert_eq!(verdict, NEXT);
        port.flow(&key).expect("read").expect("a record").snd_una.v
    };
    assert_eq!(una(11001, 600), 500);
    assert_eq!(una(4000, 701), 500);
    assert_eq!(una(4000, 600), 600);
}
