//! Ethernet addresses, and how people write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Multicast or broadcast.
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The group of all bridges of a spanning tree.
    #[inline]
    pub fn is_spanning_tree(self) -> bool {
        self.0 == [0x01, 0x80, 0xc2, 0, 0, 0]
    }

    /// One of the addresses that no bridge hands on.
    #[inline]
    pub fn is_control(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(to, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// This text is no MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no MAC address such as 52:54:00:00:00:01")]
pub struct BadMac(pub String);

impl FromStr for Mac {
    type Err = BadMac;

    fn from_str(text: &str) -> Result<Self, BadMac> {
        let wrong = || BadMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(bytes)) }
    }
}

impl TryFrom<String> for Mac {
    type Error = BadMac;

    fn try_from(text: String) -> Result<Self, BadMac> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_has_six_bytes_of_two_digits() {
        assert_eq!("52:54:00:0A:00:01".parse(), Ok(Mac([0x52, 0x54, 0, 10, 0, 1])));
        for wrong in
            ["", "52:54:00:00:00", "52:54:00:00:00:01:02", "5:54:00:00:00:01", "+1:2:3:4:5:6"]
        {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_of_control_are_known() {
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0]).is_control());
        assert!(Mac([1, 0x80, 0xc2, 0, 0, 0x0f]).is_control());
        assert!(!Mac([1, 0x80, 0xc2, 0, 0, 0x10]).is_control());
        assert!(!Mac([0xff; 6]).is_control());
        assert_eq!(Mac([1, 0x80, 0xc2, 0, 0, 0x0f]).to_string(), "01:80:c2:00:00:0f");
    }
}
