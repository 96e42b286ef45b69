//! The flows of a port and what their ends say, each packet a run of the real hooks.
//!
//! A full segment goes through the uplink's hook and `to_vm`; then the VM's ACK of it goes through
//! `from_vm`. Senders keep to the windows that they are shown, and echo a timestamp one round trip
//! after they were told it. Nothing is lost; all happens at some 0.7 Gb/s, a system call for each
//! hook.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vsnoop_bpf::{OpenHook, Port};
use vsnoop_packet::packet::Pool;
use vsnoop_testbed::net::Tap;

use crate::flows::{self, BEGIN, MSS, Timestamps, Told};

/// Segments that a sender has on its way when its window allows.
pub const IN_FLIGHT: usize = 4;

/// The interval of window probes while no flow may send.
const PROBE: Duration = Duration::from_millis(10);
const PROBES: u32 = 100;

const TCX_NEXT: i32 = -1;
const TCX_REDIRECT: i32 = 7;

/// Runs `from_vm` on a frame: its verdict, and the frame as it left it.
pub type FromVm<'a> = &'a mut dyn FnMut(Vec<u8>) -> Result<(i32, Vec<u8>)>;

/// The hooks and the port that packets pass.
pub struct Datapath<'a> {
    pub port: &'a Port,
    pub hooks: &'a Hooks,
    pub tap: &'a Tap,
}

/// Open, so that a packet costs one system call for each: what lasts long is idle by incast
/// control's clock.
pub struct Hooks {
    pub to_vm: OpenHook,
    pub from_vm: OpenHook,
    /// The uplink's.
    pub count: Option<OpenHook>,
}

struct Sender {
    next: u32,
    /// Right edge of the window that it was shown.
    edge: u32,
    /// The VM's timestamps, the oldest first.
    told: [u32; IN_FLIGHT],
    is_queued: bool,
}

/// Both ends of all flows of a port.
pub struct Conversation {
    senders: Vec<Sender>,
    /// Those that are allowed to send, if anybody asks for them: see
    /// [`Conversation::next_granted`].
    allowed: VecDeque<u32>,
    /// Receive window of the VM, bytes.
    window: u32,
    began: Instant,
    payload: Vec<u8>,
    pool: Pool,
    /// ACKs of the VM that show the sender less than the VM said.
    pub narrowed: u32,
    /// ACKs that were for another flow than the segment was of.
    pub grants: u32,
}

impl Conversation {
    /// Puts `count` flows on record; the VM has something to say to each. `shown`: what senders
    /// were shown in the handshake.
    pub fn begin(datapath: &Datapath, count: u32, window: u32, shown: u32) -> Result<Self> {
        let mut senders = Vec::with_capacity(count as usize);
        for n in 0..count {
            datapath.port.insert_flow(&flows::key(n), &flows::record(window, shown))?;
            let greeting = flows::ack(n, BEGIN, window, Timestamps(1, 1));
            datapath.hooks.from_vm.run(&greeting, 1)?;
            let told = [1; IN_FLIGHT];
            senders.push(Sender { next: BEGIN, edge: BEGIN + shown, told, is_queued: true });
        }
        Ok(Self {
            senders,
            allowed: (0..count).collect(),
            window,
            began: Instant::now(),
            payload: vec![0x55; MSS as usize],
            pool: Pool::default(),
            narrowed: 0,
            grants: 0,
        })
    }

    pub fn flows(&self) -> u32 {
        self.senders.len() as u32
    }

    /// Takes the flow that has waited longest since it was allowed to send. While none is, the VM
    /// sends a duplicate ACK now and then, as senders that probe closed windows would have it do.
    pub fn next_granted(&mut self, datapath: &Datapath) -> Result<u32> {
        for _ in 0..PROBES {
            if let Some(n) = self.allowed.pop_front() {
                self.senders[n as usize].is_queued = false;
                return Ok(n);
            }
            std::thread::sleep(PROBE);
            let ack = flows::ack(0, self.senders[0].next, self.window, self.told_by_vm());
            let (_, reply) = datapath.hooks.from_vm.run(&ack, 1)?;
            self.hear(0, &reply)?;
            self.look_at_all(datapath)?;
        }
        bail!("no sender has been allowed to send for {:?}", PROBES * PROBE)
    }

    /// One segment of flow `n`, and the VM's ACK of it.
    pub fn exchange(&mut self, datapath: &Datapath, n: u32, from_vm: FromVm) -> Result<()> {
        let Timestamps(now, _) = self.told_by_vm();
        let sender = &mut self.senders[n as usize];
        let echo = sender.told[0];
        let segment = flows::data(n, sender.next, &self.payload, Timestamps(now, echo));
        sender.next = sender.next.wrapping_add(MSS);
        let ack = flows::ack(n, sender.next, self.window, self.told_by_vm());

        if let Some(count) = &datapath.hooks.count {
            count.run(&segment, 1)?;
        }
        let (verdict, reply) = datapath.hooks.to_vm.run(&segment, 1)?;
        if verdict == TCX_REDIRECT {
            self.hear(n, &reply)?;
            let mut clone = self.pool.take();
            ensure!(
                datapath.tap.read(&mut clone)?,
                "a segment was acknowledged and not handed over"
            );
            self.pool.give_back(clone);
        } else {
            ensure!(verdict == TCX_NEXT, "a segment was neither passed nor acknowledged early");
        }
        let (verdict, reply) = from_vm(ack)?;
        if verdict == TCX_NEXT {
            let told = self.hear(n, &reply)?;
            let open = told.edge.wrapping_sub(self.senders[n as usize].next);
            self.narrowed += u32::from(told.flow == n && open < self.window);
        }
        Ok(())
    }

    /// The VM's timestamp clock; it echoes the sender's latest timestamp.
    fn told_by_vm(&self) -> Timestamps {
        let now = 2 + self.began.elapsed().as_millis() as u32;
        Timestamps(now, now)
    }

    /// Reads the windows of all flows from their records, since a helper that runs grants windows
    /// as well.
    pub fn look_at_all(&mut self, datapath: &Datapath) -> Result<()> {
        for (key, record) in datapath.port.flows()? {
            self.allow(flows::number(key.sender_addr), record.adv_edge.v);
        }
        Ok(())
    }

    /// Reads the window of flow `n` from its record. If its ACK became another flow's grant, its
    /// own ACK left as a clone, which this program does not see.
    pub fn look(&mut self, datapath: &Datapath, n: u32) -> Result<()> {
        let record = datapath.port.flow(&flows::key(n))?.context("a flow is not on record")?;
        self.allow(n, record.adv_edge.v);
        Ok(())
    }

    /// An ACK has reached a sender, because of a segment of flow `flow`.
    fn hear(&mut self, flow: u32, ack: &[u8]) -> Result<Told> {
        let told = flows::told(ack).context("an ACK cannot be read")?;
        self.grants += u32::from(told.flow != flow);
        let sender = self.senders.get_mut(told.flow as usize).context("an ACK of no flow")?;
        sender.told.rotate_left(1);
        sender.told[IN_FLIGHT - 1] = told.tsval;
        self.allow(told.flow, told.edge);
        Ok(told)
    }

    /// Flow `n` may send up to `edge`.
    fn allow(&mut self, n: u32, edge: u32) {
        let sender = &mut self.senders[n as usize];
        sender.edge = edge;
        if !sender.is_queued && sender.edge.wrapping_sub(sender.next) as i32 >= MSS as i32 {
            sender.is_queued = true;
            self.allowed.push_back(n);
        }
    }
}
