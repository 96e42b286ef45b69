//! From the text of a file to a checked [`Config`]; docs/guide/links/configuration.md describes
//! every key.
//!
//! Three steps: serde puts the values of any type under the keys that there are (`document`; an
//! unknown key is an error, for it was meant for something), then each value is read by a `Reader`
//! (a module for each table), then what concerns several tables is checked (`between`: names that
//! must differ, or must be there).

mod between;
mod compress;
mod divert;
mod document;
mod etcd;
mod link;
mod peer;
mod port;
mod reader;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use vsnoop_config::Reader as _;

use self::link::listen;
use self::reader::{Reader, Result};
use super::{
    ADDRESSES_LEARNED, Config, ConfigError, DIRECTORY, MTU_BYTES, PAIRS_MAX, PORT, Pairs, value,
};

/// A thousand hosts with a hundred VMs each.
const ADDRESSES: u32 = 100_000;
/// Frames per second that a VM may send to all peers: ARP and discovery need some, and a stream of
/// MTU-sized frames has 12 Mb/s.
const FLOOD_RATE: u32 = 1000;

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

fn parse(file: &Path, text: &str) -> Result<Config> {
    let mut reader = Reader { file, text, relay: false };
    let document = reader.tables()?;
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
    let diverts = reader.diverts(&document.divert, &peers, etcd.as_ref(), &local)?;
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
            .unwrap_or_else(|| Path::new(DIRECTORY).join(format!("{name}.key"))),
        authority: reader.authority(&document.link)?,
        mtu_bytes: reader.number("link.mtu", &link.mtu, MTU_BYTES)?.unwrap_or(1500),
        pairs: reader
            .number("link.threads", &link.threads, 1..=PAIRS_MAX as i64)?
            .map(|pairs| Pairs::new(pairs as usize)),
        age: reader.time("link.age", &link.age, 1, 86_400)?.unwrap_or(Duration::from_secs(300)),
        addresses: reader
            .number("link.addresses", &link.addresses, ADDRESSES_LEARNED)?
            .unwrap_or(ADDRESSES) as usize,
        loops: reader.text("link.loop", &link.loops, value::loops)?.unwrap_or_default(),
        stp: reader.truth("link.stp", &link.stp)?.unwrap_or(false),
        flood_rate: reader
            .number("link.flood_rate", &link.flood_rate, 0..=1_000_000)?
            .unwrap_or(FLOOD_RATE),
        clamp_mss: reader.truth("link.clamp_mss", &link.clamp_mss)?.unwrap_or(true),
        gso: reader.truth("link.gso", &link.gso)?.unwrap_or(true),
        rekey: reader
            .time("link.rekey", &link.rekey, 5, 86_400)?
            .unwrap_or(Duration::from_secs(3600)),
        dead_after: reader
            .time("link.dead_after", &link.dead_after, 1, 300)?
            .unwrap_or(Duration::from_secs(5)),
        compress,
        etcd,
        diverts,
        local,
        name,
        ports,
        peers,
    };
    reader.whole(&document, &config)?;
    Ok(config)
}
