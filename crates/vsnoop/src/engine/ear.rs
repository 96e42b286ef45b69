//! Hears what a VM sends at a port that is not its tap.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, ensure};
use libc::c_int;
use vsnoop_upkeep::overheard::pure_ack;

/// Headers with all options fit.
const HEADERS_BYTES: usize = 256;
/// Frames that are taken at once.
const AT_ONCE: usize = 64;
/// Under bpf/marks.h: ACKs that the hooks of that port have made are not the VM's.
const MARK_MASK: u32 = 0xfff0_0000;
const MARK_REPLY: u32 = 0x5e20_0000;
const PACKET_IGNORE_OUTGOING: c_int = 23;

#[derive(Debug)]
pub struct Ear {
    socket: OwnedFd,
}

impl Ear {
    /// Of frames with this source address that come in by an interface of the calling thread's
    /// network namespace.
    pub fn open(ifindex: u32, mac: [u8; 6]) -> Result<Self> {
        // SAFETY: takes no pointers. Protocol 0: it receives nothing until it is bound.
        let fd = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        ensure!(fd >= 0, "open a packet socket: {}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor, owned by this value alone.
        let ear = Self { socket: unsafe { OwnedFd::from_raw_fd(fd) } };
        ear.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1).context("hear what comes in")?;
        let program = filter(mac);
        let program =
            libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        ear.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).context("filter frames")?;
        // SAFETY: an all-zero sockaddr_ll is one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex as i32;
        // SAFETY: a complete address and its true length.
        let bound = unsafe {
            libc::bind(
                ear.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        ensure!(bound == 0, "bind to interface {ifindex}: {}", std::io::Error::last_os_error());
        Ok(ear)
    }

    /// Takes the segments that have come, as pure ACKs.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        let mut frame = [0; HEADERS_BYTES];
        for _ in 0..AT_ONCE {
            // SAFETY: a buffer with its true length.
            let length = unsafe {
                libc::recv(self.socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0)
            };
            let Ok(length) = usize::try_from(length) else { break };
            segments.extend(pure_ack(&frame[..length.min(frame.len())]));
        }
        segments
    }

    fn set<T>(&self, level: c_int, name: c_int, value: &T) -> std::io::Result<()> {
        // SAFETY: a value with its true length; what it points to outlives the call.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

/// Passes the first bytes of frames with this source address that the VM has sent itself.
fn filter(mac: [u8; 6]) -> [libc::sock_filter; 9] {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_HALF: u16 = 0x28;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// SKF_AD_OFF + SKF_AD_MARK of linux/filter.h.
    const MARK: u32 = -0x1000_i32 as u32 + 20;
    let source = |at: usize| u16::from_be_bytes([mac[at], mac[at + 1]]);
    let begin = u32::from(source(0)) << 16 | u32::from(source(2));
    let of = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    [
        of(LOAD_WORD, 0, 0, 6),
        of(JUMP_IF_EQUAL, 0, 5, begin),
        of(LOAD_HALF, 0, 0, 10),
        of(JUMP_IF_EQUAL, 0, 3, source(4).into()),
        of(LOAD_WORD, 0, 0, MARK),
        of(AND, 0, 0, MARK_MASK),
        of(JUMP_IF_EQUAL, 0, 1, MARK_REPLY),
        of(RETURN, 0, 0, 0),
        of(RETURN, 0, 0, HEADERS_BYTES as u32),
    ]
}
