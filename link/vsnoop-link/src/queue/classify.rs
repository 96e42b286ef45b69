//! Chooses the data connection of a flow: connection 0 (*express*) for flows that send little, the
//! others (*bulk*) for the rest.
//!
//! Frames keep their order only within a connection, so a flow that moves to another one may be
//! reordered. Its sender takes that for a loss, and CUBIC leaves slow start after its first loss. A
//! flow starts on connection 0. With its first large frame, which a sender makes as soon as it has
//! much to send, it moves to a bulk connection chosen by its hash: then only the segments of its
//! handshake can be overtaken. A flow that sends small frames moves once it has sent many. It stays
//! on the bulk connection until it has been idle long enough that none of its frames is in
//! flight.

use vsnoop_packet::headers::FlowHash;

/// More than this per second, or at once, is bulk.
const SPARSE_BYTES: u64 = 64 << 10;
/// Keystrokes, echoes, acknowledgements, names and voice are smaller.
const SMALL_BYTES: usize = 1000;
/// A flow that was idle for this time begins anew.
const IDLE_NS: u64 = 1_000_000_000;
/// Flows that are remembered: sets of ways.
const SETS: usize = 1024;
const WAYS: usize = 4;

/// Kind of a frame, without regard to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// ARP, ICMP, DNS and the like: always on connection 0, where the fair queue bounds it.
    Express,
    /// By what its flow sends.
    Flow,
}

#[derive(Clone, Copy, Debug)]
struct FlowEntry {
    flow: FlowHash,
    last_ns: u64,
    /// A bucket that leaks [`SPARSE_BYTES`] a second.
    level_bytes: u64,
    bulk: bool,
    used: bool,
}

const UNKNOWN: FlowEntry =
    FlowEntry { flow: FlowHash(0), last_ns: 0, level_bytes: 0, bulk: false, used: false };

/// The flows that are remembered.
#[derive(Debug)]
pub struct Classifier {
    connections: usize,
    known: Vec<[FlowEntry; WAYS]>,
}

impl Classifier {
    /// Chooses among this number of connections.
    pub fn new(connections: usize) -> Self {
        Self { connections: connections.max(1), known: vec![[UNKNOWN; WAYS]; SETS] }
    }

    /// The connection of a frame.
    pub fn choose_connection(
        &mut self,
        flow: FlowHash,
        bytes: usize,
        kind: FrameKind,
        now_ns: u64,
    ) -> usize {
        if self.connections == 1 || kind == FrameKind::Express {
            return 0;
        }
        let mixed = flow.spread();
        let set = &mut self.known[(mixed >> 40) as usize % SETS];
        let way = find_way(set, flow);
        let known = &mut set[way];
        let idle_ns = now_ns.saturating_sub(known.last_ns);
        if !known.used || known.flow != flow || idle_ns >= IDLE_NS {
            *known = FlowEntry { flow, used: true, ..UNKNOWN };
        }
        let leaked = u128::from(SPARSE_BYTES) * u128::from(idle_ns.min(IDLE_NS)) / 1_000_000_000;
        known.level_bytes = known.level_bytes.saturating_sub(leaked as u64);
        known.level_bytes = known.level_bytes.saturating_add(bytes as u64);
        known.last_ns = now_ns;
        known.bulk |= known.level_bytes > SPARSE_BYTES || bytes > SMALL_BYTES;
        if known.bulk { 1 + (mixed >> 20) as usize % (self.connections - 1) } else { 0 }
    }
}

/// The entry of a flow, or the one idle longest, which it replaces.
fn find_way(set: &[FlowEntry; WAYS], flow: FlowHash) -> usize {
    let same = set.iter().position(|known| known.used && known.flow == flow);
    same.unwrap_or_else(|| {
        (0..WAYS).min_by_key(|way| (set[*way].used, set[*way].last_ns)).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_few_packets_now_and_then_stay_on_the_express_connection() {
        let mut classifier = Classifier::new(4);
        for i in 0..10_000 {
            assert_eq!(
                classifier.choose_connection(FlowHash(7), 500, FrameKind::Flow, i * 10 * MS),
                0,
                "50 kB a second"
            );
        }
    }

    #[test]
    fn a_bulk_flow_moves_once_and_comes_back_after_a_pause() {
        let mut classifier = Classifier::new(4);
        let mut connections: Vec<usize> = (0..2000)
            .map(|i| classifier.choose_connection(FlowHash(7), 500, FrameKind::Flow, i * MS))
            .collect();
        // Slower, but never idle: it stays.
        connections.extend((0..100).map(|i| {
            classifier.choose_connection(FlowHash(7), 64, FrameKind::Flow, (2000 + i * 900) * MS)
        }));
        let moves = connections.windows(2).filter(|w| w[0] != w[1]).count();
        assert_eq!((moves, connections[0]), (1, 0));
        assert!(connections[2099] > 0);
        assert_eq!(classifier.choose_connection(FlowHash(7), 64, FrameKind::Flow, 200_000 * MS), 0);
    }

    #[test]
    fn a_flow_moves_with_its_first_large_frame() {
        let mut classifier = Classifier::new(4);
        assert_eq!(classifier.choose_connection(FlowHash(7), 74, FrameKind::Flow, 0), 0);
        let bulk = classifier.choose_connection(FlowHash(7), 1514, FrameKind::Flow, 20 * MS);
        assert!(bulk > 0);
        assert_eq!(
            classifier.choose_connection(FlowHash(7), 66, FrameKind::Flow, 30 * MS),
            bulk,
            "and stays"
        );
    }

    #[test]
    fn bulk_flows_use_all_other_connections() {
        let mut classifier = Classifier::new(4);
        let mut used = [0; 4];
        for flow in 0..300 {
            used[classifier.choose_connection(FlowHash(flow), 100_000, FrameKind::Flow, 0)] += 1;
        }
        assert!(used[0] == 0 && used[1..].iter().all(|n| *n > 60), "{used:?}");
    }

    #[test]
    fn express_frames_and_single_connections_need_no_memory() {
        assert_eq!(
            Classifier::new(4).choose_connection(FlowHash(7), 1 << 30, FrameKind::Express, 0),
            0
        );
        assert_eq!(
            Classifier::new(1).choose_connection(FlowHash(7), 1 << 30, FrameKind::Flow, 0),
            0
        );
        assert_eq!(
            Classifier::new(0).choose_connection(
                FlowHash(7),
                usize::MAX,
                FrameKind::Flow,
                u64::MAX
            ),
            0
        );
    }

    #[test]
    fn a_flood_of_flows_makes_the_idle_ones_give_way() {
        let mut classifier = Classifier::new(2);
        classifier.choose_connection(FlowHash(u64::MAX), 100_000, FrameKind::Flow, 0);
        for flow in 0..100_000 {
            classifier.choose_connection(FlowHash(flow), 64, FrameKind::Flow, flow);
        }
        let used = classifier.known.iter().flatten().filter(|known| known.used).count();
        assert_eq!(used, SETS * WAYS);
    }
}
