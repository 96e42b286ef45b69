//! An upload that goes on for as long as a test wants.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vsnoop_guest::transfer::{Direction, Header, Sender, Verdict};
use vsnoop_testbed::net::Netns;

use super::site::PATIENCE;

/// Enough for 7 minutes, longer than a test takes; [`Upload::end`] sends the rest without pauses.
pub const LONG_BYTES: u64 = 64 << 20;
/// More than a VM takes, without pauses, until a busy machine has run a command.
pub const ENDLESS_BYTES: u64 = 64 << 30;
/// The sender writes a piece at a time, and pauses after each.
const PIECE: usize = 8 << 10;
const PAUSE: Duration = Duration::from_millis(50);

/// One connection; the guest verifies every byte.
pub struct Upload {
    size_bytes: u64,
    is_enough: Arc<AtomicBool>,
    sending: JoinHandle<Result<Verdict>>,
}

impl Upload {
    pub fn begin(client: &Netns, server: SocketAddr, size_bytes: u64) -> Result<Self> {
        let stream = client.run(|| Ok(TcpStream::connect(server)?)).context("connect")?;
        // A connection that hangs fails.
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let is_enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_enough);
        let sending = thread::spawn(move || send(stream, size_bytes, &told));
        Ok(Self { size_bytes, is_enough, sending })
    }

    /// Sends the rest; all must have arrived as it was sent.
    pub fn finish(self) -> Result<()> {
        let received_bytes = self.size_bytes;
        let verdict = self.end()?;
        ensure!(verdict == (Verdict::Exact { received_bytes }), "{verdict:?}");
        Ok(())
    }

    /// Sends the rest. An error is one of the connection.
    pub fn end(self) -> Result<Verdict> {
        self.is_enough.store(true, Ordering::Relaxed);
        self.sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn send(mut stream: TcpStream, size_bytes: u64, is_enough: &AtomicBool) -> Result<Verdict> {
    let header = Header { direction: Direction::Upload, size_bytes, seed: 7 };
    let mut sender = Sender::new(header);
    while let Some((chunk, is_last)) = sender.next_chunk() {
        while is_last && !is_enough.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
        }
        for piece in chunk.chunks(PIECE) {
            stream.write_all(piece).context("send")?;
            if !is_enough.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
            }
        }
    }
    Verdict::read(&mut stream).context("the guest's answer")
}
