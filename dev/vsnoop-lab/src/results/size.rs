//! Names of transfer sizes.

/// `10 KB`: sizes are decimal, as in the paper.
pub fn size_text(size_bytes: u64) -> String {
    match size_bytes {
        n if n >= 1_000_000 && n % 1_000_000 == 0 => format!("{} MB", n / 1_000_000),
        n if n >= 1000 && n % 1000 == 0 => format!("{} KB", n / 1000),
        n => format!("{n} B"),
    }
}

/// `100kb`, for names.
pub fn size_name(size_bytes: u64) -> String {
    size_text(size_bytes).replace(' ', "").to_lowercase()
}
