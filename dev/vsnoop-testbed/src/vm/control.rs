//! The host's side of the guest's control channel: a line out, a line back.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use vsnoop_guest::control::{Command, Reply};

/// Longer than a guest under full load ever needs.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub struct Channel {
    stream: BufReader<UnixStream>,
}

impl Channel {
    pub fn connect(path: &Path) -> Result<Self> {
        let stream =
            UnixStream::connect(path).with_context(|| format!("connect to {}", path.display()))?;
        stream.set_read_timeout(Some(PATIENCE)).context("set a time limit")?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub fn ask(&mut self, command: &Command) -> Result<Reply> {
        let mut text = serde_json::to_string(command).context("encode a command")?;
        text.push('\n');
        self.stream.get_mut().write_all(text.as_bytes()).context("send a command")?;
        let mut answer = String::new();
        let n = self.stream.read_line(&mut answer).context("no answer from the guest")?;
        if n == 0 {
            bail!("the guest's control channel is closed");
        }
        serde_json::from_str(&answer).with_context(|| format!("understand the answer {answer:?}"))
    }
}
