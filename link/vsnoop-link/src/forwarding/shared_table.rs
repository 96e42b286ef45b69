//! The table as several threads use it: reading beside each other, writing alone and seldom.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::frame_addresses::FrameAddresses;
use super::location::{DropReason, ForwardingDecision, Location};
use super::loops::{Loop, LoopWatch};
use super::membership::MembershipMessage;
use super::table::{Table, TableSettings};

#[derive(Debug)]
pub struct SharedTable {
    table: RwLock<Table>,
    loops: LoopWatch,
}

impl SharedTable {
    pub fn new(settings: TableSettings) -> Self {
        Self { table: RwLock::new(Table::new(settings)), loops: LoopWatch::default() }
    }

    /// Loops that frames come back by.
    pub fn find_loops(&self, now_ns: u64) -> Vec<Loop> {
        self.loops.find_loops(now_ns)
    }

    /// Learns from a frame of this length and says where it goes. `frame` is its first part, with
    /// all headers; the whole frame if it is neither TCP nor UDP.
    pub fn forward_frame(
        &self,
        frame: &[u8],
        bytes: usize,
        from: Location,
        now_ns: u64,
    ) -> ForwardingDecision {
        let Some(addresses) = FrameAddresses::parse(frame, bytes) else {
            return ForwardingDecision::Drop(DropReason::Short);
        };
        // Before anything is learned: what bridges tell each other has addresses of their ports.
        if addresses.destination.is_control() {
            return self.read().decide_control(&addresses, from, now_ns);
        }
        if addresses.destination.is_group() {
            self.loops.note_frame(frame, from, now_ns);
        }
        let message = MembershipMessage::parse(frame);
        if message.is_none() {
            let table = self.read();
            if let Some(source) =
                table.confirm_address(addresses.vlan, addresses.source, from, now_ns)
            {
                return table.decide(&addresses, from, source, now_ns);
            }
        }
        let mut table = self.write();
        let source = match table.learn_address(addresses.vlan, addresses.source, from, now_ns) {
            Ok(source) => source,
            Err(reason) => return ForwardingDecision::Drop(reason),
        };
        match message {
            Some(message) => table.decide_membership(&message, &addresses, from, source, now_ns),
            None => table.decide(&addresses, from, source, now_ns),
        }
    }

    /// A step that panicked left the table usable: every step checks what it finds.
    pub fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarding::membership::tests::igmp_frame;
    use crate::forwarding::{Mac, Scope};
    use crate::slots::{PeerSlot, PortSlot};
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
    const PORT: Location = Location::Port(PortSlot(0));
    const PEER: Location = Location::Peer(PeerSlot(0));

    fn frame(destination: [u8; 6], source: [u8; 6]) -> Vec<u8> {
        [&destination[..], &source, &[8, 0, 0x45]].concat()
    }

    #[test]
    fn two_hosts_find_each_other() {
        let shared = SharedTable::new(TableSettings::default());
        assert_eq!(
            shared.forward_frame(&frame([0xff; 6], A), 64, PORT, 0),
            ForwardingDecision::Flood(Scope::All)
        );
        assert_eq!(shared.forward_frame(&frame(A, B), 64, PEER, 1), ForwardingDecision::To(PORT));
        assert_eq!(shared.forward_frame(&frame(B, A), 64, PORT, 2), ForwardingDecision::To(PEER));
        assert_eq!(shared.forward_frame(&frame(A, B), 64, PEER, 3), ForwardingDecision::To(PORT));
    }

    #[test]
    fn frames_that_go_round_a_loop_are_bounded() {
        let shared = SharedTable::new(TableSettings::default());
        let dropped = (0..1000)
            .map(|now| {
                shared.forward_frame(&frame([0xff; 6], A), 64, [PORT, PEER][now as usize % 2], now)
            })
            .filter(|decision| *decision == ForwardingDecision::Drop(DropReason::Loop))
            .count();
        assert!(dropped >= 480, "{dropped}");
    }

    #[test]
    fn a_group_goes_to_its_members() {
        let shared = SharedTable::new(TableSettings::default());
        let group = Ipv4Addr::new(239, 1, 2, 3);
        let data = frame([1, 0, 0x5e, 1, 2, 3], A);
        let mut query = igmp_frame(0x11, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::UNSPECIFIED);
        query[6..12].copy_from_slice(&B);
        assert_eq!(
            shared.forward_frame(&query, 64, PEER, 0),
            ForwardingDecision::Flood(Scope::All)
        );
        let report = shared.forward_frame(
            &igmp_frame(0x16, group, group),
            64,
            Location::Port(PortSlot(1)),
            1,
        );
        assert_eq!(report, ForwardingDecision::Flood(Scope::All), "not all have reported yet");
        let members = Scope::Members(vec![PEER, Location::Port(PortSlot(1))]);
        let later = 20_000_000_000;
        assert_eq!(
            shared.forward_frame(&data, 64, PORT, later),
            ForwardingDecision::Flood(members)
        );
        let all_hosts = (Mac([1, 0, 0x5e, 0, 0, 1]), PEER, later);
        let group = (Mac([1, 0, 0x5e, 1, 2, 3]), Location::Port(PortSlot(1)), later - 1);
        let table = shared.read();
        let known = table.group_entries(later).map(|at| (at.mac, at.location, at.age_ns));
        assert_eq!(known.collect::<Vec<_>>(), [group, all_hosts]);
    }

    const SECOND_NS: u64 = 1_000_000_000;
    const HUB: Location = Location::Peer(PeerSlot(1));
    const SPOKE: Location = Location::Peer(PeerSlot(2));

    fn table_with_a_spoke() -> SharedTable {
        let shared = SharedTable::new(TableSettings::default());
        let mut table = shared.write();
        table.set_hubs([(PeerSlot(2), PeerSlot(1))]);
        table.set_labelled(SPOKE, true);
        drop(table);
        shared
    }

    #[test]
    fn a_labelled_frame_with_a_forged_source_takes_no_address_from_the_hub() {
        let shared = table_with_a_spoke();
        let broadcast = frame([0xff; 6], A);
        for second in 0..10 {
            let now_ns = second * SECOND_NS;
            shared.forward_frame(&broadcast, 64, HUB, now_ns);
            shared.forward_frame(&broadcast, 64, SPOKE, now_ns + 1);
            let decision = shared.forward_frame(&frame(A, B), 64, PORT, now_ns + 2);
            assert_eq!(decision, ForwardingDecision::Both(HUB, SPOKE));
        }
    }

    /// The forged frame came while the owner was silent.
    #[test]
    fn an_address_that_came_with_a_label_is_not_kept_from_the_hub() {
        let shared = table_with_a_spoke();
        let broadcast = frame([0xff; 6], A);
        for second in 0..10 {
            let now_ns = second * SECOND_NS;
            shared.forward_frame(&broadcast, 64, SPOKE, now_ns);
            shared.forward_frame(&broadcast, 64, HUB, now_ns + 1);
            let decision = shared.forward_frame(&frame(A, B), 64, PORT, now_ns + 2);
            assert_eq!(decision, ForwardingDecision::Both(SPOKE, HUB));
        }
        shared.forward_frame(&broadcast, 64, HUB, 12 * SECOND_NS);
        let decision = shared.forward_frame(&frame(A, B), 64, PORT, 12 * SECOND_NS);
        assert_eq!(decision, ForwardingDecision::To(HUB), "the spoke is silent");
    }

    #[test]
    fn an_address_behind_a_hub_moves_to_its_peer_soon_after_labels_come() {
        let shared = table_with_a_spoke();
        let broadcast = frame([0xff; 6], A);
        shared.forward_frame(&broadcast, 64, HUB, 0);
        for second in 1..4 {
            shared.forward_frame(&broadcast, 64, SPOKE, second * SECOND_NS);
        }
        let decision = shared.forward_frame(&frame(A, B), 64, PORT, 3 * SECOND_NS);
        assert_eq!(decision, ForwardingDecision::To(SPOKE));
    }

    /// The spoke is reached directly, and its broadcasts come by the hub.
    #[test]
    fn frames_are_sent_twice_no_more_once_a_hub_is_known_to_label_no_more() {
        let shared = table_with_a_spoke();
        let broadcast = frame([0xff; 6], A);
        let decisions = [0, 1, 2, 3].map(|second| {
            let now_ns = second * SECOND_NS;
            shared.forward_frame(&frame(B, A), 64, SPOKE, now_ns);
            shared.forward_frame(&broadcast, 64, HUB, now_ns + 1);
            if second == 2 {
                shared.write().set_labelled(SPOKE, false);
            }
            shared.forward_frame(&frame(A, B), 64, PORT, now_ns + 2)
        });
        let (twice, once) = (ForwardingDecision::Both(SPOKE, HUB), ForwardingDecision::To(SPOKE));
        assert_eq!(decisions, [twice.clone(), twice, once.clone(), once]);
    }

    #[test]
    fn control_frames_leave_no_trace() {
        let shared = SharedTable::new(TableSettings::default());
        let decision = shared.forward_frame(&frame([1, 0x80, 0xc2, 0, 0, 2], A), 64, PORT, 0);
        assert_eq!(decision, ForwardingDecision::Drop(DropReason::Control));
        assert_eq!(shared.read().look_up_address(0, Mac(A), 0), None);
        assert_eq!(
            shared.forward_frame(&A, 64, PORT, 0),
            ForwardingDecision::Drop(DropReason::Short)
        );
    }

    #[test]
    fn spanning_tree_passes_where_it_is_to_and_no_other_control_frame_does() {
        let settings = TableSettings { passes_bpdus: true, ..TableSettings::default() };
        let shared = SharedTable::new(settings);
        let bpdu = |last| frame([1, 0x80, 0xc2, 0, 0, last], A);
        let all = ForwardingDecision::Flood(Scope::All);
        assert_eq!(shared.forward_frame(&bpdu(0), 64, PORT, 0), all);
        assert_eq!(shared.forward_frame(&bpdu(0), 64, PEER, 0), all);
        for other in [2, 3, 0x0e] {
            let decision = shared.forward_frame(&bpdu(other), 64, PORT, 0);
            assert_eq!(decision, ForwardingDecision::Drop(DropReason::Control));
        }
        assert_eq!(shared.read().look_up_address(0, Mac(A), 0), None);
    }

    #[test]
    fn a_broadcast_that_comes_back_by_a_peer_is_a_loop() {
        let shared = SharedTable::new(TableSettings::default());
        let mut now = SECOND_NS;
        for number in 0..100 {
            let mut broadcast = frame([0xff; 6], A);
            broadcast.push(number);
            shared.forward_frame(&broadcast, 64, PORT, now);
            shared.forward_frame(&broadcast, 64, PEER, now + 1);
            now += SECOND_NS / 10;
        }
        let loops = shared.find_loops(now);
        assert_eq!(loops.iter().map(|it| (it.first, it.back)).collect::<Vec<_>>(), [(PORT, PEER)]);
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
                        let decision = shared.forward_frame(
                            &frame(source, source),
                            64,
                            Location::Port(PortSlot(thread)),
                            0,
                        );
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
            shared.forward_frame(known, 64, Location::Port(PortSlot(number as u16 % 12)), 0);
            let back = [&known[6..12], &known[..6], &known[12..]].concat();
            shared.forward_frame(&back, 64, PEER, 0);
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
                let decision = shared.forward_frame(
                    frame,
                    64,
                    Location::Port(PortSlot(number as u16 % 12)),
                    0,
                );
                assert_eq!(decision, ForwardingDecision::To(PEER));
            }
        });
        println!("learning and looking up among 2,000 addresses: {known:?} ns");
        let invented = best(100, &mut |round| {
            for number in 0..frames.len() {
                let [.., a, b, c, d] = (round * frames.len() + number).to_be_bytes();
                shared.forward_frame(
                    &frame([0xff; 6], [6, 0, a, b, c, d]),
                    64,
                    Location::Port(PortSlot(40)),
                    0,
                );
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
                let as_port = Location::Port(PortSlot(at));
                let as_peer = Location::Peer(PeerSlot(at));
                let from = if peer { as_peer } else { as_port };
                let frame = frame([2, 0, 0, 0, 0, destination], [2, 0, 0, 0, 0, source]);
                match shared.forward_frame(&frame, 64, from, now as u64 * 300_000_000) {
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
