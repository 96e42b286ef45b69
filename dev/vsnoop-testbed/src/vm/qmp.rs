//! QEMU's control protocol (QMP): commands, and the events that come between their answers.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::interrupt;

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// The longest time between two looks at an interrupt while an event is awaited.
const TICK: Duration = Duration::from_millis(200);

/// A connection; QEMU serves one at a time.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
    /// Those that have come and were not awaited yet.
    events: Vec<Event>,
    /// The beginning of a line whose rest has not come yet.
    line: String,
}

#[derive(Debug)]
struct Event {
    name: String,
    /// Since 1970.
    at: Duration,
}

impl Qmp {
    /// Connects to the QEMU behind this socket.
    pub fn connect(path: &Path) -> Result<Self> {
        let stream =
            UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
        let (events, line) = (Vec::new(), String::new());
        let mut qmp = Self { stream: BufReader::new(stream), events, line };
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = format!("{}\n", json!({ "execute": command, "arguments": arguments }));
        self.stream.get_mut().write_all(request.as_bytes()).context("send to QMP")?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let message = self.message(deadline)?;
            let mut message = message.with_context(|| format!("no answer to {command}"))?;
            if let Some(error) = message.get("error") {
                bail!("QEMU refused {command}: {error}");
            }
            if let Some(result) = message.get_mut("return") {
                return Ok(result.take());
            }
            self.keep(&message);
        }
    }

    /// The time, since 1970, of the next event of this name.
    pub fn wait_event(&mut self, name: &str, timeout: Duration) -> Result<Duration> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(found) = self.events.iter().position(|event| event.name == name) {
                return Ok(self.events.remove(found).at);
            }
            interrupt::check()?;
            let now = Instant::now();
            ensure!(now < deadline, "no event {name} came within {timeout:?}");
            if let Some(message) = self.message(deadline.min(now + TICK))? {
                self.keep(&message);
            }
        }
    }

    /// Thread ids of the vCPUs.
    pub fn vcpu_threads(&mut self) -> Result<Vec<Pid>> {
        let cpus = self.execute("query-cpus-fast", &json!({}))?;
        let thread = |cpu: &Value| {
            let id = cpu["thread-id"].as_i64().context("a vCPU without thread-id")?;
            Ok(Pid::from_raw(i32::try_from(id).context("thread-id out of range")?))
        };
        cpus.as_array().into_iter().flatten().map(thread).collect()
    }

    /// The greeting is no event and is left out.
    fn keep(&mut self, message: &Value) {
        let stamp = &message["timestamp"];
        let part = |name: &str| stamp[name].as_u64();
        if let (Some(name), Some(seconds), Some(microseconds)) =
            (message["event"].as_str(), part("seconds"), part("microseconds"))
        {
            let at = Duration::from_secs(seconds) + Duration::from_micros(microseconds);
            self.events.push(Event { name: name.to_owned(), at });
        }
    }

    /// The next message, if one comes before the deadline.
    fn message(&mut self, deadline: Instant) -> Result<Option<Value>> {
        // Zero would mean no time limit.
        let left = deadline.saturating_duration_since(Instant::now());
        let left = left.max(Duration::from_millis(1));
        self.stream.get_ref().set_read_timeout(Some(left)).context("set a time limit")?;
        match self.stream.read_line(&mut self.line) {
            Ok(0) => bail!("QMP was closed"),
            Ok(_) => (),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("read from QMP"),
        }
        let message = serde_json::from_str(&self.line).context("parse QMP")?;
        self.line.clear();
        Ok(Some(message))
    }
}
