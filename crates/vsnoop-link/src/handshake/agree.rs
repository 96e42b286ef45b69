//! What two ends agree on: the acceptor chooses from what both have said, the dialler verifies the
//! choice.

use super::{Agreed, Hello, HelloTransport, Purpose, Refusal, RefusalKind, Versions};

/// What an acceptor's owner answers to a peer's hello.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Its own hello; the peer may still be refused when the two do not fit.
    Accept(Hello),
    Refuse(Refusal),
}

impl Agreed {
    /// What the acceptor chooses.
    pub(super) fn choose(dialler: &Hello, acceptor: &Hello) -> Result<Self, Refusal> {
        let refuse = |kind, reason: String| Err(Refusal::new(kind, reason));
        let Some(version) = dialler.versions.common(acceptor.versions) else {
            return Err(no_common_version(dialler.versions));
        };
        if dialler.network != acceptor.network {
            return refuse(
                RefusalKind::Network,
                format!(
                    "network {:?} at the calling host, {:?} at the called one; give both the same \
                     `network`",
                    dialler.network, acceptor.network
                ),
            );
        }
        if dialler.instance == acceptor.instance {
            return refuse(
                RefusalKind::Itself,
                "the link has called itself; its peer's address is its own".into(),
            );
        }
        // A data connection joins a session, whose control connection has agreed on this.
        let control = dialler.purpose == Purpose::Control;
        if control && dialler.transport != acceptor.transport {
            return refuse(
                RefusalKind::Transport,
                format!(
                    "transport {} at the calling host, {} at the called one; give both the same \
                     `transport`",
                    dialler.transport, acceptor.transport
                ),
            );
        }
        if dialler.transport == HelloTransport::Unknown {
            return refuse(RefusalKind::Transport, "no such transport here".into());
        }
        Ok(Self {
            version,
            epoch: dialler.epoch.max(acceptor.epoch),
            transport: dialler.transport,
            connections: dialler.connections.min(acceptor.connections),
        })
    }

    /// Whether the dialler may be told this by the acceptor. Says what may not.
    pub(super) fn verify(&self, dialler: &Hello, acceptor: &Hello) -> Result<(), &'static str> {
        let Versions { min, max } = dialler.versions;
        let wrong = if !(min..=max).contains(&self.version) {
            "version"
        } else if acceptor.network != dialler.network {
            "network"
        } else if acceptor.instance == dialler.instance {
            "instance"
        } else if acceptor.purpose != dialler.purpose {
            "purpose"
        } else if self.transport != dialler.transport {
            "transport"
        } else if self.connections == 0 || self.connections > dialler.connections {
            "connections"
        } else if self.epoch < dialler.epoch {
            "epoch"
        } else {
            return Ok(());
        };
        Err(wrong)
    }
}

pub(super) fn no_common_version(dialler: Versions) -> Refusal {
    Refusal::new(
        RefusalKind::Version,
        format!(
            "protocol version {dialler} at the calling host, {} at the called one; run the newer \
             vsnoop on both",
            Versions::OURS
        ),
    )
}
