//! Whether a flow's messages are compressed at present, and why not.

use std::fmt;

use super::Method;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// They are compressed, by a method that is neither `Off` nor `Auto`.
    By(Method),
    /// They do not become smaller.
    Incompressible,
    /// They would, but sending them as they are is as fast.
    DoesNotPay,
    /// It is not known how fast the link is, which therefore is not what slows the flow.
    RateUnknown,
}

/// The form for programs: a method, or the reason for no compression.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(method) => method.fmt(f),
            Self::Incompressible => f.write_str("raw_incompressible"),
            Self::DoesNotPay => f.write_str("raw_does_not_pay"),
            Self::RateUnknown => f.write_str("raw_rate_unknown"),
        }
    }
}
