//! What a scrape by Prometheus costs the service, and what a refresh of `vsnoop top` costs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vsnoop_testbed::net::{Net, Netns, TapOptions};
use vsnoop_testbed::session::{PREFIX, Session};
use vsnoop_testbed::wait::pause;

use super::daemon::{Apart, Daemon};
use super::terminal::Terminal;
use crate::results::{Values, ms};
use crate::usage::cpu_time;

/// In the namespace of the ports.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 19755);
/// Who asks within a second gets the same text again.
const BETWEEN: Duration = Duration::from_millis(1100);
const TIMEOUT: Duration = Duration::from_secs(60);
/// Until `vsnoop top` has all that it reads only once.
const BEGIN: Duration = Duration::from_secs(8);
/// A scrape or a refresh.
pub struct Cost {
    /// `scrape` or `top`.
    pub what: &'static str,
    pub values: Values,
}

/// `times` of each, with this number of ports, whose VMs are idle.
pub fn measure(
    session: &mut Session,
    apart: &Apart,
    ports: usize,
    times: usize,
) -> Result<Vec<Cost>> {
    let netns = Net::new(PREFIX).host("scrape")?;
    let text = "[[port]]\ninterface = \"vnet*\"\nhold = \"256K\"\n";
    let daemon = Daemon::start(session, apart, &netns, text)?;
    let mut taps = Vec::new();
    for number in 0..ports {
        let name = format!("vnet{number}");
        taps.push(netns.tap(&name, &TapOptions::default())?);
        netns.up(&name)?;
    }
    daemon.until_active(ports)?;
    // The first one looks for the processes that hold the taps.
    scrape(&netns)?;
    let mut costs = Vec::new();
    for _ in 0..times {
        pause(BETWEEN)?;
        costs.push(Cost { what: "scrape", values: scrape_by(&daemon, &netns)? });
    }
    costs.extend(refreshes(&daemon, times)?.into_iter().map(|values| Cost { what: "top", values }));
    Ok(costs)
}

fn scrape_by(daemon: &Daemon, netns: &Netns) -> Result<Values> {
    let pid = daemon.pid()?;
    let (cpu, began) = (cpu_time(pid)?, Instant::now());
    let text = scrape(netns)?;
    let wall = began.elapsed();
    let cpu = cpu_time(pid)? - cpu;
    let series = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    Ok(Values::from([
        ("cpu_ms".into(), ms(cpu)),
        ("wall_ms".into(), ms(wall)),
        ("bytes".into(), text.len() as f64),
        ("series".into(), series as f64),
    ]))
}

/// The text of all series.
fn scrape(netns: &Netns) -> Result<String> {
    let response = netns.run(|| {
        let mut stream =
            TcpStream::connect(LISTEN).with_context(|| format!("connect to {LISTEN}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {LISTEN}\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response).context("read the metrics")?;
        Ok(response)
    })?;
    let (head, text) = response.split_once("\r\n\r\n").context("no answer to a scrape")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "the service answered {head:?}");
    Ok(text.to_owned())
}

/// Each is a second of `vsnoop top` on a terminal, which refreshes once a second.
fn refreshes(daemon: &Daemon, times: usize) -> Result<Vec<Values>> {
    let mut command = daemon.vsnoop.command();
    command.args(["top", "--interval", "1"]);
    let terminal = Terminal::start(command)?;
    pause(BEGIN)?;
    let mut all = Vec::new();
    for _ in 0..times {
        let (cpu, bytes) = (cpu_time(terminal.pid())?, terminal.bytes());
        pause(Duration::from_secs(1))?;
        let cpu = cpu_time(terminal.pid())? - cpu;
        all.push(Values::from([
            ("cpu_ms".into(), ms(cpu)),
            ("bytes".into(), (terminal.bytes() - bytes) as f64),
        ]));
    }
    ensure!(terminal.bytes() > 0, "`vsnoop top` has drawn nothing");
    Ok(all)
}
