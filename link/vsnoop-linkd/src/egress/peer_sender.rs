//! Sends the frames for one peer, under the current one of its sessions.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Outgoing;
use super::send_context::SendContext;
use super::session_sender::{DataConnection, Datagrams, SessionSender};
use super::token::EgressToken;
use crate::counters::stats::PeerStats;
use crate::frames::compression_policy::Compression;
use crate::frames::frame::Frame;
use crate::io::poll::Watch;
use crate::io::udp::{Endpoints, UdpSocket};
use crate::threads::fault::Fault;
use vsnoop_link::compress::{Decision, Policy};
use vsnoop_link::introduction::Label;
use vsnoop_link::session::SessionId;
use vsnoop_link::slots::PeerSlot;
use vsnoop_packet::headers::FlowHash;

#[derive(Default)]
pub struct PeerSender {
    sessions: Vec<(SessionId, SessionSender)>,
    current: Option<SessionId>,
    ordered: bool,
    /// By which it knows others whose frames are relayed to it.
    labels: HashMap<PeerSlot, Label>,
    /// Its hub says that it does not relay for it now.
    is_apart: bool,
}

impl PeerSender {
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Whether a session is used.
    pub fn is_up(&self) -> bool {
        self.current.is_some()
    }

    /// The peer's hub relays for it, or says that it does not.
    pub fn set_apart(&mut self, is_apart: bool) {
        self.is_apart = is_apart;
    }

    /// The peer's hub does not relay for it.
    pub fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Frames of the peer `from` have this label from now on.
    pub fn set_label(&mut self, from: PeerSlot, label: Option<Label>) {
        match label {
            Some(label) => self.labels.insert(from, label),
            None => self.labels.remove(&from),
        };
    }

    /// The label of frames of the peer `from`.
    pub fn label_of(&self, from: PeerSlot) -> Option<Label> {
        self.labels.get(&from).copied()
    }

    fn find_session(&mut self, session: SessionId) -> Option<&mut SessionSender> {
        self.sessions.iter_mut().find(|(id, _)| *id == session).map(|(_, sender)| sender)
    }

    pub fn install_session(
        &mut self,
        session: SessionId,
        mut sender: SessionSender,
        udp: &UdpSocket,
        watch: &Watch,
        next_token: &mut dyn FnMut() -> EgressToken,
    ) -> io::Result<()> {
        match &mut sender {
            SessionSender::Datagrams(datagrams) => {
                let socket = udp.open_sender()?;
                let token = *datagrams.token.insert(next_token());
                watch.watch(&socket, token.encode())?;
                datagrams.sender.open_socket(socket);
            }
            SessionSender::Connections(connections) => {
                for data in &mut connections.connections {
                    let token = *data.token.insert(next_token());
                    watch.watch(&data.connection, token.encode())?;
                }
            }
        }
        self.sessions.push((session, sender));
        Ok(())
    }

    /// See [`Connections::set_dead_after`].
    pub fn set_dead_after(&self, time: Duration) {
        for (_, sender) in &self.sessions {
            if let SessionSender::Connections(connections) = sender {
                connections.set_dead_after(time);
            }
        }
    }

    pub fn use_session(&mut self, session: SessionId) {
        self.ordered = matches!(self.find_session(session), Some(SessionSender::Connections(_)));
        self.current = Some(session);
    }

    /// Drops frames until there is a session again.
    pub fn note_down(&mut self) {
        self.current = None;
        self.ordered = false;
    }

    pub fn retire_session(&mut self, session: SessionId, watch: &Watch, stats: &PeerStats) {
        match self.find_session(session) {
            Some(SessionSender::Connections(connections)) => {
                connections.end_connections(watch, stats)
            }
            Some(SessionSender::Datagrams(datagrams)) => {
                if let Some(socket) = datagrams.sender.socket() {
                    watch.forget(socket);
                }
                datagrams.sender.count_waiting_as_dropped(stats);
            }
            None => {}
        }
        self.sessions.retain(|(id, _)| *id != session);
        if self.current == Some(session) {
            self.note_down();
        }
    }

    pub fn set_address(&mut self, session: SessionId, ends: Endpoints) {
        if let Some(SessionSender::Datagrams(datagrams)) = self.find_session(session) {
            datagrams.sender.set_address(ends);
        }
    }

    pub fn set_limit(&mut self, session: SessionId, bytes: usize) {
        if let Some(SessionSender::Datagrams(datagrams)) = self.find_session(session) {
            datagrams.sender.set_limit(bytes);
        }
    }

    /// Sets what was measured of the path of a session's datagrams.
    pub fn set_path(&mut self, session: SessionId, loss: f64, bytes_per_s: Option<u64>, gso: bool) {
        if let Some(SessionSender::Datagrams(datagrams)) = self.find_session(session) {
            datagrams.sender.set_path(loss, bytes_per_s);
            datagrams.sender.set_gso(gso);
        }
    }

    /// How a flow is compressed under the current session, and when it was seen last.
    pub fn find_decision(&self, flow: FlowHash, policy: &Policy) -> Option<(u64, Decision)> {
        let (_, sender) = self.sessions.iter().find(|(id, _)| self.current == Some(*id))?;
        match sender {
            SessionSender::Datagrams(datagrams) => datagrams.sender.find_decision(flow, policy),
            // The flow may have moved from one connection to another.
            SessionSender::Connections(connections) => {
                let all = connections
                    .connections
                    .iter()
                    .filter_map(|data| data.connection.find_decision(flow, policy));
                all.max_by_key(|(seen_ns, _)| *seen_ns)
            }
        }
    }

    /// Sends a frame under the current session; without one it is dropped and counted.
    pub fn send_frame(
        &mut self,
        context: SendContext<'_>,
        frame: &Frame<'_>,
        compression: &Compression,
        scratch: &mut Vec<u8>,
    ) {
        let stats = context.stats;
        let bytes = frame.bytes as u64;
        let taken = match self.current.and_then(|current| self.find_session(current)) {
            None => false,
            Some(SessionSender::Datagrams(datagrams)) => {
                datagrams.sender.send_frame(context, frame, compression, scratch);
                true
            }
            Some(SessionSender::Connections(connections)) => {
                connections.send_frame(context, frame, compression, scratch)
            }
        };
        if !taken {
            stats.dropped_down.add(1, bytes);
            return;
        }
        stats.frames_out.add(1);
        stats.bytes_out.add(bytes);
        compression.rule_stats.frames.add(1);
        compression.rule_stats.bytes.add(bytes);
    }

    /// Sends a message of the session itself.
    pub fn send_message(
        &mut self,
        session: SessionId,
        context: SendContext<'_>,
        item: &[u8],
        pad_to: usize,
        to: Option<Endpoints>,
    ) {
        match self.find_session(session) {
            Some(SessionSender::Datagrams(datagrams)) => {
                datagrams.sender.send_message(context, item, pad_to, to);
            }
            Some(SessionSender::Connections(connections)) => {
                let compression = Compression { policy: None, rule_stats: Arc::default() };
                let item =
                    Outgoing { flow: FlowHash(0), parts: &[item], compression: &compression };
                connections.send_message(context, &item);
            }
            None => {}
        }
    }

    /// Sends datagrams that wait for more of their batch.
    pub fn flush(&mut self, context: SendContext<'_>) {
        for (_, sender) in &mut self.sessions {
            if let SessionSender::Datagrams(datagrams) = sender {
                datagrams.sender.flush(context);
            }
        }
    }

    /// Goes on with the socket with this token, if it is one of this peer's: writes what waits for
    /// room, and reads a connection.
    pub fn go_on(&mut self, token: EgressToken, context: SendContext<'_>) {
        for (_, sender) in &mut self.sessions {
            match sender {
                SessionSender::Datagrams(datagrams) if datagrams.token == Some(token) => {
                    datagrams.sender.resume_sending(context);
                }
                SessionSender::Datagrams(_) => {}
                SessionSender::Connections(connections) => {
                    for data in &mut connections.connections {
                        if data.token == Some(token)
                            && let Err(error) = data.connection.go_on(context.now_ns, context.stats)
                        {
                            connections.broken.get_or_insert(error);
                        }
                    }
                }
            }
        }
    }

    /// Polls blocked sockets for room, and reports faults.
    pub fn follow_transports(
        &mut self,
        watch: &Watch,
        stats: &PeerStats,
        report: &mut dyn FnMut(SessionId, Fault),
    ) {
        let mut waiting = 0;
        for (session, sender) in &mut self.sessions {
            match sender {
                SessionSender::Datagrams(datagrams) => {
                    let Datagrams { sender, token, wants_room } = &mut **datagrams;
                    let blocked = sender.is_blocked();
                    if blocked != *wants_room
                        && let (Some(socket), Some(token)) = (sender.socket(), token)
                    {
                        *wants_room = blocked;
                        if let Err(error) = watch.want_room(socket, token.encode(), blocked) {
                            report(*session, Fault::Broken(error));
                        }
                    }
                    if let Some(bytes) = sender.take_too_long() {
                        report(*session, Fault::TooLong { bytes });
                    }
                    waiting += sender.queue_bytes();
                }
                SessionSender::Connections(connections) => {
                    for data in &mut connections.connections {
                        let DataConnection { connection, token, wants_room } = data;
                        let blocked = connection.is_blocked();
                        if blocked != *wants_room
                            && let Some(token) = token
                        {
                            *wants_room = blocked;
                            let wanted = watch.want_room(&*connection, token.encode(), blocked);
                            if let Err(error) = wanted {
                                connections.broken.get_or_insert(error);
                            }
                        }
                    }
                    if let Some(error) = connections.broken.take() {
                        // Or it would be told again and again.
                        connections.end_connections(watch, stats);
                        report(*session, Fault::Broken(error));
                    }
                    waiting += connections.queue_bytes();
                }
            }
        }
        stats.queue_bytes.set(waiting as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::testing::{connection, uncompressed};
    use super::super::session_sender::Connections;
    use super::*;
    use crate::io::poll::{Half, Poll};
    use crate::io::udp_port::UdpPort;
    use socket2::SockRef;
    use vsnoop_packet::offload::state::OffloadState;
    use vsnoop_packet::testing::SegmentBuilder;

    #[test]
    fn dead_after_applies_to_connections_that_are_there() {
        let timeout = |sender: &PeerSender| match &sender.sessions[..] {
            [(SessionId(1), SessionSender::Connections(all))] => {
                SockRef::from(&all.connections[0].connection).tcp_user_timeout().unwrap()
            }
            _ => panic!("another session"),
        };
        let (connection, _far) = connection();
        let connections = Connections::new(vec![connection]);
        connections.set_dead_after(Duration::from_secs(5));
        let mut sender = PeerSender::default();
        sender.sessions.push((SessionId(1), SessionSender::Connections(Box::new(connections))));
        assert_eq!(timeout(&sender), Some(Duration::from_secs(5)));
        sender.set_dead_after(Duration::from_secs(7));
        assert_eq!(timeout(&sender), Some(Duration::from_secs(7)));
    }

    #[test]
    fn what_no_connection_takes_is_dropped_and_not_sent() {
        let (connection, far) = connection();
        let watch = Watch::new(&Arc::new(Poll::new().unwrap()), Half::Egress).unwrap();
        let udp = UdpPort::bind("127.0.0.1:0".parse().unwrap(), 1).unwrap().receivers.remove(0);
        let (stats, compression) = (PeerStats::default(), uncompressed());
        let mut sender = PeerSender::default();
        let connections = SessionSender::Connections(Box::new(Connections::new(vec![connection])));
        let token = EgressToken::Orders;
        sender.install_session(SessionId(1), connections, &udp, &watch, &mut || token).unwrap();
        sender.use_session(SessionId(1));
        drop(far);
        let whole = SegmentBuilder { payload: 1000, ..SegmentBuilder::default() }.build();
        let parts = [&whole[..]];
        let (mut given, mut at_fault) = (0, Vec::new());
        while given < 1000 {
            let frame = Frame::whole(OffloadState::default(), &parts);
            let context = SendContext { udp: &udp, stats: &stats, now_ns: 0 };
            sender.send_frame(context, &frame, &compression, &mut Vec::new());
            given += 1;
            let mut fault = |_, _| at_fault.push(stats.frames_out.get());
            sender.follow_transports(&watch, &stats, &mut fault);
        }
        let (sent, dropped) = (stats.frames_out.get(), &stats.dropped_down);
        assert_eq!(at_fault, [sent], "it ended once, and nothing was sent any more");
        assert_eq!(compression.rule_stats.frames.get(), sent);
        assert_eq!(sent + dropped.frames.get(), given);
        assert_eq!(stats.bytes_out.get() + dropped.bytes.get(), given * whole.len() as u64);
    }
}
