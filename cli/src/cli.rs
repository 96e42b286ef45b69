//! The command line. docs/reference/command.md is the reference; `vsnoop help COMMAND` prints what
//! stands here.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use vsnoop_bpf::{CongestionControl, TableLimits};
use vsnoop_hold::drain_limit;
use vsnoop_host::{config, congestion_control, incast};

#[cfg(feature = "link")]
mod link;
mod shared;
mod uplink;
#[cfg(feature = "link")]
pub use link::*;
pub use shared::Refresh;
use shared::{parse_period, parse_prefix, parse_seconds};
pub use uplink::*;

/// Options of all commands, which follow those of a command in its help and its manual page.
const GLOBAL: &str = "Global options";

/// Host-side TCP acceleration for virtual machines that share a CPU.
///
/// PORT is the tap of a VM. Attachments outlive the command. Exit codes: 0 done, 1 failure at run
/// time, 2 wrong arguments, 3 and 31 to 41 the host or the port is unfit. Documents (docs/...) are
/// in share/doc/vsnoop below /usr or /usr/local.
#[derive(Debug, Parser)]
#[command(
    name = "vsnoop",
    version,
    long_version = long_version(),
    disable_help_subcommand = false,
    max_term_width = 100
)]
pub struct Cli {
    /// Ports are in this network namespace: a name that `ip netns` lists, a path, or a process id.
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub netns: Option<String>,
    /// Print JSON for programs (docs/reference/json.md) instead of tables.
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub json: bool,
    /// Settings of the host, read by `attach`, `set`, `doctor`, `check` and `run` [default:
    /// /etc/vsnoop/vsnoop.toml, if it is there].
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub config: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say whether this host is ready, which VMs would gain, and how much.
    Doctor(Doctor),
    /// Measure how long VMs take to acknowledge; changes no packet.
    Observe(Observe),
    /// Accelerate TCP to the VMs behind these taps.
    // Ports stand before --incast, whose value may be left out.
    #[command(override_usage = "vsnoop attach <PORT>... [OPTIONS]")]
    Attach(Attach),
    /// Change how much is held for attached ports, while packets flow.
    Set(Set),
    /// Wait until the VM has acknowledged everything, then stop accelerating.
    Detach(Detach),
    /// Stop early acknowledgements and wait likewise, but stay attached (before a live migration).
    Pause(Drain),
    /// Go on after `pause`.
    Resume(Ports),
    /// Show which ports are attached, and how they are.
    Status(Status),
    /// Show the connections on record.
    Flows(Flows),
    /// Show counters and histograms.
    Stats(Watched),
    /// Watch ports and their flows: who gains, how much, and what is held; keys sort and filter.
    Top(Top),
    /// Show the uplinks with incast control, and what all connections behind them have.
    Incast(Incast),
    /// Carry frames of VMs to other hosts, compressed where that pays (docs/guide/links/start.md).
    #[cfg(feature = "link")]
    Link(LinkArguments),
    /// Attach the taps that the configuration names, while they come and go: the service, in the
    /// foreground (docs/guide/service.md).
    Run(Run),
    /// Have the service read its configuration again, as SIGHUP does, and say what came of it.
    Reload(Reload),
    /// Say whether a configuration is good, or what is wrong in which line and column.
    Check(Check),
    /// Take everything off all ports at once, damaged state included: the panic switch.
    Off(Off),
    /// Expires idle flows, resets those whose bytes cannot be delivered; started by other
    /// commands.
    #[command(hide = true)]
    Helper(Helper),
    /// Hands over what is held for VMs; started by the helper.
    #[command(hide = true)]
    Engine(Helper),
    /// Moves the bytes of split connections; started with a port that has downloads.
    #[command(hide = true)]
    Splitter(Helper),
    /// Has the descriptors of split connections, for the next splitter; started with it.
    #[command(hide = true)]
    Keeper(Helper),
    /// Makes what the service, with fewer privileges, cannot make by itself; run by its unit.
    #[command(hide = true)]
    Prepare(Prepare),
    /// Write the manual pages to a directory; `make install` does.
    Man(Man),
    /// Print completions of the command line for a shell; `make install` installs those of three.
    Completions(Completions),
}

#[derive(Debug, Args)]
pub struct Ports {
    /// Names of taps.
    #[arg(required = true, value_name = "PORT")]
    pub ports: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Look at these ports; without any, at all taps of the network namespace.
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,
    /// How long to watch the VMs' CPUs.
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        default_value_t = 1.0,
        value_parser = parse_seconds
    )]
    pub measure: f64,
}

#[derive(Debug, Args)]
pub struct Observe {
    /// Names of taps.
    #[arg(required = true, value_name = "PORT")]
    pub ports: Vec<String>,
    /// Stop after this long; without it, at Ctrl-C.
    #[arg(
        long = "for",
        value_name = "SECONDS",
        allow_negative_numbers = true,
        value_parser = parse_seconds
    )]
    pub duration: Option<f64>,
    /// Refresh the table this often.
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        default_value_t = 1.0,
        value_parser = parse_period
    )]
    pub watch: f64,
}

#[derive(Debug, Args)]
pub struct Attach {
    /// Names of taps.
    #[arg(required = true, value_name = "PORT")]
    pub ports: Vec<String>,
    #[command(flatten)]
    pub bounds: Bounds,
    /// Acknowledge nothing early: measure, and with --incast shape windows. The qdisc stays as it
    /// is.
    #[arg(long, conflicts_with_all = ["hold", "ahead", "downloads", "congestion_control", "no_passive"])]
    pub observe: bool,
    /// Shape the senders' windows, so that many of them at once do not overflow the last hop before
    /// this host (docs/guide/incast.md): the rate of that hop, such as 1G or 25G (bits per second),
    /// or `link`, the link speed of the uplink; ports stand before it [without RATE: what other
    /// ports behind the uplink have, or as configured, or `link`].
    #[arg(
        long,
        value_name = "RATE",
        num_args = 0..=1,
        allow_negative_numbers = true,
        value_parser = incast_rate
    )]
    pub incast: Option<Option<incast::Rate>>,
    /// The interface that the senders' packets come through [default: as configured, or the port of
    /// the tap's bridge that is no tap].
    #[arg(long, value_name = "IFACE", requires = "incast")]
    pub uplink: Option<String>,
    /// Queue of the last hop, 16K to 256M bytes (suffixes K, M, G) [default: what other ports
    /// behind the uplink have, or as configured, or 64K].
    #[arg(long, value_name = "SIZE", requires = "incast", value_parser = incast::buffer)]
    pub incast_buffer: Option<u32>,
    /// Connections on record per port; those beyond are not accelerated.
    #[arg(
        long,
        value_name = "N",
        default_value_t = TableLimits::default().max_flows,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub max_flows: u32,
    /// Acknowledge early even while the VM answers promptly by itself.
    #[arg(long)]
    pub no_passive: bool,
    #[command(flatten)]
    pub lists: Lists,
}

/// Settings of a port's hold; [`Set`] changes them.
#[derive(Clone, Copy, Debug, Args)]
pub struct Bounds {
    /// Most memory, for each port, in which the host keeps what it acknowledged until the VM has
    /// acknowledged it: 256K to 256M (suffixes K, M, G). Taken when it is used, and given back
    /// [default of `attach`: from the host's memory, the number of VMs and what other ports may
    /// have].
    #[arg(long, value_name = "SIZE", value_parser = config::hold_size)]
    pub hold: Option<u32>,
    /// How far a sender may run ahead of the VM's own window, up to 1G (suffixes K, M, G); 0: not
    /// at all [default of `attach`: as far as the hold allows].
    #[arg(long, value_name = "SIZE", value_parser = config::ahead_size)]
    pub ahead: Option<u32>,
    /// Split the connections of a VM that is late, so that the host sends what the VM has sent, at
    /// the pace of the path (docs/guide/downloads.md); not with incast control [default of
    /// `attach`: off].
    #[arg(long, value_name = "on|off")]
    pub downloads: Option<Switch>,
    /// Congestion control with which the host sends what VMs have sent to their peers, for
    /// connections that are split from now on: one of net.ipv4.tcp_available_congestion_control, or
    /// `default`, the host's [default of `attach`: default].
    #[arg(long, value_name = "NAME", value_parser = congestion_control::parse)]
    pub congestion_control: Option<CongestionControl>,
}

/// A setting that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Switch {
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("bound")
    .args(["hold", "ahead", "downloads", "congestion_control"])
    .required(true)
    .multiple(true))]
pub struct Set {
    /// Names of taps.
    #[arg(required = true, value_name = "PORT")]
    pub ports: Vec<String>,
    #[command(flatten)]
    pub bounds: Bounds,
}

/// Which connections are accelerated. Once something is allowed, what is not named is denied.
#[derive(Debug, Args)]
pub struct Lists {
    /// Accelerate only connections with these port numbers (of either end).
    #[arg(
        long,
        value_name = "NUMBER,...",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub allow_port: Vec<u16>,
    /// Never accelerate connections with these port numbers.
    #[arg(
        long,
        value_name = "NUMBER,...",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub deny_port: Vec<u16>,
    /// Accelerate only connections with senders in these prefixes; the longest one that fits
    /// counts.
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = parse_prefix)]
    pub allow: Vec<IpNet>,
    /// Never accelerate connections with senders in these prefixes.
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',', value_parser = parse_prefix)]
    pub deny: Vec<IpNet>,
}

#[derive(Debug, Args)]
pub struct Detach {
    /// Names of taps.
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "PORT")]
    pub ports: Vec<String>,
    /// All ports of the host, in every network namespace, at the same time; with --netns those of
    /// that namespace.
    #[arg(long)]
    pub all: bool,
    /// The service attaches them again when it starts, too, not only at a reload: for the end of a
    /// service that another one follows, as of a pod.
    #[arg(long, requires = "all")]
    pub until_start: bool,
    #[command(flatten)]
    pub patience: Patience,
}

#[derive(Debug, Args)]
pub struct Drain {
    /// Names of taps.
    #[arg(required = true, value_name = "PORT")]
    pub ports: Vec<String>,
    #[command(flatten)]
    pub patience: Patience,
}

#[derive(Debug, Args)]
pub struct Patience {
    /// Wait at most this long for the VM to acknowledge what vsnoop has acknowledged.
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        default_value_t = drain_limit::TIMEOUT_S,
        value_parser = parse_seconds
    )]
    timeout: f64,
}

impl Patience {
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout)
    }
}

#[derive(Debug, Args)]
pub struct Watched {
    /// Only these ports; without any, all.
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,
    #[command(flatten)]
    pub refresh: Refresh,
}

#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub watched: Watched,
    /// Only the service; exit code 3 unless it runs and answers (for probes and scripts).
    #[arg(long, conflicts_with_all = ["ports", "watch"])]
    pub service: bool,
}

#[derive(Debug, Args)]
pub struct Flows {
    #[command(flatten)]
    pub watched: Watched,
    /// Only connections with this port number (of either end).
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

#[derive(Debug, Args)]
pub struct Top {
    /// Only these ports; without any, all.
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,
    /// Refresh this often; all rates are those of an interval.
    #[arg(
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true,
        default_value_t = 1.0,
        value_parser = parse_interval
    )]
    pub interval: f64,
    /// End after this long; without it, at `q`.
    #[arg(
        long = "for",
        value_name = "SECONDS",
        allow_negative_numbers = true,
        value_parser = parse_seconds
    )]
    pub duration: Option<f64>,
    /// Print the table of one interval, and end. Where standard output is no terminal it does so
    /// too, with --for one table for each interval.
    #[arg(long, conflicts_with = "duration")]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct Run {}

#[derive(Debug, Args)]
pub struct Prepare {}

#[derive(Debug, Args)]
pub struct Reload {}

#[derive(Debug, Args)]
pub struct Check {
    /// The configuration [default: the one of --config, or /etc/vsnoop/vsnoop.toml].
    pub file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Off {
    /// All ports of the host, in every network namespace (there is no other choice).
    #[arg(long, required = true)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct Helper {
    /// Stay in the foreground and log to stderr.
    #[arg(long)]
    pub foreground: bool,
}

#[derive(Debug, Args)]
pub struct Man {
    /// Where to; it is made if it is missing.
    pub dir: PathBuf,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell that is to complete `vsnoop`.
    pub shell: clap_complete::Shell,
}

/// With the layout of pinned state, which a package that replaces this one compares with its own.
fn long_version() -> String {
    format!("{} (ABI {})", env!("CARGO_PKG_VERSION"), vsnoop_bpf::types::VSNOOP_ABI)
}

/// Parses the interval of reads from which rates are computed.
fn parse_interval(text: &str) -> Result<f64, String> {
    const LEAST: f64 = 0.1;
    parse_seconds(text)
        .ok()
        .filter(|seconds| *seconds >= LEAST)
        .ok_or_else(|| format!("give a number of seconds, {LEAST} or more"))
}

/// Parses a rate as [`incast::rate`] does. A word may be meant for a port; the error says so.
fn incast_rate(text: &str) -> Result<incast::Rate, String> {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let hint = if is_word { "; ports stand before --incast" } else { "" };
    incast::rate(text).map_err(|error| format!("{error}{hint}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_hold_has_bounds() {
        let attach =
            |hold: &str| match Cli::try_parse_from(["vsnoop", "attach", "t", "--hold", hold])?
                .command
            {
                Command::Attach(attach) => Ok(attach.bounds.hold),
                _ => panic!("not attach"),
            };
        assert_eq!(attach("256K").unwrap(), Some(256 << 10));
        assert_eq!(attach("256M").unwrap(), Some(256 << 20));
        for wrong in ["0", "255K", "257M", "5G"] {
            let error: clap::Error = attach(wrong).unwrap_err();
            assert!(error.to_string().contains("--hold"), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn set_changes_something() {
        let set = |options: &[&str]| {
            let all = ["vsnoop", "set", "t"].iter().chain(options);
            Cli::try_parse_from(all).map(drop).map_err(|error| error.to_string())
        };
        let error = set(&[]).unwrap_err();
        assert!(error.contains("--hold") && error.contains("--ahead"), "{error}");
        for options in
            [&["--hold", "1M"][..], &["--ahead", "0"], &["--hold", "1M", "--ahead", "1G"]]
        {
            set(options).unwrap();
        }
        set(&["--downloads", "on"]).unwrap();
        for wrong in [&["--downloads"][..], &["--downloads", "yes"]] {
            let error = set(wrong).unwrap_err();
            assert!(error.contains("--downloads <on|off>"), "{error}");
        }
    }

    #[test]
    fn lists_take_several_at_once() {
        let cli = Cli::try_parse_from([
            "vsnoop",
            "attach",
            "tap0",
            "--allow-port",
            "80,443",
            "--deny-port",
            "22",
            "--allow",
            "10.0.0.0/8",
            "--deny",
            "2001:db8::/32,192.0.2.1",
        ])
        .unwrap();
        let Command::Attach(attach) = cli.command else { panic!("not attach") };
        assert_eq!(attach.lists.allow_port, [80, 443]);
        assert_eq!(attach.lists.deny_port, [22]);
        assert_eq!(attach.lists.deny.len(), 2);
        assert_eq!(attach.lists.deny[1].prefix_len(), 32);
    }

    #[test]
    fn nonsense_is_refused() {
        for arguments in [
            &["vsnoop", "attach"][..],
            &["vsnoop", "attach", "t", "--allow", "10.0.0.0/33"],
            &["vsnoop", "attach", "t", "--allow-port", "0"],
            &["vsnoop", "attach", "t", "--allow-port", "70000"],
            &["vsnoop", "attach", "t", "--max-flows", "0"],
            &["vsnoop", "observe", "t", "--for", "-1"],
            &["vsnoop", "observe", "t", "--hold", "16M"],
            &["vsnoop", "off"],
        ] {
            assert!(Cli::try_parse_from(arguments).is_err(), "{arguments:?}");
        }
    }
}
