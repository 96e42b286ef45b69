//! A TCP endpoint, as strict as Linux's; the tests use it for sender and VM.
//!
//! Sans-I/O: segments go in through [`Tcp::input`], time through [`Tcp::timers`], segments come out
//! in `out`. Sending (slow start, SACK, fast retransmit, timeouts, window probes) is in `send.rs`.
//!
//! Strict means: it accepts nothing beyond the right edge, checks timestamps (PAWS), answers and
//! drops an ACK of bytes that were never sent (RFC 5961), sends challenge ACKs for RST and SYN in
//! the window, and answers old segments.

use std::collections::VecDeque;
use std::rc::Rc;

use fastrand::Rng;

use super::buffers::Buffers;
use super::clock::MS;
use super::end::EndSettings;
use super::segment::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    Listen,
    SynSent,
    SynReceived,
    Open,
    Reset,
}

#[derive(Clone, Debug)]
pub struct Tcp {
    pub cfg: EndSettings,
    /// Number of the stream that this end sends.
    pub stream: u64,
    pub state: TcpState,
    pub out: VecDeque<Seg>,
    pub opened_ns: u64,

    // Agreed in the handshake.
    pub timestamps: bool,
    pub sack: bool,
    pub ecn: bool,
    pub snd_scale: u8,
    pub rcv_scale: u8,
    pub irs: u32,

    // Receiving; positions in the peer's stream.
    pub rcv_nxt: u64,
    pub ooo: Ranges,
    last_ooo: u64,
    /// Right edge of the window: the highest that was ever shown.
    pub right_edge: u64,
    pub(super) rcv_wup: u64,
    pub ts_recent: u32,
    peer_fin: Option<u64>,
    pub got_fin: bool,
    pub(super) read: u64,
    next_read_ns: u64,
    unacked_bytes: u64,
    quick_acks: u32,
    delack_ns: Option<u64>,
    dsack: Option<(u64, u64)>,
    echo_ce: bool,
    has_no_memory: bool,

    // Sending; positions in the own stream.
    pub una: u64,
    /// Highest position sent.
    pub nxt: u64,
    pub snd_edge: u64,
    pub(super) max_window: u64,
    wl1: u64,
    pub(super) cwnd: u64,
    pub(super) ssthresh: u64,
    pub(super) dup_acks: u32,
    /// Next position to retransmit, and the end of the retransmission.
    pub(super) rtx: Option<u64>,
    pub(super) recover: u64,
    pub(super) in_recovery: bool,
    pub(super) sacked: Ranges,
    pub(super) rto_ns: Option<u64>,
    pub(super) backoff: u32,
    pub(super) persist_ns: Option<u64>,
    pub(super) keepalive_ns: u64,
    pub(super) cwr_due: bool,
    pub(super) cwr_until: u64,
    /// Retransmitted segments.
    pub retransmissions: u64,
    /// Segments with data that PAWS refused.
    pub paws_drops: u64,
    /// An application outside reads and writes.
    pub(super) buffers: Option<Buffers>,
}

impl Tcp {
    pub fn new(cfg: EndSettings, stream: u64) -> Self {
        let cwnd = 10 * u64::from(cfg.mss);
        Tcp {
            stream,
            state: TcpState::Listen,
            out: VecDeque::new(),
            opened_ns: 0,
            timestamps: false,
            sack: false,
            ecn: false,
            snd_scale: 0,
            rcv_scale: 0,
            irs: 0,
            rcv_nxt: 0,
            ooo: Ranges::default(),
            last_ooo: 0,
            right_edge: 0,
            rcv_wup: 0,
            ts_recent: 0,
            peer_fin: None,
            got_fin: false,
            read: 1,
            next_read_ns: 0,
            unacked_bytes: 0,
            quick_acks: 8,
            delack_ns: None,
            dsack: None,
            echo_ce: false,
            has_no_memory: false,
            una: 0,
            nxt: 0,
            snd_edge: 0,
            max_window: 0,
            wl1: 0,
            cwnd,
            ssthresh: u64::MAX,
            dup_acks: 0,
            rtx: None,
            recover: 0,
            in_recovery: false,
            sacked: Ranges::default(),
            rto_ns: None,
            backoff: 0,
            persist_ns: None,
            keepalive_ns: u64::MAX,
            cwr_due: false,
            cwr_until: 0,
            retransmissions: 0,
            paws_drops: 0,
            buffers: None,
            cfg,
        }
    }

    /// All bytes sent and acknowledged, all bytes received and read.
    pub fn is_done(&self) -> bool {
        self.state == TcpState::Open
            && self.una == self.cfg.bytes + 2
            && self.got_fin
            && self.unread() == 0
    }

    /// Has the connection ended, by close or reset?
    pub fn is_over(&self) -> bool {
        self.state == TcpState::Reset || self.is_done()
    }

    pub fn ts_now(&self, now: u64) -> u32 {
        self.cfg.ts_offset.wrapping_add((now / MS) as u32)
    }

    pub fn wire(&self, position: u64) -> u32 {
        self.cfg.iss.wrapping_add(position as u32)
    }

    fn peer_wire(&self, position: u64) -> u32 {
        self.irs.wrapping_add(position as u32)
    }

    pub fn unread(&self) -> u64 {
        (self.rcv_nxt - u64::from(self.got_fin)).saturating_sub(self.read)
    }

    /// Sends a SYN.
    pub fn open(&mut self, now: u64) {
        self.state = TcpState::SynSent;
        self.nxt = 1;
        self.send_syn(now);
    }

    /// Resets the connection, as an application may.
    pub fn abort(&mut self) {
        if self.state == TcpState::Open && !self.is_done() {
            self.state = TcpState::Reset;
            let mut s = Seg::bare(self.wire(self.nxt), self.peer_wire(self.rcv_nxt), RST | ACK);
            s.ts = None;
            self.out.push_back(s);
        }
    }

    /// Shrinks the window, as after a loss of memory.
    pub fn shrink(&mut self) {
        if self.state == TcpState::Open {
            self.cfg.rcvbuf =
                (self.cfg.rcvbuf / 3).max(u64::from(self.cfg.mss) + 200).max(2 << self.rcv_scale);
            self.right_edge = self.rcv_nxt + self.free();
        }
    }

    /// There is no memory for what comes, or there is some again: the window is taken back, as by
    /// Linux (ICSK_ACK_NOMEM), and shown again.
    pub fn has_memory(&mut self, now: u64, has_memory: bool) {
        self.has_no_memory = !has_memory;
        if self.state == TcpState::Open && has_memory {
            self.send_ack(now);
        }
    }

    pub(super) fn send_syn(&mut self, now: u64) {
        let answers = self.state == TcpState::SynReceived;
        let mut s = Seg::bare(self.wire(0), 0, SYN);
        let ecn = if answers { self.ecn } else { self.cfg.ecn };
        if answers {
            s.ack = self.peer_wire(1);
            s.flags |= ACK | if ecn { ECE } else { 0 };
        } else if ecn {
            s.flags |= ECE | CWR;
        }
        let both = |ours: bool, agreed: bool| ours && (!answers || agreed);
        if both(self.cfg.timestamps, self.timestamps) {
            s.ts = Some((self.ts_now(now), if answers { self.ts_recent } else { 0 }));
        }
        s.sack_permitted = both(self.cfg.sack, self.sack);
        if both(self.cfg.scale.is_some(), self.snd_scale != u8::MAX) {
            s.scale = self.cfg.scale;
        }
        let window = self.cfg.rcvbuf.min(65_535);
        s.window = window as u16;
        self.right_edge = self.right_edge.max(1 + window);
        self.out.push_back(s);
        self.rto_ns = Some(now + (self.cfg.rto_ms << self.backoff.min(3)) * MS);
    }

    /// Applies the options of the peer's SYN.
    fn handshake(&mut self, s: &Seg) {
        self.irs = s.seq;
        self.rcv_nxt = 1;
        self.rcv_wup = 1;
        self.timestamps = self.cfg.timestamps && s.ts.is_some();
        self.sack = self.cfg.sack && s.sack_permitted;
        self.ecn = self.cfg.ecn && s.has(ECE);
        let scaled = self.cfg.scale.is_some() && s.scale.is_some();
        // u8::MAX: do not offer a scale in the SYN-ACK.
        self.snd_scale = if scaled { s.scale.unwrap_or(0) } else { u8::MAX };
        self.rcv_scale = if scaled { self.cfg.scale.unwrap_or(0) } else { 0 };
        self.ts_recent = s.ts.map_or(0, |t| t.0);
        self.snd_edge = 1 + u64::from(s.window);
        self.max_window = u64::from(s.window);
    }

    fn establish(&mut self, now: u64) {
        self.state = TcpState::Open;
        self.opened_ns = now;
        self.una = 1;
        self.nxt = self.nxt.max(1);
        self.rto_ns = None;
        self.backoff = 0;
        self.keepalive_ns = now + 5_000 * MS;
        self.wl1 = 0;
    }

    pub fn input(&mut self, now: u64, s: &Seg, rng: &mut Rng) {
        if s.corrupt {
            return;
        }
        match self.state {
            TcpState::Listen => {
                if s.flags & (SYN | ACK | RST) == SYN {
                    self.handshake(s);
                    self.state = TcpState::SynReceived;
                    self.nxt = 1;
                    self.send_syn(now);
                } else {
                    self.refuse(s);
                }
            }
            TcpState::SynSent => {
                let acks = s.has(ACK) && s.ack == self.wire(1);
                if s.has(RST) {
                    if acks {
                        self.state = TcpState::Reset;
                    }
                } else if s.has(ACK) && !acks {
                    self.refuse(s);
                } else if acks && s.has(SYN) {
                    self.handshake(s);
                    self.establish(now);
                    self.send_ack(now);
                    self.pump(now, rng, false);
                }
            }
            TcpState::Reset => self.refuse(s),
            TcpState::SynReceived | TcpState::Open => self.segment(now, s, rng),
        }
    }

    /// Answers a segment for which there is no connection.
    fn refuse(&mut self, s: &Seg) {
        if s.has(RST) {
            return;
        }
        let mut rst = Seg::bare(s.ack, 0, RST);
        if !s.has(ACK) {
            rst.seq = 0;
            rst.ack = s.seq.wrapping_add(s.len() + u32::from(s.has(SYN)) + u32::from(s.has(FIN)));
            rst.flags |= ACK;
        }
        self.out.push_back(rst);
    }

    fn segment(&mut self, now: u64, s: &Seg, rng: &mut Rng) {
        let start = position(s.seq, self.irs, self.rcv_nxt);
        let end = start + i64::from(s.len()) + i64::from(s.has(SYN)) + i64::from(s.has(FIN));
        if self.timestamps
            && let Some((tsval, _)) = s.ts
            && !s.has(RST)
            && (tsval.wrapping_sub(self.ts_recent) as i32) < 0
        {
            self.paws_drops += u64::from(s.len() > 0);
            return self.send_ack(now);
        }
        if self.has_no_memory {
            self.right_edge = self.rcv_nxt;
        }
        let edge = self.right_edge as i64;
        let beyond = end - i64::from(s.has(FIN)) > edge && s.len() > 0 && !self.cfg.trims;
        if end < self.rcv_wup as i64 || start > edge || beyond {
            if !s.has(RST) {
                if s.len() > 0 && end <= self.rcv_nxt as i64 && start >= 1 {
                    self.dsack = Some((start as u64, end as u64));
                }
                self.send_ack(now);
            }
            return;
        }
        if s.has(RST) {
            if self.got_fin && self.una == self.cfg.bytes + 2 {
                // In TIME-WAIT a RST is ignored (RFC 1337); unread data can still be read.
            } else if start == self.rcv_nxt as i64 {
                self.state = TcpState::Reset;
            } else {
                self.send_ack(now);
            }
            return;
        }
        if s.has(SYN) {
            if self.state == TcpState::SynReceived {
                self.send_syn(now);
            } else {
                self.send_ack(now);
            }
            return;
        }
        if !s.has(ACK) {
            return;
        }
        let ack = position(s.ack, self.cfg.iss, self.una.max(1));
        if self.state == TcpState::SynReceived {
            if ack != 1 {
                return self.refuse(s);
            }
            self.establish(now);
        }
        if ack > self.nxt as i64 {
            return self.send_ack(now);
        }
        if self.timestamps
            && let Some((tsval, _)) = s.ts
            && start <= self.rcv_wup as i64
        {
            self.ts_recent = tsval;
        }
        if ack >= self.una as i64 {
            self.acknowledged(now, s, start as u64, ack as u64);
        }
        if s.ce && self.ecn {
            self.echo_ce = true;
        }
        if s.has(CWR) && !s.ce {
            self.echo_ce = false;
        }
        if s.len() > 0 || s.has(FIN) {
            self.data(now, s, start, end);
        }
        self.read_some(now);
        self.pump(now, rng, false);
    }

    fn acknowledged(&mut self, now: u64, s: &Seg, start: u64, ack: u64) {
        let window =
            u64::from(s.window) << if self.snd_scale == u8::MAX { 0 } else { self.snd_scale };
        let old_edge = self.snd_edge;
        if ack > self.una || start > self.wl1 || (start == self.wl1 && ack + window > self.snd_edge)
        {
            self.snd_edge = ack + window;
            self.wl1 = start;
            self.max_window = self.max_window.max(window);
        }
        self.keepalive_ns = now + 5_000 * MS;
        if self.sack {
            for &(left, right) in &s.sack {
                let left = position(left, self.cfg.iss, self.una);
                let right = position(right, self.cfg.iss, self.una);
                // D-SACKs and invalid blocks are ignored.
                if left >= ack as i64 && left < right && right <= self.nxt as i64 {
                    self.sacked.insert(left as u64, right as u64);
                }
            }
        }
        if s.has(ECE) && self.ecn && self.una >= self.cwr_until {
            self.ssthresh = (self.cwnd / 2).max(2 * u64::from(self.cfg.mss));
            self.cwnd = self.ssthresh;
            self.cwr_due = true;
            self.cwr_until = self.nxt;
        }
        self.on_ack(now, ack, s.len() == 0 && self.snd_edge == old_edge);
    }

    fn data(&mut self, now: u64, s: &Seg, start: i64, end: i64) {
        if let Some(buffers) = &mut self.buffers {
            buffers.receive(start, &s.data, self.rcv_nxt);
        }
        let is_checked = self.buffers.is_none();
        for (i, &byte) in s.data.iter().enumerate().filter(|_| is_checked) {
            let at = start + i as i64;
            // Bytes that it has are not compared again.
            if at >= self.rcv_nxt.max(1) as i64 {
                assert_eq!(
                    byte,
                    content(1 - self.stream, at as u64),
                    "byte {at} of the stream is wrong on the wire"
                );
            }
        }
        let mut end = end;
        let fin_at = start + i64::from(s.len());
        let mut fin = s.has(FIN);
        let edge = self.right_edge as i64;
        if fin_at > edge {
            // Only bytes within the window are accepted.
            end = edge;
            fin = false;
        }
        if fin {
            assert!(
                self.peer_fin.is_none_or(|f| f == fin_at as u64),
                "the FIN moved from {:?} to {fin_at}",
                self.peer_fin
            );
            self.peer_fin = Some(fin_at as u64);
        }
        if end <= self.rcv_nxt as i64 {
            if self.cfg.dsack && start >= 1 {
                self.dsack = Some((start as u64, end as u64));
            }
            return self.send_ack(now);
        }
        let start = start.max(1) as u64;
        if start > self.rcv_nxt {
            self.ooo.insert(start, end as u64);
            self.last_ooo = start;
            self.quick_acks = 8;
            return self.send_ack(now);
        }
        let before = self.rcv_nxt;
        let had_hole = !self.ooo.0.is_empty();
        self.ooo.insert(self.rcv_nxt, end as u64);
        self.rcv_nxt = self.ooo.reach(self.rcv_nxt);
        self.ooo.forget_below(self.rcv_nxt);
        self.got_fin = self.peer_fin.is_some_and(|f| self.rcv_nxt > f);
        self.unacked_bytes += self.rcv_nxt - before;
        let at_once = had_hole
            || self.got_fin
            || self.quick_acks > 0
            || !self.cfg.delayed_ack
            || self.unacked_bytes >= 2 * u64::from(s.unit.max(1));
        if at_once {
            self.quick_acks = self.quick_acks.saturating_sub(1);
            self.send_ack(now);
        } else if self.delack_ns.is_none() {
            self.delack_ns = Some(now + 40 * MS);
        }
    }

    fn free(&self) -> u64 {
        let rcvbuf = if self.has_no_memory { 0 } else { self.cfg.rcvbuf };
        rcvbuf.saturating_sub(self.unread())
    }

    /// The window field for the next segment. The edge is never taken back, as in Linux's
    /// tcp_select_window(), but by [`Self::shrink`].
    fn window(&mut self) -> u16 {
        let unit = 1u64 << self.rcv_scale;
        let current = self.right_edge.saturating_sub(self.rcv_nxt);
        let mut window = self.free() & !(unit - 1);
        if window < current {
            window = current.div_ceil(unit) * unit;
        }
        let field = (window >> self.rcv_scale).min(65_535);
        self.right_edge = self.right_edge.max(self.rcv_nxt + (field << self.rcv_scale));
        field as u16
    }

    /// Fills in what every segment carries.
    pub(super) fn finish(&mut self, now: u64, mut s: Seg) {
        s.ack = self.peer_wire(self.rcv_nxt);
        s.flags |= ACK;
        s.window = self.window();
        if self.timestamps {
            s.ts = Some((self.ts_now(now), self.ts_recent));
        }
        if self.sack {
            let mut blocks: Vec<(u64, u64)> = Vec::new();
            blocks.extend(self.dsack.take().filter(|_| self.cfg.dsack));
            let newest = self.ooo.0.iter().rev().find(|r| r.0 <= self.last_ooo);
            blocks.extend(newest);
            blocks.extend(self.ooo.0.iter().filter(|r| Some(*r) != newest));
            blocks.truncate(3);
            s.sack = blocks.iter().map(|b| (self.peer_wire(b.0), self.peer_wire(b.1))).collect();
        }
        if self.echo_ce {
            s.flags |= ECE;
        }
        self.rcv_wup = self.rcv_nxt;
        self.unacked_bytes = 0;
        self.delack_ns = None;
        self.out.push_back(s);
    }

    pub(super) fn send_ack(&mut self, now: u64) {
        let s = Seg::bare(self.wire(self.nxt), 0, ACK);
        self.finish(now, s);
    }

    /// The application reads, if it is time.
    fn read_some(&mut self, now: u64) {
        if self.buffers.is_some() || self.unread() == 0 || now < self.next_read_ns {
            return;
        }
        self.read += self.unread().min(self.cfg.read);
        self.next_read_ns = now + self.cfg.read_gap_ms * MS;
        self.show_room(now);
    }

    /// Shows the room behind what was read, if it is worth a segment.
    pub(super) fn show_room(&mut self, now: u64) {
        let offered = self.rcv_nxt + self.free();
        let worth = u64::from(self.cfg.mss).min(self.cfg.rcvbuf / 2);
        if self.state == TcpState::Open
            && offered >= self.right_edge + worth.max(1 << self.rcv_scale)
            && !self.got_fin
        {
            self.send_ack(now);
        }
    }

    /// Serves the timers that have expired.
    pub fn timers(&mut self, now: u64, rng: &mut Rng) {
        if self.state == TcpState::SynSent || self.state == TcpState::SynReceived {
            if self.rto_ns.is_some_and(|t| t <= now) {
                self.backoff += 1;
                self.send_syn(now);
            }
            return;
        }
        if self.state != TcpState::Open {
            return;
        }
        self.read_some(now);
        if self.delack_ns.is_some_and(|t| t <= now) {
            self.send_ack(now);
        }
        self.send_timers(now, rng);
    }

    /// Time at which [`Self::timers`] must be called next.
    pub fn next_timer(&self, now: u64) -> Option<u64> {
        if self.state == TcpState::Reset {
            return None;
        }
        let reads = self.buffers.is_none() && self.state == TcpState::Open && self.unread() > 0;
        let read = reads.then_some(self.next_read_ns);
        let open = self.state == TcpState::Open;
        let keepalive =
            (open && !self.is_done() && self.buffers.is_none()).then_some(self.keepalive_ns);
        let times =
            [self.rto_ns, self.persist_ns, self.delack_ns, read, keepalive, self.next_write(now)];
        times.into_iter().flatten().min().map(|t| t.max(now + 1_000))
    }

    /// The bytes that this end sends from position `start`.
    pub fn payload(&self, start: u64, len: u64) -> Rc<[u8]> {
        if let Some(buffers) = &self.buffers {
            return buffers.payload(start, len);
        }
        (start..start + len).map(|p| content(self.stream, p)).collect()
    }
}
