//! Locations that a frame comes from and goes to, and the decision where it goes.

use super::mac::Mac;
use crate::slots::{PeerSlot, PortSlot};

/// Where an address was learned, and so where frames for it go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Location {
    /// An interface of this host.
    Port(PortSlot),
    /// Another host.
    Peer(PeerSlot),
}

impl Location {
    /// Whether a frame that came from here may go to `to` at all.
    #[inline]
    pub fn reaches(self, to: Self) -> bool {
        self != to && !matches!((self, to), (Self::Peer(_), Self::Peer(_)))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ForwardingDecision {
    To(Location),
    /// Two locations use the destination's address.
    Both(Location, Location),
    /// To every location of these that [`Location::reaches`] allows.
    Flood(Scope),
    Drop(DropReason),
}

/// Locations that get a copy of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scope {
    All,
    /// No peer: the sender has used up its rate of frames to all peers.
    Ports,
    /// Members of a multicast group.
    Members(Vec<Location>),
    /// These, and all peers.
    MembersAndPeers(Vec<Location>),
}

impl Scope {
    pub fn includes(&self, location: Location) -> bool {
        let is_peer = matches!(location, Location::Peer(_));
        match self {
            Self::All => true,
            Self::Ports => !is_peer,
            Self::Members(members) => members.contains(&location),
            Self::MembersAndPeers(members) => is_peer || members.contains(&location),
        }
    }
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// No whole Ethernet header.
    Short,
    /// For the bridge itself: spanning tree, LACP, pause, LLDP (IEEE 802.1Q, table 8-1).
    Control,
    /// The source is a group address or zero.
    BadSource,
    /// The configuration gives the source's address to another port.
    Fixed,
    /// The port has as many addresses as it may have, and the source is another one.
    TooMany,
    /// One copy too many of a source that another location has: it may have come round a loop.
    Loop,
    /// The destination is where the frame came from.
    SameLocation,
    /// The destination is at a peer, and so was the sender.
    SplitHorizon,
}

/// An address at a location, as it is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedAddress {
    pub vlan: u16,
    pub mac: Mac,
    pub location: Location,
    pub age_ns: u64,
    /// Another location uses it, too.
    pub contested: bool,
}
