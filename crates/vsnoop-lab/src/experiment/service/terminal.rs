//! A program on a terminal of its own, which counts what it writes.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result};
use nix::pty::{Winsize, openpty};
use nix::unistd::Pid;

const SIZE: Winsize = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };

/// It is killed when this is dropped.
pub struct Terminal {
    child: Child,
    bytes: Arc<AtomicU64>,
}

impl Terminal {
    pub fn start(mut command: Command) -> Result<Self> {
        let pty = openpty(&SIZE, None).context("open a terminal")?;
        let end = || pty.slave.try_clone().map(Stdio::from).context("share a terminal");
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?)
            .spawn()
            .with_context(|| format!("run {command:?}"))?;
        // The command has copies of the slave, whose last one ends the reader.
        drop(command);
        let bytes = Arc::new(AtomicU64::new(0));
        let (counter, mut master) = (bytes.clone(), File::from(pty.master));
        thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                counter.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        Ok(Self { child, bytes })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// The bytes that the program has written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vsnoop_testbed::wait::wait_until;

    use super::*;

    #[test]
    fn what_a_program_writes_is_counted_and_it_has_a_terminal() {
        let mut command = Command::new("sh");
        command.args(["-c", "test -t 0 && test -t 1 && printf 12345; exec sleep 600"]);
        let terminal = Terminal::start(command).unwrap();
        wait_until("it has written", Duration::from_secs(120), || Ok(terminal.bytes() == 5))
            .unwrap();
    }
}
