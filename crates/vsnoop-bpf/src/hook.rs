//! The two places of a tap where programs are.

/// One of the two hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// tcx egress of the tap.
    ToVm = 0,
    /// tcx ingress of the tap.
    FromVm = 1,
}
