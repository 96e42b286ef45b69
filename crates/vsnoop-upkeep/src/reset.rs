//! Resets a connection at both ends.
//!
//! If a RST is lost, or does not match the receiver's RCV.NXT, the record stays in RESET, and the
//! hooks answer the next packet of either end with RST.

use vsnoop_flow::types::{flow, flow_key, hold, reset_reason};
use vsnoop_hold::Reason;

use crate::connections::{Connections, mark_reset};
use crate::held::outstanding_bytes;
use crate::segment::{ResetSegment, frame, frame_of_host};

/// Resets the connection and counts the reason; false if the VM has acknowledged something since
/// `flow` was read. `now_ns`: CLOCK_MONOTONIC.
///
/// `tell` sends the RSTs ([`send`]), with whatever must be looked up for them. It is called when
/// the record is in RESET: no failure of it keeps a connection from being reset and counted.
pub fn reset<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    why: reset_reason::Type,
    now_ns: u64,
    tell: impl FnOnce(&mut C, &flow_key, &flow),
) -> Result<bool, C::Error> {
    if !mark_reset(connections, key, flow, now_ns)? {
        return Ok(false);
    }
    tell(connections, key, flow);
    connections.count_reset(why, 1, outstanding_bytes(flow))?;
    if is_of_the_host(why) {
        connections.note_failure(u16::from_be(key.vm_port), now_ns)?;
    }
    Ok(true)
}

/// Resets the connection of this hold, which the engine gives up. `now_ns` and `tell`: as in
/// [`reset`].
pub fn give_up<C: Connections>(
    connections: &mut C,
    hold: &hold,
    reason: Reason,
    now_ns: u64,
    tell: impl FnOnce(&mut C, &flow_key, &flow),
) -> Result<GivenUp, C::Error> {
    let Some(flow) = connections.flow(&hold.key)? else { return Ok(GivenUp::Gone) };
    let why = match reason {
        Reason::Refused => reset_reason::RESET_REFUSED,
        Reason::Silent => reset_reason::RESET_SILENT,
        Reason::RolledBack => reset_reason::RESET_ROLLED_BACK,
    };
    let is_reset = reset(connections, &hold.key, &flow, why, now_ns, tell)?;
    Ok(if is_reset { GivenUp::Reset } else { GivenUp::Advanced })
}

/// Result of [`give_up`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenUp {
    /// It was reset.
    Reset,
    /// Its record is gone.
    Gone,
    /// The VM has acknowledged something meanwhile; nothing was done.
    Advanced,
}

/// Could the connection have succeeded without vsnoop? Not if its VM is gone or was rolled back.
fn is_of_the_host(why: reset_reason::Type) -> bool {
    use reset_reason::{RESET_ENGINE_GONE, RESET_REFUSED, RESET_SILENT};
    matches!(why, RESET_REFUSED | RESET_SILENT | RESET_ENGINE_GONE)
}

/// The bridge of a tap whose VM is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridge {
    pub ifindex: u32,
    pub mac: [u8; 6],
}

/// Sends the RST to both ends; also used to repeat it, since an end that only reads would wait for
/// ever after a loss. A failure is not reported: the hooks send a RST later.
///
/// `bridge`: the bridge of a tap without a reader. It drops frames from such a tap: the RST to the
/// sender then leaves through the bridge itself, with the bridge's address.
pub fn send<C: Connections>(
    connections: &mut C,
    key: &flow_key,
    flow: &flow,
    bridge: Option<Bridge>,
) {
    for segment in [ResetSegment::ResetVm, ResetSegment::ResetSender] {
        let sent = match bridge {
            Some(Bridge { ifindex, mac }) if segment.is_for_sender() => {
                connections.send_out_of(ifindex, &frame_of_host(key, flow, mac))
            }
            _ => connections.inject(&frame(key, flow, segment), segment.is_for_sender()),
        };
        if let Err(error) = sent {
            tracing::debug!("{segment:?}: {error:#}");
        }
    }
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
        /// Frames that left through a bridge, by its index.
        by_bridge: Vec<(u32, Vec<u8>)>,
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

        fn inject(&mut self, _: &[u8], _: bool) -> Result<(), Infallible> {
            Ok(())
        }

        fn send_out_of(&mut self, ifindex: u32, frame: &[u8]) -> Result<(), Infallible> {
            self.by_bridge.push((ifindex, frame.to_owned()));
            Ok(())
        }
    }

    #[test]
    fn the_rst_for_a_vm_that_is_gone_does_not_claim_its_address() {
        let vm_mac = [2, 0, 0, 0, 0, 1];
        let mut key = flow_key { vm_mac, ..flow_key::default() };
        // IPv4, mapped (RFC 4291, section 2.5.5.2).
        for address in [&mut key.sender_addr, &mut key.vm_addr] {
            address[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        }
        let flow = flow { next_hop: [2, 0, 0, 0, 0, 2], ..flow::default() };
        let bridge = Bridge { ifindex: 7, mac: [2, 0, 0, 0, 0, 3] };
        let mut one = One::default();
        send(&mut one, &key, &flow, Some(bridge));
        let [(7, frame)] = &one.by_bridge[..] else { panic!("{:?}", one.by_bridge) };
        assert_eq!((&frame[..6], &frame[6..12]), (&flow.next_hop[..], &bridge.mac[..]));
    }

    fn is_reset(one: &One) -> bool {
        u32::from(one.flow.mode) == flow_mode::FLOW_RESET
    }

    #[test]
    fn a_connection_whose_ends_cannot_be_told_is_reset_and_counted() {
        let mut one = One::default();
        one.flow.next_seq = seq::new(700);
        let mut told = 0;
        let Ok(given_up) = give_up(&mut one, &hold::default(), Reason::Silent, 1, |one, _, _| {
            // What is looked up for the RSTs may fail: the record is in RESET by then.
            assert!(is_reset(one));
            told += 1;
        });
        assert_eq!((given_up, told), (GivenUp::Reset, 1));
        assert!(is_reset(&one));
        assert_eq!(one.counted, [(reset_reason::RESET_SILENT, 700)]);
        assert_eq!(one.failures, 1);
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
