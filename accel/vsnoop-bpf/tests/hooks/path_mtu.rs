//! Reports of a smaller path MTU behind the VM (RFC 1191, RFC 8201).

use etherparse::{IcmpEchoHeader, Icmpv4Type, Icmpv6Type, PacketBuilder, icmpv4, icmpv6};
use vsnoop_bpf::types::{FAR_TOO_BIG, flow, flow_key};
use vsnoop_bpf::{HoldMaps, Hook, Port};

use crate::scene::{Attached, NEXT, SENDER, VM, engine, holding, insert_ipv6_flow, of_sender};

/// Offset of the quoted SEQ in an untagged report, over IPv4 and IPv6.
const SEQ_AT: [usize; 2] = [14 + 20 + 8 + 20 + 4, 14 + 40 + 8 + 40 + 4];

/// The beginning of a segment of the sender, as a router quotes it.
fn quoted(frame: &[u8], tcp_bytes: usize) -> Vec<u8> {
    let ip_bytes = if frame[12] == 0x08 { 20 } else { 40 };
    frame[14..14 + ip_bytes + tcp_bytes].to_vec()
}

/// The VM's report over IPv4 about a segment from `seq` on.
fn report4(seq: u32, mtu: u16, tcp_bytes: usize) -> Vec<u8> {
    let what = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: mtu };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4(VM, SENDER, 64)
        .icmpv4(Icmpv4Type::DestinationUnreachable(what))
        .write(&mut frame, &quoted(&of_sender(seq, 500, &[7; 1000]), tcp_bytes))
        .expect("build a report");
    frame
}

fn report6(key: &flow_key, seq: u32, mtu: u32, tcp_bytes: usize) -> Vec<u8> {
    let mut segment = Vec::new();
    PacketBuilder::ethernet2([6; 6], [2; 6])
        .ipv6(key.sender_addr, key.vm_addr, 64)
        .tcp(40000, 80, seq, 1000)
        .ack(500)
        .write(&mut segment, &[7; 1400])
        .expect("build a segment");
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv6(key.vm_addr, key.sender_addr, 64)
        .icmpv6(Icmpv6Type::PacketTooBig { mtu })
        .write(&mut frame, &quoted(&segment, tcp_bytes))
        .expect("build a report");
    frame
}

/// Is the report's own checksum right?
fn is_right(frame: &[u8]) -> bool {
    if frame[12] == 0x08 {
        let icmp = etherparse::Icmpv4Slice::from_slice(&frame[34..]).expect("ICMP");
        let header = icmp.header();
        return header.icmp_type.calc_checksum(icmp.payload()) == header.checksum;
    }
    let icmp = etherparse::Icmpv6Slice::from_slice(&frame[54..]).expect("ICMPv6");
    let (source, destination) = (frame[22..38].try_into(), frame[38..54].try_into());
    icmp.is_checksum_valid(source.expect("an address"), destination.expect("an address"))
}

fn seq_of(frame: &[u8], v6: bool) -> u32 {
    let at = SEQ_AT[usize::from(v6)];
    u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"))
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame.splice(12..12, [0x81, 0x00, 0x00, 7]);
    frame
}

fn record_of(port: &Port, key: &flow_key) -> flow {
    port.flow(key).expect("read").expect("a record")
}

fn path_mss(port: &Port, f: &flow) -> u16 {
    let mut memory = HoldMaps::open(port).expect("open the memory").expect("there is a hold");
    memory.adopt(&vsnoop_bpf::Reserve::default()).expect("adopt");
    memory.read(f.hold.into()).path_mss
}

pub fn a_report_of_a_smaller_path_mtu_reaches_the_sender_in_its_window() {
    for (tcp_bytes, tag) in [(8, false), (20, false), (8, true), (20, true)] {
        let port = Attached::with_hold();
        let (key, record) = holding(&port);
        let key = if tag {
            let tagged = flow_key { vlan_outer: 0x1000 | 7, ..key };
            port.insert_flow(&tagged, &flow { key_hash: 0, hold: 0, ..record }).expect("insert");
            tagged
        } else {
            key
        };
        // The host has acknowledged 4000..5000, which the VM has not.
        let sent = report4(4000, 1040, tcp_bytes);
        let sent = if tag { tagged(&sent) } else { sent };
        let (verdict, mut told) = port.run_hook(Hook::FromVm, &sent, 1).expect("run");
        assert_eq!(verdict, NEXT);
        if tag {
            told.drain(12..16);
        }
        assert_eq!(seq_of(&told, false), 5000, "{tcp_bytes} {tag}");
        assert!(is_right(&told), "{tcp_bytes} {tag}");
        let f = record_of(&port, &key);
        assert_eq!(u32::from(f.far) & FAR_TOO_BIG, FAR_TOO_BIG);
        if !tag {
            assert_eq!(path_mss(&port, &f), 1000);
        }
        assert_eq!(port.stats().expect("read").too_big, 1);
    }
    for tcp_bytes in [8, 20] {
        let port = Attached::with_hold();
        engine(&port);
        let key = insert_ipv6_flow(&port);
        let mut segment = Vec::new();
        PacketBuilder::ethernet2([6; 6], [2; 6])
            .ipv6(key.sender_addr, key.vm_addr, 64)
            .tcp(40000, 80, 4000, 1000)
            .ack(500)
            .write(&mut segment, &[7; 1400])
            .expect("build a segment");
        port.run_hook(Hook::ToVm, &segment, 1).expect("run");
        let sent = report6(&key, 4000, 1400, tcp_bytes);
        assert!(is_right(&sent));
        let (verdict, told) = port.run_hook(Hook::FromVm, &sent, 1).expect("run");
        assert_eq!((verdict, seq_of(&told, true), is_right(&told)), (NEXT, 5400, true));
        assert_eq!(path_mss(&port, &record_of(&port, &key)), 1340);
    }
}

pub fn a_report_that_cannot_be_verified_passes_untouched() {
    let port = Attached::with_hold();
    let (key, _) = holding(&port);
    let mut damaged = report4(4000, 1040, 20);
    *damaged.last_mut().expect("a byte") ^= 1;
    let mut of_another = report4(4000, 1040, 20);
    of_another[33] ^= 1;
    let mut cut = report4(4000, 1040, 8);
    cut.truncate(60);
    let echo = {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(VM, SENDER, 64)
            .icmpv4(Icmpv4Type::EchoRequest(IcmpEchoHeader { id: 1, seq: 4000 }))
            .write(&mut frame, &[0; 64])
            .expect("build a ping");
        frame
    };
    let _ = icmpv6::TYPE_PACKET_TOO_BIG;
    for (what, sent) in [
        ("damaged", damaged),
        ("for another host", of_another),
        ("cut", cut),
        ("a ping", echo),
        ("a tiny MTU", report4(4000, 575, 20)),
        ("no smaller than what is sent", report4(4000, 1500, 20)),
        ("about what the VM has acknowledged", report4(3000, 1040, 20)),
        ("about what it was not handed", report4(5000, 1040, 20)),
        ("of another VLAN", tagged(&report4(4000, 1040, 20))),
    ] {
        let (verdict, passed) = port.run_hook(Hook::FromVm, &sent, 1).expect("run");
        assert_eq!((verdict, &passed), (NEXT, &sent), "{what}");
    }
    assert_eq!(record_of(&port, &key).far, 0);
    assert_eq!(port.stats().expect("read").too_big, 0);
}
