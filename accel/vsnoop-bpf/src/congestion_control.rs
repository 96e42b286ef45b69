//! The name of a congestion control, as a port's record has it.

use std::ffi::c_char;

use vsnoop_flow::types::policy;

use crate::text::{c_name, c_string};

/// TCP_CA_NAME_MAX of linux/tcp.h, with the NUL.
const SIZE: usize = 16;

/// A congestion control of the kernel, or the host's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CongestionControl([c_char; SIZE]);

impl CongestionControl {
    /// `None` if no congestion control can have this name.
    pub fn named(name: &str) -> Option<Self> {
        let is_fit = |c: u8| c.is_ascii_alphanumeric() || c == b'_' || c == b'-';
        let is_name = (1..SIZE).contains(&name.len()) && name.bytes().all(is_fit);
        is_name.then(|| Self(c_name(name)))
    }

    pub fn from_policy(policy: &policy) -> Self {
        Self(policy.congestion_control)
    }

    /// The value in the port's record.
    pub fn record(self) -> [c_char; SIZE] {
        self.0
    }

    /// `None`: the host's default.
    pub fn name(self) -> Option<String> {
        Some(c_string(&self.0)).filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_it_was_and_one_that_the_kernel_cannot_have_is_none() {
        for name in ["bbr", "fifteen_letters"] {
            let record = policy {
                congestion_control: CongestionControl::named(name).expect(name).record(),
                ..policy::default()
            };
            assert_eq!(CongestionControl::from_policy(&record).name().as_deref(), Some(name));
        }
        for wrong in ["", "sixteen_letters_", "bbr ", "a/b", "ä"] {
            assert_eq!(CongestionControl::named(wrong), None, "{wrong:?}");
        }
        assert_eq!(CongestionControl::from_policy(&policy::default()).name(), None);
    }
}
