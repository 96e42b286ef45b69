//! What a namespace's TCP has counted.

use anyhow::{Context, Result};

use super::Netns;

impl Netns {
    /// A counter of `/proc/net/netstat`, by its group and name: `TcpExt`, `TCPOFOQueue`.
    pub fn counter(&self, group: &str, name: &str) -> Result<u64> {
        // The thread's own, for it is the thread that entered the namespace.
        let path = "/proc/thread-self/net/netstat";
        let text = self.run(|| std::fs::read_to_string(path).with_context(|| path.to_owned()))?;
        find(&text, group, name).with_context(|| format!("{path} has no counter {group} {name}"))
    }
}

/// The file has two lines for each group: names, then values.
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
}
