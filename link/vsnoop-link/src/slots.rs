//! Numbers of ports, divert taps and peers, by which the data threads know them.
//!
//! A caller gives each of them a number (a *slot*) and a name. Slots of different kinds are
//! different types: one never stands for another.

use std::fmt::Debug;
use std::hash::Hash;

/// A number of one kind of thing.
pub trait Slot: Copy + Eq + Ord + Hash + Debug {
    /// Number of slots of a kind.
    const COUNT: usize = 1 << 16;
    const FIRST: Self;
    const LAST: Self;

    fn new(number: u16) -> Self;

    /// The slot at a position of a list by slot; `None` beyond the last.
    fn at(index: usize) -> Option<Self> {
        u16::try_from(index).ok().map(Self::new)
    }

    /// The position in a list by slot.
    fn index(self) -> usize;

    /// The slot after this one; `None` after the last.
    fn next(self) -> Option<Self> {
        Self::at(self.index() + 1)
    }
}

/// Makes a kind of slot, in this crate or another.
#[macro_export]
macro_rules! slot {
    ($(#[$comment:meta])* $name:ident) => {
        $(#[$comment])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u16);

        impl $crate::slots::Slot for $name {
            const FIRST: Self = Self(0);
            const LAST: Self = Self(u16::MAX);

            fn new(number: u16) -> Self {
                Self(number)
            }

            fn index(self) -> usize {
                self.0.into()
            }
        }
    };
}

slot! {
    /// A port: an interface of this host by which VMs send and receive.
    PortSlot
}
slot! {
    /// A divert tap: a tap that carries diverted packets out of this host's stack.
    DivertTapSlot
}
slot! {
    /// A peer: another host.
    PeerSlot
}

/// Where this host has read a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FrameSource {
    Port(PortSlot),
    DivertTap(DivertTapSlot),
    /// A peer, whose frame this host relays.
    Peer(PeerSlot),
}

impl FrameSource {
    /// The position in a list of its kind.
    pub fn index(self) -> usize {
        match self {
            Self::Port(port) => port.index(),
            Self::DivertTap(tap) => tap.index(),
            Self::Peer(peer) => peer.index(),
        }
    }
}
