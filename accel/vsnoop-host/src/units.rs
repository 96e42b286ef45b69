//! Numbers for people: three significant digits and a unit.

/// 1.23 ms, 45.6 us, 789 ns, 12.3 s
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", three_digits(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three_digits(ns as f64 / 1e6)),
        _ if ns < 120_000_000_000 => format!("{} s", three_digits(ns as f64 / 1e9)),
        _ if ns < 7_200_000_000_000 => format!("{} min", ns / 60_000_000_000),
        _ => format!("{} h", ns / 3_600_000_000_000),
    }
}

/// 0.0 s, 12.3 s: a running time, for refreshed output.
pub fn seconds(seconds: f64) -> String {
    if seconds < 120.0 { format!("{seconds:.1} s") } else { duration((seconds * 1e9) as u64) }
}

/// 16 MiB, 1.50 GiB: powers of 1024, as options take sizes. [`bit_rate`] counts in powers of 1000.
pub fn bytes(bytes: u64) -> String {
    let (value, unit) = bytes_unit(bytes);
    format!("{} {unit}", three_digits_or_whole(value))
}

/// 0.25/16 MiB: a part of some memory, in the unit of the whole.
pub fn bytes_part(part_bytes: u64, bytes: u64) -> String {
    let (value, unit) = bytes_unit(bytes);
    let part = part_bytes as f64 * value / (bytes.max(1)) as f64;
    format!("{}/{} {unit}", three_digits_or_whole(part), three_digits_or_whole(value))
}

fn bytes_unit(bytes: u64) -> (f64, &'static str) {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    (value, UNITS[unit])
}

/// Bits per second, in powers of 1000.
pub fn bit_rate(bits_per_second: u64) -> String {
    let (mut value, mut unit) = (bits_per_second as f64, "b/s");
    for larger in ["kb/s", "Mb/s", "Gb/s"] {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    if value < 10.0 && unit != "b/s" {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// 1,234,567
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// 31 %
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

pub fn plural(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{} {one}s", count(number)) }
}

fn three_digits_or_whole(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { three_digits(value) }
}

fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_change_their_unit_in_time() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_234), "1.23 us");
        assert_eq!(duration(45_600_000), "45.6 ms");
        assert_eq!(duration(12_300_000_000), "12.3 s");
        assert_eq!(duration(180_000_000_000), "3 min");
        assert_eq!(seconds(802e-9), "0.0 s");
        assert_eq!(seconds(12.34), "12.3 s");
        assert_eq!(seconds(180.0), "3 min");
    }

    #[test]
    fn bytes_are_counted_in_powers_of_1024() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(999_999), "977 KiB");
        assert_eq!(bytes(123_456_789_000), "115 GiB");
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(16 << 20), "16 MiB");
        assert_eq!(bytes((16 << 20) - 1), "16.0 MiB");
        assert_eq!(bytes(3 << 29), "1.50 GiB");
        assert_eq!(bytes(1 << 20), "1 MiB");
        assert_eq!(bytes_part(0, 16 << 20), "0/16 MiB");
        assert_eq!(bytes_part(4096, 256 << 10), "4/256 KiB");
        assert_eq!(bytes_part(5 << 18, 16 << 20), "1.25/16 MiB");
    }

    #[test]
    fn bit_rates_are_counted_in_powers_of_1000() {
        assert_eq!(bit_rate(0), "0 b/s");
        assert_eq!(bit_rate(999), "999 b/s");
        assert_eq!(bit_rate(2_500_000), "2.5 Mb/s");
        assert_eq!(bit_rate(1_000_000_000), "1.0 Gb/s");
        assert_eq!(bit_rate(400_000_000_000), "400 Gb/s");
    }

    #[test]
    fn counts_have_separators() {
        assert_eq!(count(0), "0");
        assert_eq!(count(123), "123");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(plural(1, "flow"), "1 flow");
        assert_eq!(plural(2000, "flow"), "2,000 flows");
    }
}
