//! A host that follows the [rule](super::rule), in user space: it moves frames between two taps and
//! is the only one that sees them.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vsnoop_frame::packet::{Packet, Pool};
use vsnoop_testbed::net::Tap;

use super::packet::{self, End};
use super::rule::{Connection, FromVm, Window};

/// How often the thread looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);
/// Frames of one direction before the other has its turn.
const BATCH: usize = 64;

/// It runs until it is dropped.
#[derive(Debug)]
pub struct Host {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    flows: Mutex<Flows>,
}

#[derive(Debug, Default)]
struct Flows {
    /// Of connections that begin now; `None`: they pass untouched.
    window: Option<Window>,
    /// By the ends of client and machine.
    connections: HashMap<(End, End), Connection>,
}

impl Shared {
    fn flows(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Host {
    /// Between the client's tap and that of the bridge; everything passes untouched at first.
    pub fn start(client: Tap, bridge: Tap) -> Result<Self> {
        let shared = Arc::new(Shared { stop: AtomicBool::new(false), flows: Mutex::default() });
        let mut worker = Worker { client, bridge, shared: shared.clone(), pool: Pool::default() };
        let thread = std::thread::Builder::new()
            .name("paper's host".into())
            .spawn(move || {
                if let Err(error) = worker.work() {
                    tracing::warn!("the host between two taps ended: {error:#}");
                }
            })
            .context("start a thread")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Says which window connections have that begin from now on, if the host is to acknowledge for
    /// them, and forgets the others: they pass untouched from now on.
    pub fn begin(&self, window: Option<Window>) {
        *self.shared.flows() = Flows { window, connections: HashMap::new() };
    }

    /// What the sender was told that this machine has, while the machine has not said so.
    pub fn outstanding_bytes(&self, machine: [u8; 4]) -> u64 {
        let flows = self.shared.flows();
        let of_machine =
            flows.connections.iter().filter(|((_, (address, _)), _)| *address == machine);
        of_machine.map(|(_, connection)| u64::from(connection.outstanding_bytes())).sum()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread of a host panicked");
        }
    }
}

struct Worker {
    client: Tap,
    bridge: Tap,
    shared: Arc<Shared>,
    pool: Pool,
}

impl Worker {
    fn work(&mut self) -> Result<()> {
        while !self.shared.stop.load(Ordering::Acquire) {
            let mut fds =
                [&self.client, &self.bridge].map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN));
            let timeout = PollTimeout::try_from(TICK).context("the time between two looks")?;
            match poll(&mut fds, timeout) {
                Ok(_) | Err(nix::Error::EINTR) => (),
                Err(error) => return Err(error).context("wait for two taps"),
            }
            let mut packet = self.pool.take();
            for _ in 0..BATCH {
                if !self.client.read(&mut packet).context("read the client's tap")? {
                    break;
                }
                self.towards_vm(&packet);
            }
            for _ in 0..BATCH {
                if !self.bridge.read(&mut packet).context("read the bridge's tap")? {
                    break;
                }
                self.out_of_vm(&mut packet);
            }
            self.pool.give_back(packet);
        }
        Ok(())
    }

    fn towards_vm(&mut self, packet: &Packet) {
        write(&self.bridge, packet);
        let Some((client, machine, segment)) = packet::parse(packet.frame()) else { return };
        let mut flows = self.shared.flows();
        let Some(connection) = flows.connections.get_mut(&(client, machine)) else { return };
        if let Some(ack) = connection.towards_vm(&segment) {
            let mut answer = self.pool.take();
            packet::write_ack(&ack, packet.frame(), &mut answer);
            write(&self.client, &answer);
            self.pool.give_back(answer);
        }
    }

    fn out_of_vm(&mut self, packet: &mut Packet) {
        if let Some((machine, client, segment)) = packet::parse(packet.frame()) {
            let mut flows = self.shared.flows();
            let key = (client, machine);
            if let Some(window) = flows.window.filter(|_| segment.syn) {
                // Its SYN-ACK; sent again, it begins anew, for no data has come before it arrived.
                flows.connections.insert(key, Connection::begin(&segment, window));
            }
            let connection = flows.connections.get_mut(&key);
            match connection.map(|connection| connection.out_of_vm(&segment)) {
                Some(FromVm::Drop) => return,
                Some(FromVm::Rewrite { ack, window }) => packet::rewrite(packet, ack, window),
                Some(FromVm::Pass) | None => (),
            }
        }
        write(&self.client, packet);
    }
}

/// A frame that a tap does not take is lost, as on any network.
fn write(tap: &Tap, packet: &Packet) {
    if !matches!(tap.write(packet), Ok(true)) {
        tracing::debug!("{} did not take a frame", tap.name());
    }
}
