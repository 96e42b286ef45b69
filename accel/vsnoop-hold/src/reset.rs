//! Resets a connection at both ends.
//!
//! If a RST is lost, or does not match the receiver's RCV.NXT, the record stays in RESET, and the
//! hooks answer the next packet of either end with RST.

use crate::giving_up::Reason;
use vsnoop_flow::seq;
use vsnoop_flow::types::{self, flow, flow_key, hold, reset_reason};

use crate::connections::{Connections, Place, mark_reset};
use crate::outstanding::outstanding_bytes;
use crate::segment::{EndSegment, frame, frame_by_way_of, frame_of_host, packet};

/// Resets the connection and counts the reason; false if the VM has acknowledged something since
/// `flow` was read. `now_ns`: CLOCK_MONOTONIC.
///
/// `tell` sends the RSTs ([`send`]), with whatever must be looked up for them; false if the
/// sender's has not left, which is counted. It is called when the record is in RESET: no failure of
/// it keeps a connection from being reset and counted.
pub fn reset<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    why: reset_reason::Type,
    now_ns: u64,
    tell: impl FnOnce(&mut C, &flow_key, &flow) -> bool,
) -> Result<bool, C::Error> {
    if !mark_reset(connections, key, flow, now_ns)? {
        return Ok(false);
    }
    let is_sender_told = tell(connections, key, flow);
    connections.count_reset(why, 1, outstanding_bytes(flow))?;
    if !is_sender_told {
        connections.count_unsent()?;
    }
    if is_of_the_host(why) {
        connections.note_failure(u16::from_be(key.vm_port), now_ns)?;
    }
    Ok(true)
}

/// Resets the connection of this hold, which the engine gives up. `now_ns` and `tell`: as in
/// [`reset`].
pub fn reset_held_flow<C: Connections>(
    connections: &mut C,
    hold: &hold,
    reason: Reason,
    now_ns: u64,
    tell: impl FnOnce(&mut C, &flow_key, &flow) -> bool,
) -> Result<ResetOutcome, C::Error> {
    let Some(flow) = connections.flow(&hold.key)? else { return Ok(ResetOutcome::RecordGone) };
    let why = match reason {
        Reason::Refused => reset_reason::RESET_REFUSED,
        Reason::Silent => reset_reason::RESET_SILENT,
        Reason::RolledBack => reset_reason::RESET_ROLLED_BACK,
    };
    let is_reset = reset(connections, &hold.key, &flow, why, now_ns, tell)?;
    Ok(if is_reset { ResetOutcome::Reset } else { ResetOutcome::VmAdvanced })
}

/// Result of [`reset_held_flow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetOutcome {
    /// It was reset.
    Reset,
    /// Its record is gone.
    RecordGone,
    /// The VM has acknowledged something meanwhile; nothing was done.
    VmAdvanced,
}

/// Could the connection have succeeded without vsnoop? Not if its VM is gone or was rolled back.
fn is_of_the_host(why: reset_reason::Type) -> bool {
    use reset_reason::{RESET_ENGINE_GONE, RESET_REFUSED, RESET_SILENT};
    matches!(why, RESET_REFUSED | RESET_SILENT | RESET_ENGINE_GONE)
}

/// A bridge, as a device of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridge {
    pub ifindex: u32,
    pub mac: [u8; 6],
}

/// How a RST reaches the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayToVm {
    Tap,
    /// The VM is behind this port, with the bridge's address as the source: the sender may be
    /// behind it, too, and its address must not be learned here.
    Port(u32, Bridge),
}

/// How a RST reaches the sender: where the VM's own segments went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the tap, with the VM's address.
    Tap,
    /// By the tap, with the bridge's address, into the VLAN of the tap: the VM is behind another
    /// port of a bridge that filters VLANs.
    IntoBridge(Bridge),
    /// Out of the bridge of a tap that passes nothing, with the bridge's address.
    OutOfBridge(Bridge),
    /// The next hop is the host itself: up its stack, which is the sender, routes to it or
    /// translates addresses. The bridge does not see the frame, which has the VM's address.
    UpFromBridge(Bridge),
    /// The next hop was the tap itself, which was deleted: by the host's routes.
    Routed,
    /// No way is known.
    None,
}

/// Sends the RST to both ends; also used to repeat it, since an end that only reads would wait for
/// ever after a loss. Returns whether the sender's has left; the hooks send another one later.
pub fn send<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    vm: WayToVm,
    way: Way,
) -> bool {
    to_vm(connections, key, flow, vm, EndSegment::ResetVm);
    send_to_sender(connections, key, flow, way)
}

/// Has both ends of a connection that was reset say whether they still have it: the RST may not
/// have been the one that they expect. The hooks answer them.
pub fn probe<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    vm: WayToVm,
    way: Way,
) {
    to_vm(connections, key, flow, vm, EndSegment::ProbeVm);
    to_sender(connections, key, flow, way, EndSegment::ProbeSender);
}

/// Sends the RST to the sender alone. Returns whether it has left.
pub fn send_to_sender<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    way: Way,
) -> bool {
    to_sender(connections, key, flow, way, EndSegment::ResetSender)
}

/// Most segments on their way to a sender of which [`send_to_sender_without_answer`] thinks.
const IN_FLIGHT: u32 = 16;

/// Sends RSTs to the sender whose answers cannot come back, because the tap is gone. The sender
/// heeds only a RST with the SEQ that it expects (RFC 5961), and may not have got the VM's last
/// segments: so there is a RST at SND.NXT, one at each whole segment below, and one at SND.UNA.
pub fn send_to_sender_without_answer<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    way: Way,
) -> bool {
    let mut is_sent = false;
    for snd_nxt in expected(flow) {
        is_sent |= send_to_sender(connections, key, &types::flow { snd_nxt, ..*flow }, way);
    }
    is_sent
}

/// The sequence numbers that the sender may expect of the VM next.
fn expected(flow: &flow) -> impl Iterator<Item = seq> {
    let (nxt, mss) = (flow.snd_nxt, u32::from(flow.mss));
    let below = (0..=IN_FLIGHT).map(move |segments| seq::new(nxt.v.wrapping_sub(segments * mss)));
    below.chain([flow.snd_una])
}

fn to_vm<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    way: WayToVm,
    segment: EndSegment,
) {
    let sent = match way {
        WayToVm::Tap => connections.send(Place::ToVm, &frame(key, flow, segment)),
        WayToVm::Port(ifindex, bridge) => {
            let frame = frame_by_way_of(key, flow, bridge.mac, segment);
            connections.send(Place::OutOf(ifindex), &frame)
        }
    };
    if let Err(error) = sent {
        tracing::debug!("{segment:?}: {error:#}");
    }
}

/// Returns whether it has left.
fn to_sender<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    way: Way,
    segment: EndSegment,
) -> bool {
    let of_host = |bridge: Bridge| frame_of_host(key, flow, bridge.mac, segment);
    let (place, frame) = match way {
        Way::Tap => (Place::FromVm, frame(key, flow, segment)),
        Way::IntoBridge(bridge) => (Place::FromVm, of_host(bridge)),
        Way::OutOfBridge(bridge) => (Place::OutOf(bridge.ifindex), of_host(bridge)),
        Way::UpFromBridge(Bridge { ifindex, mac }) => {
            (Place::InBy(ifindex), frame_by_way_of(key, flow, mac, segment))
        }
        Way::Routed => (Place::Routed, packet(key, flow, segment)),
        Way::None => return false,
    };
    let sent = connections.send(place, &frame);
    if let Err(error) = &sent {
        tracing::debug!("{segment:?}: {error:#}");
    }
    sent.is_ok()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use vsnoop_flow::types::{flow_mode, seq};

    use super::*;

    /// One connection, and what was counted.
    #[derive(Default)]
    struct One {
        flow: flow,
        counted: Vec<(reset_reason::Type, u64)>,
        sent: Vec<(Place, Vec<u8>)>,
        /// Senders whose RST has not left.
        unsent: u32,
        failures: u32,
    }

    impl Connections for One {
        type Error = Infallible;

        fn flows(&mut self) -> Result<Vec<(flow_key, flow)>, Infallible> {
            Ok(vec![(flow_key::default(), self.flow)])
        }

        fn max_flows(&mut self) -> u32 {
            1
        }

        fn flow(&mut self, _: &flow_key) -> Result<Option<flow>, Infallible> {
            Ok(Some(self.flow))
        }

        fn take(&mut self, _: &flow_key) -> Result<Option<flow>, Infallible> {
            Ok(Some(self.flow))
        }

        fn add(&mut self, _: &flow_key, _: &flow) -> Result<bool, Infallible> {
            Ok(false)
        }

        fn put(&mut self, _: &flow_key, flow: &flow) -> Result<(), Infallible> {
            self.flow = *flow;
            Ok(())
        }

        fn replace(&mut self, key: &flow_key, flow: &flow) -> Result<bool, Infallible> {
            self.put(key, flow)?;
            Ok(true)
        }

        fn end_hold(&mut self, _: u32) {}

        fn count_reset(
            &mut self,
            why: reset_reason::Type,
            _: u64,
            bytes: u64,
        ) -> Result<(), Infallible> {
            self.counted.push((why, bytes));
            Ok(())
        }

        fn note_failure(&mut self, _: u16, _: u64) -> Result<(), Infallible> {
            self.failures += 1;
            Ok(())
        }

        fn count_unsent(&mut self) -> Result<(), Infallible> {
            self.unsent += 1;
            Ok(())
        }

        fn send(&mut self, place: Place, frame: &[u8]) -> Result<(), Infallible> {
            self.sent.push((place, frame.to_owned()));
            Ok(())
        }
    }

    const BRIDGE: Bridge = Bridge { ifindex: 7, mac: [2, 0, 0, 0, 0, 3] };
    const VM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const NEXT_HOP: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// The place and the frame with which a sender is told.
    fn to_sender(way: Way) -> Vec<(Place, Vec<u8>)> {
        let mut key = flow_key { vm_mac: VM_MAC, ..flow_key::default() };
        // IPv4, mapped (RFC 4291, section 2.5.5.2).
        for address in [&mut key.sender_addr, &mut key.vm_addr] {
            address[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        }
        let flow = flow { next_hop: NEXT_HOP, ..flow::default() };
        let mut one = One::default();
        let is_sent = send_to_sender(&mut one, &key, &flow, way);
        assert_eq!(is_sent, !one.sent.is_empty());
        one.sent
    }

    #[test]
    fn a_sender_that_cannot_answer_is_sent_a_rst_at_each_seq_that_it_may_expect() {
        let (snd_una, snd_nxt) = (seq::new(u32::MAX - 7), seq::new(250));
        let flow = flow { mss: 100, snd_una, snd_nxt, ..flow::default() };
        let found: Vec<_> = expected(&flow).map(|seq| seq.v).collect();
        assert_eq!(found[..4], [250, 150, 50, u32::MAX - 49], "the numbers wrap");
        assert_eq!((found.len(), found[17]), (18, u32::MAX - 7));
    }

    #[test]
    fn the_rst_for_a_vm_that_is_gone_does_not_claim_its_address() {
        let sent = to_sender(Way::OutOfBridge(BRIDGE));
        let [(Place::OutOf(7), frame)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((&frame[..6], &frame[6..12]), (&NEXT_HOP[..], &BRIDGE.mac[..]));
    }

    #[test]
    fn the_rst_into_a_vlan_enters_at_the_tap_and_does_not_claim_the_vms_address() {
        let sent = to_sender(Way::IntoBridge(BRIDGE));
        let [(Place::FromVm, frame)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((&frame[..6], &frame[6..12]), (&NEXT_HOP[..], &BRIDGE.mac[..]));
    }

    #[test]
    fn the_rst_to_a_vm_behind_another_port_does_not_claim_the_senders_address() {
        let mut one = One::default();
        let key = flow_key { vm_mac: VM_MAC, ..flow_key::default() };
        let flow = flow { next_hop: NEXT_HOP, ..flow::default() };
        send(&mut one, &key, &flow, WayToVm::Port(9, BRIDGE), Way::None);
        let [(Place::OutOf(9), frame)] = &one.sent[..] else { panic!("{:?}", one.sent) };
        assert_eq!((&frame[..6], &frame[6..12]), (&VM_MAC[..], &BRIDGE.mac[..]));
    }

    #[test]
    fn the_rst_for_the_host_itself_goes_up_its_stack() {
        let sent = to_sender(Way::UpFromBridge(BRIDGE));
        let [(Place::InBy(7), frame)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((&frame[..6], &frame[6..12]), (&BRIDGE.mac[..], &VM_MAC[..]));
    }

    #[test]
    fn the_rst_of_a_routed_tap_that_was_deleted_is_an_ip_packet() {
        let sent = to_sender(Way::Routed);
        let [(Place::Routed, packet)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((packet[0], packet.len()), (0x45, 40));
        assert!(to_sender(Way::None).is_empty());
    }

    fn is_reset(one: &One) -> bool {
        u32::from(one.flow.mode) == flow_mode::FLOW_RESET
    }

    #[test]
    fn a_connection_whose_ends_cannot_be_told_is_reset_and_counted() {
        let mut one = One::default();
        one.flow.next_seq = seq::new(700);
        let mut told = 0;
        let Ok(outcome) =
            reset_held_flow(&mut one, &hold::default(), Reason::Silent, 1, |one, _, _| {
                // A look-up for the RSTs may fail: the record is in RESET by then.
                assert!(is_reset(one));
                told += 1;
                false
            });
        assert_eq!((outcome, told), (ResetOutcome::Reset, 1));
        assert!(is_reset(&one));
        assert_eq!(one.counted, [(reset_reason::RESET_SILENT, 700)]);
        assert_eq!((one.failures, one.unsent), (1, 1));
    }

    #[test]
    fn a_connection_that_is_in_reset_is_not_counted_again() {
        let mut one = One::default();
        one.flow.mode = flow_mode::FLOW_RESET as u8;
        let flow = one.flow;
        let Ok(is_reset) = reset(
            &mut one,
            &flow_key::default(),
            &flow,
            reset_reason::RESET_NO_READER,
            1,
            |_, _, _| panic!("nothing to tell"),
        );
        assert!(!is_reset);
        assert!(one.counted.is_empty());
    }
}
