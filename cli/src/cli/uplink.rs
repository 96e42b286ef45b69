//! Arguments of `vsnoop incast`.

use clap::{Args, Subcommand};
use vsnoop_host::incast;

use super::Refresh;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Incast {
    #[command(flatten)]
    pub refresh: Refresh,
    #[command(subcommand)]
    pub action: Option<IncastAction>,
}

#[derive(Debug, Subcommand)]
pub enum IncastAction {
    /// Change rate or buffer while packets flow, for all ports behind an uplink; a rate turns
    /// incast control on again.
    Set(IncastSet),
    /// Turn incast control off, without detaching anything: windows are the VMs' own again.
    Off(IncastOff),
}

#[derive(Debug, Args)]
pub struct IncastSet {
    /// Which uplink [default: the only one].
    #[arg(long, value_name = "IFACE")]
    pub uplink: Option<String>,
    /// Rate of the last hop, such as 1G or 25G (bits per second), or `link`: the link speed of
    /// the uplink.
    #[arg(long, value_name = "RATE|link", allow_hyphen_values = true, value_parser = incast::rate)]
    pub rate: Option<incast::Rate>,
    /// Queue of the last hop, 16K to 256M bytes (suffixes K, M, G).
    #[arg(long, value_name = "SIZE", value_parser = incast::buffer)]
    pub buffer: Option<u32>,
}

#[derive(Debug, Args)]
pub struct IncastOff {
    /// Which uplink [default: the only one].
    #[arg(long, value_name = "IFACE")]
    pub uplink: Option<String>,
}
