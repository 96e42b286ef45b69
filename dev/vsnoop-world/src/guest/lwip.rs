//! A VM whose TCP is lwIP, a foreign stack in C. It uses timestamps, SACK and window scaling where
//! its peer does, and its timers are coarse.
//!
//! build.rs compiles lwIP with native/lwip/. lwIP's state is global, so that only one such VM
//! exists at a time: making another one waits until the first is dropped.

use std::ffi::{CStr, c_char};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use vsnoop_flow::testing::clock::{MS, START};
use vsnoop_flow::testing::end::EndSettings;

use super::application::{Application, Received, Stream};
use super::tcp::{Guest, Progress};
use crate::frame::Frame;
use crate::layout;
use crate::wire::{self, Path};

mod native {
    //! The declarations of native/lwip/vm.h.

    /// State of an end.
    #[derive(Clone, Copy, Debug, Default)]
    #[repr(C)]
    pub struct EndState {
        pub accepted: u32,
        pub unread: u32,
        pub room: u32,
        pub is_open: bool,
        pub has_fin: bool,
        pub is_done: bool,
        pub is_reset: bool,
    }

    #[repr(C)]
    pub struct Address {
        pub bytes: [u8; 16],
        pub is_ipv6: bool,
    }

    unsafe extern "C-unwind" {
        pub fn lwip_vm_start(seed: u32, window: u32);
        pub fn lwip_vm_add_address(address: *const Address);
        pub fn lwip_vm_listen(end: u32, port: u16);
        pub fn lwip_vm_connect(end: u32, port: u16, peer: *const Address, peer_port: u16);
        pub fn lwip_vm_clock(now_ms: u32);
        pub fn lwip_vm_input(packet: *const u8, len: u32);
        pub fn lwip_vm_timers();
        pub fn lwip_vm_next_timer_ms() -> u32;
        pub fn lwip_vm_read(end: u32, bytes: *mut u8, room: u32) -> u32;
        pub fn lwip_vm_write(end: u32, bytes: *const u8, len: u32) -> u32;
        pub fn lwip_vm_close(end: u32) -> bool;
        pub fn lwip_vm_abort(end: u32);
        pub fn lwip_vm_look(end: u32, state: *mut EndState);
    }
}

/// Guards lwIP's global state.
static LWIP: Mutex<()> = Mutex::new(());

/// The IP packets that lwIP has sent.
static SENT: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn sent() -> MutexGuard<'static, Vec<Vec<u8>>> {
    SENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a packet.
///
/// # Safety
/// `packet` must point to `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn lwip_vm_sends(packet: *const u8, len: u32) {
    // SAFETY: sends() of vm.c has filled a buffer so far.
    let packet = unsafe { std::slice::from_raw_parts(packet, len as usize) };
    sent().push(packet.to_vec());
}

/// An assertion of lwIP or vm.c failed.
///
/// # Safety
/// `why` must be a string of C.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn lwip_vm_failed(why: *const c_char) {
    // SAFETY: LWIP_PLATFORM_ASSERT has only literals.
    panic!("lwIP: {:?}", unsafe { CStr::from_ptr(why) });
}

#[derive(Debug)]
pub struct Lwip {
    ends: Vec<Conn>,
    /// Held for all calls into native/lwip/, from lwip_vm_start() to the drop.
    _alone: MutexGuard<'static, ()>,
}

/// One connection and its application.
#[derive(Debug)]
struct Conn {
    number: usize,
    path: Path,
    socket: Socket,
    application: Application,
}

impl Conn {
    /// Has the application a connection, or something to read?
    fn can_act(&self) -> bool {
        let state = self.socket.state();
        state.is_open || state.unread > 0
    }
}

/// The index of an end in vm.c.
#[derive(Clone, Copy, Debug)]
struct Socket(u32);

fn address(ip: IpAddr) -> native::Address {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    native::Address { bytes, is_ipv6: ip.is_ipv6() }
}

/// The simulated time as lwIP counts it.
fn millis(now: u64) -> u32 {
    ((now - START) / MS) as u32
}

impl Socket {
    fn state(self) -> native::EndState {
        let mut state = native::EndState::default();
        // SAFETY: see Lwip::_alone; the pointer is to a struct of this layout.
        unsafe { native::lwip_vm_look(self.0, &mut state) };
        state
    }
}

impl Stream for Socket {
    fn receive(&mut self, buffer: &mut [u8]) -> Received {
        // SAFETY: see Lwip::_alone; the buffer has the length that is passed.
        let len = unsafe { native::lwip_vm_read(self.0, buffer.as_mut_ptr(), buffer.len() as u32) };
        match len {
            0 if self.state().has_fin => Received::Fin,
            0 => Received::Nothing,
            _ => Received::Bytes(len as usize),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        // SAFETY: see Lwip::_alone; lwIP copies the bytes.
        unsafe { native::lwip_vm_write(self.0, bytes.as_ptr(), bytes.len() as u32) as usize }
    }

    fn close(&mut self) -> bool {
        // SAFETY: see Lwip::_alone.
        unsafe { native::lwip_vm_close(self.0) }
    }

    fn has_news(&self) -> bool {
        let state = self.state();
        state.unread > 0 || state.has_fin
    }

    fn has_room(&self) -> bool {
        self.state().room > 0
    }
}

impl Lwip {
    pub fn new(ends: &[(usize, Path, EndSettings)], seed: u64) -> Self {
        let alone = LWIP.lock().unwrap_or_else(PoisonError::into_inner);
        let window = ends.first().map_or(65_535, |(_, _, end)| end.rcvbuf as u32);
        sent().clear();
        // SAFETY: see _alone; the VM before this one has been dropped.
        unsafe { native::lwip_vm_start(Rng::with_seed(seed).u32(..), window) };
        let conns = ends.iter().enumerate().map(|(index, (number, path, end))| {
            // SAFETY: see _alone; the address is read only.
            unsafe {
                if !ends[..index].iter().any(|(_, other, _)| other.vm.0 == path.vm.0) {
                    native::lwip_vm_add_address(&address(path.vm.0));
                }
                native::lwip_vm_listen(index as u32, path.vm.1);
            }
            Conn {
                number: *number,
                path: path.clone(),
                socket: Socket(index as u32),
                application: Application::new(end),
            }
        });
        Self { ends: conns.collect(), _alone: alone }
    }

    /// Not a VM, but the sender of each connection: `ends` have the VM's paths.
    pub fn of_sender(ends: &[(usize, Path, EndSettings)], seed: u64) -> Self {
        let ends = ends.iter().map(|(c, path, end)| (*c, path.of_sender(), end.clone()));
        let mut lwip = Self::new(&ends.collect::<Vec<_>>(), seed);
        for end in &mut lwip.ends {
            end.application.becomes_sender();
        }
        lwip
    }

    fn end(&self, c: usize) -> &Conn {
        self.ends.iter().find(|end| end.number == c).expect("a connection of this VM")
    }

    fn clock(&mut self, now: u64) {
        // SAFETY: see _alone.
        unsafe { native::lwip_vm_clock(millis(now)) };
    }

    /// Runs the applications' due actions.
    fn act(&mut self, now: u64) {
        for end in self.ends.iter_mut().filter(|end| end.can_act()) {
            end.application.act(&mut end.socket, now);
        }
    }
}

impl Guest for Lwip {
    fn open(&mut self, c: usize, now: u64) {
        self.clock(now);
        let Conn { path, socket, .. } = self.end(c);
        let (peer, port) = path.sender;
        // SAFETY: see _alone; the address is read only.
        unsafe { native::lwip_vm_connect(socket.0, path.vm.1, &address(peer), port) };
    }

    fn abort(&mut self, c: usize) {
        // SAFETY: see _alone.
        unsafe { native::lwip_vm_abort(self.end(c).socket.0) };
    }

    fn input(&mut self, now: u64, frame: &Frame, _: &mut Rng) {
        let mut frame = frame.clone();
        frame.settle();
        self.clock(now);
        let packet = layout::packet(&frame.bytes).expect("a frame of a connection");
        // SAFETY: see _alone; lwIP copies the packet.
        unsafe { native::lwip_vm_input(packet.as_ptr(), packet.len() as u32) };
        self.act(now);
    }

    fn timers(&mut self, now: u64, _: &mut Rng) {
        self.clock(now);
        // SAFETY: see _alone.
        unsafe { native::lwip_vm_timers() };
        self.act(now);
    }

    fn next_timer(&mut self, now: u64) -> Option<u64> {
        self.clock(now);
        // SAFETY: see _alone.
        let timer = match unsafe { native::lwip_vm_next_timer_ms() } {
            u32::MAX => None,
            wait => Some(START + (u64::from(millis(now)) + u64::from(wait)) * MS),
        };
        let application = self.ends.iter().filter(|end| end.can_act());
        let application = application.filter_map(|end| end.application.next_act(&end.socket, now));
        timer.into_iter().chain(application).min().map(|at| at.max(now + 1_000))
    }

    fn output(&mut self) -> Vec<Frame> {
        let packets = std::mem::take(&mut *sent());
        let frames = packets.iter().filter_map(|packet| {
            let frame = wire::framed(packet, &self.ends[0].path);
            let (from, to) = layout::ports(&frame.bytes)?;
            let path = self.ends.iter().map(|end| &end.path);
            let path = { path }.find(|path| (path.vm.1, path.sender.1) == (from, to))?;
            Some(wire::framed(packet, path))
        });
        frames.collect()
    }

    fn progress(&self, c: usize) -> Progress {
        let end = self.end(c);
        let state = end.socket.state();
        let is_done = state.is_done && state.unread == 0;
        Progress {
            accepted: state.accepted.into(),
            is_done,
            is_reset: state.is_reset,
            is_open: state.is_open,
            early_fin: None,
        }
    }

    fn copy(&self) -> Box<dyn Guest> {
        unreachable!("lwIP's state is global")
    }
}
