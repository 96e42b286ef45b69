//! From the text of a file to a checked [`Config`]; docs/link.md describes every key.
//!
//! Two steps: serde puts the values of any type under the keys that there are (an unknown one is an
//! error, for it was meant for something), then each value is read by [`Reader`], which knows where
//! it stands and says its line and key with what is wrong. What concerns several tables (names that
//! must differ, or must be there) is checked last.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::{
    ADDRESSES, AcceptConfig, Address, AuthorityConfig, CONNECTIONS, Compress, Config, ConfigError,
    Divert, EtcdConfig, KEYS, MTU_BYTES, OuterConfig, PORT, PeerConfig, PeerSource, PeerTemplate,
    PortConfig, PortKind, Rules, Selector, Transport, TrustConfig, ValueError, WhenDown, value,
};
use vsnoop_etcd::{Endpoint, NoEndpoint};
use vsnoop_link::compress::Codecs;
use vsnoop_link::forwarding::{Mac, SourceFilter};
use vsnoop_link::handshake::MOST_TAKES;
use vsnoop_link::identity::PublicKey;

type Field = Option<Spanned<Value>>;
type Result<T> = std::result::Result<T, ConfigError>;

/// Frames per second that a VM may send to all peers: ARP and discovery need some, and a stream of
/// MTU-sized frames has 12 Mb/s.
const FLOOD_RATE: u32 = 1000;
/// Characters of a line that an error shows.
const EXCERPT_CHARS: usize = 80;

impl Config {
    /// Reads and checks a file.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(|error| unreadable(file, error))?;
        Self::parse(file, &text)
    }

    /// `text` as the contents of `file`, whose stem is the default for the link's name and whose
    /// directory is where relative paths begin.
    pub fn parse(file: &Path, text: &str) -> Result<Self> {
        parse(file, text)
    }
}

fn unreadable(file: &Path, error: io::Error) -> ConfigError {
    let file = file.to_owned();
    match error.kind() {
        ErrorKind::IsADirectory => ConfigError::IsDirectory { file },
        ErrorKind::NotFound => ConfigError::NotFound { file },
        ErrorKind::InvalidData => ConfigError::NotUtf8 { file },
        _ => ConfigError::Unreadable { file, error },
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    link: Spanned<LinkTable>,
    #[serde(default)]
    port: Vec<Spanned<PortTable>>,
    #[serde(default)]
    peer: Vec<Spanned<PeerTable>>,
    #[serde(default)]
    compress: Vec<Spanned<CompressTable>>,
    #[serde(default)]
    divert: Vec<Spanned<DivertTable>>,
    etcd: Option<Spanned<EtcdTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "one table, [link]")]
struct LinkTable {
    name: Field,
    network: Field,
    listen: Field,
    user: Field,
    key: Field,
    cert: Field,
    ca: Field,
    crl: Field,
    mtu: Field,
    age: Field,
    flood_rate: Field,
    clamp_mss: Field,
    relay: Field,
    rekey: Field,
    dead_after: Field,
    local: Field,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct PortTable {
    name: Field,
    bridge: Field,
    tap: Field,
    interface: Field,
    mac: Field,
    address: Field,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct PeerTable {
    name: Field,
    key: Field,
    subject: Field,
    address: Field,
    transport: Field,
    connections: Field,
    accept: Field,
    accept_dictionary: Field,
    dscp: Field,
    ecn: Field,
    flow_label: Field,
    relay: Field,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "one table, [etcd]")]
struct EtcdTable {
    endpoints: Field,
    ca: Field,
    cert: Field,
    key: Field,
    user: Field,
    password: Field,
    prefix: Field,
    name: Field,
    address: Field,
    ttl: Field,
    grace: Field,
    peer: Option<Spanned<PeerTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct CompressTable {
    peer: Field,
    port: Field,
    vm: Field,
    prefix: Field,
    method: Field,
    owner: Field,
    dictionary: Field,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct DivertTable {
    interface: Field,
    prefix: Field,
    peer: Field,
    when_down: Field,
    mac: Field,
    address: Field,
}

pub fn parse(file: &Path, text: &str) -> Result<Config> {
    let mut reader = Reader { file, text, relay: false };
    let document = reader.document()?;
    let link = document.link.get_ref();
    let name = match reader.text("link.name", &link.name, value::name)? {
        Some(name) => name,
        None => reader.stem()?,
    };
    reader.relay = reader.truth("link.relay", &link.relay)?.unwrap_or(false);
    let mut peers = reader.peers(&document.peer)?;
    let ports = reader.ports(&document.port, &name)?;
    let etcd = document.etcd.as_ref().map(|table| reader.etcd(table)).transpose()?;
    let compress = reader.compress(&document.compress, &peers, etcd.as_ref())?;
    for (table, peer) in document.peer.iter().zip(&mut peers) {
        // A host that keeps dictionaries for what it sends has memory for those of the peer.
        if table.get_ref().accept_dictionary.is_none() {
            peer.accept.dictionary_bytes = compress.largest_dictionary(&peer.name);
        }
    }
    let local = reader.local(&link.local)?;
    let config = Config {
        file: file.to_owned(),
        network: reader
            .text("link.network", &link.network, value::name)?
            .unwrap_or_else(|| name.clone()),
        listen: reader
            .text("link.listen", &link.listen, listen)?
            .unwrap_or_else(|| SocketAddr::from(([0u16; 8], PORT))),
        user: reader.text("link.user", &link.user, value::user)?,
        key: reader
            .path("link.key", &link.key)?
            .unwrap_or_else(|| Path::new(super::DIRECTORY).join(format!("{name}.key"))),
        authority: reader.authority(&document.link)?,
        mtu_bytes: reader.number("link.mtu", &link.mtu, MTU_BYTES)?.unwrap_or(1500),
        age: reader.time("link.age", &link.age, 1, 86_400)?.unwrap_or(Duration::from_secs(300)),
        flood_rate: reader
            .number("link.flood_rate", &link.flood_rate, 0..=1_000_000)?
            .unwrap_or(FLOOD_RATE),
        clamp_mss: reader.truth("link.clamp_mss", &link.clamp_mss)?.unwrap_or(true),
        rekey: reader
            .time("link.rekey", &link.rekey, 5, 86_400)?
            .unwrap_or(Duration::from_secs(3600)),
        dead_after: reader
            .time("link.dead_after", &link.dead_after, 1, 300)?
            .unwrap_or(Duration::from_secs(5)),
        compress,
        etcd,
        diverts: reader.diverts(&document.divert, &peers, &local)?,
        local,
        name,
        ports,
        peers,
    };
    reader.whole(&document, &config)?;
    Ok(config)
}

fn listen(text: &str) -> std::result::Result<SocketAddr, ValueError> {
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    address.ok_or(ValueError::Listen)
}

/// Knows where each value stands.
struct Reader<'a> {
    file: &'a Path,
    text: &'a str,
    /// `link.relay`, for peers that do not say it themselves.
    relay: bool,
}

impl Reader<'_> {
    fn complaint(&self, offset: usize, what: impl Into<String>) -> ConfigError {
        ConfigError::at(self.file, self.line(offset), what)
    }

    fn document(&self) -> Result<ConfigFile> {
        toml::from_str(self.text).map_err(|error| {
            let names_link = |line: &str| line.trim_start_matches(['[', ' ', '\t']).starts_with("link");
            if !self.text.lines().any(names_link) {
                let what = "this is no configuration of a link: it has no table [link]; docs/link.md says \
                            what to write there";
                return self.complaint(0, what);
            }
            let what = error.message().lines().collect::<Vec<_>>().join(", ");
            // The words of TOML for those of serde.
            let what = what
                .replace("expected a sequence", "expected double brackets, since there may be several")
                .replace("invalid type: map", "invalid type: a table in single brackets")
                .replace("invalid type: sequence", "invalid type: a list or double brackets");
            let Some(span) = error.span() else { return self.complaint(0, what) };
            // The parser names the key in errors about unknown keys only, so the line is quoted.
            let line = self.text.lines().nth(self.line(span.start) - 1).unwrap_or_default().trim();
            let quoted = if line.is_empty() { "" } else { &format!(", in `{}`", excerpt(line)) };
            self.complaint(span.start, format!("{what}{quoted}"))
        })
    }

    /// The link is called as its file.
    fn stem(&self) -> Result<String> {
        let stem = self.file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        value::name(stem).map_err(|allowed| {
            self.complaint(
                0,
                format!("the file's name is none for a link; set link.name: {allowed}"),
            )
        })
    }

    fn text<T, E: fmt::Display>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&str) -> std::result::Result<T, E>,
    ) -> Result<Option<T>> {
        let Some(found) = field else { return Ok(None) };
        match found.get_ref() {
            Value::String(text) => {
                read(text).map(Some).map_err(|allowed| self.wrong(key, found, allowed))
            }
            _ => Err(self.wrong(key, found, "give a text in quotes")),
        }
    }

    fn wrong(&self, key: &str, found: &Spanned<Value>, allowed: impl fmt::Display) -> ConfigError {
        let what = format!("{key} = {}: {allowed}", shown(found.get_ref()));
        self.complaint(found.span().start, what)
    }

    fn number<T: TryFrom<i64> + PartialOrd + fmt::Display>(
        &self,
        key: &str,
        field: &Field,
        range: std::ops::RangeInclusive<T>,
    ) -> Result<Option<T>> {
        let Some(found) = field else { return Ok(None) };
        let number = found.get_ref().as_integer().and_then(|number| T::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        number.map(Some).ok_or_else(|| {
            let allowed = format!("give a number from {} to {}", range.start(), range.end());
            self.wrong(key, found, allowed)
        })
    }

    fn truth(&self, key: &str, field: &Field) -> Result<Option<bool>> {
        let Some(found) = field else { return Ok(None) };
        let truth = found.get_ref().as_bool();
        truth.map(Some).ok_or_else(|| self.wrong(key, found, "give true or false"))
    }

    fn time(
        &self,
        key: &str,
        field: &Field,
        least_s: u64,
        most_s: u64,
    ) -> Result<Option<Duration>> {
        let Some(found) = field else { return Ok(None) };
        let time = match found.get_ref() {
            Value::Integer(seconds) => u64::try_from(*seconds).ok().map(Duration::from_secs),
            Value::String(text) => value::duration(text),
            _ => None,
        };
        let allowed = Duration::from_secs(least_s)..=Duration::from_secs(most_s);
        time.filter(|time| allowed.contains(time)).map(Some).ok_or_else(|| {
            let allowed =
                format!("give a time from {least_s} s to {most_s} s, such as \"300s\" or \"5m\"");
            self.wrong(key, found, allowed)
        })
    }

    /// Relative ones begin where the file is.
    fn path(&self, key: &str, field: &Field) -> Result<Option<PathBuf>> {
        let directory = self.file.parent().unwrap_or(Path::new(""));
        self.text(key, field, |text| {
            if text.is_empty() { Err(ValueError::Path) } else { Ok(directory.join(text)) }
        })
    }

    /// One path, or a list.
    fn paths(&self, key: &str, field: &Field) -> Result<Vec<PathBuf>> {
        let directory = self.file.parent().unwrap_or(Path::new(""));
        let path = |text: &str| (!text.is_empty()).then(|| directory.join(text));
        self.list(key, field, path, "give the path of a file, or a list of them")
    }

    fn authority(&self, table: &Spanned<LinkTable>) -> Result<Option<AuthorityConfig>> {
        let link = table.get_ref();
        let lists = self.paths("link.crl", &link.crl)?;
        match (self.path("link.cert", &link.cert)?, self.path("link.ca", &link.ca)?) {
            (Some(cert), Some(ca)) => Ok(Some(AuthorityConfig { cert, ca, lists })),
            (None, None) if lists.is_empty() => Ok(None),
            (None, None) => {
                let offset = link.crl.as_ref().map_or(0, |found| found.span().start);
                let what = "link.crl goes with link.cert and link.ca only";
                Err(self.complaint(offset, what))
            }
            _ => {
                let found = link.cert.as_ref().or(link.ca.as_ref());
                let offset = found.map_or(table.span().start, |found| found.span().start);
                let what = "link.cert and link.ca belong together: this host's certificate, and the CA \
                            that peers are certified by";
                Err(self.complaint(offset, what))
            }
        }
    }

    fn ports(&self, tables: &[Spanned<PortTable>], link: &str) -> Result<Vec<PortConfig>> {
        let ports =
            tables.iter().map(|table| self.port(table, link)).collect::<Result<Vec<_>>>()?;
        self.differ(
            tables,
            &ports,
            "port",
            |port| Some(&port.name),
            |name| format!("interface {name} is a port already; each tap needs a name of its own"),
        )?;
        self.differ(
            tables,
            &ports,
            "port",
            |port| match &port.kind {
                PortKind::Bridge(bridge) => Some(bridge),
                PortKind::Tap | PortKind::Interface => None,
            },
            |bridge| {
                format!(
                    "bridge {bridge} has a port already; with two, frames would go round for ever"
                )
            },
        )?;
        self.fixed_once(tables, &ports)?;
        Ok(ports)
    }

    fn port(&self, table: &Spanned<PortTable>, link: &str) -> Result<PortConfig> {
        let port = table.get_ref();
        let name = self.text("port.name", &port.name, value::interface)?;
        let bridge = self.text("port.bridge", &port.bridge, value::interface)?;
        let tap = self.text("port.tap", &port.tap, value::interface)?;
        let interface = self.text("port.interface", &port.interface, value::interface)?;
        let sources = SourceFilter {
            macs: self.macs("port.mac", &port.mac)?,
            addresses: self.prefixes("port.address", &port.address)?,
        };
        let (own, kind) = match (bridge, tap, interface) {
            (Some(bridge), None, None) => {
                let name = match name {
                    Some(name) => name,
                    None => value::interface(&format!("vsl-{link}")).map_err(|_| {
                        let what = format!(
                            "the tap cannot be called vsl-{link}, which is too long for an interface: \
                             set port.name"
                        );
                        self.complaint(table.span().start, what)
                    })?,
                };
                return Ok(PortConfig { name, kind: PortKind::Bridge(bridge), sources });
            }
            (None, Some(tap), None) => (tap, PortKind::Tap),
            (None, None, Some(interface)) => (interface, PortKind::Interface),
            _ => {
                let what = "a [[port]] has one of: bridge (the link puts a tap into it), tap (which the \
                            link makes), interface (which exists)";
                return Err(self.complaint(table.span().start, what));
            }
        };
        match port.name.as_ref() {
            Some(found) => Err(self.wrong("port.name", found, "goes with bridge only")),
            None => Ok(PortConfig { name: own, kind, sources }),
        }
    }

    /// No MAC address is fixed to two ports.
    fn fixed_once(&self, tables: &[Spanned<PortTable>], ports: &[PortConfig]) -> Result<()> {
        let mut seen = HashMap::new();
        for (table, port) in tables.iter().zip(ports) {
            for mac in &port.sources.macs {
                if let Some(other) =
                    seen.insert(mac, &port.name).filter(|other| **other != port.name)
                {
                    let what = format!("{mac} is an address of port {other}, too; leave out one");
                    return Err(self.complaint(table.span().start, what));
                }
            }
        }
        Ok(())
    }

    fn peers(&self, tables: &[Spanned<PeerTable>]) -> Result<Vec<PeerConfig>> {
        let peers = tables.iter().map(|table| self.peer(table)).collect::<Result<Vec<_>>>()?;
        self.differ(
            tables,
            &peers,
            "peer",
            |peer| Some(&peer.name),
            |name| format!("another peer is called {name}; names must differ"),
        )?;
        self.keys_differ(tables, &peers)?;
        self.differ(
            tables,
            &peers,
            "peer",
            |peer| match &peer.trust {
                TrustConfig::Subject(subject) => Some(subject),
                TrustConfig::Keys(_) => None,
            },
            |subject| format!("another peer has the subject {subject}, too"),
        )?;
        Ok(peers)
    }

    /// No key is of two peers, nor twice of one.
    fn keys_differ(&self, tables: &[Spanned<PeerTable>], peers: &[PeerConfig]) -> Result<()> {
        let mut seen = HashMap::new();
        for (table, peer) in tables.iter().zip(peers) {
            let TrustConfig::Keys(keys) = &peer.trust else { continue };
            let here = table.span().start;
            for key in keys {
                let Some(first) = seen.insert(key, here) else { continue };
                let line = self.line(first);
                let what = format!(
                    "the same key stands in the [[peer]] of line {line}; every host needs one of \
                     its own"
                );
                return Err(self.complaint(here, what));
            }
        }
        Ok(())
    }

    /// One public key, or a list of some.
    fn keys(&self, field: &Field) -> Result<Option<Vec<PublicKey>>> {
        const KEY: &str = "peer.key";
        let Some(found) = field else { return Ok(None) };
        let allowed = format!("give a public key, or a list of up to {KEYS}");
        let wrong = |why: &dyn fmt::Display| self.wrong(KEY, found, why);
        let one = |value: &Value| match value.as_str() {
            Some(text) => text.parse().map_err(|why| wrong(&why)),
            None => Err(wrong(&allowed)),
        };
        let keys = match found.get_ref() {
            Value::Array(values) => values.iter().map(one).collect::<Result<Vec<_>>>()?,
            value => vec![one(value)?],
        };
        if keys.is_empty() || keys.len() > KEYS { Err(wrong(&allowed)) } else { Ok(Some(keys)) }
    }

    fn peer(&self, table: &Spanned<PeerTable>) -> Result<PeerConfig> {
        let peer = table.get_ref();
        let here = table.span().start;
        let name = self.text("peer.name", &peer.name, value::name)?;
        let name = name.ok_or_else(|| self.complaint(here, "a [[peer]] needs a name"))?;
        let keys = self.keys(&peer.key)?;
        let subject = self.text("peer.subject", &peer.subject, |text| {
            if value::is_host_name(text) { Ok(text.to_owned()) } else { Err(ValueError::Subject) }
        })?;
        let trust = match (keys, subject) {
            (Some(keys), None) => TrustConfig::Keys(keys),
            (None, Some(subject)) => TrustConfig::Subject(subject),
            _ => {
                let what = format!(
                    "peer {name} needs one of: key (its public key, as `vsnoop link keygen FILE --show` \
                     prints it there), subject (the name in its certificate, with link.ca)"
                );
                return Err(self.complaint(here, what));
            }
        };
        let PeerTemplate { transport, connections, accept, outer, relay, .. } =
            self.template(peer)?;
        let addresses = self.addresses("peer.address", &peer.address)?;
        let source = PeerSource::File;
        Ok(PeerConfig {
            name,
            trust,
            source,
            addresses,
            transport,
            connections,
            accept,
            outer,
            relay,
        })
    }

    /// What does not tell one peer from another.
    fn template(&self, peer: &PeerTable) -> Result<PeerTemplate> {
        let transport = self.text("peer.transport", &peer.transport, transport)?;
        let transport = transport.unwrap_or(Transport::Udp);
        let connections = self.number("peer.connections", &peer.connections, CONNECTIONS)?;
        if let Some(found) = peer.connections.as_ref().filter(|_| !transport.is_ordered()) {
            let allowed = format!("goes with tls and tcp only; the transport is {transport}");
            return Err(self.wrong("peer.connections", found, allowed));
        }
        Ok(PeerTemplate {
            transport,
            connections: connections.unwrap_or(4),
            accept: self.accept(peer)?,
            says_dictionary: peer.accept_dictionary.is_some(),
            outer: self.outer(peer, transport)?,
            relay: self.truth("peer.relay", &peer.relay)?.unwrap_or(self.relay),
        })
    }

    /// One address, or a list of some.
    fn addresses(&self, key: &str, field: &Field) -> Result<Vec<Address>> {
        let Some(found) = field else { return Ok(Vec::new()) };
        let wrong = |why: &dyn fmt::Display| self.wrong(key, found, why);
        let allowed = format!("give an address, or a list of up to {ADDRESSES}");
        let one = |value: &Value| match value.as_str() {
            Some(text) => text.parse().map_err(|why: ValueError| wrong(&why)),
            None => Err(wrong(&allowed)),
        };
        match found.get_ref() {
            Value::Array(values) if values.is_empty() || values.len() > ADDRESSES => {
                Err(wrong(&allowed))
            }
            Value::Array(values) => values.iter().map(one).collect(),
            value => Ok(vec![one(value)?]),
        }
    }

    fn etcd(&self, table: &Spanned<EtcdTable>) -> Result<EtcdConfig> {
        let etcd = table.get_ref();
        let here = table.span().start;
        let endpoints = self.endpoints(&etcd.endpoints, here)?;
        let ca = self.path("etcd.ca", &etcd.ca)?;
        let is_encrypted = endpoints.iter().any(|endpoint| endpoint.is_encrypted);
        if is_encrypted != ca.is_some() {
            let what = "https:// in etcd.endpoints and etcd.ca belong together: the certificates \
                        by which the nodes are known";
            return Err(self.complaint(here, what));
        }
        let identity = self.etcd_identity(etcd, is_encrypted, here)?;
        let login = self.etcd_login(etcd, here)?;
        let empty = PeerTable::default();
        let peer = etcd.peer.as_ref().map_or(&empty, |peer| peer.get_ref());
        if let Some((found, key)) = [
            (&peer.name, "name"),
            (&peer.key, "key"),
            (&peer.subject, "subject"),
            (&peer.address, "address"),
        ]
        .into_iter()
        .find_map(|(field, key)| Some((field.as_ref()?, key)))
        {
            let allowed = "is each host's own, which etcd says";
            return Err(self.wrong(&format!("etcd.peer.{key}"), found, allowed));
        }
        Ok(EtcdConfig {
            endpoints,
            ca,
            identity,
            login,
            prefix: self
                .text("etcd.prefix", &etcd.prefix, value::etcd_prefix)?
                .unwrap_or_else(|| "/vsnoop/".to_owned()),
            name: self.text("etcd.name", &etcd.name, value::name)?,
            addresses: self.addresses("etcd.address", &etcd.address)?,
            ttl: self.time("etcd.ttl", &etcd.ttl, 5, 3600)?.unwrap_or(Duration::from_secs(30)),
            grace: self
                .time("etcd.grace", &etcd.grace, 0, 86_400)?
                .unwrap_or(Duration::from_secs(3600)),
            template: self.template(peer)?,
        })
    }

    /// Files of certificate and key.
    fn etcd_identity(
        &self,
        etcd: &EtcdTable,
        is_encrypted: bool,
        here: usize,
    ) -> Result<Option<(PathBuf, PathBuf)>> {
        match (self.path("etcd.cert", &etcd.cert)?, self.path("etcd.key", &etcd.key)?) {
            (Some(cert), Some(key)) if is_encrypted => Ok(Some((cert, key))),
            (None, None) => Ok(None),
            _ => {
                let what = "etcd.cert and etcd.key belong together, and to https:// in \
                            etcd.endpoints";
                Err(self.complaint(here, what))
            }
        }
    }

    /// User, and the file of the password.
    fn etcd_login(&self, etcd: &EtcdTable, here: usize) -> Result<Option<(String, PathBuf)>> {
        let user = self.text("etcd.user", &etcd.user, value::name)?;
        match (user, self.path("etcd.password", &etcd.password)?) {
            (Some(user), Some(password)) => Ok(Some((user, password))),
            (None, None) => Ok(None),
            _ => {
                let what = "etcd.user and etcd.password (a file with it) belong together";
                Err(self.complaint(here, what))
            }
        }
    }

    fn endpoints(&self, field: &Field, here: usize) -> Result<Vec<Endpoint>> {
        let Some(found) = field else {
            return Err(self.complaint(here, "[etcd] needs endpoints: the nodes of etcd"));
        };
        let one = |value: &Value| {
            let read = value.as_str().map_or(Err(NoEndpoint), str::parse);
            read.map_err(|why| self.wrong("etcd.endpoints", found, why))
        };
        match found.get_ref() {
            Value::Array(values) if !values.is_empty() => values.iter().map(one).collect(),
            value => Ok(vec![one(value)?]),
        }
    }

    /// Connections have marks of their own.
    fn outer(&self, peer: &PeerTable, transport: Transport) -> Result<OuterConfig> {
        let truth = |key: &str, field: &Field| {
            let value = self.truth(key, field)?;
            match field {
                Some(found) if transport.is_ordered() => {
                    let allowed = format!("goes with udp only; the transport is {transport}");
                    Err(self.wrong(key, found, allowed))
                }
                _ => Ok(value),
            }
        };
        let default = OuterConfig::default();
        Ok(OuterConfig {
            dscp: truth("peer.dscp", &peer.dscp)?.unwrap_or(default.dscp),
            ecn: truth("peer.ecn", &peer.ecn)?.unwrap_or(default.ecn),
            flow_label: truth("peer.flow_label", &peer.flow_label)?.unwrap_or(default.flow_label),
        })
    }

    /// What the peer itself says; rules may give it a dictionary, too.
    fn accept(&self, peer: &PeerTable) -> Result<AcceptConfig> {
        let allowed = "give off, lz4 or zstd, or a list of lz4 and zstd";
        let codecs = |text: &str| match text {
            "off" => Some(Codecs::NONE),
            "lz4" => Some(Codecs { lz4: true, zstd: false }),
            "zstd" => Some(Codecs { lz4: false, zstd: true }),
            _ => None,
        };
        let listed = self.list("peer.accept", &peer.accept, codecs, allowed)?;
        let has = |codec: fn(&Codecs) -> bool| listed.is_empty() || listed.iter().any(codec);
        let codecs = Codecs { lz4: has(|codecs| codecs.lz4), zstd: has(|codecs| codecs.zstd) };
        let dictionary_bytes =
            self.text("peer.accept_dictionary", &peer.accept_dictionary, |text| match text {
                "off" => Ok(None),
                size => value::dictionary(size).map(Some),
            })?;
        Ok(AcceptConfig { codecs, dictionary_bytes: dictionary_bytes.flatten() })
    }

    fn compress(
        &self,
        tables: &[Spanned<CompressTable>],
        peers: &[PeerConfig],
        etcd: Option<&EtcdConfig>,
    ) -> Result<Rules> {
        let rules =
            tables.iter().map(|table| self.rule(table, peers, etcd)).collect::<Result<_>>()?;
        Rules::new(rules).map_err(|error| {
            self.complaint(tables.last().map_or(0, |table| table.span().start), error.to_string())
        })
    }

    fn rule(
        &self,
        table: &Spanned<CompressTable>,
        peers: &[PeerConfig],
        etcd: Option<&EtcdConfig>,
    ) -> Result<Compress> {
        let rule = table.get_ref();
        let peer = match etcd {
            // It may be known later.
            Some(_) => self.text("compress.peer", &rule.peer, value::name)?,
            None => self.known_peer("compress.peer", &rule.peer, peers)?,
        };
        let method = self.text("compress.method", &rule.method, str::parse)?;
        let read = Compress {
            selector: Selector {
                peer,
                port: self.text("compress.port", &rule.port, value::interface)?,
                vm: self.text("compress.vm", &rule.vm, str::parse)?,
                prefixes: self.prefixes("compress.prefix", &rule.prefix)?,
            },
            method: method.ok_or_else(|| {
                let what = "a [[compress]] needs a method: off, lz4, zstd, zstd:LEVEL or auto";
                self.complaint(table.span().start, what)
            })?,
            owner: self.text("compress.owner", &rule.owner, value::name)?,
            dictionary_bytes: self.text(
                "compress.dictionary",
                &rule.dictionary,
                value::dictionary,
            )?,
        };
        let mut all = peers.to_vec();
        let name = read.selector.peer.as_deref().unwrap_or_default();
        all.extend(etcd.map(|etcd| etcd.template.peer(name, Vec::new(), Vec::new())));
        match (read.check_dictionary(&all), &rule.dictionary) {
            (Err(allowed), Some(found)) => Err(self.wrong("compress.dictionary", found, allowed)),
            _ => Ok(read),
        }
    }

    fn diverts(
        &self,
        tables: &[Spanned<DivertTable>],
        peers: &[PeerConfig],
        local: &[ipnet::IpNet],
    ) -> Result<Vec<Divert>> {
        tables.iter().map(|table| self.divert(table, peers, local)).collect()
    }

    fn divert(
        &self,
        table: &Spanned<DivertTable>,
        peers: &[PeerConfig],
        local: &[ipnet::IpNet],
    ) -> Result<Divert> {
        let divert = table.get_ref();
        let missing = |what: &str| {
            let what = format!("a [[divert]] needs {what}");
            self.complaint(table.span().start, what)
        };
        let prefixes = self.prefixes("divert.prefix", &divert.prefix)?;
        if prefixes.is_empty() {
            return Err(missing("a prefix, or a list of them: where the traffic goes to"));
        }
        let interface = self.text("divert.interface", &divert.interface, value::interface)?;
        let when_down = self.text("divert.when_down", &divert.when_down, |text| match text {
            "pass" => Ok(WhenDown::Pass),
            "drop" => Ok(WhenDown::Drop),
            _ => Err(ValueError::WhenDown),
        })?;
        let mut addresses = self.prefixes("divert.address", &divert.address)?;
        if addresses.is_empty() {
            addresses = local.to_vec();
        }
        let offset = divert.interface.as_ref().map_or(0, |found| found.span().start);
        Ok(Divert {
            line: self.line(offset),
            interface: interface.ok_or_else(|| missing("an interface: the VM's tap"))?,
            prefixes,
            peer: self
                .known_peer("divert.peer", &divert.peer, peers)?
                .ok_or_else(|| missing("a peer: behind which the prefix is"))?,
            when_down: when_down.unwrap_or(WhenDown::Pass),
            sources: SourceFilter { macs: self.macs("divert.mac", &divert.mac)?, addresses },
        })
    }

    /// A peer is told all of them in its handshake.
    fn local(&self, field: &Field) -> Result<Vec<ipnet::IpNet>> {
        let prefixes = self.prefixes("link.local", field)?;
        match field {
            Some(found) if prefixes.len() > MOST_TAKES => {
                let allowed = format!("give up to {MOST_TAKES} prefixes");
                Err(self.wrong("link.local", found, allowed))
            }
            _ => Ok(prefixes),
        }
    }

    fn known_peer(&self, key: &str, field: &Field, peers: &[PeerConfig]) -> Result<Option<String>> {
        self.text(key, field, |text| {
            if peers.iter().any(|peer| peer.name == text) {
                return Ok(text.to_owned());
            }
            let names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
            Err(ValueError::Peer { names: names.join(", ") })
        })
    }

    /// One, or a list.
    fn macs(&self, key: &str, field: &Field) -> Result<Vec<Mac>> {
        let mac = |text: &str| text.parse::<Mac>().ok().filter(|mac| !mac.is_group());
        let allowed = "give a MAC address such as \"52:54:00:00:00:01\", or a list of them";
        self.list(key, field, mac, allowed)
    }

    /// One, or a list.
    fn prefixes(&self, key: &str, field: &Field) -> Result<Vec<ipnet::IpNet>> {
        let prefix = |text: &str| {
            let ip = || text.parse::<std::net::IpAddr>().ok().map(ipnet::IpNet::from);
            text.parse::<ipnet::IpNet>().ok().or_else(ip).map(|prefix| prefix.trunc())
        };
        let allowed =
            "give a prefix such as \"10.0.0.0/8\" or \"2001:db8::/32\", or a list of them";
        self.list(key, field, prefix, allowed)
    }

    /// One text, or an array of at least one.
    fn list<T>(
        &self,
        key: &str,
        field: &Field,
        read: impl Fn(&str) -> Option<T>,
        allowed: &str,
    ) -> Result<Vec<T>> {
        let Some(found) = field else { return Ok(Vec::new()) };
        let read = |value: &Value| read(value.as_str()?);
        let all: Option<Vec<T>> = match found.get_ref() {
            Value::Array(values) => values.iter().map(read).collect(),
            value => read(value).map(|one| vec![one]),
        };
        all.filter(|all| !all.is_empty()).ok_or_else(|| self.wrong(key, found, allowed))
    }

    /// No two tables of a kind have the same value.
    fn differ<T, U, V: Eq + Hash>(
        &self,
        tables: &[Spanned<T>],
        read: &[U],
        kind: &str,
        value: impl Fn(&U) -> Option<&V>,
        what: impl Fn(&V) -> String,
    ) -> Result<()> {
        let mut seen = HashMap::new();
        for (index, item) in read.iter().enumerate() {
            let Some(value) = value(item) else { continue };
            if let Some(first) = seen.insert(value, index) {
                let offset = tables[index].span().start;
                let first = self.line(tables[first].span().start);
                let text = format!("{} (the [[{kind}]] of line {first})", what(value));
                return Err(self.complaint(offset, text));
            }
        }
        Ok(())
    }

    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }

    /// Checks conditions between tables.
    fn whole(&self, document: &ConfigFile, config: &Config) -> Result<()> {
        let here = document.link.span().start;
        if config.peers.is_empty() && config.etcd.is_none() {
            return Err(self.complaint(here, "a link needs at least one [[peer]], or [etcd]"));
        }
        if config.ports.is_empty() && config.diverts.is_empty() && config.local.is_empty() {
            let what = "a link needs at least one [[port]] or [[divert]], or link.local";
            return Err(self.complaint(here, what));
        }
        self.diverted(document, config)?;
        for (table, peer) in document.peer.iter().zip(&config.peers) {
            if matches!(peer.trust, TrustConfig::Subject(_)) && config.authority.is_none() {
                let what =
                    format!("peer {} has a subject, which needs link.cert and link.ca", peer.name);
                return Err(self.complaint(table.span().start, what));
            }
        }
        for table in &document.compress {
            let Some(found) = &table.get_ref().port else { continue };
            let names: Vec<_> = config.port_names().map(String::as_str).collect();
            if !names.iter().any(|name| Some(*name) == found.get_ref().as_str()) {
                let allowed = format!("there is no such port; there is {}", names.join(", "));
                return Err(self.wrong("compress.port", found, allowed));
            }
        }
        Ok(())
    }

    /// Each prefix of an interface has one peer, and is not of this host.
    fn diverted(&self, document: &ConfigFile, config: &Config) -> Result<()> {
        let mut seen = HashMap::new();
        for (table, divert) in document.divert.iter().zip(&config.diverts) {
            let Divert { interface, prefixes, .. } = divert;
            let here = table.span().start;
            if divert.sources.addresses.is_empty() {
                let what = "a [[divert]] needs an address, or link.local: the sources that the VM may \
                            use, since no firewall of this host sees diverted packets";
                return Err(self.complaint(here, what));
            }
            if config.ports.iter().any(|port| port.name == *interface) {
                let what = format!(
                    "interface {interface} is a [[port]], by which all its frames go through the link: \
                     leave out one of both"
                );
                return Err(self.complaint(here, what));
            }
            for prefix in prefixes {
                if let Some(first) = seen.insert((interface, prefix), here) {
                    let what = format!(
                        "prefix {prefix} of interface {interface} is diverted already (the [[divert]] of \
                         line {}); leave out one of both",
                        self.line(first)
                    );
                    return Err(self.complaint(here, what));
                }
                if let Some(own) = config.local.iter().find(|own| own.contains(prefix)) {
                    let what = format!(
                        "prefix {prefix} is in {own} of link.local, which is of VMs of this host; give one \
                         that is behind the peer"
                    );
                    return Err(self.complaint(here, what));
                }
            }
        }
        Ok(())
    }
}

fn transport(text: &str) -> std::result::Result<Transport, ValueError> {
    Transport::ALL
        .into_iter()
        .find(|transport| transport.name() == text)
        .ok_or(ValueError::Transport)
}

/// The beginning of a line, which may have any contents.
fn excerpt(line: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    line.chars().take(EXCERPT_CHARS).map(printable).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(truth) => truth.to_string(),
        other => format!("({})", other.type_str()),
    }
}
