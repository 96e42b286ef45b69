//! The memory of the host.

use std::fs;

/// The memory of this host, bytes; `None` when /proc does not tell.
pub fn host_memory() -> Option<u64> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// A value of /proc/meminfo, bytes.
pub(super) fn parse_meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_the_host_is_read() {
        let text = "MemTotal:       24684904 kB\nMemFree:        21415160 kB\n";
        assert_eq!(parse_meminfo(text, "MemTotal:"), Some(24_684_904 * 1024));
        assert_eq!(parse_meminfo("MemFree: 1 kB\n", "MemTotal:"), None);
        assert!(host_memory().is_some());
    }
}
