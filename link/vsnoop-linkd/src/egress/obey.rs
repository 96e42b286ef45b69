//! Carries out the orders of the control thread.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::Egress;
use super::order::Order;
use super::peer_sender::PeerSender;
use super::send_context::SendContext;
use super::session_sender::SessionSender;
use super::token::EgressToken;
use crate::frames::compression_policy::FlowCounts;
use crate::io::udp::Endpoints;
use crate::threads::event::ControlEvent;
use crate::threads::fault::Fault;
use crate::threads::shared::Shared;
use vsnoop_link::session::SessionId;
use vsnoop_link::slots::{FrameSource, PeerSlot, PortSlot};

/// A flow that was silent for longer is not counted.
const IN_USE_NS: u64 = 10_000_000_000;

impl Egress {
    /// Carries out the orders that wait; `false`: to stop.
    pub(super) fn obey_orders(&mut self) -> bool {
        let orders: Vec<_> = self.inputs.orders.drain().collect();
        let of_sessions = |order: &Order| {
            use Order::{Down, Reload, Retire, Use};
            matches!(order, Use { .. } | Down { .. } | Retire { .. } | Reload { .. })
        };
        let changes_sessions = orders.iter().any(of_sessions);
        for order in orders {
            match order {
                Order::Install { peer, session, sender } => {
                    self.install_sender(peer, session, *sender)
                }
                Order::Use { peer, session } => {
                    self.change_sender(peer, |sender| sender.use_session(session));
                }
                Order::Retire { peer, session } => {
                    if let Some(sender) = self.senders.get_mut(peer) {
                        sender.retire_session(session, &self.watch, &self.shared.peers[peer]);
                    }
                }
                Order::Down { peer } => self.change_sender(peer, PeerSender::note_down),
                Order::Address { peer, session, ends } => {
                    self.change_sender(peer, |sender| sender.set_address(session, ends));
                }
                Order::Limit { peer, session, bytes } => {
                    self.change_sender(peer, |sender| sender.set_limit(session, bytes));
                }
                Order::Path { peer, session, loss, bytes_per_s, gso } => {
                    self.change_sender(peer, |sender| {
                        sender.set_path(session, loss, bytes_per_s, gso)
                    });
                }
                Order::Message { peer, session, item, pad_to, to } => {
                    self.send_message(peer, session, &item, pad_to, to);
                }
                Order::Label { peer, from, label } => {
                    self.change_sender(peer, |sender| sender.set_label(from, label));
                }
                Order::Apart { peer, is_apart } => {
                    self.change_sender(peer, |sender| sender.set_apart(is_apart));
                }
                Order::DeadAfter(time) => self.senders.set_dead_after(time),
                Order::Survey(done) => {
                    // The requester may have given up.
                    let _ = done.try_send(self.survey_flows());
                }
                Order::Policies(policies) => self.policies = policies,
                Order::Watch { port } => self.watch_again(port),
                Order::Reload { shared, done } => {
                    self.take_view(shared);
                    // The requester may have given up.
                    let _ = done.try_send(());
                }
                Order::Stop => return false,
            }
        }
        if changes_sessions {
            self.any_ordered = self.senders.any_ordered();
            let shared = &self.shared;
            self.senders.for_each_used(&shared.peers, |peer, sender, _| {
                shared.set_up(peer, sender.is_up());
            });
        }
        self.follow_transports();
        true
    }

    /// Sends an item of the session itself.
    fn send_message(
        &mut self,
        peer: PeerSlot,
        session: SessionId,
        item: &[u8],
        pad_to: usize,
        to: Option<Endpoints>,
    ) {
        let shared = &self.shared;
        let (udp, stats) = (&shared.udp, &shared.peers[peer]);
        let context = SendContext { udp, stats, now_ns: shared.now_ns() };
        if let Some(sender) = self.senders.get_mut(peer) {
            sender.send_message(session, context, item, pad_to, to);
        }
    }

    fn install_sender(&mut self, peer: PeerSlot, session: SessionId, sender: SessionSender) {
        let mut next_token = || {
            self.last_socket = self.last_socket.next();
            EgressToken::Socket { peer, socket: self.last_socket }
        };
        let Some(senders) = self.senders.get_mut(peer) else { return };
        let udp = &self.shared.udp;
        if let Err(error) =
            senders.install_session(session, sender, udp, &self.watch, &mut next_token)
        {
            let fault = Fault::Broken(error);
            let _ = self.events.send(ControlEvent::Outgoing { peer, session, fault });
        }
    }

    /// Goes on with these ports and peers. Sessions of peers that were removed are retired already.
    fn take_view(&mut self, shared: Arc<Shared>) {
        let before = std::mem::replace(&mut self.sources, super::read_by_pair(&shared));
        for (source, port) in &before {
            if !self.sources.get(source).is_some_and(|now| Arc::ptr_eq(now, port)) {
                self.watch.forget(port.as_fd());
            }
        }
        for (&source, port) in &self.sources {
            if before.get(&source).is_some_and(|before| Arc::ptr_eq(before, port)) {
                continue;
            }
            if let Err(error) = self.watch.watch(port, EgressToken::Source(source).encode()) {
                let _ = self.events.send(ControlEvent::SourceFailed { source, error });
            }
        }
        self.senders.resize(shared.peers.len());
        self.shared = shared;
    }

    /// Counts the flows of each rule by how they are compressed.
    fn survey_flows(&self) -> Vec<FlowCounts> {
        let since_ns = self.shared.now_ns().saturating_sub(IN_USE_NS);
        let decision = |peer: PeerSlot, flow, policy: &_| {
            let (seen_ns, decision) = self.senders.get(peer)?.find_decision(flow, policy)?;
            (seen_ns >= since_ns).then_some(decision)
        };
        self.policies.survey_flows(decision)
    }

    /// Reads a port that has failed.
    fn watch_again(&mut self, port: PortSlot) {
        let source = FrameSource::Port(port);
        let Some(found) = self.shared.find_port(port) else { return };
        if !self.shared.reads(port, found) {
            return;
        }
        // It may have failed, and been forgotten, more than once.
        self.watch.forget(found.port.as_fd());
        if let Err(error) = self.watch.watch(&found.port, EgressToken::Source(source).encode()) {
            let _ = self.events.send(ControlEvent::SourceFailed { source, error });
        }
    }

    fn change_sender(&mut self, peer: PeerSlot, change: impl FnOnce(&mut PeerSender)) {
        if let Some(sender) = self.senders.get_mut(peer) {
            change(sender);
        }
    }
}
