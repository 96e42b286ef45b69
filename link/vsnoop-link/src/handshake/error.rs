//! Errors of a handshake; their messages name the peer, the reason and the remedy.

use std::fmt;
use std::io;
use std::mem::{Discriminant, discriminant};

use rustls::{AlertDescription, CertificateError, ExtendedKeyPurpose};

use super::{BadHello, Mismatch, Refusal};
use crate::identity::{PeerId, PublicKey};

/// Why a handshake failed. `proved`: the other end had shown by then that it is a peer, or the one
/// that was called.
#[derive(Debug)]
pub enum Error {
    /// It took too long.
    TimedOut { with: Option<PeerId>, proved: bool, waited_for: &'static str },
    /// The other end closed the connection, or the network did.
    Cut { with: Option<PeerId>, proved: bool, waited_for: &'static str },
    /// The connection itself.
    Io { with: Option<PeerId>, proved: bool, error: io::Error },
    /// TLS: the other end has a wrong identity, rejects ours, or speaks another protocol.
    Tls { with: Option<PeerId>, proved: bool, ours: PublicKey, error: rustls::Error },
    /// A peer has sent a message that the protocol forbids.
    Peer { peer: PeerId, why: Violation },
    /// The peer refuses us.
    RefusedBy { peer: PeerId, refusal: Refusal },
    /// We refuse the peer, and have told it so.
    Refused { peer: PeerId, refusal: Refusal },
    /// Our own hello is invalid, and was not sent.
    Ours(BadHello),
}

/// A protocol violation of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("it sent {0}")]
    Message(#[from] BadHello),
    #[error("its answer has another {0} than was asked for")]
    Answer(#[from] Mismatch),
    #[error("an unknown cipher was negotiated")]
    Cipher,
}

/// The kind of an error, without the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorKind(Discriminant<Error>, Option<Discriminant<CertificateError>>);

impl Error {
    pub fn kind(&self) -> ErrorKind {
        ErrorKind(discriminant(self), self.certificate_error().map(discriminant))
    }

    /// The other end has presented a certificate, and it is not believed.
    pub fn is_of_certificate(&self) -> bool {
        self.certificate_error().is_some()
    }

    fn certificate_error(&self) -> Option<&CertificateError> {
        match self {
            Self::Tls { error: rustls::Error::InvalidCertificate(why), .. } => Some(why),
            _ => None,
        }
    }

    /// The peer, if it is known.
    pub fn peer(&self) -> Option<&PeerId> {
        match self {
            Self::TimedOut { with, .. } | Self::Cut { with, .. } => with.as_ref(),
            Self::Io { with, .. } | Self::Tls { with, .. } => with.as_ref(),
            Self::Peer { peer, .. } | Self::RefusedBy { peer, .. } | Self::Refused { peer, .. } => {
                Some(peer)
            }
            Self::Ours(_) => None,
        }
    }

    /// The peer was authenticated before the error, so that no third party has caused it.
    pub fn proved(&self) -> bool {
        match self {
            Self::TimedOut { proved, .. } | Self::Cut { proved, .. } => *proved,
            Self::Io { proved, .. } | Self::Tls { proved, .. } => *proved,
            Self::Peer { .. } | Self::RefusedBy { .. } | Self::Refused { .. } => true,
            Self::Ours(_) => false,
        }
    }

    /// The message without the peer's name.
    pub fn what(&self) -> impl fmt::Display {
        What(self)
    }

    /// Whether the other end was sent the reason, in a message that closing at once could destroy.
    pub fn told(&self) -> bool {
        match self {
            Self::Tls { error, .. } => matches!(
                error,
                rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented
            ),
            Self::Refused { .. } | Self::Peer { .. } => true,
            _ => false,
        }
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer() {
            Some(peer) => write!(f, "peer {peer}: ")?,
            None if matches!(self, Self::Ours(_)) => (),
            None => write!(f, "a caller: ")?,
        }
        self.what().fmt(f)
    }
}

/// See [`Error::what`].
struct What<'a>(&'a Error);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::TimedOut { waited_for, .. } => {
                write!(f, "no {waited_for} in time; is it a link that listens at this address?")
            }
            Error::Cut { waited_for, .. } => {
                write!(f, "the connection was cut before its {waited_for}; its log may say why")
            }
            Error::Io { error, .. } => write!(f, "the connection failed: {error}"),
            Error::Tls { ours, error, .. } => write_tls(f, *ours, error),
            Error::Peer { why, .. } => why.fmt(f),
            Error::RefusedBy { refusal, .. } => write!(f, "it refuses us: {refusal}"),
            Error::Refused { refusal, .. } => write!(f, "refused: {refusal}"),
            Error::Ours(why) => write!(f, "this host's own hello is {why}"),
        }
    }
}

/// An error of TLS in the words of a link.
fn write_tls(f: &mut fmt::Formatter<'_>, ours: PublicKey, error: &rustls::Error) -> fmt::Result {
    use AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(why) => write_certificate(f, why),
        rustls::Error::NoCertificatesPresented => {
            write!(f, "presented no certificate; is it another program?")
        }
        rustls::Error::AlertReceived(alert) => match alert {
            Alert::CertificateUnknown => write!(
                f,
                "it does not know our key {ours}, or our name; compare with the `key` or `subject` that \
                 its configuration has for this host"
            ),
            // Of two authorities with one name the signature does not fit.
            Alert::UnknownCA | Alert::DecryptError => write!(
                f,
                "it does not believe the authority of our certificate; compare the `ca` there with the \
                 `cert` here"
            ),
            Alert::CertificateExpired => write!(
                f,
                "our certificate is not valid at its time; renew it, and compare the clocks"
            ),
            Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::AccessDenied => write!(
                f,
                "it refuses our certificate ({alert:?}); is our name in it, and may it be used by \
                 both, client and server?"
            ),
            Alert::CertificateRequired => write!(f, "it has got no certificate from us"),
            Alert::NoApplicationProtocol => {
                write!(f, "it speaks TLS, but is no link, or one of another version")
            }
            Alert::ProtocolVersion | Alert::HandshakeFailure => {
                write!(f, "it speaks TLS, but not the version or ciphers of a link ({alert:?})")
            }
            other => write!(f, "it ended the handshake ({other:?}); its log may say why"),
        },
        rustls::Error::PeerIncompatible(_) | rustls::Error::NoApplicationProtocol => {
            write!(f, "speaks TLS, but is no link, or one of another version ({error})")
        }
        rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. } => {
            write!(f, "does not speak TLS ({error}); is it a link at this address?")
        }
        other => write!(f, "the handshake failed: {other}"),
    }
}

/// The fault of the presented certificate.
fn write_certificate(f: &mut fmt::Formatter<'_>, why: &CertificateError) -> fmt::Result {
    match why {
        // Has its own words: identity::Untrusted.
        CertificateError::Other(why) => write!(f, "{}", why.0),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            write!(
                f,
                "presented a certificate that has expired{}; renew it there",
                describe_days(why)
            )
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => write!(
            f,
            "presented a certificate that is not valid yet{}; compare the clocks of the hosts",
            describe_days(why)
        ),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => write!(
            f,
            "presented a certificate that our authority has not signed; compare the `ca` here with the \
             `cert` there"
        ),
        CertificateError::NotValidForNameContext { expected, presented } => write!(
            f,
            "presented a certificate for {}, not for {}; give this peer the `subject` that is in its \
             certificate",
            quote_names(presented),
            expected.to_str()
        ),
        CertificateError::InvalidPurposeContext { required, .. } => write!(
            f,
            "presented a certificate that is not for {}; sign one for both, client and server",
            match required {
                ExtendedKeyPurpose::ClientAuth => "clients",
                ExtendedKeyPurpose::ServerAuth => "servers",
                ExtendedKeyPurpose::Other(_) => "this",
            }
        ),
        other => write!(f, "presented a certificate that is not usable: {other}"),
    }
}

/// The names in a certificate, which webpki writes as `DnsName("host")`.
fn quote_names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let quoted = name.strip_prefix("DnsName(\"").and_then(|name| name.strip_suffix("\")"));
        quoted.unwrap_or(name).to_owned()
    };
    if presented.is_empty() {
        return "no name".to_owned();
    }
    presented.iter().map(bare).collect::<Vec<_>>().join(", ")
}

/// How long ago a certificate ended, or how long until it begins.
fn describe_days(why: &CertificateError) -> String {
    let (from, to, relation) = match why {
        CertificateError::ExpiredContext { time, not_after } => (not_after, time, "ago"),
        CertificateError::NotValidYetContext { time, not_before } => (time, not_before, "from now"),
        _ => return String::new(),
    };
    let days = to.as_secs().saturating_sub(from.as_secs()) / 86_400;
    match days {
        0 => ", less than a day".to_owned() + if relation == "ago" { " ago" } else { "" },
        1 => format!(", 1 day {relation}"),
        n => format!(", {n} days {relation}"),
    }
}
