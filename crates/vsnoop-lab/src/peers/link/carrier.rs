//! The definition of a carrier.

use anyhow::Result;

use super::ends::Ends;
use super::site::Site;

/// A way to get packets from one host to the other.
#[derive(Debug)]
pub struct Carrier {
    pub name: &'static str,
    pub about: &'static str,
    pub kind: Kind,
    pub(super) start: fn(&mut Site) -> Result<Ends>,
}

/// The class of carriers with which a carrier is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No tunnel, or one of the kernel.
    Kernel,
    /// A user's process that does not encrypt.
    Plain,
    /// A user's process that encrypts.
    Sealed,
    /// A user's process that ends connections and opens others, and is no tunnel of frames.
    Between,
    /// vsnoop's own.
    Own,
}
