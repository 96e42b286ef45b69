//! Ports on taps, and the frames of one connection.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use vsnoop_bpf::types::{HOLD_OVER, flow, flow_key, flow_mode, port_run, seq};
use vsnoop_bpf::{AttachSpec, HoldMaps, Hook, Port, Reserve};

pub const TAP: &str = "t0";
pub const HOLD_CHUNKS: u32 = 64;
/// Verdicts of a hook.
pub const NEXT: i32 = -1;
pub const DROP: i32 = 2;
pub const REDIRECT: i32 = 7;

pub fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("run ip");
    assert!(status.success(), "ip {args}");
}

/// Taps in a namespace of the calling thread, which ends with it.
pub fn taps(count: usize) -> Vec<AttachSpec> {
    // SAFETY: moves only the calling thread. Those that it starts move to one of their own.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "cannot make a network namespace");
    let netns = fs::metadata("/proc/thread-self/ns/net").expect("this namespace").ino();
    let tap = |number| {
        let name = format!("t{number}");
        ip(&format!("tuntap add dev {name} mode tap vnet_hdr"));
        ip(&format!("link set {name} up"));
        let c_name = CString::new(name.as_str()).expect("no NUL in a name");
        // SAFETY: a C string that outlives the call.
        let ifindex = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        AttachSpec::new(ifindex, &name, netns)
    };
    (0..count).map(tap).collect()
}

pub fn tap() -> AttachSpec {
    taps(1).remove(0)
}

/// Attached while it lives.
pub struct Attached(pub Option<Port>);

impl Attached {
    pub fn active() -> Self {
        Self::active_at(tap(), 0)
    }

    pub fn with_hold() -> Self {
        Self::active_at(tap(), HOLD_CHUNKS)
    }

    pub fn active_at(mut spec: AttachSpec, hold_chunks: u32) -> Self {
        spec.policy.run = port_run::PORT_ACCELERATE;
        spec.policy.hold_chunks = hold_chunks;
        Attached(Some(Port::attach(&spec).unwrap_or_else(|error| panic!("{error}"))))
    }
}

impl std::ops::Deref for Attached {
    type Target = Port;

    fn deref(&self) -> &Port {
        self.0.as_ref().expect("attached until dropped")
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(port) = self.0.take() {
            port.detach().expect("detach");
        }
    }
}

pub const SENDER: [u8; 4] = [10, 1, 0, 1];
pub const VM: [u8; 4] = [10, 1, 0, 2];

/// A segment of the VM.
pub fn of_vm(
    seq: u32,
    ack: u32,
    window: u16,
    options: &[TcpOptionElement],
    data: &[u8],
) -> Vec<u8> {
    of_vm_to(40000, seq, ack, window, options, data)
}

pub fn of_vm_to(
    sender_port: u16,
    seq: u32,
    ack: u32,
    window: u16,
    options: &[TcpOptionElement],
    data: &[u8],
) -> Vec<u8> {
    let ends = [([2; 6], VM, 80), ([4; 6], SENDER, sender_port)];
    frame(ends, [seq, ack], window, options, data)
}

/// A flow of which the host has acknowledged 3000 bytes more than the VM.
pub fn ahead(port: &Port) {
    let (key, record) = record();
    port.insert_flow(&key, &record).expect("insert a flow");
}

pub fn record() -> (flow_key, flow) {
    let mapped = |v4: [u8; 4]| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets();
    let key = flow_key {
        sender_addr: mapped(SENDER),
        vm_addr: mapped(VM),
        sender_port: 40000u16.to_be(),
        vm_port: 80u16.to_be(),
        vm_mac: [2; 6],
        ..Default::default()
    };
    let at = |v| seq { v };
    let record = flow {
        vm_seq: at(1000),
        next_seq: at(4000),
        high_seq: at(4000),
        right_edge: at(11000),
        adv_edge: at(11000),
        snd_nxt: at(500),
        snd_una: at(500),
        mss: 1448,
        heard_at: (now_ns() >> 20) as u32,
        next_hop: [4; 6],
        traffic: 0xb8 << 20,
        mode: flow_mode::FLOW_ACTIVE as u8,
        flags: vsnoop_bpf::types::FLOW_F_SCALE_KNOWN as u16,
        ..Default::default()
    };
    (key, record)
}

/// A segment of the sender, from 4000 on.
pub fn of_sender(seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
    of_sender_at(40000, seq, ack, data)
}

pub fn of_sender_at(port: u16, seq: u32, ack: u32, data: &[u8]) -> Vec<u8> {
    of_sender_with(port, seq, ack, &[], data)
}

pub fn of_sender_with(
    port: u16,
    seq: u32,
    ack: u32,
    options: &[TcpOptionElement],
    data: &[u8],
) -> Vec<u8> {
    let ends = [([6; 6], SENDER, port), ([2; 6], VM, 80)];
    frame(ends, [seq, ack], 1000, options, data)
}

/// A segment from the first of two ends, which have MAC address, address and port, to the second.
/// `numbers`: SEQ and ACK.
fn frame(
    ends: [([u8; 6], [u8; 4], u16); 2],
    numbers: [u32; 2],
    window: u16,
    options: &[TcpOptionElement],
    data: &[u8],
) -> Vec<u8> {
    let [(from_mac, from, from_port), (to_mac, to, to_port)] = ends;
    let builder = PacketBuilder::ethernet2(from_mac, to_mac)
        .ipv4(from, to, 64)
        .tcp(from_port, to_port, numbers[0], window)
        .ack(numbers[1])
        .options(options)
        .expect("options fit");
    let mut frame = Vec::new();
    builder.write(&mut frame, data).expect("build a segment");
    frame
}

pub fn syn_of_vm(vm_port: u16, sender_port: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4(VM, SENDER, 64)
        .tcp(vm_port, sender_port, 77_000, 64000)
        .syn();
    let mut syn = Vec::new();
    builder.write(&mut syn, &[]).expect("build a SYN");
    syn
}

pub fn rst_of_vm(vm_port: u16, sender_port: u16) -> Vec<u8> {
    let mut rst = Vec::new();
    PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4(VM, SENDER, 64)
        .tcp(vm_port, sender_port, 500, 0)
        .rst()
        .write(&mut rst, &[])
        .expect("build a RST");
    rst
}

pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `now` alone.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) }, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// An engine that has just given the port its first memory.
pub fn engine(port: &Port) -> HoldMaps {
    let mut memory = HoldMaps::open(port).expect("open the memory").expect("the port has a hold");
    memory.adopt(&Reserve::default()).expect("adopt");
    assert!(memory.hold_count() > 0, "the first connection finds no memory");
    // It stays alive for as long as the test may take.
    memory.heartbeat(now_ns() + 3_600_000_000_000);
    memory
}

/// A flow with held bytes: no process reads the tap, so it refuses frames.
pub fn holding(port: &Port) -> (flow_key, flow) {
    let (key, active) = record();
    engine(port);
    let record = flow { vm_seq: active.next_seq, ..active };
    port.insert_flow(&key, &record).expect("insert a flow");
    let frame = of_sender(4000, 500, &[7; 1000]);
    let (verdict, reply) = port.run_hook(Hook::ToVm, &frame, 1).expect("run");
    assert_eq!(verdict, REDIRECT, "acknowledged");
    assert_eq!(checked(&reply).0.0, 5000);
    let record = port.flow(&key).expect("read").expect("a record");
    assert_eq!(u32::from(record.mode), flow_mode::FLOW_HOLDING);
    assert_ne!(record.hold, 0);
    assert_eq!((record.high_seq.v, record.next_seq.v), (4000, 5000));
    (key, record)
}

/// Is the engine told that the stream of this flow's hold has ended?
pub fn is_over(port: &Port, found: &flow) -> bool {
    let memory = HoldMaps::open(port).expect("open the memory").expect("there is a hold");
    u32::from(memory.read(found.hold.into()).flags) & HOLD_OVER != 0
}

/// Puts the record of an active connection over IPv6 into the table, of which the VM has
/// acknowledged everything.
pub fn insert_ipv6_flow(port: &Port) -> flow_key {
    let address = |last| {
        let mut address = [0; 16];
        (address[0], address[15]) = (0xfd, last);
        address
    };
    let (key, active) = record();
    let key = flow_key { sender_addr: address(1), vm_addr: address(2), ..key };
    port.insert_flow(&key, &flow { vm_seq: active.next_seq, ..active }).expect("insert a flow");
    key
}

/// ACK and window, and whether the TCP checksum is right.
pub fn checked(frame: &[u8]) -> ((u32, u16), bool) {
    let packet = SlicedPacket::from_ethernet(frame).expect("parse");
    let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport)
    else {
        panic!("no TCP over IPv4")
    };
    let right = tcp
        .to_header()
        .calc_checksum_ipv4_raw(ip.header().source(), ip.header().destination(), tcp.payload())
        .expect("checksum");
    ((tcp.acknowledgment_number(), tcp.window_size()), right == tcp.checksum())
}

/// The SACK blocks of a frame, which may have that option once.
pub fn sack_blocks(frame: &[u8]) -> Vec<(u32, u32)> {
    let packet = SlicedPacket::from_ethernet(frame).expect("parse");
    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
    let mut options = tcp.options_iterator().filter_map(|option| {
        match option.expect("options stay well-formed") {
            TcpOptionElement::SelectiveAcknowledgement(first, rest) => Some((first, rest)),
            _ => None,
        }
    });
    let Some((first, rest)) = options.next() else { return Vec::new() };
    assert_eq!(options.next(), None, "two options");
    std::iter::once(first).chain(rest.into_iter().flatten()).collect()
}
