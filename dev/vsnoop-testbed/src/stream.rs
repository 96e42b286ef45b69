//! One TCP connection whose every byte is verified, in both directions at once.
//!
//! Each end writes its seeded pattern, reads the other's, and compares byte by byte. When it has
//! verified all it writes one byte more, the verdict, and closes its direction; so an end is
//! complete only if the other has confirmed everything. What a stream may come to is
//! [`StreamEnd::Complete`] or [`StreamEnd::Reset`]; a wrong byte, an early end of file, or no
//! progress for a minute is an error, whichever side sees it.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use socket2::Socket;

use super::interrupt::restarted;
pub use super::socket::{ConnectionInfo, SocketOptions};
use super::socket::{connect, info, listen};
use super::topology::{Family, Side, Topology};

/// Sent after the pattern by an end that has verified all bytes that it read.
const VERDICT: u8 = 0x5a;
const CHUNK_BYTES: usize = 64 * 1024;
/// Longest wait for a paused stream.
const PATIENCE: Duration = Duration::from_secs(120);

/// Options of a stream.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    pub opener: Side,
    pub family: Family,
    /// Bytes from the client to the VM.
    pub to_vm_bytes: u64,
    pub from_vm_bytes: u64,
    pub seed: u64,
    /// Size of a write in bytes.
    pub write_bytes: usize,
    /// After how many bytes one byte is sent as urgent data.
    pub urgent_every_bytes: Option<u64>,
    /// After how many bytes each writer stops until [`Stream::step`] or [`Stream::go_on`], and
    /// again after as many.
    pub pause_every_bytes: Option<u64>,
    /// How long the VM's application sleeps after each read, so that its window closes.
    pub vm_dawdles: Duration,
    /// After how many bytes it stops reading until [`Stream::go_on`].
    pub vm_stops_after_bytes: Option<u64>,
    pub socket: SocketOptions,
}

impl Default for StreamPlan {
    fn default() -> Self {
        Self {
            opener: Side::Client,
            family: Family::V4,
            to_vm_bytes: 1_000_000,
            from_vm_bytes: 1_000_000,
            seed: 1,
            write_bytes: CHUNK_BYTES,
            urgent_every_bytes: None,
            pause_every_bytes: None,
            vm_dawdles: Duration::ZERO,
            vm_stops_after_bytes: None,
            socket: SocketOptions::default(),
        }
    }
}

/// Result of one end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// All bytes arrived, were correct, and the other end confirmed them.
    Complete(ConnectionInfo),
    /// The connection was reset, or its TCP gave up.
    Reset,
}

impl StreamEnd {
    /// The kernel's state of a complete connection.
    pub fn info(self) -> Result<ConnectionInfo> {
        match self {
            Self::Complete(info) => Ok(info),
            Self::Reset => bail!("the connection was reset"),
        }
    }
}

/// Both ends, when they have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub client: StreamEnd,
    pub vm: StreamEnd,
}

impl Outcome {
    pub fn is_complete(&self) -> bool {
        matches!((self.client, self.vm), (StreamEnd::Complete(_), StreamEnd::Complete(_)))
    }
}

/// A stream under way.
#[derive(Debug)]
pub struct Stream {
    ends: [(Side, JoinHandle<Result<StreamEnd>>); 2],
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    gate: Mutex<Gate>,
    changed: Condvar,
    /// Bytes verified at the client and at the VM.
    verified: [AtomicU64; 2],
}

/// A gate at which writers wait. It opens once for each step, or permanently.
#[derive(Debug, Default)]
struct Gate {
    open: bool,
    steps: u64,
    /// How often the client's writer and the VM's have come to the gate; `NO_MORE` of one that will
    /// not come again.
    arrivals: [u64; 2],
}

const NO_MORE: u64 = u64::MAX;

impl Stream {
    /// Opens the connection and starts both ends.
    pub fn start(topology: &Topology, plan: &StreamPlan) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let acceptor = match plan.opener {
            Side::Client => Side::Vm,
            Side::Vm => Side::Client,
        };
        let (listener, at) = listen(topology, acceptor, plan.family, plan.socket)?;
        // The connection must exist when this returns, or a fault set next would hit the handshake;
        // but with fast open it exists only when something is written.
        let opened = connect(topology, plan.opener, at, plan.socket)?;
        let accepting = spawn(acceptor, plan, &shared, move || {
            let (socket, _) = restarted(|| listener.accept()).context("accepting a connection")?;
            Ok(socket)
        })?;
        let opening = spawn(plan.opener, plan, &shared, move || Ok(opened))?;
        Ok(Self { ends: [(acceptor, accepting), (plan.opener, opening)], shared })
    }

    /// Runs a stream to its end.
    pub fn run(topology: &Topology, plan: &StreamPlan) -> Result<Outcome> {
        Self::start(topology, plan)?.finish()
    }

    /// Waits until both writers have come to their next pause, or have ended before.
    pub fn wait_paused(&self) -> Result<()> {
        let gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = |gate: &mut Gate| gate.arrivals.iter().any(|count| *count <= gate.steps);
        let (gate, waited) = self
            .shared
            .changed
            .wait_timeout_while(gate, PATIENCE, under_way)
            .unwrap_or_else(PoisonError::into_inner);
        drop(gate);
        ensure!(!waited.timed_out(), "a writer hangs before the pause");
        Ok(())
    }

    /// Lets paused writers continue to their next pause.
    pub fn step(&self) {
        self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner).steps += 1;
        self.shared.changed.notify_all();
    }

    /// Lets paused writers, and a VM that stopped reading, continue to their end.
    pub fn go_on(&self) {
        self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner).open = true;
        self.shared.changed.notify_all();
    }

    /// Bytes that `side` has verified so far.
    pub fn verified_bytes(&self, side: Side) -> u64 {
        self.shared.verified[side as usize].load(Ordering::Relaxed)
    }

    /// Waits for both ends.
    pub fn finish(self) -> Result<Outcome> {
        self.go_on();
        let mut outcome = Outcome { client: StreamEnd::Reset, vm: StreamEnd::Reset };
        let mut errors = Vec::new();
        for (side, thread) in self.ends {
            let end = thread.join().map_err(|_| anyhow!("the thread of {side:?} panicked"))?;
            match end {
                Ok(end) => match side {
                    Side::Client => outcome.client = end,
                    Side::Vm => outcome.vm = end,
                },
                Err(error) => errors.push(format!("{side:?}: {error:#}")),
            }
        }
        ensure!(errors.is_empty(), "{}", errors.join("; "));
        Ok(outcome)
    }
}

fn spawn(
    side: Side,
    plan: &StreamPlan,
    shared: &Arc<Shared>,
    socket: impl FnOnce() -> Result<Socket> + Send + 'static,
) -> Result<JoinHandle<Result<StreamEnd>>> {
    let (plan, shared) = (plan.clone(), shared.clone());
    std::thread::Builder::new()
        .name(format!("stream {side:?}"))
        .spawn(move || {
            let end = socket().and_then(|socket| converse(&socket, side, &plan, &shared));
            // A writer that has ended, or was never started, is not waited for.
            shared.arrive(side, NO_MORE);
            end
        })
        .context("starting a stream's thread")
}

impl Shared {
    fn arrive(&self, side: Side, count: u64) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        gate.arrivals[side as usize] = count;
        self.changed.notify_all();
    }

    /// Waits until the gate is open permanently.
    fn until_open(&self) {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(gate, |gate| !gate.open));
    }

    /// Waits at the gate, for the `count`th time.
    fn pass_gate(&self, side: Side, count: u64) {
        self.arrive(side, count);
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(gate, |gate| !gate.open && gate.steps < count));
    }
}

/// Result of one direction at one end.
enum Half {
    Done,
    Reset,
}

fn converse(socket: &Socket, side: Side, plan: &StreamPlan, shared: &Shared) -> Result<StreamEnd> {
    let (out_bytes, in_bytes) = match side {
        Side::Client => (plan.to_vm_bytes, plan.from_vm_bytes),
        Side::Vm => (plan.from_vm_bytes, plan.to_vm_bytes),
    };
    let seed_of = |side: Side| plan.seed.wrapping_mul(2).wrapping_add(side as u64);
    let other = match side {
        Side::Client => Side::Vm,
        Side::Vm => Side::Client,
    };
    let (verdict, verified) = mpsc::channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let result = write(socket, seed_of(side), out_bytes, side, plan, shared, &verified);
            if result.is_err() {
                // The reader must not wait for bytes that the other end will never send.
                let _ = socket.shutdown(Shutdown::Both);
            }
            result
        });
        let read = read(socket, seed_of(other), in_bytes, side, plan, shared, verdict);
        if read.is_err() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        let written = writer.join().map_err(|_| anyhow!("a writer panicked"))?;
        match (read?, written?) {
            (Half::Done, Half::Done) => Ok(StreamEnd::Complete(info(socket)?)),
            _ => Ok(StreamEnd::Reset),
        }
    })
}

fn write(
    socket: &Socket,
    seed: u64,
    bytes: u64,
    side: Side,
    plan: &StreamPlan,
    shared: &Shared,
    verified: &mpsc::Receiver<()>,
) -> Result<Half> {
    let mut buffer = vec![0; plan.write_bytes];
    let mut offset = 0;
    let mut pauses = 0;
    while offset < bytes {
        let mut length = (buffer.len() as u64).min(bytes - offset);
        if let Some(every) = plan.pause_every_bytes {
            if offset > pauses * every && offset % every == 0 {
                pauses += 1;
                shared.pass_gate(side, pauses);
            }
            length = length.min(every - offset % every);
        }
        let urgent = plan.urgent_every_bytes.is_some_and(|every| {
            length = length.min(every - offset % every);
            let urgent = offset % every == 0;
            if urgent {
                length = 1;
            }
            urgent
        });
        let chunk = &mut buffer[..length as usize];
        fill(seed, offset, chunk);
        let sent = restarted(|| {
            if urgent { socket.send_out_of_band(chunk) } else { (&*socket).write(chunk) }
        });
        match sent {
            Ok(sent) => offset += sent as u64,
            Err(error) => {
                shared.arrive(side, NO_MORE);
                return ended(error).with_context(|| format!("writing at byte {offset}"));
            }
        }
    }
    shared.arrive(side, NO_MORE);
    // The reader drops its end without a word when the connection was reset or it found a fault.
    if verified.recv().is_err() {
        return Ok(Half::Reset);
    }
    match (&*socket).write_all(&[VERDICT]).and_then(|()| socket.shutdown(Shutdown::Write)) {
        Ok(()) => Ok(Half::Done),
        Err(error) => ended(error).context("writing the verdict"),
    }
}

fn read(
    socket: &Socket,
    seed: u64,
    bytes: u64,
    side: Side,
    plan: &StreamPlan,
    shared: &Shared,
    verdict: mpsc::Sender<()>,
) -> Result<Half> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut expected = vec![0; CHUNK_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let length = (buffer.len() as u64).min(bytes - offset) as usize;
        let received = match restarted(|| (&*socket).read(&mut buffer[..length])) {
            Ok(0) => return early_end(socket, format!("after {offset} of {bytes} bytes")),
            Ok(received) => received,
            Err(error) => {
                return ended(error).with_context(|| format!("reading at byte {offset}"));
            }
        };
        fill(seed, offset, &mut expected[..received]);
        if buffer[..received] != expected[..received] {
            let wrong = buffer.iter().zip(&expected).position(|(got, wanted)| got != wanted);
            bail!("wrong byte at {}", offset + wrong.unwrap_or(0) as u64);
        }
        offset += received as u64;
        shared.verified[side as usize].store(offset, Ordering::Relaxed);
        if side == Side::Vm && !plan.vm_dawdles.is_zero() {
            std::thread::sleep(plan.vm_dawdles);
        }
        if side == Side::Vm && plan.vm_stops_after_bytes.is_some_and(|most| offset >= most) {
            shared.until_open();
        }
    }
    // The writer may have ended with a reset; then no end listens.
    let _ = verdict.send(());
    let mut trailer = Vec::new();
    match (&*socket).read_to_end(&mut trailer) {
        Ok(_) => {}
        Err(error) => return ended(error).context("reading the verdict"),
    }
    if trailer.is_empty() {
        return early_end(socket, format!("after all {bytes} bytes, without the verdict"));
    }
    ensure!(trailer == [VERDICT], "after {bytes} bytes came {trailer:?}, not the verdict");
    Ok(Half::Done)
}

/// The kernel reports a reset once per socket, perhaps to the writer: then its reader comes to the
/// end of file too, but the connection is closed, not half-closed by the other end.
fn early_end(socket: &Socket, place: String) -> Result<Half> {
    if info(socket)?.closed {
        Ok(Half::Reset)
    } else {
        bail!("end of file {place}");
    }
}

/// Tells the end of a connection from an error.
fn ended(error: io::Error) -> Result<Half> {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut, WouldBlock,
    };
    match error.kind() {
        // ENOTCONN: a reset came between the last write and the shutdown.
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut => {
            Ok(Half::Reset)
        }
        WouldBlock => bail!("no progress for a minute: the connection hangs"),
        _ => Err(error.into()),
    }
}

/// The bytes from `offset` on of the pattern of `seed`: any 8 of them tell where they belong.
fn fill(seed: u64, offset: u64, bytes: &mut [u8]) {
    let mut position = offset;
    let mut rest = bytes;
    while !rest.is_empty() {
        let word = mix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (position / 8)).to_le_bytes();
        let skip = (position % 8) as usize;
        let count = (8 - skip).min(rest.len());
        let (now, later) = rest.split_at_mut(count);
        now.copy_from_slice(&word[skip..skip + count]);
        position += count as u64;
        rest = later;
    }
}

/// The finaliser of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_does_not_depend_on_how_it_is_cut() {
        let mut whole = vec![0; 1000];
        fill(9, 0, &mut whole);
        for (begin, end) in [(0, 1), (1, 8), (7, 9), (3, 999), (8, 16)] {
            let mut part = vec![0; end - begin];
            fill(9, begin as u64, &mut part);
            assert_eq!(part, whole[begin..end]);
        }
    }

    #[test]
    fn neighbours_and_seeds_differ() {
        let mut whole = vec![0; 80_000];
        fill(9, 0, &mut whole);
        assert_ne!(whole[..1448], whole[1448..2896]);
        let mut other = vec![0; 1000];
        fill(10, 0, &mut other);
        assert_ne!(other, whole[..1000]);
    }
}
