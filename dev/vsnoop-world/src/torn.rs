//! A hold that the engine reads while a hook writes it: each of its words is of before or of after.

use fastrand::Rng;
use vsnoop_flow::types::hold;

const WORDS: usize = size_of::<hold>() / 4;
type Words = [u32; WORDS];

const _: () = assert!(size_of::<hold>() == size_of::<Words>());

/// A hold before the latest run of a hook.
#[derive(Clone, Debug)]
pub struct Before {
    pub number: u32,
    pub hold: hold,
}

impl Before {
    /// Returns a hold that a reader may get who began before the hook ran, or ended after it.
    pub fn torn(&self, after: &hold, rng: &mut Rng) -> hold {
        let (mut mixed, before) = (words(after), words(&self.hold));
        let cut = rng.usize(0..=WORDS);
        let old = if rng.bool() { 0..cut } else { cut..WORDS };
        mixed[old.clone()].copy_from_slice(&before[old]);
        // SAFETY: as many bytes as a hold has, and any bytes are one.
        unsafe { std::mem::transmute::<Words, hold>(mixed) }
    }
}

fn words(hold: &hold) -> Words {
    // SAFETY: of one size, and a hold has no padding.
    unsafe { std::mem::transmute_copy::<hold, Words>(hold) }
}
