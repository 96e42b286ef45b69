//! An attached port, one connection of the client to its VM, and a VM that stands still when a test
//! says so: what is acknowledged then, vsnoop has acknowledged.

use anyhow::{Context, Result, bail, ensure};
use vsnoop_testbed::net::{Netns, check};
use vsnoop_testbed::relay::Freeze;
use vsnoop_testbed::topology::{Family, Topology, TopologyOptions};
use vsnoop_tests::attached::Attached;
use vsnoop_tests::case::Case;
use vsnoop_tests::pair::Pair;

pub const FAMILIES: [(&str, Family); 2] = [("ipv4", Family::V4), ("ipv6", Family::V6)];
/// Sent while all of it passes.
pub const UPLOAD_BYTES: u64 = 50 * BLOCKED_BYTES;
/// Sent while nothing is acknowledged: less than the sender's buffer.
pub const BLOCKED_BYTES: u64 = 20_000;
/// An upload that the host leaves to the VM begins anew, this many times at most.
const ATTEMPTS: usize = 20;
/// Modes of a connection that the host leaves to the VM for a while: it lacks memory for a copy, or
/// an engine, or a switch has changed the order of segments (Open vSwitch does while it learns a
/// flow).
const LEFT_FOR_A_WHILE: [&str; 2] = ["no-buf", "unexpected-seq"];
/// Its mode once the VM seems to be late for another reason than its CPU. That lasts, and happens
/// where all this runs in a machine that itself waits for a CPU, which it cannot see.
const LEFT_FOR_GOOD: &str = "bypass";
/// Holes at the hook are the exception: there are this many at most.
const HOLES: u64 = 5;
/// A test waits for this many drops before it says that nothing is acknowledged.
pub const DROPS: u64 = 3;

/// The network, whose VM runs.
pub fn network(change: impl FnOnce(&mut TopologyOptions)) -> Result<Topology> {
    let mut case = Case { freezes: &[Freeze::Never], ..Case::default() };
    change(&mut case.topology);
    case.build()
}

pub struct Scene<'a> {
    pub topology: &'a Topology,
    pub attached: Attached<'a>,
    pub pair: Pair,
    family: Family,
}

impl<'a> Scene<'a> {
    /// Attaches, and opens the connection, over which both ends have sent something.
    pub fn new(topology: &'a Topology, family: Family) -> Result<Self> {
        // A VM that runs must not be left to answer by itself before it stands still.
        let attached = Attached::with(topology, None, &["--no-passive"])?;
        attached.until_it_holds(topology)?;
        let pair = connect(topology, family)?;
        Ok(Self { topology, attached, pair, family })
    }

    pub fn stop_the_vm(&self) {
        self.topology.guest().set_freeze(Freeze::Now);
    }

    pub fn let_the_vm_run(&self) {
        self.topology.guest().set_freeze(Freeze::Never);
    }

    /// Uploads to a VM that stands still: all is acknowledged for it, and arrives when it runs.
    pub fn upload(&mut self) -> Result<()> {
        self.upload_to_the_host()?;
        self.let_the_vm_run();
        self.pair.vm.receive(UPLOAD_BYTES).with_context(|| self.attached.describe())
    }

    /// Uploads as [`Self::upload`] does, but leaves the VM standing still.
    pub fn upload_to_the_host(&mut self) -> Result<()> {
        let before = self.attached.counter("early_acks")?;
        for _ in 0..ATTEMPTS {
            self.stop_the_vm();
            let mut sent = 0;
            while sent < UPLOAD_BYTES {
                self.pair.client.send(BLOCKED_BYTES)?;
                sent += BLOCKED_BYTES;
                if !self.is_acknowledged()? {
                    break;
                }
            }
            if sent == UPLOAD_BYTES && self.is_acknowledged()? {
                let early = self.attached.counter("early_acks")? - before;
                ensure!(early > 0, "not acknowledged by vsnoop\n{}", self.attached.describe());
                return Ok(());
            }
            self.let_the_vm_run();
            self.pair.vm.receive(sent).with_context(|| self.attached.describe())?;
            self.attached.until_memory_is_free()?;
            if self.mode()? == LEFT_FOR_GOOD {
                self.pair = connect(self.topology, self.family)?;
            }
        }
        bail!("{ATTEMPTS} times an upload was left to the VM\n{}", self.attached.describe())
    }

    /// Waits until all that was sent is acknowledged, though the VM stands still. `false`: the
    /// connection is left to the VM ([`LEFT_FOR_A_WHILE`], [`LEFT_FOR_GOOD`]).
    pub fn is_acknowledged(&self) -> Result<bool> {
        let mut acknowledged = false;
        self.attached.wait_until("all is acknowledged for the VM", || {
            acknowledged = self.pair.client.unacknowledged_bytes()? == 0;
            Ok(acknowledged || self.is_left_to_the_vm()?)
        })?;
        Ok(acknowledged)
    }

    fn is_left_to_the_vm(&self) -> Result<bool> {
        let mode = self.mode()?;
        Ok(mode == LEFT_FOR_GOOD || LEFT_FOR_A_WHILE.contains(&mode.as_str()))
    }

    fn mode(&self) -> Result<String> {
        self.attached.mode_of(self.pair.client.socket.local_addr()?.port())
    }

    /// The VM sends, too.
    pub fn download(&mut self) -> Result<()> {
        self.pair.vm.send(BLOCKED_BYTES)?;
        self.pair.client.receive(BLOCKED_BYTES).with_context(|| self.attached.describe())
    }

    /// Sends bytes that something drops, and waits until it has done so several times: none of them
    /// is acknowledged.
    pub fn send_what_is_dropped(&mut self, mut drops: impl FnMut() -> Result<u64>) -> Result<()> {
        let before = drops()?;
        self.pair.client.send(BLOCKED_BYTES)?;
        self.attached.wait_until("the segments were dropped several times", || {
            Ok(drops()? >= before + DROPS)
        })?;
        let left = self.pair.client.unacknowledged_bytes()?;
        ensure!(
            left == BLOCKED_BYTES,
            "{left} of {BLOCKED_BYTES} dropped bytes are not acknowledged\n{}",
            self.attached.describe()
        );
        Ok(())
    }

    /// Nothing is held any more, no connection was reset, and the port is as before.
    pub fn detach(mut self) -> Result<()> {
        self.attached.until_nothing_is_outstanding()?;
        self.attached.ensure_no_reset()?;
        let holes = self.attached.counter("offline_unexpected_seq")?;
        ensure!(holes <= HOLES, "{holes} holes\n{}", self.attached.describe());
        self.attached.detach()
    }
}

/// Opens a connection, over which both ends send something.
fn connect(topology: &Topology, family: Family) -> Result<Pair> {
    const BYTES: u64 = 1000;
    let mut pair = Pair::connect(topology, family)?;
    pair.client.send(BYTES)?;
    pair.vm.receive(BYTES)?;
    pair.vm.send(BYTES)?;
    pair.client.receive(BYTES)?;
    Ok(pair)
}

/// Runs a program with these words in the namespace.
pub fn run(netns: &Netns, program: &str, arguments: &str) -> Result<String> {
    check(netns.command(program).args(arguments.split_whitespace()))
}
