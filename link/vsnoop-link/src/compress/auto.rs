//! Whether, and how, a flow's next message is compressed.
//!
//! With every method, a flow that does not shrink is sent as it is. It is tried again (a
//! [`Sampler`]) after 1, 2, 4 .. 1024 messages or after a second, whichever comes first.
//!
//! `auto` compares the cost of a byte by each way with that of sending it as it is. The next
//! message is encoded while the link sends, so the cost is that of the slower one, CPU or link,
//! plus a share of the CPU's time. The rate of the link is given; cost and gain of encoding are
//! measured while a way is in use. A way must be a tenth better than the present one to replace it.
//! The effect of a lower level is only estimated while a higher one is in use, and the estimate can
//! be wrong, so the lower level is tried for [`STAY_NEW`] messages, at exponentially growing
//! intervals. Where no way pays, one message is tried at such intervals, too: the link may become
//! slow, or the CPU free.
//!
//! A dictionary gains only when data repeat, which cannot be measured before. So `auto` uses it
//! wherever encoding is faster than the link.

use std::collections::HashMap;

use vsnoop_packet::headers::FlowHash;

use super::probe::Sampler;
use super::{Codecs, CompressionStats, Decision, Method, Owner};

/// A way to compress, with what is assumed until it was measured.
struct Candidate {
    method: Method,
    /// Its output size relative to lz4's.
    of_lz4: f64,
    ns_per_byte: f64,
}

const WAYS: [Candidate; 4] = [
    Candidate { method: Method::Lz4, of_lz4: 1.0, ns_per_byte: 2.5 },
    Candidate { method: Method::Zstd { level: 1 }, of_lz4: 0.66, ns_per_byte: 3.5 },
    Candidate { method: Method::Zstd { level: 3 }, of_lz4: 0.61, ns_per_byte: 6.0 },
    Candidate { method: Method::Zstd { level: 6 }, of_lz4: 0.54, ns_per_byte: 15.0 },
];

/// The new measurement's part in an average.
const WEIGHT: f64 = 1.0 / 8.0;
const BETTER: f64 = 0.9;
/// The part of it that counts of what is done at the same time as something slower.
const HIDDEN: f64 = 0.2;
/// Messages that a new way is given, and those after which what other ways have done is forgotten.
const STAY_NEW: u16 = 16;
const STAY: u16 = 256;
const BACK_OFF_MAX: u8 = 10;
/// Failed samples in a row after which a codec that should not pay is tried nevertheless.
const TRIALS_FROM: u8 = 3;
const BACK_OFF_NS_MAX: u64 = 1_000_000_000;
/// Shorter messages say more about the cost of a call than of a byte.
const COST_BYTES_MIN: usize = 4096;
/// Flows that are remembered: twice as many at most.
const FLOWS: usize = 4096;

/// A byte in a dictionary, until that was measured.
const DICTIONARY_NS_PER_BYTE: f64 = 5.0;

/// Owner and flow that a record is kept of.
pub type FlowKey = (Owner, FlowHash);

/// Cost and effect of a codec, per byte.
#[derive(Clone, Copy)]
struct Effect {
    /// So much is left of it.
    left: f64,
    ns: f64,
}

#[derive(Clone, Copy, Default)]
struct FlowRecord {
    /// Failed looks in a row; messages to let pass before the next, and when it is due anyhow.
    back_off: u8,
    pass: u32,
    look_ns: u64,
    /// The last message became smaller: the next needs no look.
    good: bool,
    /// Index of the way in `WAYS`, if `auto` has chosen one.
    way: Option<usize>,
    /// Messages until the way is evaluated again: its first ones are slow and compress badly.
    stay: u16,
    /// How often that was done.
    terms: u32,
    /// The way is on trial; this was the one before.
    instead_of: Option<usize>,
    /// lz4's compression ratio in the last sample.
    lz4_ratio: f64,
    /// Recent measurements.
    measured: [Option<Effect>; WAYS.len()],
    /// The decision for the last sampled message, and its time.
    decision: Option<Decision>,
    seen_ns: u64,
}

impl FlowRecord {
    fn note_failure(&mut self, now_ns: u64) {
        self.good = false;
        self.pass = (1 << self.back_off) - 1;
        self.look_ns = now_ns.saturating_add(BACK_OFF_NS_MAX);
        self.back_off = (self.back_off + 1).min(BACK_OFF_MAX);
    }

    /// Keeps the way, or starts a trial of the next cheaper one, not below `cheapest`. Returns the
    /// way in use.
    fn next_term(&mut self, way: usize, cheapest: usize) -> usize {
        let kept = self.measured[way];
        self.measured = [None; WAYS.len()];
        self.measured[way] = kept;
        self.terms = self.terms.saturating_add(1);
        if way > cheapest && self.terms.is_power_of_two() {
            (self.way, self.stay, self.instead_of) = (Some(way - 1), STAY_NEW, Some(way));
            return way - 1;
        }
        self.stay = STAY;
        way
    }

    /// A look, or a trial, is due.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let due = self.pass == 0 || now_ns >= self.look_ns;
        self.pass = self.pass.saturating_sub(1);
        due
    }
}

/// The choices of one connection's sender.
pub struct Judge {
    /// Indices of the ways that the receiver accepts; ways of one codec are beside each other.
    ways: std::ops::Range<usize>,
    rate_bytes_per_s: Option<u64>,
    /// The highest rate since flows were last judged anew.
    highest_bytes_per_s: u64,
    /// Average over all flows, for those that have not been measured.
    ns_per_byte: [f64; WAYS.len()],
    /// Two generations: when the young are too many they become the old, and the old are forgotten.
    young: HashMap<FlowKey, FlowRecord>,
    old: HashMap<FlowKey, FlowRecord>,
    probe: Sampler,
    /// Costs of all dictionaries: time for a byte, and when the next trial of a slow one is due.
    dictionary_ns_per_byte: f64,
    dictionary_trial_ns: u64,
}

impl Judge {
    /// For a receiver that accepts these codecs.
    pub fn new(codecs: Codecs) -> Self {
        let first = if codecs.lz4 { 0 } else { 1 };
        let end = if codecs.zstd { WAYS.len() } else { 1 };
        Self {
            ways: first..end,
            rate_bytes_per_s: None,
            highest_bytes_per_s: u64::MAX,
            ns_per_byte: WAYS.map(|way| way.ns_per_byte),
            young: HashMap::new(),
            old: HashMap::new(),
            probe: Sampler::default(),
            dictionary_ns_per_byte: DICTIONARY_NS_PER_BYTE,
            dictionary_trial_ns: 0,
        }
    }

    /// Bytes per second; `None`: not known, or not what sending waits for.
    pub fn set_link_rate(&mut self, bytes_per_s: Option<u64>) {
        let rate = bytes_per_s.unwrap_or(u64::MAX);
        if rate < self.highest_bytes_per_s / 2 {
            // A codec that did not pay on a fast link may pay on a slower one.
            for flow in self.young.values_mut().chain(self.old.values_mut()) {
                (flow.back_off, flow.pass) = (0, 0);
            }
            self.highest_bytes_per_s = rate;
        }
        self.highest_bytes_per_s = self.highest_bytes_per_s.max(rate);
        self.rate_bytes_per_s = bytes_per_s;
    }

    /// How the next message is to be sent: `Off`, or a method that is not `Auto`.
    pub fn choose_method(
        &mut self,
        key: FlowKey,
        asked: Method,
        parts: &[&[u8]],
        now_ns: u64,
        stats: &mut CompressionStats,
    ) -> Method {
        let mut flow = self.flow_record(key);
        flow.seen_ns = now_ns;
        let method = if asked == Method::Auto && self.rate_bytes_per_s.is_none() {
            Method::Off
        } else {
            self.judge_flow(&mut flow, asked, parts, now_ns, stats)
        };
        if method != Method::Off {
            flow.decision = Some(Decision::By(method));
        }
        self.young.insert(key, flow);
        method
    }

    /// The decision for a flow, and the time of its last message.
    pub fn find_decision(&self, key: FlowKey, asked: Method) -> Option<(u64, Decision)> {
        let flow = self.young.get(&key).or_else(|| self.old.get(&key))?;
        let unknown = asked == Method::Auto && self.rate_bytes_per_s.is_none();
        let judged = flow.decision.filter(|_| !unknown);
        Some((flow.seen_ns, judged.unwrap_or(Decision::RateUnknown)))
    }

    fn judge_flow(
        &mut self,
        flow: &mut FlowRecord,
        asked: Method,
        parts: &[&[u8]],
        now_ns: u64,
        stats: &mut CompressionStats,
    ) -> Method {
        if !flow.good {
            if !flow.is_due(now_ns) {
                return Method::Off;
            }
            stats.probes += 1;
            let Some(ratio) = self.probe.estimate_ratio(parts) else {
                flow.decision = Some(Decision::Incompressible);
                flow.note_failure(now_ns);
                return Method::Off;
            };
            flow.lz4_ratio = ratio;
        }
        if asked != Method::Auto {
            return asked;
        }
        let (best, best_ns) = self.find_best_way(flow);
        if let Some(way) = flow.way.filter(|&way| self.way_ns(flow, way) < self.raw_ns()) {
            flow.stay = flow.stay.saturating_sub(1);
            if flow.stay > 0 {
                return WAYS[way].method;
            }
            if let Some(before) = flow.instead_of.take()
                && self.way_ns(flow, before) <= self.way_ns(flow, way)
            {
                (flow.way, flow.stay) = (Some(before), STAY);
                return WAYS[before].method;
            }
            if self.way_ns(flow, way) * BETTER <= best_ns {
                return WAYS[flow.next_term(way, self.ways.start)].method;
            }
        }
        if best_ns < self.raw_ns() {
            (flow.way, flow.stay, flow.instead_of) = (Some(best), STAY_NEW, None);
            flow.measured[best] = None;
            return WAYS[best].method;
        }
        // Nothing pays, by what is known. Costs change: where the pace of looking has fallen, a
        // look is a trial, and `measured` says how it went.
        (flow.way, flow.instead_of) = (None, None);
        if !flow.good && flow.back_off > TRIALS_FROM {
            return WAYS[best].method;
        }
        flow.decision = Some(Decision::DoesNotPay);
        flow.note_failure(now_ns);
        Method::Off
    }

    /// Result of compressing a message with `method`.
    pub fn note_measured(
        &mut self,
        key: FlowKey,
        asked: Method,
        method: Method,
        result: Measured,
        now_ns: u64,
    ) {
        let mut flow = self.flow_record(key);
        let mut pays = result.smaller;
        if let Some(way) = WAYS.iter().position(|way| way.method == method) {
            let bytes = result.bytes_in.max(1) as f64;
            let now =
                Effect { left: result.bytes_out as f64 / bytes, ns: result.ns as f64 / bytes };
            // What was measured before a pause says little about now.
            let before = flow.measured[way].filter(|_| flow.good).unwrap_or(now);
            let effect = Effect {
                left: weighted_mean(before.left, now.left),
                ns: weighted_mean(before.ns, now.ns),
            };
            flow.measured[way] = Some(effect);
            if result.bytes_in >= COST_BYTES_MIN {
                self.ns_per_byte[way] = weighted_mean(self.ns_per_byte[way], now.ns);
            }
            pays &= asked != Method::Auto || self.way_ns(&flow, way) < self.raw_ns();
        }
        if pays {
            (flow.good, flow.back_off, flow.pass) = (true, 0, 0);
        } else {
            let smaller = result.smaller;
            flow.decision =
                Some(if smaller { Decision::DoesNotPay } else { Decision::Incompressible });
            flow.note_failure(now_ns);
        }
        self.young.insert(key, flow);
    }

    /// Whether `auto` may use a dictionary for its next message.
    pub fn dictionary_keeps_up(&mut self, bytes: usize, now_ns: u64) -> bool {
        if self.rate_bytes_per_s.is_none() {
            return false;
        }
        if self.dictionary_ns_per_byte < self.raw_ns() {
            return true;
        }
        // A short one would tell nothing.
        let due = bytes >= COST_BYTES_MIN && now_ns >= self.dictionary_trial_ns;
        if due {
            self.dictionary_trial_ns = now_ns.saturating_add(BACK_OFF_NS_MAX);
        }
        due
    }

    /// CPU time of a message with a dictionary.
    pub fn measured_dictionary(&mut self, bytes: usize, ns: u64) {
        if bytes >= COST_BYTES_MIN {
            self.dictionary_ns_per_byte =
                weighted_mean(self.dictionary_ns_per_byte, ns as f64 / bytes as f64);
        }
    }

    /// Time for a byte on the link.
    fn raw_ns(&self) -> f64 {
        self.rate_bytes_per_s.map_or(0.0, |rate| 1e9 / rate.max(1) as f64)
    }

    /// Time for a byte that goes this way.
    fn way_ns(&self, flow: &FlowRecord, way: usize) -> f64 {
        let Effect { left, ns } =
            flow.measured[way].unwrap_or_else(|| self.expect_effect(flow, way));
        let link_ns = left * self.raw_ns();
        ns.max(link_ns) + HIDDEN * ns.min(link_ns)
    }

    /// Estimate for a codec: the present one's figures, scaled by the usual ratio between both.
    fn expect_effect(&self, flow: &FlowRecord, way: usize) -> Effect {
        let usual = |way: usize| (WAYS[way].of_lz4, self.ns_per_byte[way]);
        let (left, ns) = usual(way);
        match flow.way.and_then(|present| Some((usual(present), flow.measured[present]?))) {
            Some(((usual_left, usual_ns), is)) => Effect {
                left: (is.left / usual_left * left).min(1.0),
                ns: is.ns / usual_ns.max(0.01) * ns,
            },
            None => Effect { left: flow.lz4_ratio * left, ns },
        }
    }

    fn find_best_way(&self, flow: &FlowRecord) -> (usize, f64) {
        let all = self.ways.clone().map(|way| (way, self.way_ns(flow, way)));
        all.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY))
    }

    fn flow_record(&mut self, key: FlowKey) -> FlowRecord {
        if self.young.len() >= FLOWS && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        let known = self.young.get(&key).or_else(|| self.old.get(&key));
        known.copied().unwrap_or_default()
    }
}

/// One message, encoded.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub bytes_in: usize,
    /// Bytes that go over the link, compressed or not.
    pub bytes_out: usize,
    pub smaller: bool,
    pub ns: u64,
}

fn weighted_mean(before: f64, now: f64) -> f64 {
    // A call that was interrupted by a whole time slice counts as a slow one, not as a hundred.
    before + WEIGHT * (now.min(before * 8.0 + 1.0) - before)
}
