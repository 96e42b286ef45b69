//! Locations that a frame comes from and goes to, and the decision where it goes.

/// Where an address was learned, and so where frames for it go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Location {
    /// An interface of this host.
    Port(u16),
    /// Another host.
    Peer(u16),
}

impl Location {
    /// Whether a frame that came from here may go to `to` at all.
    #[inline]
    pub fn reaches(self, to: Self) -> bool {
        self != to && !matches!((self, to), (Self::Peer(_), Self::Peer(_)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForwardingDecision {
    To(Location),
    /// Two locations use the destination's address.
    Both(Location, Location),
    /// To every location that [`Location::reaches`] allows.
    Flood,
    Drop(DropReason),
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
    Forged,
    /// One copy too many of a source that another location has: it may have come round a loop.
    Loop,
    /// The destination is where the frame came from.
    SameLocation,
    /// The destination is at a peer, and so was the sender.
    SplitHorizon,
}
