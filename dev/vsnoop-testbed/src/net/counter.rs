//! Counters of a namespace's TCP and devices.
//!
//! [`TcpCounters`] and [`DeviceCounters`] are opened once and read often: files under /proc/net
//! stay with the namespace in which they were opened, and keep it alive.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use vsnoop_guest::tcp_counts::{TcpCounts, counter};

use super::Netns;

/// The thread's own, for it is a thread that enters a namespace.
const DIRECTORY: &str = "/proc/thread-self/net";

/// TCP's counters of a namespace.
#[derive(Debug)]
pub struct TcpCounters {
    extended: File,
    basic: File,
}

impl TcpCounters {
    pub fn read(&self) -> Result<TcpCounts> {
        TcpCounts::parse(&text(&self.extended)?, &text(&self.basic)?)
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
        self.read(DROPPED_OUT)
    }

    /// Bytes that the device has sent, from the Ethernet header on.
    pub fn sent_bytes(&self) -> Result<u64> {
        self.read(BYTES_OUT)
    }

    pub fn received_packets(&self) -> Result<u64> {
        self.read(PACKETS_IN)
    }

    fn read(&self, place: usize) -> Result<u64> {
        let found = value(&text(&self.file)?, &self.device, place);
        found.with_context(|| format!("/proc/net/dev does not count for {}", self.device))
    }
}

impl Netns {
    /// A counter of `/proc/net/snmp` or `netstat`, by its group and name: `TcpExt`, `TCPOFOQueue`.
    pub fn counter(&self, group: &str, name: &str) -> Result<u64> {
        counter(&(text(&self.open("snmp")?)? + &text(&self.open("netstat")?)?), group, name)
    }

    pub fn tcp_counters(&self) -> Result<TcpCounters> {
        Ok(TcpCounters { extended: self.open("netstat")?, basic: self.open("snmp")? })
    }

    pub fn device_counters(&self, device: &str) -> Result<DeviceCounters> {
        Ok(DeviceCounters { file: self.open("dev")?, device: device.to_owned() })
    }

    /// Bytes that a device has sent, from the Ethernet header on.
    pub fn sent_bytes(&self, device: &str) -> Result<u64> {
        self.device_counters(device)?.sent_bytes()
    }

    fn open(&self, name: &str) -> Result<File> {
        let path = format!("{DIRECTORY}/{name}");
        self.run(|| File::open(&path).with_context(|| path.clone()))
    }
}

/// Present contents of the file.
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

/// Places in the line of a device: bytes and packets received, and six more numbers of these; then
/// bytes, packets, errors and drops of what is sent.
const PACKETS_IN: usize = 1;
const BYTES_OUT: usize = 8;
const DROPPED_OUT: usize = 11;

fn value(text: &str, device: &str, place: usize) -> Option<u64> {
    let values = text.lines().find_map(|line| {
        let (name, values) = line.split_once(':')?;
        (name.trim() == device).then_some(values)
    })?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_device_are_found_by_their_places() {
        let text = "Inter-|   Receive    |  Transmit\n face |bytes packets |bytes packets\n\
                    \x20 tap1: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    \x20   lo: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        let of_tap1 = [PACKETS_IN, BYTES_OUT, DROPPED_OUT].map(|place| value(text, "tap1", place));
        assert_eq!(of_tap1, [Some(2), Some(9), Some(12)]);
        assert_eq!(value(text, "lo", DROPPED_OUT), Some(0));
        assert_eq!(value(text, "tap", DROPPED_OUT), None);
    }
}
