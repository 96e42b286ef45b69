//! Which lane a flow uses: lane 0 for those that send little, the others for the bulk.
//!
//! There is an order only within a lane, so a flow that changes its lane may be reordered, which its sender takes
//! for a loss: CUBIC, once it has lost anything, no longer looks for the path's rate in a hurry. A flow starts on
//! lane 0. With its first large frame, which a sender makes as soon as it has much to send, it moves to a bulk
//! lane chosen by its hash: then nothing but its handshake can be overtaken. One that sends small frames moves
//! once they are many. There it stays until it has been idle for so long that nothing of it is on the way any
//! more.

/// More than this per second, or at once, is bulk.
const SPARSE_BYTES: u64 = 64 << 10;
/// Keystrokes, echoes, acknowledgements, names and voice are smaller.
const SMALL_BYTES: usize = 1000;
/// A flow that was idle for so long begins anew.
const IDLE_NS: u64 = 1_000_000_000;
/// Flows that are remembered: sets of ways.
const SETS: usize = 1024;
const WAYS: usize = 4;

/// What is known of a frame without its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ARP, ICMP, DNS and the like: on lane 0 whatever it amounts to; the fair queue bounds it there.
    Express,
    /// By what its flow sends.
    Flow,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    flow: u64,
    last_ns: u64,
    /// A bucket that leaks [`SPARSE_BYTES`] a second.
    level_bytes: u64,
    bulk: bool,
    used: bool,
}

const UNKNOWN: Known = Known { flow: 0, last_ns: 0, level_bytes: 0, bulk: false, used: false };

/// The flows that are remembered.
#[derive(Debug)]
pub struct Classifier {
    lanes: usize,
    known: Vec<[Known; WAYS]>,
}

impl Classifier {
    /// For so many lanes; with one there is nothing to choose.
    pub fn new(lanes: usize) -> Self {
        Self { lanes: lanes.max(1), known: vec![[UNKNOWN; WAYS]; SETS] }
    }

    /// The lane of a frame.
    pub fn lane(&mut self, flow: u64, bytes: usize, kind: Kind, now_ns: u64) -> usize {
        if self.lanes == 1 || kind == Kind::Express {
            return 0;
        }
        let mixed = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = &mut self.known[(mixed >> 40) as usize % SETS];
        let way = find(set, flow);
        let known = &mut set[way];
        let idle_ns = now_ns.saturating_sub(known.last_ns);
        if !known.used || known.flow != flow || idle_ns >= IDLE_NS {
            *known = Known { flow, used: true, ..UNKNOWN };
        }
        let leaked = u128::from(SPARSE_BYTES) * u128::from(idle_ns.min(IDLE_NS)) / 1_000_000_000;
        known.level_bytes = known.level_bytes.saturating_sub(leaked as u64);
        known.level_bytes = known.level_bytes.saturating_add(bytes as u64);
        known.last_ns = now_ns;
        known.bulk |= known.level_bytes > SPARSE_BYTES || bytes > SMALL_BYTES;
        if known.bulk { 1 + (mixed >> 20) as usize % (self.lanes - 1) } else { 0 }
    }
}

/// Where a flow stands, or who gives way to it: the one that was idle longest.
fn find(set: &[Known; WAYS], flow: u64) -> usize {
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
    fn a_few_packets_now_and_then_stay_on_the_express_lane() {
        let mut classifier = Classifier::new(4);
        for i in 0..10_000 {
            assert_eq!(classifier.lane(7, 500, Kind::Flow, i * 10 * MS), 0, "50 kB a second");
        }
    }

    #[test]
    fn a_bulk_flow_moves_once_and_comes_back_after_a_pause() {
        let mut classifier = Classifier::new(4);
        let mut lanes: Vec<usize> =
            (0..2000).map(|i| classifier.lane(7, 500, Kind::Flow, i * MS)).collect();
        // Slower, but never idle: it stays.
        lanes.extend((0..100).map(|i| classifier.lane(7, 64, Kind::Flow, (2000 + i * 900) * MS)));
        let moves = lanes.windows(2).filter(|w| w[0] != w[1]).count();
        assert_eq!((moves, lanes[0]), (1, 0));
        assert!(lanes[2099] > 0);
        assert_eq!(classifier.lane(7, 64, Kind::Flow, 200_000 * MS), 0);
    }

    #[test]
    fn a_flow_moves_with_its_first_large_frame() {
        let mut classifier = Classifier::new(4);
        assert_eq!(classifier.lane(7, 74, Kind::Flow, 0), 0);
        let bulk = classifier.lane(7, 1514, Kind::Flow, 20 * MS);
        assert!(bulk > 0);
        assert_eq!(classifier.lane(7, 66, Kind::Flow, 30 * MS), bulk, "and stays");
    }

    #[test]
    fn bulk_flows_use_all_other_lanes() {
        let mut classifier = Classifier::new(4);
        let mut used = [0; 4];
        for flow in 0..300 {
            used[classifier.lane(flow, 100_000, Kind::Flow, 0)] += 1;
        }
        assert!(used[0] == 0 && used[1..].iter().all(|n| *n > 60), "{used:?}");
    }

    #[test]
    fn express_frames_and_single_lanes_need_no_memory() {
        assert_eq!(Classifier::new(4).lane(7, 1 << 30, Kind::Express, 0), 0);
        assert_eq!(Classifier::new(1).lane(7, 1 << 30, Kind::Flow, 0), 0);
        assert_eq!(Classifier::new(0).lane(7, usize::MAX, Kind::Flow, u64::MAX), 0);
    }

    #[test]
    fn a_flood_of_flows_makes_the_idle_ones_give_way() {
        let mut classifier = Classifier::new(2);
        classifier.lane(u64::MAX, 100_000, Kind::Flow, 0);
        for flow in 0..100_000 {
            classifier.lane(flow, 64, Kind::Flow, flow);
        }
        let used = classifier.known.iter().flatten().filter(|known| known.used).count();
        assert_eq!(used, SETS * WAYS);
    }
}
