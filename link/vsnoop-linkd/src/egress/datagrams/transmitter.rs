//! Gives records to the socket of a session, and counts what became of them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::batch::Records;
use crate::counters::counts::SessionCounts;
use crate::counters::stats::PeerStats;
use crate::io::udp::{Destination, Endpoints, Mark, UdpSocket};

pub struct Transmitter {
    /// `None` until the session is installed.
    pub socket: Option<UdpSocket>,
    destination: Option<Destination>,
    /// Whether records of a batch leave with one system call, or one by one.
    pub gso: bool,
    /// The shortest datagram that the host refused for its length (EMSGSIZE).
    too_long: Option<usize>,
    counts: Arc<SessionCounts>,
}

impl Transmitter {
    pub fn new(address: Option<SocketAddr>, counts: Arc<SessionCounts>) -> Self {
        let destination = address.map(|peer| Destination::new(Endpoints { peer, local: None }));
        Self { socket: None, destination, gso: true, too_long: None, counts }
    }

    pub fn set_address(&mut self, ends: Endpoints) {
        self.destination = Some(Destination::new(ends));
    }

    /// The length of the shortest datagram that the host refused with EMSGSIZE since the last call.
    pub fn take_too_long(&mut self) -> Option<usize> {
        self.too_long.take()
    }

    /// Sends one record by another socket; to `to`, if that is not the session's address.
    pub fn send_alone(
        &mut self,
        socket: &UdpSocket,
        stats: &PeerStats,
        record: &[u8],
        mark: Mark,
        to: Option<Endpoints>,
    ) {
        let mut other = to.map(Destination::new);
        let destination = other.as_mut().or(self.destination.as_mut());
        let sent = destination.map(|to| {
            to.mark = mark;
            socket.send_datagrams(to, record, record.len())
        });
        self.count_sent(stats, sent, record.len(), record.len());
    }

    /// Gives records to the socket. Returns the number of leading bytes that were sent or refused;
    /// the socket has no room for the rest.
    pub fn transmit_records(&mut self, stats: &PeerStats, records: Records<'_>) -> usize {
        let Records { bytes, segment_bytes, mark } = records;
        let sent = match (&self.socket, &mut self.destination) {
            (Some(socket), Some(to)) => {
                (to.mark, to.gso) = (mark, self.gso);
                Some(socket.send_datagrams(to, bytes, segment_bytes))
            }
            _ => None,
        };
        match sent {
            Some(Ok(sent)) if sent < bytes.len() => {
                self.count_sent(stats, Some(Ok(sent)), sent, segment_bytes);
                sent
            }
            sent => {
                self.count_sent(stats, sent, bytes.len(), segment_bytes);
                bytes.len()
            }
        }
    }

    /// Counts `bytes` of records as sent or dropped. `sent` is `None` if the session has no address
    /// or no socket yet.
    fn count_sent(
        &mut self,
        stats: &PeerStats,
        sent: Option<io::Result<usize>>,
        bytes: usize,
        segment_bytes: usize,
    ) {
        let (records, bytes) = (bytes.div_ceil(segment_bytes) as u64, bytes as u64);
        if let Some(Err(error)) = &sent
            && error.raw_os_error() == Some(libc::EMSGSIZE)
        {
            // The kernel does not say which of them were too long; the longest was.
            let shorter = self.too_long.map_or(segment_bytes, |bytes| bytes.min(segment_bytes));
            self.too_long = Some(shorter);
        }
        if sent.is_some_and(|sent| sent.is_ok_and(|sent| sent as u64 == bytes)) {
            stats.records_out.add(records);
            stats.wire_bytes_out.add(bytes);
            self.counts.sent_packets.add(records);
            self.counts.sent_bytes.add(bytes);
        } else {
            stats.dropped_send.add(records, bytes);
        }
    }
}
