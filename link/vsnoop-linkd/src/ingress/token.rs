//! The descriptors that the ingress half watches, and the number of each in epoll.

use crate::io::poll::Token;

/// A descriptor that the half watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngressToken {
    Connection(ConnectionNumber),
    /// The socket at the UDP port.
    Datagrams,
    Orders,
    /// The eventfd that is readable while something waits for the next round.
    NextRound,
}

/// The number of a data connection in this half, never used twice; below 2^62.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConnectionNumber(u64);

impl ConnectionNumber {
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Numbers below are of connections. Bit 63 is free (see
/// [`TOKEN_MAX`](crate::io::poll::TOKEN_MAX)).
const OTHERS: u64 = 1 << 62;
const DATAGRAMS: u64 = OTHERS;
const ORDERS: u64 = OTHERS + 1;
const NEXT_ROUND: u64 = OTHERS + 2;

impl IngressToken {
    /// Returns the number by which epoll names it.
    pub fn encode(self) -> Token {
        Token(match self {
            Self::Connection(ConnectionNumber(number)) => number,
            Self::Datagrams => DATAGRAMS,
            Self::Orders => ORDERS,
            Self::NextRound => NEXT_ROUND,
        })
    }

    /// Returns the token of a number that [`encode`](Self::encode) has made; else `None`.
    pub fn decode(Token(token): Token) -> Option<Self> {
        Some(match token {
            ..OTHERS => Self::Connection(ConnectionNumber(token)),
            DATAGRAMS => Self::Datagrams,
            ORDERS => Self::Orders,
            NEXT_ROUND => Self::NextRound,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::poll::TOKEN_MAX;

    #[test]
    fn each_token_has_a_number_of_its_own_which_leads_back_to_it() {
        let connections = [0, 1, OTHERS - 1].map(ConnectionNumber);
        let connections = connections.map(IngressToken::Connection);
        let others = [IngressToken::Datagrams, IngressToken::Orders, IngressToken::NextRound];
        let all = [&connections[..], &others].concat();
        for (at, token) in all.iter().enumerate() {
            let number = token.encode();
            assert!(number <= TOKEN_MAX);
            assert_eq!(IngressToken::decode(number), Some(*token));
            assert!(all[..at].iter().all(|other| other.encode() != number), "{token:?}");
        }
        assert_eq!(IngressToken::decode(TOKEN_MAX), None);
    }
}
