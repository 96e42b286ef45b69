//! The metrics of the service, as a client of HTTP reads them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use vsnoop_metrics::counters::COUNTERS;
use vsnoop_testbed::interrupt::restarted;
use vsnoop_testbed::net::{Netns, TapOptions};
use vsnoop_testbed::topology::{self, Topology, TopologyOptions};

use crate::helper::AttachedNetwork;
use crate::hold::ConfigFile;
use crate::sandbox::{PORT, PREFIX, TapHost, vsnoop, vsnoop_in, wait_until};
use crate::service::Service;

/// Where the service listens without a word of the configuration.
pub const DEFAULT: &str = "127.0.0.1:19755";
/// More connections than the service keeps open.
const SILENT_CLIENTS: usize = 40;

pub fn trials() -> Vec<Trial> {
    trials![
        every_counter_and_every_histogram_is_a_metric_with_the_value_of_stats,
        a_client_that_is_silent_or_sends_nonsense_stops_no_scrape,
        a_reload_moves_the_endpoint_and_is_refused_where_it_cannot_listen,
        the_series_of_a_port_go_with_it,
        the_service_says_how_it_is,
    ]
}

/// A connection from within the namespace.
fn connect(netns: &Netns, address: &str) -> Result<TcpStream> {
    let stream = netns.run(|| Ok(TcpStream::connect(address)?))?;
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    Ok(stream)
}

/// Status line and headers, and the body.
fn ask(netns: &Netns, address: &str, request: &str) -> Result<(String, String)> {
    let mut stream = connect(netns, address)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    Ok((head.to_owned(), body.to_owned()))
}

/// The text of a scrape.
pub struct Scraped(String);

impl Scraped {
    pub fn read(netns: &Netns, address: &str) -> Result<Self> {
        let request = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
        let (head, body) = ask(netns, address, request)?;
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        ensure!(head.contains("application/openmetrics-text"), "{head}");
        ensure!(body.ends_with("# EOF\n"), "cut short: {body}");
        Ok(Self(body))
    }

    /// The value of the series of this name that has all these labels, as `label="value"`.
    pub fn value(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let has_all = |found: &str| labels.iter().all(|label| found.contains(label));
        self.0.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, rest) = series.split_once('{').unwrap_or((series, ""));
            (found == name && has_all(rest)).then(|| value.parse().ok())?
        })
    }

    fn has_port(&self, port: &str) -> bool {
        self.0.contains(&format!("port=\"{port}\""))
    }
}

/// Waits until a scrape is so; one may be a second old. On a busy machine one may fail.
pub fn until_scraped(
    netns: &Netns,
    what: &str,
    is_so: impl Fn(&Scraped) -> bool,
) -> Result<Scraped> {
    let mut last = Err(anyhow!("no scrape"));
    let waited = wait_until(what, || {
        last = Scraped::read(netns, DEFAULT);
        Ok(last.as_ref().is_ok_and(&is_so))
    });
    let said = || last.as_ref().map_or_else(|error| format!("{error:#}"), |it| it.0.clone());
    waited.with_context(said)?;
    last
}

/// The first difference between the metrics of a port and its `stats`.
fn difference(scraped: &Scraped, stats: &Value) -> Option<String> {
    let port = format!("port=\"{}\"", topology::PORT);
    let mut wanted: Vec<(String, Vec<&str>, &Value)> = COUNTERS
        .iter()
        .map(|counter| (format!("vsnoop_{}_total", counter.metric()), vec![], &stats[counter.name]))
        .collect();
    for (name, json) in [
        ("vsnoop_masked_seconds_count", "masked_ns"),
        ("vsnoop_ack_delay_seconds_count", "ack_delay_ns"),
        ("vsnoop_round_trip_seconds_count", "round_trip_ns"),
    ] {
        wanted.push((name.to_owned(), vec![], &stats[json]["count"]));
    }
    let (resets, hold) = (&stats["resets"], &stats["hold"]);
    for (reason, json) in [("reason=\"silent\"", "silent"), ("reason=\"no_reader\"", "no_reader")] {
        wanted.push(("vsnoop_resets_total".to_owned(), vec![reason], &resets[json]));
    }
    wanted.push(("vsnoop_hold_limit_bytes".to_owned(), vec![], &hold["size_bytes"]));
    wanted.push(("vsnoop_hold_held_bytes".to_owned(), vec![], &hold["held_bytes"]));
    wanted.push(("vsnoop_ring_full_segments_total".to_owned(), vec![], &stats["ring_full"]));
    wanted.into_iter().find_map(|(name, labels, value)| {
        let labels: Vec<&str> = labels.into_iter().chain([port.as_str()]).collect();
        let found = scraped.value(&name, &labels);
        (found.is_none() || found != value.as_f64()).then(|| format!("{name}: {found:?}, {value}"))
    })
}

fn every_counter_and_every_histogram_is_a_metric_with_the_value_of_stats() -> Result<()> {
    let prefix = format!("{PREFIX}metric-");
    let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
    let host = &topology.host;
    let config = ConfigFile { path: format!("/run/{}.toml", host.name()) };
    config.write(&format!("[[port]]\nname = \"web\"\ninterface = \"{}\"\n", topology::PORT))?;
    let service = Service::start(host, Some(&config))?;
    wait_until("the tap is attached", || {
        let status = vsnoop_in(host.name(), ["status", "--json"])?.json()?;
        Ok(status["ports"][0]["state"] == "active")
    })?;
    let network = AttachedNetwork { topology };
    let host = &network.topology.host;
    network.until_new_ones_are_acknowledged_early()?;
    network.connect()?.exchange(200_000)?;
    let mut last = String::new();
    wait_until("metrics and stats are the same", || {
        let scraped = Scraped::read(host, DEFAULT)?;
        let stats = network.vsnoop(&["stats", topology::PORT, "--json"])?["ports"][0].clone();
        last = difference(&scraped, &stats).unwrap_or_default();
        Ok(last.is_empty())
    })
    .with_context(|| last.clone())?;
    let scraped = Scraped::read(host, DEFAULT)?;
    let labels = [&format!("port=\"{}\"", topology::PORT), "netns=\"\"", "table=\"web\""];
    ensure!(scraped.value("vsnoop_early_bytes_total", &labels).is_some(), "{}", scraped.0);
    let active = [labels[0], "state=\"active\""];
    ensure!(scraped.value("vsnoop_port_state", &active) == Some(1.0), "{}", scraped.0);
    let by_service = [labels[0], "attached_by=\"service\""];
    ensure!(scraped.value("vsnoop_port_info", &by_service) == Some(1.0), "{}", scraped.0);
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn a_client_that_is_silent_or_sends_nonsense_stops_no_scrape() -> Result<()> {
    let host = TapHost::new("silent")?;
    let netns = &host.netns;
    let config = ConfigFile::new(&host, "[[port]]\ninterface = \"other\"\n")?;
    let service = Service::start(netns, Some(&config))?;
    service.until_logged("metrics for Prometheus")?;
    let mut silent = Vec::new();
    for _ in 0..SILENT_CLIENTS {
        silent.push(connect(netns, DEFAULT)?);
    }
    // A client that asks and reads nothing.
    let mut deaf = connect(netns, DEFAULT)?;
    deaf.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
    Scraped::read(netns, DEFAULT)?;
    // The oldest ones were displaced: their connections have ended.
    let ended = restarted(|| silent[0].read(&mut [0]));
    let is_ended = match &ended {
        Ok(count) => *count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    ensure!(is_ended, "the oldest one is still there: {ended:?}");
    let long = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let mut greedy = connect(netns, DEFAULT)?;
    // The service may close before it has all of it.
    let _ = greedy.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = greedy.read_to_end(&mut answer);
    ensure!(!answer.starts_with(b"HTTP/1.1 200"), "a request of a megabyte was answered");
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: here\r\n\r\n", "HTTP/1.1 405 "),
        ("GET /other HTTP/1.1\r\nHost: here\r\n\r\n", "HTTP/1.1 404 "),
        ("GET / HTTP/1.1\r\nHost: here\r\n\r\n", "HTTP/1.1 200 "),
        ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
    ] {
        let (head, _) = ask(netns, DEFAULT, request).with_context(|| request.to_owned())?;
        ensure!(head.starts_with(status), "{request:?}: {head}");
    }
    let (head, body) = ask(netns, DEFAULT, "HEAD /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
    ensure!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}\n{body}");
    Scraped::read(netns, DEFAULT)?;
    // The service itself does its work beside all that.
    config.write("[[port]]\nmode = \"observe\"\n")?;
    vsnoop(["reload"])?.ok()?;
    let observed = [&format!("port=\"{PORT}\""), "state=\"observing\""];
    until_scraped(netns, "the tap is observed", |scraped| {
        scraped.value("vsnoop_port_state", &observed) == Some(1.0)
    })?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn a_reload_moves_the_endpoint_and_is_refused_where_it_cannot_listen() -> Result<()> {
    let host = TapHost::new("moves")?;
    let netns = &host.netns;
    let table = "[[port]]\ninterface = \"other\"\n";
    let config = ConfigFile::new(&host, table)?;
    let service = Service::start(netns, Some(&config))?;
    service.until_logged(&format!("http://{DEFAULT}/metrics"))?;
    Scraped::read(netns, DEFAULT)?;
    let listen = |at: &str| config.write(&format!("{table}[metrics]\nlisten = \"{at}\"\n"));
    let other = "127.0.0.1:20000";
    listen(other)?;
    vsnoop(["reload"])?.ok()?;
    Scraped::read(netns, other)?;
    // The server learns of the change a moment later.
    wait_until("it listens no more where it did", || Ok(connect(netns, DEFAULT).is_err()))?;
    let status = vsnoop(["status", "--json"])?.json()?;
    ensure!(status["service"]["metrics"] == other, "{status}");
    let taken = netns.run(|| Ok(std::net::TcpListener::bind("127.0.0.1:20001")?))?;
    listen("127.0.0.1:20001")?;
    let words = ["the service goes on as it was", "cannot listen at 127.0.0.1:20001", "in use"];
    vsnoop(["reload"])?.failed(2, &words)?;
    Scraped::read(netns, other)?;
    listen("eth0")?;
    vsnoop(["reload"])?.failed(2, &["line 4, column 10", "metrics.listen = \"eth0\""])?;
    vsnoop(["check", &config.path])?.failed(2, &["line 4, column 10"])?;
    listen("off")?;
    let checked = vsnoop(["check", &config.path, "--json"])?.json()?;
    ensure!(checked["metrics"].is_null(), "{checked}");
    vsnoop(["reload"])?.ok()?;
    wait_until("it listens nowhere", || Ok(connect(netns, other).is_err()))?;
    service.end(Signal::SIGTERM)?;
    // When it starts it goes on without, and listens as soon as it can.
    listen("127.0.0.1:20001")?;
    let service = Service::start(netns, Some(&config))?;
    service.until_logged("cannot listen at 127.0.0.1:20001")?;
    drop(taken);
    service.until_logged("http://127.0.0.1:20001/metrics")?;
    Scraped::read(netns, "127.0.0.1:20001")?;
    service.end(Signal::SIGTERM)
}

fn the_series_of_a_port_go_with_it() -> Result<()> {
    let host = TapHost::new("goes")?;
    let netns = &host.netns;
    let config = ConfigFile::new(&host, "[[port]]\nmode = \"observe\"\n")?;
    let service = Service::start(netns, Some(&config))?;
    let second = netns.tap("vnet7", &TapOptions::default())?;
    netns.up("vnet7")?;
    let has_both = |scraped: &Scraped| scraped.has_port(PORT) && scraped.has_port("vnet7");
    let scraped = until_scraped(netns, "both ports have series", has_both)?;
    ensure!(scraped.value("vsnoop_ports", &[]) == Some(2.0), "{}", scraped.0);
    // One that is observed has no hold.
    let labels = ["port=\"vnet7\""];
    ensure!(scraped.value("vsnoop_hold_limit_bytes", &labels).is_none(), "{}", scraped.0);
    drop(second);
    until_scraped(netns, "the series of the tap that is gone are gone", |scraped| {
        !scraped.has_port("vnet7") && scraped.has_port(PORT)
    })?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}

fn the_service_says_how_it_is() -> Result<()> {
    let host = TapHost::new("how")?;
    let netns = &host.netns;
    host.tc(&format!("qdisc add dev {PORT} root tbf rate 1mbit burst 10k latency 50ms"))?;
    let config = ConfigFile::new(&host, "[[port]]\n")?;
    let service = Service::start(netns, Some(&config))?;
    let is = |name: &'static str, labels: &'static [&'static str], value: f64| {
        move |scraped: &Scraped| scraped.value(name, labels) == Some(value)
    };
    until_scraped(netns, "a tap cannot be attached", is("vsnoop_failed_ports", &[], 1.0))?;
    host.tc(&format!("qdisc del dev {PORT} root"))?;
    vsnoop(["reload"])?.ok()?;
    until_scraped(netns, "a good reload", |scraped| {
        is("vsnoop_reloads_total", &["result=\"good\""], 1.0)(scraped)
            && is("vsnoop_failed_ports", &[], 0.0)(scraped)
            && is("vsnoop_ports", &[], 1.0)(scraped)
            && is("vsnoop_helper_running", &[], 1.0)(scraped)
            && is("vsnoop_engine_running", &[], 1.0)(scraped)
            && is("vsnoop_config_refused", &[], 0.0)(scraped)
            && scraped.value(
                "vsnoop_build_info",
                &[concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"")],
            ) == Some(1.0)
    })?;
    config.write("[[ports]]\n")?;
    vsnoop(["reload"])?.failed(2, &["ports"])?;
    until_scraped(netns, "a bad reload", |scraped| {
        is("vsnoop_reloads_total", &["result=\"bad\""], 1.0)(scraped)
            && is("vsnoop_config_refused", &[], 1.0)(scraped)
    })?;
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}
