//! Parameters of a session: the acceptor chooses from what both have said, the initiator verifies
//! the choice.

use super::{Agreed, Hello, HelloTransport, Purpose, Refusal, RefusalKind, Versions};

/// The acceptor's answer to a peer's hello.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Its own hello; the peer may still be refused when the two do not fit.
    Accept(Hello),
    Refuse(Refusal),
}

/// Why an acceptor cannot agree with an initiator.
#[derive(Debug, thiserror::Error)]
pub(super) enum Disagreement<'a> {
    #[error(
        "protocol version {0} at the calling host, {ours} at the called one; run the newer vsnoop \
         on both",
        ours = Versions::OURS
    )]
    Version(Versions),
    #[error(
        "network {0:?} at the calling host, {1:?} at the called one; give both the same `network`"
    )]
    Network(&'a str, &'a str),
    #[error("the link has called itself; its peer's address is its own")]
    Itself,
    #[error(
        "transport {0} at the calling host, {1} at the called one; give both the same `transport`"
    )]
    Transport(HelloTransport, HelloTransport),
    #[error("no such transport here")]
    UnknownTransport,
}

impl From<Disagreement<'_>> for Refusal {
    fn from(why: Disagreement<'_>) -> Self {
        let kind = match why {
            Disagreement::Version(_) => RefusalKind::Version,
            Disagreement::Network(..) => RefusalKind::Network,
            Disagreement::Itself => RefusalKind::Itself,
            Disagreement::Transport(..) | Disagreement::UnknownTransport => RefusalKind::Transport,
        };
        Self::new(kind, why.to_string())
    }
}

/// In what an acceptor's answer differs from what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("version")]
    Version,
    #[error("network")]
    Network,
    #[error("instance")]
    Instance,
    #[error("purpose")]
    Purpose,
    #[error("transport")]
    Transport,
    #[error("connections")]
    Connections,
    #[error("epoch")]
    Epoch,
}

impl Agreed {
    /// The acceptor's choice.
    pub(super) fn choose<'a>(
        initiator: &'a Hello,
        acceptor: &'a Hello,
    ) -> Result<Self, Disagreement<'a>> {
        let Some(version) = initiator.versions.highest_common(acceptor.versions) else {
            return Err(Disagreement::Version(initiator.versions));
        };
        if initiator.network != acceptor.network {
            return Err(Disagreement::Network(&initiator.network, &acceptor.network));
        }
        if initiator.instance == acceptor.instance {
            return Err(Disagreement::Itself);
        }
        // A data connection joins a session, whose control connection has agreed on this.
        let control = initiator.purpose == Purpose::Control;
        if control && initiator.transport != acceptor.transport {
            return Err(Disagreement::Transport(initiator.transport, acceptor.transport));
        }
        if initiator.transport == HelloTransport::Unknown {
            return Err(Disagreement::UnknownTransport);
        }
        Ok(Self {
            version,
            epoch: initiator.epoch.max(acceptor.epoch),
            transport: initiator.transport,
            connections: initiator.connections.min(acceptor.connections),
        })
    }

    /// Whether the initiator may be told this by the acceptor.
    pub(super) fn verify(&self, initiator: &Hello, acceptor: &Hello) -> Result<(), Mismatch> {
        let Versions { min, max } = initiator.versions;
        let wrong = if !(min..=max).contains(&self.version) {
            Mismatch::Version
        } else if acceptor.network != initiator.network {
            Mismatch::Network
        } else if acceptor.instance == initiator.instance {
            Mismatch::Instance
        } else if acceptor.purpose != initiator.purpose {
            Mismatch::Purpose
        } else if self.transport != initiator.transport {
            Mismatch::Transport
        } else if self.connections == 0 || self.connections > initiator.connections {
            Mismatch::Connections
        } else if self.epoch < initiator.epoch {
            Mismatch::Epoch
        } else {
            return Ok(());
        };
        Err(wrong)
    }
}
