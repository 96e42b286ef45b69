//! Invariants of every connection, checked from outside at every ACK.
//!
//! The checks know what the VM's TCP has accepted. All other bytes that the sender has an ACK for
//! must be in the hold, byte by byte.

use vsnoop_flow::testing::segment::*;
use vsnoop_flow::testing::tcp::{Tcp, TcpState};
use vsnoop_flow::types::*;
use vsnoop_hold::rst_repeats::is_reset;
use vsnoop_split::Side;

use crate::downloads::Namespace;
use crate::frame::Frame;
use crate::guest::Progress;
use crate::host::{Vm, described};
use crate::wire::Path;

/// The highest ACK and right edge that the sender of a connection received.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Highest position that was acknowledged.
    pub acked: u64,
    /// Highest right edge.
    pub edge: u64,
    /// ACKs of bytes that were only held.
    pub early: u64,
    /// The sender receives the VM's stream: the highest position that the VM was told of, and ACKs
    /// of bytes that were only held.
    pub vm_acked: u64,
    pub vm_early: u64,
    /// The port has been attached since, and its packets keep their order.
    pub keeps_its_edge: bool,
}

/// At one early ACK in this many the check compares all held bytes; at the others only the bytes
/// that this ACK newly acknowledges.
const WHOLE: u64 = 32;

/// Checks `frame`, which leaves the host for the sender.
pub fn told(
    told: &mut Told,
    (vm, sockets): (&mut Vm, Option<&Namespace>),
    c: usize,
    frame: &Frame,
    s: &Seg,
    sender: &Tcp,
    path: &Path,
) {
    assert_eq!(frame.bytes[..6], path.next_hop, "{c}: not the way back: {}", described(frame));
    assert_eq!(frame.bytes[6..12], path.vm_mac, "{c}: not from the VM: {}", described(frame));
    if s.has(RST | SYN) || !s.has(ACK) {
        return;
    }
    let progress = vm.guest.progress(c);
    if !progress.is_open {
        return;
    }
    let ack = position(s.ack, sender.cfg.iss, progress.accepted.max(1));
    assert!(ack >= 0, "{c}: an ACK of what was never sent: {}", described(frame));
    let ack = ack as u64;
    if ack > progress.accepted {
        let is_whole = told.early.is_multiple_of(WHOLE) || ack < told.acked;
        let from = if is_whole { progress.accepted } else { told.acked.max(progress.accepted) };
        told.early += 1;
        match sockets.filter(|sockets| sockets.are_any(c)) {
            Some(sockets) => {
                let whose = Stream { iss: sender.cfg.iss, number: 0, bytes: sender.cfg.bytes };
                is_on_its_way(sockets, c, Side::Vm, from, ack, &whose);
            }
            None => is_held(vm, c, from, ack, &progress, sender),
        }
    }
    let scale = if sender.snd_scale == u8::MAX { 0 } else { sender.snd_scale };
    let edge = ack + (u64::from(s.window) << scale);
    // After the sender's FIN the window does not matter, nor that of a probe after a reset.
    let is_reset = |vm: &Vm| vm.flow_of(c).is_some_and(|(_, flow)| is_reset(&flow));
    if ack >= told.acked && told.keeps_its_edge && ack < sender.cfg.bytes + 2 {
        assert!(
            edge + (1 << scale) > told.edge || is_reset(vm),
            "{c}: the edge moved back from {} to {edge}: {} {:?}",
            told.edge,
            described(frame),
            vm.flow_of(c)
        );
    }
    told.acked = told.acked.max(ack);
    told.edge = told.edge.max(edge);
}

/// The stream that an end sends.
struct Stream {
    iss: u32,
    number: u64,
    bytes: u64,
}

/// Checks `frame` of a socket, which is for the VM: what it acknowledges is on its way to `sender`,
/// the peer, or there.
pub fn told_vm(told: &mut Told, sockets: &Namespace, c: usize, s: &Seg, sender: &Tcp, bytes: u64) {
    if s.has(RST | SYN) || !s.has(ACK) || sender.state != TcpState::Open {
        return;
    }
    let ack = position(s.ack, sender.irs, sender.rcv_nxt);
    if ack <= sender.rcv_nxt as i64 {
        return;
    }
    let ack = ack as u64;
    let is_whole = told.vm_early.is_multiple_of(WHOLE) || ack < told.vm_acked;
    let from = if is_whole { sender.rcv_nxt } else { told.vm_acked.max(sender.rcv_nxt) };
    told.vm_early += 1;
    told.vm_acked = told.vm_acked.max(ack);
    let whose = Stream { iss: sender.irs, number: 1, bytes };
    is_on_its_way(sockets, c, Side::Peer, from, ack, &whose);
}

/// Checks what both ends of a split connection were told of: all that the other has not received is
/// on its way. `accepted`: what the VM has received.
pub fn are_on_their_way(
    told: &Told,
    sockets: &Namespace,
    c: usize,
    accepted: u64,
    sender: &Tcp,
    bytes: u64,
) {
    if told.vm_acked > sender.rcv_nxt {
        let whose = Stream { iss: sender.irs, number: 1, bytes };
        is_on_its_way(sockets, c, Side::Peer, sender.rcv_nxt, told.vm_acked, &whose);
    }
    if told.acked > accepted {
        let whose = Stream { iss: sender.cfg.iss, number: 0, bytes: sender.cfg.bytes };
        is_on_its_way(sockets, c, Side::Vm, accepted, told.acked, &whose);
    }
}

/// Checks that sockets and pipes of a split connection have all bytes from `from` up to `ack` that
/// are for the end at `side`, and the FIN.
fn is_on_its_way(sockets: &Namespace, c: usize, side: Side, from: u64, ack: u64, whose: &Stream) {
    let is_fin = ack == whose.bytes + 2;
    assert!(!is_fin || sockets.has_fin(c, side), "{c}: a FIN is acknowledged, and not on its way");
    let (from, end) = (from.max(1), ack - u64::from(is_fin));
    if end <= from {
        return;
    }
    let at = |position: u64| whose.iss.wrapping_add(position as u32);
    let Some(bytes) = sockets.holds(c, side, at(from), at(end)) else {
        panic!("{c}: {end} is acknowledged, the {side:?} has {from}, not all between is held")
    };
    for (byte, at) in bytes.iter().zip(from..) {
        assert_eq!(*byte, content(whose.number, at), "{c}: byte {at} is held wrong");
    }
}

/// Checks that the hold has all bytes that the VM has not accepted, up to `ack`; compares the bytes
/// from `from` on.
fn is_held(vm: &mut Vm, c: usize, from: u64, ack: u64, progress: &Progress, sender: &Tcp) {
    let Some((_, f)) = vm.flow_of(c) else {
        panic!("{c}: {ack} is acknowledged, the VM has {}, there is no record", progress.accepted)
    };
    let accepted = progress.accepted;
    let Some(h) = vm.hold(f.hold.into()).map(|h| *h) else {
        panic!("{c}: {ack} is acknowledged, the VM has {accepted}, nothing is held: {f:?}")
    };
    let at = |s: seq| position(s.v, sender.cfg.iss, accepted.max(1));
    let is_fin = ack == sender.cfg.bytes + 2;
    if is_fin {
        assert!(u32::from(h.flags) & HOLD_FIN != 0, "{c}: a FIN is acknowledged: {f:?} {h:?}");
    }
    let end = if is_fin { ack - 1 } else { ack };
    assert!(at(h.tail) >= end as i64, "{c}: {end} is acknowledged, {} kept: {h:?}", at(h.tail));
    assert!(at(h.first) <= accepted as i64, "{c}: {accepted} is not kept: {f:?} {h:?}");
    let (base, mut chunk) = (seq::new((h.front >> 32) as u32), h.front as u32);
    let mut position = at(base);
    assert!(position <= accepted as i64, "{c}: {accepted} was given back: {f:?} {h:?}");
    for _ in 0..h.chunks {
        let Some((link, bytes)) = vm.chunk(chunk) else { panic!("{c}: there is no chunk {chunk}") };
        let wanted =
            (from.max(1) as i64).max(position)..(end as i64).min(position + bytes.len() as i64);
        for at in wanted {
            let byte = bytes[(at - position) as usize];
            assert_eq!(byte, content(0, at as u64), "{c}: byte {at} is kept wrong");
        }
        position += i64::from(HOLD_CHUNK);
        chunk = link.next;
    }
    assert!(position >= end as i64, "{c}: {end} is acknowledged, the chain ends at {position}");
}
