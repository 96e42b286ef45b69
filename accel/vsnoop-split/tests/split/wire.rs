//! The wire between both ends: it loses segments, and leads them to the sockets of a split
//! connection.

use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::record::{Half, Record, before};
use crate::report::Report;
use crate::segment::{ACK, RST, SYN, Segment};

/// A test that is stuck fails.
pub const STUCK: Duration = Duration::from_secs(60);

/// Where segments go, and what was seen of them.
#[derive(Default)]
pub struct State {
    pub record: Record,
    /// Segments of both ends go to the sockets.
    pub is_split: bool,
    /// Segments of the VM are lost once they were seen, those of the peer before they are.
    pub lose_from_vm: bool,
    pub lose_from_peer: bool,
    /// Segments of the VM to the peer stay on the way.
    pub hold_from_vm: bool,
    held: Vec<Vec<u8>>,
    /// Segments of the VM that begin with this SEQ are lost.
    pub lose_seq: Option<u32>,
    /// Segments of the sockets to the peer that are longer are lost, and reported by an ICMP
    /// message of this code.
    pub report: Option<Report>,
    /// Segments to the VM are lost.
    pub lose_to_vm: bool,
    /// One segment with payload is lost out of this many; none if it is 0.
    pub lose_one_of: u32,
    payloads: u32,
    /// ICMP messages to the sockets.
    pub reports: usize,
    /// Highest ACK of the sockets that the VM was shown.
    pub vm_acknowledged: Option<u32>,
    /// Raw window of the sockets that the VM was shown last.
    pub vm_room: Option<u16>,
    /// Segments of sockets while the connection is not split, but for ACKs that were under way
    /// when it was joined.
    pub strays: usize,
    pub was_joined: bool,
    shown: Shown,
    /// Right edges that went back.
    pub edges_back: Vec<String>,
}

/// Right edges that the VM and the peer were shown.
#[derive(Default)]
struct Shown {
    vm: Option<u32>,
    peer: Option<u32>,
}

pub struct Wire {
    state: Mutex<State>,
    stop: AtomicBool,
    pub vm: IpAddr,
    pub peer: IpAddr,
}

/// Devices of both ends and of the sockets.
pub struct Devices {
    pub vm: File,
    pub peer: File,
    pub sockets: File,
}

#[derive(Clone, Copy, PartialEq)]
enum From {
    Vm,
    Peer,
    Sockets,
}

impl Wire {
    /// Runs on a thread until [`Self::stop`].
    pub fn run(vm: IpAddr, peer: IpAddr, devices: Devices) -> (Arc<Self>, JoinHandle<()>) {
        let (state, stop) = (Mutex::default(), AtomicBool::new(false));
        let wire = Arc::new(Self { state, stop, vm, peer });
        let on_thread = wire.clone();
        (wire, std::thread::spawn(move || on_thread.move_packets(&devices)))
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// No packet moves as long as the state is locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the wire")
    }

    /// Waits until something holds.
    pub fn until(&self, mut holds: impl FnMut(&State) -> bool) {
        let begun = Instant::now();
        while !holds(&self.state()) {
            assert!(begun.elapsed() < STUCK, "it never holds");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn move_packets(&self, devices: &Devices) {
        let sources = [
            (From::Vm, &devices.vm),
            (From::Peer, &devices.peer),
            (From::Sockets, &devices.sockets),
        ];
        let mut packet = [0; 1 << 16];
        while !self.stop.load(Ordering::Relaxed) {
            self.state().let_go(&devices.peer);
            let readable = poll(sources.map(|(_, device)| device));
            for (&(from, mut device), _) in sources.iter().zip(readable).filter(|(_, is)| *is) {
                let Ok(length) = device.read(&mut packet) else { continue };
                self.state().move_packet(self, from, &packet[..length], devices);
            }
        }
    }
}

impl State {
    fn move_packet(&mut self, wire: &Wire, from: From, packet: &[u8], devices: &Devices) {
        let Some(segment) = Segment::parse(packet) else { return };
        if [segment.source, segment.destination] != [wire.vm, wire.peer]
            && [segment.source, segment.destination] != [wire.peer, wire.vm]
        {
            return;
        }
        let to_vm = segment.destination == wire.vm;
        match from {
            From::Peer if self.lose_from_peer => return,
            From::Vm => self.record.vm.see(&segment),
            From::Peer => {
                // A new connection.
                if segment.has(SYN) {
                    self.join();
                }
                self.record.peer.see(&segment);
            }
            From::Sockets if !self.is_split => {
                let is_late_ack = self.was_joined && segment.is_bare_ack();
                self.strays += usize::from(!is_late_ack);
                return;
            }
            From::Sockets => {}
        }
        if self.loses(from, &segment) {
            return;
        }
        if from != From::Sockets && self.is_split {
            let _ = (&devices.sockets).write(packet);
            return;
        }
        if from == From::Vm && self.hold_from_vm {
            self.held.push(packet.to_vec());
            return;
        }
        let reported = self.report.filter(|report| !to_vm && packet.len() > report.mtu.into());
        if let (From::Sockets, Some(report)) = (from, reported) {
            self.reports += 1;
            let _ = (&devices.sockets).write(&report.about(packet));
            return;
        }
        if to_vm && self.lose_to_vm {
            return;
        }
        self.see_shown(to_vm, &segment);
        if to_vm && from == From::Sockets && !segment.has(RST) {
            self.vm_acknowledged = Some(segment.ack);
            self.vm_room = Some(segment.window);
        }
        let _ = if to_vm { &devices.vm } else { &devices.peer }.write(packet);
    }

    fn let_go(&mut self, mut peer: &File) {
        if !self.hold_from_vm {
            self.held.drain(..).for_each(|packet| drop(peer.write(&packet)));
        }
    }

    fn loses(&mut self, from: From, segment: &Segment) -> bool {
        let is_chosen = self.lose_seq == Some(segment.seq) && !segment.payload.is_empty();
        if from == From::Vm && (self.lose_from_vm || is_chosen) {
            return true;
        }
        if self.lose_one_of == 0 || segment.payload.is_empty() {
            return false;
        }
        self.payloads += 1;
        self.payloads.is_multiple_of(self.lose_one_of)
    }

    /// Neither end may be shown less than before.
    fn see_shown(&mut self, to_vm: bool, segment: &Segment) {
        if !segment.has(ACK) || segment.has(RST) {
            return;
        }
        let place: &Half = if to_vm { &self.record.peer } else { &self.record.vm };
        let edge = place.edge_of(segment);
        let slack = 1 << place.scale();
        let shown = if to_vm { &mut self.shown.vm } else { &mut self.shown.peer };
        if segment.window == 0 {
            // Linux shows a smaller window than before if it has no memory (ICSK_ACK_NOMEM).
            *shown = None;
        }
        if let Some(shown) = shown.filter(|shown| before(edge.wrapping_add(slack), *shown)) {
            self.edges_back.push(format!("to VM: {to_vm}, {edge} behind {shown}"));
        }
        *shown = Some(shown.filter(|shown| before(edge, *shown)).unwrap_or(edge));
    }

    /// The ends are their own again.
    pub fn join(&mut self) {
        self.is_split = false;
        self.shown = Shown::default();
    }
}

/// Which can be read, within some milliseconds.
fn poll(devices: [&File; 3]) -> [bool; 3] {
    let mut polled = devices.map(|device| libc::pollfd {
        fd: device.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    // SAFETY: the descriptors are open; three entries are live.
    unsafe { libc::poll(polled.as_mut_ptr(), 3, 20) };
    polled.map(|polled| polled.revents & libc::POLLIN != 0)
}
