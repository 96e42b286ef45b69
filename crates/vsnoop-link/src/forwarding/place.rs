//! Places that a frame comes from and goes to, and what is decided about it.

/// Where an address is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// An interface of this host.
    Port(u16),
    /// Another host.
    Peer(u16),
}

impl Place {
    /// Whether a frame that came from here may go to `to` at all.
    #[inline]
    pub fn reaches(self, to: Self) -> bool {
        self != to && !matches!((self, to), (Self::Peer(_), Self::Peer(_)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    To(Place),
    /// To every place that [`Place::reaches`] allows.
    Flood,
    Drop(Reason),
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// No whole Ethernet header.
    Short,
    /// For the bridge itself: spanning tree, LACP, pause, LLDP (IEEE 802.1Q, table 8-1).
    Control,
    /// The source is a group address or zero.
    BadSource,
    /// The source moved too often and is held where it was before.
    Flapping,
    /// The destination is where the frame came from.
    SamePlace,
    /// The destination is at a peer, and so was the sender.
    SplitHorizon,
}
