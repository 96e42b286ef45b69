//! Flows that the benchmarks put on record, and their packets.
//!
//! Flow number `n` comes from an address and a port of its own, to port 80 of the VM. Segments
//! carry timestamps, as nearly all do.

use anyhow::{Context, Result};
use etherparse::{PacketBuilder, PacketBuilderStep, TcpHeader, TcpOptionElement};
use vsnoop_bpf::types::{self, flow, flow_key, flow_mode, seq};

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
pub fn data(n: u32, at: u32, payload: &[u8], timestamps: Timestamps) -> Result<Vec<u8>> {
    let (addr, port) = sender(n);
    let mut tcp = TcpHeader::new(port, VM_PORT, at, 502);
    (tcp.ack, tcp.acknowledgment_number) = (true, VM_SEQ);
    let ip = PacketBuilder::ethernet2(SENDER_MAC, VM_MAC).ipv4(addr, VM, 64);
    built(ip, tcp, timestamps, payload)
}

/// The VM's ACK of everything before `at`; `window` in bytes.
pub fn ack(n: u32, at: u32, window: u32, timestamps: Timestamps) -> Result<Vec<u8>> {
    let (addr, port) = sender(n);
    let mut tcp = TcpHeader::new(VM_PORT, port, VM_SEQ, (window >> SCALE) as u16);
    (tcp.ack, tcp.acknowledgment_number) = (true, at);
    let ip = PacketBuilder::ethernet2(VM_MAC, SENDER_MAC).ipv4(VM, addr, 64);
    built(ip, tcp, timestamps, &[])
}

fn built(
    ip: PacketBuilderStep<etherparse::IpHeaders>,
    mut tcp: TcpHeader,
    Timestamps(value, echo): Timestamps,
    payload: &[u8],
) -> Result<Vec<u8>> {
    use TcpOptionElement::{Noop, Timestamp};
    tcp.set_options(&[Noop, Noop, Timestamp(value, echo)]).context("options of a segment")?;
    let builder = ip.tcp_header(tcp);
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut frame, payload).context("building a segment")?;
    Ok(frame)
}

/// What an ACK tells the sender of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub flow: u32,
    /// Right edge of the window.
    pub edge: u32,
    pub tsval: u32,
}

/// Reads a frame of the form that [`ack`] makes.
pub fn told(frame: &[u8]) -> Option<Told> {
    const IP: usize = 14;
    const TCP: usize = IP + 20;
    let word = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
    let [_, high, middle, low] = word(IP + 16)?.to_be_bytes();
    let window = word(TCP + 12)? & 0xffff;
    Some(Told {
        flow: u32::from_be_bytes([0, high, middle, low]),
        edge: word(TCP + 8)?.wrapping_add(window << SCALE),
        tsval: word(TCP + 24)?,
    })
}
