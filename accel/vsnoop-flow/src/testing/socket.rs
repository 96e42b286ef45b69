//! The endpoint as a socket: an application outside of it writes, reads and closes. One can be made
//! in the midst of a connection, as by TCP_REPAIR.

use fastrand::Rng;

use super::buffers::Buffers;
use super::clock::MS;
use super::end::EndSettings;
use super::segment::{ACK, Seg};
use super::tcp::{Tcp, TcpState};

/// An open connection, of which one end is to be made.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Highest ACK of the remote end, and of the end that is made.
    pub remote_ack: u32,
    pub ack: u32,
    /// Bytes that the end to be made has sent, and the remote end has not acknowledged.
    pub sent: Vec<u8>,
    /// Bytes that the remote end has sent, and no application has read.
    pub received: Vec<u8>,
    /// How much the remote end allows behind its ACK, and the end that is made.
    pub remote_window: u64,
    pub window: u64,
    pub timestamps: bool,
    pub sack: bool,
    /// Shift counts: of the remote end's window, and of the own one.
    pub remote_scale: Option<u8>,
    pub scale: u8,
    /// The remote end's last TSval.
    pub ts_recent: u32,
}

impl Tcp {
    /// An end in the midst of a connection. `stream` only names it.
    pub fn restored(mut cfg: EndSettings, stream: u64, restored: &Restored, now: u64) -> Self {
        cfg.iss = restored.remote_ack.wrapping_sub(1);
        cfg.bytes = restored.sent.len() as u64;
        (cfg.writes, cfg.write_gap_ms) = (1, 0);
        let mut tcp = Tcp::new(cfg, stream);
        tcp.state = TcpState::Open;
        tcp.opened_ns = now;
        tcp.irs = restored.ack.wrapping_sub(1);
        (tcp.timestamps, tcp.sack) = (restored.timestamps, restored.sack);
        tcp.snd_scale = restored.remote_scale.unwrap_or(u8::MAX);
        tcp.rcv_scale = restored.scale;
        tcp.ts_recent = restored.ts_recent;
        tcp.una = 1;
        tcp.nxt = 1 + restored.sent.len() as u64;
        (tcp.snd_edge, tcp.max_window) = (1 + restored.remote_window, restored.remote_window);
        tcp.rcv_nxt = 1 + restored.received.len() as u64;
        tcp.right_edge = (1 + restored.window).max(tcp.rcv_nxt);
        tcp.rcv_wup = tcp.rcv_nxt;
        if !restored.sent.is_empty() {
            tcp.rto_ns = Some(now + 3_000 * MS);
        }
        tcp.buffers = Some(Buffers {
            sent: restored.sent.clone(),
            received: restored.received.clone(),
            is_finished: false,
        });
        tcp
    }

    /// The buffers of the application outside, if there is one.
    pub fn buffers(&self) -> Option<&Buffers> {
        self.buffers.as_ref()
    }

    /// Writes; all is accepted.
    pub fn write(&mut self, now: u64, bytes: &[u8], rng: &mut Rng) {
        if let Some(buffers) = &mut self.buffers {
            buffers.sent.extend(bytes);
            self.cfg.bytes += bytes.len() as u64;
            self.pump(now, rng, false);
        }
    }

    /// Bytes that were written and not yet sent.
    pub fn unsent(&self) -> u64 {
        (self.cfg.bytes + 1).saturating_sub(self.nxt)
    }

    /// Reads up to `most` bytes.
    pub fn read(&mut self, now: u64, most: usize) -> Vec<u8> {
        let count = self.unread().min(most as u64);
        let from = self.read as usize - 1;
        let Some(buffers) = &self.buffers else { return Vec::new() };
        let bytes = buffers.received[from..from + count as usize].to_vec();
        self.read += count;
        self.show_room(now);
        bytes
    }

    /// Closes for sending.
    pub fn close(&mut self, now: u64, rng: &mut Rng) {
        if let Some(buffers) = &mut self.buffers {
            buffers.is_finished = true;
            self.pump(now, rng, false);
        }
    }

    /// All that was written, with the SEQ of the first byte.
    pub fn all_written(&self) -> (u32, &[u8]) {
        (self.wire(1), self.buffers.as_ref().map_or(&[], |buffers| &buffers.sent))
    }

    /// All that waits to be read, in order.
    pub fn all_unread(&self) -> &[u8] {
        let from = self.read as usize - 1;
        let len = self.unread() as usize;
        self.buffers.as_ref().map_or(&[], |buffers| &buffers.received[from..from + len])
    }

    /// Bytes out of order.
    pub fn out_of_order(&self) -> u64 {
        self.ooo.0.iter().map(|(left, right)| right - left).sum()
    }

    /// SEQ behind all that was received, and behind all that is queued.
    pub fn received_seq(&self) -> u32 {
        self.irs.wrapping_add(self.rcv_nxt as u32)
    }

    pub fn queued_seq(&self) -> u32 {
        self.wire(self.cfg.bytes + 1 + u64::from(self.is_finished()))
    }

    /// Was it closed for sending?
    pub fn is_finished(&self) -> bool {
        self.buffers.as_ref().is_some_and(|buffers| buffers.is_finished)
    }

    /// Does a RST of this end say that it is gone?
    pub fn needs_reset(&self) -> bool {
        self.state == TcpState::Open && !(self.got_fin && self.is_finished() && self.unsent() == 0)
    }

    /// Acknowledges at once.
    pub fn acknowledge(&mut self, now: u64) {
        self.send_ack(now);
    }

    /// A window probe, which the remote end answers.
    pub fn probe(&mut self, now: u64) {
        let s = Seg::bare(self.wire(self.una).wrapping_sub(1), 0, ACK);
        self.finish(now, s);
    }

    /// The position up to which it has received when it showed its window last.
    pub fn shown_at(&self) -> u64 {
        self.rcv_wup
    }
}
