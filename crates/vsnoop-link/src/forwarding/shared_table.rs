//! The table as several threads use it: reading beside each other, writing alone and seldom.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::frame_addresses::FrameAddresses;
use super::location::{DropReason, ForwardingDecision, Location};
use super::table::{Table, TableSettings};

#[derive(Debug)]
pub struct SharedTable(RwLock<Table>);

impl SharedTable {
    pub fn new(settings: TableSettings) -> Self {
        Self(RwLock::new(Table::new(settings)))
    }

    /// Learns from a frame and says where it goes.
    pub fn forward(&self, frame: &[u8], from: Location, now_ns: u64) -> ForwardingDecision {
        let Some(addresses) = FrameAddresses::of(frame) else {
            return ForwardingDecision::Drop(DropReason::Short);
        };
        // Control frames have addresses of bridges, which are nobody's destination.
        if addresses.destination.is_control() {
            return ForwardingDecision::Drop(DropReason::Control);
        }
        {
            let table = self.read();
            if let Some(source) = table.confirm(addresses.vlan, addresses.source, from, now_ns) {
                return table.decide(&addresses, from, source, now_ns);
            }
        }
        let mut table = self.write();
        match table.learn(addresses.vlan, addresses.source, from, now_ns) {
            Ok(source) => table.decide(&addresses, from, source, now_ns),
            Err(reason) => ForwardingDecision::Drop(reason),
        }
    }

    /// A step that panicked left the table usable: every step checks what it finds.
    pub fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarding::Mac;
    use proptest::prelude::*;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
    const PORT: Location = Location::Port(0);
    const PEER: Location = Location::Peer(0);

    fn frame(destination: [u8; 6], source: [u8; 6]) -> Vec<u8> {
        [&destination[..], &source, &[8, 0, 0x45]].concat()
    }

    #[test]
    fn two_hosts_find_each_other() {
        let shared = SharedTable::new(TableSettings::default());
        assert_eq!(shared.forward(&frame([0xff; 6], A), PORT, 0), ForwardingDecision::Flood);
        assert_eq!(shared.forward(&frame(A, B), PEER, 1), ForwardingDecision::To(PORT));
        assert_eq!(shared.forward(&frame(B, A), PORT, 2), ForwardingDecision::To(PEER));
        assert_eq!(shared.forward(&frame(A, B), PEER, 3), ForwardingDecision::To(PORT));
    }

    #[test]
    fn frames_that_go_round_a_loop_are_bounded() {
        let shared = SharedTable::new(TableSettings::default());
        let dropped = (0..1000)
            .map(|now| shared.forward(&frame([0xff; 6], A), [PORT, PEER][now as usize % 2], now))
            .filter(|decision| *decision == ForwardingDecision::Drop(DropReason::Loop))
            .count();
        assert!(dropped >= 480, "{dropped}");
    }

    #[test]
    fn control_frames_leave_no_trace() {
        let shared = SharedTable::new(TableSettings::default());
        let decision = shared.forward(&frame([1, 0x80, 0xc2, 0, 0, 2], A), PORT, 0);
        assert_eq!(decision, ForwardingDecision::Drop(DropReason::Control));
        assert_eq!(shared.read().lookup(0, Mac(A), 0), None);
        assert_eq!(shared.forward(&A, PORT, 0), ForwardingDecision::Drop(DropReason::Short));
    }

    #[test]
    fn threads_read_beside_each_other() {
        let shared = SharedTable::new(TableSettings::default());
        std::thread::scope(|scope| {
            for thread in 0..4u16 {
                let shared = &shared;
                scope.spawn(move || {
                    for number in 0..5000u16 {
                        let [high, low] = (number % 50).to_be_bytes();
                        let source = [2, 0, 0, thread as u8, high, low];
                        let decision =
                            shared.forward(&frame(source, source), Location::Port(thread), 0);
                        assert_eq!(decision, ForwardingDecision::Drop(DropReason::SameLocation));
                    }
                });
            }
        });
    }

    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        let shared = SharedTable::new(TableSettings::default());
        let frames: Vec<_> = (0..1000u16)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                frame([2, 0, 0, 1, high, low], [2, 0, 0, 0, high, low])
            })
            .collect();
        for (number, known) in frames.iter().enumerate() {
            shared.forward(known, Location::Port(number as u16 % 12), 0);
            let back = [&known[6..12], &known[..6], &known[12..]].concat();
            shared.forward(&back, PEER, 0);
        }
        // The best of short rounds: the others were interrupted.
        let best = |rounds: usize, each: &mut dyn FnMut(usize)| {
            let round_ns = |round| {
                let begin = std::time::Instant::now();
                each(round);
                begin.elapsed().as_nanos() as usize / frames.len()
            };
            (0..rounds).map(round_ns).min()
        };
        let known = best(1000, &mut |_| {
            for (number, frame) in frames.iter().enumerate() {
                let decision = shared.forward(frame, Location::Port(number as u16 % 12), 0);
                assert_eq!(decision, ForwardingDecision::To(PEER));
            }
        });
        println!("learning and looking up among 2,000 addresses: {known:?} ns");
        let invented = best(100, &mut |round| {
            for number in 0..frames.len() {
                let [.., a, b, c, d] = (round * frames.len() + number).to_be_bytes();
                shared.forward(&frame([0xff; 6], [6, 0, a, b, c, d]), Location::Port(40), 0);
            }
        });
        println!("an invented address: {invented:?} ns");
    }

    proptest! {
        #[test]
        fn no_frame_goes_where_it_may_not(
            frames in proptest::collection::vec((0..6u8, 0..6u8, 0..4u16, any::<bool>()), 1..200),
        ) {
            let shared = SharedTable::new(TableSettings::default());
            for (now, (destination, source, at, peer)) in frames.into_iter().enumerate() {
                let from = if peer { Location::Peer(at) } else { Location::Port(at) };
                let frame = frame([2, 0, 0, 0, 0, destination], [2, 0, 0, 0, 0, source]);
                match shared.forward(&frame, from, now as u64 * 300_000_000) {
                    ForwardingDecision::To(to) => prop_assert!(from.reaches(to)),
                    ForwardingDecision::Both(a, b) => {
                        prop_assert!(a != b && from.reaches(a) && from.reaches(b));
                    }
                    _ => {}
                }
            }
        }
    }
}
