//! A VM whose TCP is the crate smoltcp: nobody here wrote it. IPv4 without timestamps.

use std::collections::VecDeque;
use std::net::IpAddr;

use fastrand::Rng;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use vsnoop_flow::testing::clock::MS;
use vsnoop_flow::testing::end::End;
use vsnoop_flow::testing::segment::content;

use super::{Guest, Progress};
use crate::frame::{Frame, Summed};
use crate::wire::{self, Path};

const MTU: usize = 1500;
const ETHERNET: usize = 14;
const SEND_BUFFER: usize = 65_536;

pub struct Smol {
    interface: Interface,
    sockets: SocketSet<'static>,
    wire: Wire,
    ends: Vec<Conn>,
}

/// One connection and its application.
#[derive(Debug)]
struct Conn {
    number: usize,
    path: Path,
    end: End,
    socket: SocketHandle,
    opened_ns: Option<u64>,
    read: u64,
    next_read_ns: u64,
    written: u64,
    got_fin: bool,
    closed: bool,
    is_done: bool,
    is_reset: bool,
}

/// IP packets that wait to be received, and that were sent.
#[derive(Debug, Default)]
struct Wire {
    arrived: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Arrived(Vec<u8>);

struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Sending<'_>)> {
        Some((Arrived(self.arrived.pop_front()?), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

fn instant(now: u64) -> Instant {
    Instant::from_micros((now / 1_000) as i64)
}

impl std::fmt::Debug for Smol {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let states = self.ends.iter().map(|end| self.socket(end).state());
        f.debug_struct("Smol")
            .field("ends", &self.ends)
            .field("states", &states.collect::<Vec<_>>())
            .finish()
    }
}

impl Smol {
    pub fn new(ends: &[(usize, Path, End)], seed: u64) -> Self {
        let mut wire = Wire::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        let mut sockets = SocketSet::new(Vec::new());
        for (_, path, _) in ends {
            let IpAddr::V4(address) = path.vm.0 else { panic!("this VM has IPv4 only") };
            interface.update_ip_addrs(|addresses| {
                let address = IpCidr::new(address.into(), 8);
                if !addresses.contains(&address) {
                    addresses.push(address).expect("room for an address");
                }
            });
        }
        let ends = ends.iter().map(|(number, path, end)| {
            let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
            let mut socket = Socket::new(buffer(end.rcvbuf as usize), buffer(SEND_BUFFER));
            socket.set_nagle_enabled(false);
            if !end.delayed_ack {
                socket.set_ack_delay(None);
            }
            socket.listen(path.vm.1).expect("a port");
            Conn {
                number: *number,
                path: path.clone(),
                end: end.clone(),
                socket: sockets.add(socket),
                opened_ns: None,
                read: 0,
                next_read_ns: 0,
                written: 0,
                got_fin: false,
                closed: false,
                is_done: false,
                is_reset: false,
            }
        });
        let ends = ends.collect();
        Self { interface, sockets, wire, ends }
    }

    fn socket(&self, end: &Conn) -> &Socket<'static> {
        self.sockets.get(end.socket)
    }

    fn run(&mut self, now: u64) {
        // What the applications do may be sent at once, and what arrives may wake them.
        for _ in 0..2 {
            self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
            for end in &mut self.ends {
                end.act(self.sockets.get_mut(end.socket), now);
            }
        }
        self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
        for end in &mut self.ends {
            end.look(self.sockets.get(end.socket));
        }
    }
}

impl Conn {
    fn act(&mut self, socket: &mut Socket, now: u64) {
        if matches!(socket.state(), State::Listen | State::SynReceived | State::SynSent)
            || (self.opened_ns.is_none() && socket.state() == State::Closed)
        {
            return;
        }
        let opened = *self.opened_ns.get_or_insert(now);
        if now >= self.next_read_ns && self.receive(socket) {
            self.next_read_ns = now + self.end.read_gap_ms * MS;
        }
        let gap = self.end.write_gap_ms.max(1) * MS;
        let portion = self.end.bytes.div_ceil(self.end.writes.max(1));
        let due = (portion * ((now - opened) / gap + 1)).min(self.end.bytes);
        while self.written < due && socket.can_send() {
            let len = (due - self.written).min(4096);
            let bytes: Vec<u8> = (0..len).map(|i| content(1, 1 + self.written + i)).collect();
            match socket.send_slice(&bytes) {
                Ok(0) | Err(_) => break,
                Ok(sent) => self.written += sent as u64,
            }
        }
        let may_close = !self.end.closes_last || self.got_fin;
        if self.written == self.end.bytes && may_close && !self.closed && socket.may_send() {
            socket.close();
            self.closed = true;
        }
    }

    /// Reads once; true: there was something.
    fn receive(&mut self, socket: &mut Socket) -> bool {
        let mut buffer = vec![0; self.end.read.min(65_536) as usize];
        match socket.recv_slice(&mut buffer) {
            Ok(0) => false,
            Ok(len) => {
                for (i, byte) in buffer[..len].iter().enumerate() {
                    let at = 1 + self.read + i as u64;
                    assert_eq!(*byte, content(0, at), "byte {at} of the stream is wrong");
                }
                self.read += len as u64;
                true
            }
            Err(RecvError::Finished) => {
                self.got_fin = true;
                false
            }
            Err(RecvError::InvalidState) => false,
        }
    }

    fn look(&mut self, socket: &Socket) {
        let is_over = matches!(socket.state(), State::Closed | State::TimeWait);
        if self.opened_ns.is_none() || !is_over || self.is_done || self.is_reset {
            return;
        }
        // The socket forgets how it ended; the last to happen is that its own FIN is acknowledged.
        let is_whole = self.closed && socket.send_queue() == 0;
        let fin_came = self.got_fin || socket.state() == State::TimeWait;
        if is_whole && fin_came && socket.recv_queue() == 0 {
            self.is_done = true;
            self.got_fin = true;
        } else if socket.state() == State::Closed {
            self.is_reset = true;
        }
    }
}

impl Guest for Smol {
    fn open(&mut self, _: usize, _: u64) {
        unreachable!("this VM only accepts connections");
    }

    fn abort(&mut self, c: usize) {
        let end = self.ends.iter_mut().find(|end| end.number == c).expect("a connection");
        self.sockets.get_mut::<Socket>(end.socket).abort();
        end.is_reset = !end.is_done;
    }

    fn input(&mut self, now: u64, frame: &Frame, _: &mut Rng) {
        let mut frame = frame.clone();
        frame.settle();
        self.wire.arrived.push_back(frame.bytes.split_off(ETHERNET));
        self.run(now);
    }

    fn timers(&mut self, now: u64, _: &mut Rng) {
        self.run(now);
    }

    fn next_timer(&mut self, now: u64) -> Option<u64> {
        let poll = self.interface.poll_at(instant(now), &self.sockets);
        let poll = poll.map(|at| at.total_micros().max(0) as u64 * 1_000);
        let application = self.ends.iter().filter_map(|end| {
            let socket = self.socket(end);
            let reads = socket.can_recv().then_some(end.next_read_ns);
            let gap = end.end.write_gap_ms.max(1) * MS;
            let writes = end.opened_ns.filter(|_| end.written < end.end.bytes && socket.can_send());
            let writes = writes.map(|opened| opened + ((now - opened) / gap + 1) * gap);
            reads.into_iter().chain(writes).min()
        });
        poll.into_iter().chain(application).min().map(|at| at.max(now + 1_000))
    }

    fn output(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for packet in self.wire.sent.drain(..) {
            let path = &self.ends[0].path;
            let mut bytes = Vec::with_capacity(ETHERNET + packet.len());
            bytes.extend(path.next_hop);
            bytes.extend(path.vm_mac);
            bytes.extend([8, 0]);
            bytes.extend(packet);
            let mut frame = Frame::new(bytes);
            frame.summed = Summed::Unnecessary;
            if wire::tcp_offset(&frame.bytes).is_some() {
                frames.push(frame);
            }
        }
        frames
    }

    fn progress(&self, c: usize) -> Progress {
        let end = self.ends.iter().find(|end| end.number == c).expect("a connection");
        let socket = self.socket(end);
        let begun = u64::from(end.opened_ns.is_some());
        let has_fin = matches!(
            socket.state(),
            State::CloseWait | State::Closing | State::LastAck | State::TimeWait
        );
        let fin = u64::from(end.got_fin || has_fin);
        Progress {
            accepted: begun + end.read + socket.recv_queue() as u64 + fin,
            is_done: end.is_done,
            is_reset: end.is_reset,
            is_open: begun == 1 && !end.is_done && !end.is_reset,
        }
    }

    fn copy(&self) -> Box<dyn Guest> {
        unreachable!("smoltcp's sockets cannot be copied")
    }
}
