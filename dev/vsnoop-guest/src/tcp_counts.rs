//! TCP's counters of a network namespace, by the kernel's names for them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Counts over all connections that a namespace ever had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpCounts {
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Retransmitted segments.
    pub retransmissions: u64,
    /// Probes of a window that was closed.
    pub window_probes: u64,
}

impl TcpCounts {
    /// Reads the counts of the calling thread's namespace.
    pub fn read() -> Result<Self> {
        let text = |name: &str| {
            let path = Path::new("/proc/thread-self/net").join(name);
            std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        Self::parse(&text("netstat")?, &text("snmp")?)
    }

    /// From the texts of `/proc/net/netstat` and `/proc/net/snmp`.
    pub fn parse(netstat: &str, snmp: &str) -> Result<Self> {
        let extended = |name| counter(netstat, "TcpExt", name);
        Ok(Self {
            timeouts: extended("TCPTimeouts")?,
            retransmissions: counter(snmp, "Tcp", "RetransSegs")?,
            window_probes: extended("TCPWinProbe")?,
        })
    }
}

/// A counter of such a text, by its group and name.
pub fn counter(text: &str, group: &str, name: &str) -> Result<u64> {
    find(text, group, name).with_context(|| format!("the kernel has no counter {group} {name}"))
}

/// The text has two lines for each group: names, then values.
fn find(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines =
        text.lines().filter(|line| line.split(':').next().is_some_and(|first| first == group));
    let (names, values) = (lines.next()?, lines.next()?);
    let (_, value) = names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(found, _)| *found == name)?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_group_and_name() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: A C\nIpExt: 3 4\n";
        assert_eq!(find(text, "TcpExt", "B"), Some(2));
        assert_eq!(find(text, "IpExt", "A"), Some(3));
        assert_eq!(find(text, "TcpExt", "C"), None);
        assert_eq!(find(text, "Tcp", "A"), None);
    }

    #[test]
    fn this_kernel_has_all_counters() {
        TcpCounts::read().unwrap();
    }
}
