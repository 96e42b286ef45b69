//! Flows that the benchmarks put on record, and their packets.
//!
//! Flow number `n` comes from an address and a port of its own, to port 80 of the VM. Segments
//! carry timestamps, as nearly all do.

use vsnoop_bpf::types::{self, flow, flow_key, flow_mode, seq};
use vsnoop_packet::builder::{Addresses, Ethernet, Route, TcpFrame};
use vsnoop_packet::headers::Headers;
use vsnoop_packet::options;

/// Payload of a full segment: of an Ethernet frame of 1500 bytes, with timestamps.
pub const MSS: u32 = 1448;
/// The VM's window scale.
pub const SCALE: u8 = 3;
/// Where each flow begins.
pub const BEGIN: u32 = 1000;

pub const VM: [u8; 4] = [10, 255, 0, 1];
pub const VM_PORT: u16 = 80;
pub const SENDER_MAC: [u8; 6] = [2; 6];
pub const VM_MAC: [u8; 6] = [4; 6];
/// The VM's own sequence number: it sends no data.
const VM_SEQ: u32 = 5000;

/// Address and port of a flow's sender.
pub fn sender(n: u32) -> ([u8; 4], u16) {
    ([10, (n >> 16) as u8, (n >> 8) as u8, n as u8], 1024 + (n % 50_000) as u16)
}

/// The flow's number, by its sender's address in a key.
pub fn number(sender_addr: [u8; 16]) -> u32 {
    let [.., high, middle, low] = sender_addr;
    u32::from_be_bytes([0, high, middle, low])
}

pub fn key(n: u32) -> flow_key {
    let mapped = |v4: [u8; 4]| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets();
    let (addr, port) = sender(n);
    flow_key {
        sender_addr: mapped(addr),
        vm_addr: mapped(VM),
        sender_port: port.to_be(),
        vm_port: VM_PORT.to_be(),
        vm_mac: VM_MAC,
        ..Default::default()
    }
}

/// A flow that has just begun. `window`: what the VM takes, `shown`: what the sender was shown of
/// it.
pub fn record(window: u32, shown: u32) -> flow {
    let at = |v| seq { v };
    flow {
        next_seq: at(BEGIN),
        vm_seq: at(BEGIN),
        high_seq: at(BEGIN),
        snd_nxt: at(VM_SEQ),
        snd_una: at(VM_SEQ),
        right_edge: at(BEGIN + window),
        adv_edge: at(BEGIN + shown),
        mode: flow_mode::FLOW_ACTIVE as u8,
        flags: (types::FLOW_F_SCALE_KNOWN | types::FLOW_F_TIMESTAMPS | types::FLOW_F_SACK) as u16,
        scale: SCALE,
        mss: MSS as u16,
        next_hop: SENDER_MAC,
        ..Default::default()
    }
}

/// TSval and TSecr.
#[derive(Clone, Copy, Debug)]
pub struct Timestamps(pub u32, pub u32);

/// A segment of the sender's, with `payload` at sequence number `at`.
pub fn data(n: u32, at: u32, payload: &[u8], Timestamps(value, echo): Timestamps) -> Vec<u8> {
    let options = options::timestamps(value, echo);
    TcpFrame {
        sequence: at,
        acknowledgment: VM_SEQ,
        window: 502,
        options: &options,
        ..of_sender(n)
    }
    .build(payload)
}

/// A segment of the sender's without numbers or options.
pub fn of_sender(n: u32) -> TcpFrame<'static> {
    let (addr, port) = sender(n);
    let ethernet = Ethernet { source: SENDER_MAC, destination: VM_MAC, ..Ethernet::default() };
    TcpFrame::new(Route::new(ethernet, Addresses::V4(addr, VM)), port, VM_PORT)
}

/// The VM's ACK of everything before `at`; `window` in bytes.
pub fn ack(n: u32, at: u32, window: u32, Timestamps(value, echo): Timestamps) -> Vec<u8> {
    let (addr, port) = sender(n);
    let ethernet = Ethernet { source: VM_MAC, destination: SENDER_MAC, ..Ethernet::default() };
    TcpFrame {
        sequence: VM_SEQ,
        acknowledgment: at,
        window: (window >> SCALE) as u16,
        options: &options::timestamps(value, echo),
        ..TcpFrame::new(Route::new(ethernet, Addresses::V4(VM, addr)), VM_PORT, port)
    }
    .build(&[])
}

/// The fields of an ACK that change its sender's state.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub flow: u32,
    /// Right edge of the window.
    pub edge: u32,
    pub tsval: u32,
}

/// Reads a frame of the form that [`ack`] makes.
pub fn told(frame: &[u8]) -> Option<Told> {
    let headers = Headers::parse(frame)?;
    let tcp = headers.tcp_header(frame)?;
    let [.., high, middle, low] = *headers.addresses(frame).first_chunk::<8>()?;
    Some(Told {
        flow: u32::from_be_bytes([0, high, middle, low]),
        edge: tcp.acknowledgment.get().wrapping_add(u32::from(tcp.window.get()) << SCALE),
        tsval: headers.tcp_options(frame).next()?.word(0)?,
    })
}
