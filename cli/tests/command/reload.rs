//! Bad configurations of every kind are refused, and the running one stays.

use std::fs;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::hold::ConfigFile;
use crate::sandbox::{PORT, TapHost, vsnoop};
use crate::service::{Service, port, until_port};

pub fn trials() -> Vec<Trial> {
    trials![bad_configurations_of_every_kind_are_refused_with_their_line_and_the_running_one_stays]
}

/// A wrong configuration, the place that the error names, and words of the error.
const BAD: [(&str, &str, &str); 21] = [
    // No TOML.
    ("[hold\n", "line 1, column", "[hold"),
    ("[[port]]\ninterface = \"x\n", "line 2, column", "interface"),
    ("[[port]]\nhold = \"1M\"\nhold = \"2M\"\n", "line 3, column 1", "duplicate key"),
    // Keys and tables that there are not.
    ("[[port]]\nhold = \"2M\"\nholds = 1\n", "line 3, column 1", "holds"),
    ("[ports]\n", "line 1, column", "ports"),
    ("[port]\n", "line 1, column", "double brackets"),
    // Types and ranges.
    ("[[port]]\nhold = true\n", "line 2, column 8", "port.hold = true"),
    ("[[port]]\nhold = \"1K\"\n", "line 2, column 8", "256K to 256M"),
    ("[[port]]\nmax_flows = 0\n", "line 2, column 13", "from 1"),
    ("[[port]]\nmode = \"fast\"\n", "line 2, column 8", "accelerate or observe"),
    ("[[port]]\nallow = \"10.0.0.0/33\"\n", "line 2, column 9", "prefix"),
    ("[[port]]\ncanary = \"101%\"\n", "line 2, column 10", "10%"),
    ("[[port]]\nqmp = \"run/q\"\n", "line 2, column 7", "from / on"),
    ("[hold]\ntotal = \"4X\"\n", "line 2, column 9", "hold.total"),
    ("[incast]\nrate = \"fast\"\n", "line 2, column 8", "incast.rate"),
    ("[metrics]\nlisten = \"eth0\"\n", "line 2, column 10", "metrics.listen"),
    // What contradicts something else.
    ("[[port]]\nmode = \"observe\"\nhold = \"1M\"\n", "line 3, column 8", "accelerate"),
    ("[[port]]\nuplink = \"eth0\"\n", "line 2, column 10", "incast = true"),
    ("[[port]]\nallow_port = 80\ndeny_port = 80\n", "line 1, column 1", "80 is both allowed"),
    ("[[port]]\n[[port]]\n", "line 2, column 1", "no tap is left"),
    ("[[port]]\nhold = \"2M\"\n[hold]\ntotal = \"1M\"\n", "line 2, column 8", "hold.total"),
];

fn bad_configurations_of_every_kind_are_refused_with_their_line_and_the_running_one_stays()
-> Result<()> {
    let host = TapHost::new("bad")?;
    let config = ConfigFile::new(&host, "[[port]]\nhold = \"1M\"\n")?;
    let service = Service::start(&host.netns, Some(&config))?;
    let before = until_port(&host.netns, "the tap is attached", |port| port["state"] == "active")?;
    let is_refused = |place: &str, word: &str| -> Result<()> {
        let place = format!("{}, {place}", config.path);
        let words = ["the service goes on as it was", place.as_str(), word];
        vsnoop(["reload"])?.failed(2, &words)?;
        vsnoop(["check", &config.path])?.failed(2, &words[1..])
    };
    for (text, place, word) in BAD {
        config.write(text)?;
        is_refused(place, word).with_context(|| format!("{text:?}"))?;
    }
    fs::write(&config.path, b"[[port]]\nname = \"\xff\"\n")?;
    is_refused("line 2, column 9", "UTF-8")?;
    // What is no file has no line.
    fs::remove_file(&config.path)?;
    vsnoop(["reload"])?.failed(2, &["the service goes on as it was", &config.path])?;
    fs::create_dir(&config.path)?;
    vsnoop(["reload"])?.failed(2, &["the service goes on as it was", &config.path])?;
    fs::remove_dir(&config.path)?;
    let after = port(&host.netns)?;
    let kept = |port: &Value| [port["attached_at"].clone(), port["hold"]["size_bytes"].clone()];
    ensure!(kept(&after) == kept(&before) && after["state"] == "active", "{after}");
    config.write("[[port]]\nhold = \"2M\"\n")?;
    vsnoop(["reload"])?.ok()?;
    let larger = |port: &Value| port["hold"]["size_bytes"] == 2 << 20;
    until_port(&host.netns, "a good one is taken", larger)?;
    service.end(Signal::SIGTERM)?;
    host.vsnoop(["detach", PORT])?.ok().map(drop)
}
