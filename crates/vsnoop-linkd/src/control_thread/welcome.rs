//! Answers to callers: each has a thread of its own until its handshake is over.

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
use crate::tcp_handshake;
use vsnoop_link::handshake::{Admitted, Answer, Guard, Hello, Permit, Refusal, RefusalKind};
use vsnoop_link::identity::{Acceptor, PeerId};
use vsnoop_link::session::canonical;

/// Threads of handshakes: one for each call that the guard admits, and a few of displaced calls,
/// which end as soon as they run.
const MOST_THREADS: usize = 64 + 4;

/// What callers are told, until a reload; each handshake keeps what was in force when it began.
pub struct Welcome {
    pub introduction: Introduction,
    pub acceptor: Acceptor,
    pub peers: Vec<PeerConfig>,
    /// Number of reloads before it.
    pub generation: u64,
}

/// Where callers come in; clones are the same.
#[derive(Clone)]
pub struct Door {
    welcome: Arc<RwLock<Arc<Welcome>>>,
    callers: Callers,
    threads: HandshakeThreads,
    guard: Guard,
    clock: Clock,
    events: wake::Sender<ControlEvent>,
}

impl Door {
    pub fn new(
        welcome: Welcome,
        guard: Guard,
        clock: Clock,
        events: wake::Sender<ControlEvent>,
    ) -> Self {
        let welcome = Arc::new(RwLock::new(Arc::new(welcome)));
        let threads = HandshakeThreads::new(MOST_THREADS);
        Self { welcome, callers: Callers::default(), threads, guard, clock, events }
    }

    /// What those who call from now on are told.
    pub fn set(&self, welcome: Welcome) {
        *self.welcome.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(welcome);
    }

    fn welcome(&self) -> Arc<Welcome> {
        Arc::clone(&self.welcome.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a thread that takes callers.
    pub fn listen(&self, listener: TcpListener) -> std::io::Result<()> {
        let door = self.clone();
        let accept = move || {
            loop {
                let Ok((stream, from)) = listener.accept() else {
                    // Out of descriptors, most likely: not a reason to spin.
                    std::thread::sleep(Duration::from_millis(50));
                    continue;
                };
                let from = canonical(from);
                let admitted = door.guard.admit(from.ip(), door.clock.now_ns());
                let Ok(Admitted { permit, displaced }) = admitted else { continue };
                if let Some(displaced) = displaced {
                    door.callers.end(displaced);
                }
                let id = permit.id();
                door.callers.begin(id, &stream);
                let place = door.threads.place();
                let answering = door.clone();
                let taken = std::thread::Builder::new().name("accept".into()).spawn(move || {
                    answering.handshake(stream, from, permit);
                    drop(place);
                });
                if let Err(error) = taken {
                    door.callers.forget(id);
                    debug!("no thread for a caller from {from}: {error}");
                }
            }
        };
        std::thread::Builder::new().name("listen".into()).spawn(accept).map(drop)
    }

    fn handshake(&self, stream: TcpStream, from: SocketAddr, permit: Permit) {
        let deadline = Instant::now() + permit.allowance().min(tcp_handshake::DEADLINE);
        let welcome = self.welcome();
        let policy = |peer: &PeerId, theirs: &Hello| welcome.answer(peer, theirs);
        let established = if permit.is_challenged() {
            let network = &welcome.introduction.network;
            let may_go_on = || permit.answered(self.clock.now_ns());
            tcp_handshake::accept_challenged(
                stream,
                &welcome.acceptor,
                network,
                may_go_on,
                &policy,
                deadline,
            )
        } else {
            tcp_handshake::accept(stream, &welcome.acceptor, &policy, deadline)
        };
        self.callers.forget(permit.id());
        if established.is_ok() {
            permit.authenticated();
        }
        let (established, generation) = (established.map(Box::new), welcome.generation);
        self.events.send(ControlEvent::Accepted { from, generation, established });
    }
}

impl Welcome {
    fn answer(&self, peer: &PeerId, theirs: &Hello) -> Answer {
        let Some(peer) = self.peers.iter().find(|known| known.name == peer.as_str()) else {
            let reason = "this host does not know the peer";
            return Answer::Refuse(Refusal::new(RefusalKind::Other, reason));
        };
        let epoch = theirs.epoch.into();
        let accepts = peer.accepts();
        let PeerConfig { transport, connections, outer, .. } = *peer;
        let hello = self.introduction.hello(epoch, transport, connections, accepts, outer.ecn);
        Answer::Accept(Hello { purpose: theirs.purpose, ..hello })
    }
}
