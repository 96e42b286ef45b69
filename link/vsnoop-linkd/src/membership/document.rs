//! The entry of a host in etcd: JSON, a few hundred bytes.
//!
//! ```json
//! {"version": 1, "keys": ["zqmjS...="], "addresses": ["192.0.2.1:7757"]}
//! ```
//! Fields that are not known are for later versions, and are passed over.

use serde::{Deserialize, Serialize};
use vsnoop_link::identity::{BadPublicKey, PublicKey};
use vsnoop_link::session::is_of_another_host;

use crate::config::{ADDRESSES, Address, KEYS, ValueError};

const VERSION: u32 = 1;

/// The reason why an entry is ignored.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("it is too long")]
    TooLong,
    #[error("it is no description of a host: {0}")]
    NoDescription(String),
    #[error("it has version {0}, and this host knows version {VERSION}: install a newer vsnoop")]
    Version(u32),
    #[error("it must have 1 to {KEYS} keys, and has {0}")]
    Keys(usize),
    #[error("it may have up to {ADDRESSES} addresses, and has {0}")]
    Addresses(usize),
    #[error("one of its keys: {0}")]
    Key(#[from] BadPublicKey),
    #[error("one of its addresses: {0}")]
    Address(#[from] ValueError),
    #[error("its address {0} cannot be that of another host")]
    NoHost(Address),
}

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    #[serde(default)]
    keys: Vec<String>,
    #[serde(default)]
    addresses: Vec<String>,
}

/// The entry of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDocument {
    /// The present one first; several while one replaces another.
    pub keys: Vec<PublicKey>,
    /// None: it calls.
    pub addresses: Vec<Address>,
}

impl HostDocument {
    /// `value`: `None` if it is too long to be looked at.
    pub fn read(value: Option<&[u8]>) -> Result<Self, DocumentError> {
        let value = value.ok_or(DocumentError::TooLong)?;
        let form: Form = serde_json::from_slice(value)
            .map_err(|error| DocumentError::NoDescription(error.to_string()))?;
        if form.version != VERSION {
            return Err(DocumentError::Version(form.version));
        }
        if form.keys.is_empty() || form.keys.len() > KEYS {
            return Err(DocumentError::Keys(form.keys.len()));
        }
        if form.addresses.len() > ADDRESSES {
            return Err(DocumentError::Addresses(form.addresses.len()));
        }
        let keys = form.keys.iter().map(|key| key.parse());
        let addresses = form.addresses.iter().map(|address| address.parse());
        let addresses = addresses.collect::<Result<Vec<Address>, ValueError>>()?;
        let is_none =
            |address: &&Address| address.literal().is_some_and(|ip| !is_of_another_host(ip));
        if let Some(none) = addresses.iter().find(is_none) {
            return Err(DocumentError::NoHost(none.clone()));
        }
        Ok(Self { keys: keys.collect::<Result<_, BadPublicKey>>()?, addresses })
    }

    pub fn write(&self) -> Vec<u8> {
        let form = Form {
            version: VERSION,
            keys: self.keys.iter().map(ToString::to_string).collect(),
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
        };
        serde_json::to_vec(&form).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=";

    #[test]
    fn what_is_written_is_read_again() {
        let document = HostDocument {
            keys: vec![KEY.parse().unwrap()],
            addresses: vec!["192.0.2.1".parse().unwrap(), "[2001:db8::1]:7000".parse().unwrap()],
        };
        assert_eq!(HostDocument::read(Some(&document.write())).unwrap(), document);
    }

    #[test]
    fn what_is_no_host_is_refused_and_a_later_field_is_not() {
        let read = |text: &str| HostDocument::read(Some(text.replace("KEY", KEY).as_bytes()));
        read(r#"{"version":1,"keys":["KEY"],"weight":3}"#).unwrap();
        let nine = ["\"192.0.2.1\""; 9].join(",");
        let with = |address: &str| {
            let all = format!(r#"["192.0.2.1","{address}"]"#);
            format!(r#"{{"version":1,"keys":["KEY"],"addresses":{all}}}"#)
        };
        for (text, why) in [
            ("", "no description"),
            ("[]", "no description"),
            (r#"{"version":2}"#, "newer vsnoop"),
            (r#"{"version":1}"#, "has 0"),
            (r#"{"version":1,"keys":["KEY",3]}"#, "no description"),
            (r#"{"version":1,"keys":["short"]}"#, "one of its keys"),
            (r#"{"version":1,"keys":["KEY"],"addresses":["a b"]}"#, "one of its addresses"),
            (&format!(r#"{{"version":1,"keys":["KEY"],"addresses":[{nine}]}}"#), "has 9"),
            (&with("127.0.0.1:22"), "address 127.0.0.1:22 cannot be that of another host"),
            (&with("255.255.255.255"), "255.255.255.255:7757 cannot"),
            (&with("224.0.0.1"), "224.0.0.1:7757 cannot"),
            (&with("0.0.0.0"), "0.0.0.0:7757 cannot"),
            (&with("[::1]:22"), "[::1]:22 cannot"),
            (&with("[ff02::1]:22"), "[ff02::1]:22 cannot"),
            (&with("[::ffff:127.0.0.1]:22"), "cannot"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(matches!(HostDocument::read(None), Err(DocumentError::TooLong)));
    }
}
