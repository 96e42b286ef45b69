//! One direction of the network, and its faults.

use std::rc::Rc;

use fastrand::Rng;
use proptest::prelude::*;

use super::clock::MS;
use super::end::rate;
use super::segment::Seg;

/// Probabilities are per thousand.
#[derive(Clone, Debug)]
pub struct Network {
    pub delay_us: u64,
    pub jitter_us: u64,
    pub loss: u32,
    pub duplicate: u32,
    pub corrupt: u32,
    pub reorder: u32,
    pub congestion: u32,
}

/// Any network.
pub fn network() -> impl Strategy<Value = Network> {
    (10u64..5_000, prop_oneof![Just(0u64), 1u64..2_000])
        .prop_flat_map(|(delay_us, jitter_us)| {
            (Just((delay_us, jitter_us)), rate(80), rate(50), rate(30), rate(60), rate(30))
        })
        .prop_map(|((delay_us, jitter_us), loss, duplicate, corrupt, reorder, congestion)| {
            Network { delay_us, jitter_us, loss, duplicate, corrupt, reorder, congestion }
        })
}

impl Network {
    /// Copies of a segment that arrive, with their delays in ns. `hostile`: with faults, else with
    /// delays only; `ecn`: it may get a CE mark.
    pub fn carry(&self, mut s: Seg, hostile: bool, ecn: bool, rng: &mut Rng) -> Vec<(u64, Seg)> {
        let mut delay = self.delay_us * 1_000;
        let mut copies = 1;
        let happens = |rng: &mut Rng, per_mille| rng.u32(0..1000) < per_mille;
        if hostile {
            delay += rng.u64(0..=self.jitter_us * 1_000);
            if happens(rng, self.loss) {
                copies = 0;
            } else if happens(rng, self.duplicate) {
                copies = 2;
            }
            if happens(rng, self.reorder) {
                delay += rng.u64(0..20 * MS);
            }
            if ecn && s.len() > 0 && happens(rng, self.congestion) {
                s.ce = true;
            }
            if happens(rng, self.corrupt) {
                corrupt(&mut s, rng);
            }
        }
        let mut arriving = Vec::with_capacity(copies);
        for _ in 0..copies {
            arriving.push((delay, s.clone()));
            delay += rng.u64(0..2 * MS);
        }
        arriving
    }
}

fn corrupt(s: &mut Seg, rng: &mut Rng) {
    s.corrupt = true;
    match rng.u32(0..8) {
        0 => s.seq ^= 1 << rng.u32(0..32),
        1 => s.ack ^= 1 << rng.u32(0..32),
        2 => s.flags ^= 1 << rng.u32(0..8),
        3 => s.window ^= 1 << rng.u32(0..16),
        4 => s.ts = s.ts.map(|(v, e)| (v ^ 1 << rng.u32(0..32), e)),
        5 => s.foreign = true,
        _ => {
            let mut data = s.data.to_vec();
            if !data.is_empty() {
                let at = rng.usize(0..data.len());
                data[at] ^= 1 << rng.u32(0..8);
            }
            s.data = Rc::from(data);
        }
    }
}
