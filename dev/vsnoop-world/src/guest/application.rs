//! The application in a VM with a foreign TCP (smoltcp, lwIP): reads, writes and closes as its
//! `End` says, and checks the data.

use vsnoop_flow::testing::clock::MS;
use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::segment::content;

/// Result of a read.
pub enum Received {
    Bytes(usize),
    Nothing,
    /// The peer has closed, and all its data were read.
    Fin,
}

/// A TCP's side of an established connection.
pub trait Stream {
    fn receive(&mut self, buffer: &mut [u8]) -> Received;
    /// Returns how many of `bytes` were accepted.
    fn send(&mut self, bytes: &[u8]) -> usize;
    /// Closes for sending; false if it cannot yet.
    fn close(&mut self) -> bool;
    /// Is there something to read: data, or the peer's close?
    fn has_news(&self) -> bool;
    fn has_room(&self) -> bool;
}

#[derive(Debug)]
pub struct Application {
    end: EndSettings,
    /// Number of the stream that it writes.
    stream: u64,
    /// When it first acted on an established connection.
    pub opened_ns: Option<u64>,
    pub read: u64,
    next_read_ns: u64,
    written: u64,
    pub got_fin: bool,
    pub closed: bool,
}

impl Application {
    pub fn new(end: &EndSettings) -> Self {
        Self {
            end: end.clone(),
            stream: 1,
            opened_ns: None,
            read: 0,
            next_read_ns: 0,
            written: 0,
            got_fin: false,
            closed: false,
        }
    }

    /// It is that of the sender, the VM's peer.
    pub fn becomes_sender(&mut self) {
        self.stream = 0;
    }

    /// Does what is due on an established connection.
    pub fn act(&mut self, stream: &mut impl Stream, now: u64) {
        let opened = *self.opened_ns.get_or_insert(now);
        if now >= self.next_read_ns && self.receive(stream) {
            self.next_read_ns = now + self.end.read_gap_ms * MS;
        }
        let portion = self.end.bytes.div_ceil(self.end.writes.max(1));
        let due = (portion * ((now - opened) / self.gap() + 1)).min(self.end.bytes);
        while self.written < due {
            let len = (due - self.written).min(4096);
            let bytes: Vec<u8> =
                (0..len).map(|i| content(self.stream, 1 + self.written + i)).collect();
            match stream.send(&bytes) {
                0 => break,
                sent => self.written += sent as u64,
            }
        }
        let may_close = !self.end.closes_last || self.got_fin;
        if self.written == self.end.bytes && may_close && !self.closed {
            self.closed = stream.close();
        }
    }

    /// Interval of writes, ns.
    fn gap(&self) -> u64 {
        self.end.write_gap_ms.max(1) * MS
    }

    /// Reads once; true: there was something.
    fn receive(&mut self, stream: &mut impl Stream) -> bool {
        let mut buffer = vec![0; self.end.read.min(65_536) as usize];
        match stream.receive(&mut buffer) {
            Received::Nothing => false,
            Received::Bytes(len) => {
                for (i, byte) in buffer[..len].iter().enumerate() {
                    let at = 1 + self.read + i as u64;
                    assert_eq!(
                        *byte,
                        content(1 - self.stream, at),
                        "byte {at} of the stream is wrong"
                    );
                }
                self.read += len as u64;
                true
            }
            Received::Fin => {
                self.got_fin = true;
                false
            }
        }
    }

    /// Time of its next action, if nothing arrives.
    pub fn next_act(&self, stream: &impl Stream, now: u64) -> Option<u64> {
        let reads = (!self.got_fin && stream.has_news()).then_some(self.next_read_ns);
        let is_writing = self.written < self.end.bytes && stream.has_room();
        let writes = self.opened_ns.filter(|_| is_writing);
        let writes = writes.map(|opened| opened + ((now - opened) / self.gap() + 1) * self.gap());
        reads.into_iter().chain(writes).min()
    }
}
