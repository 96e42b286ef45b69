//! Endpoints of etcd, and the credentials of this client.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use zeroize::Zeroizing;

/// The port of clients, by IANA.
const PORT: u16 = 2379;

/// Where one node is.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub is_encrypted: bool,
    pub host: String,
    pub port: u16,
}

/// A text that names no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "give the address of a node of etcd, such as https://192.0.2.10:{PORT}, or http:// without \
     encryption"
)]
pub struct NoEndpoint;

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Self, NoEndpoint> {
        let uri: Uri = text.parse().map_err(|_| NoEndpoint)?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(NoEndpoint),
        };
        let authority = uri.authority().ok_or(NoEndpoint)?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let host = authority.host().to_owned();
        if !is_bare || host.is_empty() || authority.as_str().contains('@') {
            return Err(NoEndpoint);
        }
        let port = authority.port_u16().unwrap_or(PORT);
        // A port that is no number is left out by the parser.
        let is_whole = authority.port().is_some() || authority.as_str() == host;
        if port == 0 || !is_whole { Err(NoEndpoint) } else { Ok(Self { is_encrypted, host, port }) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Texts in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// Certificates by which the nodes are known.
    pub authority: Vec<u8>,
    /// Certificate and private key of this client; etcd may take its common name for a user.
    pub identity: Option<(Vec<u8>, Zeroizing<Vec<u8>>)>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub password: Zeroizing<String>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Nodes of one cluster.
    pub endpoints: Vec<Endpoint>,
    /// Used at endpoints with https.
    pub tls: Option<Tls>,
    pub login: Option<Login>,
    /// Prefix of the keys of all entries.
    pub directory: String,
    /// The rest of the key of this host's entry.
    pub name: String,
    /// Time to live of the lease: etcd removes the entry if this host does not renew it for so
    /// long.
    pub ttl: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_scheme_a_host_and_nothing_behind() {
        for (text, shown) in [
            ("http://192.0.2.1:2379", "http://192.0.2.1:2379"),
            ("https://etcd-1.example", "https://etcd-1.example:2379"),
            ("https://[2001:db8::1]:1/", "https://[2001:db8::1]:1"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown);
        }
        for wrong in ["", "192.0.2.1:2379", "ftp://a", "http://", "http://a/b", "http://a:0"] {
            assert_eq!(wrong.parse::<Endpoint>(), Err(NoEndpoint), "{wrong}");
        }
        assert!("http://user:word@a:1".parse::<Endpoint>().is_err());
    }
}
