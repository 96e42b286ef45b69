//! Arguments of `vsnoop link`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use ipnet::IpNet;
use vsnoop_linkd::config::{Method, Vm, parse_dictionary};
use vsnoop_linkd::control::LogLevel;

use super::shared::{Refresh, parse_prefix};

#[derive(Debug, Args)]
pub struct LinkArguments {
    #[command(subcommand)]
    pub action: LinkAction,
}

#[derive(Debug, Subcommand)]
pub enum LinkAction {
    /// Make the private key of this host, and print the public key that its peers need.
    Keygen(LinkKeygen),
    /// Start a link, and wait until it is up.
    Up(LinkUp),
    /// Have a link read its configuration file again: peers, keys, certificates, rules, ports and
    /// diversions come, change and go while all others carry on (SIGHUP does the same).
    Reload(LinkReload),
    /// End a link.
    Down(LinkDown),
    /// Show which links are up, and how they and their peers are.
    Status(LinkStatus),
    /// Change which traffic is compressed, and how, or what is logged, while packets flow; the
    /// configuration file stays as it is.
    Set(LinkSet),
}

#[derive(Debug, Args)]
pub struct LinkKeygen {
    /// File of the private key; never overwritten.
    pub file: PathBuf,
    /// Make nothing: print the public key of the private key that is there.
    #[arg(long)]
    pub show: bool,
}

#[derive(Debug, Args)]
pub struct LinkUp {
    /// Its configuration: a path, or the NAME of /etc/vsnoop/link/NAME.toml.
    #[arg(value_name = "FILE|NAME")]
    pub link: String,
    /// Stay in the foreground and log to stderr; tells systemd when the link is up (Type=notify).
    #[arg(long)]
    pub foreground: bool,
    /// Go to the background and say on standard output what came of it.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub report: bool,
}

#[derive(Debug, Args)]
pub struct LinkReload {
    /// Name of the link.
    pub name: String,
}

#[derive(Debug, Args)]
pub struct LinkDown {
    /// Name of the link.
    pub name: String,
}

#[derive(Debug, Args)]
pub struct LinkStatus {
    /// Only this link; without it, all.
    pub name: Option<String>,
    /// With the learned addresses, and more of each peer.
    #[arg(long)]
    pub flows: bool,
    #[command(flatten)]
    pub refresh: Refresh,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("change").args(["compress", "log"]).required(true)))]
pub struct LinkSet {
    /// Name of the link.
    pub name: String,
    /// How traffic is compressed: off, lz4, zstd, zstd:LEVEL or auto; all of it, or what the
    /// options below choose.
    #[arg(long, value_name = "METHOD")]
    pub compress: Option<Method>,
    /// Level of its log from now on: error, warn, info, debug or trace.
    #[arg(
        long,
        value_name = "LEVEL",
        conflicts_with_all = ["dictionary", "peer", "port", "vm", "prefix"]
    )]
    pub log: Option<LogLevel>,
    /// Memory of a dictionary that the flows of an owner share, 1M to 128M
    /// (docs/guide/links/compression.md says when that is safe) [default: none].
    #[arg(long, value_name = "SIZE", value_parser = parse_dictionary)]
    pub dictionary: Option<u32>,
    /// Only traffic with this peer.
    #[arg(long)]
    pub peer: Option<String>,
    /// Only traffic of this port.
    #[arg(long)]
    pub port: Option<String>,
    /// Only traffic of this VM, by one of its addresses.
    #[arg(long, value_name = "MAC|IP")]
    pub vm: Option<Vm>,
    /// Only traffic with addresses in these prefixes at either end.
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = parse_prefix)]
    pub prefix: Vec<IpNet>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Cli;

    #[test]
    fn a_change_of_a_link_is_one_of_two_and_both_are_named() {
        let set = |options: &[&str]| {
            let all = ["vsnoop", "link", "set", "office"].iter().chain(options);
            Cli::try_parse_from(all).map(drop).map_err(|error| error.to_string())
        };
        for options in [&[][..], &["--peer", "b"]] {
            let error = set(options).unwrap_err();
            assert!(error.contains("<--compress <METHOD>|--log <LEVEL>>"), "{error}");
        }
        for options in [&["--compress", "off"][..], &["--log", "debug"]] {
            assert_eq!(set(options), Ok(()));
        }
        for more in [["--compress", "off"], ["--peer", "b"], ["--prefix", "10.0.0.0/8"]] {
            assert!(set(&[&["--log", "debug"][..], &more].concat()).is_err(), "{more:?}");
        }
    }
}
