//! When to dial the peer: without a session, and to replace the keys of the one in use.

use std::net::SocketAddr;

use super::{Peer, cut_reason};
use crate::session::back_off::BackOff;
use crate::session::path_mtu::PathMtu;
use crate::session::types::{Action, End, PeerSettings, Report};

/// A hub's word has the waits between calls begin anew only so often.
const FOUND_EACH_NS: u64 = 10_000_000_000;
/// Why there are no new keys where only the peer can dial.
const NOT_RENEWED: &str = "the peer, which alone can call, does not make them";

impl Peer {
    pub(super) fn configure(&mut self, settings: PeerSettings, now_ns: u64) {
        let old = std::mem::replace(&mut self.settings, settings);
        if old.largest_packet_bytes != self.settings.largest_packet_bytes {
            self.path_mtu = self.settings.largest_packet_bytes.map(PathMtu::new);
        }
        if old.back_off_ns != self.settings.back_off_ns {
            self.back_off = BackOff::new(self.settings.back_off_ns, self.random.fork());
        }
        if old.address == self.settings.address {
            return;
        }
        self.back_off.reset();
        self.dial_at_ns = None;
        self.rekeying = false;
        if self.used_session().is_none() {
            self.dial_later(now_ns);
        } else if self.settings.address.is_some() {
            self.rekey_asked = true;
        }
    }

    /// The hub says where the peer is: it is called at once, or probed there if it is up. A hub
    /// that names one address after the other has this end call no more often than it would.
    pub(super) fn note_found(&mut self, address: SocketAddr, now_ns: u64) {
        if let Some(id) = self.used_session().map(|used| used.info.id) {
            return self.probe_path(id, address, now_ns);
        }
        if now_ns < self.found_again_ns {
            return;
        }
        self.found_again_ns = now_ns.saturating_add(FOUND_EACH_NS);
        self.back_off.reset();
        self.dial_at_ns = None;
        self.dial_later(now_ns);
    }

    /// The next attempt is due, at once or after a wait.
    pub(super) fn dial_later(&mut self, now_ns: u64) {
        if self.settings.address.is_some() {
            self.dial_at_ns = Some(now_ns.saturating_add(self.back_off.wait_ns()));
        }
    }

    pub(super) fn start_dial(&mut self, now_ns: u64) {
        let Some(address) = self.settings.address.clone() else { return };
        if self.dialling || self.dial_at_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        (self.dialling, self.dial_at_ns) = (true, None);
        self.actions.push(Action::Dial { address, epoch: self.epochs.advance() });
    }

    pub(super) fn dial_failed(&mut self, reason: &str, answered: bool, now_ns: u64) {
        let reason = cut_reason(reason);
        if answered {
            self.known = None;
        }
        self.reason = Some(match &self.known {
            Some(known) => cut_reason(&format!("{known}; since then: {reason}")),
            None => reason.clone(),
        });
        // A session in use needs another attempt only if it is to be replaced.
        if self.used_session().is_some() && !self.rekeying {
            return;
        }
        self.dial_later(now_ns);
        if let Some(ends_at_ns) = self.used_session().map(|used| used.ends_at_ns) {
            return self.rekey_fails(reason, ends_at_ns, now_ns);
        }
        let Some(at_ns) = self.dial_at_ns else { return };
        if self.reported.as_ref() != Some(&reason) {
            self.reported = Some(reason.clone());
            let retry_ns = at_ns.saturating_sub(now_ns);
            self.actions.push(Action::Report(Report::DialFailed { reason, retry_ns }));
        }
    }

    /// An attempt to replace the session in use has failed.
    pub(super) fn rekey_fails(&mut self, reason: String, ends_at_ns: u64, now_ns: u64) {
        let since_ns = match &self.rekey_failed {
            Some((_, before)) if *before == reason => return,
            Some((since_ns, _)) => *since_ns,
            None => now_ns,
        };
        let left_ns = ends_at_ns.saturating_sub(now_ns);
        self.actions.push(Action::Report(Report::RekeyFailed { reason: reason.clone(), left_ns }));
        self.rekey_failed = Some((since_ns, reason));
    }

    pub(super) fn rekey(&mut self, now_ns: u64) {
        let Some(used) = self.used_session() else { return };
        let waits_ns = self.settings.rekey_ns / 2;
        if self.settings.address.is_none()
            && self.rekey_failed.is_none()
            && now_ns >= used.old_at_ns.saturating_add(waits_ns)
        {
            let ends_at_ns = used.ends_at_ns;
            return self.rekey_fails(NOT_RENEWED.to_owned(), ends_at_ns, now_ns);
        }
        if self.rekeying || self.dialling || self.settings.address.is_none() {
            return;
        }
        // The initiator rekeys. If it is late by a fourth of the interval, this end does.
        let overdue_ns = used.old_at_ns.saturating_add(self.settings.rekey_ns / 4);
        let ours = used.info.initiator == End::Us || now_ns >= overdue_ns;
        if self.rekey_asked || (ours && now_ns >= used.old_at_ns) {
            (self.rekeying, self.rekey_asked) = (true, false);
            self.back_off.reset();
            self.dial_later(now_ns);
        }
    }
}
