//! Settings of an uplink: the rate of the last hop before it, and the queue there.

use crate::size;

/// Range of rates that the hooks can compute with, bits per second.
pub const RATES: std::ops::RangeInclusive<u64> = 1_000_000..=400_000_000_000;

/// Range of queues of a switch's port, bytes.
const BUFFERS: std::ops::RangeInclusive<u64> = 16 << 10..=256 << 20;

/// Default queue, bytes.
pub const DEFAULT_BUFFER: u32 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rate {
    /// The link speed of the uplink.
    Link,
    BitsPerSecond(u64),
}

/// Rules for a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error(
        "give a rate such as 1G, 25G or 800M (bits per second), or `link` for the link speed of the \
         uplink"
    )]
    Rate,
    #[error("incast control works from 1M to 400G bits per second")]
    RateBounds,
    #[error("the queue of the last hop has 16K to 256M bytes")]
    Buffer,
    #[error("give the name of an interface")]
    Uplink,
}

/// Bits per second with an optional suffix, in powers of 1000.
pub fn rate(text: &str) -> Result<Rate, SettingError> {
    if text == "link" {
        return Ok(Rate::Link);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "bit" => 1.0,
        "k" | "kbit" => 1e3,
        "m" | "mbit" => 1e6,
        "g" | "gbit" => 1e9,
        _ => return Err(SettingError::Rate),
    };
    let bits = digits.parse::<f64>().map_err(|_| SettingError::Rate)? * unit;
    bits_per_second(bits as u64)
}

pub fn bits_per_second(bits: u64) -> Result<Rate, SettingError> {
    RATES.contains(&bits).then_some(Rate::BitsPerSecond(bits)).ok_or(SettingError::RateBounds)
}

/// Bytes with an optional suffix, in powers of 1024.
pub fn buffer(text: &str) -> Result<u32, SettingError> {
    size::parse(text)
        .filter(|bytes| BUFFERS.contains(bytes))
        .map(|bytes| bytes as u32)
        .ok_or(SettingError::Buffer)
}

/// A rate in the syntax of the option.
pub fn rate_text(bits: u64) -> String {
    size::with_suffix(bits, 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_suffixes_in_powers_of_a_thousand() {
        assert_eq!(rate("1G"), Ok(Rate::BitsPerSecond(1_000_000_000)));
        assert_eq!(rate("2.5gbit"), Ok(Rate::BitsPerSecond(2_500_000_000)));
        assert_eq!(rate("800m"), Ok(Rate::BitsPerSecond(800_000_000)));
        assert_eq!(rate("link"), Ok(Rate::Link));
        for wrong in
            ["", "0", "-1G", "1T", "fast", "500G", "100K", "nan", "inf", "1e400", "1G 2G", "G"]
        {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_queue_has_bounds() {
        assert_eq!(buffer("16K"), Ok(16 << 10));
        assert_eq!(buffer("256M"), Ok(256 << 20));
        for wrong in ["", "0", "16383", "257M", "5G", "-64K", "64X"] {
            assert!(buffer(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_was_parsed_is_written_as_it_would_be_parsed_again() {
        for text in ["1G", "2500M", "1234567K", "400G", "1000001"] {
            let Ok(Rate::BitsPerSecond(bits)) = rate(text) else { panic!("{text}") };
            assert_eq!(rate_text(bits), text);
        }
        for text in ["16K", "100000", "96K", "1M"] {
            assert_eq!(size::render_size(buffer(text).unwrap().into()), text);
        }
    }

    /// The record has 32 bits for it.
    #[test]
    fn every_rate_fits_into_the_record() {
        for bits in [*RATES.start(), *RATES.end()] {
            let rate = vsnoop_bpf::uplink_rate(bits);
            assert!(rate > 1 && rate < u32::MAX, "{bits}");
        }
    }
}
