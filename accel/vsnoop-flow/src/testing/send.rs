//! The sending half of the endpoint: congestion control and retransmission.

use fastrand::Rng;

use super::clock::MS;
use super::segment::*;
use super::tcp::{Tcp, TcpState};

impl Tcp {
    /// The position after the last byte that the application has written.
    fn written(&self, now: u64) -> u64 {
        let portion = self.cfg.bytes.div_ceil(self.cfg.writes);
        let portions = (now - self.opened_ns) / (self.cfg.write_gap_ms.max(1) * MS) + 1;
        1 + (portion * portions).min(self.cfg.bytes)
    }

    /// Time of the application's next write.
    pub(super) fn next_write(&self, now: u64) -> Option<u64> {
        if self.state != TcpState::Open || self.written(now) > self.cfg.bytes {
            return None;
        }
        let gap = self.cfg.write_gap_ms.max(1) * MS;
        Some(self.opened_ns + ((now - self.opened_ns) / gap + 1) * gap)
    }

    fn may_close(&self, now: u64) -> bool {
        if let Some(buffers) = self.buffers() {
            return buffers.is_finished;
        }
        self.written(now) > self.cfg.bytes && (!self.cfg.closes_last || self.got_fin)
    }

    /// Processes an ACK of `ack`; `plain`: without data or a new window.
    pub(super) fn on_ack(&mut self, now: u64, ack: u64, plain: bool) {
        let mss = u64::from(self.cfg.mss);
        if ack > self.una {
            let newly = ack - self.una;
            self.una = ack;
            self.sacked.forget_below(ack);
            self.dup_acks = 0;
            self.backoff = 0;
            let growth = if self.cwnd < self.ssthresh { newly } else { mss * mss / self.cwnd + 1 };
            self.cwnd = (self.cwnd + growth).min(4 << 20);
            self.rtx = self.rtx.map(|r| r.max(ack));
            if self.in_recovery && ack >= self.recover {
                self.in_recovery = false;
                self.rtx = None;
            } else if self.in_recovery && self.rtx.is_none() {
                // A partial ACK: the next hole.
                self.rtx = Some(ack);
            }
            self.rto_ns = (self.nxt > self.una).then_some(now + self.rto());
            self.persist_ns = None;
        } else if plain && self.nxt > self.una {
            self.dup_acks += 1;
            if self.dup_acks == 3 && !self.in_recovery {
                self.in_recovery = true;
                self.recover = self.nxt;
                self.ssthresh = (self.cwnd / 2).max(2 * mss);
                self.cwnd = self.ssthresh;
                self.rtx = Some(self.una);
            }
        }
    }

    /// A report that a segment from this SEQ on was too big for the path (RFC 1191). Linux ignores
    /// one about bytes that are acknowledged, or were never sent; else it sends all again.
    pub fn too_big(&mut self, now: u64, seq: u32, mtu: u16, rng: &mut Rng) {
        let at = self.una as i64 + i64::from(seq.wrapping_sub(self.wire(self.una)) as i32);
        let mss = mtu.saturating_sub(40 + if self.timestamps { 12 } else { 0 });
        if at < self.una as i64 || at >= self.nxt as i64 || mss >= self.cfg.mss {
            return;
        }
        self.cfg.mss = mss;
        self.in_recovery = true;
        self.recover = self.nxt;
        self.rtx = Some(self.una);
        self.pump(now, rng, false);
    }

    fn rto(&self) -> u64 {
        (self.cfg.rto_ms << self.backoff.min(5)).min(4_000) * MS
    }

    pub(super) fn send_timers(&mut self, now: u64, rng: &mut Rng) {
        if self.rto_ns.is_some_and(|t| t <= now) {
            self.rto_ns = None;
            if self.nxt > self.una {
                if self.backoff >= self.cfg.retries {
                    self.state = TcpState::Reset;
                    return;
                }
                self.backoff += 1;
                self.in_recovery = true;
                self.recover = self.nxt;
                self.ssthresh = (self.cwnd / 2).max(2 * u64::from(self.cfg.mss));
                self.cwnd = u64::from(self.cfg.mss);
                self.rtx = Some(self.una);
                self.sacked = Ranges::default();
                self.dup_acks = 0;
            }
        }
        let probe = self.persist_ns.is_some_and(|t| t <= now);
        if probe {
            self.persist_ns = None;
            self.backoff += 1;
        }
        self.pump(now, rng, probe);
        if self.keepalive_ns <= now && self.buffers().is_none() {
            self.keepalive_ns = now + 5_000 * MS;
            let s = Seg::bare(self.wire(self.una).wrapping_sub(1), 0, ACK);
            self.finish(now, s);
        }
    }

    /// Sends all that may be sent. `probe`: the persist timer expired.
    pub(super) fn pump(&mut self, now: u64, rng: &mut Rng, probe: bool) {
        if self.state != TcpState::Open {
            return;
        }
        self.retransmit(now, rng);
        let fin = self.cfg.bytes + 1;
        let (written, may_close) = (self.written(now), self.may_close(now));
        let mss = u64::from(self.cfg.mss);
        while self.rtx.is_none() {
            let at = self.nxt;
            if at > fin || (at == fin && !may_close) || (at < fin && at >= written) {
                break;
            }
            if at == fin {
                self.transmit(now, fin, 0, true, rng);
                continue;
            }
            let room = self.snd_edge.min(self.una + self.cwnd).saturating_sub(at);
            let mut len = (written - at).min(room);
            // Silly window avoidance, sender's side.
            let enough = len == written - at || len >= mss || len >= self.max_window / 2;
            if len == 0 || !enough {
                if probe && self.una == self.nxt {
                    if len > 0 {
                        self.transmit(now, at, len.min(mss), false, rng);
                    } else if self.cfg.data_probes {
                        self.transmit(now, at, 1, false, rng);
                    } else {
                        let s = Seg::bare(self.wire(self.una).wrapping_sub(1), 0, ACK);
                        self.finish(now, s);
                    }
                }
                break;
            }
            let units = rng.u64(1..=u64::from(self.cfg.units.max(1)));
            len = len.min(units * mss);
            if rng.u32(0..1000) < self.cfg.tiny {
                len = len.min(rng.u64(1..100));
            }
            let with_fin = at + len == fin && may_close && rng.bool();
            self.transmit(now, at, len, with_fin, rng);
        }
        if self.nxt > self.una {
            self.rto_ns = self.rto_ns.or(Some(now + self.rto()));
        } else if self.nxt < written {
            self.persist_ns = self.persist_ns.or(Some(now + self.rto()));
        }
    }

    /// Retransmits bytes that count as lost, in segments of any size.
    fn retransmit(&mut self, now: u64, rng: &mut Rng) {
        let fin = self.cfg.bytes + 1;
        let mss = u64::from(self.cfg.mss);
        while let Some(at) = self.rtx {
            let at = self.sacked.reach(at.max(self.una));
            if at >= self.recover {
                self.rtx = None;
                return;
            }
            let head = at == self.una;
            if !head && at >= self.snd_edge.min(self.una + self.cwnd) {
                self.rtx = Some(at);
                return;
            }
            let limit = self.recover.min(self.sacked.next_start(at).unwrap_or(u64::MAX)).min(fin);
            let room = self.snd_edge.min(self.una + self.cwnd).saturating_sub(at);
            let most = mss * rng.u64(1..=u64::from(self.cfg.units.clamp(1, 4)));
            let mut len = limit.saturating_sub(at).min(most);
            len = len.min(if room == 0 && head { mss } else { room });
            if len > 1 && rng.u8(0..8) == 0 {
                len = rng.u64(1..len);
            }
            let with_fin = at + len == fin && self.nxt > fin;
            if len == 0 && !with_fin {
                self.rtx = None;
                return;
            }
            self.retransmissions += 1;
            self.rtx = Some(at + len + u64::from(with_fin));
            let nxt = self.nxt;
            self.transmit(now, at, len, with_fin, rng);
            self.nxt = nxt;
            // Without SACK or a timeout one hole is known at a time.
            if self.in_recovery && self.dup_acks >= 3 && self.sacked.0.is_empty() {
                self.rtx = None;
                return;
            }
        }
    }

    fn transmit(&mut self, now: u64, at: u64, len: u64, fin: bool, rng: &mut Rng) {
        let mut s = Seg::bare(self.wire(at), 0, 0);
        s.data = self.payload(at, len);
        s.unit = self.cfg.mss;
        let written = self.written(now);
        if len > 0 && (at + len >= written || rng.u8(0..16) == 0) {
            s.flags |= PSH;
        }
        if fin {
            s.flags |= FIN;
        }
        if rng.u32(0..1000) < self.cfg.urgent {
            s.flags |= URG;
        }
        if self.cwr_due && len > 0 {
            s.flags |= CWR;
            self.cwr_due = false;
        }
        self.nxt = self.nxt.max(at + len + u64::from(fin));
        self.finish(now, s);
    }
}
