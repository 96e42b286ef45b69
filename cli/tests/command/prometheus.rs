//! The real Prometheus reads the metrics, answers the dashboard's queries, and raises an alert.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use vsnoop_testbed::net::Netns;
use vsnoop_testbed::topology::{self, Topology, TopologyOptions};

use crate::helper::AttachedNetwork;
use crate::hold::ConfigFile;
use crate::metrics::DEFAULT;
use crate::sandbox::{PREFIX, text, vsnoop, vsnoop_in, wait_until};
use crate::service::Service;

const LISTEN: &str = "127.0.0.1:9090";
/// Queries of the dashboard with one of these have no series without an uplink.
const OF_UPLINKS: [&str; 2] =
    ["vsnoop_uplink_received_bytes_per_second", "vsnoop_uplink_limit_bytes_per_second"];

pub fn trials() -> Vec<Trial> {
    trials![
        every_alert_fires_for_its_reason_and_for_no_other,
        prometheus_reads_what_stats_says_and_raises_an_alert,
    ]
}

/// A file of this repository.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

fn is_good(command: &mut Command) -> Result<()> {
    let output = command.output().context("it is missing; installed by: sh scripts/setup.sh")?;
    let said = || format!("{}{}", text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{command:?}: {}", said());
    Ok(())
}

fn every_alert_fires_for_its_reason_and_for_no_other() -> Result<()> {
    let rules = file("deploy/prometheus/vsnoop.rules.test.yml").canonicalize()?;
    is_good(Command::new("promtool").args(["test", "rules"]).arg(rules))
}

/// A running server; ended and removed when dropped.
struct Prometheus<'a> {
    netns: &'a Netns,
    child: Child,
    directory: PathBuf,
}

impl<'a> Prometheus<'a> {
    fn start(netns: &'a Netns) -> Result<Self> {
        let directory = Path::new("/run").join(format!("{}-prometheus", netns.name()));
        fs::create_dir(&directory)?;
        let config = directory.join("prometheus.yml");
        let rules = file("deploy/prometheus/vsnoop.rules.yml").canonicalize()?;
        let rules = rules.display();
        is_good(Command::new("promtool").args(["check", "rules", &rules.to_string()]))?;
        let lines = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [\"{rules}\"]\n\
             scrape_configs:\n  - job_name: vsnoop\n    static_configs:\n      \
             - targets: [\"{DEFAULT}\"]\n"
        );
        fs::write(&config, lines)?;
        is_good(Command::new("promtool").args(["check", "config"]).arg(&config))?;
        let log = fs::File::create(directory.join("log"))?;
        let child = netns
            .command("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={LISTEN}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("it is missing; installed by: sh scripts/setup.sh")?;
        Ok(Self { netns, child, directory })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Asks its API.
    fn ask(&self, path: &str) -> Result<Value> {
        let mut stream = self.netns.run(|| Ok(TcpStream::connect(LISTEN)?))?;
        // Of version 1.0, so that the answer is not in chunks.
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\nHost: {LISTEN}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
        let answer: Value = serde_json::from_str(body).with_context(|| body.to_owned())?;
        ensure!(answer["status"] == "success", "{path}: {answer}");
        Ok(answer["data"].clone())
    }

    /// The series of a query.
    fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let found = self.ask(&format!("query?query={encoded}"))?;
        Ok(found["result"].as_array().cloned().unwrap_or_default())
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        // Until it answers there is nothing to compare.
        wait_until(what, || Ok(is_so().unwrap_or(false))).with_context(|| self.log())
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The value of the only series.
fn only_value(found: &[Value]) -> Option<f64> {
    match found {
        [one] => one["value"][1].as_str()?.parse().ok(),
        _ => None,
    }
}

/// The queries of the dashboard, with what Grafana would put into them.
fn dashboard_queries() -> Result<Vec<String>> {
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(file("deploy/grafana/vsnoop.json"))?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expression = |target: &Value| {
        let text = target["expr"].as_str()?.replace("$__rate_interval", "1m");
        Some(["$instance", "$port", "$vm"].iter().fold(text, |text, it| text.replace(it, ".*")))
    };
    Ok(targets.filter_map(expression).collect())
}

fn prometheus_reads_what_stats_says_and_raises_an_alert() -> Result<()> {
    let prefix = format!("{PREFIX}prom-");
    let topology = Topology::build(&TopologyOptions { prefix, ..TopologyOptions::default() })?;
    let config = ConfigFile { path: format!("/run/{}.toml", topology.host.name()) };
    config.write(&format!("[[port]]\nname = \"web\"\ninterface = \"{}\"\n", topology::PORT))?;
    let service = Service::start(&topology.host, Some(&config))?;
    wait_until("the tap is attached", || {
        let status = vsnoop_in(topology.host.name(), ["status", "--json"])?.json()?;
        Ok(status["ports"][0]["state"] == "active")
    })?;
    let network = AttachedNetwork { topology };
    let prometheus = Prometheus::start(&network.topology.host)?;
    network.until_new_ones_are_acknowledged_early()?;
    network.connect()?.exchange(200_000)?;
    let labels = format!("{{job=\"vsnoop\",port=\"{}\",table=\"web\"}}", topology::PORT);
    for (metric, field) in [
        ("vsnoop_early_bytes_total", "early_bytes"),
        ("vsnoop_early_acks_total", "early_acks"),
        ("vsnoop_flows_created_total", "flows_created"),
    ] {
        prometheus.until("Prometheus has what stats says", || {
            let stats = network.vsnoop(&["stats", topology::PORT, "--json"])?;
            let wanted = stats["ports"][0][field].as_f64().filter(|value| *value > 0.0);
            let found = only_value(&prometheus.query(&format!("{metric}{labels}"))?);
            Ok(wanted.is_some() && found == wanted)
        })?;
    }
    let queries = dashboard_queries()?;
    ensure!(queries.len() > 10, "the dashboard has only {queries:?}");
    let is_of_uplinks = |query: &String| OF_UPLINKS.iter().any(|name| query.contains(name));
    let (of_uplinks, others): (Vec<_>, Vec<_>) = queries.iter().partition(|it| is_of_uplinks(it));
    ensure!(of_uplinks.len() == OF_UPLINKS.len(), "{of_uplinks:?}");
    for query in of_uplinks {
        prometheus.query(query)?;
    }
    // Rates take two scrapes.
    for query in others {
        prometheus.until(query, || Ok(!prometheus.query(query)?.is_empty()))?;
    }
    let is_firing = || -> Result<bool> {
        let alerts = prometheus.ask("alerts")?["alerts"].as_array().cloned().unwrap_or_default();
        Ok(alerts.iter().any(|alert| {
            alert["labels"]["alertname"] == "VsnoopConfigRefused" && alert["state"] == "firing"
        }))
    };
    ensure!(!is_firing()?, "an alert without a reason");
    config.write("[[port]]\nholds = 1\n")?;
    vsnoop(["reload"])?.failed(2, &["holds"])?;
    prometheus.until("the alert fires", is_firing)?;
    config.write("[[port]]\n")?;
    vsnoop(["reload"])?.ok()?;
    prometheus.until("the alert ends", || Ok(!is_firing()?))?;
    drop(prometheus);
    service.end(Signal::SIGTERM)?;
    vsnoop(["off", "--all"])?.ok().map(drop)
}
