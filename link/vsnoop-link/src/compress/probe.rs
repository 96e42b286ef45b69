//! Can these bytes be made smaller at all? Answered from a sample, for a few microseconds.
//!
//! Two looks at 4 KB from the middle of the message, past headers and past the first bytes of a
//! file: bytes that are not equally frequent (an entropy coder gains), or repetitions (lz4 gains).

const SAMPLE_BYTES: usize = 4096;
/// A smaller sample has too few bytes of each value to tell chance from skew.
const SKEW_BYTES_MIN: usize = 1024;

#[derive(Default)]
pub struct Sampler {
    scratch: Vec<u8>,
}

impl Sampler {
    /// Bytes that lz4 would make of one byte of this message, as far as the sample tells; `None` if
    /// nothing is to be gained.
    pub fn estimate_ratio(&mut self, parts: &[&[u8]]) -> Option<f64> {
        let sample = middle_bytes(parts.iter().max_by_key(|part| part.len())?);
        let bound = lz4_flex::block::get_maximum_output_size(sample.len());
        self.scratch.resize(bound.max(self.scratch.len()), 0);
        let bytes = lz4_flex::block::compress_into(sample, &mut self.scratch).ok()?;
        let ratio = bytes as f64 / sample.len().max(1) as f64;
        // A gain below is eaten by heads, and by messages that fare worse than their middle.
        (ratio < 0.94 || is_skewed(sample)).then_some(ratio.min(1.0))
    }
}

fn middle_bytes(part: &[u8]) -> &[u8] {
    let from = part.len().saturating_sub(SAMPLE_BYTES) / 2;
    &part[from..(from + SAMPLE_BYTES).min(part.len())]
}

/// The chance of two bytes being equal is at least a quarter above that of random bytes: base64 is
/// at 4 times, xz and ciphertext are at 1.
fn is_skewed(sample: &[u8]) -> bool {
    if sample.len() < SKEW_BYTES_MIN {
        return false;
    }
    let mut counts = [0u64; 256];
    sample.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
    let pairs: u64 = counts.iter().map(|count| count * count.saturating_sub(1)).sum();
    let n = sample.len() as u64;
    pairs * 256 * 4 > n * (n - 1) * 5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(bytes: usize) -> Vec<u8> {
        let mut random = fastrand::Rng::with_seed(7);
        std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
    }

    #[test]
    fn random_bytes_are_seen_as_such_at_every_size() {
        for bytes in (0..2000).chain([4096, 65_000]) {
            assert_eq!(
                Sampler::default().estimate_ratio(&[&[0; 66], &random(bytes.max(67))]),
                None,
                "{bytes}"
            );
        }
        assert_eq!(Sampler::default().estimate_ratio(&[]), None);
        assert_eq!(Sampler::default().estimate_ratio(&[&[], &[]]), None);
    }

    #[test]
    fn text_and_what_only_an_entropy_coder_shrinks_are_seen() {
        let text = "It was the best of times, it was the worst of times. ".repeat(100);
        assert!(Sampler::default().estimate_ratio(&[&[0; 66], text.as_bytes()]).unwrap() < 0.2);
        let base64: Vec<u8> = random(9000).iter().map(|byte| b'0' + byte % 64).collect();
        assert!(Sampler::default().estimate_ratio(&[&base64]).unwrap() > 0.9);
    }
}
