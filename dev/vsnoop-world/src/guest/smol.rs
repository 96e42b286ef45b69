//! A VM whose TCP is the crate smoltcp, an independent implementation. IPv4 without timestamps.
//!
//! Two bugs of smoltcp 0.14 end connections, independently of the host:
//!
//! - Its retransmission timer, expiring while the peer's window is zero, leaves no timer at all,
//!   and a keep-alive of the peer does not update the window. (A TCP has to probe: RFC 9293,
//!   section 3.8.6.1.) A late duplicate of an ACK with window zero is enough. `Smol::wake` repeats
//!   that ACK, for which smoltcp starts its persist timer.
//! - It cuts a segment at the end of its window, and accepts the FIN behind the bytes that it cut
//!   off (`Progress::early_fin`).

use std::collections::VecDeque;
use std::net::IpAddr;

use fastrand::Rng;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use vsnoop_flow::testing::end::EndSettings;
use vsnoop_flow::testing::segment::{ACK, FIN, RST, SYN, Seg, position};

use super::application::{Application, Received, Stream};
use super::tcp::{Guest, Progress};
use crate::frame::{Frame, Summed};
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
    /// A socket that comes before it in the set, and listens on the same port once it has sent a
    /// SYN-ACK.
    other: SocketHandle,
    has_other: bool,
    application: Application,
    /// The peer has closed, read or not.
    fin_came: bool,
    is_done: bool,
    is_reset: bool,
    /// The sender's initial sequence number.
    irs: u32,
    early_fin: Option<u64>,
    /// The sender's latest ACK with window zero.
    closing_ack: Option<Seg>,
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

/// A socket for this end of a connection, which is closed.
fn socket_of(end: &EndSettings) -> Socket<'static> {
    let buffer = |len: usize| SocketBuffer::new(vec![0; len]);
    let mut socket = Socket::new(buffer(end.rcvbuf as usize), buffer(SEND_BUFFER));
    socket.set_nagle_enabled(false);
    if !end.delayed_ack {
        socket.set_ack_delay(None);
    }
    socket
}

impl Smol {
    pub fn new(ends: &[(usize, Path, EndSettings)], seed: u64) -> Self {
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
            let other = sockets.add(socket_of(end));
            let mut socket = socket_of(end);
            socket.listen(path.vm.1).expect("a port");
            Conn {
                number: *number,
                path: path.clone(),
                socket: sockets.add(socket),
                other,
                has_other: false,
                application: Application::new(end),
                fin_came: false,
                is_done: false,
                is_reset: false,
                irs: 0,
                early_fin: None,
                closing_ack: None,
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
                end.choose_socket(&mut self.sockets);
                let socket: &mut Socket = self.sockets.get_mut(end.socket);
                if end.application.opened_ns.is_some() || has_begun(socket) {
                    end.application.act(socket, now);
                }
            }
        }
        self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
        self.wake(now);
        for end in &mut self.ends {
            end.look(self.sockets.get(end.socket));
        }
    }

    /// Makes sockets probe a closed window, if they have data to send and no timer is left.
    fn wake(&mut self, now: u64) {
        if self.interface.poll_at(instant(now), &self.sockets).is_some() {
            return;
        }
        for end in &mut self.ends {
            let socket: &Socket = self.sockets.get(end.socket);
            if socket.send_queue() > 0
                && let Some(ack) = end.closing_ack.take()
            {
                let frame = wire::encode(&ack, &end.path, true, Summed::None);
                self.wire.arrived.extend(layout::packet(&frame.bytes).map(<[u8]>::to_vec));
            }
        }
        self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
    }

    /// The connection of a frame from the host, and its segment if the checksum is right.
    fn arriving(&self, frame: &Frame) -> Option<(usize, Seg)> {
        let ports = layout::ports(&frame.bytes)?;
        let is_its = |end: &Conn| (end.path.sender.1, end.path.vm.1) == ports;
        Some((self.ends.iter().position(is_its)?, wire::decode(frame)?))
    }
}

impl Conn {
    /// The other socket listens once the first has sent its SYN-ACK, and may get the connection.
    fn choose_socket(&mut self, sockets: &mut SocketSet) {
        if !self.has_other {
            return;
        }
        let has_answered = sockets.get::<Socket>(self.socket).state() == State::SynReceived;
        let other: &mut Socket = sockets.get_mut(self.other);
        if has_begun(other) {
            std::mem::swap(&mut self.socket, &mut self.other);
            self.has_other = false;
        } else if has_answered && other.state() == State::Closed {
            other.listen(self.path.vm.1).expect("a port");
        }
    }

    /// Records the segment that the VM's TCP is about to process.
    fn expect(&mut self, s: &Seg, socket: &Socket) {
        if s.has(SYN) && socket.state() == State::Listen {
            self.irs = s.seq;
        }
        let is_newest = |ack: &Seg| s.ack.wrapping_sub(ack.ack) as i32 >= 0;
        if s.has(ACK)
            && !s.has(SYN | RST)
            && s.window == 0
            && self.closing_ack.as_ref().is_none_or(is_newest)
        {
            let end = s.seq.wrapping_add(s.len() + u32::from(s.has(FIN)));
            self.closing_ack = Some(Seg::bare(end, s.ack, ACK));
        }
    }

    /// Notes whether the FIN of this segment, which the VM's TCP has just taken, came too early.
    fn check_fin(&mut self, s: &Seg, socket: &Socket) {
        let has = 1 + self.application.read + socket.recv_queue() as u64;
        let fin_at = position(s.seq.wrapping_add(s.len()), self.irs, has);
        if s.has(FIN) && fin_at > has as i64 {
            self.early_fin = Some(fin_at as u64);
        }
    }

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
            // The application can still read the bytes in the receive buffer.
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
        let arriving = self.arriving(frame);
        let mut had_fin = false;
        if let Some((c, s)) = &arriving {
            let end = &mut self.ends[*c];
            had_fin = end.fin_came;
            end.expect(s, self.sockets.get(end.socket));
        }
        let mut frame = frame.clone();
        frame.settle();
        let packet = layout::packet(&frame.bytes).expect("a frame of a connection");
        self.wire.arrived.push_back(packet.to_vec());
        self.run(now);
        if let Some((c, s)) = &arriving
            && let end = &mut self.ends[*c]
            && end.fin_came
            && !had_fin
        {
            end.check_fin(s, self.sockets.get(end.socket));
        }
    }

    fn timers(&mut self, now: u64, _: &mut Rng) {
        self.run(now);
    }

    fn listen_twice(&mut self, c: usize) {
        let end = self.ends.iter_mut().find(|end| end.number == c).expect("a connection");
        end.has_other = true;
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
            early_fin: end.early_fin,
        }
    }

    fn copy(&self) -> Box<dyn Guest> {
        unreachable!("smoltcp's sockets cannot be copied")
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_flow::testing::clock::{MS, START};
    use vsnoop_flow::testing::segment::content;

    use super::*;
    use crate::cases;

    const IRS: u32 = 1_000;
    const WINDOW: u64 = 3_000;

    /// A VM with one connection, whose application writes `bytes`, and the sender's side of it.
    struct Case {
        vm: Smol,
        now: u64,
        path: Path,
        rng: Rng,
        /// The VM's initial sequence number.
        iss: u32,
    }

    impl Case {
        fn new(bytes: u64) -> Self {
            let path = Path::new(0, 0, false);
            let mut rng = Rng::with_seed(1);
            let end =
                EndSettings { rcvbuf: WINDOW, closes_last: true, ..cases::end(&mut rng, bytes) };
            let vm = Smol::new(&[(0, path.clone(), end)], 1);
            let mut case = Self { vm, now: START, path, rng, iss: 0 };
            let answer = case.hear(Seg::bare(IRS, 0, SYN), 65_535);
            case.iss = answer[0].seq;
            case
        }

        /// The VM gets a segment with this window; returns what it sends.
        fn hear(&mut self, mut s: Seg, window: u16) -> Vec<Seg> {
            s.window = window;
            let frame = wire::encode(&s, &self.path, true, Summed::None);
            self.vm.input(self.now, &frame, &mut self.rng);
            self.sent()
        }

        fn sent(&mut self) -> Vec<Seg> {
            self.vm.output().iter().filter_map(wire::decode).collect()
        }

        /// A segment of the sender at this position; it acknowledges `acked` bytes of the VM.
        fn segment(&self, at: u32, acked: u32, flags: u8) -> Seg {
            Seg::bare(IRS + at, self.iss.wrapping_add(1 + acked), flags | ACK)
        }
    }

    #[test]
    fn a_window_that_a_late_duplicate_closed_is_probed() {
        let mut case = Case::new(20_000);
        let sent = case.hear(case.segment(1, 0, 0), 65_535);
        assert!(sent.iter().any(|s| s.len() > 0), "{sent:?}");
        case.hear(case.segment(1, 0, 0), 0);
        let sent = (0..100).flat_map(|_| {
            case.now += 100 * MS;
            case.vm.timers(case.now, &mut case.rng);
            case.sent()
        });
        assert!(sent.map(|s| s.len()).sum::<u32>() > 0, "no probe");
    }

    #[test]
    fn a_fin_behind_what_the_window_cuts_off_is_reported() {
        for (bytes, early_fin) in [(3_500, Some(3_501)), (2_000, None)] {
            let mut case = Case::new(0);
            case.hear(case.segment(1, 0, 0), 65_535);
            let mut s = case.segment(1, 0, FIN);
            s.data = (1..=bytes).map(|at| content(0, at)).collect();
            case.hear(s, 65_535);
            assert_eq!(case.vm.progress(0).early_fin, early_fin);
        }
    }
}
