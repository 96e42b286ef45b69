//! The command's end of the control socket: asks, with a bound on time and memory.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::ControlError;
use super::server::LINE_BYTES;
use super::{LinkFiles, Request, Response, files};
use crate::causes::with_causes;
use crate::config::is_link_name;

const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time that a process may take to end.
const ENDING: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug)]
pub enum AskError {
    /// No link of this name runs.
    NotRunning(String),
    /// One does, and does not answer.
    Silent { name: String, pid: Option<i32>, why: String },
    /// Its files cannot be looked at.
    Unreadable(ControlError),
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning(name) => {
                write!(
                    f,
                    "link {name} is not up; `vsnoop link status` lists those that are, \
                     `vsnoop link up {name}` starts it"
                )
            }
            Self::Silent { name, pid, why } => {
                let kill = pid.map_or("kill it".into(), |pid| format!("`kill -9 {pid}`"));
                write!(
                    f,
                    "link {name} runs, but does not answer ({why}); its log may say more, and after \
                     {kill} `vsnoop link up` starts it again"
                )
            }
            Self::Unreadable(error) => f.write_str(&with_causes(error)),
        }
    }
}

impl std::error::Error for AskError {}

/// Asks the link of this name.
pub fn ask_link(name: &str, request: &Request) -> Result<Response, AskError> {
    if !is_link_name(name) {
        return Err(AskError::NotRunning(name.to_owned()));
    }
    ask_at(&LinkFiles::new(name), request)
}

/// Names of the links that run on this host. What killed ones have left is removed.
pub fn list_running() -> Result<Vec<String>, ControlError> {
    let mut names = files::list_names(Path::new(files::DIRECTORY))?;
    let mut error = None;
    names.retain(|name| {
        LinkFiles::new(name).is_taken().unwrap_or_else(|found| {
            error = Some(found);
            true
        })
    });
    error.map_or(Ok(names), Err)
}

pub(super) fn ask_at(files: &LinkFiles, request: &Request) -> Result<Response, AskError> {
    let name = || files.name().to_owned();
    if !files.is_taken().map_err(AskError::Unreadable)? {
        return Err(AskError::NotRunning(name()));
    }
    let error = match exchange_messages(files, request) {
        Ok(response) => return Ok(response),
        Err(error) => error,
    };
    // It may have been ending just then; its name is free when it is gone.
    let since = Instant::now();
    while since.elapsed() < ENDING {
        if !files.is_taken().map_err(AskError::Unreadable)? {
            return Err(AskError::NotRunning(name()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(AskError::Silent { name: name(), pid: files.read_pid(), why: error.to_string() })
}

fn exchange_messages(files: &LinkFiles, request: &Request) -> io::Result<Response> {
    let mut stream = UnixStream::connect(files.socket_path())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    // The line, and its end.
    BufReader::new(stream.take(LINE_BYTES as u64 + 1)).read_until(b'\n', &mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}
