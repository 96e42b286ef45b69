//! Carriers as carriers.toml declares them, and how one is started on two hosts.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use vsnoop_testbed::workspace;

use super::ends::Ends;
use super::side::HostSide;
use super::site::{self, FORWARD, Site};

/// The congestion control of all other sockets.
const USUAL: &str = "cubic";

/// A way to get packets from one host to the other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carrier {
    pub name: String,
    pub about: String,
    pub kind: Kind,
    #[serde(default)]
    ends: EndsAt,
    program: Option<String>,
    /// Begins the names of its devices, which the number of the carrier ends.
    device: Option<String>,
    /// Its program opens sockets with it.
    congestion_control: Option<String>,
    /// Variables of its program's scripts.
    #[serde(default)]
    set: BTreeMap<String, String>,
}

/// The class of carriers with which a carrier is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// No tunnel, or one of the kernel.
    Kernel,
    /// A user's process that does not encrypt.
    Plain,
    /// A user's process that encrypts.
    Sealed,
    /// A user's process that ends connections and opens others, and is no tunnel of frames.
    Between,
    /// vsnoop's own.
    Own,
}

/// Where connections over a carrier begin and end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EndsAt {
    /// At devices in both hosts, where a guest's tap would be.
    #[default]
    Devices,
    /// At the path between the hosts itself.
    Path,
    /// In guests that bridges join to the path.
    Guests,
    /// In a guest behind the program on the first host.
    Behind,
    /// At a port of the first host that the program forwards.
    Forwarded,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    /// Commands that its scripts call; scripts/peers.sh fetches them.
    #[serde(default)]
    needs: Vec<String>,
    #[serde(default)]
    setup: String,
    start: String,
    /// On the second host, before it is started on the first one.
    listens: Option<Protocol>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    Tcp,
    Udp,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    program: BTreeMap<String, Program>,
    carrier: Vec<Carrier>,
}

static DECLARED: LazyLock<Declared> = LazyLock::new(|| {
    // A test reads it.
    let text = include_str!("../../../carriers.toml");
    toml::from_str(text).unwrap_or_else(|error| panic!("carriers.toml: {error}"))
});

/// All carriers, in the order of tables.
pub fn all() -> &'static [Carrier] {
    &DECLARED.carrier
}

impl Carrier {
    /// With which others it stands in a plot.
    pub fn plot_group(&self) -> &'static str {
        match self.kind {
            Kind::Kernel | Kind::Between => "no tunnel, or the kernel's",
            Kind::Plain => "others, plain",
            Kind::Sealed => "others, encrypted",
            Kind::Own if self.name.ends_with("-plain") => "vsnoop, plain",
            Kind::Own => "vsnoop, encrypted",
        }
    }

    /// Starts its program, if it has one, on both hosts.
    pub(super) fn start(&self, site: &mut Site) -> Result<Ends> {
        match &self.program {
            Some(name) => {
                let program = DECLARED.program.get(name);
                let program = program.with_context(|| format!("no program is called {name}"))?;
                program.needs.iter().try_for_each(|name| site::require(name))?;
                let own = self.congestion_control.as_deref();
                site.set_congestion_control(own.unwrap_or(USUAL))?;
                let ends = self.start_program(program, site);
                site.set_congestion_control(USUAL)?;
                ends
            }
            None => self.ends_of_path(site),
        }
    }

    fn ends_of_path(&self, site: &mut Site) -> Result<Ends> {
        let [a, b] = HostSide::BOTH;
        if self.ends == EndsAt::Guests {
            return Ok(Ends::new(site.guest(a), site.guest(b), b.guest_address()));
        }
        if site.hosts.is_relayed() {
            return Ok(Ends::new(site.host(a), site.host(b), b.address()));
        }
        // A veth of its own, whose offloads may be switched off without the others' path.
        let devices = HostSide::BOTH.map(|side| site.device(side));
        site.host(a).veth(&devices[0], site.host(b), &devices[1])?;
        site.tunnel(devices)
    }

    fn start_program(&self, program: &Program, site: &mut Site) -> Result<Ends> {
        let [a, b] = HostSide::BOTH;
        let guest = match self.ends {
            EndsAt::Behind => Some(site.hosts.namespace("nat")?),
            _ => None,
        };
        let script = |site: &Site, side: HostSide, text: &str| -> Result<Command> {
            let mut command = site.shell(side, text);
            command.env("device", self.device(site, side));
            command.env("guest", guest.as_ref().map_or("", |guest| guest.name()));
            command.env("vsnoop", workspace::vsnoop_command()?).envs(&self.set);
            Ok(command)
        };
        run(script(site, a, &program.setup)?)?;
        let [on_a, on_b] = [script(site, a, &program.start)?, script(site, b, &program.start)?];
        match (self.kind, self.ends) {
            (Kind::Kernel, _) => run(on_b).and_then(|()| run(on_a))?,
            (_, EndsAt::Behind) => site.start(a, on_a, &[])?,
            (_, ends) => {
                start_on_b(program, site, on_b)?;
                let forward = (ends == EndsAt::Forwarded).then(|| site.port() + FORWARD);
                site.start(a, on_a, forward.as_slice())?;
            }
        }
        match (self.ends, &guest) {
            (EndsAt::Forwarded, _) => {
                let forwarded_from = Some(site.port() + FORWARD);
                let ends = Ends::new(site.host(a), site.host(b), b.address());
                Ok(Ends { forwarded_from, ..ends })
            }
            (_, Some(guest)) => Ok(Ends::new(guest, site.host(b), b.address())),
            (_, None) => site.tunnel(HostSide::BOTH.map(|side| self.device(site, side))),
        }
    }

    fn device(&self, site: &Site, side: HostSide) -> String {
        match &self.device {
            Some(prefix) => format!("{prefix}{}", site.number()),
            None => site.device(side),
        }
    }
}

/// Starts a program on the second host, and waits until it listens, if it does.
fn start_on_b(program: &Program, site: &mut Site, command: Command) -> Result<()> {
    let (b, port) = (HostSide::B, site.port());
    let listening = (program.listens == Some(Protocol::Tcp)).then_some(port);
    site.start(b, command, listening.as_slice())?;
    if program.listens == Some(Protocol::Udp) {
        let host = site.host(b);
        site.until("socket", || host.has_datagrams_at(port))?;
    }
    Ok(())
}

/// Runs a script that ends by itself.
fn run(mut command: Command) -> Result<()> {
    let output = command.output().context("start a shell")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last = complaint.trim().lines().last().unwrap_or_default();
    ensure!(output.status.success(), "a script failed ({}): {last}", output.status);
    Ok(())
}
