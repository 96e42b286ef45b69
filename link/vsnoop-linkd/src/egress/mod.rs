//! The half that carries frames from local ports to peers.
//!
//! It alone reads the ports and writes to the network, so that nothing here is shared. A frame has
//! four stages, each in a file of its own:
//!
//! ```text
//! read     a batch of a port or divert tap, into one arena; segments of guests are merged
//! route    by the forwarding table, or by the prefix of a diverted packet
//! clamp    the MSS of a SYN, by the longest frame that the peer's path takes
//! enqueue  compressed and sealed, or in the peer's queue until its transport has room
//! ```
//!
//! Frames for peers that another pair serves go to that pair, and those of other threads come from
//! there ([`handoff`](crate::threads::handoff)): they begin with `clamp`. Datagrams leave at the
//! end of each batch. The control thread installs and retires sessions by [`Order`]s.

mod batch;
pub mod connection;
pub mod datagrams;
mod enqueue;
mod obey;
mod order;
mod path_rate;
pub mod peer_sender;
mod pieces;
mod read;
mod route;
mod send_context;
mod senders;
pub mod session_sender;
mod token;

use std::collections::HashMap;
use std::sync::Arc;

use self::batch::BatchBuffer;
pub use self::order::Order;
use self::senders::Senders;
use self::token::{EgressToken, SocketNumber};
use crate::divert::taps::DivertTaps;
use crate::frames::compression_policy::Policies;
use crate::io::poll::{Poll, Token, Watch};
use crate::io::port::LinkPort;
use crate::io::wake;
use crate::ports::counted_port::CountedPort;
use crate::threads::event::ControlEvent;
use crate::threads::handoff::{HandoffReceiver, HandoffSender};
use crate::threads::shared::Shared;
use vsnoop_link::slots::FrameSource;

/// Orders and frames of other threads.
pub struct Inputs {
    pub orders: wake::Receiver<Order>,
    /// Frames from threads of all pairs, for peers that this one serves.
    pub handed: HandoffReceiver,
}

pub struct Egress {
    shared: Arc<Shared>,
    /// Ports and divert taps that it reads.
    sources: Sources,
    inputs: Inputs,
    /// For peers that other pairs serve.
    handoff: HandoffSender,
    events: wake::Sender<ControlEvent>,
    watch: Watch,
    senders: Senders,
    /// Whether frames are merged for a peer with an ordered transport.
    any_ordered: bool,
    policies: Policies,
    buffer: BatchBuffer,
    scratch: Vec<u8>,
    /// A SYN with another MSS.
    syn: Vec<u8>,
    /// The last number that the socket of a session was given.
    last_socket: SocketNumber,
    /// Frames that were read since [`take_count`](Self::take_count).
    frames: usize,
}

/// Ports and divert taps by where their frames come from.
type Sources = HashMap<FrameSource, Arc<LinkPort>>;

/// Ports and divert taps that this pair reads.
fn read_by_pair(shared: &Shared) -> Sources {
    let entry = |source, port: &CountedPort| (source, Arc::clone(&port.port));
    let ports = shared.all_ports().filter(|(slot, port)| shared.reads(*slot, port));
    let ports = ports.map(|(slot, port)| entry(FrameSource::Port(slot), port));
    let taps = shared.divert_taps.iter().flat_map(DivertTaps::all);
    let taps = taps.filter(|(slot, tap)| shared.reads(*slot, &tap.port));
    let taps = taps.map(|(slot, tap)| entry(FrameSource::DivertTap(slot), &tap.port));
    ports.chain(taps).collect()
}

impl Egress {
    pub fn new(
        shared: Arc<Shared>,
        inputs: Inputs,
        handoff: HandoffSender,
        events: wake::Sender<ControlEvent>,
        policies: Policies,
        watch: Watch,
    ) -> std::io::Result<Self> {
        watch.watch(&inputs.orders, EgressToken::Orders.encode())?;
        watch.watch(&inputs.handed, EgressToken::Handoff.encode())?;
        let senders = Senders::new(shared.peers.len());
        let sources = read_by_pair(&shared);
        for (source, port) in &sources {
            watch.watch(port, EgressToken::Source(*source).encode())?;
        }
        Ok(Self {
            sources,
            shared,
            inputs,
            handoff,
            events,
            watch,
            senders,
            any_ordered: false,
            policies,
            buffer: BatchBuffer::default(),
            scratch: Vec::new(),
            syn: Vec::new(),
            last_socket: SocketNumber::default(),
            frames: 0,
        })
    }

    /// The epoll of a thread with this half alone.
    pub fn poll(&self) -> Arc<Poll> {
        self.watch.own()
    }

    /// Serves the descriptor with this token, which is ready; `false`: to stop.
    pub fn handle_token(&mut self, token: Token) -> bool {
        match EgressToken::decode(token) {
            Some(EgressToken::Orders) => return self.obey_orders(),
            Some(EgressToken::Handoff) => self.send_handed(),
            Some(EgressToken::Source(source)) => self.read(source),
            Some(EgressToken::Socket { peer, socket }) => self.resume_session(peer, socket),
            None => {}
        }
        true
    }

    /// Number of frames that were read since the last call.
    pub fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.frames)
    }
}
