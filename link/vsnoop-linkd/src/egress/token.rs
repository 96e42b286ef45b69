//! The descriptors that the egress half watches, and the number of each in epoll.

use vsnoop_link::slots::{DivertTapSlot, FrameSource, PeerSlot, PortSlot};

use crate::io::poll::Token;

/// A descriptor that the half watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressToken {
    /// A port or divert tap; peers have no descriptor here.
    Source(FrameSource),
    /// A socket of a session.
    Socket {
        peer: PeerSlot,
        socket: SocketNumber,
    },
    Orders,
    Handoff,
}

/// The number of a session's socket, never used twice; below 2^44.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketNumber(u64);

impl SocketNumber {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The kind is in the bits from here on. Bit 63 is free (see
/// [`TOKEN_MAX`](crate::io::poll::TOKEN_MAX)).
const KIND_SHIFT: u32 = 60;
const VALUE_MASK: u64 = (1 << KIND_SHIFT) - 1;
/// A socket's peer is in the bits below, its number in those above.
const PEER_BITS: u32 = u16::BITS;

const PORT: u64 = 0;
const DIVERT_TAP: u64 = 1;
const PEER: u64 = 2;
const SOCKET: u64 = 3;
const ORDERS: u64 = 4;
const HANDOFF: u64 = 5;

impl EgressToken {
    /// Returns the number by which epoll names it.
    pub fn encode(self) -> Token {
        let (kind, value) = match self {
            Self::Source(FrameSource::Port(PortSlot(port))) => (PORT, port.into()),
            Self::Source(FrameSource::DivertTap(DivertTapSlot(tap))) => (DIVERT_TAP, tap.into()),
            Self::Source(FrameSource::Peer(PeerSlot(peer))) => (PEER, peer.into()),
            Self::Socket { peer: PeerSlot(peer), socket: SocketNumber(socket) } => {
                (SOCKET, (socket << PEER_BITS | u64::from(peer)) & VALUE_MASK)
            }
            Self::Orders => (ORDERS, 0),
            Self::Handoff => (HANDOFF, 0),
        };
        Token(kind << KIND_SHIFT | value)
    }

    /// Returns the token of a number that [`encode`](Self::encode) has made; else `None`.
    pub fn decode(Token(token): Token) -> Option<Self> {
        let (value, slot) = (token & VALUE_MASK, token as u16);
        Some(match token >> KIND_SHIFT {
            PORT => Self::Source(FrameSource::Port(PortSlot(slot))),
            DIVERT_TAP => Self::Source(FrameSource::DivertTap(DivertTapSlot(slot))),
            PEER => Self::Source(FrameSource::Peer(PeerSlot(slot))),
            SOCKET => {
                let socket = SocketNumber(value >> PEER_BITS);
                Self::Socket { peer: PeerSlot(slot), socket }
            }
            ORDERS => Self::Orders,
            HANDOFF => Self::Handoff,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::io::poll::TOKEN_MAX;

    #[test]
    fn each_token_has_a_number_of_its_own_which_leads_back_to_it() {
        let mut tokens = vec![EgressToken::Orders, EgressToken::Handoff];
        for slot in [0, 1, u16::MAX] {
            tokens.extend(
                [
                    FrameSource::Port(PortSlot(slot)),
                    FrameSource::DivertTap(DivertTapSlot(slot)),
                    FrameSource::Peer(PeerSlot(slot)),
                ]
                .map(EgressToken::Source),
            );
            for socket in [0, 1, 1 << 20, (1 << 44) - 1].map(SocketNumber) {
                tokens.push(EgressToken::Socket { peer: PeerSlot(slot), socket });
            }
        }
        let numbers: HashSet<_> = tokens.iter().map(|token| token.encode()).collect();
        assert_eq!(numbers.len(), tokens.len());
        assert!(numbers.iter().all(|number| *number <= TOKEN_MAX));
        for token in tokens {
            assert_eq!(EgressToken::decode(token.encode()), Some(token));
        }
        assert_eq!(EgressToken::decode(TOKEN_MAX), None);
    }
}
