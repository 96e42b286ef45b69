//! Accepts TCP connections of peers: each handshake runs on a thread of its own.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tracing::debug;

use crate::callers::Callers;
use crate::clock::Clock;
use crate::config::PeerConfig;
use crate::establish::Introduction;
use crate::event::ControlEvent;
use crate::handshake_threads::HandshakeThreads;
use crate::io::wake;
use crate::pairs::Pairs;
use crate::slots::Slots;
use crate::tcp_handshake;
use vsnoop_link::handshake::{Admitted, Answer, Guard, Hello, Permit, Refusal, RefusalKind};
use vsnoop_link::identity::{Acceptor, PeerId};
use vsnoop_link::session::canonical;

/// Threads of handshakes: one for each call that the guard admits, and a few of displaced calls,
/// which end as soon as they run.
const MOST_THREADS: usize = 64 + 4;

/// Settings of this end of a handshake. A reload replaces them; a handshake that has begun keeps
/// its own.
pub struct ListenerConfig {
    pub introduction: Introduction,
    pub acceptor: Acceptor,
    pub peers: Vec<PeerConfig>,
    /// Numbers of the peers.
    pub slots: Slots,
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
    pub fn set(&self, config: ListenerConfig) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// What handshakes use that begin now.
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
                let from = canonical(from);
                let admitted = this.guard.admit(from.ip(), this.clock.now_ns());
                let Ok(Admitted { permit, displaced }) = admitted else { continue };
                if let Some(displaced) = displaced {
                    this.callers.end(displaced);
                }
                let id = permit.id();
                this.callers.begin(id, &stream);
                let running = this.threads.permit();
                let answering = this.clone();
                let taken = std::thread::Builder::new().name("accept".into()).spawn(move || {
                    answering.handshake(stream, from, permit);
                    drop(running);
                });
                if let Err(error) = taken {
                    this.callers.forget(id);
                    debug!("no thread for a caller from {from}: {error}");
                }
            }
        };
        std::thread::Builder::new().name("listen".into()).spawn(accept).map(drop)
    }

    fn handshake(&self, stream: TcpStream, from: SocketAddr, permit: Permit) {
        let deadline = Instant::now() + permit.allowance().min(tcp_handshake::DEADLINE);
        let config = self.config();
        let policy = |peer: &PeerId, theirs: &Hello| config.answer(peer, theirs);
        let established = if permit.is_challenged() {
            let network = &config.introduction.network;
            let may_go_on = || permit.answered(self.clock.now_ns());
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
        self.callers.forget(permit.id());
        if let Ok(established) = &established {
            permit.authenticated(&established.outcome.peer, self.clock.now_ns());
        }
        let (established, generation) = (established.map(Box::new), config.generation);
        self.events.send(ControlEvent::Accepted { from, generation, established });
    }
}

impl ListenerConfig {
    /// The answer to a peer's hello.
    pub fn answer(&self, peer: &PeerId, theirs: &Hello) -> Answer {
        let Some(peer) = self.peers.iter().find(|known| known.name == peer.as_str()) else {
            let reason = "this host does not know the peer";
            return Answer::Refuse(Refusal::new(RefusalKind::Other, reason));
        };
        let epoch = theirs.epoch.into();
        let accepts = peer.accepts();
        let PeerConfig { transport, connections, outer, .. } = *peer;
        let session = self.pairs.session_number(self.slots.of(&peer.name).unwrap_or_default());
        let hello =
            self.introduction.hello(session, epoch, transport, connections, accepts, outer.ecn);
        Answer::Accept(Hello { purpose: theirs.purpose, ..hello })
    }
}
