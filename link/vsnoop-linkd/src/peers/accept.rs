//! Accepts TCP connections of peers: each handshake has a thread while it runs.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tracing::debug;

use crate::config::PeerConfig;
use crate::handshake::callers::Callers;
use crate::handshake::establish::Introduction;
use crate::handshake::tcp_handshake;
use crate::handshake::thread_limit::HandshakeThreads;
use crate::io::wake;
use crate::threads::clock::Clock;
use crate::threads::event::ControlEvent;
use crate::threads::pairs::Pairs;
use crate::threads::slots::Slots;
use vsnoop_link::handshake::{Admitted, Answer, Guard, Hello, Permit, Refusal, RefusalKind};
use vsnoop_link::identity::{Acceptor, PeerId};
use vsnoop_link::session::canonical_address;
use vsnoop_link::slots::PeerSlot;

/// Threads of handshakes: one for each call that the guard admits, and a few for displaced calls,
/// whose handshakes end as soon as the thread runs.
const MOST_THREADS: usize = 64 + 4;

/// Settings of this end of a handshake. A reload replaces them; a handshake that has begun keeps
/// its own.
pub struct ListenerConfig {
    pub introduction: Introduction,
    pub acceptor: Acceptor,
    pub peers: Vec<PeerConfig>,
    pub slots: Slots<PeerSlot>,
    pub pairs: Pairs,
    /// Number of reloads before it.
    pub generation: u64,
}

/// Accepts and authenticates callers. Clones share state.
#[derive(Clone)]
pub struct CallListener {
    config: Arc<RwLock<Arc<ListenerConfig>>>,
    callers: Callers,
    threads: HandshakeThreads,
    guard: Guard,
    clock: Clock,
    events: wake::Sender<ControlEvent>,
}

impl CallListener {
    pub fn new(
        config: ListenerConfig,
        guard: Guard,
        clock: Clock,
        events: wake::Sender<ControlEvent>,
    ) -> Self {
        let config = Arc::new(RwLock::new(Arc::new(config)));
        let threads = HandshakeThreads::new(MOST_THREADS);
        Self { config, callers: Callers::default(), threads, guard, clock, events }
    }

    /// Sets what handshakes use that begin from now on.
    pub fn set_config(&self, config: ListenerConfig) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// The settings of handshakes that begin now.
    pub fn config(&self) -> Arc<ListenerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a thread that accepts connections from `listener`.
    pub fn listen(&self, listener: TcpListener) -> std::io::Result<()> {
        let this = self.clone();
        let accept = move || {
            loop {
                let Ok((stream, from)) = listener.accept() else {
                    // Out of descriptors, most likely: not a reason to spin.
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                };
                let from = canonical_address(from);
                let admitted = this.guard.admit_caller(from.ip(), this.clock.now_ns());
                let Ok(Admitted { permit, displaced }) = admitted else { continue };
                if let Some(displaced) = displaced {
                    this.callers.end_call(displaced);
                }
                let id = permit.id();
                this.callers.note_begun(id, &stream);
                let answering = this.clone();
                let taken = this.threads.run(move || answering.run_handshake(stream, from, permit));
                if let Err(error) = taken {
                    this.callers.forget_call(id);
                    debug!("no thread for a caller from {from}: {error}");
                }
            }
        };
        std::thread::Builder::new().name("listen".into()).spawn(accept).map(drop)
    }

    fn run_handshake(&self, stream: TcpStream, from: SocketAddr, permit: Permit) {
        let deadline = Instant::now() + permit.allowance().min(tcp_handshake::DEADLINE);
        let config = self.config();
        let policy = |peer: &PeerId, theirs: &Hello| config.answer_hello(peer, theirs);
        let established = if permit.is_challenged() {
            let network = &config.introduction.network;
            let may_go_on = || permit.note_answered(self.clock.now_ns());
            tcp_handshake::accept_challenged(
                stream,
                &config.acceptor,
                network,
                may_go_on,
                &policy,
                deadline,
            )
        } else {
            tcp_handshake::accept(stream, &config.acceptor, &policy, deadline)
        };
        self.callers.forget_call(permit.id());
        if let Ok(established) = &established {
            permit.note_authenticated(&established.outcome.peer, self.clock.now_ns());
        }
        let (established, generation) = (established.map(Box::new), config.generation);
        self.events.send(ControlEvent::Accepted { from, generation, established });
    }
}

impl ListenerConfig {
    /// The answer to a peer's hello.
    pub fn answer_hello(&self, peer: &PeerId, theirs: &Hello) -> Answer {
        let Some(peer) = self.peers.iter().find(|known| known.name == peer.as_str()) else {
            let reason = "this host does not know the peer";
            return Answer::Refuse(Refusal::new(RefusalKind::Other, reason));
        };
        let epoch = theirs.epoch.into();
        let accepts = peer.accepts();
        let PeerConfig { transport, connections, outer, .. } = *peer;
        let session = self.pairs.session_number(self.slots.find(&peer.name).unwrap_or(PeerSlot(0)));
        let hello = self.introduction.build_hello(
            session,
            epoch,
            transport,
            connections,
            accepts,
            outer.ecn,
        );
        Answer::Accept(Hello { purpose: theirs.purpose, ..hello })
    }
}
