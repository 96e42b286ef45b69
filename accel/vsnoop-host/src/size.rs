//! Sizes of memory and queues, as texts have them.

/// Bytes with an optional suffix, in powers of 1024.
pub fn parse(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1 << 10,
        "M" | "MB" | "MIB" => 1 << 20,
        "G" | "GB" | "GIB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// In the syntax of [`parse`], as short as it is exact: 16M, 1000.
pub fn render_size(bytes: u64) -> String {
    with_suffix(bytes, 1024)
}

/// `base`: of the suffixes K, M and G.
pub(crate) fn with_suffix(mut number: u64, base: u64) -> String {
    let mut suffixes = ["", "K", "M", "G"].into_iter();
    let mut suffix = suffixes.next().unwrap_or_default();
    while number > 0
        && number.is_multiple_of(base)
        && let Some(larger) = suffixes.next()
    {
        (number, suffix) = (number / base, larger);
    }
    format!("{number}{suffix}")
}
