//! What a namespace's TCP and its devices have counted.
//!
//! [`TcpCounters`] and [`DeviceCounters`] are opened once and read often: files under /proc/net stay
//! with the namespace in which they were opened, and keep it alive.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};

use super::Netns;

/// The thread's own, for it is a thread that enters a namespace.
const DIRECTORY: &str = "/proc/thread-self/net";

/// TCP's counters of a namespace.
#[derive(Debug)]
pub struct TcpCounters {
    extended: File,
    basic: File,
}

/// Of all connections that a namespace ever had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpCounts {
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Retransmitted segments.
    pub retransmissions: u64,
    /// Probes of a window that was closed.
    pub window_probes: u64,
}

impl TcpCounters {
    pub fn read(&self) -> Result<TcpCounts> {
        let (extended, basic) = (text(&self.extended)?, text(&self.basic)?);
        let extended = |name| known(&extended, "TcpExt", name);
        Ok(TcpCounts {
            timeouts: extended("TCPTimeouts")?,
            retransmissions: known(&basic, "Tcp", "RetransSegs")?,
            window_probes: extended("TCPWinProbe")?,
        })
    }
}

/// The counters of one device.
#[derive(Debug)]
pub struct DeviceCounters {
    file: File,
    device: String,
}

impl DeviceCounters {
    /// Packets that the device should have sent and has dropped.
    pub fn dropped_on_the_way_out(&self) -> Result<u64> {
        let found = dropped(&text(&self.file)?, &self.device);
        found.with_context(|| format!("/proc/net/dev does not count for {}", self.device))
    }
}

impl Netns {
    /// A counter of `/proc/net/netstat`, by its group and name: `TcpExt`, `TCPOFOQueue`.
    pub fn counter(&self, group: &str, name: &str) -> Result<u64> {
        known(&text(&self.open("netstat")?)?, group, name)
    }

    pub fn tcp_counters(&self) -> Result<TcpCounters> {
        Ok(TcpCounters { extended: self.open("netstat")?, basic: self.open("snmp")? })
    }

    pub fn device_counters(&self, device: &str) -> Result<DeviceCounters> {
        Ok(DeviceCounters { file: self.open("dev")?, device: device.to_owned() })
    }

    fn open(&self, name: &str) -> Result<File> {
        let path = format!("{DIRECTORY}/{name}");
        self.run(|| File::open(&path).with_context(|| path.clone()))
    }
}

/// What the file says now.
fn text(file: &File) -> Result<String> {
    let mut bytes = vec![0; 16 * 1024];
    let mut length = 0;
    loop {
        let read = file.read_at(&mut bytes[length..], length as u64).context("read counters")?;
        if read == 0 {
            break;
        }
        length += read;
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
    }
    bytes.truncate(length);
    String::from_utf8(bytes).context("counters are not text")
}

fn known(text: &str, group: &str, name: &str) -> Result<u64> {
    find(text, group, name).with_context(|| format!("the kernel has no counter {group} {name}"))
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

/// A line for each device: eight numbers of what came in, then bytes, packets, errors and drops of
/// what went out.
fn dropped(text: &str, device: &str) -> Option<u64> {
    let values = text.lines().find_map(|line| {
        let (name, values) = line.split_once(':')?;
        (name.trim() == device).then_some(values)
    })?;
    values.split_whitespace().nth(8 + 3)?.parse().ok()
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
    fn drops_on_the_way_out_are_the_twelfth_number_of_the_device() {
        let text = "Inter-|   Receive    |  Transmit\n face |bytes packets |bytes packets\n\
                    \x20 tap1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    \x20   lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(dropped(text, "tap1"), Some(12));
        assert_eq!(dropped(text, "lo"), Some(0));
        assert_eq!(dropped(text, "tap"), None);
    }
}
