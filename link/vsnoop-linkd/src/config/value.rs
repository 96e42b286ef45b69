//! Forms of single values: addresses, names, durations, sizes, keys. Errors say what is allowed.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

/// UDP and TCP, where nothing else is said. IANA has assigned 7748 to 7774 to no service.
pub const PORT: u16 = 7757;

/// IFNAMSIZ without its end.
const INTERFACE_NAME_BYTES: usize = 15;
/// Names of links, networks, peers, owners.
const NAME_BYTES: usize = 64;
/// Prefix of keys in etcd.
const PREFIX_BYTES: usize = 200;
/// RFC 1035.
const HOST_NAME_BYTES: usize = 253;
/// A window of zstd's long distance matching: windowLog 20 to 27.
const DICTIONARY_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=128 << 20;

/// Rules for a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error(
        "{text:?} is no address: give a host name or an address with a port, such as \
         192.0.2.2:{PORT}, [2001:db8::2]:{PORT} or host-b.example:{PORT}"
    )]
    Address { text: String },
    #[error("{text:?} may end with a port or not: give [{front}]:{last} or [{text}]:{PORT}")]
    AddressOrPort { text: String, front: String, last: String },
    #[error("give an address of this host and a port, such as \"[::]:{PORT}\" for all addresses")]
    Listen,
    #[error(
        "give up to {NAME_BYTES} letters, digits, '-', '_' and '.', beginning with a letter or digit"
    )]
    Name,
    #[error("give the name of an interface, up to {INTERFACE_NAME_BYTES} characters")]
    Interface,
    #[error("give the DNS name in the peer's certificate")]
    Subject,
    #[error("give the name of a user of this host")]
    User,
    #[error("give the path of a file")]
    Path,
    #[error("a dictionary has 1M to 128M bytes (suffixes K, M)")]
    Dictionary,
    #[error("give udp or tls; without encryption udp-plain")]
    Transport,
    #[error("give pass (the traffic goes its ordinary way) or drop")]
    WhenDown,
    #[error("give report (a loop is said) or block (a port that closes one is stopped, too)")]
    Loop,
    #[error(
        "give what keys of etcd begin with, such as /vsnoop/: up to 200 characters, a / at the end"
    )]
    Prefix,
    #[error("there is no such [[peer]]; there is {names}")]
    Peer { names: String },
}

/// The consequence when frames come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoopPolicy {
    /// It is said.
    #[default]
    Report,
    /// The port that closes the loop is stopped, too.
    Block,
}

/// Where a peer listens. A host name is resolved whenever it is dialled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl Address {
    /// The address, if it is a literal one that needs no resolving.
    pub fn literal(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl FromStr for Address {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError::Address { text: text.to_owned() };
        if let Ok(ip) = text.parse::<IpAddr>() {
            if let Some((front, last)) = text.rsplit_once(':')
                && front.parse::<Ipv6Addr>().is_ok()
            {
                let [text, front, last] = [text, front, last].map(str::to_owned);
                return Err(ValueError::AddressOrPort { text, front, last });
            }
            return Ok(Self { host: ip.to_string(), port: PORT });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (text, PORT),
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bracketed {
            Some(host) => host.parse::<Ipv6Addr>().map_err(|_| wrong())?.to_string(),
            None => host.to_owned(),
        };
        let is_good = bracketed.is_some() || is_host_name(&host) || host.parse::<IpAddr>().is_ok();
        if is_good && port != 0 { Ok(Self { host, port }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Whether there is such a user is found out when the link begins.
pub fn parse_user(text: &str) -> Result<String, ValueError> {
    let is_good = !text.is_empty() && !text.contains(|c: char| c.is_control() || c.is_whitespace());
    if is_good { Ok(text.to_owned()) } else { Err(ValueError::User) }
}

pub fn is_host_name(text: &str) -> bool {
    (1..=HOST_NAME_BYTES).contains(&text.len())
        && text.trim_end_matches('.').split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        })
}

/// Whether a text may be the name of a link: it is that of a file, too.
pub fn is_link_name(text: &str) -> bool {
    parse_name(text).is_ok()
}

pub fn parse_name(text: &str) -> Result<String, ValueError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = (1..=NAME_BYTES).contains(&text.len())
        && text.bytes().all(allowed)
        && text.as_bytes()[0].is_ascii_alphanumeric();
    if good { Ok(text.to_owned()) } else { Err(ValueError::Name) }
}

pub fn parse_loops(text: &str) -> Result<LoopPolicy, ValueError> {
    match text {
        "report" => Ok(LoopPolicy::Report),
        "block" => Ok(LoopPolicy::Block),
        _ => Err(ValueError::Loop),
    }
}

pub fn etcd_prefix(text: &str) -> Result<String, ValueError> {
    let is_good = text.ends_with('/')
        && text.len() <= PREFIX_BYTES
        && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_good { Ok(text.to_owned()) } else { Err(ValueError::Prefix) }
}

pub fn parse_interface(text: &str) -> Result<String, ValueError> {
    let good = (1..=INTERFACE_NAME_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte))
        && !matches!(text, "." | "..");
    if good { Ok(text.to_owned()) } else { Err(ValueError::Interface) }
}

/// "300s", "5m", "1h", "500ms"; without a suffix seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms: u64 = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(Duration::from_millis(digits.parse::<u64>().ok()?.checked_mul(unit_ms)?))
}

/// Memory of a dictionary, "1M" to "128M".
pub fn parse_dictionary(text: &str) -> Result<u32, ValueError> {
    parse_size(text)
        .filter(|bytes| DICTIONARY_BYTES.contains(bytes))
        .and_then(|bytes| u32::try_from(bytes).ok())
        .ok_or(ValueError::Dictionary)
}

fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_as_it_can_be_read_again() {
        for (text, shown) in [
            ("192.0.2.2:7757", "192.0.2.2:7757"),
            ("192.0.2.2", "192.0.2.2:7757"),
            ("2001:db8::2", "[2001:db8::2]:7757"),
            ("[2001:db8::2]:1", "[2001:db8::2]:1"),
            ("host-b.example:7000", "host-b.example:7000"),
            ("host-b", "host-b:7757"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse::<Address>().unwrap(), address);
        }
        for wrong in ["", ":1", "a:", "a:0", "a:70000", "[::1", "a b:1", "[name]:1", "1:2:x:1"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_ipv6_address_that_may_end_with_a_port_is_asked_about() {
        let error = "2001:db8::2:7757".parse::<Address>().unwrap_err().to_string();
        assert!(error.contains("[2001:db8::2]:7757"), "{error}");
        assert!(error.contains("[2001:db8::2:7757]:7757"), "{error}");
        for clear in ["2001:db8::2", "2001:db8:1:2:3:4:5:6", "::1", "192.0.2.2:7757"] {
            assert!(clear.parse::<Address>().is_ok(), "{clear}");
        }
    }

    #[test]
    fn names_of_links_lead_to_no_other_directory() {
        assert!(is_link_name("office-2.b_c"));
        for wrong in ["", ".", "..", "../x", "a/b", ".a", "-a", "a b", "ä"] {
            assert!(!is_link_name(wrong), "{wrong}");
        }
    }

    #[test]
    fn durations_and_dictionaries_have_suffixes_and_bounds() {
        assert_eq!(parse_duration("300s"), Some(Duration::from_secs(300)));
        assert_eq!(parse_duration("5m"), Some(Duration::from_secs(300)));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("-1s"), None);
        assert_eq!(parse_duration("18446744073709551615h"), None);
        assert_eq!(parse_dictionary("128M"), Ok(128 << 20));
        assert!(parse_dictionary("129M").is_err() && parse_dictionary("1K").is_err());
    }
}
