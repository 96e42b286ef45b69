//! A connection to the QMP monitor of a QEMU: what is said there, line by line.
//!
//! Nothing waits: the socket is non-blocking, and what comes is read when it has come, but not more
//! than [`READ_BYTES`] in [`REST`]: a peer that sends events as fast as it can fills its socket,
//! and takes little of the service's time. A peer that is silent, or sends something else, is given
//! up with a reason.
//!
//! ```text
//! QEMU    {"QMP": ...}                    the greeting; not before other clients have gone
//! vsnoop  qmp_capabilities
//! vsnoop  migrate-set-capabilities        has MIGRATION sent; refused during a migration
//! vsnoop  query-status, query-migrate     how it is now; repeated while the VM leaves
//! QEMU    events
//! ```

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Group};
use serde::Deserialize;
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};

use super::phase::{Phase, Vm};

/// QEMU serves one client at a time, and greets the next one when it has gone.
const ANSWER: Duration = Duration::from_secs(5);
/// Interval of questions while a migration is under way, or while QEMU sends no `MIGRATION`.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Read at once; more waits for the next time.
const READ_BYTES: usize = 16 << 10;
/// Between two reads, so that a peer has a bounded part of the service's time.
const REST: Duration = Duration::from_millis(50);
/// The longest line.
const LINE_BYTES: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    #[error("connect")]
    Connect(#[source] std::io::Error),
    #[error(
        "the service may not write to it, which belongs to another user: {}",
        remedy(*group, *mode)
    )]
    Forbidden { group: u32, mode: u32 },
    #[error("talk to it")]
    Talk(#[source] std::io::Error),
    #[error("it was closed")]
    Closed,
    #[error("it was closed before it said how its VM is")]
    ClosedAtOnce,
    #[error(
        "no answer within {ANSWER:?}: QEMU serves one client at a time; give vsnoop a monitor of its own"
    )]
    NoAnswer,
    #[error("it says what is not QMP")]
    NotQmp(#[source] serde_json::Error),
    #[error("a line is longer than {LINE_BYTES} bytes")]
    LongLine,
    #[error("it refuses {command}: {reason}")]
    Refused { command: &'static str, reason: String },
    #[error("process {pid}, or the host, has as many open monitors as the service follows")]
    TooMany { pid: i32 },
}

/// The requests, each with its number as `id`.
#[derive(Clone, Copy, Debug)]
enum Request {
    Begin = 1,
    SendEvents,
    RunState,
    Migration,
}

impl Request {
    const ALL: [Self; 4] = [Self::Begin, Self::SendEvents, Self::RunState, Self::Migration];

    fn command(self) -> &'static str {
        match self {
            Self::Begin => "qmp_capabilities",
            Self::SendEvents => "migrate-set-capabilities",
            Self::RunState => "query-status",
            Self::Migration => "query-migrate",
        }
    }

    fn arguments(self) -> Value {
        match self {
            Self::SendEvents => {
                json!({ "capabilities": [{ "capability": "events", "state": true }] })
            }
            _ => json!({}),
        }
    }
}

/// A line of QEMU.
#[derive(Deserialize)]
struct Message {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    event: Option<String>,
    #[serde(default)]
    data: Value,
    id: Option<u64>,
    #[serde(rename = "return")]
    answer: Option<Value>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    /// The process that listens there.
    pid: i32,
    opened: Instant,
    /// When more may be read.
    readable_at: Instant,
    /// QEMU has said that it is one. It does so once.
    is_greeted: bool,
    /// It takes commands, and was asked how its VM is.
    is_asked: bool,
    /// It has answered.
    has_begun: bool,
    /// QEMU sends `MIGRATION`.
    has_events: bool,
    asked: Instant,
    vm: Vm,
    /// The beginning of a line.
    input: Vec<u8>,
}

impl Monitor {
    pub fn connect(path: &Path, now: Instant) -> Result<Self, MonitorError> {
        let connect = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
            socket.connect(&SockAddr::unix(path)?)?;
            let stream = UnixStream::from(socket);
            let pid = getsockopt(&stream, PeerCredentials)?.pid();
            Ok((stream, pid))
        };
        let (stream, pid) = connect().map_err(|error| refused(path, error))?;
        Ok(Self {
            stream,
            pid,
            opened: now,
            readable_at: now,
            is_greeted: false,
            is_asked: false,
            has_begun: false,
            has_events: false,
            asked: now,
            vm: Vm::default(),
            input: Vec::new(),
        })
    }

    /// To be polled for input; `None` while it rests.
    pub fn descriptor(&self, now: Instant) -> Option<BorrowedFd<'_>> {
        (now >= self.readable_at).then(|| self.stream.as_fd())
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// `None` before QEMU has said it.
    pub fn phase(&self) -> Option<Phase> {
        self.has_begun.then(|| self.vm.phase())
    }

    /// Reads the messages that QEMU has sent, and sends the next command if one is due.
    pub fn attend(&mut self, now: Instant) -> Result<(), MonitorError> {
        if now >= self.readable_at {
            self.receive(now)?;
        }
        match self.next_question() {
            Some(due) if due > now => Ok(()),
            None => Ok(()),
            Some(_) if !self.has_begun => Err(MonitorError::NoAnswer),
            Some(_) => self.ask_all(now),
        }
    }

    /// Reads what a QEMU that has ended had sent, up to [`LINE_BYTES`].
    pub fn read_the_rest(&mut self, now: Instant) {
        for _ in 0..LINE_BYTES / READ_BYTES {
            if !matches!(self.receive(now), Ok(true)) {
                return;
            }
        }
    }

    /// When it has to be attended to even if nothing comes.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let rested = (self.readable_at > now).then_some(self.readable_at);
        [self.next_question(), rested].into_iter().flatten().min()
    }

    fn next_question(&self) -> Option<Instant> {
        if !self.has_begun {
            return Some(self.opened + ANSWER);
        }
        let is_still = self.has_events && self.vm.phase() == Phase::Here;
        (!is_still).then_some(self.asked + ASK_AGAIN)
    }

    /// Has anything come?
    fn receive(&mut self, now: Instant) -> Result<bool, MonitorError> {
        let mut bytes = vec![0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) if self.has_begun => return Err(MonitorError::Closed),
            Ok(0) => return Err(MonitorError::ClosedAtOnce),
            Ok(count) => {
                self.input.extend_from_slice(&bytes[..count]);
                self.readable_at = now + REST;
            }
            Err(error) if is_for_later(error.kind()) => return Ok(false),
            Err(error) => return Err(self.broken(error)),
        }
        let Some(end) = self.input.iter().rposition(|byte| *byte == b'\n') else {
            return if self.input.len() > LINE_BYTES {
                Err(MonitorError::LongLine)
            } else {
                Ok(true)
            };
        };
        let rest = self.input.split_off(end + 1);
        let lines = std::mem::replace(&mut self.input, rest);
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty())
        {
            self.take(serde_json::from_slice(line).map_err(MonitorError::NotQmp)?, now)?;
        }
        Ok(true)
    }

    /// The connection failed, perhaps because its QEMU has ended.
    fn broken(&self, error: std::io::Error) -> MonitorError {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset if self.has_begun => {
                MonitorError::Closed
            }
            _ => MonitorError::Talk(error),
        }
    }

    fn take(&mut self, message: Message, now: Instant) -> Result<(), MonitorError> {
        if message.greeting.is_some() {
            return match std::mem::replace(&mut self.is_greeted, true) {
                false => self.send(Request::Begin),
                true => Ok(()),
            };
        }
        if let Some(event) = message.event {
            self.vm.event(&event, &message.data, now);
            return Ok(());
        }
        let request = Request::ALL.into_iter().find(|one| message.id == Some(*one as u64));
        match (request, message.answer, message.error) {
            (Some(request), Some(answer), _) => self.answered(request, &answer, now),
            // During a migration; it is tried again.
            (Some(Request::SendEvents), None, Some(_)) => Ok(()),
            (Some(request), None, Some(Refusal { desc })) => {
                Err(MonitorError::Refused { command: request.command(), reason: desc })
            }
            _ => Ok(()),
        }
    }

    fn answered(
        &mut self,
        request: Request,
        answer: &Value,
        now: Instant,
    ) -> Result<(), MonitorError> {
        match request {
            Request::Begin if self.is_asked => {}
            Request::Begin => {
                self.is_asked = true;
                return self.ask_all(now);
            }
            Request::SendEvents => self.has_events = true,
            Request::RunState => self.vm.run_state(answer),
            Request::Migration => {
                self.vm.migration_answer(answer["status"].as_str().unwrap_or("none"), now);
                self.has_begun = true;
            }
        }
        Ok(())
    }

    fn ask_all(&mut self, now: Instant) -> Result<(), MonitorError> {
        self.asked = now;
        if !self.has_events {
            self.send(Request::SendEvents)?;
        }
        self.send(Request::RunState)?;
        self.send(Request::Migration)
    }

    fn send(&mut self, request: Request) -> Result<(), MonitorError> {
        let (command, arguments) = (request.command(), request.arguments());
        let line = json!({ "execute": command, "arguments": arguments, "id": request as u64 });
        // QEMU reads while it answers: a buffer that is full is an error.
        let sent = self.stream.write_all(format!("{line}\n").as_bytes());
        sent.map_err(|error| self.broken(error))
    }
}

/// Why a connection failed. The service has given up `CAP_DAC_OVERRIDE`.
fn refused(path: &Path, error: std::io::Error) -> MonitorError {
    match path.metadata() {
        Ok(socket) if error.kind() == ErrorKind::PermissionDenied => {
            MonitorError::Forbidden { group: socket.gid(), mode: socket.mode() }
        }
        _ => MonitorError::Connect(error),
    }
}

/// Says how the service gets to write to a socket of this group and mode.
fn remedy(group: u32, mode: u32) -> String {
    let found = Group::from_gid(Gid::from_raw(group)).ok().flatten();
    let name = found.map_or_else(|| group.to_string(), |group| group.name);
    let unit = format!(
        "add its group to the unit (`systemctl edit vsnoop`: [Service] SupplementaryGroups={name})"
    );
    match mode & Mode::S_IWGRP.bits() {
        0 => format!("let its group {name} write to it, and {unit}"),
        _ => unit,
    }
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
