//! Bytes that VMs have in flight: copies of segments that the hooks have let pass, until the
//! splitter wants them or the bound is reached.

use std::collections::HashMap;
use std::collections::VecDeque;

use vsnoop_flow::split::Copied;
use vsnoop_flow::types::flow_key;

/// Bytes of one connection: as much as is in flight when an old connection begins an answer.
const MOST_OF_ONE: usize = 1 << 20;
/// Bytes of all connections of a port.
const MOST: usize = 8 << 20;

/// The latest bytes of each connection that were sent without a hole.
#[derive(Clone, Debug, Default)]
pub struct Flights {
    by_key: HashMap<flow_key, Flight>,
    /// Keys in the order in which their flights began; some are gone.
    order: VecDeque<flow_key>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Flight {
    /// SEQ of the first byte.
    start: u32,
    bytes: VecDeque<u8>,
    /// When the first byte was sent, CLOCK_MONOTONIC.
    began_ns: u64,
}

/// Bytes of a connection that are in flight.
#[derive(Debug, PartialEq, Eq)]
pub struct InFlight {
    pub bytes: Vec<u8>,
    /// When the first of the connection's latest bytes was sent, CLOCK_MONOTONIC.
    pub began_ns: u64,
}

impl Flights {
    /// Notes a part of a segment.
    pub fn add(&mut self, copied: &Copied) {
        if !self.by_key.contains_key(&copied.key) {
            self.order.push_back(copied.key);
        }
        let flight = self.by_key.entry(copied.key).or_insert_with(|| Flight::begin(copied));
        let before = flight.bytes.len();
        flight.add(copied);
        self.bytes = self.bytes + flight.bytes.len() - before;
        while self.bytes > MOST {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(&oldest);
        }
        if self.order.len() > 2 * self.by_key.len() + 16 {
            self.order.retain(|key| self.by_key.contains_key(key));
        }
    }

    /// The bytes from SEQ `from` until `to`; `None` if some are not there.
    pub fn get(&self, key: &flow_key, from: u32, to: u32) -> Option<InFlight> {
        let flight = self.by_key.get(key)?;
        let skip = from.wrapping_sub(flight.start) as usize;
        let len = to.wrapping_sub(from) as usize;
        let end = skip.checked_add(len).filter(|end| *end <= flight.bytes.len())?;
        let bytes = flight.bytes.range(skip..end).copied().collect();
        Some(InFlight { bytes, began_ns: flight.began_ns })
    }

    pub fn forget(&mut self, key: &flow_key) {
        if let Some(flight) = self.by_key.remove(key) {
            self.bytes -= flight.bytes.len();
        }
    }
}

impl Flight {
    fn begin(copied: &Copied) -> Self {
        Self { start: copied.seq, bytes: VecDeque::new(), began_ns: copied.sent_ns }
    }

    fn end(&self) -> u32 {
        self.start.wrapping_add(self.bytes.len() as u32)
    }

    fn add(&mut self, copied: &Copied) {
        let known = self.end().wrapping_sub(copied.seq) as i32;
        if known < 0 || known as usize > self.bytes.len() {
            *self = Self::begin(copied);
            self.bytes.extend(&copied.bytes);
            return;
        }
        // A retransmission has bytes that are known.
        let fresh = copied.bytes.get(known as usize..).unwrap_or_default();
        self.bytes.extend(fresh);
        let over = self.bytes.len().saturating_sub(MOST_OF_ONE);
        self.bytes.drain(..over);
        self.start = self.start.wrapping_add(over as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> flow_key {
        flow_key { sender_port: port, ..Default::default() }
    }

    fn sent(port: u16, seq: u32, bytes: &[u8]) -> Copied {
        Copied { key: key(port), seq, bytes: bytes.to_vec(), sent_ns: 7 }
    }

    fn bytes_of(flights: &Flights, from: u32, to: u32) -> Option<Vec<u8>> {
        flights.get(&key(1), from, to).map(|flight| flight.bytes)
    }

    #[test]
    fn what_was_sent_without_a_hole_is_there() {
        let mut flights = Flights::default();
        flights.add(&sent(1, u32::MAX - 1, b"abc"));
        flights.add(&sent(1, 1, b"de"));
        assert_eq!(bytes_of(&flights, u32::MAX, 2), Some(b"bcd".to_vec()));
        assert_eq!(bytes_of(&flights, u32::MAX, 4), None);
        assert_eq!(flights.get(&key(2), 0, 0), None);
    }

    #[test]
    fn a_retransmission_adds_only_what_is_new() {
        let mut flights = Flights::default();
        flights.add(&sent(1, 100, b"abcd"));
        flights.add(&sent(1, 101, b"bcdef"));
        flights.add(&sent(1, 100, b"ab"));
        assert_eq!(bytes_of(&flights, 100, 106), Some(b"abcdef".to_vec()));
    }

    #[test]
    fn a_hole_begins_a_new_flight() {
        let mut flights = Flights::default();
        flights.add(&sent(1, 100, b"ab"));
        flights.add(&sent(1, 103, b"d"));
        assert_eq!(bytes_of(&flights, 100, 102), None);
        assert_eq!(bytes_of(&flights, 103, 104), Some(b"d".to_vec()));
        flights.add(&sent(1, 50, b"z"));
        assert_eq!(bytes_of(&flights, 50, 51), Some(b"z".to_vec()));
    }

    #[test]
    fn memory_is_bounded() {
        let mut flights = Flights::default();
        let part = [0; 4096];
        for port in 0..4 * (MOST / 4096) as u16 {
            flights.add(&sent(port, 1, &part));
            flights.add(&sent(port, 4097, &part));
        }
        assert!(flights.bytes <= MOST);
        assert!(flights.order.len() <= 2 * flights.by_key.len() + 16);
        for at in 0..2 * (MOST_OF_ONE / 4096) as u32 {
            flights.add(&sent(1, 9000 + 4096 * at, &part));
        }
        assert!(flights.by_key[&key(1)].bytes.len() <= MOST_OF_ONE);
        flights.forget(&key(1));
        let left: usize = flights.by_key.values().map(|flight| flight.bytes.len()).sum();
        assert_eq!(left, flights.bytes);
    }
}
