//! Neighbour discovery (RFC 4861): what a host says of itself.

use std::net::Ipv6Addr;

use super::mac::Mac;

/// Messages of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discovery {
    RouterSolicitation,
    Solicitation,
    Advertisement,
}

/// Options that give the sender's link-layer address: source (RFC 4861, section 4.6.1), target.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;

impl Discovery {
    /// By the type of the ICMPv6 message.
    pub fn from_type(kind: u8) -> Option<Self> {
        match kind {
            133 => Some(Self::RouterSolicitation),
            135 => Some(Self::Solicitation),
            136 => Some(Self::Advertisement),
            _ => None,
        }
    }

    /// The address that a message is about, inner `None` if there is none; outer `None` if it is
    /// too short.
    pub fn parse_target(self, message: &[u8]) -> Option<Option<Ipv6Addr>> {
        if self == Self::RouterSolicitation {
            return (message.len() >= self.options_offset()).then_some(None);
        }
        let target = message.get(8..24)?.first_chunk::<16>()?;
        Some(Some(Ipv6Addr::from(*target)))
    }

    /// Where options begin.
    fn options_offset(self) -> usize {
        if self == Self::RouterSolicitation { 8 } else { 24 }
    }
}

/// Link-layer addresses that the sender gives for itself; `None`, at last, if an option is not
/// whole.
pub(super) fn own_addresses(
    discovery: Discovery,
    message: &[u8],
) -> impl Iterator<Item = Option<Mac>> {
    let own = match discovery {
        Discovery::Advertisement => TARGET_ADDRESS,
        Discovery::RouterSolicitation | Discovery::Solicitation => SOURCE_ADDRESS,
    };
    let mut rest = message.get(discovery.options_offset()..).unwrap_or_default();
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let length = usize::from(*rest.get(1).unwrap_or(&0)) * 8;
            // A length of zero is none (section 4.6).
            let option = rest.get(..length).filter(|option| !option.is_empty());
            let Some(option) = option else {
                rest = &[];
                return Some(None);
            };
            rest = rest.get(length..).unwrap_or_default();
            if option.first() == Some(&own) {
                return Some(option.get(2..8).and_then(<[u8]>::first_chunk).copied().map(Mac));
            }
        }
        None
    })
}
