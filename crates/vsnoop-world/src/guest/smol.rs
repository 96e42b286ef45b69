//! A VM whose TCP is the crate smoltcp, an independent implementation. IPv4 without timestamps.

use std::collections::VecDeque;
use std::net::IpAddr;

use fastrand::Rng;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use vsnoop_flow::testing::end::End;

use super::application::{Application, Received, Stream};
use super::tcp::{Guest, Progress};
use crate::frame::Frame;
use crate::layout;
use crate::wire::{self, Path};

const MTU: usize = 1500;
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
    socket: SocketHandle,
    application: Application,
    /// The peer has closed, read or not.
    fin_came: bool,
    is_done: bool,
    is_reset: bool,
}

/// Queues of IP packets: received, and sent.
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

fn has_begun(socket: &Socket) -> bool {
    !matches!(socket.state(), State::Closed | State::Listen | State::SynReceived | State::SynSent)
}

fn has_fin(socket: &Socket) -> bool {
    matches!(socket.state(), State::CloseWait | State::Closing | State::LastAck | State::TimeWait)
}

impl Stream for Socket<'_> {
    fn receive(&mut self, buffer: &mut [u8]) -> Received {
        match self.recv_slice(buffer) {
            Ok(0) | Err(RecvError::InvalidState) => Received::Nothing,
            Ok(len) => Received::Bytes(len),
            Err(RecvError::Finished) => Received::Fin,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        if self.can_send() { self.send_slice(bytes).unwrap_or(0) } else { 0 }
    }

    fn close(&mut self) -> bool {
        let may_send = self.may_send();
        if may_send {
            Socket::close(self);
        }
        may_send
    }

    fn has_news(&self) -> bool {
        self.can_recv() || has_fin(self)
    }

    fn has_room(&self) -> bool {
        self.can_send()
    }
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
                socket: sockets.add(socket),
                application: Application::new(end),
                fin_came: false,
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
        // Twice: the applications' output may be sent at once, and input may give them something to
        // do.
        for _ in 0..2 {
            self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
            for end in &mut self.ends {
                let socket: &mut Socket = self.sockets.get_mut(end.socket);
                if end.application.opened_ns.is_some() || has_begun(socket) {
                    end.application.act(socket, now);
                }
            }
        }
        self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
        for end in &mut self.ends {
            end.look(self.sockets.get(end.socket));
        }
    }
}

impl Conn {
    fn look(&mut self, socket: &Socket) {
        self.fin_came |= self.application.got_fin || has_fin(socket);
        let is_over = matches!(socket.state(), State::Closed | State::TimeWait);
        if self.application.opened_ns.is_none() || !is_over || self.is_done || self.is_reset {
            return;
        }
        // The socket does not record how it ended. After a regular end all its data and its FIN are
        // acknowledged.
        let is_whole = self.application.closed && socket.send_queue() == 0;
        if is_whole && self.fin_came {
            // What is unread can still be read.
            self.is_done = socket.recv_queue() == 0;
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
        let packet = layout::packet(&frame.bytes).expect("a frame of a connection");
        self.wire.arrived.push_back(packet.to_vec());
        self.run(now);
    }

    fn timers(&mut self, now: u64, _: &mut Rng) {
        self.run(now);
    }

    fn next_timer(&mut self, now: u64) -> Option<u64> {
        let poll = self.interface.poll_at(instant(now), &self.sockets);
        let poll = poll.map(|at| at.total_micros().max(0) as u64 * 1_000);
        let application = self.ends.iter();
        let application =
            application.filter_map(|end| end.application.next_act(self.socket(end), now));
        poll.into_iter().chain(application).min().map(|at| at.max(now + 1_000))
    }

    fn output(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        for packet in self.wire.sent.drain(..) {
            let frame = wire::framed(&packet, &self.ends[0].path);
            if layout::tcp_offset(&frame.bytes).is_some() {
                frames.push(frame);
            }
        }
        frames
    }

    fn progress(&self, c: usize) -> Progress {
        let end = self.ends.iter().find(|end| end.number == c).expect("a connection");
        let socket = self.socket(end);
        let begun = u64::from(end.application.opened_ns.is_some());
        let fin = u64::from(end.fin_came || has_fin(socket));
        Progress {
            accepted: begun + end.application.read + socket.recv_queue() as u64 + fin,
            is_done: end.is_done,
            is_reset: end.is_reset,
            is_open: begun == 1 && !end.is_done && !end.is_reset,
        }
    }

    fn copy(&self) -> Box<dyn Guest> {
        unreachable!("smoltcp's sockets cannot be copied")
    }
}
