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

use self::link::parse_listen;
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
        parse_config(file, text)
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

fn parse_config(file: &Path, text: &str) -> Result<Config> {
    let mut reader = Reader { file, text, relay: false };
    let document = reader.read_tables()?;
    let link = document.link.get_ref();
    let name = match reader.read_text("link.name", &link.name, value::parse_name)? {
        Some(name) => name,
        None => reader.read_stem()?,
    };
    reader.relay = reader.read_truth("link.relay", &link.relay)?.unwrap_or(false);
    let mut peers = reader.read_peers(&document.peer)?;
    let ports = reader.read_ports(&document.port, &name)?;
    let etcd = document.etcd.as_ref().map(|table| reader.read_etcd(table)).transpose()?;
    let compress = reader.read_compress(&document.compress, &peers, etcd.as_ref())?;
    for (table, peer) in document.peer.iter().zip(&mut peers) {
        // A host that keeps dictionaries for what it sends has memory for those of the peer.
        if table.get_ref().accept_dictionary.is_none() {
            peer.accept.dictionary_bytes = compress.largest_dictionary(&peer.name);
        }
    }
    let local = reader.read_local(&link.local)?;
    let diverts = reader.read_diverts(&document.divert, &peers, etcd.as_ref(), &local)?;
    let config = Config {
        file: file.to_owned(),
        network: reader
            .read_text("link.network", &link.network, value::parse_name)?
            .unwrap_or_else(|| name.clone()),
        listen: reader
            .read_text("link.listen", &link.listen, parse_listen)?
            .unwrap_or_else(|| SocketAddr::from(([0u16; 8], PORT))),
        user: reader.read_text("link.user", &link.user, value::parse_user)?,
        key: reader
            .read_path("link.key", &link.key)?
            .unwrap_or_else(|| Path::new(DIRECTORY).join(format!("{name}.key"))),
        authority: reader.read_authority(&document.link)?,
        mtu_bytes: reader.read_number("link.mtu", &link.mtu, MTU_BYTES)?.unwrap_or(1500),
        pairs: reader
            .read_number("link.threads", &link.threads, 1..=PAIRS_MAX as i64)?
            .map(|pairs| Pairs::new(pairs as usize)),
        age: reader
            .read_time("link.age", &link.age, 1, 86_400)?
            .unwrap_or(Duration::from_secs(300)),
        addresses: reader
            .read_number("link.addresses", &link.addresses, ADDRESSES_LEARNED)?
            .unwrap_or(ADDRESSES) as usize,
        loops: reader.read_text("link.loop", &link.loops, value::parse_loops)?.unwrap_or_default(),
        stp: reader.read_truth("link.stp", &link.stp)?.unwrap_or(false),
        flood_rate: reader
            .read_number("link.flood_rate", &link.flood_rate, 0..=1_000_000)?
            .unwrap_or(FLOOD_RATE),
        clamp_mss: reader.read_truth("link.clamp_mss", &link.clamp_mss)?.unwrap_or(true),
        gso: reader.read_truth("link.gso", &link.gso)?.unwrap_or(true),
        rekey: reader
            .read_time("link.rekey", &link.rekey, 5, 86_400)?
            .unwrap_or(Duration::from_secs(3600)),
        dead_after: reader
            .read_time("link.dead_after", &link.dead_after, 1, 300)?
            .unwrap_or(Duration::from_secs(5)),
        compress,
        etcd,
        diverts,
        local,
        name,
        ports,
        peers,
    };
    reader.check_whole(&document, &config)?;
    Ok(config)
}
