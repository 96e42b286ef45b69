//! The two QMP commands that the lab uses: the greeting, and the thread ids of the vCPUs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Thread ids of the vCPUs of the QEMU behind this socket.
pub fn vcpu_threads(path: &Path) -> Result<Vec<Pid>> {
    let stream =
        UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).context("set a time limit")?;
    let mut stream = BufReader::new(stream);
    execute(&mut stream, "qmp_capabilities")?;
    let cpus = execute(&mut stream, "query-cpus-fast")?;
    cpus.as_array()
        .into_iter()
        .flatten()
        .map(|cpu| {
            let id = cpu["thread-id"].as_i64().context("a vCPU without thread-id")?;
            Ok(Pid::from_raw(i32::try_from(id).context("thread-id out of range")?))
        })
        .collect()
}

fn execute(stream: &mut BufReader<UnixStream>, command: &str) -> Result<Value> {
    let request = format!("{}\n", json!({ "execute": command }));
    stream.get_mut().write_all(request.as_bytes()).context("send to QMP")?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).context("read from QMP")? == 0 {
            bail!("QMP was closed");
        }
        let mut message: Value = serde_json::from_str(&line).context("parse QMP")?;
        if let Some(error) = message.get("error") {
            bail!("QEMU refused {command}: {error}");
        }
        // The greeting and events come in between.
        if let Some(result) = message.get_mut("return") {
            return Ok(result.take());
        }
    }
}
